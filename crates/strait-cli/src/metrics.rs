//! `--metrics ADDR`: serves metrics of a running command to Prometheus over HTTP.
//!
//! `GET /metrics` is the only resource. One thread serves up to 16 connections at the same time,
//! and closes each after its response. A further connection evicts the oldest one without a
//! request, so silent clients delay no other. A request has at most 8 KiB, and a connection lasts
//! at most 2 s. Nothing is read from a client except its request, and no client changes anything.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::Scope;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use strait_http::head::{self, Request};
use strait_http::target::{Authority, Host};

use crate::Error;
use crate::bulk::cannot_listen;
use crate::output::print_stderr;

/// Limit of a request in bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Maximum number of open connections.
const CONNECTIONS_MAX: usize = 16;
/// Descriptors of the service: its connections, the listener, the event, and a new connection.
pub(crate) const DESCRIPTORS: u64 = CONNECTIONS_MAX as u64 + 3;
/// Time limit of a connection.
const CONNECTION_MAX: Duration = Duration::from_secs(2);
/// Pause after a failed accept: descriptors or memory are exhausted.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Service of metrics: its listening socket, and the eventfd that ends it.
pub(crate) struct Metrics {
    listener: TcpListener,
    stop: OwnedFd,
}

/// Guard of a running service. Dropping it ends the service.
pub(crate) struct ServiceGuard<'a>(&'a Metrics);

impl Drop for ServiceGuard<'_> {
    fn drop(&mut self) {
        // Writing 1 to an eventfd fails only at its maximum, when it is readable anyway.
        let _ = rustix::io::write(&self.0.stop, &1_u64.to_ne_bytes());
    }
}

impl Metrics {
    /// Listens on `address`. Returns `None` without an address.
    pub(crate) fn open(address: Option<SocketAddr>) -> Result<Option<Self>, Error> {
        let Some(address) = address else { return Ok(None) };
        let failed = |error: std::io::Error| cannot_listen(address, &error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        Ok(Some(Self { listener, stop }))
    }

    /// Reports the address on standard error.
    pub(crate) fn announce(&self) {
        if let Ok(address) = self.listener.local_addr() {
            print_stderr(format_args!("strait: metrics on http://{address}/metrics\n"));
        }
    }

    /// Serves the text that `exposition` returns on a thread of `scope`, until the returned guard
    /// is dropped.
    pub(crate) fn serve_in<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        exposition: impl Fn() -> String + Send + 'scope,
    ) -> ServiceGuard<'env> {
        scope.spawn(move || self.serve(exposition));
        ServiceGuard(self)
    }

    fn serve(&self, exposition: impl Fn() -> String) {
        let (mut open, mut pause) = (Vec::new(), None);
        while self.wait(&open, pause) {
            let now = Instant::now();
            open.retain_mut(|connection: &mut Connection| {
                now < connection.deadline && connection.advance(&exposition)
            });
            if pause.is_none_or(|end| end <= now) {
                pause = (!self.accept(&mut open, &exposition)).then(|| now + ACCEPT_RETRY_PAUSE);
            }
        }
    }

    /// Accepts the connections that have arrived. Returns false if resources for one are missing.
    fn accept(&self, open: &mut Vec<Connection>, exposition: &impl Fn() -> String) -> bool {
        for _ in 0..CONNECTIONS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_err() => {}
                Ok((stream, _)) => {
                    let mut connection = Connection::new(stream);
                    if connection.advance(exposition) {
                        evict_above(open, CONNECTIONS_MAX - 1);
                        open.push(connection);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if is_of_one_connection(error.kind()) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Waits for a connection or for progress of an open one, up to its deadline. No connection is
    /// accepted before the end of `pause`. Returns false at the end of the service.
    fn wait(&self, open: &[Connection], pause: Option<Instant>) -> bool {
        let deadlines = open.iter().map(|connection| connection.deadline).chain(pause);
        let left = deadlines.min().map(|end| end.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polled = vec![PollFd::new(&self.stop, PollFlags::IN)];
        polled.extend(open.iter().map(|connection| PollFd::new(&connection.stream, connection.awaits())));
        polled.extend(pause.is_none().then(|| PollFd::new(&self.listener, PollFlags::IN)));
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => polled[0].revents().is_empty(),
            // Without poll(2) there is no service.
            Err(error) => error == rustix::io::Errno::INTR,
        }
    }
}

/// Closes the oldest connections above `most`. Those without a request go first.
fn evict_above(open: &mut Vec<Connection>, most: usize) {
    while open.len() > most {
        let is_silent = |connection: &Connection| matches!(connection.state, State::Request(_));
        open.remove(open.iter().position(is_silent).unwrap_or(0));
    }
}

/// Connection of a client.
struct Connection {
    stream: TcpStream,
    deadline: Instant,
    state: State,
}

enum State {
    /// The beginning of a request.
    Request(Vec<u8>),
    /// A response, and the number of its bytes that are written.
    Response(Vec<u8>, usize),
    /// Bytes read after the response: closing a socket with unread bytes resets it, which could
    /// discard the response.
    Rest(usize),
}

impl Connection {
    /// Serves `stream`, which does not block.
    fn new(stream: TcpStream) -> Self {
        Self { stream, deadline: Instant::now() + CONNECTION_MAX, state: State::Request(Vec::new()) }
    }

    /// Returns the event that the next step needs.
    fn awaits(&self) -> PollFlags {
        if matches!(self.state, State::Response(..)) { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Reads and writes as far as possible without waiting. Returns false at the end. A failure
    /// concerns this client only, and ends its connection.
    fn advance(&mut self, exposition: &impl Fn() -> String) -> bool {
        let mut is_open = true;
        while is_open {
            match self.step(exposition) {
                Ok(is_more) => is_open = is_more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) => is_open = error.kind() == ErrorKind::Interrupted,
            }
        }
        false
    }

    /// Makes one system call. Returns false at the end of the connection.
    fn step(&mut self, exposition: &impl Fn() -> String) -> std::io::Result<bool> {
        let mut chunk = [0; 1024];
        match &mut self.state {
            State::Request(request) => {
                let read = self.stream.read(&mut chunk)?;
                request.extend_from_slice(&chunk[..read]);
                if let Some(response) = response(request, exposition) {
                    self.state = State::Response(response.into_bytes(), 0);
                }
                Ok(read > 0)
            }
            State::Response(response, written) => {
                *written += self.stream.write(&response[*written..])?;
                if *written == response.len() {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Rest(0);
                }
                Ok(true)
            }
            State::Rest(bytes) => {
                let read = self.stream.read(&mut chunk)?;
                *bytes += read;
                Ok(read > 0 && *bytes < REQUEST_BYTES_MAX)
            }
        }
    }
}

/// Returns true for errors of accept(2) that concern one connection.
fn is_of_one_connection(kind: ErrorKind) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(kind, Interrupted | ConnectionAborted | ConnectionReset)
}

/// Returns the response to a request, or `None` if its head is incomplete.
fn response(request: &[u8], exposition: &impl Fn() -> String) -> Option<String> {
    match head::request(request) {
        Ok(Some((request, _))) => Some(answer(&request, exposition)),
        Ok(None) if request.len() < REQUEST_BYTES_MAX => None,
        Ok(None) => Some(refusal(status_line(431), "")),
        Err(error) => Some(refusal(status_line(error.status()), "")),
    }
}

/// Returns status and reason for a request that strait-http refuses (RFC 9110, section 15).
fn status_line(status: u16) -> &'static str {
    match status {
        431 => "431 Request Header Fields Too Large",
        501 => "501 Not Implemented",
        505 => "505 HTTP Version Not Supported",
        _ => "400 Bad Request",
    }
}

/// Returns the response to the head of a request.
fn answer(request: &Request<'_>, exposition: &impl Fn() -> String) -> String {
    if !is_own_name(request) {
        return refusal("421 Misdirected Request", "");
    }
    if request.target.split('?').next() != Some("/metrics") {
        return refusal("404 Not Found", "");
    }
    if request.method != "GET" {
        return refusal("405 Method Not Allowed", "Allow: GET\r\n");
    }
    let body = exposition();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Returns true if the Host field is an address, localhost or absent. With another name a web page
/// could read the metrics through its visitor's browser (DNS rebinding).
fn is_own_name(request: &Request<'_>) -> bool {
    let is_own =
        |host: Host<'_>| !matches!(host, Host::Name(name) if !name.eq_ignore_ascii_case("localhost"));
    let hosts =
        request.fields.all("host").map(|line| line.text().and_then(|text| Authority::parse(text).ok()));
    hosts.into_iter().all(|authority| authority.is_some_and(|authority| is_own(authority.host)))
}

fn refusal(status: &str, fields: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{fields}Content-Length: 0\r\nConnection: close\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &str) -> String {
        let response = response(request.as_bytes(), &|| "text\n".into());
        response.map_or_else(String::new, |response| response.split(' ').nth(1).unwrap().to_owned())
    }

    #[test]
    fn only_get_of_metrics_is_answered() {
        for (request, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "421"),
            ("GET /metrics HTTP/1.1\r\nHost: a:9100\r\n\r\n", "421"),
            ("GET /metrics HTTP/1.1\r\nhost: 127.0.0.1:9100\r\n\r\n", "200"),
            ("GET /metrics HTTP/1.1\r\nHost: [::1]:9100\r\n\r\n", "200"),
            ("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "200"),
            ("GET /metrics?a=b HTTP/1.0\r\n\r\n", "200"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics HTTP/2.0\r\n\r\n", "505"),
            ("GET /metrics HTTP/1.0\n\n", "400"),
            ("GET /metrics\r\n\r\n", "400"),
            ("\u{16}\u{3}\r\n\r\n", "400"),
            ("GET /metrics HTTP/1.1\r\n", ""),
            (&format!("GET /metrics HTTP/1.1\r\nA: {}", "a".repeat(REQUEST_BYTES_MAX)), "431"),
            (&format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(150)), "431"),
        ] {
            assert_eq!(status(request), expected, "{request:?}");
        }
    }

    #[test]
    fn slow_client_is_disconnected_and_dropping_the_guard_ends_the_service() {
        let metrics = Metrics::open(Some(([127, 0, 0, 1], 0).into())).unwrap().unwrap();
        let address = metrics.listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let serving = metrics.serve_in(scope, || "text\n".into());
            let mut slow = TcpStream::connect(address).unwrap();
            slow.write_all(b"GET /metrics").unwrap();
            let mut next = TcpStream::connect(address).unwrap();
            next.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            let mut text = String::new();
            next.read_to_string(&mut text).unwrap();
            assert!(text.ends_with("\r\n\r\ntext\n"), "{text}");
            assert_eq!(slow.read(&mut [0; 16]).unwrap_or(0), 0, "no response to half a request");
            // A client without a request does not delay the end.
            let _silent = TcpStream::connect(address).unwrap();
            drop(serving);
        });
    }

    #[test]
    fn silent_clients_do_not_delay_a_request() {
        let metrics = Metrics::open(Some(([127, 0, 0, 1], 0).into())).unwrap().unwrap();
        let address = metrics.listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let _serving = metrics.serve_in(scope, || "text\n".into());
            let silent: Vec<_> =
                (0..4 * CONNECTIONS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
            let mut next = TcpStream::connect(address).unwrap();
            // Served one after the other, the silent clients would take two minutes.
            next.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
            next.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            let mut text = String::new();
            next.read_to_string(&mut text).unwrap();
            assert!(text.ends_with("\r\n\r\ntext\n"), "{text}");
            drop(silent);
        });
    }

    #[test]
    fn oldest_connection_without_a_request_is_evicted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = |state| {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            Connection { state, ..Connection::new(stream) }
        };
        let (response, request) = (|| State::Response(vec![1], 0), || State::Request(vec![1]));
        let mut open: Vec<_> =
            [response(), request(), response(), request()].into_iter().map(connection).collect();
        let port = |connection: &Connection| connection.stream.local_addr().unwrap().port();
        let ports: Vec<_> = open.iter().map(port).collect();
        for (most, left) in [(4, &[0, 1, 2, 3][..]), (3, &[0, 2, 3]), (2, &[0, 2]), (1, &[2])] {
            evict_above(&mut open, most);
            assert!(open.iter().map(port).eq(left.iter().map(|index| ports[*index])), "{most}");
        }
    }
}
