//! A connection's bytes, be they as they are or inside TLS: what to do now, and whom to wake when there is more.
//!
//! [`crate::socket`] waits for it, and gives up in time. A connection without TLS pays one look at an empty `Option`.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;

use crate::buffer::Buffer;
use crate::tls::Session;

/// A TCP connection, with TLS or without.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) tcp: TcpStream,
    session: Option<Box<Session>>,
}

impl Stream {
    pub(crate) fn new(tcp: TcpStream) -> Self {
        Self { tcp, session: None }
    }

    /// Begins with TLS: then [`Stream::poll_handshake`].
    pub(crate) fn secure(&mut self, tls: rustls::Connection) {
        self.session = Some(Box::new(Session::new(tls)));
    }

    /// Whether its bytes pass through user space to be encrypted.
    pub(crate) fn is_encrypted_here(&self) -> bool {
        self.session.is_some()
    }

    pub(crate) fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.session {
            Some(session) => session.poll_handshake(&mut self.tcp, context),
            None => Poll::Ready(Ok(())),
        }
    }

    /// Reads what there is, `most` bytes at most, into the buffer's room; 0 at the end. Memory is taken when there is something to read.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut Buffer,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        if let Some(session) = &mut self.session {
            return session.poll_read(&mut self.tcp, context, buffer, most);
        }
        ready!(self.tcp.poll_read_ready(context))?;
        poll_fill(&mut self.tcp, context, buffer, most)
    }

    /// Sends some of `parts`, or takes it to be sent with what follows: [`Stream::poll_send`] comes last.
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.session {
            Some(session) => session.poll_write(&mut self.tcp, context, parts),
            None => Pin::new(&mut self.tcp).poll_write_vectored(context, parts),
        }
    }

    /// Sends some of what was taken; `false` if there is nothing left.
    pub(crate) fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        match &mut self.session {
            Some(session) => session.poll_send(&mut self.tcp, context),
            None => Poll::Ready(Ok(false)),
        }
    }

    /// Whether there is something to read, be it the end.
    pub(crate) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.session {
            Some(session) => session.poll_readable(&mut self.tcp, context),
            None => self.tcp.poll_read_ready(context),
        }
    }

    /// Whether the peer has nothing to say and is still there.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        match &mut self.session {
            Some(session) => session.poll_readable(&mut self.tcp, &mut context).is_pending(),
            // What tokio knows may be from before: splice(2) leaves nothing behind, and does not say so.
            None => self.tcp.poll_peek(&mut context, &mut ReadBuf::new(&mut [0])).is_pending(),
        }
    }

    /// Says that nothing more will be sent: what was, was all.
    pub(crate) fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(session) = &mut self.session {
            ready!(session.poll_finish(&mut self.tcp, context))?;
        }
        Poll::Ready(Ok(rustix::net::shutdown(&self.tcp, rustix::net::Shutdown::Write)?))
    }
}

/// Reads what a TCP connection has, `most` bytes at most.
pub(crate) fn poll_fill(
    tcp: &mut TcpStream,
    context: &mut Context<'_>,
    buffer: &mut Buffer,
    most: usize,
) -> Poll<io::Result<usize>> {
    let room = buffer.room();
    let most = most.min(room.len());
    let mut room = ReadBuf::new(&mut room[..most]);
    let done = Pin::new(tcp).poll_read(context, &mut room);
    let read = room.filled().len();
    buffer.grew(read);
    done.map_ok(|()| read)
}
