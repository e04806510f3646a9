//! What a lane lends: a batch of frames, whichever path they came by.
//!
//! Every frame that leaves the iterator is booked as delivered, its bytes cut to the snaplen; what
//! is left in the batch when it drops goes back to the kernel unread.

use std::sync::atomic::{AtomicU64, Ordering};

use strait_ledger::Capture;

use crate::frame::Frame;

use crate::paths::{file, packet, xdp, zerocopy};
use crate::userspace_filter::UserspaceFilter;

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
    ZeroCopy(zerocopy::Batch<'lane>),
    File(file::Batch<'lane>),
}

/// What each frame is booked with.
pub(crate) struct Booking<'lane> {
    pub(crate) account: &'lane mut Capture,
    pub(crate) snaplen: u32,
    pub(crate) queue: u32,
    pub(crate) copies: Copies,
    /// What is not to be lent although it came.
    pub(crate) userspace: Option<&'lane UserspaceFilter>,
    /// Frames that came and are lent to nobody.
    pub(crate) discarded: &'lane AtomicU64,
}

/// What the kernel copies of a frame on its way from the device's memory to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Nothing: the device writes where the program reads.
    Nothing,
    /// What the snaplen leaves of it.
    Captured,
    /// All of it.
    Whole,
}

impl<'lane> Batch<'lane> {
    pub(crate) fn new(source: Source<'lane>, booking: Booking<'lane>) -> Self {
        Self { source, booking }
    }

    /// How many frames it holds at most: the filter may have yet to run.
    pub fn len(&self) -> usize {
        match &self.source {
            Source::Empty => 0,
            Source::Packet(batch) => batch.len(),
            Source::Xdp(batch) => batch.len(),
            Source::ZeroCopy(batch) => batch.len(),
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
            Source::ZeroCopy(batch) => SourceFrames::ZeroCopy(batch.frames()),
            Source::File(batch) => SourceFrames::File(batch.frames()),
        };
        Frames { source, booking: self.booking.reborrow() }
    }

    /// Hands the frames, oldest first and `limit` at most, to `take`, and stops at its first error.
    /// It does what a loop over [`Batch::frames`] does, at half the cost for a short frame: the
    /// path is looked at once a batch.
    pub fn try_each<E>(
        &mut self,
        limit: usize,
        mut take: impl FnMut(&Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut booking = self.booking.reborrow();
        match &mut self.source {
            Source::Empty => Ok(()),
            Source::Packet(batch) => batch.try_each(limit, &mut booking, &mut take),
            Source::Xdp(batch) => batch.try_each(limit, &mut booking, &mut take),
            Source::ZeroCopy(batch) => batch.try_each(limit, &mut booking, &mut take),
            Source::File(batch) => {
                batch.frames().take(limit).try_for_each(|mut frame| booking.hand(&mut frame, &mut take))
            }
        }
    }
}

impl Booking<'_> {
    /// Books a frame as delivered and cuts it to the snaplen; or, where the filter rejects it, as
    /// discarded: then false.
    #[inline]
    fn book(&mut self, frame: &mut Frame<'_>) -> bool {
        let mut kept = self.snaplen as usize;
        if let Some(userspace) = self.userspace {
            if self.copies == Copies::Captured {
                // The kernel has copied all of it for the filter to see.
                self.account.copied_bytes += frame.bytes.len() as u64;
            }
            kept = kept.min(userspace.keeps(frame));
            if kept == 0 {
                self.discarded.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
        frame.bytes = &frame.bytes[..frame.bytes.len().min(kept)];
        frame.queue = self.queue;
        self.account.deliver(frame.bytes.len() as u32, frame.wire_len);
        match self.copies {
            Copies::Nothing => {}
            Copies::Captured if self.userspace.is_some() => {}
            Copies::Captured => self.account.copied_bytes += frame.bytes.len() as u64,
            Copies::Whole => self.account.copied_bytes += u64::from(frame.wire_len),
        }
        true
    }

    /// Books a frame and hands it to `take`.
    // By reference: a copy would wait until the stores of the frame's single fields are done.
    #[inline]
    pub(crate) fn hand<E>(
        &mut self,
        frame: &mut Frame<'_>,
        take: &mut impl FnMut(&Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.book(frame) { take(frame) } else { Ok(()) }
    }

    fn reborrow(&mut self) -> Booking<'_> {
        Booking { account: self.account, ..*self }
    }
}

/// Iterates over the frames of a [`Batch`].
pub struct Frames<'batch> {
    source: SourceFrames<'batch>,
    booking: Booking<'batch>,
}

enum SourceFrames<'batch> {
    Empty,
    Packet(packet::Frames<'batch>),
    Xdp(xdp::Frames<'batch>),
    ZeroCopy(zerocopy::Frames<'batch>),
    File(file::Frames<'batch>),
}

impl<'batch> Iterator for Frames<'batch> {
    type Item = Frame<'batch>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'batch>> {
        loop {
            let mut frame = match &mut self.source {
                SourceFrames::Empty => None,
                SourceFrames::Packet(frames) => frames.next(),
                SourceFrames::Xdp(frames) => frames.next(),
                SourceFrames::ZeroCopy(frames) => frames.next(),
                SourceFrames::File(frames) => frames.next(),
            }?;
            if self.booking.book(&mut frame) {
                return Some(frame);
            }
        }
    }
}
