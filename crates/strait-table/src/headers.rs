//! Fields of a packet that the tables need.
//!
//! The capture copies these fields out of the ring, so that the frame returns to the kernel before
//! a row is encoded. A field of a header that is cut is missing; nothing here fails.

use std::net::IpAddr;

use strait_packet::protocol::ip;
use strait_packet::tcp;
use strait_packet::vlan::Untagged;
use strait_packet::{Network, network_on};

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
}

/// Direction of a packet, as seen from the capturing host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
}

/// Fields of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Offset of a fragment in bytes; none if the packet is no fragment.
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
        let mut headers = Self {
            time_ns: packet.time_ns,
            length: packet.wire_len,
            captured_length: packet.bytes.len() as u32,
            interface: packet.interface,
            lane: packet.lane,
            direction: packet.direction,
            ether_type: None,
            vlan: None,
            inner_vlan: None,
            internet: None,
            ports: None,
            tcp: None,
            icmp: None,
        };
        if let Ok((untagged, network)) = network_on(packet.link_type, packet.bytes) {
            headers.set_link(&untagged);
            headers.set_network(&network);
        }
        headers
    }

    fn set_link(&mut self, untagged: &Untagged<'_>) {
        self.ether_type = Some(untagged.ether_type());
        let mut tags = untagged.tags().iter();
        self.vlan = tags.next().map(|tag| tag.id());
        self.inner_vlan = tags.next().map(|tag| tag.id());
    }

    fn set_network(&mut self, network: &Network<'_>) {
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
            }
            Network::Ipv6(packet, upper) => {
                let fragment = upper.fragment;
                self.internet = Some(Internet {
                    source: packet.source().into(),
                    destination: packet.destination().into(),
                    protocol: upper.protocol,
                    ttl: packet.hop_limit(),
                    identification: fragment.map(|fragment| fragment.identification),
                    fragment_offset: fragment.map(|fragment| fragment.offset),
                    length: (strait_packet::ipv6::HEADER_LEN + packet.payload_len()) as u32,
                    payload_length: upper.payload_len as u32,
                });
                let offset = fragment.map_or(0, |fragment| fragment.offset);
                self.set_transport(upper.protocol, offset, upper.payload);
            }
            Network::Arp(_) | Network::Other => {}
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
            self.tcp = tcp::Tcp::parse(payload).ok().map(|segment| Tcp {
                sequence: segment.sequence(),
                acknowledgment: segment.acknowledgment(),
                flags: segment.flags(),
                window: segment.window(),
                header_length: segment.header_len() as u8,
            });
        }
    }
}
