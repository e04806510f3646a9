//! Producer and consumer of an `AF_XDP` ring. All four rings have one producer, one consumer and
//! two free-running indices.
//!
//! [`Producer`] is this process's side of the fill and TX rings, [`Consumer`] that of the RX and
//! completion rings; the kernel is the other side (`net/xdp/xsk_queue.h`). Both cache the other
//! side's index and reload it only when the cached one shows too few slots. The memory is a
//! [`Region`], so that the same code runs on the kernel's rings, against an oracle and under loom.
//! The ring never waits, and never trusts an index of the other side for more than the ring's
//! length.
//!
//! **Memory order.** The producer writes slots, then stores its index with release. The consumer
//! loads that index with acquire, reads the slots, then stores its own index with release, which
//! the producer loads with acquire before it writes the slots again. Each side loads its own index,
//! which no other side stores, relaxed.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::index::Index;

/// Shared memory of a ring: indices, flags and a power of two of slots.
///
/// # Safety
/// `slots` never changes and is a power of two; `read` and `write` are in bounds for every index
/// below it.
pub(super) unsafe trait Region {
    /// Storage of an index.
    type Index: Index;
    /// Content of a slot: a descriptor or a chunk's address.
    type Slot: Copy;

    /// Returns the number of produced slots, modulo 2^32.
    fn producer(&self) -> &Self::Index;
    /// Returns the number of consumed slots, modulo 2^32.
    fn consumer(&self) -> &Self::Index;
    /// Returns `XDP_RING_NEED_WAKEUP` or 0.
    fn flags(&self) -> &Self::Index;
    /// Returns the number of slots.
    fn slots(&self) -> u32;

    /// Reads the slot at `index`.
    ///
    /// # Safety
    /// `index` is below `slots`, and the other side does not write this slot meanwhile.
    unsafe fn read(&self, index: u32) -> Self::Slot;

    /// Writes the slot at `index`.
    ///
    /// # Safety
    /// `index` is below `slots`, and the other side does not access this slot meanwhile.
    unsafe fn write(&self, index: u32, slot: Self::Slot);
}

/// [`Region`] with slots in consecutive memory.
///
/// # Safety
/// `slot` points to slot 0, and the others follow it.
pub(super) unsafe trait Contiguous: Region {
    /// Returns the address of slot 0.
    fn slot(&self) -> *mut Self::Slot;
}

// SAFETY: the memory is that of the shared region.
unsafe impl<R: Region> Region for Arc<R> {
    type Index = R::Index;
    type Slot = R::Slot;

    #[inline]
    fn producer(&self) -> &R::Index {
        R::producer(self)
    }

    #[inline]
    fn consumer(&self) -> &R::Index {
        R::consumer(self)
    }

    #[inline]
    fn flags(&self) -> &R::Index {
        R::flags(self)
    }

    fn slots(&self) -> u32 {
        R::slots(self)
    }

    #[inline]
    unsafe fn read(&self, index: u32) -> R::Slot {
        // SAFETY: the caller's guarantees are the same.
        unsafe { R::read(self, index) }
    }

    #[inline]
    unsafe fn write(&self, index: u32, slot: R::Slot) {
        // SAFETY: the caller's guarantees are the same.
        unsafe { R::write(self, index, slot) }
    }
}

// SAFETY: the memory is that of the shared region.
unsafe impl<R: Contiguous> Contiguous for Arc<R> {
    #[inline]
    fn slot(&self) -> *mut R::Slot {
        R::slot(self)
    }
}

/// Writing end of a ring.
#[derive(Debug)]
pub(super) struct Producer<R> {
    region: R,
    mask: u32,
    /// Number of slots written so far, published or not.
    written: u32,
    /// The consumer's index when last loaded.
    consumed: u32,
}

impl<R: Region> Producer<R> {
    /// Returns the writing end, starting at the ring's current index.
    pub(super) fn new(region: R) -> Self {
        debug_assert!(region.slots().is_power_of_two());
        let written = region.producer().load(Ordering::Relaxed);
        let consumed = region.consumer().load(Ordering::Acquire);
        Self { mask: region.slots() - 1, written, consumed, region }
    }

    /// Returns the free slots. Loads the shared index only if the cached one shows fewer than
    /// `wanted`.
    #[inline]
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        if self.cached_room() < wanted {
            // Acquire: the consumer's reads of a slot are complete before it is written again.
            self.consumed = self.region.consumer().load(Ordering::Acquire);
        }
        self.cached_room()
    }

    /// Writes the next slot; returns false if the ring is full. The consumer sees it after
    /// [`Producer::submit`].
    #[inline]
    pub(super) fn push(&mut self, slot: R::Slot) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        // SAFETY: the mask keeps the index in bounds; the slot is free, so the consumer no longer
        // reads it.
        unsafe { self.region.write(self.written & self.mask, slot) };
        self.written = self.written.wrapping_add(1);
        true
    }

    /// Publishes the pushed slots.
    #[inline]
    pub(super) fn submit(&mut self) {
        // Release: the slots are written before the index.
        self.region.producer().store(self.written, Ordering::Release);
    }

    /// Returns the number of slots that the consumer has not taken yet, unpublished ones included.
    pub(super) fn pending(&self) -> u32 {
        // Relaxed: the result is a count, and no slot is accessed because of it.
        let consumed = self.region.consumer().load(Ordering::Relaxed);
        self.written.wrapping_sub(consumed).min(self.region.slots())
    }

    /// Returns true if the kernel sleeps until a wakeup call (`XDP_RING_NEED_WAKEUP`).
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        // Relaxed: the flag orders no other access. A caller that misses a change sees it in its
        // next call; poll(2) wakes the driver too.
        self.region.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Returns the free slots by the cached index. A consumer that claims more than was produced
    /// leaves no room, so nothing is overwritten.
    #[inline]
    fn cached_room(&self) -> u32 {
        (self.mask + 1).saturating_sub(self.written.wrapping_sub(self.consumed))
    }
}

impl<R: Contiguous> Producer<R> {
    /// Returns the next free slots in place, at most `limit` and none beyond the ring's end. The
    /// consumer sees them after [`Producer::count_written`] and [`Producer::submit`]. Loads the
    /// shared index once at most.
    #[inline]
    pub(super) fn free_slots(&mut self, limit: u32) -> &mut [R::Slot] {
        let start = self.written & self.mask;
        let count = self.room(limit).min(limit).min(self.mask + 1 - start);
        // SAFETY: the run ends before the ring does, and its slots are free, so the consumer no
        // longer reads them.
        unsafe { slice::from_raw_parts_mut(self.region.slot().add(start as usize), count as usize) }
    }

    /// Counts the first `count` of [`Producer::free_slots`] as written.
    #[inline]
    pub(super) fn count_written(&mut self, count: u32) {
        debug_assert!(count <= self.cached_room(), "the slots were free");
        self.written = self.written.wrapping_add(count);
    }
}

/// Reading end of a ring.
#[derive(Debug)]
pub(super) struct Consumer<R> {
    region: R,
    mask: u32,
    /// Number of slots read so far, released or not.
    read: u32,
    /// Number of slots that the producer may write again.
    released: u32,
    /// The producer's index when last loaded.
    produced: u32,
}

impl<R: Region> Consumer<R> {
    /// Returns the reading end, starting at the ring's current index.
    pub(super) fn new(region: R) -> Self {
        debug_assert!(region.slots().is_power_of_two());
        let read = region.consumer().load(Ordering::Relaxed);
        Self { mask: region.slots() - 1, read, released: read, produced: read, region }
    }

    /// Returns the slots ready for reading. Loads the shared index only if the cached one shows
    /// fewer than `wanted`.
    #[inline]
    pub(super) fn ready(&mut self, wanted: u32) -> u32 {
        if self.cached_ready() < wanted {
            // Acquire: slots that the producer wrote before its index are visible after the load.
            self.produced = self.region.producer().load(Ordering::Acquire);
        }
        self.cached_ready()
    }

    /// Reads the next slot, if one is ready. The producer may reuse it after [`Consumer::release`].
    #[inline]
    pub(super) fn pop(&mut self) -> Option<R::Slot> {
        if self.ready(1) == 0 {
            return None;
        }
        // SAFETY: the mask keeps the index in bounds; the producer has published the slot and does
        // not write it before its release.
        let slot = unsafe { self.region.read(self.read & self.mask) };
        self.read = self.read.wrapping_add(1);
        Some(slot)
    }

    /// Reads the ready slot at `offset` without taking it.
    pub(super) fn peek(&mut self, offset: u32) -> Option<R::Slot> {
        if offset >= self.ready(offset.saturating_add(1)) {
            return None;
        }
        // SAFETY: as for `pop`: the slot is ready.
        Some(unsafe { self.region.read(self.read.wrapping_add(offset) & self.mask) })
    }

    /// Returns the ring's memory.
    pub(super) fn region(&self) -> &R {
        &self.region
    }

    /// Returns the popped or held slots to the producer.
    #[inline]
    pub(super) fn release(&mut self) {
        self.released = self.read;
        // Release: this side's reads of the slots are complete before the producer may write them.
        self.region.consumer().store(self.read, Ordering::Release);
    }

    /// Returns the ready slots by the cached index. A producer that claims more than the ring holds
    /// is limited to the ring's length.
    #[inline]
    fn cached_ready(&self) -> u32 {
        self.produced.wrapping_sub(self.read).min(self.mask + 1)
    }
}

impl<R: Contiguous> Consumer<R> {
    /// Takes ready slots in place: at most `limit`, and none beyond the ring's end. This process
    /// may read and write them until [`Consumer::release`], which must have been called for earlier
    /// ones.
    #[inline]
    pub(super) fn hold(&mut self, limit: u32) -> &mut [R::Slot] {
        debug_assert_eq!(self.read, self.released, "nothing else is held");
        let to_the_end = self.mask + 1 - (self.read & self.mask);
        let count = self.ready(limit).min(limit).min(to_the_end);
        self.read = self.read.wrapping_add(count);
        self.held_mut()
    }

    /// Returns the slots that [`Consumer::hold`] took.
    #[inline]
    pub(super) fn held(&self) -> &[R::Slot] {
        let (first, count) = self.run();
        // SAFETY: as for `held_mut`.
        unsafe { slice::from_raw_parts(first, count) }
    }

    /// Returns the slots that [`Consumer::hold`] took, for changes.
    #[inline]
    pub(super) fn held_mut(&mut self) -> &mut [R::Slot] {
        let (first, count) = self.run();
        // SAFETY: `run` lies in the ring. The producer has published these slots and does not touch
        // them before their release, which requires the end of this borrow.
        unsafe { slice::from_raw_parts_mut(first, count) }
    }

    /// Returns the address of the first held slot, and the number of held slots up to the ring's
    /// end.
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
