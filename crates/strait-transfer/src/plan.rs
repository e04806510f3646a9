//! What is to be sent, and by which mechanism each part of it goes (D5). No I/O, no clock.
//!
//! A [`Plan`] is a list of segments in the order of the stream. [`Plan::runs`] joins and splits
//! them into [`Run`]s, each of which is one system call or one request, as long as the peer takes
//! what it is given. The order is kept, no byte is lost or added, and no run is empty.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use strait_sys::buffer::Frozen;

/// Pieces that one gathering send takes (`UIO_MAXIOV`, linux/uio.h).
pub const PIECES_MAX: usize = 1024;
/// Buffers that one zero-copy request takes (`MAX_SKB_FRAGS` as kernels are built): more go into a
/// second packet anyway.
pub const FRAGMENTS_MAX: usize = 17;
/// Pieces of this size and less are cheaper to copy together than to hand to the kernel one by one.
pub const TINY_BYTES_MAX: usize = 1024;
/// So many tiny pieces ride with a body in its request as they are; more are copied together first.
/// Measured: up to 8 pieces one request is a quarter to two fifths faster than two, and past that
/// every fragment costs more than its copy.
pub const TINY_PIECES_MAX: usize = 8;

/// The length of what a socket or pipe has up to its end.
pub const TO_THE_END: u64 = u64::MAX;

/// A part of a file.
#[derive(Clone, Debug)]
pub struct FilePart {
    /// Open for reading.
    pub file: Arc<File>,
    /// Where it begins.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// The next bytes of a stream.
#[derive(Clone, Debug)]
pub struct StreamPart {
    /// A connected socket or the reading end of a pipe, which does not block.
    pub socket: Arc<OwnedFd>,
    /// Bytes, or [`TO_THE_END`].
    pub len: u64,
}

/// A part of a message or stream.
#[derive(Clone, Debug)]
pub enum Segment {
    /// Bytes on the heap: always copied by the kernel.
    Bytes(Arc<[u8]>),
    /// Bytes that can be views to the kernel.
    Shared(Frozen),
    /// A part of a file.
    File(FilePart),
    /// The next bytes of a stream.
    Socket(StreamPart),
}

impl Segment {
    /// Bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Shared(view) => view.len() as u64,
            Self::File(part) => part.len,
            Self::Socket(part) => part.len,
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Segments in the order in which their bytes are to stand in the stream.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    segments: SmallVec<[Segment; 1]>,
}

impl Plan {
    /// A plan of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a segment at the end. An empty one adds nothing.
    pub fn push(&mut self, segment: Segment) {
        if !segment.is_empty() {
            self.segments.push(segment);
        }
    }

    /// The same with a segment more.
    #[must_use]
    pub fn with(mut self, segment: Segment) -> Self {
        self.push(segment);
        self
    }

    /// Bytes of all segments; [`TO_THE_END`] if one of them is that.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(Segment::len).fold(0, u64::saturating_add)
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Joins and splits the segments into runs.
    pub fn runs(self, policy: &Policy) -> VecDeque<Run> {
        let mut runs = VecDeque::new();
        self.append_runs(policy, &mut runs);
        runs
    }

    /// The segment that it is, where it is one.
    pub(crate) fn only(&self) -> Option<&Segment> {
        if let [segment] = &self.segments[..] { Some(segment) } else { None }
    }

    /// Appends its runs to those of earlier plans, which they are not joined with.
    pub(crate) fn append_runs(self, policy: &Policy, runs: &mut VecDeque<Run>) {
        let begin = runs.len();
        let mut planner = Planner { policy, runs, begin };
        self.segments.into_iter().for_each(|segment| planner.add(segment));
    }
}

/// By what rule bytes in memory are views or copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A shared buffer of so many bytes or more is views; `None`: none is.
    pub threshold: Option<usize>,
    /// What becomes of small buffers beside a views one.
    pub mixed: Mixed,
}

impl Policy {
    /// Whether a buffer of so many bytes is to be views.
    pub(crate) fn is_zero_copy(&self, bytes: usize) -> bool {
        self.threshold.is_some_and(|threshold| bytes >= threshold)
    }
}

/// What becomes of small buffers beside a large one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixed {
    /// Tiny ones ride with the large one in its request, copied together first if they are many.
    Join,
    /// A send of their own, before it (D5's answer).
    Split,
}

/// Pieces of a send; most have one.
pub type Pieces = SmallVec<[Piece; 1]>;
/// Views of a request; most have one.
pub type Views = SmallVec<[Frozen; 1]>;

/// Bytes in memory.
#[derive(Clone, Debug)]
pub enum Piece {
    /// On the heap.
    Bytes(Arc<[u8]>),
    /// In a buffer that can be views.
    Shared(Frozen),
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Shared(view) => view,
        }
    }
}

/// A part of a plan that goes by one mechanism.
#[derive(Clone, Debug)]
pub enum Run {
    /// One send that copies: of 1 to [`PIECES_MAX`] pieces.
    Copy(Pieces),
    /// One zero-copy request.
    ZeroCopy {
        /// Tiny pieces to be copied together into one buffer that goes first; often none.
        gathered: Pieces,
        /// The buffers that are views: at least one, at most [`FRAGMENTS_MAX`] together with the
        /// gathered one.
        views: Views,
    },
    /// sendfile(2).
    File(FilePart),
    /// splice(2) through a pipe.
    Socket(StreamPart),
}

impl Run {
    /// Bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Copy(pieces) => bytes(pieces),
            Self::ZeroCopy { gathered, views } => {
                bytes(gathered) + views.iter().map(|view| view.len() as u64).sum::<u64>()
            }
            Self::File(part) => part.len,
            Self::Socket(part) => part.len,
        }
    }

    /// Whether there is nothing in it; no run of a plan is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

struct Planner<'a> {
    policy: &'a Policy,
    runs: &'a mut VecDeque<Run>,
    /// The first run of this plan.
    begin: usize,
}

impl Planner<'_> {
    fn add(&mut self, segment: Segment) {
        match segment {
            Segment::File(part) => self.runs.push_back(Run::File(part)),
            Segment::Socket(part) => self.runs.push_back(Run::Socket(part)),
            Segment::Bytes(bytes) => self.copy(Piece::Bytes(bytes)),
            Segment::Shared(view) if self.policy.is_zero_copy(view.len()) => self.zero_copy(view),
            Segment::Shared(view) => self.copy(Piece::Shared(view)),
        }
    }

    /// The last run of this plan.
    fn last(&mut self) -> Option<&mut Run> {
        if self.runs.len() > self.begin { self.runs.back_mut() } else { None }
    }

    fn copy(&mut self, piece: Piece) {
        match self.last() {
            Some(Run::Copy(pieces)) if pieces.len() < PIECES_MAX => pieces.push(piece),
            _ => self.runs.push_back(Run::Copy(smallvec![piece])),
        }
    }

    fn zero_copy(&mut self, view: Frozen) {
        if let Some(Run::ZeroCopy { gathered, views }) = self.last()
            && views.len() + usize::from(!gathered.is_empty()) < FRAGMENTS_MAX
        {
            views.push(view);
            return;
        }
        let run = match self.ride() {
            Some(pieces) => with_pieces(pieces, view),
            None => Run::ZeroCopy { gathered: Pieces::new(), views: smallvec![view] },
        };
        self.runs.push_back(run);
    }

    /// The tiny pieces just before a buffer that is views, if they are to go with it.
    fn ride(&mut self) -> Option<Pieces> {
        let joins = self.policy.mixed == Mixed::Join;
        let rides = |pieces: &[Piece]| pieces.iter().all(|piece| piece.len() <= TINY_BYTES_MAX);
        match self.last() {
            Some(Run::Copy(pieces)) if joins && rides(pieces) => {
                let pieces = std::mem::take(pieces);
                self.runs.pop_back();
                Some(pieces)
            }
            _ => None,
        }
    }
}

/// One request of tiny pieces and the buffer behind them.
fn with_pieces(pieces: Pieces, view: Frozen) -> Run {
    let as_they_are =
        pieces.len() <= TINY_PIECES_MAX && pieces.iter().all(|piece| matches!(piece, Piece::Shared(_)));
    if !as_they_are {
        return Run::ZeroCopy { gathered: pieces, views: smallvec![view] };
    }
    let views = pieces.into_iter().filter_map(|piece| match piece {
        Piece::Shared(view) => Some(view),
        Piece::Bytes(_) => None,
    });
    Run::ZeroCopy { gathered: Pieces::new(), views: views.chain([view]).collect() }
}

#[cfg(test)]
mod tests;
