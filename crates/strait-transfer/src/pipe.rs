//! Pipes to splice through (splice(2), tee(2)), kept for the next one: making a pipe and growing it
//! costs more than a small transfer. A pipe knows how much is in it. Nothing here waits.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice, tee};

use crate::descriptors::{Budget, Share};
use crate::error::{Error, Result};

/// Bytes that a pipe is to hold. The kernel allows an ordinary user 1 MiB
/// (`/proc/sys/fs/pipe-max-size`); past some hundred KiB nothing is gained.
const PIPE_BYTES: usize = 256 << 10;
/// Pipes that are kept.
const KEPT_MAX: usize = 64;
/// Descriptors of a pipe.
const DESCRIPTORS: u64 = 2;

/// A pipe that does not block.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    /// What it holds at most, and now.
    bytes: usize,
    held: usize,
    /// Its part of a shared budget, returned when it is dropped.
    _share: Option<Share>,
}

impl Pipe {
    /// An empty one.
    pub fn new() -> Result<Self, Errno> {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        // Past a user's share of pipe memory (pipe(7)) it stays small: it works all the same.
        let bytes = fcntl_setpipe_size(&writer, PIPE_BYTES).or_else(|_| fcntl_getpipe_size(&writer))?;
        Ok(Self { reader, writer, bytes, held: 0, _share: None })
    }

    /// Bytes in it.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether nothing more fits, for all that is known: many small pieces fill it before.
    pub fn is_full(&self) -> bool {
        self.held >= self.bytes
    }

    /// Moves up to `most` bytes of what `from` has behind what it holds; 0 at its end, or where the
    /// pipe is full. Where it is not empty, EAGAIN says that `from` has nothing now, or that
    /// nothing more fits.
    pub fn fill(&mut self, from: impl AsFd, most: u64) -> Result<usize, Errno> {
        let asked = most.min((self.bytes - self.held) as u64) as usize;
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let moved = splice(from, None, &self.writer, None, asked, flags)?;
        self.held += moved;
        Ok(moved)
    }

    /// Moves bytes out of it to `to`, at `offset` of a file that has one, which then moves on.
    pub fn empty(&mut self, to: impl AsFd, offset: Option<&mut u64>) -> Result<usize, Errno> {
        self.empty_some(to, offset, self.held)
    }

    /// The same of `most` bytes at most.
    pub fn empty_some(
        &mut self,
        to: impl AsFd,
        offset: Option<&mut u64>,
        most: usize,
    ) -> Result<usize, Errno> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let moved = splice(&self.reader, None, to, offset, most.min(self.held), flags)?;
        self.held -= moved;
        Ok(moved)
    }

    /// Copies what is in it to an empty pipe, by reference; what fits.
    pub fn tee(&self, copy: &mut Self) -> Result<(), Errno> {
        copy.held = tee(&self.reader, &copy.writer, self.held, SpliceFlags::NONBLOCK)?;
        Ok(())
    }

    /// Reads bytes out of it.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        let read = rustix::io::read(&self.reader, into)?;
        self.held -= read;
        Ok(read)
    }
}

/// Empty pipes, and how many are out.
#[derive(Debug)]
pub struct Pipes {
    kept: Vec<Pipe>,
    out: usize,
    out_max: usize,
    budget: Option<Arc<Budget>>,
}

impl Default for Pipes {
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl Pipes {
    /// Of which so many may be out at a time.
    pub fn new(out_max: usize) -> Self {
        Self { kept: Vec::new(), out: 0, out_max, budget: None }
    }

    /// Pipes that take their descriptors from a budget, as many as it allows.
    pub fn sharing(budget: Arc<Budget>) -> Self {
        Self { budget: Some(budget), ..Self::default() }
    }

    /// An empty pipe.
    pub fn take(&mut self) -> Result<Pipe> {
        let pipe = self.kept.pop().map_or_else(|| self.make(), Ok);
        let pipe = pipe.map_err(|error| Error::os("make", "a pipe", error))?;
        self.out += 1;
        Ok(pipe)
    }

    fn make(&self) -> Result<Pipe, Errno> {
        let Some(budget) = &self.budget else { return Pipe::new() };
        let share = budget.take_for_pipe(DESCRIPTORS).ok_or(Errno::MFILE)?;
        Ok(Pipe { _share: Some(share), ..Pipe::new()? })
    }

    /// An empty pipe, or none where as many are out as may be, or there are no descriptors.
    pub fn try_take(&mut self) -> Option<Pipe> {
        if self.out < self.out_max { self.take().ok() } else { None }
    }

    /// Closes those that are kept.
    pub fn clear(&mut self) {
        self.kept.clear();
    }

    /// A pipe that is out will not come back.
    pub fn forget(&mut self) {
        self.out -= 1;
    }

    /// Keeps an empty pipe for the next; one that is not is closed with its bytes, and so is each
    /// while new connections lack descriptors.
    pub fn give_back(&mut self, pipe: Pipe) {
        self.out -= 1;
        let is_short = self.budget.as_ref().is_some_and(|budget| budget.is_short());
        if pipe.held == 0 && self.kept.len() < KEPT_MAX && !is_short {
            self.kept.push(pipe);
        }
    }
}
