//! Client that reads no more than the test asks for: many tests are about the bytes that arrived
//! before the origin sent more.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};

use lab::wait_until;
use rustix::buffer::spare_capacity;
use rustix::net::{self, AddressFamily, RecvFlags, SocketType, recv};

use crate::body::Body;
use crate::rig::LIMIT;

/// Connection to the proxy.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    /// Bytes read and not yet returned.
    came: Vec<u8>,
}

/// Head of a response.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    text: String,
}

/// Complete response.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

impl Head {
    /// Parses the text of a head.
    pub(crate) fn parse(text: String) -> io::Result<Self> {
        let status = text.get(9..12).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no response: {text}")))?;
        Ok(Self { status, text })
    }

    /// Returns the value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.text, name)
    }

    pub(crate) fn len(&self) -> Option<u64> {
        self.field("content-length").map(|len| len.parse().unwrap())
    }

    /// Returns true for a hit by Cache-Status (RFC 9211, section 2.1).
    pub(crate) fn is_hit(&self) -> bool {
        self.field("cache-status").is_some_and(|status| status.split(';').any(|word| word.trim() == "hit"))
    }
}

/// Returns the value of a field of a head.
pub(crate) fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields.filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::of(TcpStream::connect(address)?)
    }

    /// Connects from another address of this machine.
    pub(crate) fn connect_from(own: IpAddr, address: SocketAddr) -> io::Result<Self> {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        net::bind(&socket, &SocketAddr::new(own, 0))?;
        net::connect(&socket, &address)?;
        Self::of(socket.into())
    }

    fn of(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self { stream, came: Vec::new() })
    }

    /// Sends a request without a body. Each field ends with CRLF.
    pub(crate) fn ask(&mut self, method: &str, target: &str, fields: &str) -> io::Result<()> {
        let authority = target.strip_prefix("http://").and_then(|rest| rest.split('/').next());
        let host = authority.unwrap_or("origin.test");
        let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        self.stream.write_all(request.as_bytes())
    }

    /// Reads the head of the next response.
    pub(crate) fn head(&mut self) -> io::Result<Head> {
        Head::parse(self.upto(b"\r\n\r\n")?)
    }

    /// Reads `len` bytes; fails if the connection ends before.
    pub(crate) fn exactly(&mut self, len: u64) -> io::Result<Vec<u8>> {
        while (self.came.len() as u64) < len {
            self.read()?;
        }
        let rest = self.came.split_off(len as usize);
        Ok(std::mem::replace(&mut self.came, rest))
    }

    /// Reads the body of a response; fails if it is incomplete.
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
            // No test sends trailers, so the last chunk ends like the others.
            if self.exactly(2)? != b"\r\n" {
                return Err(io::Error::other("a chunk that does not end"));
            }
            if len == 0 {
                return Ok(body);
            }
        }
    }

    /// Sends a request and reads the whole response.
    pub(crate) fn fetch(&mut self, target: &str, fields: &str) -> io::Result<Response> {
        self.ask("GET", target, fields)?;
        let head = self.head()?;
        let body = self.body(&head)?;
        Ok(Response { head, body })
    }

    /// Drops bytes that were read and not returned, and returns their number.
    pub(crate) fn drain(&mut self) -> u64 {
        let len = self.came.len() as u64;
        self.came.clear();
        len
    }

    /// Discards at most `most` received bytes inside the kernel (MSG_TRUNC, tcp(7)).
    pub(crate) fn discard(&mut self, most: usize) -> io::Result<u64> {
        // With MSG_TRUNC the buffer only sets the number of bytes.
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

/// Sends one request on its own connection.
#[track_caller]
pub(crate) fn get(proxy: SocketAddr, target: &str, fields: &str) -> Response {
    Client::connect(proxy).unwrap().fetch(target, fields).unwrap()
}

/// Repeats a request until it is a hit: clients get the last byte of a body before the fill is
/// complete.
#[track_caller]
pub(crate) fn await_hit(proxy: SocketAddr, body: &Body) {
    await_hit_of(proxy, &body.target(), body);
}

/// Like [`await_hit`], with a target that has a query.
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
