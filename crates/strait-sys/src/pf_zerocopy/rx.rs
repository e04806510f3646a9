//! Receive ring: frames where the NIC wrote them.

use std::sync::atomic::Ordering;

use super::SLOT_BYTES;
use super::ring::{Descriptor, ReceivedSlots, Ring, Shared as _, WRITABLE};

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

    /// Returns true if a slot is readable.
    #[inline]
    pub fn ready(&self) -> bool {
        self.waiting() > 0
    }

    /// Borrows readable slots until the batch drops, at most `limit`. May be empty; never waits.
    #[inline]
    pub fn take(&mut self, limit: usize) -> Batch<'_> {
        let count = self.waiting().min(u32::try_from(limit).unwrap_or(u32::MAX));
        Batch { count, receiver: self }
    }

    /// Returns the number of readable frames that are not borrowed.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.ring.readable(self.next)
    }
}

/// Borrowed slots; dropping the batch returns them to the NIC.
#[derive(Debug)]
pub struct Batch<'ring> {
    receiver: &'ring mut Receiver,
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
        Some(frame(ring.received(), ring.descriptor(ring.after(self.receiver.next, index as u32))))
    }

    /// Returns the number of the first frames, `limit` at most, and their lengths, without reading
    /// them.
    #[inline]
    pub fn lengths(&self, limit: usize) -> (u32, impl Iterator<Item = u32> + Clone) {
        let count = self.first(limit);
        let [before_end, after] = self.receiver.ring.descriptors(self.receiver.next, count);
        (count, before_end.iter().chain(after).map(length))
    }

    /// Returns the number of frames, `limit` at most.
    fn first(&self, limit: usize) -> u32 {
        self.count.min(u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// Calls `take` for the first `limit` frames, oldest first, until it returns an error.
    #[inline]
    pub fn try_each<'a, E>(
        &'a self,
        limit: usize,
        mut take: impl FnMut(Frame<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        let count = self.first(limit);
        let slots = self.receiver.ring.received();
        for descriptors in self.receiver.ring.descriptors(self.receiver.next, count) {
            for descriptor in descriptors {
                take(frame(slots, descriptor))?;
            }
        }
        Ok(())
    }
}

/// Returns the length of the frame of a borrowed descriptor, which lies within its slot.
#[inline]
fn length(descriptor: &Descriptor) -> u32 {
    descriptor.length.load(Ordering::Relaxed).min(SLOT_BYTES as u32)
}

/// Returns the frame of a borrowed descriptor.
#[inline]
fn frame<'a>(slots: ReceivedSlots<'a>, descriptor: &'a Descriptor) -> Frame<'a> {
    // SAFETY: this side owns the slot until the batch drops, and `length` bytes lie within it.
    let bytes = unsafe { std::slice::from_raw_parts(slots.of(descriptor), length(descriptor) as usize) };
    Frame { bytes, timestamp_ns: descriptor.timestamp_ns.load(Ordering::Relaxed) }
}

impl Drop for Batch<'_> {
    #[inline]
    fn drop(&mut self) {
        let Receiver { ring, next } = self.receiver;
        for descriptors in ring.descriptors(*next, self.count) {
            for descriptor in descriptors {
                // Release: the frame is read before the NIC may write the slot.
                descriptor.state.store(WRITABLE, Ordering::Release);
            }
        }
        *next = ring.after(*next, self.count);
        ring.publish_position(*next);
    }
}
