//! HTTP/2 connection of a client: its requests become streams.

use std::task::{Context, Poll};
use std::time::Instant;

use strait_http2::{Abuse, Connection, Limits};

use crate::io::buffer::Buffer;
use crate::io::http2::link::{HEAD_BYTES, Lent, Link, Opening, State};
use crate::io::http2::opened::Opened;
use crate::io::http2::translate::{Method, TargetForm};
use crate::io::stream::Stream;

/// Largest window of a connection (RFC 9113, section 6.9.1).
const WINDOW_MAX: u32 = (1 << 31) - 1;

/// Result of driving a connection.
#[derive(Debug)]
pub(crate) enum Accepted {
    Request(Opened),
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
        // First, so that the head of the response waits for its body and is sent with it.
        if matches!(state.pipe, Lent::Wanted) {
            return Poll::Ready(Accepted::NeedsPipe);
        }
        match state.poll(context) {
            Poll::Ready(Ok(Some(opening))) => {
                Poll::Ready(Accepted::Request(Opened::new(self.clone(), opening, &state)))
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
    pub(super) fn open(&mut self, id: u32, is_last: bool) -> Option<Opening> {
        let head = self.protocol.take_request()?;
        let Some(method) = Method::of(&head.request()) else {
            self.refuse(id, b"501");
            self.protocol.give_back(head);
            return None;
        };
        Some(Opening { id, method, is_last, head })
    }

    pub(super) fn refuse(&mut self, id: u32, status: &[u8]) {
        self.protocol.respond(id, [(&b":status"[..], status)].into_iter(), true);
        self.protocol.release(id);
    }
}
