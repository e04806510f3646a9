//! One flow: its key, its counts, and what its TCP headers show.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use strait_packet::tcp::flags::{ACK, FIN, RST, SYN};

use crate::address::multiply;
use crate::community_id;
use crate::headers::{Headers, Internet, Tcp};

/// Time in which a segment below the highest one is taken for reordered, if no round trip has been
/// measured, as in Wireshark.
const REORDER_NS: u64 = 3_000_000;

/// Endpoints of a flow, the smaller one first, with protocol and VLAN. In words, which are compared
/// and hashed faster than fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Addresses; an IPv4 address is in the lower half of the second word.
    addresses: [[u64; 2]; 2],
    /// Ports in the lower half, protocol, VLAN, and the bits below.
    rest: u64,
}

/// Position of the protocol in the rest of a key.
const PROTOCOL: u32 = 32;
/// Position of the VLAN identifier.
const VLAN: u32 = 40;
/// The flow has a VLAN identifier.
const HAS_VLAN: u64 = 1 << 56;
/// It has ports, or type and code of ICMP: fragments and other protocols have none.
const HAS_PORTS: u64 = 1 << 57;
/// The addresses are those of IPv6.
const IS_IPV6: u64 = 1 << 58;

impl Key {
    /// Returns the key of a packet, and true if its source is the second endpoint.
    pub(super) fn of(headers: &Headers) -> Option<(Self, bool)> {
        let Internet { source, destination, protocol, fragment_offset, .. } = headers.internet.as_ref()?;
        let mut rest = u64::from(*protocol) << PROTOCOL;
        rest |= headers.vlan.map_or(0, |vlan| u64::from(vlan) << VLAN | HAS_VLAN);
        rest |= if source.is_ipv6() { IS_IPV6 } else { 0 };
        let ends = [words(source), words(destination)];
        if fragment_offset.is_some() {
            // Later fragments have no ports: all fragments of a packet are in one flow.
            let is_swapped = ends[0] > ends[1];
            return Some((Self::between(ends, [0, 0], is_swapped, rest), is_swapped));
        }
        if let Some([kind, code]) = headers.icmp {
            // Requests and responses of ICMP are flows of their own: their types differ.
            let ports = [kind.into(), code.into()];
            return Some((Self::between(ends, ports, false, rest | HAS_PORTS), false));
        }
        let ports = headers.ports.unwrap_or_default();
        rest |= if headers.ports.is_some() { HAS_PORTS } else { 0 };
        let is_swapped = (ends[0], ports[0]) > (ends[1], ports[1]);
        Some((Self::between(ends, ports, is_swapped, rest), is_swapped))
    }

    fn between([one, other]: [[u64; 2]; 2], ports: [u16; 2], is_swapped: bool, rest: u64) -> Self {
        let ports = ports.map(u64::from);
        if is_swapped {
            Self { addresses: [other, one], rest: rest | ports[1] << 16 | ports[0] }
        } else {
            Self { addresses: [one, other], rest: rest | ports[0] << 16 | ports[1] }
        }
    }

    fn addresses(&self) -> [IpAddr; 2] {
        self.addresses.map(|[high, low]| {
            if self.rest & IS_IPV6 == 0 {
                Ipv4Addr::from_bits(low as u32).into()
            } else {
                Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).into()
            }
        })
    }

    fn ports(&self) -> Option<[u16; 2]> {
        (self.rest & HAS_PORTS != 0).then_some([(self.rest >> 16) as u16, self.rest as u16])
    }

    fn protocol(&self) -> u8 {
        (self.rest >> PROTOCOL) as u8
    }

    fn vlan(&self) -> Option<u16> {
        (self.rest & HAS_VLAN != 0).then_some((self.rest >> VLAN) as u16)
    }

    pub(super) fn community_id(&self) -> String {
        let [one, other] = self.addresses();
        community_id::of(one, other, self.protocol(), self.ports())
    }

    pub(super) fn community_hash(&self) -> [u8; community_id::HASH_BYTES] {
        let [one, other] = self.addresses();
        community_id::hash(one, other, self.protocol(), self.ports())
    }

    /// Multiplies halves of the key with each other, each changed by a random number.
    pub(super) fn hash(&self, seeds: [u64; 2]) -> u64 {
        let fold = |one, other| multiply([one, other], seeds);
        let [one, other] = self.addresses;
        if self.rest & IS_IPV6 == 0 {
            return fold(one[1] << 32 | other[1], self.rest);
        }
        fold(fold(one[0], one[1]), fold(other[0], other[1]).rotate_left(17) ^ self.rest)
    }
}

/// Returns an address in words that are ordered like the addresses of its family.
fn words(address: &IpAddr) -> [u64; 2] {
    match address {
        IpAddr::V4(address) => [0, address.to_bits().into()],
        IpAddr::V6(address) => [(address.to_bits() >> 64) as u64, address.to_bits() as u64],
    }
}

/// Returns the TCP header of a whole packet. All fragments between two addresses are in one flow,
/// whatever their connections are.
fn tcp_of(headers: &Headers) -> Option<Tcp> {
    let is_whole = headers.internet.as_ref().is_some_and(|internet| internet.fragment_offset.is_none());
    headers.tcp.filter(|_| is_whole)
}

/// Reason for the end of a flow, with the number of IPFIX's `flowEndReason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// No packet for the idle timeout.
    Idle = 1,
    /// The active timeout: the flow continues in another row.
    Active = 2,
    /// TCP has ended it, or started another connection.
    Detected = 3,
    /// The capture has ended.
    Forced = 4,
    /// The table of flows was full.
    LackOfResources = 5,
}

/// Counts of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// Packets.
    pub packets: u64,
    /// Bytes of packets with their IP headers.
    pub octets: u64,
    /// TCP flag bits of all packets; none if no packet had a TCP header.
    pub flags: Option<u16>,
    /// Segments that were sent again.
    pub retransmitted: u32,
    /// Segments that arrived after later ones.
    pub out_of_order: u32,
    /// Packets with a receive window of 0.
    pub zero_windows: u32,
}

/// What is known of the sequence numbers of one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Sequence {
    /// Sequence number after the highest segment; none before the first.
    next: Option<u32>,
    /// Time at which it advanced.
    advanced_ns: u64,
    /// Sequence number after the FIN.
    after_fin: Option<u32>,
}

/// Measurement of the time from the source's SYN to its acknowledgment of the response.
#[derive(Clone, Copy, Debug)]
enum Handshake {
    /// No SYN of the source, and no acknowledgment.
    Unseen,
    /// Time of the SYN.
    Sent(u64),
    /// Duration in nanoseconds.
    Measured(u64),
    /// Acknowledgment without the SYN.
    Unmeasured,
}

/// Flow that has not ended.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) key: Key,
    pub(super) start_ns: u64,
    pub(super) last_ns: u64,
    /// Time of the table at the last packet. Unlike the packet's own time, it ascends in the list.
    pub(super) seen_ns: u64,
    /// True if the second endpoint of the key is the source.
    is_swapped: bool,
    /// Counts from the source, and from the destination.
    sides: [Side; 2],
    sequences: [Sequence; 2],
    /// Number of the source's SYN, from itself or from the response that acknowledges it. The
    /// response may be captured before the SYN, on another lane.
    syn: Option<u32>,
    handshake: Handshake,
    interface: u32,
    lane: u32,
}

/// Row of a flow that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRow {
    /// Time of the first packet.
    pub start_ns: u64,
    /// Time of the last packet.
    pub end_ns: u64,
    /// Source, which has sent the first packet, or the SYN of it.
    pub source: IpAddr,
    /// Destination.
    pub destination: IpAddr,
    /// Ports; type and code of ICMP.
    pub ports: Option<[u16; 2]>,
    /// IP protocol.
    pub protocol: u8,
    /// Outermost VLAN identifier.
    pub vlan: Option<u16>,
    /// Counts from the source, and from the destination.
    pub sides: [Side; 2],
    /// Time from the SYN to the acknowledgment that completes the handshake.
    pub handshake_ns: Option<u64>,
    /// Reason for the end.
    pub reason: EndReason,
    /// Number of the interface of the first packet.
    pub interface: u32,
    /// Lane of the first packet.
    pub lane: u32,
}

impl Flow {
    pub(super) fn new(key: Key, is_swapped: bool, headers: &Headers) -> Self {
        // The first captured packet can be the response to a SYN.
        let is_response = tcp_of(headers).is_some_and(|tcp| tcp.flags & (SYN | ACK) == SYN | ACK);
        Self {
            key,
            start_ns: headers.time_ns,
            last_ns: headers.time_ns,
            seen_ns: 0,
            is_swapped: is_swapped != is_response,
            sides: [Side::default(); 2],
            sequences: [Sequence::default(); 2],
            syn: None,
            handshake: Handshake::Unseen,
            interface: headers.interface,
            lane: headers.lane,
        }
    }

    pub(super) fn has_packets(&self) -> bool {
        self.sides.iter().any(|side| side.packets > 0)
    }

    /// Returns true for a SYN of another connection. One that is sent again has the same number.
    pub(super) fn is_other_connection(&self, headers: &Headers) -> bool {
        let Some(tcp) = tcp_of(headers).filter(|tcp| tcp.flags & (SYN | ACK) == SYN) else { return false };
        self.has_packets() && self.syn != Some(tcp.sequence)
    }

    /// Starts the next row of a flow that goes on. What is known of TCP stays.
    pub(super) fn restart(&mut self, headers: &Headers) {
        self.start_ns = headers.time_ns;
        self.sides = [Side::default(); 2];
    }

    /// Counts a packet. Returns true if it ends the flow.
    pub(super) fn take(&mut self, headers: &Headers, is_swapped: bool) -> bool {
        // Lanes deliver packets of a flow out of order.
        self.start_ns = self.start_ns.min(headers.time_ns);
        self.last_ns = self.last_ns.max(headers.time_ns);
        let from = usize::from(is_swapped != self.is_swapped);
        let Some(internet) = headers.internet.as_ref() else { return false };
        let side = &mut self.sides[from];
        side.packets += 1;
        side.octets += u64::from(internet.length);
        let Some(tcp) = tcp_of(headers) else { return false };
        side.flags = Some(side.flags.unwrap_or_default() | tcp.flags);
        if tcp.window == 0 && tcp.flags & (SYN | FIN | RST) == 0 {
            side.zero_windows = side.zero_windows.saturating_add(1);
        }
        self.time_handshake(from, &tcp, headers.time_ns);
        self.follow(from, &tcp, internet.payload_length, headers.time_ns);
        tcp.flags & RST != 0 || self.is_closed(from, &tcp)
    }

    /// Measures the time from the source's SYN to its acknowledgment of the response.
    fn time_handshake(&mut self, from: usize, tcp: &Tcp, now_ns: u64) {
        match (from, tcp.flags & (SYN | ACK), self.handshake) {
            (0, SYN, Handshake::Unseen) => {
                self.syn = Some(tcp.sequence);
                self.handshake = Handshake::Sent(now_ns);
            }
            (1, flags, _) if flags == SYN | ACK => {
                self.syn.get_or_insert(tcp.acknowledgment.wrapping_sub(1));
            }
            (0, ACK, Handshake::Unseen | Handshake::Sent(_))
                if self.sequences[1].next == Some(tcp.acknowledgment) =>
            {
                self.handshake = match self.handshake {
                    Handshake::Sent(at_ns) => Handshake::Measured(now_ns.saturating_sub(at_ns)),
                    _ => Handshake::Unmeasured,
                };
            }
            _ => {}
        }
    }

    fn handshake_ns(&self) -> Option<u64> {
        if let Handshake::Measured(duration_ns) = self.handshake { Some(duration_ns) } else { None }
    }

    /// Compares a segment with the highest one before it, as Wireshark does.
    fn follow(&mut self, from: usize, tcp: &Tcp, payload_length: u32, now_ns: u64) {
        let data = payload_length.saturating_sub(tcp.header_length.into());
        let flags = u32::from(tcp.flags & SYN != 0) + u32::from(tcp.flags & FIN != 0);
        let end = tcp.sequence.wrapping_add(data).wrapping_add(flags);
        let limit_ns = self.handshake_ns().unwrap_or(REORDER_NS);
        let sequence = &mut self.sequences[from];
        if tcp.flags & FIN != 0 {
            sequence.after_fin = Some(end);
        }
        let Some(next) = sequence.next.filter(|_| data + flags > 0) else {
            if sequence.next.is_none() && tcp.flags & RST == 0 {
                (sequence.next, sequence.advanced_ns) = (Some(end), now_ns);
            }
            return;
        };
        let is_ahead = (tcp.sequence.wrapping_sub(next) as i32) >= 0;
        if is_ahead {
            (sequence.next, sequence.advanced_ns) = (Some(end), now_ns);
            return;
        }
        let is_keep_alive = data <= 1 && flags == 0 && tcp.sequence.wrapping_add(1) == next;
        let is_recent = now_ns.saturating_sub(sequence.advanced_ns) < limit_ns;
        if is_recent && end != next {
            self.sides[from].out_of_order = self.sides[from].out_of_order.saturating_add(1);
        } else if !is_keep_alive {
            self.sides[from].retransmitted = self.sides[from].retransmitted.saturating_add(1);
        }
        if (end.wrapping_sub(next) as i32) > 0 {
            (sequence.next, sequence.advanced_ns) = (Some(end), now_ns);
        }
    }

    /// Returns true if both directions have ended, and this packet acknowledges the last FIN.
    fn is_closed(&self, from: usize, tcp: &Tcp) -> bool {
        let [own, other] = [&self.sequences[from], &self.sequences[1 - from]];
        own.after_fin.is_some()
            && tcp.flags & ACK != 0
            && other.after_fin == Some(tcp.acknowledgment)
            && tcp.flags & FIN == 0
    }

    pub(super) fn row(&self, reason: EndReason) -> FlowRow {
        let [one, other] = self.key.addresses();
        let (source, destination) = if self.is_swapped { (other, one) } else { (one, other) };
        let ports =
            self.key.ports().map(|[one, other]| if self.is_swapped { [other, one] } else { [one, other] });
        FlowRow {
            start_ns: self.start_ns,
            end_ns: self.last_ns,
            source,
            destination,
            ports,
            protocol: self.key.protocol(),
            vlan: self.key.vlan(),
            sides: self.sides,
            handshake_ns: self.handshake_ns(),
            reason,
            interface: self.interface,
            lane: self.lane,
        }
    }
}
