//! Batch of frames lent by a lane, on every path.
//!
//! Each frame that the iterator returns is cut to the snaplen and counted as delivered. Frames that
//! are left in the batch when it drops return to the kernel unread; those of a file are lent again.

use crate::booking::Booking;
use crate::frame::Frame;
use crate::paths::{AnyBatch, AnyFrames};

/// Frames lent from a ring. Dropping the batch returns them.
pub struct Batch<'lane> {
    lent: AnyBatch<'lane>,
    booking: Booking<'lane>,
}

impl<'lane> Batch<'lane> {
    pub(crate) fn new(lent: AnyBatch<'lane>, booking: Booking<'lane>) -> Self {
        Self { lent, booking }
    }

    /// Returns the maximum number of frames that it can deliver: the userspace filter may reject
    /// some.
    pub fn len(&self) -> usize {
        self.lent.len()
    }

    /// Returns true if the lane had no frame before the deadline.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the frames, oldest first.
    pub fn frames(&mut self) -> Frames<'_> {
        Frames { lent: self.lent.frames(), booking: self.booking.reborrow() }
    }

    /// Passes the frames, oldest first and at most `limit`, to `take`, and stops at its first
    /// error. For short frames it costs half of a loop over [`Batch::frames`], because it selects
    /// the path once per batch instead of once per frame.
    pub fn try_each<E>(
        &mut self,
        limit: usize,
        mut take: impl FnMut(&Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.lent.try_each(limit, &mut self.booking.reborrow(), &mut take)
    }

    /// Counts frames as delivered, at most `limit`, which must not be 0, and returns their number.
    /// For a consumer that only counts it costs a fraction of [`Batch::try_each`]: paths without a
    /// copy do not read the frames, unless a userspace filter does.
    pub fn count(&mut self, limit: u64) -> u64 {
        if self.booking.userspace.is_none() {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            return self.lent.count(limit, &mut self.booking);
        }
        let mut counted = 0;
        // The limit is one of delivered frames, so that the loop itself cannot apply it.
        let _ = self.try_each(usize::MAX, |_| {
            counted += 1;
            if counted == limit { Err(()) } else { Ok(()) }
        });
        counted
    }
}

/// Iterator over the frames of a [`Batch`].
pub struct Frames<'batch> {
    lent: AnyFrames<'batch>,
    booking: Booking<'batch>,
}

impl<'batch> Iterator for Frames<'batch> {
    type Item = Frame<'batch>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'batch>> {
        loop {
            let mut frame = self.lent.next()?;
            if self.booking.count(&mut frame) {
                return Some(frame);
            }
        }
    }
}
