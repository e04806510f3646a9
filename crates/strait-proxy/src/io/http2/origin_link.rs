//! HTTP/2 connection to an origin: requests open streams, and its task receives the responses.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use strait_http::framing::BodyFraming;
use strait_http::head::Request;
use strait_http2::{Abuse, Connection, Limits};

use crate::io::buffer::Buffer;
use crate::io::deadline::{Deadline, TimedOut};
use crate::io::http2::link::{HEAD_BYTES, Link, OUTPUT_BYTES, State};
use crate::io::http2::origin_text::{request_fields, write_response};
use crate::io::http2::slot::{Slot, StreamFailure};
use crate::io::http2::translate::TargetForm;
use crate::io::stream::Stream;

/// Concurrent requests on one connection, if the origin allows as many.
const STREAMS_MAX: u32 = 100;
/// Fields of a response: the text has one more.
const FIELDS_MAX: usize = 99;
/// Time in which an origin gets the last frames of its connection.
const LINGER: Duration = Duration::from_secs(2);

/// Result of driving a connection.
#[derive(Debug)]
enum Driven {
    /// The first stream was opened.
    Busy,
    /// The last stream was released.
    Idle,
    /// The connection has ended; the limit that the origin exceeded, if it did.
    End(Option<Abuse>),
}

impl Link {
    /// Begins HTTP/2 on a connection to an origin. [`Link::drive`] must run.
    pub(crate) fn to_origin(transport: Stream) -> Self {
        let limits = Limits {
            streams: STREAMS_MAX,
            head_bytes: HEAD_BYTES,
            fields: FIELDS_MAX,
            ..Limits::of_client()
        };
        let protocol = Connection::client(limits, Instant::now());
        Self::over(transport, protocol, Buffer::default(), TargetForm::Origin)
    }

    /// Returns true if another request may be sent on it now. Before its SETTINGS the limits of the
    /// origin are unknown, and it may be no server of HTTP/2.
    pub(crate) fn can_open(&self) -> bool {
        let state = self.state();
        !state.is_over
            && state.protocol.has_settings()
            && state.protocol.room() > state.promised
            && state.queued() < OUTPUT_BYTES
    }

    /// Returns true if the next request waits for the end of a complete response, or resets its
    /// stream.
    pub(crate) fn opens_by_reset(&self) -> bool {
        self.state().protocol.opens_by_reset()
    }

    /// Waits for the SETTINGS of the origin, which bound the requests.
    ///
    /// # Errors
    /// The connection has ended before; the origin's violation, if that is the reason.
    pub(crate) async fn settings(&self) -> Result<(), Option<&'static str>> {
        std::future::poll_fn(|context| {
            let state = &mut *self.state();
            if state.protocol.has_settings() {
                return Poll::Ready(Ok(()));
            }
            if state.is_over {
                return Poll::Ready(Err(state.violation));
            }
            state.begun = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Returns true if no more requests may be sent on it.
    pub(crate) fn is_leaving(&self) -> bool {
        let state = self.state();
        state.is_over || state.protocol.is_leaving()
    }

    /// Returns true if it has no streams, and no request is about to open one.
    pub(crate) fn is_unused(&self) -> bool {
        let state = self.state();
        state.slots.is_empty() && state.promised == 0
    }

    /// Lets the streams end, and accepts no more.
    pub(crate) fn retire(&self) {
        let state = &mut *self.state();
        state.protocol.go_away();
        state.wake_driver();
    }

    /// Receives and sends until the connection ends, or has no streams for `idle`, or the origin
    /// reads nothing for `patience`. Returns the limit that the origin exceeded, if it did.
    pub(crate) async fn drive(self, idle: Duration, patience: Duration) -> Option<Abuse> {
        let (mut deadline, mut is_quiet) = (Deadline::default(), true);
        let abuse = loop {
            let limit = if is_quiet { idle } else { patience };
            let blocked = self.blocked_at();
            let driven = std::future::poll_fn(|context| self.poll_drive(context, is_quiet));
            match deadline.within(limit, driven).await {
                Ok(Driven::Busy) => is_quiet = false,
                Ok(Driven::Idle) => is_quiet = true,
                Ok(Driven::End(abuse)) => break abuse,
                Err(TimedOut) if is_quiet && self.is_unused() => break None,
                Err(TimedOut) if blocked.is_some() && blocked == self.blocked_at() => break None,
                Err(TimedOut) => {}
            }
        };
        self.go_away();
        self.end();
        // Errors end the connection; there is no peer left to inform.
        let close = std::future::poll_fn(|context| self.poll_close(context));
        let _ = deadline.within(LINGER, close).await;
        abuse
    }

    fn poll_drive(&self, context: &mut Context<'_>, was_idle: bool) -> Poll<Driven> {
        let mut state = self.state();
        state.driver = Some(context.waker().clone());
        match state.poll(context) {
            Poll::Ready(Ok(_)) => Poll::Ready(Driven::End(None)),
            Poll::Ready(Err(abuse)) => Poll::Ready(Driven::End(abuse)),
            Poll::Pending if state.slots.is_empty() && state.is_flushed() && state.protocol.is_leaving() => {
                Poll::Ready(Driven::End(None))
            }
            Poll::Pending if was_idle && !state.slots.is_empty() => Poll::Ready(Driven::Busy),
            Poll::Pending if !was_idle && state.is_idle() => Poll::Ready(Driven::Idle),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl State {
    /// Sends the head of a request; returns its stream and the length of the frames.
    ///
    /// # Errors
    /// No request may be sent on this connection now, or the head is not valid in HTTP/2.
    pub(super) fn open_request(
        &mut self,
        request: &Request<'_>,
        body: BodyFraming,
        takes_trailers: bool,
    ) -> Result<(u32, usize), StreamFailure> {
        if self.is_over || !self.protocol.can_open() {
            return Err(StreamFailure::Refused);
        }
        let scheme = if self.transport.is_encrypted() { "https" } else { "http" };
        let fields = request_fields(request, scheme, takes_trailers);
        let is_to_head = request.method == "HEAD";
        let opened = self.protocol.open_request(fields.iter(), body == BodyFraming::None, is_to_head);
        let (id, len) = opened.map_err(|_| StreamFailure::Unsendable)?;
        self.slots.insert(id, Slot { is_to_head, ..Slot::default() });
        self.wake_driver();
        Ok((id, len))
    }

    /// Waits for room in the output for the head of a request.
    pub(super) fn poll_opening(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_over || self.queued() < OUTPUT_BYTES {
            return Poll::Ready(());
        }
        self.await_change(context);
        Poll::Pending
    }

    /// Returns true if a request waits for the end of a stream with a complete response, which it
    /// would reset.
    pub(super) fn awaits_end(&mut self, context: &mut Context<'_>) -> bool {
        let can_wait = !self.is_over && !self.ends_late && self.protocol.can_open();
        let awaits = can_wait && self.protocol.opens_by_reset();
        if awaits {
            self.await_change(context);
        }
        awaits
    }

    /// Gives up waiting for the ends of streams, for all requests.
    pub(super) fn end_late(&mut self) {
        self.ends_late = true;
        self.wake_openers();
    }

    /// Wakes the task of a request after the next frames.
    fn await_change(&mut self, context: &mut Context<'_>) {
        if !self.openers.iter().any(|waker| waker.will_wake(context.waker())) {
            self.openers.push(context.waker().clone());
        }
    }

    /// Adds the head of a response to the received text.
    pub(super) fn receive_response(&mut self, id: u32, is_last: bool) {
        let (Ok(response), Some(slot)) = (self.protocol.response(), self.slots.get_mut(&id)) else { return };
        let before = slot.received.bytes.len();
        slot.is_chunked = write_response(&mut slot.received.bytes, &response, is_last, slot.is_to_head);
        slot.note_head(before);
        slot.is_ended = is_last;
        if let Some(waker) = slot.reader.take() {
            waker.wake();
        }
    }

    /// Gives up the requests that the origin has not processed.
    pub(super) fn refuse_above(&mut self, last_stream: u32) {
        for (_, slot) in self.slots.range_mut(last_stream.saturating_add(1)..) {
            slot.failure.get_or_insert(StreamFailure::Refused);
            slot.wake();
        }
    }

    /// Ready once there are received bytes of the response, or it has ended.
    ///
    /// # Errors
    /// The response will not be complete: see [`State::failure`].
    pub(super) fn poll_response(&mut self, id: u32, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let failure = self.failure(id);
        match self.slots.get_mut(&id) {
            Some(slot) if !slot.received.is_empty() || slot.is_ended => Poll::Ready(Ok(())),
            Some(slot) if failure.is_none() => {
                slot.reader = Some(context.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(Err(std::io::ErrorKind::ConnectionReset.into())),
        }
    }

    /// Returns the reason for which a response will not be complete.
    pub(super) fn failure(&self, id: u32) -> Option<StreamFailure> {
        let slot = self.slots.get(&id)?;
        let of_connection = || match self.violation {
            _ if !self.is_over => None,
            Some(why) => Some(StreamFailure::Violation(why)),
            None => Some(StreamFailure::Ended),
        };
        slot.failure.or_else(of_connection)
    }

    pub(super) fn wake_openers(&mut self) {
        self.openers.drain(..).for_each(Waker::wake);
    }
}
