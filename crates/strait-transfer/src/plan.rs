//! Plans of sends, and the mechanism for each part (D5). No I/O, no clock.
//!
//! A [`Plan`] is a list of segments in the order of the stream. [`Plan::runs`] joins and splits
//! them into [`Run`]s. Each run takes one system call or one request, as long as the socket has
//! space. The order is kept, no byte is lost or added, and no run is empty.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use strait_sys::buffer::Frozen;

/// Limit of pieces in one gathering send (`UIO_MAXIOV`, linux/uio.h).
pub const PIECES_MAX: usize = 1024;
/// Limit of buffers in one zero-copy request (`MAX_SKB_FRAGS` in default kernel builds): more go
/// into a second packet anyway.
pub const FRAGMENTS_MAX: usize = 17;
/// Longest piece that is cheaper to copy into one buffer with others than to pass to the kernel on
/// its own.
pub const TINY_BYTES_MAX: usize = 1024;
/// Limit of tiny pieces that are sent in the request of a body without a copy; more are copied into
/// one buffer first. Measured: with up to 8 pieces, one request is a quarter to two fifths faster
/// than two; beyond that each fragment costs more than its copy.
pub const TINY_PIECES_MAX: usize = 8;

/// Length of a stream part that ends with the stream.
pub const TO_THE_END: u64 = u64::MAX;

/// Part of a file.
#[derive(Clone, Debug)]
pub struct FilePart {
    /// File, open for reading.
    pub file: Arc<File>,
    /// Offset in bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Next bytes of a stream.
#[derive(Clone, Debug)]
pub struct StreamPart {
    /// Connected socket, or reading end of a pipe, that does not block.
    pub socket: Arc<OwnedFd>,
    /// Length in bytes, or [`TO_THE_END`].
    pub len: u64,
}

/// Part of a message or stream.
#[derive(Clone, Debug)]
pub enum Segment {
    /// Bytes on the heap, which the kernel always copies.
    Bytes(Arc<[u8]>),
    /// Bytes in a buffer that may be sent by zero-copy.
    Shared(Frozen),
    /// Part of a file.
    File(FilePart),
    /// Next bytes of a stream.
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

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Segments in the order of their bytes in the stream.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    segments: SmallVec<[Segment; 1]>,
}

impl Plan {
    /// Creates an empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a segment; ignores an empty one.
    pub fn push(&mut self, segment: Segment) {
        if !segment.is_empty() {
            self.segments.push(segment);
        }
    }

    /// Returns the plan with a segment appended.
    #[must_use]
    pub fn with(mut self, segment: Segment) -> Self {
        self.push(segment);
        self
    }

    /// Returns the length of all segments; [`TO_THE_END`] if one segment has it.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(Segment::len).fold(0, u64::saturating_add)
    }

    /// Returns true if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Joins and splits the segments into runs.
    pub fn runs(self, policy: &Policy) -> VecDeque<Run> {
        let mut runs = VecDeque::new();
        self.append_runs(policy, &mut runs);
        runs
    }

    /// Returns the segment of a plan with only one.
    pub(crate) fn only(&self) -> Option<&Segment> {
        if let [segment] = &self.segments[..] { Some(segment) } else { None }
    }

    /// Appends its runs to those of earlier plans, without joining them.
    pub(crate) fn append_runs(self, policy: &Policy, runs: &mut VecDeque<Run>) {
        let begin = runs.len();
        let mut planner = Planner { policy, runs, begin };
        self.segments.into_iter().for_each(|segment| planner.add(segment));
    }
}

/// Rule that decides between zero-copy and copy for bytes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Size from which a shared buffer goes by zero-copy; `None` for copies only.
    pub threshold: Option<usize>,
    /// Treatment of small buffers next to a zero-copy one.
    pub mixed: Mixed,
}

impl Policy {
    /// Returns true if a buffer of `bytes` goes by zero-copy.
    pub(crate) fn is_zero_copy(&self, bytes: usize) -> bool {
        self.threshold.is_some_and(|threshold| bytes >= threshold)
    }
}

/// Treatment of small buffers next to a zero-copy one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixed {
    /// Send tiny buffers in the request of the large one; copy many into one buffer first.
    Join,
    /// Send small buffers separately, before the large one (as in D5).
    Split,
}

/// Pieces of a send, usually one.
pub type Pieces = SmallVec<[Piece; 1]>;
/// Views of a request, usually one.
pub type Views = SmallVec<[Frozen; 1]>;

/// Bytes in memory.
#[derive(Clone, Debug)]
pub enum Piece {
    /// On the heap.
    Bytes(Arc<[u8]>),
    /// In a buffer that may be sent by zero-copy.
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

/// Part of a plan that is sent by one mechanism.
#[derive(Clone, Debug)]
pub enum Run {
    /// One copying send of 1 to [`PIECES_MAX`] pieces.
    Copy(Pieces),
    /// One zero-copy request.
    ZeroCopy {
        /// Tiny pieces that are copied into one buffer, which goes first; usually none.
        gathered: Pieces,
        /// Buffers sent from their own memory: at least one; together with the gathered one at most
        /// [`FRAGMENTS_MAX`].
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

    /// Returns true if it has no bytes. Runs of a plan are never empty.
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
    /// Index of the first run of this plan.
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

    /// Returns the last run of this plan.
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

    /// Takes the tiny pieces just before a zero-copy buffer, if they are sent in its request.
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

/// Makes one request of tiny pieces and the buffer after them.
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
