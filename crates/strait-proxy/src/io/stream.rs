//! A connection's bytes, be they as they are or inside TLS: what to do now, and whom to wake when
//! there is more.
//!
//! [`crate::io::socket`] waits for it, and gives up in time. A connection without TLS pays one look at
//! an empty `Option`.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, Waker, ready};

use rustix::io::Errno;
use strait_transfer::pipe::Pipe;
use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::io::buffer::Buffer;
use crate::io::tcp::{poll_drain, poll_fill, poll_io};
use crate::io::tls::kernel::Kernel;
use crate::io::tls::session::Session;

/// A TCP connection, with TLS or without.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) tcp: TcpStream,
    tls: Option<Tls>,
}

#[derive(Debug)]
enum Tls {
    /// Encrypted here.
    Session(Box<Session>),
    /// Encrypted by the kernel.
    Kernel(Kernel),
}

impl Stream {
    pub(crate) fn new(tcp: TcpStream) -> Self {
        Self { tcp, tls: None }
    }

    /// Begins with TLS: then [`Stream::poll_handshake`], and [`Stream::hand_over`].
    pub(crate) fn secure(&mut self, session: Session) {
        self.tls = Some(Tls::Session(Box::new(session)));
    }

    pub(crate) fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.tls {
            Some(Tls::Session(session)) => session.poll_handshake(&mut self.tcp, context),
            Some(Tls::Kernel(_)) | None => Poll::Ready(Ok(())),
        }
    }

    /// Leaves the rest to the kernel, if it takes it. After an error the connection is shut:
    /// nothing is to go over it as it is.
    pub(crate) fn hand_over(&mut self) -> io::Result<()> {
        if let Some(Tls::Session(session)) = self.tls.take() {
            let taken = session.hand_over(&self.tcp).inspect_err(|_| {
                let _ = rustix::net::shutdown(&self.tcp, rustix::net::Shutdown::Both);
            })?;
            self.tls = Some(match taken {
                Ok(kernel) => Tls::Kernel(kernel),
                Err(session) => Tls::Session(session),
            });
        }
        Ok(())
    }

    /// Whether there is TLS on it.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether its bytes pass through user space to be encrypted.
    pub(crate) fn is_encrypted_here(&self) -> bool {
        matches!(self.tls, Some(Tls::Session(_)))
    }

    /// Reads what there is, `most` bytes at most, into the buffer's room; 0 at the end. Memory is
    /// taken when there is something to read.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut Buffer,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        match &mut self.tls {
            None => poll_fill(&self.tcp, context, buffer, most),
            Some(Tls::Session(session)) => session.poll_read(&mut self.tcp, context, buffer, most),
            Some(Tls::Kernel(kernel)) => kernel.poll_read(&mut self.tcp, context, buffer, most),
        }
    }

    /// Sends some of `parts`, or takes it to be sent with what follows: [`Stream::poll_send`] comes
    /// last.
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.tls {
            Some(Tls::Session(session)) => session.poll_write(&mut self.tcp, context, parts),
            Some(Tls::Kernel(_)) | None => poll_drain(&self.tcp, context, parts),
        }
    }

    /// Sends some of what was taken; `false` if there is nothing left.
    pub(crate) fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        match &mut self.tls {
            Some(Tls::Session(session)) => session.poll_send(&mut self.tcp, context),
            Some(Tls::Kernel(_)) | None => Poll::Ready(Ok(false)),
        }
    }

    /// Moves what was received into an empty pipe, where it is not encrypted here; 0 at the end.
    pub(crate) fn poll_splice(
        &mut self,
        context: &mut Context<'_>,
        pipe: &mut Pipe,
        most: u64,
    ) -> Poll<io::Result<usize>> {
        let Self { tcp, tls } = self;
        poll_io(tcp, context, Interest::READABLE, || match tls {
            Some(Tls::Kernel(kernel)) => Ok(kernel.fill(tcp, pipe, most)?),
            Some(Tls::Session(_)) => Err(io::ErrorKind::Unsupported.into()),
            None => Ok(pipe.fill(&*tcp, most)?),
        })
    }

    /// Moves what more is here behind what a pipe holds, without waiting; 0 if there is nothing, or
    /// nothing that fits. It says nothing of which: what is known of the socket stays as it is.
    /// An error is told once, and here.
    pub(crate) fn splice_more(&self, pipe: &mut Pipe, most: u64) -> io::Result<usize> {
        if self.tls.is_some() {
            return Ok(0);
        }
        match pipe.fill(&self.tcp, most) {
            Err(Errno::AGAIN) => Ok(0),
            done => Ok(done?),
        }
    }

    /// Whether there is something to read, be it the end.
    pub(crate) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.tls {
            Some(Tls::Session(session)) => session.poll_readable(&mut self.tcp, context),
            Some(Tls::Kernel(kernel)) => kernel.poll_readable(&mut self.tcp, context),
            None => self.tcp.poll_read_ready(context),
        }
    }

    /// Whether the peer has nothing to say and is still there.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        if self.tls.is_some() {
            return self.poll_readable(&mut context).is_pending();
        }
        // What tokio knows may be from before: splice(2) leaves nothing behind, and does not say so.
        self.tcp.poll_read_ready(&mut context).is_pending()
            || self.tcp.poll_peek(&mut context, &mut ReadBuf::new(&mut [0])).is_pending()
    }

    /// Says that nothing more will be sent: what was, was all.
    pub(crate) fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.tls {
            Some(Tls::Session(session)) => ready!(session.poll_finish(&mut self.tcp, context))?,
            Some(Tls::Kernel(kernel)) => ready!(kernel.poll_finish(&self.tcp, context))?,
            None => {}
        }
        Poll::Ready(Ok(rustix::net::shutdown(&self.tcp, rustix::net::Shutdown::Write)?))
    }
}
