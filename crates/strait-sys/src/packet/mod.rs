//! `AF_PACKET` sockets and their rings: packet(7), `include/uapi/linux/if_packet.h`,
//! `net/packet/af_packet.c`.
//!
//! - [`Socket`]: the socket, its options, its filter, its statistics.
//! - [`v2::Ring`]: TPACKET_V2, one slot per frame; the kernel wakes the reader for each frame.
//! - [`v3::Ring`]: TPACKET_V3, blocks of frames; the kernel wakes the reader for each block.
//! - [`receive::Receiver`]: `recvmmsg` into preallocated buffers, without a ring.
//! - [`Cooked`]: the header before packets of `SOCK_DGRAM` sockets, for a capture on all
//!   interfaces.
//! - [`send::Batch`] and [`tx_ring::TxRing`]: `sendmmsg` and `PACKET_TX_RING`.
//!
//! The capture engines use it. Nothing here waits, sleeps or decides when to read.
//! `docs/sources.md` lists the papers D1 to D5.

mod cooked;
pub mod receive;
pub mod send;
mod socket;
pub mod tx_ring;
pub mod v2;
pub mod v3;

pub use cooked::Cooked;
pub use socket::{Fanout, Instruction, Socket, Statistics, bind_again};

/// 802.1Q or 802.1ad tag that the kernel removed from a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// Priority, drop eligibility and VLAN identifier, host byte order.
    pub tci: u16,
    /// 0x8100 or 0x88a8.
    pub tpid: u16,
}

/// `PACKET_OUTGOING`: the packet type of a frame that this host sent (if_packet.h).
pub const PACKET_OUTGOING: u8 = libc::PACKET_OUTGOING;

/// Length of a VLAN tag in a frame.
pub(crate) const VLAN_TAG_LEN: usize = 4;
/// Length of the destination and source addresses, which precede a VLAN tag.
const MAC_ADDRESSES_LEN: usize = 12;

/// Frame borrowed from a packet socket, with its VLAN tag restored.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Captured bytes, starting with the destination MAC address.
    pub bytes: &'a [u8],
    /// Length on the wire, including the tag, without the frame check sequence.
    pub wire_len: u32,
    /// Time at which the kernel received the frame, in nanoseconds of `CLOCK_REALTIME`.
    pub timestamp_ns: u64,
    /// Tag that the kernel had removed; `bytes` contains it again.
    pub vlan: Option<VlanTag>,
    /// `PACKET_HOST`, `PACKET_OUTGOING`, ... (if_packet.h).
    pub packet_type: u8,
    /// Index of the interface.
    pub ifindex: u32,
    /// Flow hash; 0 if it was not requested.
    pub rx_hash: u32,
}

/// Bit that this module sets in a `tp_status` after it inserted the VLAN tag, so that the tag is
/// not inserted twice. The bit is `TP_STATUS_COPY`, which the kernel sets only with
/// `PACKET_COPY_THRESH`; no code here uses that option.
const TAG_RESTORED: u32 = libc::TP_STATUS_COPY;

/// Fields of a ring header, common to TPACKET_V2 and V3.
struct Header {
    status: u32,
    mac: u16,
    captured: u32,
    wire_len: u32,
    seconds: u32,
    nanoseconds: u32,
    vlan_tci: u16,
    vlan_tpid: u16,
    rx_hash: u32,
}

impl Header {
    /// Returns the frame that this header, at `slot`, describes, with its tag restored or the
    /// `cooked` header before it. Offsets and lengths are limited to the `room` bytes of the slot,
    /// even if the kernel's header is wrong.
    ///
    /// # Safety
    /// The caller has exclusive read and write access to `room` bytes from `slot` on, including the
    /// `sockaddr_ll` at `address_offset`, for the lifetime of the frame.
    #[inline]
    unsafe fn frame<'a>(
        &self,
        slot: *mut u8,
        room: usize,
        address_offset: usize,
        cooked: Option<Cooked>,
    ) -> Frame<'a> {
        let mut offset = usize::from(self.mac).min(room);
        let mut len = (self.captured as usize).min(room - offset);
        let vlan = self.vlan();
        // SAFETY: the address lies in the slot, which the caller owns for 'a.
        let address = unsafe { &*slot.add(address_offset).cast::<libc::sockaddr_ll>() };
        let free = offset.saturating_sub(address_offset + size_of::<libc::sockaddr_ll>());
        let prefix = Prefix { cooked, vlan, restored: self.status & TAG_RESTORED != 0, address };
        // SAFETY: the `free` bytes before the packet belong to the slot and are unused, and the
        // packet has len bytes.
        let added = unsafe { prefix.insert(slot.add(offset), free, len) };
        offset -= added.captured;
        len += added.captured;
        // SAFETY: offset..offset+len lies in the slot, which the caller owns for 'a.
        let bytes = unsafe { std::slice::from_raw_parts(slot.add(offset), len) };
        Frame {
            bytes,
            wire_len: self.wire_len.saturating_add(added.wire),
            timestamp_ns: u64::from(self.seconds) * 1_000_000_000 + u64::from(self.nanoseconds),
            vlan,
            packet_type: address.sll_pkttype,
            ifindex: address.sll_ifindex as u32,
            rx_hash: self.rx_hash,
        }
    }

    #[inline]
    fn vlan(&self) -> Option<VlanTag> {
        vlan_of(self.status, self.vlan_tci, self.vlan_tpid)
    }
}

/// Header or VLAN tag to insert in a packet that the kernel delivered without it.
struct Prefix<'a> {
    cooked: Option<Cooked>,
    vlan: Option<VlanTag>,
    /// True if the tag was already restored.
    restored: bool,
    address: &'a libc::sockaddr_ll,
}

/// Growth of a packet by its restored or cooked header.
#[derive(Default)]
struct Added {
    /// Additional captured bytes.
    captured: usize,
    /// Additional bytes of the length on the wire.
    wire: u32,
}

impl Prefix<'_> {
    /// Writes the cooked header before `packet`, or inserts its VLAN tag, if `free` bytes suffice.
    /// In a ring's slot they always do, because of the alignment and `PACKET_RESERVE`.
    ///
    /// # Safety
    /// The caller has exclusive write access to the `free` bytes before `packet` and to its `len`
    /// bytes.
    #[inline]
    unsafe fn insert(&self, packet: *mut u8, free: usize, len: usize) -> Added {
        match (self.cooked, self.vlan) {
            (None, None) => Added::default(),
            // SAFETY: guaranteed by the caller.
            (None, Some(tag)) => unsafe { self.insert_tag(tag, packet, free, len) },
            // SAFETY: guaranteed by the caller.
            (Some(cooked), _) => unsafe { self.write_cooked(cooked, packet, free) },
        }
    }

    #[cold]
    unsafe fn write_cooked(&self, cooked: Cooked, packet: *mut u8, free: usize) -> Added {
        let (header, len) = cooked.header(self.address, self.vlan);
        if len > free {
            return Added { captured: 0, wire: len as u32 };
        }
        // SAFETY: the caller guarantees `free` bytes before the packet, and len is no more.
        unsafe { packet.sub(len).copy_from_nonoverlapping(header.as_ptr(), len) };
        Added { captured: len, wire: len as u32 }
    }

    /// Inserts the tag after the MAC addresses, which move down by four bytes. Does nothing to a
    /// frame that was cut within its addresses.
    #[cold]
    unsafe fn insert_tag(&self, tag: VlanTag, frame: *mut u8, free: usize, len: usize) -> Added {
        let wire = VLAN_TAG_LEN as u32;
        if len < MAC_ADDRESSES_LEN || free < VLAN_TAG_LEN {
            return Added { captured: 0, wire };
        }
        if !self.restored {
            // SAFETY: the caller guarantees four bytes before `frame` and twelve from it.
            unsafe {
                let start = frame.sub(VLAN_TAG_LEN);
                std::ptr::copy(frame, start, MAC_ADDRESSES_LEN);
                let at = start.add(MAC_ADDRESSES_LEN);
                at.cast::<[u8; 2]>().write_unaligned(tag.tpid.to_be_bytes());
                at.add(2).cast::<[u8; 2]>().write_unaligned(tag.tci.to_be_bytes());
            }
        }
        Added { captured: VLAN_TAG_LEN, wire }
    }
}

/// Returns the VLAN tag of a ring header, if its status has one. A kernel that does not store the
/// TPID removes only tags of 802.1Q.
#[inline]
fn vlan_of(status: u32, tci: u16, tpid: u16) -> Option<VlanTag> {
    const ETH_P_8021Q: u16 = 0x8100;
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID == 0 { ETH_P_8021Q } else { tpid };
    Some(VlanTag { tci, tpid })
}

#[cfg(test)]
mod tests;
