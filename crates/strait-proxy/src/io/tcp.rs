//! Non-blocking calls on a TCP connection, retried when the kernel reports that it is ready.
//!
//! [`crate::io::stream`] and TLS use them. Nothing here times out.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::io::buffer::Buffer;
use crate::io::piece::Piece;

/// Reads available bytes of a TCP connection, at most `most`.
pub(crate) fn poll_fill(
    tcp: &TcpStream,
    context: &mut Context<'_>,
    buffer: &mut Buffer,
    most: usize,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(tcp.poll_read_ready(context))?;
        let room = buffer.room();
        let most = most.min(room.len());
        if let Some(read) = try_recv(tcp, &mut room[..most])? {
            buffer.grew(read);
            return Poll::Ready(Ok(read));
        }
        buffer.grew(0);
    }
}

/// Reads available bytes of a TCP connection, at most `most`; an empty piece at the end. Takes
/// memory only once there are bytes to read.
pub(crate) fn poll_receive(
    tcp: &TcpStream,
    context: &mut Context<'_>,
    most: usize,
) -> Poll<io::Result<Piece>> {
    loop {
        ready!(tcp.poll_read_ready(context))?;
        let mut piece = Piece::take();
        match try_recv(tcp, piece.room(most)) {
            Ok(None) => {}
            Ok(Some(read)) => {
                piece.grew(read);
                return Poll::Ready(Ok(piece));
            }
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

/// Reads available bytes; `None` if there are none now. A short read has emptied the socket: the
/// result WouldBlock clears tokio's readiness, and epoll(7) reports later bytes.
fn try_recv(tcp: &TcpStream, room: &mut [u8]) -> io::Result<Option<usize>> {
    let mut read = None;
    let tried = tcp.try_io(Interest::READABLE, || {
        let (_, len) = rustix::net::recv(tcp, &mut *room, RecvFlags::DONTWAIT)?;
        read = Some(len);
        if (1..room.len()).contains(&len) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    match tried {
        Err(error) if read.is_none() && error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(read),
    }
}

/// Sends some of `parts`; for one part send(2) costs less than sendmsg(2).
pub(crate) fn poll_drain(
    tcp: &TcpStream,
    context: &mut Context<'_>,
    parts: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
    let send = || match parts {
        [part, empty] | [empty, part] if empty.is_empty() => rustix::net::send(tcp, part, FLAGS),
        parts => rustix::net::sendmsg(tcp, parts, &mut SendAncillaryBuffer::default(), FLAGS),
    };
    poll_io(tcp, context, Interest::WRITABLE, || Ok(send()?))
}

/// Returns the result of `call`, which does not block, once the connection is ready for `interest`.
pub(crate) fn poll_io<T>(
    tcp: &TcpStream,
    context: &mut Context<'_>,
    interest: Interest,
    mut call: impl FnMut() -> io::Result<T>,
) -> Poll<io::Result<T>> {
    loop {
        let ready =
            if interest.is_readable() { tcp.poll_read_ready(context) } else { tcp.poll_write_ready(context) };
        ready!(ready)?;
        match tcp.try_io(interest, &mut call) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return Poll::Ready(done),
        }
    }
}
