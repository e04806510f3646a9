//! Body of a client's request, on its way to the origin.

use std::time::{Duration, Instant};

use strait_http::framing::BodyFraming;
use strait_http::trailer::Trailers;

use crate::io::buffer::Buffer;
use crate::io::forward::{self, BodySource, Form, ForwardError, SentBytes};
use crate::io::framing::{Framed, Piece, TOO_LONG};
use crate::io::gate::{Client, Key, Permit};
use crate::io::pace::Pace;
use crate::io::socket::{Socket, SocketError};
use crate::upstream::error::{FetchError, of_connection};
use crate::upstream::pool::Upstream;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Limits of the body of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    /// Maximum of data bytes.
    pub(crate) bytes: u64,
    /// Time for all of them.
    pub(crate) time: Duration,
}

/// Body of a request.
#[derive(Debug)]
pub(crate) struct Upload {
    framed: Framed,
    limits: BodyLimits,
    /// Pace so far, if bytes were read ahead, and the start of the body.
    pace: Option<(Pace, Instant)>,
    /// Bytes after the request's head; at the end, bytes after its body.
    pub(crate) buffer: Buffer,
    /// True if the client waits for 100 (Continue) (RFC 9110, section 10.1.1).
    pub(crate) is_expected: bool,
    /// True if the client was sent 100 (Continue) before the origin was contacted.
    pub(crate) was_continued: bool,
    /// True if the client understands interim responses.
    pub(crate) takes_interim: bool,
    /// Framing of the whole body, to send it again.
    whole: Framed,
    /// Bytes that were sent to an origin that may refuse the request unprocessed.
    sent: SentBytes,
    /// True if all of it is here again after an origin has refused the request.
    is_back: bool,
}

impl Upload {
    /// Body of a request with these limits; `rest` was read with the head.
    pub(crate) fn new(
        body: BodyFraming,
        rest: &[u8],
        is_expected: bool,
        takes_interim: bool,
        limits: BodyLimits,
    ) -> Self {
        let mut buffer = Buffer::default();
        if !rest.is_empty() {
            buffer.room()[..rest.len()].copy_from_slice(rest);
            buffer.grew(rest.len());
        }
        let has_body = body != BodyFraming::None;
        // The client has not waited if bytes of the body are here.
        let is_expected = is_expected && has_body && rest.is_empty();
        Self {
            framed: Framed::limited(body, limits.bytes),
            limits,
            pace: None,
            buffer,
            is_expected,
            was_continued: false,
            takes_interim,
            whole: Framed::limited(body, limits.bytes),
            sent: SentBytes::default(),
            is_back: false,
        }
    }

    /// Returns the maximum of data bytes.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.limits.bytes
    }

    /// Returns the rest of the body, for another user.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            framed: std::mem::replace(&mut self.framed, Framed::Length(0)),
            pace: self.pace.take(),
            buffer: std::mem::take(&mut self.buffer),
            sent: std::mem::take(&mut self.sent),
            ..*self
        }
    }

    /// Begins again. Returns false if bytes that were sent are lost.
    pub(crate) fn rewind(&mut self) -> bool {
        let sent = self.sent.take();
        self.is_back = sent.is_some_and(|sent| sent.is_empty() || self.buffer.put_back(&sent));
        self.framed = self.whole;
        self.is_back
    }

    /// Returns true if the whole body can be sent again.
    pub(crate) fn is_back(&self) -> bool {
        self.is_back
    }

    /// Returns true unless the body is sent in chunks.
    pub(crate) fn is_of_known_length(&self) -> bool {
        !self.framed.is_chunked()
    }

    /// Returns true if parts of the body are still to be sent.
    pub(crate) fn has_body(&self) -> bool {
        !self.framed.is_over()
    }

    /// Reads the body, up to `limits.request_ahead` bytes, before the origin is contacted, so that
    /// a slow client holds no connection to the origin. A longer body of a client that waits for
    /// 100 (Continue) is left to the origin. Waits for a permit for the memory, which is released
    /// with the last byte.
    pub(crate) async fn read_ahead(
        &mut self,
        upstream: &Upstream<'_>,
        client: &mut Socket,
        counted: Client,
    ) -> Result<(), FetchError> {
        let settings = upstream.settings;
        let is_asked_for = self.is_expected && !self.fits(settings.ahead_bytes);
        if settings.gates.ahead == 0 || !self.has_body() || is_asked_for {
            return Ok(());
        }
        // A body that came whole with the head is in the connection's buffer already and needs no
        // permit.
        if self.is_here(settings.ahead_bytes)? {
            return Ok(());
        }
        self.buffer.set_permits(permits(upstream, counted).await.ok_or(FetchError::NoMemory)?);
        self.read_until_here(upstream, client).await
    }

    /// Reads until enough of the body is in the buffer.
    async fn read_until_here(
        &mut self,
        upstream: &Upstream<'_>,
        client: &mut Socket,
    ) -> Result<(), FetchError> {
        if std::mem::take(&mut self.is_expected) {
            self.was_continued = true;
            send_continue(client).await?;
        }
        let begun = self.begun(upstream);
        client.pace = Some(begun);
        let done = loop {
            match client.read(&mut self.buffer).await {
                Ok(0) => break Err(FetchError::Client(SocketError::Closed)),
                Ok(_) => match self.is_here(upstream.settings.ahead_bytes) {
                    Ok(false) => {}
                    here => break here.map(drop),
                },
                Err(SocketError::TimedOut) => break Err(FetchError::Slow),
                Err(error) => break Err(FetchError::Client(error)),
            }
        };
        self.pace = client.pace.take();
        done
    }

    /// Returns true if the body is of a known length of at most `most` bytes.
    fn fits(&self, most: usize) -> bool {
        matches!(self.framed, Framed::Length(length) if length <= most as u64)
    }

    /// Returns true if the buffer holds the rest of the body, or `most` bytes of it.
    fn is_here(&self, most: usize) -> Result<bool, FetchError> {
        let (mut framed, mut bytes) = (self.framed, self.buffer.filled());
        if bytes.len() >= most {
            return Ok(true);
        }
        loop {
            let len = match framed.next(bytes) {
                Ok(Piece::End(_)) => return Ok(true),
                Ok(Piece::More) => return Ok(framed.is_over()),
                Ok(Piece::Data(len)) => {
                    framed.advance(len as u64);
                    len
                }
                Ok(Piece::Framing(len) | Piece::Trailer(len)) => len,
                Err(TOO_LONG) => return Err(FetchError::TooLong(self.limits.bytes)),
                Err(error) => return Err(FetchError::Request(error)),
            };
            bytes = &bytes[len..];
        }
    }

    /// Returns the pace that the body must keep, and its start.
    pub(super) fn begun(&self, upstream: &Upstream<'_>) -> (Pace, Instant) {
        let settings = upstream.settings;
        let (grace, rate) = (settings.timeouts.body_grace, settings.request_body_rate);
        let new = || (Pace::new(grace, rate, self.limits.time), Instant::now());
        self.pace.unwrap_or_else(new)
    }

    /// Sends the body to the origin; returns false if the origin responded early or closed.
    pub(crate) async fn send(
        &mut self,
        upstream: &Upstream<'_>,
        client: &mut Socket,
        origin: &mut Socket,
    ) -> Result<bool, FetchError> {
        let form = self.form();
        client.pace = Some(self.begun(upstream));
        let (buffer, framed) = (&mut self.buffer, &mut self.framed);
        // Trailers of a request are dropped: an origin might merge them into its fields.
        let sent = origin.is_origin_stream().then_some(&mut self.sent);
        let from = BodySource { socket: &mut *client, buffer, framed, trailers: None, sent };
        origin.stops_on_response = true;
        let passed = forward::body(upstream.splicing(), from, origin, Vec::new(), form).await;
        origin.stops_on_response = false;
        if let (Err(_), Some(stream)) = (&passed, origin.origin_stream()) {
            stream.give_up_turn();
        }
        client.pace = None;
        match passed {
            Ok(_) => Ok(true),
            // The origin may have responded before it closed.
            Err(ForwardError::Receiver(SocketError::Answered | SocketError::Closed)) => Ok(false),
            Err(error) => Err(unsent(error, self.limits.bytes)),
        }
    }

    /// Sends the body by HTTP/2, where trailers are apart from the fields of the head.
    pub(super) async fn send_beside(
        &mut self,
        client: &mut Socket,
        origin: &mut Socket,
        trailers: Option<Trailers>,
    ) -> Result<(), FetchError> {
        let form = self.form();
        let (buffer, framed) = (&mut self.buffer, &mut self.framed);
        let sent = Some(&mut self.sent);
        let from = BodySource { socket: client, buffer, framed, trailers, sent };
        match forward::copied_body(from, origin, form).await {
            // The response has the reason.
            Ok(_) | Err(ForwardError::Receiver(_)) => Ok(()),
            Err(error) => Err(unsent(error, self.limits.bytes)),
        }
    }

    fn form(&self) -> Form {
        if self.framed.is_chunked() { Form::Chunks } else { Form::Data }
    }
}

/// Returns the error of a body that was not sent to its end.
fn unsent(error: ForwardError, most: u64) -> FetchError {
    match error {
        ForwardError::Malformed(TOO_LONG) => FetchError::TooLong(most),
        ForwardError::Receiver(error) => of_connection(error),
        ForwardError::Sender(SocketError::TimedOut) => FetchError::Slow,
        ForwardError::Sender(error) => FetchError::Client(error),
        ForwardError::Malformed(error) => FetchError::Request(error),
    }
}

/// Sends 100 (Continue) to a client that waits for it.
pub(crate) async fn send_continue(client: &mut Socket) -> Result<(), FetchError> {
    client.add_overhead(CONTINUE.len());
    client.write_all(CONTINUE, &[]).await.map_err(FetchError::Client)
}

/// Waits for the permits for a body that is read ahead, first at the client's gate.
async fn permits(upstream: &Upstream<'_>, client: Client) -> Option<Vec<Permit>> {
    let gates = upstream.gates;
    let deadline = tokio::time::Instant::now() + upstream.settings.timeouts.connect;
    let client_permit = gates.enter(Key::AheadOf(client), deadline).await?;
    Some(vec![gates.enter(Key::Ahead, deadline).await?, client_permit])
}
