//! Record of an exchange, from which counters and the access log are written.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use strait_http::cache_status::{Answer, Why};
use strait_http::head::Request;

use crate::config::trace::Trace;
use crate::io::socket::{Moved, Socket};

/// Origin of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The client left before there was a response.
    #[default]
    Unanswered,
    /// From the cache.
    Hit,
    /// From the cache, stale, because the origin failed.
    Stale,
    /// From the cache, after the origin has confirmed it.
    Revalidated,
    /// From the origin, by another client's request.
    Collapsed,
    /// From the origin, and stored.
    Miss,
    /// From the origin, not stored.
    Pass,
    /// Tunnel to the origin.
    Tunnel,
    /// The proxy's own response.
    Own,
}

impl Outcome {
    pub(crate) const ALL: [Self; 9] = [
        Self::Unanswered,
        Self::Hit,
        Self::Stale,
        Self::Revalidated,
        Self::Collapsed,
        Self::Miss,
        Self::Pass,
        Self::Tunnel,
        Self::Own,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unanswered => "unanswered",
            Self::Hit => "hit",
            Self::Stale => "stale",
            Self::Revalidated => "revalidated",
            Self::Collapsed => "collapsed",
            Self::Miss => "miss",
            Self::Pass => "pass",
            Self::Tunnel => "tunnel",
            Self::Own => "own",
        }
    }

    /// Returns the outcome of a response that the cache has afterwards.
    fn of_stored(answer: Answer) -> Self {
        match answer {
            Answer::Hit => Self::Hit,
            Answer::Forwarded { status: Some(304), stored: true, .. } => Self::Revalidated,
            Answer::Forwarded { collapsed: true, .. } => Self::Collapsed,
            // The origin was contacted, but the response is the stored one.
            Answer::Forwarded { stored: false, why: Why::Stale | Why::Request, .. } => Self::Stale,
            Answer::Forwarded { .. } => Self::Miss,
        }
    }
}

/// Record of an exchange, written while it goes on.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Status of the response; 0 without one.
    pub(crate) status: u16,
    pub(crate) outcome: Outcome,
    /// Content coding that the proxy has applied.
    pub(crate) coding: Option<&'static str>,
    /// Address of the contacted origin.
    pub(crate) origin: Option<SocketAddr>,
    /// Reason of the proxy's own response, if the log has it.
    pub(crate) why: Option<String>,
    /// True if the request has the right password of its route.
    pub(crate) is_authenticated: bool,
    pub(crate) trace: Option<Trace>,
}

impl Record {
    /// Sets a response from the store, or on its way there.
    pub(crate) fn stored(&mut self, status: u16, answer: Answer) {
        (self.status, self.outcome) = (status, Outcome::of_stored(answer));
    }

    /// The proxy's own response, with the reason if the log has it.
    pub(crate) fn refused(&mut self, status: u16, why: &str, is_logged: bool) {
        self.other(status, Outcome::Own);
        self.why = is_logged.then(|| why.to_owned());
    }

    /// Sets any other response.
    pub(crate) fn other(&mut self, status: u16, outcome: Outcome) {
        (self.status, self.outcome) = (status, outcome);
    }
}

/// Socket of a client, with the record of the current exchange.
#[derive(Debug)]
pub(crate) struct ClientSocket {
    pub(crate) socket: Socket,
    pub(crate) record: Record,
}

impl ClientSocket {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, record: Record::default() }
    }
}

impl Deref for ClientSocket {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

impl DerefMut for ClientSocket {
    fn deref_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }
}

/// Start of an exchange: its request is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    at: Instant,
    moved: Moved,
}

impl Begun {
    pub(crate) fn now(socket: &mut ClientSocket, trace: Option<Trace>) -> Self {
        socket.record = Record { trace, ..Record::default() };
        Self { at: Instant::now(), moved: socket.moved }
    }

    /// Returns the account of the exchange, after the last byte was given to the kernel.
    pub(crate) fn end<'a, 'b>(
        self,
        socket: &'a ClientSocket,
        client: SocketAddr,
        request: Option<&'a Request<'b>>,
        is_whole: bool,
    ) -> Account<'a, 'b> {
        let moved = socket.moved.since(self.moved);
        let stream = socket.http2_id();
        let (record, took, tls) = (&socket.record, self.at.elapsed(), socket.tls_version());
        Account { client, stream, tls, request, record, moved, took, is_whole }
    }
}

/// Finished exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account<'a, 'b> {
    pub(crate) client: SocketAddr,
    /// Stream of the HTTP/2 connection.
    pub(crate) stream: Option<u32>,
    /// Version of TLS, if the client's connection uses it.
    pub(crate) tls: Option<&'static str>,
    /// Request; `None` if it was malformed or is not logged.
    pub(crate) request: Option<&'a Request<'b>>,
    pub(crate) record: &'a Record,
    /// Bytes sent to the client.
    pub(crate) moved: Moved,
    pub(crate) took: Duration,
    /// True if the client got the whole response.
    pub(crate) is_whole: bool,
}

impl Account<'_, '_> {
    /// Returns the bytes sent to the client: heads, framing and body.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.moved.sent + self.moved.sendfile + self.moved.spliced
    }

    /// Returns the bytes of the body sent to the client, without head and chunk framing. They are 0
    /// for a client that left while the head was sent.
    pub(crate) fn body_bytes(&self) -> u64 {
        self.sent_bytes().saturating_sub(self.moved.overhead)
    }

    /// Returns the mechanism of the bytes, zero-copy ones first.
    pub(crate) fn mechanism(&self) -> &'static str {
        match self.moved {
            Moved { sendfile: 0, spliced: 0, sent: 0, .. } => "none",
            Moved { sendfile: 0, spliced: 0, .. } => "copy",
            Moved { spliced: 0, .. } => "sendfile",
            Moved { .. } => "splice",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_follows_from_the_cache_status() {
        let forwarded = |why, status, stored, collapsed| Answer::Forwarded { why, status, stored, collapsed };
        for (answer, expected) in [
            (Answer::Hit, Outcome::Hit),
            (forwarded(Why::Stale, Some(304), true, false), Outcome::Revalidated),
            (forwarded(Why::UriMiss, None, true, true), Outcome::Collapsed),
            (forwarded(Why::Stale, Some(503), false, false), Outcome::Stale),
            (forwarded(Why::Stale, None, true, false), Outcome::Miss),
            (forwarded(Why::UriMiss, None, true, false), Outcome::Miss),
        ] {
            assert_eq!(Outcome::of_stored(answer), expected, "{answer:?}");
        }
        assert!(Outcome::ALL.iter().enumerate().all(|(index, outcome)| *outcome as usize == index));
    }
}
