//! A connection of the client with its pending request.
//!
//! The head is parsed. The body is compared with the expected bytes, or counted and discarded by
//! the kernel.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::proxy::object::{Block, Object};

/// Bodies up to this size are always compared: they arrive with the head.
const SMALL_BYTES_MAX: u64 = 16 << 10;
/// Bytes of a read if the body is compared.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes of a read of the head if the body is not compared.
const HEAD_READ_BYTES: usize = 2 << 10;
/// Bytes discarded by one call.
const DISCARD_BYTES: usize = 4 << 20;
/// Limit of a response head in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Limit of header fields of a response.
const FIELDS_MAX: usize = 64;
/// Field that makes a request longer, and the end of the head after it.
const PADDING: &[u8] = b"Padding: ";
const HEAD_END: &[u8] = b"\r\n\r\n";

/// Buffers and constants shared by all connections.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) block: Block,
    buffer: Vec<u8>,
    /// Never written: recv(2) with MSG_TRUNC discards up to this length.
    sink: Vec<u8>,
    request: Vec<u8>,
    host: String,
    /// True if requests are as long as the bodies.
    is_padded: bool,
}

impl Tools {
    pub(super) fn new(host: SocketAddr, is_padded: bool) -> Self {
        let (block, host) = (Block::new(), host.to_string());
        let (buffer, sink) = (vec![0; BUFFER_BYTES], vec![0; DISCARD_BYTES]);
        Self { block, buffer, sink, request: Vec::new(), host, is_padded }
    }
}

/// Unanswered request.
#[derive(Debug)]
pub(super) struct Pending {
    object: Object,
    /// Time at which it was due, in nanoseconds of the client's clock.
    pub(super) due_ns: u64,
    /// True if its body is compared with the expected bytes.
    pub(super) is_verified: bool,
    /// Received bytes of the body; None until the head is complete.
    received: Option<u64>,
    /// True if the server closes the connection after the response.
    closes: bool,
}

impl Pending {
    pub(super) fn size(&self) -> u64 {
        self.object.size
    }

    pub(super) fn closes(&self) -> bool {
        self.closes
    }
}

/// Connection to the measured program.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) socket: TcpStream,
    pub(super) pending: Option<Pending>,
    /// Received part of a head.
    head: Vec<u8>,
}

/// Progress of a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The response is incomplete.
    Waits,
    /// The response is complete and correct.
    Done,
}

impl Exchange {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self { socket, pending: None, head: Vec::new() }
    }

    /// Requests `object`. Its body is compared if `is_verified`, or if it is small.
    ///
    /// # Errors
    /// The connection does not take the whole request.
    pub(super) fn request(
        &mut self,
        object: Object,
        due_ns: u64,
        is_verified: bool,
        tools: &mut Tools,
    ) -> Result<(), String> {
        let Tools { request, host, is_padded, .. } = tools;
        request.clear();
        let Object { size, id, cacheable } = object;
        let written =
            write!(request, "GET /{size}/{id}?c={} HTTP/1.1\r\nHost: {host}\r\n", u8::from(cacheable));
        debug_assert!(written.is_ok(), "a vector takes everything");
        if *is_padded {
            request.extend_from_slice(PADDING);
            request.resize(request.len().max((size as usize).saturating_sub(HEAD_END.len())), b'p');
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        let is_verified = is_verified || size <= SMALL_BYTES_MAX;
        self.head.clear();
        self.pending = Some(Pending { object, due_ns, is_verified, received: None, closes: false });
        match rustix::net::send(&self.socket, request, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == request.len() => Ok(()),
            Ok(sent) => Err(format!("the connection takes {sent} bytes of a request")),
            Err(error) => Err(format!("sending a request: {error}")),
        }
    }

    /// Reads available bytes.
    ///
    /// # Errors
    /// Description of a wrong or incomplete response.
    pub(super) fn receive(&mut self, tools: &mut Tools) -> Result<Outcome, String> {
        loop {
            let Some(pending) = &mut self.pending else {
                return Err("the connection sent bytes without a request".into());
            };
            let object = pending.object;
            let (read, is_short) = match pending.received {
                Some(received) if !pending.is_verified => {
                    let limit = (object.size - received).min(DISCARD_BYTES as u64) as usize;
                    read(&self.socket, &mut tools.sink[..limit], RecvFlags::TRUNC)?
                }
                received => {
                    let limit = match received {
                        None if !pending.is_verified => HEAD_READ_BYTES,
                        _ => BUFFER_BYTES,
                    };
                    read(&self.socket, &mut tools.buffer[..limit], RecvFlags::empty())?
                }
            };
            if read == 0 {
                return if is_short { Ok(Outcome::Waits) } else { Err(pending.closed_early()) };
            }
            match pending.received {
                None => pending.take_head(&mut self.head, &tools.buffer[..read], &tools.block)?,
                Some(_) => pending.take_body(read, &tools.buffer, &tools.block)?,
            }
            match pending.received {
                Some(received) if received == object.size => return Ok(Outcome::Done),
                _ if is_short => return Ok(Outcome::Waits),
                _ => {}
            }
        }
    }
}

/// Returns the number of bytes read, and true if no more are available now; 0 and false at the end.
fn read(socket: &TcpStream, buffer: &mut [u8], flags: RecvFlags) -> Result<(usize, bool), String> {
    let requested = buffer.len();
    match rustix::net::recv(socket, buffer, flags) {
        Ok((_, 0)) => Ok((0, false)),
        Ok((_, read)) => Ok((read, read < requested)),
        Err(Errno::AGAIN) => Ok((0, true)),
        Err(error) => Err(format!("reading an answer: {error}")),
    }
}

impl Pending {
    fn closed_early(&self) -> String {
        match self.received {
            None => "the connection was closed before an answer".into(),
            Some(received) => format!("the connection was closed after {received} of {} bytes", self.size()),
        }
    }

    /// Takes bytes of the head, and of the body after it.
    fn take_head(&mut self, head: &mut Vec<u8>, bytes: &[u8], block: &Block) -> Result<(), String> {
        let so_far = if head.is_empty() {
            bytes
        } else {
            head.extend_from_slice(bytes);
            &*head
        };
        let Some((length, closes)) = self.parse(so_far)? else {
            if so_far.len() > HEAD_BYTES_MAX {
                return Err(format!("a head of more than {HEAD_BYTES_MAX} bytes"));
            }
            if head.is_empty() {
                head.extend_from_slice(bytes);
            }
            return Ok(());
        };
        self.closes = closes;
        self.received = Some(0);
        self.take(&so_far[length..], block)
    }

    /// Takes `read` bytes of the body, which are in `buffer` if they are compared.
    fn take_body(&mut self, read: usize, buffer: &[u8], block: &Block) -> Result<(), String> {
        if self.is_verified {
            return self.take(&buffer[..read], block);
        }
        self.received = self.received.map(|received| received + read as u64);
        Ok(())
    }

    fn take(&mut self, bytes: &[u8], block: &Block) -> Result<(), String> {
        let received = self.received.unwrap_or(0);
        let end = received + bytes.len() as u64;
        if end > self.size() {
            return Err(format!("{end} bytes received for a body of {}", self.size()));
        }
        if self.is_verified && !block.matches(&self.object, received, bytes) {
            let target = self.object.target();
            return Err(format!("the body of {target} differs between bytes {received} and {end}"));
        }
        self.received = Some(end);
        Ok(())
    }

    /// Returns the head's length, and true if the server closes the connection; None if the head is
    /// incomplete.
    fn parse(&self, bytes: &[u8]) -> Result<Option<(usize, bool)>, String> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let length = match response.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(format!("the head of an answer: {error}")),
        };
        if response.code != Some(200) {
            return Err(format!("status {}", response.code.unwrap_or(0)));
        }
        let field = |name: &str| {
            let mut fields = response.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
            fields.next().and_then(|field| str::from_utf8(field.value).ok())
        };
        let body = field("content-length").ok_or("an answer without Content-Length")?;
        if body.parse() != Ok(self.size()) {
            return Err(format!("Content-Length: {body} of a body of {} bytes", self.size()));
        }
        let closes = field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        Ok(Some((length, closes)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener};

    use super::*;

    const OBJECT: Object = Object { size: 100_000, id: 7, cacheable: true };

    /// Sends `pieces` one by one to a client, then the end, and returns the client's outcome.
    fn outcome_of(pieces: &[&[u8]], is_verified: bool) -> Result<Outcome, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut tools = Tools::new(address, false);
        let mut exchange = Exchange::new(TcpStream::connect(address).unwrap());
        let (mut server, _) = listener.accept().unwrap();
        exchange.request(OBJECT, 0, is_verified, &mut tools).unwrap();
        for piece in pieces {
            server.write_all(piece).unwrap();
            // The socket blocks: `receive` returns early only after a read shorter than its buffer.
            if let Outcome::Done = exchange.receive(&mut tools)? {
                return Ok(Outcome::Done);
            }
        }
        // The request is unread, so dropping the server here would send a reset.
        server.shutdown(Shutdown::Write).unwrap();
        exchange.receive(&mut tools)
    }

    fn body() -> Vec<u8> {
        let block = Block::new();
        let mut body = Vec::new();
        while (body.len() as u64) < OBJECT.size {
            body.extend_from_slice(block.stretch(&OBJECT, body.len() as u64, usize::MAX));
        }
        body
    }

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n";

    #[test]
    fn response_is_complete_at_every_cut() {
        let body = body();
        let whole = [HEAD, &body].concat();
        for cut in [1, 20, HEAD.len() - 1, HEAD.len(), HEAD.len() + 1, 3000, 70_000] {
            for is_verified in [false, true] {
                let outcome = outcome_of(&[&whole[..cut], &whole[cut..]], is_verified);
                assert!(matches!(outcome, Ok(Outcome::Done)), "{cut}: {outcome:?}");
            }
        }
    }

    #[test]
    fn wrong_responses_are_described() {
        let mut body = body();
        let short = outcome_of(&[HEAD, &body[..500]], false).unwrap_err();
        assert!(short.contains("after 500 of 100000 bytes"), "{short}");
        let none = outcome_of(&[], false).unwrap_err();
        assert!(none.contains("before an answer"), "{none}");
        let status = outcome_of(&[b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"], false).unwrap_err();
        assert!(status.contains("status 503"), "{status}");
        let length = outcome_of(&[b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"], false).unwrap_err();
        assert!(length.contains("Content-Length: 99999"), "{length}");
        body[90_000] ^= 1;
        let wrong = outcome_of(&[HEAD, &body], true).unwrap_err();
        assert!(wrong.contains("differs between"), "{wrong}");
    }
}
