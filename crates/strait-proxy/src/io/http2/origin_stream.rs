//! One request to an origin, as a connection of HTTP/1.1: its user writes the text of a request,
//! which becomes frames, and reads the text of the response.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use strait_http::framing;
use strait_http::head;
use tokio::time::{Sleep, sleep};

use crate::io::buffer::Buffer;
use crate::io::http2::body::{OutgoingBody, Sender, invalid};
use crate::io::http2::link::{Link, State};
use crate::io::http2::slot::StreamFailure;
use crate::io::moved::Moved;

/// Time in which an origin ends the stream of a complete response, if another request needs it. Of
/// a connection on which one end takes longer, streams are reset at once.
const END_WAIT: Duration = Duration::from_secs(1);

/// Stream of an HTTP/2 connection to an origin.
#[derive(Debug)]
pub(crate) struct OriginStream {
    stream: Arc<Opened>,
    is_encrypted: bool,
    is_encrypted_here: bool,
    sink: Sink,
    /// Reason for which no stream was opened.
    unopened: StreamFailure,
    /// Limit of the wait for another stream's end.
    end_wait: Option<Pin<Box<Sleep>>>,
    /// True if the client of the request accepts trailers.
    pub(crate) takes_trailers: bool,
    /// Bytes of its frames.
    moved: Moved,
}

/// Stream that is open once the head of its request was sent. It is released, and reset unless both
/// messages have ended, when it is dropped.
#[derive(Debug)]
struct Opened {
    link: Link,
    id: OnceLock<u32>,
}

/// Part of the request that is expected next.
#[derive(Debug)]
enum Sink {
    /// Head, of which these bytes were written.
    Head(Vec<u8>),
    Body(OutgoingBody),
    /// Nothing: the request has ended, or another user sends its body.
    Done,
}

impl OriginStream {
    pub(crate) fn new(link: Link) -> Self {
        let (is_encrypted, is_encrypted_here) = {
            let mut state = link.state();
            state.promised += 1;
            (state.transport.is_encrypted(), state.transport.is_encrypted_here())
        };
        let stream = Arc::new(Opened { link, id: OnceLock::new() });
        let (sink, moved) = (Sink::Head(Vec::new()), Moved::default());
        let unopened = StreamFailure::Refused;
        Self {
            stream,
            is_encrypted,
            is_encrypted_here,
            sink,
            unopened,
            end_wait: None,
            takes_trailers: false,
            moved,
        }
    }

    /// Returns another user of the stream, which sends the body of the request.
    pub(crate) fn split(&mut self) -> Self {
        let sink = std::mem::replace(&mut self.sink, Sink::Done);
        Self {
            stream: self.stream.clone(),
            is_encrypted: self.is_encrypted,
            is_encrypted_here: self.is_encrypted_here,
            sink,
            unopened: self.unopened,
            end_wait: None,
            takes_trailers: self.takes_trailers,
            moved: Moved::default(),
        }
    }

    /// Returns its connection.
    pub(crate) fn link(&self) -> Link {
        self.stream.link.clone()
    }

    /// Returns true if its connection uses TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Returns the bytes of its frames.
    pub(crate) fn moved(&self) -> Moved {
        self.moved
    }

    /// Returns the reason for which the response will not be complete.
    pub(crate) fn failure(&self) -> Option<StreamFailure> {
        match self.stream.id.get() {
            Some(id) => self.stream.link.state().failure(*id),
            None => Some(self.unopened),
        }
    }

    /// Ends the sending of an incomplete request: other streams get its turn.
    pub(crate) fn give_up_turn(&self) {
        if let Some(id) = self.stream.id.get() {
            self.stream.link.state().give_up_turn(*id);
        }
    }

    /// Lets no more requests begin on its connection.
    pub(crate) fn retire_connection(&self) {
        self.stream.link.retire();
    }

    /// Reads the text of the response; 0 at the end.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut Buffer,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_readable(context))?;
        let mut state = self.stream.link.state();
        let room = buffer.room();
        let most = most.min(room.len());
        let read = self.stream.id.get().map_or(0, |id| state.take(*id, &mut room[..most]));
        drop(state);
        buffer.grew(read);
        Poll::Ready(Ok(read))
    }

    /// Ready once there are bytes to read, or the end.
    pub(crate) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(id) = self.stream.id.get() else { return Poll::Ready(Err(closed())) };
        self.stream.link.state().poll_response(*id, context)
    }

    /// Takes some bytes of the request's text.
    pub(crate) fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let stream = self.stream.clone();
        let state = &mut *stream.link.state();
        let Some(id) = stream.id.get() else { return self.poll_head(state, context, bytes) };
        state.slot(*id)?;
        // The proxy writes no more than its head has announced.
        let Sink::Body(body) = &mut self.sink else {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        };
        let is_encrypted_here = self.is_encrypted_here;
        let mut sender = Sender { id: *id, is_encrypted_here, moved: &mut self.moved };
        let taken = body.poll_take(state, context, &mut sender, bytes);
        if body.is_over() {
            self.sink = Sink::Done;
        }
        taken
    }

    /// Takes bytes of the head, and opens the stream once it is complete.
    fn poll_head(
        &mut self,
        state: &mut State,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(state.poll_opening(context));
        ready!(self.poll_ends(state, context));
        let Sink::Head(before) = &mut self.sink else { return Poll::Ready(Err(closed())) };
        let known = before.len();
        before.extend_from_slice(bytes);
        let (id, frames, body, len) = {
            self.unopened = StreamFailure::Unsendable;
            let Some((request, len)) = head::own_request(before).map_err(invalid)? else {
                return Poll::Ready(Ok(bytes.len()));
            };
            let body = framing::of_request(&request).map_err(invalid)?;
            let opened = state.open_request(&request, body, self.takes_trailers);
            let (id, frames) = opened.map_err(|failure| {
                self.unopened = failure;
                closed()
            })?;
            (id, frames, body, len)
        };
        let _ = self.stream.id.set(id);
        state.promised = state.promised.saturating_sub(1);
        self.moved.add(0, frames, self.is_encrypted_here);
        let has_body = body != framing::BodyFraming::None;
        self.sink = if has_body { Sink::Body(OutgoingBody::new(body)) } else { Sink::Done };
        Poll::Ready(Ok(len.saturating_sub(known)))
    }

    /// Waits a little for the end of a stream that this request would reset.
    fn poll_ends(&mut self, state: &mut State, context: &mut Context<'_>) -> Poll<()> {
        if state.awaits_end(context) {
            let wait = self.end_wait.get_or_insert_with(|| Box::pin(sleep(END_WAIT)));
            ready!(wait.as_mut().poll(context));
            state.end_late();
        }
        self.end_wait = None;
        Poll::Ready(())
    }
}

impl Drop for OriginStream {
    fn drop(&mut self) {
        if matches!(self.sink, Sink::Body(_)) {
            self.give_up_turn();
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let mut state = self.link.state();
        match self.id.get() {
            Some(id) => state.release(*id),
            None => state.promised = state.promised.saturating_sub(1),
        }
    }
}

fn closed() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
