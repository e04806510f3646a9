//! One frame with its varying fields set to zero, and the code that fills them in.
//!
//! ```text
//!  |Ethernet|(VLAN)|IPv4 or IPv6     |UDP or TCP       |probe                 |zeros
//!                    ^     ^   ^       ^      ^   ^           ^         ^
//!                  check- low 32 bits ports  two check-    sequence    sent_ns
//!                  sum    of addresses            sum
//! ```
//!
//! The sums over all other fields are stored with the bytes, so that the checksums of a frame need
//! only a few additions. The same offsets and sums serve a generator that runs in the kernel as an
//! eBPF program.

use super::FLOW_LOW_BITS;
use super::builder::{ADDRESSES_V6, TrafficBuilder};
use crate::checksum::Sum;
use crate::protocol::{ether_type, ip};
use crate::{ethernet, ipv4, ipv6, probe, tcp, udp, vlan};

/// Protocols of a generated frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// UDP over IPv4: at least 64 bytes with the frame check sequence.
    Udp4,
    /// TCP over IPv4: at least 76 bytes with the frame check sequence.
    Tcp4,
    /// UDP over IPv6: at least 84 bytes.
    Udp6,
    /// TCP over IPv6: at least 96 bytes.
    Tcp6,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Udp4, Self::Tcp4, Self::Udp6, Self::Tcp6];

    /// Returns true for IPv6.
    pub fn is_v6(self) -> bool {
        matches!(self, Self::Udp6 | Self::Tcp6)
    }

    /// Returns true for TCP.
    pub fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp4 | Self::Tcp6)
    }

    fn protocol(self) -> u8 {
        if self.is_tcp() { ip::TCP } else { ip::UDP }
    }

    fn network_len(self) -> usize {
        if self.is_v6() { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN }
    }

    fn transport_len(self) -> usize {
        if self.is_tcp() { tcp::HEADER_LEN } else { udp::HEADER_LEN }
    }
}

/// Offsets of the varying fields in a frame, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// The IP header.
    pub network: usize,
    /// The UDP or TCP header.
    pub transport: usize,
    /// The low 32 bits of the source address (for IPv4 all of it).
    pub source_address: usize,
    /// The low 32 bits of the destination address.
    pub destination_address: usize,
    /// The IPv4 header checksum; IPv6 has none.
    pub header_checksum: Option<usize>,
    /// The source port, 16 bits; the destination port follows it.
    pub source_port: usize,
    /// The destination port, 16 bits.
    pub destination_port: usize,
    /// The UDP or TCP checksum.
    pub transport_checksum: usize,
    /// The probe's 64-bit sequence number.
    pub sequence: usize,
    /// The probe's 64-bit time.
    pub sent_ns: usize,
}

/// Values of flow 0 in the fields that vary by flow. For flow `f`, `f mod 2^14` is added to source
/// address and source port, and `f div 2^14` to destination address and destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bases {
    /// Low 32 bits of the source address.
    pub source_address: u32,
    /// Low 32 bits of the destination address.
    pub destination_address: u32,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

/// A frame with zeroes in its varying fields.
#[derive(Clone, Debug)]
pub struct FrameTemplate {
    bytes: Vec<u8>,
    kind: Kind,
    offsets: Offsets,
    bases: Bases,
    header_sum: u16,
    transport_sum: u16,
}

impl FrameTemplate {
    /// Returns the frame: all fields of [`Offsets`] are zero, all others are complete.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the protocols of the frame.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the offsets of the varying fields.
    pub fn offsets(&self) -> &Offsets {
        &self.offsets
    }

    /// Returns the values of flow 0 in the fields that vary by flow.
    pub fn bases(&self) -> &Bases {
        &self.bases
    }

    /// Returns the folded sum over the IPv4 header with its varying fields zero; 0 for IPv6. Add
    /// the address words and complement the sum for the header checksum.
    pub fn header_sum(&self) -> u16 {
        self.header_sum
    }

    /// Returns the folded sum over pseudo header, transport header and payload with the varying
    /// fields zero. Add the words of the varying fields and complement the sum for the checksum;
    /// UDP sends 0 as 0xffff.
    pub fn transport_sum(&self) -> u16 {
        self.transport_sum
    }

    /// Returns the minimum length of a frame of `kind` in bytes, without the frame check sequence:
    /// headers and one probe.
    pub fn len_min(kind: Kind, tagged: bool) -> usize {
        let tag_len = if tagged { vlan::TAG_LEN } else { 0 };
        ethernet::HEADER_LEN + tag_len + kind.network_len() + kind.transport_len() + probe::LEN
    }

    /// Returns the template of `kind` with `len` bytes, or the minimum length for a probe if that
    /// is larger.
    pub(super) fn new(builder: &TrafficBuilder, kind: Kind, len: usize) -> Self {
        let len = len.max(Self::len_min(kind, builder.vlan.is_some()));
        let mut bytes = vec![0; len];
        let network = write_link(&mut bytes, builder, kind);
        let offsets = Offsets::of(kind, network);
        let addresses_sum = write_network(&mut bytes[network..], kind);
        write_transport(&mut bytes[offsets.transport..], kind);
        let magic = offsets.sequence - probe::SEQUENCE_AT;
        bytes[magic..offsets.sequence].copy_from_slice(&probe::MAGIC.to_be_bytes());
        let header_sum = match offsets.header_checksum {
            Some(_) => sum_of(&bytes[network..offsets.transport]).fold(),
            None => 0,
        };
        let segment = &bytes[offsets.transport..];
        let mut transport_sum = sum_of(segment);
        transport_sum.add_u64(addresses_sum);
        transport_sum.add_u32(segment.len() as u32 + u32::from(kind.protocol()));
        let transport_sum = transport_sum.fold();
        Self { bytes, kind, offsets, bases: builder.bases(kind), header_sum, transport_sum }
    }

    /// Fills in the varying fields. `frame` has the length of the template.
    #[inline]
    pub(super) fn patch(&self, flow: u32, sequence: u64, now_ns: u64, frame: &mut [u8]) {
        let (offsets, bases) = (&self.offsets, &self.bases);
        let (low, high) = (flow & ((1 << FLOW_LOW_BITS) - 1), flow >> FLOW_LOW_BITS);
        let source = bases.source_address.wrapping_add(low);
        let destination = bases.destination_address.wrapping_add(high);
        let source_port = bases.source_port.wrapping_add(low as u16);
        let destination_port = bases.destination_port.wrapping_add(high as u16);
        let ports = u32::from(source_port) << 16 | u32::from(destination_port);
        put(frame, offsets.source_address, source.to_be_bytes());
        put(frame, offsets.destination_address, destination.to_be_bytes());
        put(frame, offsets.source_port, ports.to_be_bytes());
        put(frame, offsets.sequence, sequence.to_be_bytes());
        put(frame, offsets.sent_ns, now_ns.to_be_bytes());
        let mut addresses = Sum::new();
        addresses.add_u32(source);
        addresses.add_u32(destination);
        if let Some(at) = offsets.header_checksum {
            let mut sum = addresses;
            sum.add_u16(self.header_sum);
            put(frame, at, sum.finish().to_be_bytes());
        }
        let mut sum = addresses;
        sum.add_u16(self.transport_sum);
        sum.add_u32(ports);
        sum.add_u64(sequence);
        sum.add_u64(now_ns);
        let checksum = if self.kind.is_tcp() { sum.finish() } else { sum.finish_udp() };
        put(frame, offsets.transport_checksum, checksum.to_be_bytes());
    }
}

impl Offsets {
    fn of(kind: Kind, network: usize) -> Self {
        let transport = network + kind.network_len();
        let probe = transport + kind.transport_len();
        let (source, destination) = if kind.is_v6() { (20, 36) } else { (12, 16) };
        Self {
            network,
            transport,
            source_address: network + source,
            destination_address: network + destination,
            header_checksum: (!kind.is_v6()).then_some(network + 10),
            source_port: transport,
            destination_port: transport + 2,
            transport_checksum: transport + if kind.is_tcp() { 16 } else { 6 },
            sequence: probe + probe::SEQUENCE_AT,
            sent_ns: probe + probe::SENT_AT,
        }
    }
}

#[inline]
fn put<const N: usize>(frame: &mut [u8], at: usize, bytes: [u8; N]) {
    frame[at..at + N].copy_from_slice(&bytes);
}

fn sum_of(bytes: &[u8]) -> Sum {
    let mut sum = Sum::new();
    sum.add(bytes);
    sum
}

/// Writes the Ethernet header and the tag; returns the offset of the IP header.
fn write_link(frame: &mut [u8], builder: &TrafficBuilder, kind: Kind) -> usize {
    let ether_type = if kind.is_v6() { ether_type::IPV6 } else { ether_type::IPV4 };
    put(frame, 0, builder.destination_mac.0);
    put(frame, 6, builder.source_mac.0);
    if let Some(id) = builder.vlan {
        put(frame, 12, ether_type::VLAN.to_be_bytes());
        put(frame, 14, id.to_be_bytes());
        put(frame, 16, ether_type.to_be_bytes());
        return ethernet::HEADER_LEN + vlan::TAG_LEN;
    }
    put(frame, 12, ether_type.to_be_bytes());
    ethernet::HEADER_LEN
}

/// Writes the IP header without the varying fields; returns the sum of the constant address words.
fn write_network(packet: &mut [u8], kind: Kind) -> u64 {
    if kind.is_v6() {
        let payload_len = (packet.len() - ipv6::HEADER_LEN) as u16;
        packet[0] = 0x60;
        put(packet, 4, payload_len.to_be_bytes());
        packet[6] = kind.protocol();
        packet[7] = HOP_LIMIT;
        let [source, destination] = ADDRESSES_V6.map(|a| a.octets());
        packet[8..20].copy_from_slice(&source[..12]);
        packet[24..36].copy_from_slice(&destination[..12]);
        return u64::from(sum_of(&packet[8..40]).fold());
    }
    let total_len = packet.len() as u16;
    packet[0] = 0x45;
    put(packet, 2, total_len.to_be_bytes());
    packet[6] = 0x40; // do not fragment: identification 0 is then allowed (RFC 6864 s4)
    packet[8] = HOP_LIMIT;
    packet[9] = kind.protocol();
    0
}

/// Time to live of generated packets.
const HOP_LIMIT: u8 = 64;

/// Writes the UDP or TCP header without the varying fields. A TCP segment has constant sequence
/// numbers: it is a valid segment, not part of a connection.
fn write_transport(segment: &mut [u8], kind: Kind) {
    if kind.is_tcp() {
        put(segment, 4, 1u32.to_be_bytes());
        put(segment, 8, 1u32.to_be_bytes());
        let offset_and_flags = (5 << 12) | tcp::flags::PSH | tcp::flags::ACK;
        put(segment, 12, offset_and_flags.to_be_bytes());
        put(segment, 14, u16::MAX.to_be_bytes());
    } else {
        let len = segment.len() as u16;
        put(segment, 4, len.to_be_bytes());
    }
}
