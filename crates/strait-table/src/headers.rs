//! Fields of a packet that the tables need.
//!
//! The capture copies these fields out of the ring, so that the frame returns to the kernel before
//! a row is encoded. A field of a header that is cut is missing; nothing here fails.

use std::net::IpAddr;
use std::sync::Arc;

use strait_packet::ethernet::Ethernet;
use strait_packet::protocol::ip;
use strait_packet::summary::link_type;
use strait_packet::vlan::{self, Tag, Untagged};
use strait_packet::{Network, network_on, tcp};
pub use strait_pcapng::Direction;

use crate::extras::Owner;

/// Captured packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Captured bytes.
    pub bytes: &'a [u8],
    /// Link type of the bytes (`LINKTYPE_*`).
    pub link_type: u16,
    /// Length on the wire in bytes.
    pub wire_len: u32,
    /// Nanoseconds since the epoch.
    pub time_ns: u64,
    /// Number of the interface.
    pub interface: u32,
    /// Lane that received it.
    pub lane: u32,
    /// Direction as seen from the capturing host.
    pub direction: Option<Direction>,
    /// Owner of its socket, if it is known.
    pub owner: Option<&'a Arc<Owner>>,
}

/// Fields of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Nanoseconds since the epoch.
    pub time_ns: u64,
    /// Length on the wire in bytes.
    pub length: u32,
    /// Captured bytes.
    pub captured_length: u32,
    /// Number of the interface.
    pub interface: u32,
    /// Lane that received the packet.
    pub lane: u32,
    /// Direction as seen from the capturing host.
    pub direction: Option<Direction>,
    /// Position of the frame's bytes among those that the column `frame` needs.
    pub(crate) frame_at: u32,
    /// Position of the owner among those of the block.
    pub(crate) owner: Option<u16>,
    /// Source and destination address of an Ethernet header.
    pub macs: Option<[[u8; 6]; 2]>,
    /// Ethernet type of the payload after VLAN tags.
    pub ether_type: Option<u16>,
    /// Outermost VLAN identifier.
    pub vlan: Option<u16>,
    /// Second VLAN identifier.
    pub inner_vlan: Option<u16>,
    /// Fields of the IP header.
    pub internet: Option<Internet>,
    /// Source and destination port of TCP, UDP, SCTP and UDP-Lite.
    pub ports: Option<[u16; 2]>,
    /// Fields of the TCP header.
    pub tcp: Option<Tcp>,
    /// Type and code of ICMP and ICMPv6.
    pub icmp: Option<[u8; 2]>,
}

/// Fields of an IPv4 or IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Internet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol of the payload, after IPv6 extension headers.
    pub protocol: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Identification; in IPv6 only fragments have one.
    pub identification: Option<u32>,
    /// Offset of a fragment in bytes; none if the packet is whole.
    pub fragment_offset: Option<u32>,
    /// Length of the packet with its IP header, in bytes.
    pub length: u32,
    /// Length of the payload of the transport protocol's header, header included, in bytes.
    pub payload_length: u32,
}

/// Fields of a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgment number.
    pub acknowledgment: u32,
    /// The nine flag bits.
    pub flags: u16,
    /// Receive window, unscaled.
    pub window: u16,
    /// Length of the header in bytes.
    pub header_length: u8,
}

impl Headers {
    /// Reads the headers of a packet.
    pub fn of(packet: &Packet<'_>) -> Self {
        let mut headers = Self::default();
        headers.read(packet);
        headers
    }

    /// Reads the headers of a packet into new ones, in place, as a copy costs as much as a parse.
    /// Returns the transport header and its payload; nothing if there is no IP header.
    pub(crate) fn read<'a>(&mut self, packet: &Packet<'a>) -> &'a [u8] {
        self.time_ns = packet.time_ns;
        self.length = packet.wire_len;
        self.captured_length = packet.bytes.len() as u32;
        self.interface = packet.interface;
        self.lane = packet.lane;
        self.direction = packet.direction;
        let is_ethernet = packet.link_type == link_type::ETHERNET;
        if is_ethernet && let Some((destination, rest)) = packet.bytes.split_first_chunk() {
            self.macs = rest.first_chunk().map(|source| [*source, *destination]);
        }
        match network_on(packet.link_type, packet.bytes) {
            Ok((untagged, network)) => {
                self.set_link(&untagged);
                self.set_network(&network)
            }
            Err(_) if is_ethernet => {
                self.set_cut_link(packet.bytes);
                &[]
            }
            Err(_) => &[],
        }
    }

    fn set_link(&mut self, untagged: &Untagged<'_>) {
        self.ether_type = Some(untagged.ether_type());
        let mut tags = untagged.tags().iter();
        self.vlan = tags.next().map(|tag| tag.id());
        self.inner_vlan = tags.next().map(|tag| tag.id());
    }

    /// Reads the tags and the type of a frame in which a later header is cut or malformed.
    fn set_cut_link(&mut self, frame: &[u8]) {
        let Ok(ethernet) = Ethernet::parse(frame) else { return };
        let (mut ether_type, mut rest) = (ethernet.ether_type(), ethernet.payload());
        let mut tags = 0;
        while vlan::is_tag(ether_type) {
            let Some((&[a, b, c, d], after)) = rest.split_first_chunk().filter(|_| tags < vlan::TAGS_MAX)
            else {
                return;
            };
            let id = Some(Tag { tpid: ether_type, tci: u16::from_be_bytes([a, b]) }.id());
            match tags {
                0 => self.vlan = id,
                1 => self.inner_vlan = id,
                _ => {}
            }
            (ether_type, rest) = (u16::from_be_bytes([c, d]), after);
            tags += 1;
        }
        self.ether_type = Some(ether_type);
    }

    /// Sets the fields of the network and transport headers. Returns the payload of the network
    /// header.
    fn set_network<'a>(&mut self, network: &Network<'a>) -> &'a [u8] {
        match network {
            Network::Ipv4(packet) => {
                let payload_length = packet.payload_len() as u32;
                self.internet = Some(Internet {
                    source: packet.source().into(),
                    destination: packet.destination().into(),
                    protocol: packet.protocol(),
                    ttl: packet.ttl(),
                    identification: Some(packet.identification().into()),
                    fragment_offset: packet.is_fragment().then(|| packet.fragment_offset()),
                    length: packet.header_len() as u32 + payload_length,
                    payload_length,
                });
                self.set_transport(packet.protocol(), packet.fragment_offset(), packet.payload());
                packet.payload()
            }
            Network::Ipv6(packet, upper) => {
                let fragment = upper.fragment;
                // An atomic fragment is a whole packet (RFC 6946).
                let part = fragment.filter(|fragment| fragment.more || fragment.offset > 0);
                self.internet = Some(Internet {
                    source: packet.source().into(),
                    destination: packet.destination().into(),
                    protocol: upper.protocol,
                    ttl: packet.hop_limit(),
                    identification: fragment.map(|fragment| fragment.identification),
                    fragment_offset: part.map(|fragment| fragment.offset),
                    length: (strait_packet::ipv6::HEADER_LEN + packet.payload_len()) as u32,
                    payload_length: upper.payload_len as u32,
                });
                let offset = fragment.map_or(0, |fragment| fragment.offset);
                self.set_transport(upper.protocol, offset, upper.payload);
                upper.payload
            }
            Network::Arp(_) | Network::Other => &[],
        }
    }

    /// Reads ports, and fields of TCP and ICMP. The bytes of a later fragment are the middle of a
    /// payload.
    fn set_transport(&mut self, protocol: u8, fragment_offset: u32, payload: &[u8]) {
        const SCTP: u8 = 132;
        const UDP_LITE: u8 = 136;
        if fragment_offset > 0 {
            return;
        }
        if matches!(protocol, ip::ICMP | ip::ICMPV6) {
            self.icmp = payload.first_chunk().copied();
        }
        if !matches!(protocol, ip::TCP | ip::UDP | SCTP | UDP_LITE) {
            return;
        }
        if let Some(&[a, b, c, d]) = payload.first_chunk() {
            self.ports = Some([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]);
        }
        if protocol == ip::TCP {
            self.tcp = payload.first_chunk().and_then(Tcp::read);
        }
    }
}

impl Tcp {
    /// Reads the fixed part of a header. A snaplen may cut the options, which no table has.
    fn read(header: &[u8; tcp::HEADER_LEN]) -> Option<Self> {
        let be16 = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let be32 = |at: usize| u32::from(be16(at)) << 16 | u32::from(be16(at + 2));
        let header_length = (header[12] >> 4) * 4;
        // Shorter than the fixed part: these bytes are no TCP header.
        (usize::from(header_length) >= tcp::HEADER_LEN).then(|| Self {
            sequence: be32(4),
            acknowledgment: be32(8),
            flags: be16(12) & 0x1ff,
            window: be16(14),
            header_length,
        })
    }
}
