//! `--metrics ADDR`: serves metrics of a running command to Prometheus over HTTP.
//!
//! `GET /metrics` is the only resource. One thread serves one connection at a time and closes it
//! after the response; others wait in the kernel's queue. A request has at most 8 KiB, and a
//! connection lasts at most 2 s, so that a slow client delays others only for that time. Nothing is
//! read from a client except its request, and no client changes anything.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::thread::Scope;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::Error;
use crate::bulk::cannot_listen;
use crate::output::tell;

/// Limit of a request in bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Time limit of a connection.
const CONNECTION_MAX: Duration = Duration::from_secs(2);
/// Pause after a failed accept: descriptors or memory are exhausted.
const PAUSE: Duration = Duration::from_millis(100);

/// Listening socket for metrics, and the event that ends the service.
pub(crate) struct Metrics {
    listener: TcpListener,
    stop: OwnedFd,
}

/// Guard of a service, which ends with it.
pub(crate) struct Serving<'a>(&'a Metrics);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        // Writing 1 to an eventfd fails only at its maximum, when it is readable anyway.
        let _ = rustix::io::write(&self.0.stop, &1_u64.to_ne_bytes());
    }
}

/// Result of waiting for a socket.
#[derive(PartialEq, Eq)]
enum Ready {
    Socket,
    Timeout,
    Stopped,
}

impl Metrics {
    /// Listens on `address`; does nothing without one.
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
            tell(format_args!("strait: metrics on http://{address}/metrics\n"));
        }
    }

    /// Serves the text that `exposition` returns on a thread of `scope`, until the returned guard
    /// is dropped.
    pub(crate) fn serve_in<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        exposition: impl Fn() -> String + Send + 'scope,
    ) -> Serving<'env> {
        scope.spawn(move || self.serve(exposition));
        Serving(self)
    }

    fn serve(&self, exposition: impl Fn() -> String) {
        loop {
            if self.wait(Some((self.listener.as_fd(), PollFlags::IN)), None) == Ready::Stopped {
                return;
            }
            match self.listener.accept() {
                // A failed connection concerns its client only.
                Ok((stream, _)) => drop(self.answer(stream, &exposition)),
                Err(error) if is_of_one_connection(error.kind()) => {}
                Err(_) => {
                    if self.wait(None, Some(Instant::now() + PAUSE)) == Ready::Stopped {
                        return;
                    }
                }
            }
        }
    }

    fn answer(&self, mut stream: TcpStream, exposition: impl Fn() -> String) -> std::io::Result<()> {
        stream.set_nonblocking(true)?;
        let deadline = Instant::now() + CONNECTION_MAX;
        let Some(request) = self.read_request(&mut stream, deadline)? else { return Ok(()) };
        let response = response(&request, exposition);
        let mut left = response.as_bytes();
        while !left.is_empty() {
            match stream.write(left) {
                Ok(written) => left = &left[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.wait(Some((stream.as_fd(), PollFlags::OUT)), Some(deadline)) != Ready::Socket {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        stream.shutdown(Shutdown::Write)?;
        self.drain(&mut stream, deadline)
    }

    /// Reads up to the end of the request's head, or up to its limit. Returns `None` if the client
    /// is too slow or closes.
    fn read_request(&self, stream: &mut TcpStream, deadline: Instant) -> std::io::Result<Option<Vec<u8>>> {
        let mut request = Vec::new();
        let mut chunk = [0; 1024];
        while !has_head(&request) && request.len() < REQUEST_BYTES_MAX {
            match self.read(stream, &mut chunk, deadline)? {
                0 => return Ok(None),
                read => request.extend_from_slice(&chunk[..read]),
            }
        }
        Ok(Some(request))
    }

    /// Reads the rest of the request: closing a socket with unread bytes resets it, which could
    /// discard the response.
    fn drain(&self, stream: &mut TcpStream, deadline: Instant) -> std::io::Result<()> {
        let mut chunk = [0; 1024];
        let mut drained = 0;
        while drained < REQUEST_BYTES_MAX {
            match self.read(stream, &mut chunk, deadline)? {
                0 => break,
                read => drained += read,
            }
        }
        Ok(())
    }

    /// Reads bytes; returns 0 at the end of the stream, at the deadline and at the end of the
    /// service.
    fn read(&self, stream: &mut TcpStream, chunk: &mut [u8], deadline: Instant) -> std::io::Result<usize> {
        loop {
            if self.wait(Some((stream.as_fd(), PollFlags::IN)), Some(deadline)) != Ready::Socket {
                return Ok(0);
            }
            match stream.read(chunk) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                read => return read,
            }
        }
    }

    /// Waits for a socket, the end of the service, or the deadline.
    fn wait(&self, socket: Option<(BorrowedFd<'_>, PollFlags)>, deadline: Option<Instant>) -> Ready {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut polled = vec![PollFd::new(&self.stop, PollFlags::IN)];
            polled.extend(socket.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
            match poll(&mut polled, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                // Without poll(2) there is no service.
                Err(_) => return Ready::Stopped,
                Ok(_) if !polled[0].revents().is_empty() => return Ready::Stopped,
                Ok(0) => return Ready::Timeout,
                Ok(_) => return Ready::Socket,
            }
        }
    }
}

/// Returns true for errors of accept(2) that concern one connection.
fn is_of_one_connection(kind: ErrorKind) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(kind, WouldBlock | Interrupted | ConnectionAborted | ConnectionReset)
}

fn has_head(request: &[u8]) -> bool {
    request.windows(4).any(|bytes| bytes == b"\r\n\r\n")
}

/// Returns the response to the head of a request.
fn response(request: &[u8], exposition: impl Fn() -> String) -> String {
    if !has_head(request) {
        return refusal("431 Request Header Fields Too Large", "");
    }
    let line = request.split(|byte| *byte == b'\r').next().and_then(|line| std::str::from_utf8(line).ok());
    let mut words = line.unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some("HTTP/1.0" | "HTTP/1.1"), None) =
        (method, target, version, words.next())
    else {
        return refusal("400 Bad Request", "");
    };
    if !is_own_name(request) {
        return refusal("421 Misdirected Request", "");
    }
    if target.split('?').next() != Some("/metrics") {
        return refusal("404 Not Found", "");
    }
    if method != "GET" {
        return refusal("405 Method Not Allowed", "Allow: GET\r\n");
    }
    let body = exposition();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Returns true if the Host field is an address or localhost. Another name can belong to a page of
/// another origin that a browser shows (DNS rebinding).
fn is_own_name(request: &[u8]) -> bool {
    let lines = request.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    let mut fields = lines.skip(1).filter_map(|line| line.split_once(':'));
    let host = fields.find(|(name, _)| name.eq_ignore_ascii_case("host")).map(|(_, value)| value.trim());
    let Some(host) = host else { return true };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<std::net::IpAddr>().is_ok()
}

fn refusal(status: &str, fields: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{fields}Content-Length: 0\r\nConnection: close\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &str) -> String {
        let response = response(request.as_bytes(), || "text\n".into());
        response.split(' ').nth(1).unwrap().to_owned()
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
            ("GET /metrics HTTP/2.0\r\n\r\n", "400"),
            ("GET /metrics\r\n\r\n", "400"),
            ("\u{16}\u{3}\r\n\r\n", "400"),
            ("GET /metrics HTTP/1.1\r\n", "431"),
        ] {
            assert_eq!(status(request), expected, "{request:?}");
        }
    }

    #[test]
    fn slow_client_is_left_and_a_stop_ends_the_service() {
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
}
