//! One direction of a relayed connection: bytes from one socket to the other through a pipe, and to
//! a file beside if asked.
//!
//! ```text
//! from --splice--> pipe --splice--> to
//!                    \--tee--> pipe --splice--> file
//! ```
//!
//! A direction holds a pipe only while bytes are in it: an idle connection costs two descriptors.
//! Where no pipe is to be had bytes are copied, and counted so. Nothing is read while the other
//! side takes nothing, so that back-pressure reaches the sender. The end of a stream is passed on
//! as the end of a stream, and the other direction goes on.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::error::{Error, Result};
use crate::pipe::{Pipe, Pipes};

/// Calls that one turn makes at most, so that one connection does not starve the others.
const TURN_MAX: usize = 16;
/// Bytes copied at a time where there is no pipe.
const COPIED_MAX: usize = 16 << 10;

/// What a direction waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Bytes from its source.
    Input,
    /// Room in its destination.
    Room,
    /// Nothing: it is another's turn.
    Yield,
    /// Nothing any more: the stream has ended, and its end was passed on, or its destination is
    /// gone.
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
    /// Bytes in the pipe that are in the file already.
    ahead: usize,
    held_up: bool,
    over: bool,
    /// Its destination takes nothing any more.
    broken: Option<Errno>,
    tee: Option<Tee>,
    /// Bytes that were passed on, and those of them that were copied for it.
    pub(crate) bytes: u64,
    pub(crate) copied: u64,
    /// Bytes that went to the file as well.
    pub(crate) teed: u64,
    /// Why the file got no more.
    pub(crate) tee_failure: Option<Errno>,
}

impl Direction {
    /// A direction whose bytes go to a file as well, if there is one. The connection matters more.
    pub(crate) fn teed_to(file: Option<std::io::Result<File>>) -> Self {
        let Some(file) = file else { return Self::default() };
        let file = file.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        match file.and_then(|file| Ok(Tee { file, pipe: Pipe::new()? })) {
            Ok(tee) => Self { tee: Some(tee), ..Self::default() },
            Err(errno) => Self { tee_failure: Some(errno), ..Self::default() },
        }
    }

    /// Moves what can be moved without waiting.
    pub(crate) fn turn(&mut self, from: &OwnedFd, to: &OwnedFd, pipes: &mut Pipes) -> Result<Wait> {
        let mut moves = 0;
        while !self.is_over() {
            if moves == TURN_MAX {
                return Ok(Wait::Yield);
            }
            moves += 1;
            let moved = match self.pipe.take().or_else(|| pipes.try_take()) {
                Some(pipe) => self.splice(pipe, from, to, pipes),
                None => self.copy(from, to),
            };
            if let Some(waits) = moved? {
                self.held_up = waits == Wait::Room;
                return Ok(waits);
            }
        }
        Ok(Wait::Over)
    }

    /// Fills a pipe and empties it; what to wait for if that did not go all the way.
    fn splice(
        &mut self,
        mut pipe: Pipe,
        from: &OwnedFd,
        to: &OwnedFd,
        pipes: &mut Pipes,
    ) -> Result<Option<Wait>> {
        if pipe.held() == 0 {
            match pipe.fill(from, u64::MAX) {
                Ok(moved) if moved > 0 => {}
                other => {
                    pipes.give_back(pipe);
                    return self.nothing_came(other.err(), to);
                }
            }
        }
        let sent = self.empty(&mut pipe, to);
        match sent {
            Err(Errno::AGAIN | Errno::INTR) => {
                self.pipe = Some(pipe);
                return Ok(Some(Wait::Room));
            }
            Err(errno) => self.broken = Some(errno),
            Ok(()) => {}
        }
        pipes.give_back(pipe);
        Ok(None)
    }

    /// Sends the pipe's bytes on: to the file first, before they leave it.
    fn empty(&mut self, pipe: &mut Pipe, to: &OwnedFd) -> Result<(), Errno> {
        while pipe.held() > 0 {
            if self.ahead == 0 {
                self.ahead = self.copy_to_file(|tee| tee.write(pipe)).unwrap_or(pipe.held());
            }
            let moved = pipe.empty_some(to, None, self.ahead)?;
            self.ahead -= moved;
            self.bytes += moved as u64;
        }
        Ok(())
    }

    /// Sends on what it looks at, and takes then what was sent: what was not stays where it is.
    fn copy(&mut self, from: &OwnedFd, to: &OwnedFd) -> Result<Option<Wait>> {
        let mut bytes = [0; COPIED_MAX];
        let came = match recv(from, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((came, _)) if came > 0 => came,
            other => return self.nothing_came(other.err(), to),
        };
        let sent = match send(to, &bytes[..came], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Some(Wait::Room)),
            Err(errno) => {
                self.broken = Some(errno);
                return Ok(None);
            }
        };
        let taken = recv(from, &mut bytes[..sent], RecvFlags::DONTWAIT);
        taken.map_err(|error| Error::os("relay from", "a connection", error))?;
        self.copy_to_file(|tee| tee.write_bytes(&bytes[..sent]));
        self.bytes += sent as u64;
        self.copied += sent as u64;
        Ok(None)
    }

    /// What to do where there was nothing to move: at the end of the stream, or before more comes.
    fn nothing_came(&mut self, error: Option<Errno>, to: &OwnedFd) -> Result<Option<Wait>> {
        match error {
            Some(Errno::AGAIN | Errno::INTR) => Ok(Some(Wait::Input)),
            Some(error) => Err(Error::os("relay from", "a connection", error)),
            None => {
                self.over = true;
                match shutdown(to, Shutdown::Write) {
                    // The peer is gone already: its own direction says so.
                    Ok(()) | Err(Errno::NOTCONN) => Ok(Some(Wait::Over)),
                    Err(error) => Err(Error::os("end the stream to", "a connection", error)),
                }
            }
        }
    }

    /// Copies bytes to the file; how many, or `None` without one. A file that takes no more is left
    /// as it is.
    fn copy_to_file(&mut self, write: impl FnOnce(&mut Tee) -> Result<usize, Errno>) -> Option<usize> {
        match write(self.tee.as_mut()?) {
            Ok(bytes) => {
                self.teed += bytes as u64;
                Some(bytes)
            }
            Err(errno) => {
                self.tee_failure = Some(errno);
                self.tee = None;
                None
            }
        }
    }

    /// Its destination is gone: what is on its way there is lost.
    pub(crate) fn break_off(&mut self, errno: Errno) {
        if !self.is_over() {
            self.broken = Some(errno);
        }
    }

    /// Whether it waits for room in its destination.
    pub(crate) fn is_held_up(&self) -> bool {
        self.held_up
    }

    /// Whether nothing more will be moved.
    pub(crate) fn is_over(&self) -> bool {
        self.over || self.broken.is_some()
    }

    /// Why it is over before its stream was.
    pub(crate) fn broken(&self) -> Option<Errno> {
        self.broken
    }

    /// Gives its pipe back.
    pub(crate) fn close(&mut self, pipes: &mut Pipes) {
        if let Some(pipe) = self.pipe.take() {
            pipes.give_back(pipe);
        }
    }
}

impl Tee {
    /// Copies the head of a pipe, by reference, as much as the other holds; how much that was.
    fn write(&mut self, from: &Pipe) -> Result<usize, Errno> {
        from.tee(&mut self.pipe)?;
        let bytes = self.pipe.held();
        while self.pipe.held() > 0 {
            self.pipe.empty(&self.file, None)?;
        }
        Ok(bytes)
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(bytes.len())
    }
}
