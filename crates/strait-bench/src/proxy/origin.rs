//! Origin of the proxy benchmark: a cheap single-threaded HTTP server that has every [`Object`].
//!
//! Small bodies are sent with their head in one sendmsg(2), long ones by sendfile(2) from memory.
//! `GET /count` returns the number of requests so far, which no cache has answered. It is
//! started through `strait bench origin`.

use std::fs::File;
use std::io::{self, IoSlice, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};
use slab::Slab;

use super::object::{Block, Object};
use crate::child;
use crate::error::{Error, Result};

/// Limit of a request head in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Limit of header fields of a request.
const FIELDS_MAX: usize = 64;
/// Limit of connections.
const CONNECTIONS_MAX: usize = 4096;
/// Bodies of at least this size are sent by sendfile(2).
const SENDFILE_BYTES_MIN: u64 = 32 << 10;
/// Events taken in one call.
const EVENTS: usize = 256;
/// Interval between two checks of the termination flag.
const TICK: Duration = Duration::from_millis(100);
/// Key of the listener; connections use their index.
const LISTENER: u64 = u64::MAX;

/// Path of the [`Count`].
pub(crate) const COUNT: &str = "/count";

/// Counters of the origin.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Count {
    /// Requests for objects.
    pub requests: u64,
    /// Bytes of bodies that it started to send.
    pub bytes: u64,
}

/// Line that the origin prints when it listens.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
}

/// Serves on `listen` until `terminated`; prints its address.
pub fn run(listen: SocketAddr, terminated: &AtomicBool) -> Result<()> {
    let failed = |error| Error::file(format!("listen on {listen}"), error);
    let listener = TcpListener::bind(listen).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    child::print(&Listening { address: listener.local_addr().map_err(failed)? })?;
    Origin::new(listener)?.serve(terminated)
}

struct Origin {
    epoll: OwnedFd,
    listener: TcpListener,
    connections: Slab<Connection>,
    bodies: Bodies,
}

/// Parts of all responses.
struct Bodies {
    block: Block,
    file: File,
    count: Count,
    date: String,
    date_until: Instant,
}

struct Connection {
    socket: TcpStream,
    /// Received bytes that are not answered yet.
    received: Vec<u8>,
    /// Response being sent: the head from `sent` on, then the body from `position` on.
    head: Vec<u8>,
    sent: usize,
    object: Object,
    position: u64,
    closes: bool,
}

/// State of a connection after an event.
#[derive(PartialEq)]
enum Next {
    Waits,
    Ends,
}

impl Origin {
    fn new(listener: TcpListener) -> Result<Self> {
        let failed = |error: rustix::io::Errno| Error::file("watch a listener", error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN).map_err(failed)?;
        Ok(Self { epoll, listener, connections: Slab::new(), bodies: Bodies::new()? })
    }

    fn serve(&mut self, terminated: &AtomicBool) -> Result<()> {
        let tick = Timespec::try_from(TICK).ok();
        let mut events = Vec::with_capacity(EVENTS);
        while !terminated.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), tick.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                waited => waited.map_err(|error| Error::file("wait for requests", error))?,
            };
            self.bodies.update_date();
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    key => self.advance(key as usize),
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The peer closed the connection before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(Error::file("accept a connection", error)),
            };
            if self.connections.len() >= CONNECTIONS_MAX {
                // The connection is dropped, and so closed.
                continue;
            }
            self.register(socket).map_err(|error| Error::file("watch a connection", error))?;
        }
    }

    fn register(&mut self, socket: TcpStream) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let entry = self.connections.vacant_entry();
        // Edge-triggered, so that one registration lasts as long as the connection.
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &socket, EventData::new_u64(entry.key() as u64), flags)?;
        entry.insert(Connection {
            socket,
            received: Vec::with_capacity(HEAD_BYTES_MAX),
            head: Vec::with_capacity(512),
            sent: 0,
            object: Object { size: 0, id: 0, cacheable: false },
            position: 0,
            closes: false,
        });
        Ok(())
    }

    fn advance(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        // Errors are ignored: proxies may reset connections at any time.
        if !matches!(connection.advance(&mut self.bodies), Ok(Next::Waits)) {
            self.connections.remove(key);
        }
    }
}

impl Connection {
    /// Reads, responds and sends until the socket is drained and takes no more.
    fn advance(&mut self, bodies: &mut Bodies) -> io::Result<Next> {
        // A read that does not fill the buffer drained the socket; more bytes make a new edge.
        let mut is_drained = false;
        loop {
            if !self.send(bodies)? {
                return Ok(Next::Waits);
            }
            if self.closes {
                return Ok(Next::Ends);
            }
            if self.answer(bodies)? {
                continue;
            }
            if is_drained {
                return Ok(Next::Waits);
            }
            match rustix::net::recv(&self.socket, spare_capacity(&mut self.received), RecvFlags::empty()) {
                Ok((_, 0)) => return Ok(Next::Ends),
                Ok(_) => is_drained = self.received.len() < self.received.capacity(),
                Err(rustix::io::Errno::AGAIN) => return Ok(Next::Waits),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Prepares the response to the first complete request; returns false if there is none.
    fn answer(&mut self, bodies: &mut Bodies) -> io::Result<bool> {
        if self.received.is_empty() {
            return Ok(false);
        }
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let length = match request.parse(&self.received) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if self.received.len() < HEAD_BYTES_MAX => return Ok(false),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let has = |name: &str, value: &str| {
            let mut fields = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
            fields.any(|field| field.value.eq_ignore_ascii_case(value.as_bytes()))
        };
        let keeps = request.version == Some(1) || has("connection", "keep-alive");
        self.closes = !keeps || has("connection", "close");
        // Proxies send the target in origin form; an absolute one gets 404.
        let target = request.path.unwrap_or_default();
        (self.sent, self.position) = (0, 0);
        self.head.clear();
        self.object = bodies.respond(request.method, target, &mut self.head)?;
        self.received.drain(..length);
        Ok(true)
    }

    /// Sends the response; returns false if the socket takes no more.
    fn send(&mut self, bodies: &Bodies) -> io::Result<bool> {
        while self.sent < self.head.len() || self.position < self.object.size {
            match self.send_once(bodies) {
                Ok(()) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn send_once(&mut self, bodies: &Bodies) -> rustix::io::Result<()> {
        let head = &self.head[self.sent..];
        if self.object.size < SENDFILE_BYTES_MIN {
            let length = (self.object.size - self.position) as usize;
            let body = bodies.block.stretch(&self.object, self.position, length);
            let parts = [IoSlice::new(head), IoSlice::new(body)];
            let sent = rustix::net::sendmsg(
                &self.socket,
                &parts,
                &mut SendAncillaryBuffer::default(),
                SendFlags::NOSIGNAL,
            )?;
            let of_head = sent.min(head.len());
            self.sent += of_head;
            self.position += (sent - of_head) as u64;
        } else if !head.is_empty() {
            self.sent += rustix::net::send(&self.socket, head, SendFlags::MORE | SendFlags::NOSIGNAL)?;
        } else {
            let (mut at, length) = Block::in_file(&self.object, self.position);
            let sent = rustix::fs::sendfile(&self.socket, &bodies.file, Some(&mut at), length)?;
            self.position += sent as u64;
        }
        Ok(())
    }
}

impl Bodies {
    fn new() -> Result<Self> {
        let block = Block::new();
        let file = block.file()?;
        let mut bodies =
            Self { block, file, count: Count::default(), date: String::new(), date_until: Instant::now() };
        bodies.update_date();
        Ok(bodies)
    }

    fn update_date(&mut self) {
        let now = Instant::now();
        if now >= self.date_until {
            self.date = httpdate::fmt_http_date(SystemTime::now());
            self.date_until = now + Duration::from_secs(1);
        }
    }

    /// Writes the head of the response to a request and returns the object that follows it, or an
    /// empty one if the head holds the whole response.
    fn respond(&mut self, method: Option<&str>, target: &str, head: &mut Vec<u8>) -> io::Result<Object> {
        let nothing = Object { size: 0, id: 0, cacheable: false };
        let object = match (method, Object::parse(target)) {
            (Some("GET"), Some(object)) => object,
            (Some("GET"), None) if target == COUNT => {
                let count = serde_json::to_string(&self.count)?;
                let length = count.len();
                write!(
                    head,
                    "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: {length}\r\n\r\n{count}"
                )?;
                return Ok(nothing);
            }
            _ => {
                write!(head, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
                return Ok(nothing);
            }
        };
        self.count.requests += 1;
        self.count.bytes += object.size;
        let control = if object.cacheable { "max-age=3600" } else { "no-store" };
        write!(
            head,
            "HTTP/1.1 200 OK\r\nDate: {}\r\nContent-Type: application/octet-stream\r\n\
             Last-Modified: Thu, 01 Jan 2015 00:00:00 GMT\r\nCache-Control: {control}\r\nContent-Length: {}\r\n\r\n",
            self.date, object.size
        )?;
        Ok(object)
    }
}
