//! View of a frame as a packet socket's filter sees it, over bytes that may still contain the VLAN
//! tag.
//!
//! The kernel removes the outermost 802.1Q or 802.1ad tag before packet sockets see a frame.
//! [`View`] does so by arithmetic on offsets, without moving bytes. The interpreter reads through
//! it, and the translation uses the same constants.

use super::{Metadata, Vlan};
use crate::cbpf::opcode as op;

/// Length of an Ethernet header: destination, source and type.
pub(crate) const ETHERNET_HEADER_LEN: usize = 14;
/// Offset of the type or of the outermost tag.
pub(crate) const ETHERTYPE_OFFSET: usize = 12;
/// Bytes of one VLAN tag.
pub(crate) const TAG_LEN: usize = 4;
/// Minimum length of a tagged frame: `skb_vlan_untag` needs a tag and two more bytes, and drops
/// shorter frames.
pub(crate) const TAGGED_LEN_MIN: usize = ETHERNET_HEADER_LEN + TAG_LEN + 2;
/// Ethertypes of the tags that the kernel removes: 802.1Q and 802.1ad.
pub(crate) const TAG_TYPES: [u16; 2] = [0x8100, 0x88a8];
/// Smallest ethertype (`ETH_P_802_3_MIN`). Smaller values in the type field are lengths.
pub(crate) const ETHERTYPE_MIN: u16 = 0x0600;
/// `ETH_P_802_3`: raw 802.3 without an 802.2 header, recognized by 0xffff after the length.
pub(crate) const ETHERTYPE_802_3: u16 = 0x0001;
/// `ETH_P_802_2`: any other frame with a length in the type field.
pub(crate) const ETHERTYPE_802_2: u16 = 0x0004;

/// Returns the packet type of a received Ethernet frame, as `eth_type_trans` sets it.
pub fn ethernet_pkttype(destination: [u8; 6], device: [u8; 6]) -> u8 {
    let pkttype = if destination == device {
        op::PACKET_HOST
    } else if destination == [0xff; 6] {
        op::PACKET_BROADCAST
    } else if destination[0] & 1 != 0 {
        op::PACKET_MULTICAST
    } else {
        op::PACKET_OTHERHOST
    };
    pkttype as u8
}

/// Bytes of a frame without the `hidden` bytes from offset `at` on.
pub(super) struct View<'a> {
    frame: &'a [u8],
    at: usize,
    hidden: usize,
}

impl<'a> View<'a> {
    /// Returns a view of all bytes.
    pub(super) fn whole(frame: &'a [u8]) -> Self {
        Self { frame, at: ETHERTYPE_OFFSET, hidden: 0 }
    }

    /// Returns a view of all bytes except a tag at `at`.
    pub(super) fn without_tag(frame: &'a [u8], at: usize) -> Self {
        Self { frame, at, hidden: TAG_LEN.min(frame.len().saturating_sub(at)) }
    }

    /// Returns the number of visible bytes.
    pub(super) fn len(&self) -> u32 {
        (self.frame.len() - self.hidden) as u32
    }

    /// Loads a big-endian value of `size` (`W`, `H` or `B`) from a classic offset, which may be
    /// negative.
    pub(super) fn load(&self, offset: i32, size: u16) -> Option<u32> {
        let at = resolve(offset)?;
        match size {
            op::W => self.bytes(at).map(u32::from_be_bytes),
            op::H => self.bytes(at).map(|bytes| u32::from(u16::from_be_bytes(bytes))),
            _ => self.bytes::<1>(at).map(|[byte]| u32::from(byte)),
        }
    }

    /// Returns `N` visible bytes from `at` on.
    pub(super) fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let at = if at >= self.at { at + self.hidden } else { at };
        let straddles = at < self.at && at + N > self.at && self.hidden != 0;
        if straddles {
            return self.straddling(at);
        }
        self.frame.get(at..at + N)?.try_into().ok()
    }

    fn straddling<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (byte, at) in bytes.iter_mut().zip(at..) {
            let at = if at >= self.at { at + self.hidden } else { at };
            *byte = *self.frame.get(at)?;
        }
        Some(bytes)
    }
}

/// Resolves a classic offset like `bpf_skb_load_helper_convert_offset`, for an Ethernet frame that
/// starts at its link-layer header.
pub(crate) fn resolve(offset: i32) -> Option<usize> {
    let at = if offset >= 0 {
        offset
    } else if offset >= op::SKF_NET_OFF {
        offset - op::SKF_NET_OFF + ETHERNET_HEADER_LEN as i32
    } else if offset >= op::SKF_LL_OFF {
        offset - op::SKF_LL_OFF
    } else {
        return None;
    };
    usize::try_from(at).ok()
}

/// Prepares a received frame as the kernel does before packet sockets see it. Returns `None` if the
/// kernel drops it.
pub(super) fn untag<'a>(frame: &'a [u8], meta: &Metadata) -> Option<(View<'a>, Metadata)> {
    let outer = be16(frame, ETHERTYPE_OFFSET)?;
    let mut meta = *meta;
    let mut view = View::whole(frame);
    if TAG_TYPES.contains(&outer) && meta.vlan.is_none() {
        if frame.len() < TAGGED_LEN_MIN {
            return None;
        }
        meta.vlan = Some(Vlan { tci: be16(frame, ETHERNET_HEADER_LEN)?, tpid: outer });
        meta.wire_len = meta.wire_len.saturating_sub(TAG_LEN as u32);
        view.hidden = TAG_LEN;
    }
    meta.protocol = protocol(&view)?;
    Some((view, meta))
}

/// Returns the frame's `skb->protocol`: its ethertype, or the kind of 802.3 frame.
fn protocol(view: &View<'_>) -> Option<u16> {
    let kind = view.bytes(ETHERTYPE_OFFSET).map(u16::from_be_bytes)?;
    Some(if kind >= ETHERTYPE_MIN {
        kind
    } else if view.bytes(ETHERNET_HEADER_LEN) == Some([0xff; 2]) {
        ETHERTYPE_802_3
    } else {
        ETHERTYPE_802_2
    })
}

fn be16(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?))
}
