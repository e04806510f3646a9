//! The ring that all four `AF_XDP` rings are: one producer, one consumer, two free-running indices.
//!
//! [`Producer`] is this process's side of the fill and TX rings, [`Consumer`] that of the RX and completion rings;
//! the kernel plays the other side (`net/xdp/xsk_queue.h`). Both keep the other side's index cached and read it anew
//! only when the cache says that there is too little. The memory behind is a [`Region`], so that the same code runs
//! on the kernel's rings, under an oracle and under loom. It never waits and never trusts an index of the other side
//! further than the ring is long.

use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

/// An index that both sides see.
pub(super) trait Index {
    /// Reads it.
    fn load(&self, order: Ordering) -> u32;
    /// Writes it.
    fn store(&self, value: u32, order: Ordering);
}

impl Index for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        AtomicU32::store(self, value, order);
    }
}

/// The shared memory of a ring: indices, flags and a power of two of slots.
///
/// # Safety
/// `slots` never changes and is a power of two; `read` and `write` are in bounds for every index below it.
pub(super) unsafe trait Region {
    /// How an index is stored.
    type Index: Index;
    /// What a slot holds: a descriptor or a chunk's address.
    type Slot: Copy;

    /// How many slots have been produced, modulo 2^32.
    fn producer(&self) -> &Self::Index;
    /// How many slots have been consumed, modulo 2^32.
    fn consumer(&self) -> &Self::Index;
    /// `XDP_RING_NEED_WAKEUP` or nothing.
    fn flags(&self) -> &Self::Index;
    /// Number of slots.
    fn slots(&self) -> u32;

    /// Reads the slot at `index`.
    ///
    /// # Safety
    /// `index` is below `slots`, and the other side does not write this slot now.
    unsafe fn read(&self, index: u32) -> Self::Slot;

    /// Writes the slot at `index`.
    ///
    /// # Safety
    /// `index` is below `slots`, and the other side does not access this slot now.
    unsafe fn write(&self, index: u32, slot: Self::Slot);
}

/// A [`Region`] whose slots lie side by side in memory.
///
/// # Safety
/// `slot` points to slot 0, and the others follow it.
pub(super) unsafe trait Contiguous: Region {
    /// Slot 0.
    fn slot(&self) -> *mut Self::Slot;
}

/// The writing end of a ring.
#[derive(Debug)]
pub(super) struct Producer<R> {
    region: R,
    mask: u32,
    /// Slots written so far, published or not.
    written: u32,
    /// The consumer's index as last seen.
    consumed: u32,
}

impl<R: Region> Producer<R> {
    /// Takes the writing end, at the index that the ring stands at.
    pub(super) fn new(region: R) -> Self {
        debug_assert!(region.slots().is_power_of_two());
        let written = region.producer().load(Ordering::Relaxed);
        let consumed = region.consumer().load(Ordering::Acquire);
        Self { mask: region.slots() - 1, written, consumed, region }
    }

    /// Free slots; it looks at the shared index only where the cached one says fewer than `wanted`.
    #[inline]
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        if self.cached_room() < wanted {
            // Acquire: the consumer's reads of a slot are over before we write it again.
            self.consumed = self.region.consumer().load(Ordering::Acquire);
        }
        self.cached_room()
    }

    /// Writes the next slot; false where the ring is full. The consumer sees it after [`Producer::submit`].
    #[inline]
    pub(super) fn push(&mut self, slot: R::Slot) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        // SAFETY: the mask keeps the index in bounds; the slot is free, so the consumer is done with it.
        unsafe { self.region.write(self.written & self.mask, slot) };
        self.written = self.written.wrapping_add(1);
        true
    }

    /// Publishes what was pushed.
    #[inline]
    pub(super) fn submit(&mut self) {
        // Release: the slots are written before the index says so.
        self.region.producer().store(self.written, Ordering::Release);
    }

    /// Slots that the consumer has not taken yet, pushed ones included.
    pub(super) fn pending(&self) -> u32 {
        let consumed = self.region.consumer().load(Ordering::Relaxed);
        self.written.wrapping_sub(consumed).min(self.region.slots())
    }

    /// Whether the kernel sleeps until it is called (`XDP_RING_NEED_WAKEUP`).
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.region.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// A consumer that claims more than was produced leaves no room: nothing is ever overwritten for it.
    #[inline]
    fn cached_room(&self) -> u32 {
        (self.mask + 1).saturating_sub(self.written.wrapping_sub(self.consumed))
    }
}

impl<R: Contiguous> Producer<R> {
    /// Pushes as many of `slots` as there is room for, and returns how many: a single look at the ring for all of them.
    #[inline]
    pub(super) fn push_all(&mut self, slots: &mut impl ExactSizeIterator<Item = R::Slot>) -> usize {
        let wanted = slots.len().min(self.mask as usize + 1) as u32;
        let room = self.room(wanted).min(wanted);
        let mut left = room;
        while left > 0 {
            let start = self.written & self.mask;
            let count = left.min(self.mask + 1 - start);
            // SAFETY: the run ends before the ring does, and its slots are free, so the consumer is done with them.
            let run =
                unsafe { slice::from_raw_parts_mut(self.region.slot().add(start as usize), count as usize) };
            for (free, slot) in run.iter_mut().zip(&mut *slots) {
                *free = slot;
            }
            self.written = self.written.wrapping_add(count);
            left -= count;
        }
        room as usize
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub(super) struct Consumer<R> {
    region: R,
    mask: u32,
    /// Slots read so far, released or not.
    read: u32,
    /// Slots that the producer may write again.
    released: u32,
    /// The producer's index as last seen.
    produced: u32,
}

impl<R: Region> Consumer<R> {
    /// Takes the reading end, at the index that the ring stands at.
    pub(super) fn new(region: R) -> Self {
        debug_assert!(region.slots().is_power_of_two());
        let read = region.consumer().load(Ordering::Relaxed);
        Self { mask: region.slots() - 1, read, released: read, produced: read, region }
    }

    /// Slots ready to be read; it looks at the shared index only where the cached one says fewer than `wanted`.
    #[inline]
    pub(super) fn ready(&mut self, wanted: u32) -> u32 {
        if self.cached_ready() < wanted {
            // Acquire: what the producer wrote before its index is seen after it.
            self.produced = self.region.producer().load(Ordering::Acquire);
        }
        self.cached_ready()
    }

    /// Reads the next slot, if there is one. The producer may reuse it after [`Consumer::release`].
    #[inline]
    pub(super) fn pop(&mut self) -> Option<R::Slot> {
        if self.ready(1) == 0 {
            return None;
        }
        // SAFETY: the mask keeps the index in bounds; the producer has published the slot and waits for release.
        let slot = unsafe { self.region.read(self.read & self.mask) };
        self.read = self.read.wrapping_add(1);
        Some(slot)
    }

    /// Gives back what was popped or held.
    #[inline]
    pub(super) fn release(&mut self) {
        self.released = self.read;
        // Release: our reads of the slots are over before the producer may write them.
        self.region.consumer().store(self.read, Ordering::Release);
    }

    /// A producer that claims more than the ring holds is believed for one ring's length.
    #[inline]
    fn cached_ready(&self) -> u32 {
        self.produced.wrapping_sub(self.read).min(self.mask + 1)
    }
}

impl<R: Contiguous> Consumer<R> {
    /// Takes slots that are ready, where they lie: `limit` at most, and none beyond the ring's end. They are the
    /// process's to read and write until [`Consumer::release`], which must have been called for those before.
    #[inline]
    pub(super) fn hold(&mut self, limit: u32) -> &mut [R::Slot] {
        debug_assert_eq!(self.read, self.released, "nothing else is held");
        let to_the_end = self.mask + 1 - (self.read & self.mask);
        let count = self.ready(limit).min(limit).min(to_the_end);
        self.read = self.read.wrapping_add(count);
        self.held_mut()
    }

    /// What [`Consumer::hold`] took.
    #[inline]
    pub(super) fn held(&self) -> &[R::Slot] {
        let (first, count) = self.run();
        // SAFETY: as for `held_mut`.
        unsafe { slice::from_raw_parts(first, count) }
    }

    /// The same, to be changed.
    #[inline]
    pub(super) fn held_mut(&mut self) -> &mut [R::Slot] {
        let (first, count) = self.run();
        // SAFETY: `run` lies in the ring; the producer has published these slots and does not touch them until they
        // are released, which takes this borrow's end.
        unsafe { slice::from_raw_parts_mut(first, count) }
    }

    /// The first slot that was taken and not released, and how many there are up to the ring's end.
    #[inline]
    fn run(&self) -> (*mut R::Slot, usize) {
        let start = self.released & self.mask;
        let count = self.read.wrapping_sub(self.released).min(self.mask + 1 - start);
        // SAFETY: the mask keeps the index in bounds.
        (unsafe { self.region.slot().add(start as usize) }, count as usize)
    }
}

#[cfg(test)]
mod tests;
