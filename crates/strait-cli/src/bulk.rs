//! Shared code of `strait send`, `strait receive` and `strait relay`: addresses, the connection,
//! the lines of the protocol, the progress bar.

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use strait_program::files::HELP_TO_LISTEN;
use strait_transfer::offer::{LINE_BYTES_MAX, Refusal, WAIT};

use crate::Error;

/// Interval at which the progress bar is drawn.
const PERIOD: Duration = Duration::from_millis(200);
/// Interval between two `wait` lines.
pub(crate) const WAIT_PERIOD: Duration = Duration::from_millis(500);
/// Time limit for sending the reason of a refusal.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

/// Looks up the addresses of a HOST:PORT.
pub(crate) fn look_up(to: &str) -> Result<std::vec::IntoIter<SocketAddr>, Error> {
    crate::parse::host_and_port(to).to_socket_addrs().map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => Error::Usage(format!("'{to}': write it as HOST:PORT")),
        _ => Error::Failed(format!("look up {to}: {error}")),
    })
}

/// Returns the error of a failed listen. It names the privilege if that is missing, and the command
/// that finds the program at an address in use.
pub(crate) fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> Error {
    let failure = format!("listen on {address}: {error}");
    match error.kind() {
        ErrorKind::PermissionDenied => Error::Refused(failure + HELP_TO_LISTEN),
        ErrorKind::AddrInUse => {
            let port = address.port();
            Error::Failed(format!("{failure}; ss -ltnp 'sport = :{port}' shows the program that uses it"))
        }
        _ => Error::Failed(failure),
    }
}

/// Returns the error of a name without addresses.
pub(crate) fn no_address(to: &str) -> Error {
    Error::Failed(format!("look up {to}: the name has no address"))
}

/// Sets the timeouts for the lines before and after the bytes.
pub(crate) fn set_timeouts(stream: &TcpStream, timeout: Duration) -> Result<(), Error> {
    let set = stream.set_read_timeout(Some(timeout)).and_then(|()| stream.set_write_timeout(Some(timeout)));
    set.map_err(|error| Error::Failed(format!("set a timeout: {error}")))
}

/// Sends a line of the protocol. Waits for at most the socket's timeout.
pub(crate) fn send_line(mut stream: &TcpStream, line: &impl std::fmt::Display) -> Result<(), Error> {
    stream.write_all(line.to_string().as_bytes()).map_err(|error| io_failure("send to", stream, &error))
}

/// Runs `work`, which may take longer than the other end's timeout, and sends `wait` in the
/// meantime. `work` must end soon after its flag is set, as its result is then discarded.
///
/// # Errors
/// A signal arrived, or the other end has closed the connection.
pub(crate) fn with_keep_alive<T: Send>(
    stream: &TcpStream,
    terminated: &AtomicBool,
    work: impl FnOnce(&AtomicBool) -> T + Send,
) -> Result<T, Error> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (done, result) = std::sync::mpsc::sync_channel(1);
        let stop = &stop;
        // Fails after an error of `wait_for`, which drops the receiver.
        scope.spawn(move || done.send(work(stop)).ok());
        let waited = wait_for(&result, stream, terminated);
        // The scope waits for its thread.
        stop.store(true, Ordering::Relaxed);
        waited
    })
}

fn wait_for<T>(result: &Receiver<T>, stream: &TcpStream, terminated: &AtomicBool) -> Result<T, Error> {
    loop {
        match result.recv_timeout(WAIT_PERIOD) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) if terminated.load(Ordering::Relaxed) => {
                return Err(Error::Failed("interrupted".into()));
            }
            Err(RecvTimeoutError::Timeout) => send_line(stream, &WAIT)?,
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Failed("a thread panicked".into())),
        }
    }
}

/// Reader of protocol lines from the other end. It reads no byte after a line: the kernel moves the
/// bytes of the body.
#[derive(Debug)]
pub(crate) struct Lines {
    /// The beginning of a line.
    partial: Vec<u8>,
    opened: Instant,
    /// Number of `wait` lines.
    waits: u64,
}

/// Limit of `wait` lines: at once, and for each second of the connection. A flood of them would
/// otherwise occupy a CPU, and hide a signal.
const WAITS_MAX: (u64, u64) = (200, 20);

impl Default for Lines {
    fn default() -> Self {
        Self { partial: Vec::new(), opened: Instant::now(), waits: 0 }
    }
}

impl Lines {
    /// Returns the next line, if it has arrived.
    pub(crate) fn next(&mut self, stream: &TcpStream) -> Result<Option<String>, Error> {
        let mut bytes = [0; LINE_BYTES_MAX];
        let room = LINE_BYTES_MAX - self.partial.len();
        let peeked = recv(stream, &mut bytes[..room], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        let available = match peeked {
            Ok((0, _)) if self.partial.is_empty() => return Err(closed(stream)),
            Ok((available, _)) => available,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(io_failure("receive from", stream, &error.into())),
        };
        let line = bytes[..available].iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let take = line.unwrap_or(available);
        if let Err(error) = recv(stream, &mut bytes[..take], RecvFlags::DONTWAIT) {
            return Err(io_failure("receive from", stream, &error.into()));
        }
        self.partial.extend_from_slice(&bytes[..take]);
        // Incomplete at the end of the stream, or too long: returned for the error message.
        let is_line = line.is_some() || available == 0 || self.partial.len() == LINE_BYTES_MAX;
        let line = is_line.then(|| std::mem::take(&mut self.partial));
        // One character per byte: lines are ASCII, and the error message shows the bytes of another
        // protocol unchanged.
        Ok(line.map(|line| line.into_iter().map(char::from).collect()))
    }

    /// Parses the next line, if it has arrived. A refusal is an error.
    pub(crate) fn poll<T: std::str::FromStr<Err: std::fmt::Display>>(
        &mut self,
        stream: &TcpStream,
    ) -> Result<Incoming<T>, Error> {
        match self.next(stream)? {
            None => Ok(Incoming::Nothing),
            Some(line) if line == WAIT => {
                self.waits += 1;
                let (at_once, per_second) = WAITS_MAX;
                if self.waits > at_once + per_second * self.opened.elapsed().as_secs() {
                    return Err(Error::Failed(format!("{}: too many lines \"wait\"", name(stream))));
                }
                Ok(Incoming::Alive)
            }
            Some(line) => match line.parse() {
                Ok(Refusal(reason)) => Err(Error::PeerRefused { peer: name(stream), reason }),
                Err(_) => line
                    .parse()
                    .map(Incoming::Line)
                    .map_err(|error: T::Err| Error::Failed(format!("{}: {error}", name(stream)))),
            },
        }
    }

    /// Waits for a line. Each `wait` from the other end restarts the timeout.
    pub(crate) fn read<T: std::str::FromStr<Err: std::fmt::Display>>(
        &mut self,
        stream: &TcpStream,
        timeout: Duration,
    ) -> Result<T, Error> {
        let mut since = Instant::now();
        loop {
            match self.poll(stream)? {
                Incoming::Line(line) => return Ok(line),
                Incoming::Alive => since = Instant::now(),
                Incoming::Nothing => {
                    let left = timeout.saturating_sub(since.elapsed());
                    if left.is_zero() {
                        return Err(io_failure("receive from", stream, &ErrorKind::WouldBlock.into()));
                    }
                    if !readable(stream, left)? {
                        return Err(Error::Failed("interrupted".into()));
                    }
                }
            }
        }
    }
}

/// Line from the other end.
#[derive(Debug)]
pub(crate) enum Incoming<T> {
    /// No complete line.
    Nothing,
    /// The line `wait`.
    Alive,
    /// Another line.
    Line(T),
}

/// Waits until the descriptor is readable or the timeout is over. Returns false if a signal
/// arrived.
pub(crate) fn readable(fd: &impl AsFd, timeout: Duration) -> Result<bool, Error> {
    let timeout = Timespec::try_from(timeout).ok();
    match poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout.as_ref()) {
        Ok(_) => Ok(true),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(Error::Failed(format!("wait for the other end: {error}"))),
    }
}

/// Ends a transfer and sends the reason to the other end. Discards the bytes that it still sends:
/// closing a connection with unread bytes resets it, which would lose the reason.
pub(crate) fn refuse(stream: &TcpStream, reason: &str) {
    let deadline = Instant::now() + REFUSAL_MAX;
    let line = Refusal(reason.to_owned()).to_string();
    let is_sent = send(stream, line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok();
    // An error means that the other end has closed the connection: it needs no reason.
    if !is_sent || stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let mut chunk = vec![0; 64 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match recv(stream, &mut chunk[..], RecvFlags::DONTWAIT) {
            _ if left.is_zero() => return,
            Ok((0, _)) => return,
            Ok(_) => {}
            Err(Errno::AGAIN) if readable(stream, left).unwrap_or(false) => {}
            Err(_) => return,
        }
    }
}

/// Thread that sends `wait` until it is dropped, also while the disk or the reader of the output is
/// slow.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    ended: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl KeepAlive {
    pub(crate) fn start(stream: &TcpStream) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::Failed(format!("start the keep-alive thread: {error}"));
        let stream = stream.try_clone().map_err(failed)?;
        let (ended, is_ended) = std::sync::mpsc::sync_channel::<()>(0);
        let thread = std::thread::Builder::new().name("wait".into()).spawn(move || {
            let mut rest = &b""[..];
            while is_ended.recv_timeout(WAIT_PERIOD) == Err(RecvTimeoutError::Timeout) {
                let line = if rest.is_empty() { WAIT.as_bytes() } else { rest };
                match send(&stream, line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                    Ok(sent) => rest = &line[sent..],
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    // The transfer reports the error.
                    Err(_) => return,
                }
            }
        });
        Ok(Self { ended: Some(ended), thread: Some(thread.map_err(failed)?) })
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.ended = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread does not affect the transfer.
            let _ = thread.join();
        }
    }
}

fn io_failure(operation: &str, stream: &TcpStream, error: &std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::Interrupted => Error::Failed("interrupted".into()),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => closed(stream),
        ErrorKind::WouldBlock => no_answer(stream),
        _ => Error::Failed(format!("{operation} {}: {error}", name(stream))),
    }
}

pub(crate) fn no_answer(stream: &TcpStream) -> Error {
    Error::Failed(format!(
        "{}: no answer in time: the other end may not be strait send or strait receive; --raw works without their protocol",
        name(stream)
    ))
}

pub(crate) fn closed(stream: &TcpStream) -> Error {
    Error::PeerClosed { peer: name(stream) }
}

pub(crate) fn name(stream: &TcpStream) -> String {
    stream.peer_addr().map_or_else(|_| "the other end".into(), |address| address.to_string())
}

/// With `reset` the kernel resets the connection when this process dies, so that the other end does
/// not take partial data for complete. Without `reset` the connection closes in order.
pub(crate) fn reset_on_death(stream: &TcpStream, reset: bool) -> Result<(), Error> {
    let linger = reset.then_some(Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(stream, linger)
        .map_err(|error| Error::Failed(format!("set SO_LINGER: {error}")))
}

/// Progress bar on standard error, if that is a terminal.
pub(crate) struct Bar {
    began: Instant,
    drawn: Option<Instant>,
    all: Option<u64>,
    first: u64,
    shown: bool,
}

impl Bar {
    /// Creates a bar for `all` bytes, if their number is known. `first` bytes were present before.
    pub(crate) fn new(all: Option<u64>, first: u64) -> Self {
        Self { began: Instant::now(), drawn: None, all, first, shown: std::io::stderr().is_terminal() }
    }

    /// Draws the bar, at most once per [`PERIOD`].
    pub(crate) fn update(&mut self, bytes: u64) {
        let now = Instant::now();
        if !self.shown || self.drawn.is_some_and(|drawn| now - drawn < PERIOD) {
            return;
        }
        self.drawn = Some(now);
        let seconds = (now - self.began).as_secs_f64().max(1e-9);
        let line = line(bytes, self.all, (bytes - self.first) as f64 / seconds);
        // A failed write to the terminal loses the line; the transfer goes on.
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
    fn line_shows_progress_and_remaining_time() {
        let half = line(512 << 20, Some(1 << 30), 128e6);
        assert_eq!(half, "[============            ]  50.0 %  512.0 of 1024.0 MiB  128.0 MB/s  4 s left");
        assert_eq!(line(3 << 20, None, 1e6), "3.0 MiB  1.0 MB/s");
        assert_eq!(line(0, Some(0), 0.0), "0.0 MiB  0.0 MB/s");
    }
}
