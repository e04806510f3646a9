//! Ring common to both directions: slots in memory of this process, and descriptors shared with the
//! kernel.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::SLOT_BYTES;
use crate::index::Index;
use crate::mmap::Mapping;

/// `ZEROCOPY_WRITABLE`
pub(super) const WRITABLE: u32 = 1;
/// `ZEROCOPY_READABLE`
pub(super) const READABLE: u32 = 2;

/// `struct zerocopy_desc`. Only the owner of the slot writes the other fields. All are atomic, as
/// both sides access them. That a readable slot is this side's until it is returned rests on the
/// kernel.
#[repr(C)]
pub(super) struct Descriptor {
    pub(super) addr: AtomicU64,
    pub(super) timestamp_ns: AtomicU64,
    pub(super) length: AtomicU32,
    pub(super) state: AtomicU32,
    reserved: AtomicU64,
}

/// Head of `struct zerocopy_ring`: the position of this process and that of the kernel, each in its
/// own cache line.
const READ_OFFSET: usize = 0;
const WRITE_OFFSET: usize = 64;
pub(super) const DESCRIPTORS_OFFSET: usize = 128;

/// Words of a ring that both sides access, and their order. The mapped ring has them, and a model
/// of it under loom.
pub(super) trait Shared {
    /// Storage of a word.
    type Word: Index;

    /// Returns the number of slots, a power of two, less one.
    fn mask(&self) -> u32;
    /// Returns the state of the slot at `index` modulo the number of slots.
    fn state(&self, index: u32) -> &Self::Word;
    /// Returns the index that this process reads next: poll(2) checks states from that slot on.
    fn position(&self) -> &Self::Word;
    /// Returns the index that the kernel fills next.
    fn kernel_position(&self) -> &Self::Word;

    /// Returns the number of slots.
    #[inline]
    fn slots(&self) -> u32 {
        self.mask() + 1
    }

    /// Returns the index of the slot `count` slots after `slot`, around the ring.
    #[inline]
    fn after(&self, slot: u32, count: u32) -> u32 {
        slot.wrapping_add(count) & self.mask()
    }

    /// Returns true if the slot's state is `state`, which names its owner.
    #[inline]
    fn has_state(&self, slot: u32, state: u32) -> bool {
        // Acquire pairs with the kernel's release: its earlier writes to the slot are visible.
        self.state(slot).load(Ordering::Acquire) == state
    }

    /// Hands the slot over to the owner that `state` names.
    #[inline]
    fn set_state(&self, slot: u32, state: u32) {
        // Release: this side's accesses to the slot are complete before the other side sees the
        // state.
        self.state(slot).store(state, Ordering::Release);
    }

    /// Publishes the slot that this side reads next.
    #[inline]
    fn publish_position(&self, slot: u32) {
        self.position().store(slot, Ordering::Release);
    }

    /// Returns the index that the kernel fills next: the descriptors of this process end before it.
    #[inline]
    fn written(&self) -> u32 {
        // Acquire pairs with the kernel's release: its writes to the slots before it are visible.
        self.kernel_position().load(Ordering::Acquire) & self.mask()
    }

    /// Stores the index that the kernel fills next, as the kernel does.
    #[cfg(test)]
    fn publish_written(&self, slot: u32) {
        self.kernel_position().store(slot, Ordering::Release);
    }

    /// Returns the number of readable slots from `next` on, which this side reads next.
    #[inline]
    fn readable(&self, next: u32) -> u32 {
        let count = || self.after(self.written(), 0_u32.wrapping_sub(next));
        match count() {
            // Both indices are equal in an empty ring and in a full one. The first descriptor does
            // not tell: the kernel makes descriptors readable before it publishes its index. The
            // last one does: the NIC never has all slots at once, so that the kernel has published
            // others before it. So its index is loaded again. If it has moved, it is not yet that
            // of the last descriptor, and this side must not pass it: it would take old frames for
            // new ones.
            0 if self.has_state(self.after(next, self.mask()), READABLE) => match count() {
                0 => self.slots(),
                published => published,
            },
            count => count,
        }
    }
}

/// Ring of `slots` slots, a power of two.
#[derive(Debug)]
pub(super) struct Ring {
    // The two may drop in any order: the mapping of the descriptors keeps the socket open, and the
    // socket pins the buffer's pages.
    shared: Mapping,
    buffer: Mapping,
    mask: u32,
}

impl Ring {
    /// Makes a ring of the mapped descriptors and their buffer.
    pub(super) fn new(shared: Mapping, buffer: Mapping, slots: u32) -> Self {
        assert!(slots.is_power_of_two(), "{slots} slots");
        assert!(shared.len() >= Self::shared_bytes(slots) && buffer.len() >= slots as usize * SLOT_BYTES);
        Self { shared, buffer, mask: slots - 1 }
    }

    /// Returns the bytes of the descriptors of `slots` slots.
    pub(super) fn shared_bytes(slots: u32) -> usize {
        DESCRIPTORS_OFFSET + slots as usize * size_of::<Descriptor>()
    }

    #[inline]
    pub(super) fn descriptor(&self, slot: u32) -> &Descriptor {
        let index = (slot & self.mask) as usize;
        // SAFETY: the index is below the number of slots, so the descriptor lies in the mapping,
        // which is page-aligned and lives as long as `self`. Its fields are atomic, because the
        // kernel writes them.
        unsafe { &*self.shared.as_ptr().add(DESCRIPTORS_OFFSET).cast::<Descriptor>().add(index) }
    }

    /// Returns `count` descriptors from `first` on, at most all: up to the end of the ring, and the
    /// rest from its start.
    #[inline]
    pub(super) fn descriptors(&self, first: u32, count: u32) -> [&[Descriptor]; 2] {
        let first = (first & self.mask) as usize;
        let count = (count as usize).min(self.slots() as usize);
        let before_end = count.min(self.slots() as usize - first);
        // SAFETY: both ranges lie in the ring, and the fields are atomic: see `descriptor`.
        unsafe {
            let start = self.shared.as_ptr().add(DESCRIPTORS_OFFSET).cast::<Descriptor>();
            [
                std::slice::from_raw_parts(start.add(first), before_end),
                std::slice::from_raw_parts(start, count - before_end),
            ]
        }
    }

    /// Returns the first byte of slot `slot`, which is [`SLOT_BYTES`] long.
    #[inline]
    pub(super) fn memory(&self, slot: u32) -> *mut u8 {
        let index = (slot & self.mask) as usize;
        // SAFETY: the index is below the number of slots, so the offset lies in the buffer.
        unsafe { self.buffer.as_ptr().add(index * SLOT_BYTES) }
    }

    /// Returns the slots, to find those of received frames.
    #[inline]
    pub(super) fn received(&self) -> ReceivedSlots<'_> {
        let last = self.mask as usize * SLOT_BYTES;
        ReceivedSlots { start: self.buffer.as_ptr(), last, _ring: PhantomData }
    }
}

impl Shared for Ring {
    type Word = AtomicU32;

    #[inline]
    fn mask(&self) -> u32 {
        self.mask
    }

    #[inline]
    fn state(&self, index: u32) -> &AtomicU32 {
        &self.descriptor(index).state
    }

    #[inline]
    fn position(&self) -> &AtomicU32 {
        // SAFETY: the position is a u32 at the start of the mapping; both sides access it
        // atomically.
        unsafe { AtomicU32::from_ptr(self.shared.as_ptr().add(READ_OFFSET).cast()) }
    }

    #[inline]
    fn kernel_position(&self) -> &AtomicU32 {
        // SAFETY: the position is a u32 in the mapping; both sides access it atomically.
        unsafe { AtomicU32::from_ptr(self.shared.as_ptr().add(WRITE_OFFSET).cast()) }
    }
}

/// Slots of a receive ring. A copy in local variables spares a loop over frames the loads from the
/// ring, which the compiler would repeat after each store.
#[derive(Clone, Copy)]
pub(super) struct ReceivedSlots<'ring> {
    start: *const u8,
    /// Offset of the last slot.
    last: usize,
    _ring: PhantomData<&'ring Ring>,
}

impl ReceivedSlots<'_> {
    /// Returns the first byte of the slot of a descriptor. The kernel changes it together with the
    /// state, so that each descriptor has a slot of its own; a wrong address selects another slot
    /// of the buffer.
    #[inline]
    pub(super) fn of(self, descriptor: &Descriptor) -> *const u8 {
        let addr = descriptor.addr.load(Ordering::Relaxed) as usize;
        let offset = addr.wrapping_sub(self.start as usize) & self.last;
        // SAFETY: a multiple of the size of a slot, at most that of the last slot: `last` has these
        // bits only, as the number of slots is a power of two.
        unsafe { self.start.add(offset) }
    }
}
