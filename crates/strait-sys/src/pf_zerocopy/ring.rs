//! What both rings are: slots of memory of this process, and the descriptors that the kernel shares.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::SLOT_BYTES;
use crate::mmap::Mapping;

/// `ZEROCOPY_WRITABLE`
pub(super) const WRITABLE: u32 = 1;
/// `ZEROCOPY_READABLE`
pub(super) const READABLE: u32 = 2;

/// `struct zerocopy_desc`. Only the side whose turn it is writes the other fields, but a kernel that goes wrong must not
/// make this undefined, so all are atomic.
#[repr(C)]
pub(super) struct Descriptor {
    addr: AtomicU64,
    pub(super) timestamp_ns: AtomicU64,
    pub(super) length: AtomicU32,
    state: AtomicU32,
    reserved: AtomicU64,
}

/// `struct zerocopy_ring` before its descriptors: the mark of this process, and that of the kernel, each in a cache line
/// of its own.
const READ_OFFSET: usize = 0;
pub(super) const DESCRIPTORS_OFFSET: usize = 128;

/// A ring of `slots` slots, a power of two.
#[derive(Debug)]
pub(super) struct Ring {
    // Either may go first: the descriptors' mapping keeps the socket open, which keeps the buffer's pages.
    shared: Mapping,
    buffer: Mapping,
    mask: u32,
}

impl Ring {
    /// Over the mapped descriptors and the buffer that they describe.
    pub(super) fn new(shared: Mapping, buffer: Mapping, slots: u32) -> Self {
        assert!(slots.is_power_of_two(), "{slots} slots");
        assert!(shared.len() >= Self::shared_bytes(slots) && buffer.len() >= slots as usize * SLOT_BYTES);
        Self { shared, buffer, mask: slots - 1 }
    }

    /// Bytes of the descriptors of `slots` slots.
    pub(super) fn shared_bytes(slots: u32) -> usize {
        DESCRIPTORS_OFFSET + slots as usize * size_of::<Descriptor>()
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> u32 {
        self.mask + 1
    }

    /// The slot after `slot`, round the ring.
    #[inline]
    pub(super) fn after(&self, slot: u32, count: u32) -> u32 {
        slot.wrapping_add(count) & self.mask
    }

    #[inline]
    pub(super) fn descriptor(&self, slot: u32) -> &Descriptor {
        let index = (slot & self.mask) as usize;
        // SAFETY: the index is below the number of slots, so the descriptor lies in the mapping, which is aligned to a
        // page and lives as long as `self`; its fields are atomic, for the kernel writes them.
        unsafe { &*self.shared.as_ptr().add(DESCRIPTORS_OFFSET).cast::<Descriptor>().add(index) }
    }

    /// Whether it is this side's turn: whether the slot's state is `state`.
    #[inline]
    pub(super) fn has_state(&self, slot: u32, state: u32) -> bool {
        // Acquire pairs with the kernel's release: what it wrote to the slot before is seen.
        self.descriptor(slot).state.load(Ordering::Acquire) == state
    }

    /// Hands the slot over.
    #[inline]
    pub(super) fn set_state(&self, slot: u32, state: u32) {
        // Release: our accesses to the slot are over before the other side sees the state.
        self.descriptor(slot).state.store(state, Ordering::Release);
    }

    /// Tells the kernel which slot this side looks at next: poll(2) asks for its state.
    #[inline]
    pub(super) fn set_mark(&self, slot: u32) {
        // SAFETY: the mark is a u32 at the start of the mapping; both sides access it atomically.
        let mark = unsafe { AtomicU32::from_ptr(self.shared.as_ptr().add(READ_OFFSET).cast()) };
        mark.store(slot, Ordering::Release);
    }

    /// The first byte of the slot's memory, [`SLOT_BYTES`] long.
    #[inline]
    pub(super) fn memory(&self, slot: u32) -> *mut u8 {
        let index = (slot & self.mask) as usize;
        // SAFETY: the index is below the number of slots, so the offset lies in the buffer.
        unsafe { self.buffer.as_ptr().add(index * SLOT_BYTES) }
    }
}
