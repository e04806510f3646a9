//! Receiving: chunks go out on the fill ring and come back on the RX ring, with frames in them.
//!
//! [`Receiver::take`] lends what has come as an [`RxBatch`]; dropping the batch puts its chunks on the fill ring, all
//! at once. The fill ring has a slot for every chunk of the share, so there is always room. What the kernel hands
//! over is checked once, before a byte of it is reached: a descriptor that names a chunk which the kernel did not hold,
//! or bytes outside of it, is counted and skipped. Descriptors are read where they lie in the RX ring, and stay ours
//! until their batch drops.

use super::memory::Mapped;
use super::ring::{Consumer, Producer};
use super::umem::{Chunk, Share, View};
use crate::packet::{VLAN_TAG_LEN, VlanTag};

/// The destination and source addresses, which stand before a VLAN tag.
const MAC_ADDRESSES_LEN: u32 = 12;

/// More than any offset.
const NO_METADATA: u32 = u32::MAX;

/// The RX and fill rings of a socket, and the chunks that travel on them.
#[derive(Debug)]
pub struct Receiver {
    rx: Consumer<Mapped<libc::xdp_desc>>,
    fill: Producer<Mapped<u64>>,
    share: Share,
    /// How many frames are on loan: the first of the descriptors that `rx` holds.
    lent: usize,
    /// Whether one of them goes on in the next.
    fragmented: bool,
    /// [`NO_METADATA`] where there is none.
    metadata_bytes: u32,
    invalid: u64,
}

impl Receiver {
    /// Puts every chunk of `share` on the fill ring, which must have a slot for each.
    pub(super) fn new(
        rx: Consumer<Mapped<libc::xdp_desc>>,
        fill: Producer<Mapped<u64>>,
        share: Share,
    ) -> Self {
        let mut receiver =
            Self { rx, fill, share, lent: 0, fragmented: false, metadata_bytes: NO_METADATA, invalid: 0 };
        receiver.give_back();
        receiver
    }

    /// The frames that have come, lent until the batch drops: `limit` at most, and none beyond the end of the ring's
    /// memory, where the next batch begins. It may be empty; it never waits.
    #[inline]
    pub fn take(&mut self, limit: usize) -> RxBatch<'_> {
        self.give_back();
        let Self { rx, share, metadata_bytes, invalid, .. } = &mut *self;
        let metadata = *metadata_bytes != NO_METADATA;
        let held = rx.hold(u32::try_from(limit).unwrap_or(u32::MAX));
        let (mut lent, mut options) = share.accept(held, metadata);
        // The kernel is out of its mind: what makes no sense is skipped, and the rest closes up.
        let mut next = lent;
        while next < held.len() {
            share.put_aside(&held[next]);
            *invalid += 1;
            next += 1;
            let (accepted, more) = share.accept(&held[next..], metadata);
            held.copy_within(next..next + accepted, lent);
            (next, lent, options) = (next + accepted, lent + accepted, options | more);
        }
        self.lent = lent;
        self.fragmented = options & libc::XDP_PKT_CONTD != 0;
        RxBatch { receiver: self }
    }

    /// Whether a descriptor has come that was not taken. It never waits.
    #[inline]
    pub fn is_ready(&mut self) -> bool {
        self.rx.ready(1) > 0
    }

    /// How many have come and were not taken.
    pub fn waiting(&mut self) -> u32 {
        self.rx.ready(u32::MAX)
    }

    /// Says how long the metadata is that an XDP program writes in front of a frame. Its first eight are zeroed
    /// before the chunk goes back, so that it is not taken for metadata of the next frame there.
    pub fn set_metadata_bytes(&mut self, bytes: u32) {
        self.metadata_bytes = bytes;
    }

    /// Descriptors of the kernel that made no sense: not counted as frames, their chunks not touched.
    pub fn invalid_descriptors(&self) -> u64 {
        self.invalid
    }

    /// Whether the driver waits to be told of new chunks: call `Socket::wake_rx`, or wait with poll(2), which
    /// tells it too.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Number of chunks that travel on these rings.
    pub fn chunks(&self) -> u32 {
        self.share.chunks()
    }

    /// The descriptors of the frames on loan.
    #[inline]
    fn lent(&self) -> &[libc::xdp_desc] {
        &self.rx.held()[..self.lent]
    }

    /// Returns every chunk that this process holds to the kernel.
    #[inline]
    fn give_back(&mut self) {
        let Self { rx, fill, share, lent, fragmented, metadata_bytes, .. } = self;
        if rx.held().is_empty() && share.free_chunks() == 0 {
            return;
        }
        let frames = &rx.held()[..*lent];
        if *metadata_bytes != NO_METADATA {
            // SAFETY: the frames are on loan: they were accepted, and their chunks are still ours.
            unsafe { share.clear_before(frames, *metadata_bytes) };
        }
        let pushed = fill.push_all(&mut frames.iter().map(share.relend()));
        // Only a kernel that claims chunks it was not given leaves no room; those chunks wait for better times.
        for frame in &frames[pushed..] {
            share.relend()(frame);
            share.put_aside(frame);
        }
        *lent = 0;
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
    let pushed = fill.push(share.lend(chunk));
    debug_assert!(pushed, "there was room");
}

/// Frames on loan; dropping it returns their chunks to the kernel.
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

/// A frame lent by the kernel, or a fragment of one.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'batch> {
    /// The frame, from the destination MAC address on.
    pub bytes: &'batch [u8],
    /// What stands before the frame in its chunk; the last bytes are those that an XDP program added with
    /// `bpf_xdp_adjust_meta`. They mean nothing before a fragment other than the first.
    pub metadata: &'batch [u8],
    /// Whether the frame goes on in the next descriptor (`XDP_PKT_CONTD`).
    pub continues: bool,
    /// Where the frame stands in the UMEM's share.
    pub address: u64,
}

impl RxBatch<'_> {
    /// Number of frames and fragments.
    pub fn len(&self) -> usize {
        self.receiver.lent
    }

    /// Whether nothing had come.
    pub fn is_empty(&self) -> bool {
        self.receiver.lent == 0
    }

    /// Whether a frame in it goes on in the next descriptor, here or in a later batch.
    pub fn is_fragmented(&self) -> bool {
        self.receiver.fragmented
    }

    /// The frame at `index`, oldest first.
    #[inline]
    pub fn get(&self, index: usize) -> Option<RxFrame<'_>> {
        let view = self.receiver.share.view();
        // SAFETY: what is on loan was accepted, and goes back when this batch drops.
        self.receiver.lent().get(index).map(|frame| unsafe { lend(view, frame) })
    }

    /// The frames, oldest first.
    #[inline]
    pub fn frames(&self) -> impl ExactSizeIterator<Item = RxFrame<'_>> {
        self.first(self.len())
    }

    /// The first `limit` of them.
    #[inline]
    pub fn first(&self, limit: usize) -> impl ExactSizeIterator<Item = RxFrame<'_>> {
        let view = self.receiver.share.view();
        let lent = self.receiver.lent();
        // SAFETY: as for `get`.
        lent[..limit.min(lent.len())].iter().map(move |frame| unsafe { lend(view, frame) })
    }

    /// Puts a VLAN tag that the device took out back into the frame at `index`, between its addresses and the rest.
    /// The metadata goes on ending where the frame begins. Nothing happens where there is no such frame, no room, or no
    /// address.
    pub fn restore_vlan(&mut self, index: usize, tag: VlanTag) {
        let Receiver { rx, share, lent, metadata_bytes, .. } = &mut *self.receiver;
        let Some(frame) = rx.held_mut()[..*lent].get_mut(index) else { return };
        // SAFETY: the frame is on loan: it was accepted, and its chunk is still ours.
        let (chunk, offset) = unsafe { share.chunk_of(frame) };
        let start = offset.checked_sub(*metadata_bytes as usize).unwrap_or(offset);
        if frame.len < MAC_ADDRESSES_LEN || start < VLAN_TAG_LEN {
            return;
        }
        let tag_at = offset + MAC_ADDRESSES_LEN as usize - VLAN_TAG_LEN;
        chunk.copy_within(start..tag_at + VLAN_TAG_LEN, start - VLAN_TAG_LEN);
        chunk[tag_at..][..2].copy_from_slice(&tag.tpid.to_be_bytes());
        chunk[tag_at + 2..][..2].copy_from_slice(&tag.tci.to_be_bytes());
        // It still lies in its chunk.
        frame.addr -= VLAN_TAG_LEN as u64;
        frame.len += VLAN_TAG_LEN as u32;
    }
}

/// A frame on loan.
///
/// # Safety
/// It was accepted, and its chunk is not returned in `'batch`.
#[inline]
unsafe fn lend<'batch>(view: View<'batch>, frame: &libc::xdp_desc) -> RxFrame<'batch> {
    // SAFETY: as the caller vouches.
    let (bytes, metadata) = unsafe { (view.bytes(frame), view.in_front(frame)) };
    let continues = frame.options & libc::XDP_PKT_CONTD != 0;
    RxFrame { bytes, metadata, continues, address: frame.addr }
}

impl Drop for RxBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        self.receiver.give_back();
    }
}
