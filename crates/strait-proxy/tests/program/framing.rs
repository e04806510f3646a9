//! Bodies in every framing of an origin: Content-Length, chunked, or until the connection closes.

use std::io::{self, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use crate::body::Body;
use crate::origin::{Origin, Request, send_bytes};

/// Framing of a body (RFC 9112, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length,
    /// Chunks about as long as the smallest spliced ones, and as a pipe and more.
    Chunks,
    Close,
}

impl Framing {
    pub(crate) const ALL: [Self; 3] = [Self::Length, Self::Chunks, Self::Close];
}

const CHUNKS: [u64; 8] = [1, 65_535, 65_536, 65_537, 300_000, 17, 1 << 20, 131_072];

/// Request to an origin of framings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framed {
    pub(crate) body: Body,
    pub(crate) framing: Framing,
    pub(crate) is_stored: bool,
    /// Number of bytes after which the origin closes the connection; all by default.
    pub(crate) cut: Option<u64>,
}

impl Framed {
    pub(crate) fn whole(body: Body, framing: Framing, is_stored: bool) -> Self {
        Self { body, framing, is_stored, cut: None }
    }

    pub(crate) fn target(&self) -> String {
        let stored = if self.is_stored { "store" } else { "pass" };
        let cut = self.cut.map_or(String::new(), |cut| cut.to_string());
        format!("{}?{:?}&{stored}&{cut}", self.body.target(), self.framing)
    }

    pub(crate) fn parse(request: &Request) -> Self {
        let words: Vec<_> = request.target.split(['?', '&']).collect();
        let framing = Framing::ALL.into_iter().find(|framing| format!("{framing:?}") == words[1]);
        let cut = words[3].parse().ok();
        Self { body: request.body(), framing: framing.unwrap(), is_stored: words[2] == "store", cut }
    }

    /// Sends the response; an error closes the connection.
    pub(crate) fn send(&self, stream: &mut TcpStream) -> io::Result<()> {
        let Self { body, framing, .. } = *self;
        let framed = match framing {
            Framing::Length => format!("Content-Length: {}\r\n", body.len),
            Framing::Chunks => "Transfer-Encoding: chunked\r\n".to_owned(),
            Framing::Close => "Connection: close\r\n".to_owned(),
        };
        let control = if self.is_stored { "max-age=3600" } else { "no-store" };
        let head = format!("HTTP/1.1 200 OK\r\n{framed}Cache-Control: {control}\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let end = self.cut.unwrap_or(body.len);
        if framing == Framing::Chunks {
            send_chunks(&body, end, stream)?;
        } else {
            send_bytes(&body, 0..end, &mut *stream)?;
        }
        if self.cut.is_some() && framing == Framing::Close {
            // An orderly close would end the body.
            set_socket_linger(&*stream, Some(Duration::ZERO))?;
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        // Close without a reset: bytes inside the proxy must not be lost with the connection.
        if self.cut.is_some() || framing == Framing::Close {
            stream.shutdown(Shutdown::Both)?;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

fn send_chunks(body: &Body, end: u64, stream: &mut TcpStream) -> io::Result<()> {
    let (mut at, mut sizes) = (0, CHUNKS.iter().cycle().skip(body.id as usize));
    while at < end {
        let len = (*sizes.next().unwrap()).min(body.len - at);
        write!(stream, "{len:x}\r\n")?;
        send_bytes(body, at..end.min(at + len), &mut *stream)?;
        at += len;
        if at <= end {
            stream.write_all(b"\r\n")?;
        }
    }
    if end == body.len { stream.write_all(b"0\r\n\r\n") } else { Ok(()) }
}

/// Starts an origin that sends the framing named by the target.
pub(crate) fn origin_of_framings() -> Origin {
    Origin::new(|request, stream| Framed::parse(request).send(stream))
}
