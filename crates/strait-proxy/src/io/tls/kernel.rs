//! TLS on one connection, encrypted and decrypted by the kernel (kTLS), after a handshake by
//! rustls.
//!
//! Only for TLS 1.3 with AES-GCM: in TLS 1.2 the kernel would number nonces differently from
//! rustls, and might use one twice. Tickets that a server sends after its handshake are dropped,
//! because the session of rustls, which would store them, no longer exists. New keys (KeyUpdate)
//! end the connection; peers request them only after many gigabytes.

use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustls::{Connection, ConnectionTrafficSecrets, ProtocolVersion};
use strait_transfer::pipe::Pipe;
use strait_transfer::tls::{self, Direction, Key, Keys, Record};
use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::io::buffer::Buffer;
use crate::io::tcp::poll_fill;

/// Bytes of a record's header: type, version and length (RFC 8446, section 5.1).
const HEAD_BYTES: usize = 5;

/// Limits reads to one record at a time: the kernel reads the bytes after the handshake.
#[derive(Debug, Default)]
pub(super) struct Cut {
    head: [u8; HEAD_BYTES],
    known: usize,
    /// Bytes left of the record.
    left: usize,
}

impl Cut {
    /// Returns the number of bytes that may be read.
    pub(super) fn most(&self) -> usize {
        if self.known < HEAD_BYTES { HEAD_BYTES - self.known } else { self.left }
    }

    /// Notes bytes that were read.
    pub(super) fn took(&mut self, bytes: &[u8]) {
        if self.known < HEAD_BYTES {
            let known = self.known + bytes.len();
            self.head[self.known..known].copy_from_slice(bytes);
            self.known = known;
            self.left = usize::from(u16::from_be_bytes([self.head[3], self.head[4]]));
        } else {
            self.left -= bytes.len();
        }
        if self.known == HEAD_BYTES && self.left == 0 {
            *self = Self::default();
        }
    }
}

/// Returns true if the kernel supports the session after the handshake.
pub(super) fn takes(tls: &Connection) -> bool {
    use rustls::CipherSuite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384};
    let suite = tls.negotiated_cipher_suite().map(|suite| suite.suite());
    tls.protocol_version() == Some(ProtocolVersion::TLSv1_3)
        && matches!(suite, Some(TLS13_AES_128_GCM_SHA256 | TLS13_AES_256_GCM_SHA384))
}

/// TLS in the kernel.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    /// True after the end that the peer has announced.
    has_ended: bool,
    /// True after the end of sending was announced.
    is_finished: bool,
}

impl Kernel {
    /// Hands the keys to the kernel; `attach` was called before.
    pub(super) fn take_over(tls: Connection, tcp: &TcpStream) -> io::Result<Self> {
        let secrets = tls.dangerous_extract_secrets().map_err(io::Error::other)?;
        for (direction, (sequence, secret)) in
            [(Direction::Transmit, secrets.tx), (Direction::Receive, secrets.rx)]
        {
            let (key, iv) = match &secret {
                ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
                    (key.as_ref().try_into().map(Key::Aes128), iv)
                }
                ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
                    (key.as_ref().try_into().map(Key::Aes256), iv)
                }
                _ => return Err(io::ErrorKind::Unsupported.into()),
            };
            let (Ok(key), Ok(iv)) = (key, iv.as_ref().try_into()) else {
                return Err(io::ErrorKind::Unsupported.into());
            };
            tls::set_keys(tcp, direction, Keys { key, iv, sequence }).map_err(io::Error::other)?;
        }
        Ok(Self::default())
    }

    /// Reads data; 0 at the end that the peer has announced.
    pub(crate) fn poll_read(
        &mut self,
        tcp: &mut TcpStream,
        context: &mut Context<'_>,
        buffer: &mut Buffer,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        while !self.has_ended {
            match ready!(poll_fill(tcp, context, buffer, most)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Err(error) if is(&error, Errno::IO) => self.listen(&*tcp)?,
                read => return Poll::Ready(read),
            }
        }
        Poll::Ready(Ok(0))
    }

    /// Ready once there is data to read, or the end.
    pub(crate) fn poll_readable(
        &mut self,
        tcp: &mut TcpStream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.has_ended {
            match ready!(tcp.poll_peek(context, &mut ReadBuf::new(&mut [0]))) {
                Err(error) if is(&error, Errno::IO) => self.listen(&*tcp)?,
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Moves data into an empty pipe; 0 at the end that the peer has announced.
    pub(crate) fn fill(&mut self, tcp: &TcpStream, pipe: &mut Pipe, most: u64) -> Result<usize, Errno> {
        while !self.has_ended {
            match pipe.fill(tcp, most) {
                Ok(0) => return Err(Errno::CONNRESET),
                Err(Errno::INVAL) => self.listen(tcp).map_err(|_| Errno::IO)?,
                moved => return moved,
            }
        }
        Ok(0)
    }

    /// Announces the end of sending.
    pub(crate) fn poll_finish(&mut self, tcp: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.is_finished {
            let sent = tcp.try_io(Interest::WRITABLE, || tls::send_end(tcp).map_err(os));
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(tcp.poll_write_ready(context))?;
                }
                sent => {
                    self.is_finished = true;
                    sent?;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Handles a record that is not data.
    fn listen(&mut self, tcp: impl AsFd) -> io::Result<()> {
        match tls::receive_record(tcp).map_err(os)? {
            Record::End => self.has_ended = true,
            Record::Ticket => {}
            Record::Other => return Err(io::ErrorKind::ConnectionAborted.into()),
        }
        Ok(())
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn os(error: strait_os::Error) -> io::Error {
    error.errno().map_or_else(|| io::Error::other(error), io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_is_read_record_by_record_however_it_comes() {
        let mut cut = Cut::default();
        for _ in 0..2 {
            assert_eq!(cut.most(), 5);
            cut.took(&[22, 3]);
            assert_eq!(cut.most(), 3);
            cut.took(&[3, 1, 2]);
            assert_eq!(cut.most(), 258);
            cut.took(&[0; 250]);
            assert_eq!(cut.most(), 8);
            cut.took(&[0; 8]);
        }
        cut.took(&[22, 3, 3, 0, 0]);
        assert_eq!(cut.most(), 5, "a record of nothing");
    }
}
