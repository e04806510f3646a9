//! Owners of connections, for their packets that have no socket: those after its end, and received
//! ones that the programs do not look up.

use std::sync::Arc;

use strait_packet::FlowKey;
use strait_packet::protocol::ip;

use super::{Generations, Owner};

const FIN: u8 = 1 << 0;
const SYN: u8 = 1 << 1;
const RST: u8 = 1 << 2;
const ACK: u8 = 1 << 4;
/// Time after the last packet with an owner in which another packet can have it: `TIME_WAIT`.
const AGE_MAX_NS: u64 = 60_000_000_000;
/// Time after both ends have closed a connection. Then its ports may have another one.
const CLOSED_AGE_MAX_NS: u64 = 1_000_000_000;

/// Packet of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) flow: FlowKey,
    pub(super) sent: bool,
    /// Flags of TCP, 0 of another protocol; none if the snaplen has cut them.
    pub(super) flags: Option<u8>,
    pub(super) timestamp_ns: u64,
}

impl Packet {
    /// Returns true if the packet is known to have the flag.
    fn has(&self, flag: u8) -> bool {
        self.flags.is_some_and(|flags| flags & flag != 0)
    }
}

/// Owners of the connections of an interface, with an entry for both directions.
pub(super) struct Flows {
    entries: Generations<FlowKey, Entry>,
    /// Both ends of a connection are on this host: each direction has an entry.
    is_loopback: bool,
}

/// Owner of a flow, and the number of changes at which its details were read.
struct Known {
    owner: Arc<Owner>,
    changes: u64,
}

/// Last owners of a connection.
#[derive(Default)]
struct Entry {
    /// Of received packets, and of sent ones. They differ if this host also sent the received ones.
    owners: [Option<Known>; 2],
    /// The last packet with an owner was sent.
    last_sent: bool,
    last_ns: u64,
    /// Time of the end in each direction.
    ends_ns: [Option<u64>; 2],
}

impl Flows {
    pub(super) fn new(is_loopback: bool) -> Self {
        Self { entries: Generations::default(), is_loopback }
    }

    /// Returns true if no connection is known.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets all connections.
    pub(super) fn clear(&mut self) {
        self.entries = Generations::default();
    }

    /// Records the owner of a packet, the process `pid` with its details as of `changes`. `read`
    /// reads them if they are not known. Returns the owner, and true if no packet of the connection
    /// had it.
    pub(super) fn own<E>(
        &mut self,
        packet: &Packet,
        (pid, changes): (u32, u64),
        read: impl FnOnce() -> Result<(Arc<Owner>, u64), E>,
    ) -> Result<(Arc<Owner>, bool), E> {
        let key = self.key(packet);
        // One lookup for almost every packet: this is most of its cost.
        let entry = self.entries.entry(key);
        let is_first = !entry.owners.iter().flatten().any(|known| known.owner.pid == pid);
        if begins(packet) {
            *entry = Entry::default();
        }
        let known = &mut entry.owners[usize::from(packet.sent)];
        let owner = match known {
            Some(known) if (known.owner.pid, known.changes) == (pid, changes) => Arc::clone(&known.owner),
            _ => {
                let (owner, changes) = read()?;
                *known = Some(Known { owner: Arc::clone(&owner), changes });
                owner
            }
        };
        (entry.last_sent, entry.last_ns) = (packet.sent, packet.timestamp_ns);
        entry.end(packet);
        if packet.has(RST) {
            self.entries.remove(&key);
        }
        Ok((owner, is_first))
    }

    /// Returns the owner of a packet without a socket, from the packets before it.
    pub(super) fn infer(&mut self, packet: &Packet) -> Option<Arc<Owner>> {
        // Fragments of all connections between two hosts have one flow.
        let FlowKey { protocol, source, destination, .. } = packet.flow;
        if protocol != ip::TCP || source.port == 0 || destination.port == 0 {
            return None;
        }
        let key = self.key(packet);
        if packet.flags.is_none() {
            // It may end the connection or begin another one.
            self.entries.remove(&key);
            return None;
        }
        let entry = self.entries.get_mut(&key)?;
        if begins(packet) || entry.is_over(packet.timestamp_ns, self.is_loopback) {
            self.entries.remove(&key);
            return None;
        }
        // A sent packet never has the owner of received ones, who may have sent those.
        let owner = &entry.owners[usize::from(packet.sent || entry.last_sent)];
        let owner = owner.as_ref().map(|known| Arc::clone(&known.owner));
        entry.end(packet);
        if packet.has(RST) {
            self.entries.remove(&key);
        }
        owner
    }

    /// Returns the flow of sent packets; of each direction on the loopback interface.
    fn key(&self, packet: &Packet) -> FlowKey {
        let flow = packet.flow;
        if packet.sent || self.is_loopback {
            return flow;
        }
        FlowKey { source: flow.destination, destination: flow.source, ..flow }
    }
}

impl Entry {
    /// Notes the end of the packet's direction.
    fn end(&mut self, packet: &Packet) {
        if packet.has(FIN) {
            self.ends_ns[usize::from(packet.sent)].get_or_insert(packet.timestamp_ns);
        }
    }

    fn is_over(&self, now_ns: u64, is_loopback: bool) -> bool {
        let closed_ns = match self.ends_ns {
            [Some(one), Some(other)] => Some(one.max(other)),
            [_, sent] if is_loopback => sent,
            _ => None,
        };
        let is_closed = closed_ns.is_some_and(|closed| now_ns.saturating_sub(closed) > CLOSED_AGE_MAX_NS);
        is_closed || now_ns.saturating_sub(self.last_ns) > AGE_MAX_NS
    }
}

/// Returns true for the first packet of a connection.
fn begins(packet: &Packet) -> bool {
    packet.has(SYN) && !packet.has(ACK)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use strait_packet::Endpoint;

    use super::*;

    const LISTENER: u32 = 10;
    const WORKER: u32 = 20;
    const PEER: u32 = 30;

    fn packet(sent: bool, flags: u8, timestamp_ns: u64) -> Packet {
        let [here, there] = [(1, 80), (2, 4000)]
            .map(|(host, port)| Endpoint { address: Ipv4Addr::new(10, 0, 0, host).into(), port });
        let (source, destination) = if sent { (here, there) } else { (there, here) };
        let flow = FlowKey { vlan: None, protocol: ip::TCP, source, destination };
        Packet { flow, sent, flags: Some(flags), timestamp_ns }
    }

    /// Records the owner of a packet. Returns true if no packet of the connection had it.
    fn own(flows: &mut Flows, packet: &Packet, pid: u32) -> bool {
        let read = || Ok::<_, ()>((Arc::new(Owner { pid, details: None }), 0));
        let (owner, is_first) = flows.own(packet, (pid, 0), read).unwrap();
        assert_eq!(owner.pid, pid);
        is_first
    }

    /// Returns the owner of a received packet without a socket at this time.
    fn received(flows: &mut Flows, ns: u64) -> Option<u32> {
        flows.infer(&packet(false, ACK, ns)).map(|owner| owner.pid)
    }

    /// Returns a connection of which the listener received the first packet, and the worker sent.
    fn accepted() -> Flows {
        let mut flows = Flows::new(false);
        own(&mut flows, &packet(false, SYN, 0), LISTENER);
        own(&mut flows, &packet(true, SYN | ACK, 0), LISTENER);
        assert_eq!(received(&mut flows, 1), Some(LISTENER));
        own(&mut flows, &packet(true, ACK, 2), WORKER);
        flows
    }

    #[test]
    fn received_packets_follow_the_process_that_sends() {
        let mut flows = accepted();
        assert_eq!(received(&mut flows, 3), Some(WORKER));
        assert_eq!(received(&mut flows, 4), Some(WORKER));
    }

    #[test]
    fn sent_packet_never_has_the_owner_of_received_ones() {
        let mut flows = accepted();
        assert!(own(&mut flows, &packet(false, ACK, 3), PEER));
        assert!(!own(&mut flows, &packet(false, ACK, 4), PEER));
        assert_eq!(received(&mut flows, 5), Some(PEER));
        assert_eq!(flows.infer(&packet(true, ACK, 6)).unwrap().pid, WORKER);
    }

    #[test]
    fn details_are_read_again_after_a_change_only() {
        let mut flows = Flows::new(false);
        let mut reads = 0;
        let changes = [0, 0, 1, 1, 1].map(|changes| {
            let read = || {
                reads += 1;
                Ok::<_, ()>((Arc::new(Owner { pid: WORKER, details: None }), changes))
            };
            flows.own(&packet(true, ACK, 1), (WORKER, changes), read).unwrap().1
        });
        assert_eq!((changes, reads), ([true, false, false, false, false], 2));
        let failed = flows.own(&packet(true, ACK, 1), (PEER, 1), || Err("no details"));
        assert_eq!(failed.unwrap_err(), "no details");
        assert_eq!(flows.infer(&packet(true, ACK, 2)).unwrap().pid, WORKER);
    }

    #[test]
    fn another_connection_of_the_ports_has_no_earlier_owner() {
        let mut flows = accepted();
        assert!(flows.infer(&packet(false, SYN, 3)).is_none());
        assert_eq!(received(&mut flows, 4), None);
        let mut flows = accepted();
        assert_eq!(flows.infer(&packet(false, RST, 3)).unwrap().pid, WORKER);
        assert_eq!(received(&mut flows, 4), None);
        let mut flows = accepted();
        for sent in [false, true] {
            assert_eq!(flows.infer(&packet(sent, FIN | ACK, 3)).unwrap().pid, WORKER);
        }
        assert_eq!(received(&mut flows, 4), Some(WORKER), "the last acknowledgement");
        assert_eq!(received(&mut flows, 4 + CLOSED_AGE_MAX_NS), None);
        let mut flows = accepted();
        assert_eq!(received(&mut flows, 3 + AGE_MAX_NS), None);
    }

    #[test]
    fn packet_with_cut_flags_ends_the_inference() {
        let mut flows = accepted();
        assert!(!own(&mut flows, &Packet { flags: None, ..packet(true, 0, 3) }, WORKER));
        assert_eq!(received(&mut flows, 4), Some(WORKER));
        assert!(flows.infer(&Packet { flags: None, ..packet(false, 0, 5) }).is_none());
        assert_eq!(received(&mut flows, 6), None, "it may have been a RST");
    }
}
