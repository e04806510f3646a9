//! A run under way: what of it has been moved, and one call to move more.
//!
//! Nothing here waits: sockets do not block, and what would block says for what it waits.

mod file;
mod memory;
mod splice;

use std::cell::RefCell;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use rustix::event::PollFlags;

use crate::engine::{Ends, Engine, SharedRoute, Tally};
use crate::error::Result;
use crate::pipe::Pipes;
use crate::plan::{Piece, Run, Segment};
use file::FileRun;
use memory::{CopyRun, ZeroCopyRun};
use splice::SpliceRun;

/// SendOptions far one call came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The run is done.
    Done,
    /// Some of it went, and there may be room for more.
    Moved,
    /// The socket takes no more now.
    NoRoom,
    /// The socket that is read from has no more now.
    NoInput,
}

/// Where the bytes go, and what for.
pub(crate) struct Destination<'a> {
    pub(crate) socket: &'a Arc<OwnedFd>,
    pub(crate) peer: &'a str,
    pub(crate) ends: Ends,
    pub(crate) route: &'a SharedRoute,
    pub(crate) tally: &'a Rc<RefCell<Tally>>,
    /// Whether another run follows at once.
    pub(crate) more: bool,
}

/// A run with what is left of it.
#[derive(Debug)]
pub(crate) enum Current {
    Copy(CopyRun),
    ZeroCopy(ZeroCopyRun),
    File(FileRun),
    Splice(SpliceRun),
}

impl Current {
    /// Begins a run; what of it is to be a run of its own after all is returned.
    pub(crate) fn begin(run: Run, engine: &mut Engine, tally: &RefCell<Tally>) -> (Self, Option<Run>) {
        match run {
            Run::Copy(pieces) => (Self::Copy(CopyRun::new(pieces)), None),
            Run::ZeroCopy { gathered, views } => memory::gather(gathered, views, engine, tally),
            Run::File(part) => (Self::File(FileRun::new(part)), None),
            Run::Socket(part) => (Self::Splice(SpliceRun::new(part)), None),
        }
    }

    /// Sends what the kernel takes at once of a segment in memory. A run of the segment, or of what
    /// is left of it.
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

    /// Whether the next step is to lend.
    pub(crate) fn is_zero_copy(&self) -> bool {
        matches!(self, Self::ZeroCopy(_))
    }

    /// Moves what can be moved by one call.
    pub(crate) fn step(
        &mut self,
        engine: &mut Engine,
        pipes: &mut Pipes,
        to: &Destination<'_>,
    ) -> Result<Step> {
        match self {
            Self::Copy(copying) => copying.step(to),
            Self::ZeroCopy(lending) => {
                if let Some(step) = lending.step(engine, to)? {
                    return Ok(step);
                }
                *self = Self::Copy(lending.copy());
                Ok(Step::Moved)
            }
            Self::File(file) => file.step(to),
            Self::Splice(splice) => splice.step(pipes, to),
        }
    }

    /// The socket that is read from, where that is what is waited for.
    pub(crate) fn input(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match self {
            Self::Splice(splice) => Some((splice.socket().as_fd(), PollFlags::IN)),
            _ => None,
        }
    }
}
