//! Frames lent by a `PF_ZEROCOPY` socket.

use strait_sys::pf_zerocopy;

use crate::booking::Booking;
use crate::frame::Frame;
use crate::paths::engine::Lent;

/// Lent frames; dropping them returns their slots.
pub(crate) struct Batch<'a> {
    pub(super) raw: pf_zerocopy::Batch<'a>,
    pub(super) interface: u32,
}

impl Lent for Batch<'_> {
    type Frames<'b>
        = Frames<'b>
    where
        Self: 'b;

    #[inline]
    fn len(&self) -> usize {
        self.raw.len()
    }

    #[inline]
    fn frames(&mut self) -> Frames<'_> {
        Frames { batch: self, at: 0 }
    }

    #[inline]
    fn count(&mut self, limit: usize, booking: &mut Booking<'_>) -> u64 {
        let (frames, lengths) = self.raw.lengths(limit);
        booking.count_lengths(frames.into(), lengths, pf_zerocopy::SLOT_BYTES as u32)
    }

    #[inline]
    fn try_each<E>(
        &mut self,
        limit: usize,
        booking: &mut Booking<'_>,
        take: &mut impl FnMut(&Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut frame = Frame::received(&[], 0, self.interface);
        self.raw.try_each(limit, |raw| {
            frame.replace(raw.bytes);
            frame.timestamp_ns = raw.timestamp_ns;
            booking.count_and_pass(&mut frame, take)
        })
    }
}

/// Iterator over the frames of a [`Batch`].
pub(crate) struct Frames<'a> {
    batch: &'a Batch<'a>,
    at: usize,
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        let raw = self.batch.raw.get(self.at)?;
        self.at += 1;
        Some(Frame::received(raw.bytes, raw.timestamp_ns, self.batch.interface))
    }
}
