//! TPACKET_V2: ring of equal slots, one frame each. `docs/internals/tpacket-v2.md` draws it.
//!
//! A slot's `tp_status` names its owner: 0 is the kernel, `TP_STATUS_USER` the reader.
//! [`Ring::take`] finds the run of ready slots and borrows them as a [`Batch`]; dropping the batch
//! returns them. Only the slots of the batch are accessed, so the kernel may fill others meanwhile.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{Cooked, Frame, Header, Socket, TAG_RESTORED, VLAN_TAG_LEN};
use crate::error::Result;
use crate::mmap::Mapping;

/// `TPACKET_ALIGN(x)` (if_packet.h).
const ALIGNMENT: usize = 16;
/// Offset of the `sockaddr_ll` after the header in a slot.
const ADDRESS_OFFSET: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(ALIGNMENT);
/// Minimum room for a link header before the frame (`tpacket_rcv` in af_packet.c).
const LINK_HEADER_ROOM: usize = 16;
/// Maximum bytes of a slot before the frame: header, address, link header, alignment and the room
/// for a VLAN tag.
const OVERHEAD: usize = (ADDRESS_OFFSET + size_of::<libc::sockaddr_ll>() + LINK_HEADER_ROOM + VLAN_TAG_LEN)
    .next_multiple_of(ALIGNMENT);
/// Smallest page size of all architectures. Shorter slots are powers of two, so that they fill a
/// page exactly.
const PAGE: usize = 4096;
/// Bytes of a block, unless [`BLOCK_SLOTS_MIN`] slots need more. The kernel allocates each block
/// physically contiguous if it can, so blocks are small.
const BLOCK_BYTES: usize = 1 << 16;
/// Minimum number of slots in a block, if the ring has that many. The kernel rounds the memory of a
/// block up to a power of two, so memory for a slot that does not fit is wasted.
const BLOCK_SLOTS_MIN: usize = 8;

/// Sizes of a ring: slots fill blocks exactly, so that the ring is one array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a slot: a power of two up to a page, then a multiple of the page.
    pub slot_bytes: usize,
    /// Number of slots in all blocks.
    pub slots: usize,
    block_bytes: usize,
}

impl Geometry {
    /// Returns a geometry of about `ring_bytes` with slots for complete frames of up to
    /// `frame_bytes`.
    pub fn new(ring_bytes: usize, frame_bytes: usize) -> Self {
        let page = rustix::param::page_size().max(PAGE);
        let slot_bytes = match OVERHEAD + frame_bytes {
            short if short <= PAGE => short.next_power_of_two(),
            long => long.next_multiple_of(page),
        };
        let allocated = (BLOCK_SLOTS_MIN * slot_bytes).next_power_of_two().max(BLOCK_BYTES).min(ring_bytes);
        // Short slots fill a page; a long slot consists of whole pages.
        let unit = slot_bytes.max(page);
        let block_bytes = (allocated / unit).max(1) * unit;
        let blocks = (ring_bytes / block_bytes).max(1);
        Self { slot_bytes, slots: blocks * (block_bytes / slot_bytes), block_bytes }
    }

    /// Returns the size of the longest frame that a slot holds complete.
    pub fn frame_bytes_max(&self) -> usize {
        self.slot_bytes - OVERHEAD
    }

    /// Returns the bytes that the ring maps.
    pub fn ring_bytes(&self) -> usize {
        self.slots * self.slot_bytes
    }

    pub(super) fn request(&self) -> libc::tpacket_req {
        libc::tpacket_req {
            tp_block_size: self.block_bytes as u32,
            tp_block_nr: (self.ring_bytes() / self.block_bytes) as u32,
            tp_frame_size: self.slot_bytes as u32,
            tp_frame_nr: self.slots as u32,
        }
    }
}

/// Mapped TPACKET_V2 receive ring.
#[derive(Debug)]
pub struct Ring {
    memory: Mapping,
    geometry: Geometry,
    next: usize,
    cooked: Option<Cooked>,
}

impl Ring {
    /// `setsockopt(PACKET_RX_RING)` and `mmap`. The socket must not be bound yet.
    ///
    /// # Errors
    /// ENOMEM if the kernel has no memory for the ring: request less.
    pub fn new(socket: &Socket, geometry: Geometry) -> Result<Self> {
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        socket.set_packet(libc::PACKET_VERSION, &version, "choose TPACKET_V2 on")?;
        // See v3.rs: room for the VLAN tag that the kernel delivers apart from the frame.
        socket.set_packet(libc::PACKET_RESERVE, &(VLAN_TAG_LEN as u32), "reserve room for a VLAN tag on")?;
        socket.set_packet(libc::PACKET_RX_RING, &geometry.request(), "make a TPACKET_V2 ring on")?;
        let memory = Mapping::shared(std::os::fd::AsFd::as_fd(socket), geometry.ring_bytes(), 0)?;
        Ok(Self::from_mapping(memory, geometry))
    }

    /// Makes a ring of `memory`, which the kernel or a test writes.
    pub(super) fn from_mapping(memory: Mapping, geometry: Geometry) -> Self {
        Self { memory, geometry, next: 0, cooked: None }
    }

    /// Returns true if a frame is ready; [`Ring::take`] then borrows at least one.
    pub fn ready(&self) -> bool {
        self.is_ready(self.next)
    }

    /// Borrows the ready slots until the batch drops, at most `limit`. May be empty; never waits.
    pub fn take(&mut self, limit: usize) -> Batch<'_> {
        let limit = limit.min(self.geometry.slots);
        let count = (0..limit).take_while(|&i| self.is_ready(self.index(self.next, i))).count();
        Batch { first: self.next, count, ring: self }
    }

    /// Selects the header written before packets of a `SOCK_DGRAM` socket; none by default.
    pub fn set_cooked(&mut self, cooked: Option<Cooked>) {
        self.cooked = cooked;
    }

    /// Returns the sizes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    #[inline]
    fn index(&self, first: usize, i: usize) -> usize {
        let index = first + i;
        if index >= self.geometry.slots { index - self.geometry.slots } else { index }
    }

    #[inline]
    fn slot(&self, index: usize) -> *mut u8 {
        debug_assert!(index < self.geometry.slots);
        // SAFETY: index is below the number of slots, so the offset lies in the mapping.
        unsafe { self.memory.as_ptr().add(index * self.geometry.slot_bytes) }
    }

    #[inline]
    fn status(&self, index: usize) -> &AtomicU32 {
        // SAFETY: tp_status is the first field of the slot, aligned to 16; both sides access it
        // atomically.
        unsafe { AtomicU32::from_ptr(self.slot(index).cast()) }
    }

    fn is_ready(&self, index: usize) -> bool {
        // Acquire pairs with the kernel's smp_wmb in __packet_set_status: the frame is complete.
        self.status(index).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Returns the frame in slot `index`, which the reader owns.
    ///
    /// # Safety
    /// The reader owns the slot for 'a, and no other [`Frame`] of this slot exists.
    #[inline]
    unsafe fn frame<'a>(&mut self, index: usize) -> Frame<'a> {
        let slot = self.slot(index);
        // SAFETY: a slot that the reader owns begins with a header that the kernel has finished.
        let raw = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        let header = Header {
            status: raw.tp_status,
            mac: raw.tp_mac,
            captured: raw.tp_snaplen,
            wire_len: raw.tp_len,
            seconds: raw.tp_sec,
            nanoseconds: raw.tp_nsec,
            vlan_tci: raw.tp_vlan_tci,
            vlan_tpid: raw.tp_vlan_tpid,
            rx_hash: 0,
        };
        // SAFETY: the caller owns the slot for 'a.
        let frame = unsafe { header.frame(slot, self.geometry.slot_bytes, ADDRESS_OFFSET, self.cooked) };
        if frame.vlan.is_some() {
            // A second [`Batch::frames`] must not insert the tag again.
            self.status(index).fetch_or(TAG_RESTORED, Ordering::Relaxed);
        }
        frame
    }
}

/// Borrowed slots; dropping the batch returns them to the kernel.
#[derive(Debug)]
pub struct Batch<'ring> {
    ring: &'ring mut Ring,
    first: usize,
    count: usize,
}

impl Batch<'_> {
    /// Returns the number of frames.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if no slot was ready.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Iterates over the frames, oldest first; each call starts at the first.
    pub fn frames(&mut self) -> Frames<'_> {
        Frames { at: 0, count: self.count, first: self.first, ring: self.ring }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for i in 0..self.count {
            let index = self.ring.index(self.first, i);
            // Release: this side's reads of the frame are complete before the kernel may write it
            // again.
            self.ring.status(index).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        self.ring.next = self.ring.index(self.first, self.count);
    }
}

/// Iterator over the frames of a [`Batch`].
#[derive(Debug)]
pub struct Frames<'batch> {
    ring: &'batch mut Ring,
    first: usize,
    at: usize,
    count: usize,
}

impl<'batch> Iterator for Frames<'batch> {
    type Item = Frame<'batch>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'batch>> {
        if self.at == self.count {
            return None;
        }
        let index = self.ring.index(self.first, self.at);
        self.at += 1;
        // SAFETY: the reader owns the slots of the batch until it drops, which the borrow for
        // 'batch prevents; this iterator visits each once.
        Some(unsafe { self.ring.frame(index) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.count - self.at;
        (left, Some(left))
    }
}
