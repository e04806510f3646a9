//! Reception: the fill ring passes chunks to the kernel, and the RX ring returns them with frames.
//!
//! [`Receiver::take`] borrows the received frames as an [`RxBatch`] and writes the addresses of
//! their chunks to the fill ring; dropping the batch publishes them in one step. The fill ring has
//! a slot for every chunk of the share, so it always has room. Every descriptor is checked once,
//! before its bytes are read. A descriptor is counted and skipped if the kernel did not hold its
//! chunk, or if its bytes leave the chunk. Descriptors are read in the RX ring itself, and its
//! slots are released when the batch drops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::memory::Mapped;
use super::ring::{Consumer, Producer, Region as _};
use super::umem::{Chunk, Share, View};
use crate::packet::{VLAN_TAG_LEN, VlanTag};

/// The destination and source addresses, which precede a VLAN tag.
const MAC_ADDRESSES_LEN: u32 = 12;

/// Value of [`Receiver::metadata_bytes`] without metadata: larger than any offset in a chunk.
const NO_METADATA: u32 = u32::MAX;

/// RX and fill rings of a socket, and the chunks that circulate on them.
#[derive(Debug)]
pub struct Receiver {
    rx: Consumer<Arc<Mapped<libc::xdp_desc>>>,
    fill: Producer<Mapped<u64>>,
    share: Share,
    count: Arc<RxCount>,
    /// Number of borrowed frames: the first of the descriptors that `rx` holds.
    borrowed: usize,
    /// True if the chunks of the batch are not on the fill ring, which was full.
    lacks_slots: bool,
    /// True if a frame of the batch continues in the next descriptor.
    fragmented: bool,
    /// Bytes of metadata before each frame, or [`NO_METADATA`].
    metadata_bytes: u32,
    invalid: u64,
}

impl Receiver {
    /// Puts every chunk of `share` on the fill ring, which must have a slot for each.
    pub(super) fn new(
        rx: Consumer<Arc<Mapped<libc::xdp_desc>>>,
        fill: Producer<Mapped<u64>>,
        share: Share,
    ) -> Self {
        let count = Arc::new(RxCount::new(Arc::clone(rx.region())));
        let mut receiver = Self {
            rx,
            fill,
            share,
            count,
            borrowed: 0,
            lacks_slots: false,
            fragmented: false,
            metadata_bytes: NO_METADATA,
            invalid: 0,
        };
        receiver.return_chunks();
        receiver
    }

    /// Borrows the received frames until the batch drops: at most `limit`, and none beyond the end
    /// of either ring's memory, from which the next batch starts. May be empty; never waits.
    #[inline]
    pub fn take(&mut self, limit: usize) -> RxBatch<'_> {
        self.return_chunks();
        let Self { rx, fill, share, lacks_slots, metadata_bytes, invalid, .. } = &mut *self;
        let metadata = *metadata_bytes != NO_METADATA;
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let slots = fill.free_slots(limit);
        // The kernel publishes a frame before the slot of the fill ring that its chunk came from
        // (`xsk_flush` in net/xdp/xsk.c). Until then the ring may be full.
        let mut spare = [0];
        *lacks_slots = slots.is_empty();
        let slots = if *lacks_slots { &mut spare } else { slots };
        let held = rx.hold(limit.min(slots.len() as u32));
        let (mut borrowed, mut options) = share.accept(held, slots, metadata);
        // The kernel returned an invalid descriptor: skip it, and move the valid ones together.
        let mut next = borrowed;
        while next < held.len() {
            share.free_chunk_of(&held[next]);
            *invalid += 1;
            next += 1;
            let (accepted, more) = share.accept(&held[next..], &mut slots[borrowed..], metadata);
            held.copy_within(next..next + accepted, borrowed);
            (next, borrowed, options) = (next + accepted, borrowed + accepted, options | more);
        }
        self.borrowed = borrowed;
        self.fragmented = options & libc::XDP_PKT_CONTD != 0;
        RxBatch { receiver: self }
    }

    /// Returns true if an untaken descriptor is ready. Never waits.
    #[inline]
    pub fn is_ready(&mut self) -> bool {
        self.rx.ready(1) > 0
    }

    /// Returns the number of received descriptors that were not taken.
    pub fn waiting(&mut self) -> u32 {
        self.rx.ready(u32::MAX)
    }

    /// Returns the number of received frames that were not taken: of the descriptors that end a
    /// frame. Reads all of them, in contrast to [`Receiver::waiting`].
    pub fn waiting_frames(&mut self) -> u64 {
        let waiting = self.waiting();
        let ends = (0..waiting).filter_map(|offset| self.rx.peek(offset)).filter(|desc| !continues(desc));
        ends.count() as u64
    }

    /// Returns the count of received frames for other threads.
    pub fn count(&self) -> Arc<RxCount> {
        Arc::clone(&self.count)
    }

    /// Sets the length of the metadata that an XDP program writes before a frame. Its first eight
    /// bytes are zeroed before the chunk is returned, so that they are not read as metadata of the
    /// chunk's next frame.
    pub fn set_metadata_bytes(&mut self, bytes: u32) {
        self.metadata_bytes = bytes;
    }

    /// Returns the number of invalid descriptors. They do not count as frames, and their chunks are
    /// not touched.
    pub fn invalid_descriptors(&self) -> u64 {
        self.invalid
    }

    /// Returns true if the driver must be notified of new chunks: call `Socket::wake_rx`, or wait
    /// with poll(2), which notifies it too.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Returns the number of chunks on these rings.
    pub fn chunks(&self) -> u32 {
        self.share.chunks()
    }

    /// Returns the descriptors of the borrowed frames.
    #[inline]
    fn borrowed(&self) -> &[libc::xdp_desc] {
        &self.rx.held()[..self.borrowed]
    }

    /// Puts every chunk that this process holds on the fill ring.
    #[inline]
    fn return_chunks(&mut self) {
        let Self { rx, fill, share, count, borrowed, lacks_slots, fragmented, metadata_bytes, .. } = self;
        if rx.held().is_empty() && share.free_chunks() == 0 {
            return;
        }
        let frames = &rx.held()[..*borrowed];
        let fragments = if *fragmented { frames.iter().filter(|desc| continues(desc)).count() } else { 0 };
        count.add(rx.held().len(), rx.held().len() - *borrowed + fragments);
        if *metadata_bytes != NO_METADATA {
            // SAFETY: the frames are borrowed: they were accepted, and their chunks were not
            // returned.
            unsafe { share.clear_metadata(frames, *metadata_bytes) };
        }
        share.end_batch();
        if std::mem::take(lacks_slots) {
            for frame in frames {
                share.free_chunk_of(frame);
            }
        } else {
            fill.count_written(*borrowed as u32);
        }
        *borrowed = 0;
        *fragmented = false;
        rx.release();
        while fill.room(1) > 0
            && let Some(chunk) = share.take_free()
        {
            refill(fill, share, chunk);
        }
        fill.submit();
    }
}

#[inline]
fn refill(fill: &mut Producer<Mapped<u64>>, share: &mut Share, chunk: Chunk) {
    let pushed = fill.push(share.hand_over(chunk));
    debug_assert!(pushed, "there was room");
}

/// Borrowed frames; dropping the batch returns their chunks to the kernel.
///
/// No frame outlives it:
/// ```compile_fail,E0505
/// fn keep(receiver: &mut strait_sys::xdp::Receiver) {
///     let batch = receiver.take(64);
///     let frame = batch.get(0);
///     drop(batch);
///     println!("{frame:?}");
/// }
/// ```
#[derive(Debug)]
pub struct RxBatch<'receiver> {
    receiver: &'receiver mut Receiver,
}

/// Frame borrowed from a batch, or a fragment of one.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'batch> {
    /// Bytes of the frame, starting with the destination MAC address.
    pub bytes: &'batch [u8],
    /// Bytes before the frame in its chunk. The last of them are those that an XDP program added
    /// with `bpf_xdp_adjust_meta`. Meaningless for fragments other than the first.
    pub metadata: &'batch [u8],
    /// True if the frame continues in the next descriptor (`XDP_PKT_CONTD`).
    pub continues: bool,
    /// Address of the frame in the UMEM.
    pub address: u64,
}

impl RxBatch<'_> {
    /// Returns the number of frames and fragments.
    pub fn len(&self) -> usize {
        self.receiver.borrowed
    }

    /// Returns true if there are no frames.
    pub fn is_empty(&self) -> bool {
        self.receiver.borrowed == 0
    }

    /// Returns true if a frame of the batch continues in the next descriptor, here or in a later
    /// batch.
    pub fn is_fragmented(&self) -> bool {
        self.receiver.fragmented
    }

    /// Returns the frame at `index`, oldest first.
    #[inline]
    pub fn get(&self, index: usize) -> Option<RxFrame<'_>> {
        let view = self.receiver.share.view();
        // SAFETY: borrowed frames were accepted, and are returned when this batch drops.
        self.receiver.borrowed().get(index).map(|frame| unsafe { frame_of(view, frame) })
    }

    /// Iterates over the frames, oldest first.
    #[inline]
    pub fn frames(&self) -> impl ExactSizeIterator<Item = RxFrame<'_>> {
        self.first(self.len())
    }

    /// Iterates over the first `limit` frames.
    #[inline]
    pub fn first(&self, limit: usize) -> impl ExactSizeIterator<Item = RxFrame<'_>> {
        let view = self.receiver.share.view();
        let borrowed = self.receiver.borrowed();
        // SAFETY: as for `get`.
        borrowed[..limit.min(borrowed.len())].iter().map(move |frame| unsafe { frame_of(view, frame) })
    }

    /// Iterates over the lengths of the first `limit` frames, without reading these.
    #[inline]
    pub fn lengths(&self, limit: usize) -> impl ExactSizeIterator<Item = u32> + Clone {
        let borrowed = self.receiver.borrowed();
        borrowed[..limit.min(borrowed.len())].iter().map(|frame| frame.len)
    }

    /// Returns the maximum length of a frame without fragments: that of a chunk.
    pub fn frame_bytes_max(&self) -> u32 {
        self.receiver.share.chunk_bytes()
    }

    /// Restores a VLAN tag that the device removed: inserts it after the addresses of the frame at
    /// `index`. The metadata still ends at the start of the frame. Does nothing if there is no such
    /// frame, if the chunk has no room, or if the frame is shorter than its addresses.
    pub fn restore_vlan(&mut self, index: usize, tag: VlanTag) {
        let Receiver { rx, share, borrowed, metadata_bytes, .. } = &mut *self.receiver;
        let Some(frame) = rx.held_mut()[..*borrowed].get_mut(index) else { return };
        // SAFETY: the frame is borrowed: it was accepted, and its chunk was not returned.
        let (chunk, offset) = unsafe { share.chunk_of(frame) };
        let start = offset.checked_sub(*metadata_bytes as usize).unwrap_or(offset);
        if frame.len < MAC_ADDRESSES_LEN || start < VLAN_TAG_LEN {
            return;
        }
        let tag_at = offset + MAC_ADDRESSES_LEN as usize - VLAN_TAG_LEN;
        chunk.copy_within(start..tag_at + VLAN_TAG_LEN, start - VLAN_TAG_LEN);
        chunk[tag_at..][..2].copy_from_slice(&tag.tpid.to_be_bytes());
        chunk[tag_at + 2..][..2].copy_from_slice(&tag.tci.to_be_bytes());
        // The frame still lies in its chunk.
        frame.addr -= VLAN_TAG_LEN as u64;
        frame.len += VLAN_TAG_LEN as u32;
    }
}

/// Returns true if the frame continues in the next descriptor.
#[inline]
fn continues(desc: &libc::xdp_desc) -> bool {
    desc.options & libc::XDP_PKT_CONTD != 0
}

/// Makes an [`RxFrame`] of a descriptor.
///
/// # Safety
/// `frame` was accepted, and its chunk is not returned during `'batch`.
#[inline]
unsafe fn frame_of<'batch>(view: View<'batch>, frame: &libc::xdp_desc) -> RxFrame<'batch> {
    // SAFETY: guaranteed by the caller.
    let (bytes, metadata) = unsafe { (view.bytes(frame), view.bytes_before(frame)) };
    RxFrame { bytes, metadata, continues: continues(frame), address: frame.addr }
}

impl Drop for RxBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        self.receiver.return_chunks();
    }
}

/// Number of frames that the kernel has put on an RX ring, for threads other than the reader's.
#[derive(Debug)]
pub struct RxCount {
    ring: Arc<Mapped<libc::xdp_desc>>,
    /// Number of taken descriptors.
    taken: AtomicU64,
    /// Number of them that are no frame of their own: they continue, or were invalid.
    without_frame: AtomicU64,
}

impl RxCount {
    fn new(ring: Arc<Mapped<libc::xdp_desc>>) -> Self {
        Self { ring, taken: AtomicU64::new(0), without_frame: AtomicU64::new(0) }
    }

    /// Returns the number of frames since the socket was opened, taken or not. A frame on the ring
    /// counts once for each of its descriptors until it is taken.
    pub fn frames(&self) -> u64 {
        // Acquire: the descriptors without a frame are among the taken ones.
        let without_frame = self.without_frame.load(Ordering::Acquire);
        let taken = self.taken.load(Ordering::Relaxed);
        // Relaxed: the result is a count, and no slot is read because of it. Both indices start at
        // 0, and the ring has less than 2^32 slots.
        let waiting = self.ring.producer().load(Ordering::Relaxed).wrapping_sub(taken as u32);
        taken + u64::from(waiting) - without_frame
    }

    /// Counts taken descriptors.
    #[inline]
    fn add(&self, taken: usize, without_frame: usize) {
        self.taken.fetch_add(taken as u64, Ordering::Relaxed);
        if without_frame > 0 {
            self.without_frame.fetch_add(without_frame as u64, Ordering::Release);
        }
    }
}
