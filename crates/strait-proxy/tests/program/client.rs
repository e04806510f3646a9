//! A client that reads as much as a test tells it to: what has come before the origin sent more is
//! what the test is about.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use lab::wait_until;
use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, recv};

use crate::body::Body;
use crate::rig::LIMIT;

/// A connection to the proxy.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    /// What was read and nobody has taken.
    came: Vec<u8>,
}

/// The head of a response.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    text: String,
}

/// A response as it came.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

impl Head {
    /// The value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.text, name)
    }

    pub(crate) fn len(&self) -> Option<u64> {
        self.field("content-length").map(|len| len.parse().unwrap())
    }

    /// Whether the proxy says that it came from its store (RFC 9211, section 2.1).
    pub(crate) fn is_hit(&self) -> bool {
        self.field("cache-status").is_some_and(|status| status.split(';').any(|word| word.trim() == "hit"))
    }
}

/// The value of a field of a head.
pub(crate) fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields.filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self { stream, came: Vec::new() })
    }

    /// Sends a request without a body; `fields` end with their lines' ends.
    pub(crate) fn ask(&mut self, method: &str, target: &str, fields: &str) -> io::Result<()> {
        let authority = target.strip_prefix("http://").and_then(|rest| rest.split('/').next());
        let host = authority.unwrap_or("origin.test");
        let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        self.stream.write_all(request.as_bytes())
    }

    /// The head of the next response; an error if there is none.
    pub(crate) fn head(&mut self) -> io::Result<Head> {
        let text = self.upto(b"\r\n\r\n")?;
        let status = text.get(9..12).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no response: {text}")))?;
        Ok(Head { status, text })
    }

    /// So many bytes; an error if the connection ends before.
    pub(crate) fn exactly(&mut self, len: u64) -> io::Result<Vec<u8>> {
        while (self.came.len() as u64) < len {
            self.read()?;
        }
        let rest = self.came.split_off(len as usize);
        Ok(std::mem::replace(&mut self.came, rest))
    }

    /// The body behind a head; an error if it is not whole.
    pub(crate) fn body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        if let Some(len) = head.len() {
            return self.exactly(len);
        }
        let mut body = Vec::new();
        if head.field("transfer-encoding").is_none() {
            while self.read().is_ok() {}
            body.append(&mut self.came);
            return Ok(body);
        }
        loop {
            let line = self.upto(b"\r\n")?;
            let len = u64::from_str_radix(line.trim_end(), 16).map_err(io::Error::other)?;
            body.extend(self.exactly(len)?);
            // Nobody here sends trailers: the last chunk and the others end alike.
            if self.exactly(2)? != b"\r\n" {
                return Err(io::Error::other("a chunk that does not end"));
            }
            if len == 0 {
                return Ok(body);
            }
        }
    }

    /// Asks for something and takes all of the answer.
    pub(crate) fn fetch(&mut self, target: &str, fields: &str) -> io::Result<Response> {
        self.ask("GET", target, fields)?;
        let head = self.head()?;
        let body = self.body(&head)?;
        Ok(Response { head, body })
    }

    /// Throws away what was read and not taken: so many bytes.
    pub(crate) fn drain(&mut self) -> u64 {
        let len = self.came.len() as u64;
        self.came.clear();
        len
    }

    /// Throws away what comes, `most` bytes at most, where it is: in the kernel (MSG_TRUNC,
    /// tcp(7)).
    pub(crate) fn discard(&mut self, most: usize) -> io::Result<u64> {
        // Where nothing is copied the buffer only says how much may be taken.
        let mut room = Vec::with_capacity(most);
        match recv(&self.stream, spare_capacity(&mut room), RecvFlags::TRUNC)? {
            (_, 0) => Err(io::ErrorKind::UnexpectedEof.into()),
            (_, len) => Ok(len as u64),
        }
    }

    fn upto(&mut self, mark: &[u8]) -> io::Result<String> {
        let mut looked = 0;
        loop {
            let from = looked.min(self.came.len());
            if let Some(at) = self.came[from..].windows(mark.len()).position(|window| window == mark) {
                let rest = self.came.split_off(from + at + mark.len());
                let text = std::mem::replace(&mut self.came, rest);
                return String::from_utf8(text).map_err(io::Error::other);
            }
            looked = self.came.len().saturating_sub(mark.len());
            self.read()?;
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut chunk = [0; 16 << 10];
        match self.stream.read(&mut chunk)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.came.extend_from_slice(&chunk[..read]);
                Ok(())
            }
        }
    }
}

/// Asks a proxy for something on a connection of its own.
#[track_caller]
pub(crate) fn get(proxy: SocketAddr, target: &str, fields: &str) -> Response {
    Client::connect(proxy).unwrap().fetch(target, fields).unwrap()
}

/// Asks for a body until it comes from the store: its last byte reaches clients before the proxy is
/// done with it.
#[track_caller]
pub(crate) fn await_hit(proxy: SocketAddr, body: &Body) {
    await_hit_of(proxy, &body.target(), body);
}

/// The same, of a target that has more to it.
#[track_caller]
pub(crate) fn await_hit_of(proxy: SocketAddr, target: &str, body: &Body) {
    let mut client = Client::connect(proxy).unwrap();
    let is_hit = || {
        let response = client.fetch(target, "").unwrap();
        body.assert_whole(&response.body);
        response.head.is_hit()
    };
    assert!(wait_until(LIMIT, is_hit), "{target} stays out of the store");
}
