//! Origin that a test controls step by step. It records its requests.

use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::body::Body;
use crate::client::field;
use crate::rig::LIMIT;

/// Recorded request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    head: String,
}

impl Request {
    /// Returns the value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    /// Returns the first and the last byte of a closed range.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        let (first, last) = self.field("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    }

    /// Returns the body that its target names.
    pub(crate) fn body(&self) -> Body {
        Body::parse(&self.target).unwrap_or_else(|| panic!("no body: {}", self.target))
    }
}

/// Answers a request; an error closes the connection.
type Answer = dyn Fn(&Request, &mut TcpStream) -> io::Result<()> + Send + Sync;

/// Server on a port of its own, until the process of the test ends.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl Origin {
    pub(crate) fn new(
        answer: impl Fn(&Request, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::default();
        let (answer, log): (Arc<Answer>, _) = (Arc::new(answer), Arc::clone(&asked));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
                // Clients of the proxy see how the connection ends.
                thread::spawn(move || drop(serve(stream, &*answer, &log)));
            }
        });
        Self { address, asked }
    }

    /// Starts one that sends the body that a target names, or the requested range. It is fresh for
    /// an hour.
    pub(crate) fn of_bodies() -> Self {
        Self::new(|request, stream| send_body(request, stream, "Cache-Control: max-age=3600\r\n"))
    }

    /// Starts one that sends those bodies up to the gate.
    pub(crate) fn of_bodies_behind(gate: &Gate) -> Self {
        let gate = gate.clone();
        Self::new(move |request, stream| {
            send_body_behind(&gate, request, stream, "Cache-Control: max-age=3600\r\n")
        })
    }

    /// Returns the requests so far, without bodies.
    pub(crate) fn asked(&self) -> Vec<Request> {
        lock(&self.asked).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(stream: TcpStream, answer: &Answer, log: &Mutex<Vec<Request>>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let (mut reader, mut writer) = (BufReader::new(stream.try_clone()?), stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let mut words = head.split(' ').map(str::to_owned);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let request = Request { method, target, head };
        if let Some(len) = request.field("content-length").and_then(|len| len.parse().ok()) {
            io::copy(&mut reader.by_ref().take(len), &mut io::sink())?;
        }
        lock(log).push(request.clone());
        answer(&request, &mut writer)?;
    }
}

/// Sends the body that the target names, or the requested range, with `fields`.
pub(crate) fn send_body(request: &Request, stream: &mut TcpStream, fields: &str) -> io::Result<()> {
    let range = send_head(request, stream, fields)?;
    if request.method == "HEAD" { Ok(()) } else { send_bytes(&request.body(), range, stream) }
}

/// Sends that response, the body up to the gate.
pub(crate) fn send_body_behind(
    gate: &Gate,
    request: &Request,
    stream: &mut TcpStream,
    fields: &str,
) -> io::Result<()> {
    let range = send_head(request, stream, fields)?;
    trickle(&request.body(), range, gate, stream)
}

/// Sends the head of that response, and returns the range of the bytes to send.
pub(crate) fn send_head(
    request: &Request,
    stream: &mut TcpStream,
    fields: &str,
) -> io::Result<std::ops::Range<u64>> {
    let body = request.body();
    let tag = format!("ETag: \"{}-{}\"\r\n", body.id, body.len);
    let (status, range) = match request.range() {
        Some((first, last)) => {
            let last = last.min(body.len - 1);
            let content = format!("Content-Range: bytes {first}-{last}/{}\r\n", body.len);
            (format!("206 Partial Content\r\n{content}"), first..last + 1)
        }
        None => ("200 OK\r\n".to_owned(), 0..body.len),
    };
    let len = range.end - range.start;
    let head = format!("HTTP/1.1 {status}Content-Length: {len}\r\n{tag}{fields}\r\n");
    stream.write_all(head.as_bytes())?;
    Ok(range)
}

/// Sends bytes of a body.
pub(crate) fn send_bytes(body: &Body, range: std::ops::Range<u64>, mut to: impl Write) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let piece = body.piece(at..range.end.min(at + (256 << 10)));
        to.write_all(piece)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Gate that holds an origin back until the test opens it further.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<(Mutex<u64>, Condvar)>);

impl Gate {
    /// Opens the gate up to `upto`.
    pub(crate) fn open(&self, upto: u64) {
        *lock(&self.0.0) = upto;
        self.0.1.notify_all();
    }

    /// Opens the gate by `more`.
    pub(crate) fn open_more(&self, more: u64) {
        *lock(&self.0.0) += more;
        self.0.1.notify_all();
    }

    /// Waits until the gate is open beyond `at`, and returns the new limit; fails after a timeout.
    pub(crate) fn beyond(&self, at: u64) -> io::Result<u64> {
        let end = Instant::now() + LIMIT;
        let mut upto = lock(&self.0.0);
        while *upto <= at {
            let left = end.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Err(io::ErrorKind::TimedOut.into());
            }
            upto = self.0.1.wait_timeout(upto, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(*upto)
    }
}

/// Sends bytes of a body as far as the gate is open.
pub(crate) fn trickle(
    body: &Body,
    range: std::ops::Range<u64>,
    gate: &Gate,
    mut to: impl Write,
) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let upto = gate.beyond(at)?.min(range.end);
        send_bytes(body, at..upto, &mut to)?;
        at = upto;
    }
    Ok(())
}
