//! What there is to tell of one exchange: the lines of the access log and the counters are made of
//! it.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use strait_http::cache_status::{Answer, Why};
use strait_http::head::Request;

use crate::io::socket::{Moved, Socket};

/// Where the answer to a request came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The client was gone before there was one.
    #[default]
    Unanswered,
    /// From the cache.
    Hit,
    /// From the cache, stale, as the origin failed.
    Stale,
    /// From the cache, once the origin had confirmed it.
    Revalidated,
    /// From the origin, by a request that another client had made.
    Collapsed,
    /// From the origin, and it is kept.
    Miss,
    /// From the origin, and it is not kept.
    Pass,
    /// From the origin for as long as both sides wished.
    Tunnel,
    /// From the proxy itself.
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

    /// Of an answer that is in the cache once it was given.
    fn of_stored(answer: Answer) -> Self {
        match answer {
            Answer::Hit => Self::Hit,
            Answer::Forwarded { status: Some(304), stored: true, .. } => Self::Revalidated,
            Answer::Forwarded { collapsed: true, .. } => Self::Collapsed,
            // Somebody was asked, and it is not of what came that this is made.
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
    /// Address of the origin that was asked.
    pub(crate) origin: Option<SocketAddr>,
    /// Reason of the proxy's own response, if the log has it.
    pub(crate) why: Option<String>,
}

impl Record {
    /// An answer from the store, or one that goes there.
    pub(crate) fn stored(&mut self, status: u16, answer: Answer) {
        (self.status, self.outcome) = (status, Outcome::of_stored(answer));
    }

    /// The proxy's own response, with the reason if the log has it.
    pub(crate) fn refused(&mut self, status: u16, why: &str, is_logged: bool) {
        self.other(status, Outcome::Own);
        self.why = is_logged.then(|| why.to_owned());
    }

    /// Any other.
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

/// The beginning of an exchange: its request is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    at: Instant,
    moved: Moved,
}

impl Begun {
    pub(crate) fn now(socket: &mut ClientSocket) -> Self {
        socket.record = Record::default();
        Self { at: Instant::now(), moved: socket.moved }
    }

    /// The account of it, once all was given to the kernel that there was to give.
    pub(crate) fn end<'a, 'b>(
        self,
        socket: &'a ClientSocket,
        client: SocketAddr,
        request: Option<&'a Request<'b>>,
        is_whole: bool,
    ) -> Account<'a, 'b> {
        let moved = socket.moved.since(self.moved);
        Account { client, request, record: &socket.record, moved, took: self.at.elapsed(), is_whole }
    }
}

/// An exchange that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account<'a, 'b> {
    pub(crate) client: SocketAddr,
    /// What was asked; nothing where that was no request, or where nobody reads it.
    pub(crate) request: Option<&'a Request<'b>>,
    pub(crate) record: &'a Record,
    /// Bytes that the client was sent.
    pub(crate) moved: Moved,
    pub(crate) took: Duration,
    /// The client got all that there was for it.
    pub(crate) is_whole: bool,
}

impl Account<'_, '_> {
    /// Bytes sent to the client: heads, framing and body.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.moved.sent + self.moved.sendfile + self.moved.spliced
    }

    /// Bytes of the body sent to the client, without head and chunk framing. A client that left
    /// while the head was sent got none.
    pub(crate) fn body_bytes(&self) -> u64 {
        self.sent_bytes().saturating_sub(self.moved.overhead)
    }

    /// The way that the bytes went which were not copied, if there were any.
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
    fn where_an_answer_came_from_is_told_by_what_the_cache_says_of_it() {
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
