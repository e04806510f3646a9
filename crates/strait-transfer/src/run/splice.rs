//! Moves received bytes from one socket to another through a pipe (splice(2)): they stay in the
//! kernel's pages.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::destination::{Destination, Step};
use crate::error::{Error, Result};
use crate::pipe::{Pipe, Pipes};
use crate::plan::{StreamPart, TO_THE_END};

#[derive(Debug)]
pub(crate) struct SpliceRun {
    /// Part that remains to be read.
    part: StreamPart,
    pipe: Option<Pipe>,
}

impl SpliceRun {
    pub(super) fn new(part: StreamPart) -> Self {
        Self { part, pipe: None }
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.part.socket
    }

    pub(super) fn step(&mut self, pipes: &mut Pipes, to: &Destination<'_>) -> Result<Step> {
        let pipe = match self.pipe.take() {
            Some(pipe) => pipe,
            None => pipes.take()?,
        };
        let pipe = self.pipe.insert(pipe);
        if pipe.held() == 0 {
            match pipe.fill(&*self.part.socket, self.part.len) {
                Ok(0) if self.part.len == TO_THE_END => return Ok(self.end(pipes)),
                Ok(0) => return Err(Error::Truncated { what: "the connection", missing: self.part.len }),
                Ok(read) => self.part.len -= if self.part.len == TO_THE_END { 0 } else { read as u64 },
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Step::NoInput),
                Err(error) => return Err(Error::os("splice from", "a connection", error)),
            }
        }
        match pipe.empty(to.socket, None) {
            Ok(moved) => to.tally.borrow_mut().account.spliced += moved as u64,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Step::NoRoom),
            Err(error) => return Err(Error::os("splice to", to.peer, error)),
        }
        Ok(if self.part.len > 0 || pipe.held() > 0 { Step::Moved } else { self.end(pipes) })
    }

    fn end(&mut self, pipes: &mut Pipes) -> Step {
        if let Some(pipe) = self.pipe.take() {
            pipes.give_back(pipe);
        }
        Step::Done
    }
}
