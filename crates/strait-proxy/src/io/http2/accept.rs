//! HTTP/2 connection of a client: its requests become streams.

use std::task::{Context, Poll};
use std::time::Instant;

use strait_http2::{Abuse, Connection, Limits};

use crate::io::buffer::Buffer;
use crate::io::http2::link::{HEAD_BYTES, Lent, Link, State};
use crate::io::http2::slot::Slot;
use crate::io::http2::stream::Http2Stream;
use crate::io::http2::translate::{Method, TargetForm, write_request};
use crate::io::stream::Stream;

/// Largest window of a connection (RFC 9113, section 6.9.1).
const WINDOW_MAX: u32 = (1 << 31) - 1;

/// Result of driving a connection.
#[derive(Debug)]
pub(crate) enum Accepted {
    Request(Http2Stream),
    /// The last stream was released.
    Idle,
    /// A stream needs a pipe: call [`Link::lend`].
    NeedsPipe,
    /// The connection has ended; the limit that the client exceeded, if it did.
    End(Option<Abuse>),
}

impl Link {
    /// Begins HTTP/2 on a connection of a client, of which `buffer` was read already.
    /// `are_independent`: a body that is not read must not delay the others, as with calls of gRPC.
    pub(crate) fn new(
        transport: Stream,
        buffer: Buffer,
        streams: u32,
        form: TargetForm,
        are_independent: bool,
    ) -> Self {
        let mut limits = Limits { streams, head_bytes: HEAD_BYTES, ..Limits::default() };
        if are_independent {
            limits.connection_window = limits.stream_window.saturating_mul(streams).min(WINDOW_MAX);
        }
        Self::over(transport, Connection::new(limits, Instant::now()), buffer, form)
    }

    /// Receives and sends until there is a new request, or the connection becomes idle or ends.
    pub(crate) fn poll_accept(&self, context: &mut Context<'_>, was_idle: bool) -> Poll<Accepted> {
        let mut state = self.state();
        state.driver = Some(context.waker().clone());
        match state.poll(context) {
            Poll::Ready(Ok(Some((id, method)))) => {
                let is_encrypted = state.transport.is_encrypted();
                let is_encrypted_here = state.transport.is_encrypted_here();
                drop(state);
                let stream = Http2Stream::new(self.clone(), id, method, (is_encrypted, is_encrypted_here));
                Poll::Ready(Accepted::Request(stream))
            }
            Poll::Ready(Ok(None)) => Poll::Ready(Accepted::End(None)),
            Poll::Ready(Err(abuse)) => Poll::Ready(Accepted::End(abuse)),
            Poll::Pending if matches!(state.pipe, Lent::Wanted) => Poll::Ready(Accepted::NeedsPipe),
            Poll::Pending if !was_idle && state.is_idle() => Poll::Ready(Accepted::Idle),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl State {
    pub(super) fn open(&mut self, id: u32, is_last: bool) -> Option<(u32, Method)> {
        let request = self.protocol.request().ok()?;
        let Some(method) = Method::of(&request) else {
            self.refuse(id, b"501");
            return None;
        };
        let mut slot = Slot { is_ended: is_last, ..Slot::default() };
        slot.is_chunked = write_request(&mut slot.received.bytes, &request, method, self.form, !is_last);
        slot.note_head(0);
        self.slots.insert(id, slot);
        Some((id, method))
    }

    pub(super) fn refuse(&mut self, id: u32, status: &[u8]) {
        self.protocol.respond(id, [(&b":status"[..], status)].into_iter(), true);
        self.protocol.release(id);
    }
}
