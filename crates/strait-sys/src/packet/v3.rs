//! TPACKET_V3: ring of blocks, each holding frames of any length. `docs/internals/tpacket-v3.md`
//! draws it.
//!
//! The kernel fills one block, the *open* one, and hands it over when it is full or its retire
//! timer expires. [`Ring::take`] borrows the unread frames of the next retired block.
//!
//! **Reading the open block.** On a quiet link a block is seldom full, so each frame would wait for
//! the retire timer, which is 8 ms or more. [`Ring::set_early`] lets [`Ring::take`] also borrow the
//! complete frames of the open block. Only the block has a status, not the frame, so the reader
//! infers from the frame's header that the frame is complete:
//!
//! - `tpacket_rcv` copies a frame's data, then writes its header, then the `sockaddr_ll`. Of the
//!   fields that are checked, only `tp_status` is also written before the copy.
//! - The reader zeroes a block before it returns the block. A non-zero field has therefore been
//!   written. A header with all checked fields non-zero is complete, and so is the data.
//! - The compiler cannot move the stores before the copy, a function call, and x86-64 keeps stores
//!   in order; on other architectures the open block is never read. The order among the checked
//!   fields does not matter, because all of them are checked.
//!
//! A block that was not zeroed (it was returned full, under load) has remains of old headers and is
//! not read before it is retired. A frame with a field that happens to be zero (a timestamp on the
//! exact second) waits for the timer.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{Cooked, Frame, Header, Socket, TAG_RESTORED, VLAN_TAG_LEN};
use crate::cache;
use crate::error::Result;
use crate::mmap::Mapping;

/// `TPACKET_ALIGN(sizeof(struct tpacket3_hdr))`: offset of the `sockaddr_ll` (if_packet.h).
const ADDRESS_OFFSET: usize = size_of::<libc::tpacket3_hdr>().next_multiple_of(16);
/// Frames in a block start at multiples of this (`V3_ALIGNMENT` in af_packet.c).
const FRAME_ALIGNMENT: usize = 8;
/// Offset of the first frame in a block, without a private area (`BLK_PLUS_PRIV(0)`).
const FIRST_FRAME: usize = size_of::<libc::tpacket_block_desc>().next_multiple_of(FRAME_ALIGNMENT);
/// Minimum distance in bytes from the frame that is read to the prefetched one: about six small
/// frames, which take the reader as long as a cache miss.
const PREFETCH_DISTANCE_MIN: usize = 1024;
/// Offset of the status in a block, after `version` and `offset_to_priv`.
const BLOCK_STATUS: usize = 8;
/// [`Early::Quiet`] zeroes a block that took at least this long to fill, or that the timer retired.
/// A block of 256 KiB takes this long at 455,000 frames of the smallest size a second.
pub const SLOW_FILL: Duration = Duration::from_millis(4);
/// True if the open block can be read on this architecture: other CPUs see the stores of a CPU in
/// program order.
pub const READS_EARLY: bool = cfg!(target_arch = "x86_64");

/// Sizes of a ring of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block: a power of two of at least a page.
    pub block_bytes: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Maximum time that the kernel keeps a block that holds a frame but is not full; 1 ms at
    /// least.
    pub retire: Duration,
}

impl Geometry {
    /// Minimum bytes of a block. The largest frame is 64 KiB of receive offload with headers, and
    /// a block is a power of two.
    const BLOCK_BYTES_MIN: usize = 1 << 17;

    /// Returns a geometry of about `ring_bytes` in blocks of about `block_bytes`; at least two
    /// blocks.
    pub fn new(ring_bytes: usize, block_bytes: usize, retire: Duration) -> Self {
        let block_bytes = block_bytes.next_power_of_two().max(Self::BLOCK_BYTES_MIN);
        Self { block_bytes, blocks: (ring_bytes / block_bytes).max(2), retire }
    }

    /// Returns the bytes that the ring maps.
    pub fn ring_bytes(&self) -> usize {
        self.block_bytes * self.blocks
    }

    fn request(&self, rx_hash: bool) -> libc::tpacket_req3 {
        const TP_FT_REQ_FILL_RXHASH: u32 = 1;
        // V3 packs frames of any size. The kernel only checks that the frame size and the number of
        // frames match the size of the ring.
        let frame_bytes = 2048;
        libc::tpacket_req3 {
            tp_block_size: self.block_bytes as u32,
            tp_block_nr: self.blocks as u32,
            tp_frame_size: frame_bytes as u32,
            tp_frame_nr: (self.ring_bytes() / frame_bytes) as u32,
            tp_retire_blk_tov: self.retire.as_millis().max(1) as u32,
            tp_sizeof_priv: 0,
            tp_feature_req_word: if rx_hash { TP_FT_REQ_FILL_RXHASH } else { 0 },
        }
    }
}

/// Selection of the blocks that are read while the kernel still fills them. The reader zeroes such
/// a block when it returns the block, see the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Early {
    /// No block.
    Never,
    /// Blocks that the kernel last filled in [`SLOW_FILL`] or more, or that the timer retired: at
    /// such a rate the reader has time to zero them.
    Quiet,
    /// All blocks. Under load zeroing costs the reader CPU time.
    Always,
}

/// Mapped TPACKET_V3 receive ring.
#[derive(Debug)]
pub struct Ring {
    memory: Mapping,
    geometry: Geometry,
    /// Index of the block with the next frame.
    block: usize,
    /// Number of frames of that block that were already borrowed; `offset` is the start of the next
    /// one.
    read: u32,
    offset: usize,
    early: Early,
    cooked: Option<Cooked>,
    /// Time that the kernel took to fill the last returned block.
    filled_in: Duration,
    /// For each block, the end of the bytes that may be non-zero; 0 if the area of the frames is
    /// zeroed.
    dirty: Vec<usize>,
}

impl Ring {
    /// `setsockopt(PACKET_RX_RING)` and `mmap`. The socket must not be bound yet. With `rx_hash`
    /// the kernel computes the flow hash of each frame, which costs a flow dissection.
    ///
    /// # Errors
    /// ENOMEM if the kernel has no memory for the ring: request less.
    pub fn new(socket: &Socket, geometry: Geometry, rx_hash: bool) -> Result<Self> {
        let version = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
        socket.set_packet(libc::PACKET_VERSION, &version, "choose TPACKET_V3 on")?;
        // The kernel delivers the VLAN tag apart from the frame: the room before the frame lets
        // the reader insert it without a move of the whole frame.
        socket.set_packet(libc::PACKET_RESERVE, &(VLAN_TAG_LEN as u32), "reserve room for a VLAN tag on")?;
        socket.set_packet(libc::PACKET_RX_RING, &geometry.request(rx_hash), "make a TPACKET_V3 ring on")?;
        let memory = Mapping::shared(socket.as_fd(), geometry.ring_bytes(), 0)?;
        Ok(Self::from_mapping(memory, geometry))
    }

    /// Makes a ring of zeroed memory, which the kernel or a test writes.
    pub(super) fn from_mapping(memory: Mapping, geometry: Geometry) -> Self {
        let dirty = vec![0; geometry.blocks];
        let (offset, cooked) = (FIRST_FRAME, None);
        let (early, filled_in) = (Early::Never, Duration::ZERO);
        Self { memory, geometry, block: 0, read: 0, offset, early, cooked, filled_in, dirty }
    }

    /// Selects the blocks to read early. The default is [`Early::Never`], which also replaces
    /// `early` on architectures without [`READS_EARLY`].
    pub fn set_early(&mut self, early: Early) {
        self.early = if READS_EARLY { early } else { Early::Never };
    }

    /// Returns true if [`Ring::take`] can see a frame in the open block as soon as it is complete.
    pub fn reads_early(&self) -> bool {
        self.early != Early::Never && self.dirty[self.block] == 0
    }

    /// Returns true if a frame is ready; [`Ring::take`] then borrows at least one. Returns retired
    /// blocks to the kernel if all their frames were read early.
    pub fn ready(&mut self) -> bool {
        for _ in 0..self.geometry.blocks {
            match self.retired() {
                Some(packets) if packets > self.read => return true,
                Some(_) => self.release(),
                None => return self.reads_early() && self.end_of_complete(self.offset).is_some(),
            }
        }
        false
    }

    /// Borrows the ready frames of the next block, at most `limit`, until the batch drops. May be
    /// empty; never waits.
    pub fn take(&mut self, limit: usize) -> Batch<'_> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        if let Some(packets) = self.retired() {
            let left = packets.saturating_sub(self.read);
            return Batch { count: left.min(limit), ends_block: left <= limit, ring: self };
        }
        let count = if self.reads_early() { self.count_complete().min(limit) } else { 0 };
        Batch { count, ends_block: false, ring: self }
    }

    /// Selects the header written before packets of a `SOCK_DGRAM` socket; none by default.
    pub fn set_cooked(&mut self, cooked: Option<Cooked>) {
        self.cooked = cooked;
    }

    /// Returns the time that the kernel takes to fill the ring, at the rate of the last returned
    /// block.
    pub fn fill_time(&self) -> Duration {
        self.filled_in * self.geometry.blocks as u32
    }

    /// Returns the sizes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the number of packets in the current block, if the kernel has handed it over.
    fn retired(&self) -> Option<u32> {
        // Acquire pairs with the kernel's barrier before it stores the status: block and frames are
        // complete.
        if self.status(self.block).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the kernel handed the block over, and it begins with a block descriptor.
        Some(unsafe { (*self.descriptor(self.block)).hdr.bh1.num_pkts })
    }

    /// Counts the complete unread frames of the open, zeroed block.
    fn count_complete(&self) -> u32 {
        let mut offset = self.offset;
        let mut count = 0;
        while let Some(next) = self.end_of_complete(offset) {
            offset = next;
            count += 1;
        }
        count
    }

    /// Returns the offset after the frame at `offset` of the open block, if that frame is complete.
    fn end_of_complete(&self, offset: usize) -> Option<usize> {
        let header_end = offset + ADDRESS_OFFSET + size_of::<libc::sockaddr_ll>();
        if header_end > self.geometry.block_bytes {
            return None;
        }
        let field = |at: usize| {
            // Acquire keeps the compiler from moving reads of the frame before this one; x86-64
            // itself does not reorder loads.
            // SAFETY: header_end is within the block and every field read is an aligned u32. The
            // kernel writes it meanwhile, so the access is atomic.
            unsafe { AtomicU32::from_ptr(self.at(self.block, offset + at).cast()) }.load(Ordering::Acquire)
        };
        let written = [
            std::mem::offset_of!(libc::tpacket3_hdr, tp_sec),
            std::mem::offset_of!(libc::tpacket3_hdr, tp_nsec),
            std::mem::offset_of!(libc::tpacket3_hdr, tp_snaplen),
            std::mem::offset_of!(libc::tpacket3_hdr, tp_len),
            std::mem::offset_of!(libc::tpacket3_hdr, tp_status),
            ADDRESS_OFFSET + std::mem::offset_of!(libc::sockaddr_ll, sll_ifindex),
            ADDRESS_OFFSET + std::mem::offset_of!(libc::sockaddr_ll, sll_hatype),
        ];
        // The `sockaddr_ll` first: the kernel writes it after the header, so an incomplete frame
        // usually fails at the first field.
        if written.iter().rev().any(|&at| field(at) == 0) {
            return None;
        }
        let mac_and_net = field(std::mem::offset_of!(libc::tpacket3_hdr, tp_mac));
        let mac = (mac_and_net & 0xffff) as usize;
        let captured = field(std::mem::offset_of!(libc::tpacket3_hdr, tp_snaplen)) as usize;
        let next = (offset + mac + captured).next_multiple_of(FRAME_ALIGNMENT);
        (mac != 0 && mac_and_net >> 16 != 0 && next <= self.geometry.block_bytes).then_some(next)
    }

    /// Returns the current block to the kernel and moves to the next.
    fn release(&mut self) {
        // SAFETY: the kernel handed the block over, and it begins with a block descriptor.
        let (status, used, filled_in) = unsafe {
            let header = &(*self.descriptor(self.block)).hdr.bh1;
            let (first, last) = (since_epoch(header.ts_first_pkt), since_epoch(header.ts_last_pkt));
            (header.block_status, header.blk_len as usize, last.saturating_sub(first))
        };
        self.filled_in = filled_in;
        let dirty = used.max(self.dirty[self.block]).min(self.geometry.block_bytes);
        let zero = match self.early {
            Early::Never => false,
            Early::Quiet => status & libc::TP_STATUS_BLK_TMO != 0 || filled_in >= SLOW_FILL,
            Early::Always => true,
        };
        if zero && dirty > FIRST_FRAME {
            // SAFETY: FIRST_FRAME..dirty lies in the block, which belongs to this process until the
            // store below.
            unsafe { self.at(self.block, FIRST_FRAME).write_bytes(0, dirty - FIRST_FRAME) };
        }
        self.dirty[self.block] = if zero { 0 } else { dirty };
        // Release: the reads of the frames and the zeroes are complete before the kernel may write
        // the block again.
        self.status(self.block).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.block = (self.block + 1) % self.geometry.blocks;
        self.read = 0;
        self.offset = FIRST_FRAME;
    }

    /// Borrows the frame at the cursor and moves the cursor past it.
    ///
    /// # Safety
    /// The frame is complete and its block is not returned during 'a.
    #[allow(
        clippy::inline_always,
        reason = "it runs once per packet; without inlining the frame is returned through memory"
    )]
    #[inline(always)]
    unsafe fn next_frame<'a>(&mut self) -> Option<Frame<'a>> {
        let room = self.geometry.block_bytes.checked_sub(self.offset)?;
        if room < ADDRESS_OFFSET + size_of::<libc::sockaddr_ll>() {
            return None;
        }
        let start = self.at(self.block, self.offset);
        // SAFETY: room holds a header, which the kernel has finished.
        let raw = unsafe { start.cast::<libc::tpacket3_hdr>().read() };
        let header = Header {
            status: raw.tp_status,
            mac: raw.tp_mac,
            captured: raw.tp_snaplen,
            wire_len: raw.tp_len,
            seconds: raw.tp_sec,
            nanoseconds: raw.tp_nsec,
            vlan_tci: raw.hv1.tp_vlan_tci as u16,
            vlan_tpid: raw.hv1.tp_vlan_tpid,
            rx_hash: raw.hv1.tp_rxhash,
        };
        // SAFETY: the caller guarantees the frame, and room ends with the block.
        let frame = unsafe { header.frame(start, room, ADDRESS_OFFSET, self.cooked) };
        if frame.vlan.is_some() {
            let at = std::mem::offset_of!(libc::tpacket3_hdr, tp_status);
            // SAFETY: tp_status is an aligned u32 of the header of a borrowed frame.
            unsafe { AtomicU32::from_ptr(start.add(at).cast()) }.fetch_or(TAG_RESTORED, Ordering::Relaxed);
        }
        let next = self.offset + usize::from(raw.tp_mac) + raw.tp_snaplen as usize;
        let prefetched = next.max(self.offset + PREFETCH_DISTANCE_MIN);
        let prefetched =
            self.memory.as_ptr().wrapping_add(self.block * self.geometry.block_bytes + prefetched);
        cache::prefetch(prefetched);
        cache::prefetch(prefetched.wrapping_add(cache::LINE_BYTES));
        self.offset = next.next_multiple_of(FRAME_ALIGNMENT);
        self.read += 1;
        Some(frame)
    }

    #[inline]
    fn at(&self, block: usize, offset: usize) -> *mut u8 {
        debug_assert!(block < self.geometry.blocks && offset <= self.geometry.block_bytes);
        // SAFETY: block and offset are within the geometry, so the address lies in the mapping.
        unsafe { self.memory.as_ptr().add(block * self.geometry.block_bytes + offset) }
    }

    fn descriptor(&self, block: usize) -> *const libc::tpacket_block_desc {
        self.at(block, 0).cast()
    }

    fn status(&self, block: usize) -> &AtomicU32 {
        // SAFETY: the status is an aligned u32 of the block; both sides access it atomically.
        unsafe { AtomicU32::from_ptr(self.at(block, BLOCK_STATUS).cast()) }
    }
}

/// Converts a timestamp of a block descriptor to the time since the epoch.
fn since_epoch(stamp: libc::tpacket_bd_ts) -> Duration {
    // `ts_usec` is in a union with `ts_nsec`, which V3 stores.
    Duration::from_secs(stamp.ts_sec.into()) + Duration::from_nanos(stamp.ts_usec.into())
}

/// Borrowed frames of one block; dropping the batch returns the block if the kernel has retired it.
#[derive(Debug)]
pub struct Batch<'ring> {
    ring: &'ring mut Ring,
    count: u32,
    /// True if the batch holds the last frames of a retired block.
    ends_block: bool,
}

impl Batch<'_> {
    /// Returns the number of frames.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true if no frame was ready.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Iterates over the frames, oldest first. Each frame is borrowed once: later calls do not
    /// repeat it.
    pub fn frames(&mut self) -> Frames<'_> {
        Frames { left: &mut self.count, ring: self.ring }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // Frames that the caller did not take count as read, so the cursor moves past them.
        while self.frames().next().is_some() {}
        if self.ends_block {
            self.ring.release();
        }
    }
}

/// Iterator over the frames of a [`Batch`].
#[derive(Debug)]
pub struct Frames<'batch> {
    ring: &'batch mut Ring,
    left: &'batch mut u32,
}

impl<'batch> Iterator for Frames<'batch> {
    type Item = Frame<'batch>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'batch>> {
        *self.left = self.left.checked_sub(1)?;
        // SAFETY: the frames of the batch are complete, and the batch, which returns the block when
        // it drops, is borrowed for 'batch. Each frame is borrowed once.
        unsafe { self.ring.next_frame() }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(*self.left as usize))
    }
}
