//! TLS on one connection, encrypted and decrypted in user space by rustls.
//!
//! ```text
//! poll_write ──▶ writer ──▶ records ──▶ TCP        head and body leave in one system call
//! poll_read  ◀── reader ◀── records ◀── `coming` ◀── TCP
//! ```
//!
//! Received bytes wait for decryption in a [`Buffer`], which holds memory only then. rustls alone
//! would read 4 KiB at a time.

use std::io::{self, IoSlice, Read as _, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::{Connection, ProtocolVersion};
use tokio::io::AsyncWrite as _;
use tokio::net::TcpStream;

use crate::config::tls::HTTP2;
use crate::io::buffer::{BUFFER_BYTES, Buffer};
use crate::io::tcp::poll_fill;
use crate::io::tls::kernel::{self, Cut, Kernel};

/// Bytes of records beyond which [`Session::poll_write`] takes no more: a piece of a body that was
/// read from a file, and the head before it.
const HELD_BYTES: usize = 72 << 10;
/// Maximum of plaintext bytes in a record (RFC 8446, section 5.1).
const RECORD_BYTES: usize = 16 << 10;
/// At least the bytes that the framing adds to a record: 29 in TLS 1.2, 22 in TLS 1.3.
const FRAMING_BYTES: usize = 32;

/// Name of the version, as nginx and HAProxy write it.
pub(crate) const TLS_1_3: &str = "TLSv1.3";

/// TLS on a connection.
#[derive(Debug)]
pub(crate) struct Session {
    tls: Connection,
    /// At least the bytes of records that are not sent yet.
    held: usize,
    /// Received bytes that are not decrypted yet.
    coming: Buffer,
    /// True after the end of the connection.
    has_ended: bool,
    /// True after the end of sending.
    is_finished: bool,
    /// Set while the kernel may take over: no byte after the handshake is read.
    cut: Option<Cut>,
}

impl Session {
    /// Begins TLS; with `for_kernel`, the kernel takes over after the handshake if it can.
    pub(crate) fn new(mut tls: Connection, for_kernel: bool) -> Self {
        tls.set_buffer_limit(Some(HELD_BYTES));
        let cut = for_kernel.then(Cut::default);
        Self { tls, held: 0, coming: Buffer::default(), has_ended: false, is_finished: false, cut }
    }

    /// Returns true if the peer has chosen HTTP/2 (ALPN, RFC 7301).
    pub(crate) fn is_http2(&self) -> bool {
        self.tls.alpn_protocol() == Some(HTTP2)
    }

    /// Returns the version of TLS after the handshake.
    pub(crate) fn version(&self) -> Option<&'static str> {
        match self.tls.protocol_version()? {
            ProtocolVersion::TLSv1_3 => Some(TLS_1_3),
            ProtocolVersion::TLSv1_2 => Some("TLSv1.2"),
            _ => None,
        }
    }

    /// Hands over to the kernel after the handshake; returns itself if the kernel does not take
    /// over.
    pub(crate) fn hand_over(mut self: Box<Self>, tcp: &TcpStream) -> io::Result<Result<Kernel, Box<Self>>> {
        let is_wanted = self.cut.take().is_some() && self.coming.is_empty() && kernel::takes(&self.tls);
        if is_wanted && strait_transfer::tls::attach(tcp).is_ok() {
            return Kernel::take_over(self.tls, tcp).map(Ok);
        }
        Ok(Err(self))
    }

    /// Shakes hands (RFC 8446, section 4).
    pub(crate) fn poll_handshake(
        &mut self,
        tcp: &mut TcpStream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_flush(tcp, context))?;
            if !self.tls.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_receive(tcp, context))?;
            if self.has_ended {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Reads available bytes, at most `most`, into the buffer's free space; 0 at the end that the
    /// peer has announced. A connection that ends without `close_notify` may have been truncated by
    /// an attacker (RFC 8446, section 6.1).
    pub(crate) fn poll_read(
        &mut self,
        tcp: &mut TcpStream,
        context: &mut Context<'_>,
        buffer: &mut Buffer,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_readable(tcp, context))?;
        let mut taken = 0;
        loop {
            let room = buffer.room();
            let room_len = room.len().min(most - taken);
            let read = self.tls.reader().read(&mut room[..room_len]);
            buffer.grew(*read.as_ref().unwrap_or(&0));
            taken += *read.as_ref().unwrap_or(&0);
            match read {
                // No free space, or the announced end.
                Ok(0) => return Poll::Ready(Ok(taken)),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock && taken == 0 => {
                    return Poll::Ready(Err(error));
                }
                // The next call returns the error.
                Err(_) if self.coming.is_empty() || self.decrypt(tcp, context).is_err() => {
                    return Poll::Ready(Ok(taken));
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Ready once there is data to read, or the end. Handles records of TLS itself.
    pub(crate) fn poll_readable(
        &mut self,
        tcp: &mut TcpStream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let is_readable = match self.tls.process_new_packets() {
                Ok(state) => state.plaintext_bytes_to_read() > 0 || state.peer_has_closed(),
                Err(error) => return Poll::Ready(Err(invalid(error))),
            };
            if is_readable || self.has_ended {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_receive(tcp, context))?;
        }
    }

    /// Takes some of `parts`, to be sent with later bytes.
    pub(crate) fn poll_write(
        &mut self,
        tcp: &mut TcpStream,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            let taken = self.tls.writer().write_vectored(parts)?;
            self.hold_records_of(taken);
            if taken > 0 || parts.iter().all(|part| part.is_empty()) {
                return Poll::Ready(Ok(taken));
            }
            ready!(self.poll_send(tcp, context))?;
        }
    }

    /// Takes all of `parts`, to be sent with later bytes. The caller bounds the held bytes.
    ///
    /// # Errors
    /// The session can encrypt no more; the connection must end.
    pub(crate) fn hold(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.tls.set_buffer_limit(None);
        let taken = self.tls.writer().write_vectored(parts);
        self.tls.set_buffer_limit(Some(HELD_BYTES));
        let taken = taken?;
        self.hold_records_of(taken);
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if taken < len { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }

    /// Counts the records of taken bytes.
    fn hold_records_of(&mut self, taken: usize) {
        if taken > 0 {
            self.held += taken + FRAMING_BYTES * (taken.div_ceil(RECORD_BYTES) + 1);
        }
    }

    /// Returns at least the bytes of records that are not sent yet, and 0 only if all are sent.
    pub(crate) fn held(&self) -> usize {
        // rustls also adds records of its own, such as tickets.
        if self.tls.wants_write() { self.held.max(1) } else { 0 }
    }

    /// Sends as many of the taken bytes as the socket takes at once.
    pub(crate) fn send_at_once(&mut self, tcp: &mut TcpStream) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.send_some(&mut Wire { tcp, context: None }) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends some of the taken bytes; `false` if none are left.
    pub(crate) fn poll_send(
        &mut self,
        tcp: &mut TcpStream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<bool>> {
        if !self.tls.wants_write() {
            return Poll::Ready(Ok(false));
        }
        match self.send_some(&mut Wire { tcp, context: Some(context) }) {
            Ok(()) => Poll::Ready(Ok(true)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn send_some(&mut self, wire: &mut impl Write) -> io::Result<()> {
        let sent = self.tls.write_tls(wire)?;
        self.held = if self.tls.wants_write() { self.held.saturating_sub(sent) } else { 0 };
        if sent == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }

    fn poll_flush(&mut self, tcp: &mut TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while ready!(self.poll_send(tcp, context))? {}
        Poll::Ready(Ok(()))
    }

    /// Announces the end of sending (`close_notify`).
    pub(crate) fn poll_finish(
        &mut self,
        tcp: &mut TcpStream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.is_finished, true) {
            self.tls.send_close_notify();
        }
        self.poll_flush(tcp, context)
    }

    /// Decrypts received bytes, or waits for more.
    fn poll_receive(&mut self, tcp: &mut TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.coming.is_empty() {
            let most = self.cut.as_ref().map_or(BUFFER_BYTES, Cut::most);
            let read = ready!(poll_fill(tcp, context, &mut self.coming, most))?;
            if let Some(cut) = &mut self.cut {
                cut.took(self.coming.filled());
            }
            if read == 0 {
                self.has_ended = true;
                // This reports the end to rustls.
                self.tls.read_tls(&mut io::empty())?;
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Ready(self.decrypt(tcp, context))
    }

    /// Decrypts some of the received bytes.
    fn decrypt(&mut self, tcp: &mut TcpStream, context: &mut Context<'_>) -> io::Result<()> {
        let mut bytes = self.coming.filled();
        let used = self.tls.read_tls(&mut bytes)?;
        // Bytes after the announced end are ignored (RFC 8446, section 6.1).
        self.coming.consume(if used == 0 { self.coming.filled().len() } else { used });
        let done = self.tls.process_new_packets();
        // Records that rustls sends in response go out at the latest with the next bytes.
        let flushed = self.poll_flush(tcp, context);
        done.map_err(invalid)?;
        match flushed {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Writer for the records of rustls.
struct Wire<'a, 'c> {
    tcp: &'a mut TcpStream,
    /// Task to wake when a full socket has room again.
    context: Option<&'a mut Context<'c>>,
}

impl Wire<'_, '_> {
    fn now<T>(polled: Poll<io::Result<T>>) -> io::Result<T> {
        match polled {
            Poll::Ready(done) => done,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Write for Wire<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.context {
            Some(context) => Self::now(Pin::new(&mut *self.tcp).poll_write_vectored(context, parts)),
            None => self.tcp.try_write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::crypto::ring::default_provider;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::version::{TLS12, TLS13};
    use rustls::{
        ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection,
        SupportedProtocolVersion,
    };

    use super::*;

    /// Writer that takes a few bytes at a time.
    struct Short {
        taken: usize,
        most: usize,
    }

    impl Write for Short {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let len = bytes.len().min(self.most);
            self.taken += len;
            Ok(len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Passes the records of one side to the other.
    fn pass(from: &mut Connection, to: &mut Connection) {
        let mut records = Vec::new();
        while from.wants_write() {
            from.write_tls(&mut records).unwrap();
        }
        let mut rest = &records[..];
        while !rest.is_empty() {
            to.read_tls(&mut rest).unwrap();
            to.process_new_packets().unwrap();
        }
    }

    /// Returns a server's session after its handshake, with nothing to send.
    fn session(version: &'static SupportedProtocolVersion) -> Session {
        let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let (certificate, mut roots) = (made.cert.der().clone(), RootCertStore::empty());
        roots.add(certificate.clone()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone());
        let server = server.with_protocol_versions(&[version]).unwrap().with_no_client_auth();
        let server = server.with_single_cert(vec![certificate], key).unwrap();
        let client =
            ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let client = client.with_root_certificates(roots).with_no_client_auth();
        let mut server = Connection::from(ServerConnection::new(Arc::new(server)).unwrap());
        let name = ServerName::try_from("a").unwrap();
        let mut client = Connection::from(ClientConnection::new(Arc::new(client), name).unwrap());
        while server.is_handshaking() || client.wants_write() || server.wants_write() {
            pass(&mut client, &mut server);
            pass(&mut server, &mut client);
        }
        Session::new(server, false)
    }

    /// Sends all in pieces, and compares the held bytes with those that were left before each one.
    fn check_sent(session: &mut Session, most: usize) {
        let (mut wire, mut before) = (Short { taken: 0, most }, Vec::new());
        while session.tls.wants_write() {
            before.push((session.held(), wire.taken));
            session.send_some(&mut wire).unwrap();
        }
        for (held, taken) in before {
            let left = wire.taken - taken;
            assert!(held >= left, "{held} are fewer than {left}");
            assert!(held <= left + left / 8 + 20 * FRAMING_BYTES, "{held} are far more than {left}");
        }
        assert_eq!(session.held(), 0);
    }

    #[test]
    fn held_bytes_are_a_bound_of_the_unsent_records() {
        for version in [&TLS12, &TLS13] {
            let mut session = session(version);
            assert_eq!(session.held(), 0);
            for most in [100, RECORD_BYTES, usize::MAX] {
                for len in
                    [1, 9, 1000, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 3 * RECORD_BYTES, 70_000]
                {
                    session.hold(&[IoSlice::new(&vec![0; len])]).unwrap();
                    // Heads of frames and pieces alternate.
                    session
                        .hold(&[IoSlice::new(&[0; 9]), IoSlice::new(&vec![0; len]), IoSlice::new(&[0; 9])])
                        .unwrap();
                    check_sent(&mut session, most);
                }
            }
        }
    }

    #[test]
    fn more_held_bytes_than_the_limit_let_nothing_else_in() {
        let mut session = session(&TLS13);
        session.hold(&[IoSlice::new(&vec![0; 2 * HELD_BYTES])]).unwrap();
        assert_eq!(session.tls.writer().write(&[0]).unwrap(), 0);
        check_sent(&mut session, usize::MAX);
        let taken = session.tls.writer().write(&vec![0; 2 * HELD_BYTES]).unwrap();
        assert!(taken <= HELD_BYTES && taken > HELD_BYTES - 2 * RECORD_BYTES, "{taken}");
    }
}
