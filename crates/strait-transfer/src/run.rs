//! Runs in progress. Each call moves a part of a run.
//!
//! Nothing here waits: sockets do not block, and a blocked call reports the event to wait for.

mod destination;
mod file;
mod memory;
mod splice;

use std::cell::RefCell;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::event::PollFlags;

use crate::engine::{Engine, Tally};
use crate::error::Result;
use crate::pipe::Pipes;
use crate::plan::{Piece, Run, Segment};
pub(crate) use destination::{Destination, Step};
use file::FileRun;
use memory::{CopyRun, ZeroCopyRun};
use splice::SpliceRun;

/// Run in progress.
#[derive(Debug)]
pub(crate) enum Current {
    Copy(CopyRun),
    ZeroCopy(ZeroCopyRun),
    File(FileRun),
    Splice(SpliceRun),
}

impl Current {
    /// Begins a run. Returns the rest of it that must be a separate run, if any.
    pub(crate) fn begin(run: Run, engine: &mut Engine, tally: &RefCell<Tally>) -> (Self, Option<Run>) {
        match run {
            Run::Copy(pieces) => (Self::Copy(CopyRun::new(pieces)), None),
            Run::ZeroCopy { gathered, views } => memory::gather(gathered, views, engine, tally),
            Run::File(part) => (Self::File(FileRun::new(part)), None),
            Run::Socket(part) => (Self::Splice(SpliceRun::new(part)), None),
        }
    }

    /// Sends a segment without making runs of it first. Returns a run of the rest that the kernel
    /// did not accept.
    pub(crate) fn begin_at_once(
        segment: &Segment,
        engine: &mut Engine,
        to: &Destination<'_>,
    ) -> Result<Option<Self>> {
        match segment {
            Segment::Shared(view) if engine.may_zero_copy(view.len(), to.route) => {
                memory::start_zero_copy(view, engine, to)
            }
            Segment::Shared(view) => memory::start_copy(view, || Piece::Shared(view.clone()), engine, to),
            Segment::Bytes(bytes) => memory::start_copy(bytes, || Piece::Bytes(bytes.clone()), engine, to),
            Segment::File(part) => Ok(Some(Self::File(FileRun::new(part.clone())))),
            Segment::Socket(part) => Ok(Some(Self::Splice(SpliceRun::new(part.clone())))),
        }
    }

    /// Returns true if the next step is a zero-copy send.
    pub(crate) fn is_zero_copy(&self) -> bool {
        matches!(self, Self::ZeroCopy(_))
    }

    /// Moves bytes by one call.
    pub(crate) fn step(
        &mut self,
        engine: &mut Engine,
        pipes: &mut Pipes,
        to: &Destination<'_>,
    ) -> Result<Step> {
        match self {
            Self::Copy(copying) => copying.step(to),
            Self::ZeroCopy(run) => {
                if let Some(step) = run.step(engine, to)? {
                    return Ok(step);
                }
                *self = Self::Copy(run.copy());
                Ok(Step::Moved)
            }
            Self::File(file) => file.step(to),
            Self::Splice(splice) => splice.step(pipes, to),
        }
    }

    /// Returns the source to wait for, if the run reads from one.
    pub(crate) fn input(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match self {
            Self::Splice(splice) => Some((splice.socket().as_fd(), PollFlags::IN)),
            _ => None,
        }
    }
}
