//! One direction of a relayed connection: bytes from one socket to the other through a pipe, and to a file beside if asked.
//!
//! ```text
//! from --splice--> pipe --splice--> to
//!                    \--tee--> pipe --splice--> file
//! ```
//!
//! A direction holds a pipe only while bytes are in it: an idle connection costs two descriptors. Nothing is read while
//! the other side takes nothing, so that back-pressure reaches the sender. The end of a stream is passed on as the end of a
//! stream, and the other direction goes on.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use crate::error::{Error, Result};
use crate::pipe::{Pipe, Pipes};

/// Calls that one turn makes at most, so that one connection does not starve the others.
const TURN_MAX: usize = 16;

/// What a direction waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Bytes from its source.
    Input,
    /// Room in its destination.
    Room,
    /// Nothing: it is another's turn.
    Turn,
    /// Nothing any more: the stream has ended, and its end was passed on.
    Over,
}

/// A copy of what passes, in a file.
#[derive(Debug)]
struct Tee {
    file: File,
    pipe: Pipe,
}

/// One way of two.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    pipe: Option<Pipe>,
    over: bool,
    tee: Option<Tee>,
    /// Bytes that were passed on.
    pub(crate) bytes: u64,
    /// Bytes that went to the file as well.
    pub(crate) teed: u64,
    /// Why the file got no more.
    pub(crate) tee_failure: Option<Errno>,
}

impl Direction {
    /// A direction whose bytes go to `file` as well.
    pub(crate) fn teed_to(file: Option<File>, pipes: &mut Pipes) -> Result<Self> {
        let tee = file.map(|file| Ok::<_, Error>(Tee { file, pipe: pipes.take()? })).transpose()?;
        Ok(Self { tee, ..Self::default() })
    }

    /// Moves what can be moved without waiting.
    pub(crate) fn turn(&mut self, from: &OwnedFd, to: &OwnedFd, pipes: &mut Pipes) -> Result<Waits> {
        if self.over {
            return Ok(Waits::Over);
        }
        for _ in 0..TURN_MAX {
            if self.pipe.is_none()
                && let Some(waits) = self.fill(from, to, pipes)?
            {
                return Ok(waits);
            }
            match self.empty(to, pipes) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Waits::Room),
                Err(error) => return Err(Error::os("relay to", "a connection", error)),
            }
        }
        Ok(Waits::Turn)
    }

    /// Fills the pipe; what to wait for if nothing came.
    fn fill(&mut self, from: &OwnedFd, to: &OwnedFd, pipes: &mut Pipes) -> Result<Option<Waits>> {
        let mut pipe = pipes.take()?;
        match pipe.fill(from, u64::MAX) {
            Ok(0) => {
                pipes.give_back(pipe);
                self.end(to)?;
                return Ok(Some(Waits::Over));
            }
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => {
                pipes.give_back(pipe);
                return Ok(Some(Waits::Input));
            }
            Err(error) => return Err(Error::os("relay from", "a connection", error)),
        }
        self.copy_to_file(&pipe);
        self.pipe = Some(pipe);
        Ok(None)
    }

    /// Sends the pipe's bytes on, and gives it back.
    fn empty(&mut self, to: &OwnedFd, pipes: &mut Pipes) -> Result<(), Errno> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        while pipe.held() > 0 {
            self.bytes += pipe.empty(to, None)? as u64;
        }
        self.close(pipes);
        Ok(())
    }

    /// Copies the pipe's bytes to the file, before they leave it. A file that takes no more is left as it is: the connection
    /// matters more.
    fn copy_to_file(&mut self, pipe: &Pipe) {
        let Some(copy) = &mut self.tee else { return };
        match copy.write(pipe) {
            Ok(()) => self.teed += pipe.held() as u64,
            Err(errno) => {
                self.tee_failure = Some(errno);
                self.tee = None;
            }
        }
    }

    fn end(&mut self, to: &OwnedFd) -> Result<()> {
        self.over = true;
        match shutdown(to, Shutdown::Write) {
            // The peer is gone already: its own direction says so.
            Ok(()) | Err(Errno::NOTCONN) => Ok(()),
            Err(error) => Err(Error::os("end the stream to", "a connection", error)),
        }
    }

    /// Whether it waits for room in its destination.
    pub(crate) fn is_held_up(&self) -> bool {
        self.pipe.is_some()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Gives its pipe back.
    pub(crate) fn close(&mut self, pipes: &mut Pipes) {
        if let Some(pipe) = self.pipe.take() {
            pipes.give_back(pipe);
        }
    }
}

impl Tee {
    /// The pipes are of one size, so that what one holds fits the other.
    fn write(&mut self, from: &Pipe) -> Result<(), Errno> {
        from.tee(&mut self.pipe)?;
        let is_whole = self.pipe.held() == from.held();
        while self.pipe.held() > 0 {
            self.pipe.empty(&self.file, None)?;
        }
        if is_whole { Ok(()) } else { Err(Errno::NOBUFS) }
    }
}
