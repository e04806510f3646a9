//! Carrier of a socket's bytes: a connection, or a stream of an HTTP/2 connection that acts as one.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use rustix::net::{Shutdown, shutdown};
use strait_transfer::pipe::Pipe;
use strait_transfer::tcp::{acknowledged, set_low_water};
use tokio::net::TcpStream;

use crate::io::buffer::Buffer;
use crate::io::http2::origin_stream::OriginStream;
use crate::io::http2::stream::Http2Stream;
use crate::io::moved::Moved;
use crate::io::piece::Piece;
use crate::io::stream::Stream;

/// Carrier of a socket's bytes.
#[derive(Debug)]
pub(crate) enum Carrier {
    Connection(Stream),
    Http2(Box<Http2Stream>),
    /// Request to an origin.
    Origin(Box<OriginStream>),
}

impl Carrier {
    /// Returns the connection, unless it is a stream.
    pub(crate) fn connection(&mut self) -> Option<&mut Stream> {
        match self {
            Self::Connection(stream) => Some(stream),
            Self::Http2(_) | Self::Origin(_) => None,
        }
    }

    /// Returns the TCP connection if bytes move through it unchanged.
    pub(crate) fn plain_tcp(&self) -> Option<&TcpStream> {
        self.tcp().filter(|_| !self.is_encrypted())
    }

    /// Returns the TCP connection, unless it is a stream.
    pub(crate) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Connection(stream) => Some(&stream.tcp),
            Self::Http2(_) | Self::Origin(_) => None,
        }
    }

    /// Returns the number of the HTTP/2 stream of a client.
    pub(crate) fn http2_id(&self) -> Option<u32> {
        match self {
            Self::Connection(_) | Self::Origin(_) => None,
            Self::Http2(stream) => Some(stream.id()),
        }
    }

    /// Returns the bytes of the frames of an HTTP/2 stream: they differ from the bytes that its
    /// user sends.
    pub(crate) fn moved(&self) -> Option<Moved> {
        match self {
            Self::Connection(_) => None,
            Self::Http2(stream) => Some(stream.moved()),
            Self::Origin(stream) => Some(stream.moved()),
        }
    }

    /// Returns true if bytes are encrypted on their way.
    pub(crate) fn is_encrypted(&self) -> bool {
        match self {
            Self::Connection(stream) => stream.is_encrypted(),
            Self::Http2(stream) => stream.is_encrypted(),
            Self::Origin(stream) => stream.is_encrypted(),
        }
    }

    /// Returns the version of TLS, if the connection of a client uses it.
    pub(crate) fn tls_version(&self) -> Option<&'static str> {
        match self {
            Self::Connection(stream) => stream.tls_version(),
            Self::Http2(stream) => stream.tls_version(),
            Self::Origin(_) => None,
        }
    }

    /// Returns true if bytes are held until [`Carrier::poll_send`].
    pub(crate) fn is_encrypted_here(&self) -> bool {
        matches!(self, Self::Connection(stream) if stream.is_encrypted_here())
    }

    /// Returns the stream of a client.
    pub(crate) fn http2(&self) -> Option<&Http2Stream> {
        match self {
            Self::Http2(stream) => Some(stream),
            Self::Connection(_) | Self::Origin(_) => None,
        }
    }

    /// Returns the stream of a request to an origin.
    pub(crate) fn origin_stream(&mut self) -> Option<&mut OriginStream> {
        match self {
            Self::Origin(stream) => Some(stream),
            Self::Connection(_) | Self::Http2(_) => None,
        }
    }

    /// Returns the stream of a client, which can send files.
    pub(crate) fn http2_for_files(&mut self) -> Option<&mut Http2Stream> {
        match self {
            Self::Http2(stream) => Some(stream),
            Self::Connection(_) | Self::Origin(_) => None,
        }
    }

    /// Returns true if bytes can move in and out without a copy.
    pub(crate) fn can_splice(&self) -> bool {
        matches!(self, Self::Connection(stream) if !stream.is_encrypted_here())
    }

    /// See [`Stream::poll_read`].
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut Buffer,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Connection(stream) => stream.poll_read(context, buffer, most),
            Self::Http2(stream) => stream.poll_read(context, buffer, most),
            Self::Origin(stream) => stream.poll_read(context, buffer, most),
        }
    }

    /// See [`Stream::poll_write`].
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Connection(stream) => stream.poll_write(context, parts),
            Self::Http2(stream) => stream.poll_write(context, first_of(parts)),
            Self::Origin(stream) => stream.poll_write(context, first_of(parts)),
        }
    }

    /// See [`Stream::poll_send`].
    pub(crate) fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        match self {
            Self::Connection(stream) => stream.poll_send(context),
            Self::Http2(_) | Self::Origin(_) => Poll::Ready(Ok(false)),
        }
    }

    /// See [`Stream::poll_splice`].
    pub(crate) fn poll_splice(
        &mut self,
        context: &mut Context<'_>,
        pipe: &mut Pipe,
        most: u64,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Connection(stream) => stream.poll_splice(context, pipe, most),
            Self::Http2(_) | Self::Origin(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    /// See [`Stream::poll_receive`].
    pub(crate) fn poll_receive(&mut self, context: &mut Context<'_>, most: usize) -> Poll<io::Result<Piece>> {
        match self {
            Self::Connection(stream) => stream.poll_receive(context, most),
            Self::Http2(_) | Self::Origin(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    /// See [`Stream::splice_more`].
    pub(crate) fn splice_more(&self, pipe: &mut Pipe, most: u64) -> io::Result<usize> {
        match self {
            Self::Connection(stream) => stream.splice_more(pipe, most),
            Self::Http2(_) | Self::Origin(_) => Ok(0),
        }
    }

    /// Sets the low-water mark of a connection without TLS: its records have framing of their own.
    /// Returns false for any other.
    pub(crate) fn set_low_water(&self, bytes: u32) -> bool {
        match self {
            Self::Connection(stream) if !stream.is_encrypted() => set_low_water(&stream.tcp, bytes),
            _ => false,
        }
    }

    /// See [`Stream::poll_readable`].
    pub(crate) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Connection(stream) => stream.poll_readable(context),
            Self::Http2(stream) => stream.poll_readable(context),
            Self::Origin(stream) => stream.poll_readable(context),
        }
    }

    /// See [`Stream::is_quiet`]; only connections to origins are reused.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.connection().is_some_and(Stream::is_quiet)
    }

    /// See [`Stream::poll_finish`].
    pub(crate) fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Connection(stream) => stream.poll_finish(context),
            Self::Http2(stream) => stream.poll_finish(),
            Self::Origin(_) => Poll::Ready(Ok(())),
        }
    }

    /// Makes the end of a connection a reset. A stream that is dropped before the end of its
    /// response is reset anyway.
    pub(crate) fn reset(&self) {
        if let Some(tcp) = self.tcp() {
            // If this fails, the peer still misses the end of the body.
            let _ = tcp.set_zero_linger();
        }
    }

    /// Ends both directions.
    pub(crate) fn shutdown(&self) {
        if let Some(tcp) = self.tcp() {
            let _ = shutdown(tcp, Shutdown::Both);
        }
    }

    /// Returns the number of bytes that the peer has taken.
    pub(crate) fn acknowledged(&self) -> Option<u64> {
        match self {
            Self::Connection(stream) => acknowledged(&stream.tcp),
            // The output is small, so bytes in it are taken soon or block the stream.
            Self::Http2(stream) => Some(stream.moved().sent + stream.taken_by_others()),
            Self::Origin(_) => None,
        }
    }

    /// Returns the bytes that the client took from more urgent streams of its connection.
    pub(crate) fn taken_by_others(&self) -> u64 {
        match self {
            Self::Connection(_) | Self::Origin(_) => 0,
            Self::Http2(stream) => stream.taken_by_others(),
        }
    }
}

fn first_of<'a>(parts: &'a [IoSlice<'_>]) -> &'a [u8] {
    parts.iter().find(|part| !part.is_empty()).map_or(&[], |part| part)
}
