//! What a lane lends: a batch of frames, whichever path they came by.
//!
//! Every frame that leaves the iterator is booked as delivered, its bytes cut to the snaplen; what is left in the
//! batch when it drops goes back to the kernel unread.

use strait_ledger::Capture;

use crate::frame::Frame;
use crate::offline;
use crate::{packet, xdp};

/// Frames on loan from a ring. Dropping it gives them back.
pub struct Batch<'lane> {
    source: Source<'lane>,
    booking: Booking<'lane>,
}

pub(crate) enum Source<'lane> {
    /// The deadline passed, or a signal came.
    Empty,
    Packet(packet::Batch<'lane>),
    Xdp(xdp::Batch<'lane>),
    File(offline::Batch<'lane>),
}

/// What each frame is booked with.
pub(crate) struct Booking<'lane> {
    pub(crate) account: &'lane mut Capture,
    pub(crate) snaplen: u32,
    pub(crate) queue: u32,
}

impl<'lane> Batch<'lane> {
    pub(crate) fn new(source: Source<'lane>, booking: Booking<'lane>) -> Self {
        Self { source, booking }
    }

    /// How many frames it holds at most; for a file the filter has yet to run.
    pub fn len(&self) -> usize {
        match &self.source {
            Source::Empty => 0,
            Source::Packet(batch) => batch.len(),
            Source::Xdp(batch) => batch.len(),
            Source::File(batch) => batch.len(),
        }
    }

    /// Whether the lane had nothing to lend before the deadline.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The frames, oldest first.
    pub fn frames(&mut self) -> Frames<'_> {
        let source = match &mut self.source {
            Source::Empty => SourceFrames::Empty,
            Source::Packet(batch) => SourceFrames::Packet(batch.frames()),
            Source::Xdp(batch) => SourceFrames::Xdp(batch.frames()),
            Source::File(batch) => SourceFrames::File(batch.frames()),
        };
        let Booking { account, snaplen, queue } = &mut self.booking;
        Frames { source, account, snaplen: *snaplen as usize, queue: *queue }
    }
}

/// Iterates over the frames of a [`Batch`].
pub struct Frames<'batch> {
    source: SourceFrames<'batch>,
    account: &'batch mut Capture,
    snaplen: usize,
    queue: u32,
}

enum SourceFrames<'batch> {
    Empty,
    Packet(packet::Frames<'batch>),
    Xdp(xdp::Frames<'batch>),
    File(offline::Frames<'batch>),
}

impl<'batch> Iterator for Frames<'batch> {
    type Item = Frame<'batch>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'batch>> {
        let mut frame = match &mut self.source {
            SourceFrames::Empty => None,
            SourceFrames::Packet(frames) => frames.next(),
            SourceFrames::Xdp(frames) => frames.next(),
            SourceFrames::File(frames) => frames.next(),
        }?;
        frame.bytes = &frame.bytes[..frame.bytes.len().min(self.snaplen)];
        frame.queue = self.queue;
        self.account.deliver(frame.bytes.len() as u32, frame.wire_len);
        Some(frame)
    }
}
