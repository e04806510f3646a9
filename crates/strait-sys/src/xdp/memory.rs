//! The kernel's ring memory as a [`Region`]: `XDP_MMAP_OFFSETS` and `mmap`.
//!
//! `Socket` maps the rings with it. It checks that the kernel's offsets lie in the mapping.

use std::marker::PhantomData;
use std::sync::atomic::AtomicU32;

use super::ring::{Contiguous, Region};
use crate::error::{Error, Kind, Result};
use crate::mmap::Mapping;

/// Mapped ring of slots of type `T`: `u64` in the fill and completion rings, `xdp_desc` in the RX
/// and TX rings.
#[derive(Debug)]
pub(super) struct Mapped<T> {
    memory: Mapping,
    offsets: libc::xdp_ring_offset,
    slots: u32,
    slot: PhantomData<T>,
}

// SAFETY: slots is checked once to be a power of two and `new` checks that all of them lie in the
// mapping.
unsafe impl<T: Copy> Region for Mapped<T> {
    type Index = AtomicU32;
    type Slot = T;

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        self.index(self.offsets.producer)
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        self.index(self.offsets.consumer)
    }

    #[inline]
    fn flags(&self) -> &AtomicU32 {
        self.index(self.offsets.flags)
    }

    fn slots(&self) -> u32 {
        self.slots
    }

    #[inline]
    unsafe fn read(&self, index: u32) -> T {
        // SAFETY: the caller keeps index below slots and guarantees that the slot has no writer.
        unsafe { self.at(index).read() }
    }

    #[inline]
    unsafe fn write(&self, index: u32, slot: T) {
        // SAFETY: as for read; a slot is plain data.
        unsafe { self.at(index).write(slot) }
    }
}

// SAFETY: the kernel lays slots out as an array that begins at `offsets.desc`.
unsafe impl<T: Copy> Contiguous for Mapped<T> {
    #[inline]
    fn slot(&self) -> *mut T {
        self.at(0)
    }
}

impl<T: Copy> Mapped<T> {
    /// Returns the bytes to map for a ring of `slots`.
    pub(super) fn bytes(offsets: &libc::xdp_ring_offset, slots: u32) -> usize {
        offsets.desc as usize + slots as usize * size_of::<T>()
    }

    /// Makes a ring over `memory`, which must contain everything at `offsets`.
    pub(super) fn new(memory: Mapping, offsets: libc::xdp_ring_offset, slots: u32) -> Result<Self> {
        let holds = |offset: u64, len: usize, align: usize| {
            let end = usize::try_from(offset).ok().and_then(|start| start.checked_add(len));
            end.is_some_and(|end| end <= memory.len()) && offset.is_multiple_of(align as u64)
        };
        let index = |offset| holds(offset, size_of::<AtomicU32>(), align_of::<AtomicU32>());
        let all_slots = holds(offsets.desc, slots as usize * size_of::<T>(), align_of::<T>());
        let sound = index(offsets.producer) && index(offsets.consumer) && index(offsets.flags) && all_slots;
        if !sound || !slots.is_power_of_two() {
            let cause = "the kernel returned offsets outside of the ring";
            return Err(Error::new(Kind::Failed, "map", "an AF_XDP ring", cause));
        }
        Ok(Self { memory, offsets, slots, slot: PhantomData })
    }

    #[inline]
    fn index(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: `new` checked that an aligned u32 lies there; both sides access it atomically.
        unsafe { AtomicU32::from_ptr(self.memory.as_ptr().add(offset as usize).cast()) }
    }

    #[inline]
    fn at(&self, index: u32) -> *mut T {
        debug_assert!(index < self.slots);
        let offset = self.offsets.desc as usize + index as usize * size_of::<T>();
        // SAFETY: callers keep index below slots, and `new` checked that all slots lie in the
        // mapping.
        unsafe { self.memory.as_ptr().add(offset).cast() }
    }
}
