//! Counts of packets by flow and by protocol, and their delay to the program.

use std::collections::HashMap;
use std::sync::Arc;

use strait_capture::Frame;
use strait_capture::owners::Owner;
use strait_ledger::Histogram;
use strait_packet::FlowKey;
use strait_packet::protocol::{ether_type, ip};
use strait_packet::vlan::Untagged;
use strait_packet::{Network, network_on};

/// Maximum distinct flows in one interval. Packets of further flows are counted together.
const FLOWS_MAX: usize = 1 << 16;
/// The identifier in a VLAN tag.
const VLAN_ID: u16 = 0x0fff;
/// The delay of one in this many packets is measured.
const DELAY_SAMPLING: u64 = 16;

/// Packets and their bytes on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl Count {
    pub(super) fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Counts of an interval.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) all: Count,
    pub(super) flows: HashMap<FlowKey, Count>,
    /// Last known owner of each flow, if owners are recorded.
    pub(super) owners: HashMap<FlowKey, Arc<Owner>>,
    /// Packets of flows beyond [`FLOWS_MAX`].
    pub(super) other_flows: Count,
    pub(super) protocols: HashMap<&'static str, Count>,
    /// Time from the kernel's timestamp to the program.
    pub(super) delay: Histogram,
}

impl Tally {
    /// Counts a frame that was read at `now_ns` and begins with a header of `link_type`.
    pub(super) fn add(&mut self, frame: &Frame<'_>, link_type: u16, now_ns: u64, owner: Option<Arc<Owner>>) {
        let one = Count { packets: 1, bytes: frame.wire_len.into() };
        if self.all.packets.is_multiple_of(DELAY_SAMPLING) {
            self.delay.record(now_ns.saturating_sub(frame.timestamp_ns));
        }
        self.all.add(one);
        let parsed = network_on(link_type, frame.bytes);
        let flow =
            parsed.as_ref().ok().and_then(|(untagged, network)| FlowKey::of_network(untagged, network));
        let protocol = match &flow {
            Some(flow) => ip::name(flow.protocol).unwrap_or("other ip"),
            None => link_protocol(&parsed),
        };
        self.protocols.entry(protocol).or_default().add(one);
        if let Some(flow) = flow {
            // A cooked header does not contain the VLAN tag.
            let vlan = flow.vlan.or(frame.vlan.map(|vlan| vlan.tci & VLAN_ID));
            let flow = FlowKey { vlan, ..flow };
            self.add_flow(flow, one);
            if let Some(owner) = owner.filter(|_| self.flows.contains_key(&flow)) {
                self.owners.insert(flow, owner);
            }
        }
    }

    /// Adds to the count of one flow, and to no other count.
    fn add_flow(&mut self, flow: FlowKey, count: Count) {
        if self.flows.len() < FLOWS_MAX || self.flows.contains_key(&flow) {
            self.flows.entry(flow).or_default().add(count);
        } else {
            self.other_flows.add(count);
        }
    }

    /// Adds the flows of `later`, and no other counts.
    pub(super) fn add_flows(&mut self, later: Self) {
        for (flow, count) in later.flows {
            self.add_flow(flow, count);
        }
        let flows = &self.flows;
        self.owners.extend(later.owners.into_iter().filter(|(flow, _)| flows.contains_key(flow)));
        self.other_flows.add(later.other_flows);
    }
}

/// Returns the protocol of a frame without a complete IP packet.
fn link_protocol(parsed: &strait_packet::Result<(Untagged<'_>, Network<'_>)>) -> &'static str {
    match parsed {
        Ok((_, Network::Arp(_))) => "arp",
        Ok((untagged, Network::Other)) => ether_type::name(untagged.ether_type()).unwrap_or("other"),
        Ok(_) => "ip",
        Err(_) => "malformed",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use strait_capture::{Direction, Vlan};
    use strait_packet::summary::link_type;
    use strait_packet::traffic::{Kind, Traffic};

    use super::*;

    /// Returns a tally of generated packets.
    pub(crate) fn tally(packets: u64, flows: u32) -> Tally {
        let traffic = Traffic::builder().kinds(&[Kind::Udp4, Kind::Tcp6]).flows(flows).build().unwrap();
        let mut tally = Tally::default();
        let mut bytes = [0; 2048];
        for sequence in 0..packets {
            let len = traffic.write_frame(sequence, 0, &mut bytes);
            tally.add(&frame(&bytes[..len]), link_type::ETHERNET, 1_050_000, None);
        }
        tally
    }

    fn frame(bytes: &[u8]) -> Frame<'_> {
        Frame {
            bytes,
            wire_len: bytes.len() as u32,
            timestamp_ns: 1_000_000,
            interface: 1,
            queue: 0,
            vlan: None,
            direction: Direction::In,
            rx_hash: 0,
            hardware_ns: 0,
            owner: 0,
        }
    }

    #[test]
    fn each_packet_is_counted_once_by_flow_and_once_by_protocol() {
        let tally = tally(1000, 8);
        let sum = |counts: Vec<Count>| counts.iter().map(|count| count.packets).sum::<u64>();
        assert_eq!(tally.all.packets, 1000);
        assert_eq!(sum(tally.flows.values().copied().collect()), 1000);
        assert_eq!(sum(tally.protocols.values().copied().collect()), 1000);
        assert_eq!(tally.protocols.len(), 2);
        assert!((49_000..51_000).contains(&tally.delay.p50_ns()));
    }

    #[test]
    fn malformed_frames_are_counted() {
        let mut tally = Tally::default();
        tally.add(&frame(&[0; 6]), link_type::ETHERNET, 0, None);
        tally.add(&frame(&[0; 60]), link_type::LINUX_SLL2, 0, None);
        assert_eq!((tally.protocols["malformed"].packets, tally.protocols["other"].packets), (1, 1));
        assert_eq!(tally.other_flows.packets, 0);
    }

    #[test]
    fn flow_behind_a_cooked_header_has_the_vlan_of_the_frame() {
        let traffic = Traffic::builder().kinds(&[Kind::Udp4]).build().unwrap();
        let mut ethernet = [0; 2048];
        let len = traffic.write_frame(0, 0, &mut ethernet);
        let cooked = [&[8, 0], &[0; 18][..], &ethernet[14..len]].concat();
        let vlan = Some(Vlan { tci: 0x6005, tpid: 0x8100 });
        let mut tally = Tally::default();
        tally.add(&Frame { vlan, ..frame(&cooked) }, link_type::LINUX_SLL2, 0, None);
        let untagged = FlowKey::of(&ethernet[..len]).unwrap();
        assert_eq!(tally.flows.keys().collect::<Vec<_>>(), [&FlowKey { vlan: Some(5), ..untagged }]);
    }

    #[test]
    fn flows_above_the_limit_are_counted_together() {
        let mut tally = tally(70_000, 70_000);
        assert_eq!((tally.flows.len(), tally.other_flows.packets), (FLOWS_MAX, 70_000 - FLOWS_MAX as u64));
        let (flow, other) = (*tally.flows.values().next().unwrap(), tally.other_flows);
        tally.add_flows(tally.clone());
        assert_eq!(tally.flows.values().next().unwrap().packets, 2 * flow.packets);
        assert_eq!(tally.other_flows.packets, 2 * other.packets);
    }
}
