//! The first sender with an offer, out of all that connect: those that say nothing hold nobody up.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait_transfer::offer::Offer;

use super::{Args, TICK};
use crate::Error;
use crate::bulk::{Heard, Lines, closed, name, set_timeouts};
use crate::output::tell;

/// How long a connection may take for its offer.
const OFFER_MAX: Duration = Duration::from_secs(5);
/// Connections without an offer at a time; one more takes the place of the oldest.
const WAITING_MAX: usize = 64;
/// Failures that are reported, of as many as may come; those behind are not.
const REPORTS_MAX: usize = 16;

/// A connection without an offer yet.
struct Waiting {
    stream: TcpStream,
    lines: Lines,
    since: Instant,
}

/// The connection that sends, and its offer unless it sends the bytes alone.
pub(super) fn first_sender(
    args: &Args,
    listener: &TcpListener,
    terminated: &AtomicBool,
) -> Result<(TcpStream, Lines, Option<Offer>), Error> {
    let (mut waiting, mut reports) = (Vec::<Waiting>::new(), 0);
    loop {
        while let Some(stream) = accept(listener)? {
            stream.set_nodelay(true).map_err(|error| failed(&error))?;
            set_timeouts(&stream, args.timeout)?;
            if args.raw {
                return Ok((stream, Lines::default(), None));
            }
            if waiting.len() == WAITING_MAX {
                waiting.remove(0);
            }
            waiting.push(Waiting { stream, lines: Lines::default(), since: Instant::now() });
        }
        for index in (0..waiting.len()).rev() {
            match waiting[index].offer() {
                Ok(None) => {}
                Ok(Some(offer)) => {
                    let Waiting { stream, lines, .. } = waiting.remove(index);
                    turn_away(&waiting, listener);
                    return Ok((stream, lines, Some(offer)));
                }
                Err(error) => {
                    waiting.remove(index);
                    reports += 1;
                    if reports <= REPORTS_MAX {
                        tell(format_args!("strait: {error}; listening on\n"));
                    }
                }
            }
        }
        wait(listener, &waiting)?;
        if terminated.load(Ordering::Relaxed) {
            return Err(Error::Failed("interrupted before anybody sent".into()));
        }
    }
}

impl Waiting {
    /// Its offer, if it has come.
    fn offer(&mut self) -> Result<Option<Offer>, Error> {
        match self.lines.hear_now(&self.stream) {
            Ok(Heard::Line(offer)) => Ok(Some(offer)),
            Ok(Heard::Nothing | Heard::Alive) if self.since.elapsed() < OFFER_MAX => Ok(None),
            Ok(_) => Err(Error::Failed(format!("{}: no offer in time", name(&self.stream)))),
            Err(error) => {
                // Nothing of the sender is lost: it gets the reason if it still listens, and is not waited for.
                if error.to_string() != closed(&self.stream).to_string() {
                    say_why(&self.stream, &error.to_string());
                }
                Err(error)
            }
        }
    }
}

/// Refuses without waiting for the other end.
fn say_why(stream: &TcpStream, reason: &str) {
    let line = strait_transfer::offer::Refused(reason.to_owned()).to_string();
    let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
    // An end that is gone needs no reason.
    let _ = rustix::net::send(stream, line.as_bytes(), flags);
}

/// Refuses all but the first; each may be gone already.
fn turn_away(waiting: &[Waiting], listener: &TcpListener) {
    const REASON: &str = "another sender was first, and strait receive takes one transfer";
    for other in waiting {
        say_why(&other.stream, REASON);
    }
    for _ in 0..WAITING_MAX {
        let Ok(Some(stream)) = accept(listener) else { return };
        say_why(&stream, REASON);
    }
}

fn failed(error: &std::io::Error) -> Error {
    Error::Failed(format!("take a connection: {error}"))
}

/// The next connection, if there is one.
fn accept(listener: &TcpListener) -> Result<Option<TcpStream>, Error> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(|error| failed(&error))?;
                return Ok(Some(stream));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            // It was gone before it was taken, or a signal came.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
            Err(error) => return Err(failed(&error)),
        }
    }
}

fn wait(listener: &TcpListener, waiting: &[Waiting]) -> Result<(), Error> {
    let streams = waiting.iter().map(|waiting| waiting.stream.as_fd());
    let fds = std::iter::once(listener.as_fd()).chain(streams);
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
    match poll(&mut fds, Some(&tick)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Error::Failed(format!("wait for a connection: {error}"))),
    }
}
