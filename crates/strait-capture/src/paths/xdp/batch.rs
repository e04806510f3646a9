//! Frames lent by an `AF_XDP` socket, with metadata read, times converted and fragments joined.

use strait_filter::xdp::Metadata;
use strait_os::clock;
use strait_sys::xdp::{RxBatch, RxFrame};

use super::join::{Item, Joiner, parse};
use crate::booking::Booking;
use crate::frame::Frame;
use crate::paths::engine::Lent;
use crate::paths::stamp::Clock;

/// Lent frames; dropping them returns their chunks.
pub(crate) struct Batch<'a> {
    pub(super) raw: RxBatch<'a>,
    pub(super) joiner: &'a Joiner,
    pub(super) clock: &'a Clock,
    pub(super) interface: u32,
    /// True if the program provides metadata with each frame.
    pub(super) metadata: bool,
}

impl Lent for Batch<'_> {
    type Frames<'b>
        = Frames<'b>
    where
        Self: 'b;

    fn len(&self) -> usize {
        self.joiner.items().map_or(self.raw.len(), <[Item]>::len)
    }

    fn frames(&mut self) -> Frames<'_> {
        Frames { batch: self, at: 0, now_ns: clock::realtime_ns() }
    }

    #[inline]
    fn count(&mut self, limit: usize, booking: &mut Booking<'_>) -> u64 {
        if self.joiner.items().is_some() {
            // Joined frames have other lengths than their descriptors.
            return booking.count_all(self.frames().take(limit));
        }
        let lengths = self.raw.lengths(limit);
        booking.count_lengths(lengths.len() as u64, lengths, self.raw.frame_bytes_max())
    }

    /// Uses a shorter loop than [`Lent::frames`] for a batch without joined frames, and a still
    /// shorter one for a batch without metadata.
    #[inline]
    fn try_each<E>(
        &mut self,
        limit: usize,
        booking: &mut Booking<'_>,
        take: &mut impl FnMut(&Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.joiner.items().is_some() {
            return self
                .frames()
                .take(limit)
                .try_for_each(|mut frame| booking.count_and_pass(&mut frame, take));
        }
        // Each descriptor is a frame.
        let now_ns = clock::realtime_ns();
        if self.metadata {
            let set_metadata = |frame: &mut Frame<'_>, raw: &RxFrame<'_>| {
                self.set_metadata(frame, parse(raw.metadata), now_ns);
            };
            self.try_whole(limit, now_ns, set_metadata, booking, take)
        } else {
            self.try_whole(limit, now_ns, |_, _| {}, booking, take)
        }
    }
}

impl Batch<'_> {
    #[inline]
    fn try_whole<E>(
        &self,
        limit: usize,
        now_ns: u64,
        set_metadata: impl Fn(&mut Frame<'_>, &RxFrame<'_>),
        booking: &mut Booking<'_>,
        take: &mut impl FnMut(&Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut frame = Frame::received(&[], now_ns, self.interface);
        for raw in self.raw.first(limit) {
            frame.replace(raw.bytes);
            set_metadata(&mut frame, &raw);
            booking.count_and_pass(&mut frame, take)?;
        }
        Ok(())
    }

    /// Copies the program's metadata to the frame. `now_ns` is the timestamp of a frame without
    /// metadata.
    #[inline]
    fn set_metadata(&self, frame: &mut Frame<'_>, metadata: Option<Metadata>, now_ns: u64) {
        let metadata = metadata.unwrap_or_default();
        let stamped = monotonic_ns(&metadata).map(|monotonic_ns| self.clock.realtime_ns(monotonic_ns));
        frame.timestamp_ns = stamped.unwrap_or(now_ns);
        (frame.rx_hash, frame.hardware_ns) = (0, 0);
        if metadata.has(Metadata::RX_HASH) {
            frame.rx_hash = metadata.rx_hash;
        }
        if metadata.has(Metadata::HARDWARE_TIME) {
            frame.hardware_ns = metadata.hardware_ns;
        }
    }
}

/// Iterator over the frames of a [`Batch`].
pub(crate) struct Frames<'a> {
    batch: &'a Batch<'a>,
    at: usize,
    /// Time of frames without metadata.
    now_ns: u64,
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        let batch = self.batch;
        let index = self.at;
        self.at += 1;
        let item = match batch.joiner.items() {
            None => Item::Whole(index),
            Some(items) => *items.get(index)?,
        };
        match item {
            Item::Whole(index) => {
                let whole = batch.raw.get(index)?;
                let metadata = if batch.metadata { parse(whole.metadata) } else { None };
                Some(self.frame(whole.bytes, whole.bytes.len(), metadata))
            }
            Item::Joined(joined) => {
                Some(self.frame(batch.joiner.bytes(&joined), joined.wire_len, joined.metadata))
            }
        }
    }
}

impl<'a> Frames<'a> {
    #[inline]
    fn frame(&self, bytes: &'a [u8], len: usize, metadata: Option<Metadata>) -> Frame<'a> {
        let mut frame = Frame::received(bytes, self.now_ns, self.batch.interface);
        frame.wire_len = len as u32;
        self.batch.set_metadata(&mut frame, metadata, self.now_ns);
        frame
    }
}

/// Returns the program's timestamp, in nanoseconds of `CLOCK_MONOTONIC`.
#[inline]
pub(super) fn monotonic_ns(metadata: &Metadata) -> Option<u64> {
    metadata.has(Metadata::TIME).then_some(metadata.timestamp_ns)
}
