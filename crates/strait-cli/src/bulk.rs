//! What `strait send`, `strait receive` and `strait relay` have in common: addresses, the connection, the lines of the protocol, the
//! line that shows how far they are.

use std::io::{ErrorKind, IsTerminal as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use strait_transfer::offer::{LINE_BYTES_MAX, WAIT};

use crate::Error;

/// How often the line is drawn.
const PERIOD: Duration = Duration::from_millis(200);
/// How often who is at work says so; less than anybody waits for an answer.
const WAIT_PERIOD: Duration = Duration::from_millis(500);

/// The addresses of a HOST:PORT.
pub(crate) fn look_up(to: &str) -> Result<std::vec::IntoIter<SocketAddr>, Error> {
    to.to_socket_addrs().map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => Error::Usage(format!("'{to}': write it as HOST:PORT")),
        _ => Error::Failed(format!("look up {to}: {error}")),
    })
}

/// A name that leads nowhere.
pub(crate) fn no_address(to: &str) -> Error {
    Error::Failed(format!("look up {to}: the name has no address"))
}

/// What is said before and after the bytes is waited for so long.
pub(crate) fn set_timeouts(stream: &TcpStream, timeout: Duration) -> Result<(), Error> {
    let set = stream.set_read_timeout(Some(timeout)).and_then(|()| stream.set_write_timeout(Some(timeout)));
    set.map_err(|error| Error::Failed(format!("set a timeout: {error}")))
}

/// Sends a line of the protocol. The socket waits as long as its timeout says.
pub(crate) fn say(mut stream: &TcpStream, line: &impl std::fmt::Display) -> Result<(), Error> {
    stream.write_all(line.to_string().as_bytes()).map_err(|error| talk("talk to", stream, &error))
}

/// Does what may take longer than the other end waits, and tells it so meanwhile.
pub(crate) fn while_waited_for<T: Send>(
    stream: &TcpStream,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let (done, told) = std::sync::mpsc::sync_channel(1);
        // Nobody hears of it where the other end is gone already.
        scope.spawn(move || done.send(work()).ok());
        loop {
            match told.recv_timeout(WAIT_PERIOD) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) => say(stream, &WAIT)?,
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Failed("a thread died".into())),
            }
        }
    })
}

/// Receives a line of the protocol and not a byte more: what follows is for the kernel to move.
pub(crate) fn hear<T: std::str::FromStr<Err: std::fmt::Display>>(stream: &TcpStream) -> Result<T, Error> {
    loop {
        let line = hear_line(stream)?;
        if line != WAIT {
            return line.parse().map_err(|error: T::Err| Error::Failed(format!("{}: {error}", name(stream))));
        }
    }
}

fn hear_line(mut stream: &TcpStream) -> Result<String, Error> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') && line.len() < LINE_BYTES_MAX {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) if line.is_empty() => return Err(closed(stream)),
            Ok(0) => break,
            Ok(_) => line.push(byte[0]),
            Err(error) => return Err(talk("hear", stream, &error)),
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

fn talk(operation: &str, stream: &TcpStream, error: &std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::Interrupted => Error::Failed("interrupted".into()),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => closed(stream),
        ErrorKind::WouldBlock => Error::Failed(format!(
            "{}: no answer in time: is the other end strait send or strait receive? --raw does without",
            name(stream)
        )),
        _ => Error::Failed(format!("{operation} {}: {error}", name(stream))),
    }
}

fn closed(stream: &TcpStream) -> Error {
    Error::Failed(format!("{} has closed the connection", name(stream)))
}

fn name(stream: &TcpStream) -> String {
    stream.peer_addr().map_or_else(|_| "the other end".into(), |address| address.to_string())
}

/// A connection whose process dies is reset, so that nobody takes the part for the whole; one that is done ends in order.
pub(crate) fn reset_on_death(stream: &TcpStream, reset: bool) -> Result<(), Error> {
    let linger = reset.then_some(Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(stream, linger)
        .map_err(|error| Error::Failed(format!("set SO_LINGER: {error}")))
}

/// The line on standard error that shows how far a transfer is; nothing where that is no terminal.
pub(crate) struct Bar {
    began: Instant,
    drawn: Option<Instant>,
    all: Option<u64>,
    first: u64,
    shown: bool,
}

impl Bar {
    /// For `all` bytes, if that is known, of which `first` were there before.
    pub(crate) fn new(all: Option<u64>, first: u64) -> Self {
        Self { began: Instant::now(), drawn: None, all, first, shown: std::io::stderr().is_terminal() }
    }

    /// Draws it, if it is time to.
    pub(crate) fn at(&mut self, bytes: u64) {
        let now = Instant::now();
        if !self.shown || self.drawn.is_some_and(|drawn| now - drawn < PERIOD) {
            return;
        }
        self.drawn = Some(now);
        let seconds = (now - self.began).as_secs_f64().max(1e-9);
        let line = line(bytes, self.all, (bytes - self.first) as f64 / seconds);
        // A terminal that cannot be written to loses the line, not the transfer.
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// `[=====     ]  50.0 %  512.0 MiB of 1024.0 MiB  123.4 MB/s  4 s left`.
fn line(bytes: u64, all: Option<u64>, per_second: f64) -> String {
    const WIDTH: usize = 24;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let rate = per_second / 1e6;
    let Some(all) = all.filter(|all| *all > 0) else {
        return format!("{:.1} MiB  {rate:.1} MB/s", mib(bytes));
    };
    let share = bytes as f64 / all as f64;
    let full = "=".repeat((share * WIDTH as f64) as usize);
    let left = all.saturating_sub(bytes) as f64 / per_second.max(1.0);
    format!(
        "[{full:<WIDTH$}] {:5.1} %  {:.1} of {:.1} MiB  {rate:.1} MB/s  {left:.0} s left",
        share * 100.0,
        mib(bytes),
        mib(all)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_and_how_long() {
        let half = line(512 << 20, Some(1 << 30), 128e6);
        assert_eq!(half, "[============            ]  50.0 %  512.0 of 1024.0 MiB  128.0 MB/s  4 s left");
        assert_eq!(line(3 << 20, None, 1e6), "3.0 MiB  1.0 MB/s");
        assert_eq!(line(0, Some(0), 0.0), "0.0 MiB  0.0 MB/s");
    }
}
