//! Memory that the program shares with its reader, and offsets in kernel structures.

use crate::offsets::offsets;

/// Offset of the number of drops without a place because the hash was full, 64 bits.
pub const UNCOUNTED: usize = 0;
/// Offset of the number of packets without a record because the ring was full, 64 bits.
pub const LOST: usize = 8;
/// Size of the value with these numbers.
pub const STATE_BYTES: usize = 16;

offsets! {
    skb_dev: sk_buff.dev,
    skb_sk: sk_buff.sk,
    skb_iif: sk_buff.skb_iif,
    skb_protocol: sk_buff.protocol,
    skb_data_len: sk_buff.data_len,
    skb_head: sk_buff.head,
    /// Offset from `head`, as on all 64-bit kernels.
    skb_tail: sk_buff.tail,
    skb_mac_header: sk_buff.mac_header,
    skb_network_header: sk_buff.network_header,
    device_ifindex: net_device.ifindex,
    device_net: net_device.nd_net,
    /// A `struct sock` starts with a `sock_common`.
    sock_net: sock_common.skc_net,
    net_ns: net.ns,
    ns_inum: ns_common.inum,
}

pub(super) const LOCATION: i16 = 0;
pub(super) const REASON: i16 = 8;
pub(super) const IFINDEX: i16 = 12;
pub(super) const NAMESPACE: i16 = 16;
pub(super) const ETHER_TYPE: i16 = 20;
pub(super) const IP_PROTOCOL: i16 = 22;
pub(super) const PAD: i16 = 23;

/// Types that places distinguish, in the order of their frequency: those with names in a summary,
/// 0 if the kernel has set none, and 4, the kernel's number for frames of IEEE 802.3.
pub const ETHER_TYPES: [u16; 21] = [
    0x0800, 0x86dd, 0x0806, 0, 0x8100, 0x88a8, 0x9100, 4, 0x88cc, 0x888e, 0x8847, 0x8848, 0x8863, 0x8864,
    0x8035, 0x8808, 0x8809, 0x88a2, 0x88e5, 0x88f7, 0x9000,
];
/// Protocols of IP that places distinguish: those with names in a summary, and headers of IPv6.
pub const IP_PROTOCOLS: [u8; 22] =
    [17, 6, 1, 58, 2, 0, 4, 33, 41, 46, 47, 50, 51, 89, 103, 112, 132, 136, 43, 44, 59, 60];

/// Place and reason of drops: the key of the hash. Fields are in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Bytes 0 to 7: address in the kernel function that dropped the packets.
    pub location: u64,
    /// Bytes 8 to 11: `enum skb_drop_reason`.
    pub reason: u32,
    /// Bytes 12 to 15: index of the interface; 0 if there is none.
    pub ifindex: u32,
    /// Bytes 16 to 19: inode number of the network namespace; 0 if it is unknown.
    pub namespace: u32,
    /// Bytes 20 and 21: type of the packets as in Ethernet; 0 if the kernel has not set it,
    /// [`OTHER_TYPE`](Self::OTHER_TYPE) if it is none of [`ETHER_TYPES`].
    pub ether_type: u16,
    /// Byte 22: protocol of an IP packet; 0 if it is unknown,
    /// [`OTHER_PROTOCOL`](Self::OTHER_PROTOCOL) if it is none of [`IP_PROTOCOLS`].
    pub ip_protocol: u8,
}

impl Place {
    /// Size in memory; the last byte is 0.
    pub const BYTES: usize = 24;
    /// Type of all packets of other types. It is reserved (RFC 1701).
    pub const OTHER_TYPE: u16 = 0xffff;
    /// Protocol of all IP packets of other protocols. It is reserved (IANA).
    pub const OTHER_PROTOCOL: u8 = 255;

    /// Returns the place in `bytes`.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let [location @ .., a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, e0, e1, protocol, _] = *bytes;
        Self {
            location: u64::from_ne_bytes(location),
            reason: u32::from_ne_bytes([a0, a1, a2, a3]),
            ifindex: u32::from_ne_bytes([b0, b1, b2, b3]),
            namespace: u32::from_ne_bytes([c0, c1, c2, c3]),
            ether_type: u16::from_ne_bytes([e0, e1]),
            ip_protocol: protocol,
        }
    }
}

pub(super) const TIME: i16 = 24;
pub(super) const WIRE: i16 = 32;
pub(super) const CAPTURED: i16 = 36;
pub(super) const LINK: i16 = 40;

/// Link types of records (`LINKTYPE_*`).
pub(super) const LINK_ETHERNET: i32 = 1;
pub(super) const LINK_RAW: i32 = 101;

/// Header of a record, followed by the copied bytes. Fields are in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Bytes 0 to 23.
    pub place: Place,
    /// Bytes 24 to 31: `CLOCK_MONOTONIC` in nanoseconds.
    pub timestamp_ns: u64,
    /// Bytes 32 to 35: length of the packet from its first copied byte.
    pub wire_len: u32,
    /// Bytes 36 to 39: number of copied bytes; 0 if the packet has no header that is known.
    pub captured: u32,
    /// Bytes 40 to 43: 1 if the copied bytes begin with an Ethernet header, 101 with an IP header.
    pub link_type: u32,
}

impl Record {
    /// Size of the header; the last four bytes are unused.
    pub const BYTES: usize = 48;

    /// Returns the header in `bytes`, and the copied bytes. `None` if they are shorter than stated.
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, rest) = bytes.split_first_chunk::<{ Self::BYTES }>()?;
        let (place, rest_of_header) = header.split_first_chunk::<{ Place::BYTES }>()?;
        let (time, words) = rest_of_header.split_first_chunk::<8>()?;
        let word = |at: usize| Some(u32::from_ne_bytes(words.get(at..at + 4)?.try_into().ok()?));
        let record = Self {
            place: Place::parse(place),
            timestamp_ns: u64::from_ne_bytes(*time),
            wire_len: word(0)?,
            captured: word(4)?,
            link_type: word(8)?,
        };
        Some((record, rest.get(..record.captured as usize)?))
    }
}
