//! Bytes of a connection, plain or in TLS, as poll functions.
//!
//! [`crate::io::socket`] waits for them with time limits. A connection without TLS costs one check
//! of an empty `Option`.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, Waker, ready};

use rustix::io::Errno;
use strait_transfer::pipe::Pipe;
use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::io::buffer::Buffer;
use crate::io::piece::Piece;
use crate::io::tcp::{poll_drain, poll_fill, poll_io, poll_receive};
use crate::io::tls::kernel::Kernel;
use crate::io::tls::session::{Session, TLS_1_3};

/// TCP connection, with or without TLS.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) tcp: TcpStream,
    tls: Option<Tls>,
}

#[derive(Debug)]
enum Tls {
    /// Encrypted in user space.
    Session(Box<Session>),
    /// Encrypted by the kernel.
    Kernel(Kernel),
}

impl Stream {
    pub(crate) fn new(tcp: TcpStream) -> Self {
        Self { tcp, tls: None }
    }

    /// Begins TLS; [`Stream::poll_handshake`] and [`Stream::hand_over`] follow.
    pub(crate) fn secure(&mut self, session: Session) {
        self.tls = Some(Tls::Session(Box::new(session)));
    }

    pub(crate) fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.tls {
            Some(Tls::Session(session)) => session.poll_handshake(&mut self.tcp, context),
            Some(Tls::Kernel(_)) | None => Poll::Ready(Ok(())),
        }
    }

    /// Returns true if the peer has chosen HTTP/2 in the handshake; before
    /// [`Stream::hand_over`].
    pub(crate) fn has_chosen_http2(&self) -> bool {
        matches!(&self.tls, Some(Tls::Session(session)) if session.is_http2())
    }

    /// Hands encryption over to the kernel if it supports the session. After an error the
    /// connection is shut down: bytes must not be sent unencrypted.
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

    /// Returns true if the connection uses TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the version of TLS, if the connection uses it.
    pub(crate) fn tls_version(&self) -> Option<&'static str> {
        match self.tls.as_ref()? {
            Tls::Session(session) => session.version(),
            // It takes over no other one.
            Tls::Kernel(_) => Some(TLS_1_3),
        }
    }

    /// Returns true if bytes are encrypted in user space.
    pub(crate) fn is_encrypted_here(&self) -> bool {
        matches!(self.tls, Some(Tls::Session(_)))
    }

    /// Reads available bytes, at most `most`, into the buffer's free space; 0 at the end. The
    /// buffer takes memory only once there are bytes to read.
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

    /// Sends some of `parts`, or holds them to be sent with later bytes: call [`Stream::poll_send`]
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

    /// Takes all of `parts`, to be sent with later bytes. Only for TLS in user space.
    ///
    /// # Errors
    /// The connection must end.
    pub(crate) fn hold(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        match &mut self.tls {
            Some(Tls::Session(session)) => session.hold(parts),
            Some(Tls::Kernel(_)) | None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Returns the number of held bytes.
    pub(crate) fn held(&self) -> usize {
        match &self.tls {
            Some(Tls::Session(session)) => session.held(),
            Some(Tls::Kernel(_)) | None => 0,
        }
    }

    /// Sends as many of the held bytes as the socket takes at once. The task that calls
    /// [`Stream::poll_send`] sends the others.
    pub(crate) fn send_at_once(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(Tls::Session(session)) => session.send_at_once(&mut self.tcp),
            Some(Tls::Kernel(_)) | None => Ok(()),
        }
    }

    /// Sends some of the held bytes; `false` if none are left.
    pub(crate) fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        match &mut self.tls {
            Some(Tls::Session(session)) => session.poll_send(&mut self.tcp, context),
            Some(Tls::Kernel(_)) | None => Poll::Ready(Ok(false)),
        }
    }

    /// Moves received bytes into an empty pipe; 0 at the end. Not for TLS in user space.
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

    /// Reads available bytes, at most `most`, into a piece; an empty one at the end. Not for TLS.
    pub(crate) fn poll_receive(&mut self, context: &mut Context<'_>, most: usize) -> Poll<io::Result<Piece>> {
        match self.tls {
            Some(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
            None => poll_receive(&self.tcp, context, most),
        }
    }

    /// Moves more received bytes into a pipe without waiting; 0 if there are none or none that fit.
    /// The result does not distinguish these cases, so the socket's readiness stays as it is. The
    /// kernel reports an error once, and this call returns it.
    pub(crate) fn splice_more(&self, pipe: &mut Pipe, most: u64) -> io::Result<usize> {
        if self.tls.is_some() {
            return Ok(0);
        }
        match pipe.fill(&self.tcp, most) {
            Err(Errno::AGAIN) => Ok(0),
            done => Ok(done?),
        }
    }

    /// Ready once there are bytes to read, or the end.
    pub(crate) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.tls {
            Some(Tls::Session(session)) => session.poll_readable(&mut self.tcp, context),
            Some(Tls::Kernel(kernel)) => kernel.poll_readable(&mut self.tcp, context),
            None => self.tcp.poll_read_ready(context),
        }
    }

    /// Returns true if the peer has sent nothing and is still connected.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        if self.tls.is_some() {
            return self.poll_readable(&mut context).is_pending();
        }
        // tokio's readiness may be outdated: splice(2) does not report that it emptied the socket.
        self.tcp.poll_read_ready(&mut context).is_pending()
            || self.tcp.poll_peek(&mut context, &mut ReadBuf::new(&mut [0])).is_pending()
    }

    /// Ends the sending direction.
    pub(crate) fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.tls {
            Some(Tls::Session(session)) => ready!(session.poll_finish(&mut self.tcp, context))?,
            Some(Tls::Kernel(kernel)) => ready!(kernel.poll_finish(&self.tcp, context))?,
            None => {}
        }
        Poll::Ready(Ok(rustix::net::shutdown(&self.tcp, rustix::net::Shutdown::Write)?))
    }
}
