//! Receiving: chunks go out on the fill ring and come back on the RX ring, with frames in them.
//!
//! [`Receiver::take`] lends what has come as an [`RxBatch`]; dropping the batch puts its chunks on the fill ring, all
//! at once. The fill ring has a slot for every chunk of the share, so there is always room. What the kernel hands
//! over is checked before a byte of it is reached: a descriptor that names a chunk which the kernel did not hold, or
//! bytes outside of it, is counted and skipped.

use super::memory::Mapped;
use super::ring::{Consumer, Producer};
use super::umem::{Chunk, Share};
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
    /// What the batch on loan holds.
    taken: Vec<Received>,
    /// Whether one of them goes on in the next.
    fragmented: bool,
    /// [`NO_METADATA`] where there is none.
    metadata_bytes: u32,
    invalid: u64,
}

/// A frame, or a fragment of one, in a chunk of ours.
#[derive(Debug)]
struct Received {
    chunk: Chunk,
    offset: u32,
    len: u32,
    options: u32,
}

impl Receiver {
    /// Puts every chunk of `share` on the fill ring, which must have a slot for each.
    pub(super) fn new(
        rx: Consumer<Mapped<libc::xdp_desc>>,
        fill: Producer<Mapped<u64>>,
        share: Share,
        rx_slots: u32,
    ) -> Self {
        let taken = Vec::with_capacity(rx_slots as usize);
        let mut receiver =
            Self { rx, fill, share, taken, fragmented: false, metadata_bytes: NO_METADATA, invalid: 0 };
        receiver.give_back();
        receiver
    }

    /// The frames that have come, at most `limit`, lent until the batch drops. It may be empty; it never waits.
    #[inline]
    pub fn take(&mut self, limit: usize) -> RxBatch<'_> {
        self.give_back();
        let limit = limit.min(self.taken.capacity()) as u32;
        let ready = self.rx.ready(limit).min(limit);
        for _ in 0..ready {
            let descriptor = self.rx.pop_ready();
            self.accept(&descriptor);
        }
        if ready > 0 {
            self.rx.release();
        }
        RxBatch { receiver: self }
    }

    /// Descriptors that have come and were not taken. It never waits.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        self.rx.ready(1)
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

    #[inline]
    fn accept(&mut self, descriptor: &libc::xdp_desc) {
        let &libc::xdp_desc { addr, len, options } = descriptor;
        let Some((chunk, offset)) = self.share.reclaim(addr) else {
            self.invalid += 1;
            return;
        };
        if len > self.share.chunk_bytes() - offset {
            self.invalid += 1;
            self.share.put_free(chunk);
            return;
        }
        self.share.prefetch(&chunk, offset, self.metadata_bytes != NO_METADATA);
        self.fragmented |= options & libc::XDP_PKT_CONTD != 0;
        self.taken.push(Received { chunk, offset, len, options });
    }

    /// Returns every chunk that this process holds to the kernel.
    #[inline]
    fn give_back(&mut self) {
        let Self { fill, share, taken, .. } = self;
        if taken.is_empty() && share.free_chunks() == 0 {
            return;
        }
        if self.metadata_bytes != NO_METADATA {
            for Received { chunk, offset, .. } in taken.iter_mut() {
                if let Some(start) = offset.checked_sub(self.metadata_bytes) {
                    share.clear(chunk, start);
                }
            }
        }
        for Received { chunk, .. } in taken.drain(..) {
            refill(fill, share, chunk);
        }
        self.fragmented = false;
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
    if fill.room(1) == 0 {
        // Only a kernel that claims chunks it was not given leaves no room; the chunk waits for better times.
        share.put_free(chunk);
        return;
    }
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
        self.receiver.taken.len()
    }

    /// Whether nothing had come.
    pub fn is_empty(&self) -> bool {
        self.receiver.taken.is_empty()
    }

    /// Whether a frame in it goes on in the next descriptor, here or in a later batch.
    pub fn is_fragmented(&self) -> bool {
        self.receiver.fragmented
    }

    /// The frame at `index`, oldest first.
    #[inline]
    pub fn get(&self, index: usize) -> Option<RxFrame<'_>> {
        self.receiver.taken.get(index).map(|received| self.lend(received))
    }

    /// The frames, oldest first.
    #[inline]
    pub fn frames(&self) -> impl ExactSizeIterator<Item = RxFrame<'_>> {
        self.receiver.taken.iter().map(|received| self.lend(received))
    }

    /// Puts a VLAN tag that the device took out back into the frame at `index`, between its addresses and the rest.
    /// The metadata goes on ending where the frame begins. Nothing happens where there is no such frame, no room, or no
    /// address.
    pub fn restore_vlan(&mut self, index: usize, tag: VlanTag) {
        let Receiver { taken, share, metadata_bytes, .. } = &mut *self.receiver;
        let Some(received) = taken.get_mut(index) else { return };
        let metadata_bytes = if *metadata_bytes > received.offset { 0 } else { *metadata_bytes };
        let start = received.offset - metadata_bytes;
        if received.len < MAC_ADDRESSES_LEN || start < VLAN_TAG_LEN as u32 {
            return;
        }
        let tag_at = (received.offset + MAC_ADDRESSES_LEN) as usize - VLAN_TAG_LEN;
        let bytes = share.bytes_mut(&mut received.chunk);
        bytes.copy_within(start as usize..tag_at + VLAN_TAG_LEN, start as usize - VLAN_TAG_LEN);
        bytes[tag_at..][..2].copy_from_slice(&tag.tpid.to_be_bytes());
        bytes[tag_at + 2..][..2].copy_from_slice(&tag.tci.to_be_bytes());
        received.offset -= VLAN_TAG_LEN as u32;
        received.len += VLAN_TAG_LEN as u32;
    }

    #[inline]
    fn lend<'a>(&'a self, received: &'a Received) -> RxFrame<'a> {
        let &Received { ref chunk, offset, len, options } = received;
        let share = &self.receiver.share;
        RxFrame {
            bytes: share.bytes(chunk, offset..offset + len),
            metadata: share.bytes(chunk, 0..offset),
            continues: options & libc::XDP_PKT_CONTD != 0,
            address: share.address(chunk, offset),
        }
    }
}

impl Drop for RxBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        self.receiver.give_back();
    }
}
