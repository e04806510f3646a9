//! Pipes to splice through, kept for the next one: making a pipe and growing it costs more than a small transfer.

use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

use crate::error::{Error, Result};

/// Bytes that a pipe is to hold. The kernel allows an ordinary user 1 MiB (`/proc/sys/fs/pipe-max-size`); past some hundred KiB
/// nothing is gained.
const PIPE_BYTES: usize = 256 << 10;
/// Pipes that are kept.
const KEPT_MAX: usize = 64;

/// A pipe that does not block.
#[derive(Debug)]
pub(crate) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    bytes: usize,
}

impl Pipe {
    fn new() -> Result<Self> {
        let failed = |error| Error::os("make", "a pipe", error);
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).map_err(failed)?;
        // Past a user's share of pipe memory (pipe(7)) it stays small: it works all the same.
        let bytes = fcntl_setpipe_size(&writer, PIPE_BYTES)
            .or_else(|_| fcntl_getpipe_size(&writer))
            .map_err(failed)?;
        Ok(Self { reader, writer, bytes })
    }

    pub(crate) fn reader(&self) -> &OwnedFd {
        &self.reader
    }

    pub(crate) fn writer(&self) -> &OwnedFd {
        &self.writer
    }

    /// What it holds at most.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Empty pipes.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    kept: Vec<Pipe>,
}

impl Pipes {
    /// An empty pipe.
    pub(crate) fn take(&mut self) -> Result<Pipe> {
        self.kept.pop().map_or_else(Pipe::new, Ok)
    }

    /// Keeps a pipe, which must be empty, for the next.
    pub(crate) fn give_back(&mut self, pipe: Pipe) {
        if self.kept.len() < KEPT_MAX {
            self.kept.push(pipe);
        }
    }
}
