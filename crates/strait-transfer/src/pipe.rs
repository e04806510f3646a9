//! Pipes for splice(2) and tee(2), kept for reuse: creating and growing a pipe costs more than a
//! small transfer. A pipe counts the bytes in it. Nothing here waits.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice, tee};

use crate::descriptors::{Budget, Share};
use crate::error::{Error, Result};

/// Unit of a pipe's capacity in bytes.
const PAGE_BYTES: usize = 4096;
/// Capacity of a pipe.
const PIPE_BYTES: usize = 256 << 10;
/// Capacity of the first pipes of the process, the maximum for an ordinary user
/// (`/proc/sys/fs/pipe-max-size`). A megabyte costs a sixth less than in pipes of [`PIPE_BYTES`].
const LARGE_BYTES: usize = 1 << 20;
/// Limit of such pipes. Beyond 64 MiB for all pipes of a user (`pipe-user-pages-soft`), the kernel
/// makes new ones of two pages only.
const LARGE_MAX: usize = 24;
/// Number of such pipes.
static LARGE: AtomicUsize = AtomicUsize::new(0);
/// Limit of idle pipes.
const IDLE_MAX: usize = 64;
/// Descriptors of a pipe.
const DESCRIPTORS: u64 = 2;

/// Non-blocking pipe.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    /// Capacity, and bytes in it.
    bytes: usize,
    held: usize,
    /// Descriptors taken from a shared budget, returned on drop.
    _share: Option<Share>,
    /// Right to the large capacity.
    _large: Option<Large>,
}

impl Pipe {
    /// Creates an empty pipe.
    pub fn new() -> Result<Self, Errno> {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        // Beyond a user's limit of pipe memory (pipe(7)) the pipe stays small, and still works.
        let large = Large::take().filter(|_| fcntl_setpipe_size(&writer, LARGE_BYTES).is_ok());
        if large.is_none() {
            let _ = fcntl_setpipe_size(&writer, PIPE_BYTES);
        }
        let bytes = fcntl_getpipe_size(&writer)?;
        Ok(Self { reader, writer, bytes, held: 0, _share: None, _large: large })
    }

    /// Returns the bytes in the pipe.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Returns true if the pipe is full by its byte count. Many small pieces fill it earlier,
    /// because each takes a page.
    pub fn is_full(&self) -> bool {
        self.held >= self.bytes
    }

    /// Moves up to `most` bytes from `from` into the pipe. Returns 0 at the end of `from`, or if
    /// the pipe is full. In a pipe that is not empty, EAGAIN means that `from` has no bytes now, or
    /// that no more fit.
    pub fn fill(&mut self, from: impl AsFd, most: u64) -> Result<usize, Errno> {
        let asked = most.min((self.bytes - self.held) as u64) as usize;
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let moved = splice(from, None, &self.writer, None, asked, flags)?;
        self.held += moved;
        Ok(moved)
    }

    /// Moves up to `most` bytes of a file from `offset` on into the pipe, by reference to its
    /// pages, and advances `offset`. Returns 0 at the end of the file.
    pub fn fill_at(&mut self, file: impl AsFd, offset: &mut u64, most: usize) -> Result<usize, Errno> {
        let asked = most.min(self.bytes - self.held);
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let moved = splice(file, Some(offset), &self.writer, None, asked, flags)?;
        self.held += moved;
        Ok(moved)
    }

    /// Copies bytes into the pipe.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let written = rustix::io::write(&self.writer, bytes)?;
        self.held += written;
        Ok(written)
    }

    /// Returns the number of its slots. Each holds a page, or a part of one.
    pub fn slots(&self) -> usize {
        self.bytes / PAGE_BYTES
    }

    /// Moves bytes from the pipe to `to`: at `offset` of a file, which is advanced, or at its own
    /// position.
    pub fn empty(&mut self, to: impl AsFd, offset: Option<&mut u64>) -> Result<usize, Errno> {
        self.empty_some(to, offset, self.held)
    }

    /// Like [`Pipe::empty`], but moves at most `most` bytes.
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

    /// Copies its bytes to an empty pipe by reference, as far as they fit.
    pub fn tee(&self, copy: &mut Self) -> Result<(), Errno> {
        copy.held = tee(&self.reader, &copy.writer, self.held, SpliceFlags::NONBLOCK)?;
        Ok(())
    }

    /// Reads bytes from the pipe.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        let read = rustix::io::read(&self.reader, into)?;
        self.held -= read;
        Ok(read)
    }
}

/// Right to a pipe of the large capacity, returned on drop.
#[derive(Debug)]
struct Large;

impl Large {
    /// Takes a right; `None` if there are [`LARGE_MAX`] such pipes.
    fn take() -> Option<Self> {
        let next = |count| (count < LARGE_MAX).then_some(count + 1);
        LARGE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok().map(|_| Self)
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        LARGE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Pool of empty pipes, with a count of the taken ones.
#[derive(Debug)]
pub struct Pipes {
    idle: Vec<Pipe>,
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
    /// Creates a pool from which at most `out_max` pipes may be taken at a time.
    pub fn new(out_max: usize) -> Self {
        Self { idle: Vec::new(), out: 0, out_max, budget: None }
    }

    /// Creates a pool that takes descriptors from a budget, as many as it allows.
    pub fn sharing(budget: Arc<Budget>) -> Self {
        Self { budget: Some(budget), ..Self::default() }
    }

    /// Takes an empty pipe.
    pub fn take(&mut self) -> Result<Pipe> {
        let pipe = self.idle.pop().map_or_else(|| self.make(), Ok);
        let pipe = pipe.map_err(|error| Error::os("make", "a pipe", error))?;
        self.out += 1;
        Ok(pipe)
    }

    fn make(&self) -> Result<Pipe, Errno> {
        let Some(budget) = &self.budget else { return Pipe::new() };
        let share = budget.take_for_pipe(DESCRIPTORS).ok_or(Errno::MFILE)?;
        Ok(Pipe { _share: Some(share), ..Pipe::new()? })
    }

    /// Takes an empty pipe; returns `None` if the limit of taken pipes is reached, or if no pipe
    /// can be created.
    pub fn try_take(&mut self) -> Option<Pipe> {
        if self.out < self.out_max { self.take().ok() } else { None }
    }

    /// Closes the idle pipes.
    pub fn clear(&mut self) {
        self.idle.clear();
    }

    /// Reports that a taken pipe will not be returned.
    pub fn forget(&mut self) {
        self.out -= 1;
    }

    /// Returns a pipe. An empty one is kept. One with bytes is closed with them, and so is any pipe
    /// while new connections lack descriptors.
    pub fn give_back(&mut self, pipe: Pipe) {
        self.out -= 1;
        let is_short = self.budget.as_ref().is_some_and(|budget| budget.is_short());
        if pipe.held == 0 && self.idle.len() < IDLE_MAX && !is_short {
            self.idle.push(pipe);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_large_pipes_is_limited() {
        // Other tests of the process may have some, too.
        let pipes: Vec<_> = (0..LARGE_MAX + 2).map(|_| Pipe::new().unwrap()).collect();
        assert!(
            LARGE.load(Ordering::Relaxed) == LARGE_MAX || pipes.iter().all(|pipe| pipe.bytes <= PIPE_BYTES)
        );
        assert!(pipes.iter().filter(|pipe| pipe.bytes > PIPE_BYTES).count() <= LARGE_MAX);
        drop(pipes);
        assert!(LARGE.load(Ordering::Relaxed) < LARGE_MAX);
    }
}
