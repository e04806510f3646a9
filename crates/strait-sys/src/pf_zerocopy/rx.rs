//! Receive ring: frames where the NIC wrote them.

use std::sync::atomic::Ordering;

use super::SLOT_BYTES;
use super::ring::{READABLE, Ring, WRITABLE};

/// Receive ring.
#[derive(Debug)]
pub struct Receiver {
    ring: Ring,
    next: u32,
}

/// Frame in the buffer.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The frame as on the wire, with VLAN tags, without its check sequence.
    pub bytes: &'a [u8],
    /// Time at which the kernel received it, in nanoseconds of `CLOCK_REALTIME`.
    pub timestamp_ns: u64,
}

impl Receiver {
    pub(super) fn new(ring: Ring) -> Self {
        Self { ring, next: 0 }
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u32 {
        self.ring.slots()
    }

    /// Returns true if a slot is readable. Skips slots of damaged frames and returns them to the
    /// NIC.
    #[inline]
    pub fn ready(&mut self) -> bool {
        loop {
            if !self.ring.has_state(self.next, READABLE) {
                return false;
            }
            if self.length(self.next) > 0 {
                return true;
            }
            self.ring.set_state(self.next, WRITABLE);
            self.advance(1);
        }
    }

    /// Borrows readable slots until the batch drops: at most `limit`, and none after a damaged
    /// frame. May be empty; never waits.
    #[inline]
    pub fn take(&mut self, limit: usize) -> Batch<'_> {
        let limit = limit.min(self.ring.slots() as usize) as u32;
        let readable = |&i: &u32| {
            let slot = self.ring.after(self.next, i);
            self.ring.has_state(slot, READABLE) && self.length(slot) > 0
        };
        let count = (0..limit).take_while(readable).count() as u32;
        Batch { first: self.next, count, receiver: self }
    }

    /// Returns the number of readable frames that are not borrowed.
    pub fn waiting(&self) -> u32 {
        let slots = self.ring.slots();
        (0..slots).take_while(|&i| self.ring.has_state(self.ring.after(self.next, i), READABLE)).count()
            as u32
    }

    #[inline]
    fn length(&self, slot: u32) -> usize {
        self.ring.descriptor(slot).length.load(Ordering::Relaxed) as usize
    }

    #[inline]
    fn advance(&mut self, count: u32) {
        self.next = self.ring.after(self.next, count);
        self.ring.publish_position(self.next);
    }
}

/// Borrowed slots; dropping the batch returns them to the NIC.
#[derive(Debug)]
pub struct Batch<'ring> {
    receiver: &'ring mut Receiver,
    first: u32,
    count: u32,
}

impl Batch<'_> {
    /// Returns the number of frames.
    #[inline]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true if no slot was readable.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the frame at `index`, oldest first.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Frame<'_>> {
        if index >= self.len() {
            return None;
        }
        let ring = &self.receiver.ring;
        let slot = ring.after(self.first, index as u32);
        let length = self.receiver.length(slot).min(SLOT_BYTES);
        // SAFETY: this side owns the slot until the batch drops, and `length` bytes lie within it.
        let bytes = unsafe { std::slice::from_raw_parts(ring.received(slot), length) };
        let timestamp_ns = ring.descriptor(slot).timestamp_ns.load(Ordering::Relaxed);
        Some(Frame { bytes, timestamp_ns })
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for i in 0..self.count {
            let slot = self.receiver.ring.after(self.first, i);
            self.receiver.ring.set_state(slot, WRITABLE);
        }
        self.receiver.advance(self.count);
    }
}
