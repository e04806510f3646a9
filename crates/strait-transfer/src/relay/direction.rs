//! One direction of a relayed connection: moves bytes from one socket to the other through a pipe,
//! and optionally to a file as well.
//!
//! ```text
//! from --splice--> pipe --splice--> to
//!                    \--tee--> pipe --splice--> file
//! ```
//!
//! A direction holds a pipe only while the pipe has bytes, so an idle connection costs two
//! descriptors. Without a pipe, bytes are copied, and counted as copied. Nothing is read while the
//! other side accepts nothing, so that back-pressure reaches the sender. The end of a stream is
//! passed on, and the other direction continues.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::error::{Error, Result};
use crate::pipe::{Pipe, Pipes};

/// Limit of calls in one step, so that one connection does not starve the others.
const CALLS_MAX: usize = 16;
/// Bytes of one copy without a pipe.
const COPIED_MAX: usize = 16 << 10;

/// Event that a direction waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Bytes from its source.
    Input,
    /// Space in its destination.
    Room,
    /// Nothing: it yields to other connections.
    Yield,
    /// Nothing any more: the end of the stream was passed on, or the destination failed.
    Over,
}

/// File with a copy of the relayed bytes.
#[derive(Debug)]
struct Tee {
    file: File,
    pipe: Pipe,
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    pipe: Option<Pipe>,
    /// Bytes at the head of the pipe that the file already has.
    ahead: usize,
    blocked: bool,
    ended: bool,
    /// Error of the destination, which accepts no more bytes.
    error: Option<Errno>,
    tee: Option<Tee>,
    /// Relayed bytes, and those of them that were copied.
    pub(crate) bytes: u64,
    pub(crate) copied: u64,
    /// Bytes written to the file.
    pub(crate) teed: u64,
    /// Error that ended the copy to the file.
    pub(crate) tee_failure: Option<Errno>,
}

impl Direction {
    /// Makes a direction with a copy to `file`. A failure to open it does not end the connection.
    pub(crate) fn with_copy(file: std::io::Result<File>) -> Self {
        let file = file.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        match file.and_then(|file| Ok(Tee { file, pipe: Pipe::new()? })) {
            Ok(tee) => Self { tee: Some(tee), ..Self::default() },
            Err(errno) => Self { tee_failure: Some(errno), ..Self::default() },
        }
    }

    /// Moves bytes as far as possible without waiting.
    pub(crate) fn advance(&mut self, from: &OwnedFd, to: &OwnedFd, pipes: &mut Pipes) -> Result<Wait> {
        let mut moves = 0;
        while !self.is_over() {
            if moves == CALLS_MAX {
                return Ok(Wait::Yield);
            }
            moves += 1;
            let moved = match self.pipe.take().or_else(|| pipes.try_take()) {
                Some(pipe) => self.splice(pipe, from, to, pipes),
                None => self.copy(from, to),
            };
            if let Some(wait) = moved? {
                self.blocked = wait == Wait::Room;
                return Ok(wait);
            }
        }
        Ok(Wait::Over)
    }

    /// Fills a pipe and empties it. Returns the event to wait for if not all bytes were moved.
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
            Err(errno) => self.error = Some(errno),
            Ok(()) => {}
        }
        pipes.give_back(pipe);
        Ok(None)
    }

    /// Moves the pipe's bytes to the destination, after copying them to the file.
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

    /// Peeks at received bytes, sends them, and then consumes the sent ones: the rest stays in the
    /// socket.
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
                self.error = Some(errno);
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

    /// Handles a read without bytes: passes the end of the stream on, or waits for more.
    fn nothing_came(&mut self, error: Option<Errno>, to: &OwnedFd) -> Result<Option<Wait>> {
        match error {
            Some(Errno::AGAIN | Errno::INTR) => Ok(Some(Wait::Input)),
            Some(error) => Err(Error::os("relay from", "a connection", error)),
            None => {
                self.ended = true;
                match shutdown(to, Shutdown::Write) {
                    // The peer has closed already; the other direction reports that.
                    Ok(()) | Err(Errno::NOTCONN) => Ok(Some(Wait::Over)),
                    Err(error) => Err(Error::os("end the stream to", "a connection", error)),
                }
            }
        }
    }

    /// Copies bytes to the file. Returns their number; `None` without a file. A file that cannot be
    /// written keeps its content.
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

    /// Notes a failed destination. Bytes on their way to it are lost.
    pub(crate) fn fail(&mut self, errno: Errno) {
        if !self.is_over() {
            self.error = Some(errno);
        }
    }

    /// Returns true if it waits for space in its destination.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Returns true if it moves no more bytes.
    pub(crate) fn is_over(&self) -> bool {
        self.ended || self.error.is_some()
    }

    /// Returns the error that ended it before its stream.
    pub(crate) fn error(&self) -> Option<Errno> {
        self.error
    }

    /// Returns its pipe to the pool.
    pub(crate) fn close(&mut self, pipes: &mut Pipes) {
        if let Some(pipe) = self.pipe.take() {
            pipes.give_back(pipe);
        }
    }
}

impl Tee {
    /// Copies the head of a pipe by reference, as much as the other pipe holds. Returns the number
    /// of bytes.
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
