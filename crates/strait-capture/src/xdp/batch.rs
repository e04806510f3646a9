//! Frames lent by an `AF_XDP` socket: metadata read, times mapped, fragments joined.

use strait_filter::xdp::Metadata;
use strait_sys::clock;
use strait_sys::xdp::RxBatch;

use super::join::{Item, Joiner, parse};
use super::stamp::Clock;
use crate::batch::Booking;
use crate::frame::{Direction, Frame, Vlan};

/// Frames on loan; dropping it returns their chunks.
pub(crate) struct Batch<'a> {
    pub(super) raw: RxBatch<'a>,
    pub(super) joiner: &'a Joiner,
    pub(super) clock: &'a Clock,
    pub(super) interface: u32,
    /// Whether the program left something with each frame.
    pub(super) metadata: bool,
}

impl Batch<'_> {
    pub(crate) fn len(&self) -> usize {
        self.joiner.items().map_or(self.raw.len(), <[Item]>::len)
    }

    pub(crate) fn frames(&mut self) -> Frames<'_> {
        Frames { batch: self, at: 0, now_ns: None }
    }

    /// What [`crate::Batch::try_each`] does.
    #[inline]
    pub(crate) fn try_each<E>(
        &mut self,
        limit: usize,
        booking: &mut Booking<'_>,
        take: &mut impl FnMut(&Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.joiner.items().is_some() || self.metadata {
            return self.frames().take(limit).try_for_each(|frame| booking.hand(frame, take));
        }
        // Each descriptor is a frame of which there is nothing to tell but its bytes.
        let now_ns = clock::realtime_ns();
        for raw in self.raw.frames().take(limit) {
            booking.hand(plain(raw.bytes, raw.bytes.len(), now_ns, self.interface), take)?;
        }
        Ok(())
    }
}

/// Iterates over the frames of a [`Batch`].
pub(crate) struct Frames<'a> {
    batch: &'a Batch<'a>,
    at: usize,
    /// The time of frames that have none, read once a batch.
    now_ns: Option<u64>,
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
    fn frame(&mut self, bytes: &'a [u8], len: usize, metadata: Option<Metadata>) -> Frame<'a> {
        let timestamp_ns = match metadata.and_then(|metadata| monotonic_ns(&metadata)) {
            Some(monotonic_ns) => self.batch.clock.realtime_ns(monotonic_ns),
            None => *self.now_ns.get_or_insert_with(clock::realtime_ns),
        };
        let has = |flag| metadata.filter(|metadata| metadata.has(flag));
        Frame {
            rx_hash: has(Metadata::RX_HASH).map_or(0, |metadata| metadata.rx_hash),
            hardware_ns: has(Metadata::HARDWARE_TIME).map_or(0, |metadata| metadata.hardware_ns),
            ..plain(bytes, len, timestamp_ns, self.batch.interface)
        }
    }
}

/// A received frame without hash and device's time.
#[inline]
fn plain(bytes: &[u8], len: usize, timestamp_ns: u64, interface: u32) -> Frame<'_> {
    Frame {
        bytes,
        wire_len: len as u32,
        timestamp_ns,
        interface,
        queue: 0,
        vlan: Vlan::in_frame(bytes),
        direction: Direction::In,
        rx_hash: 0,
        hardware_ns: 0,
    }
}

/// The program's time.
#[inline]
pub(super) fn monotonic_ns(metadata: &Metadata) -> Option<u64> {
    metadata.has(Metadata::TIME).then_some(metadata.timestamp_ns)
}
