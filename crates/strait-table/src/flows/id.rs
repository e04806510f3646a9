//! Identifiers of flows in the index of a capture file (docs/internals/index.md): the first eight
//! bytes of the SHA-1 in the community ID, little-endian.
//!
//! The file sink calls it for each packet, the query for each selected flow. Both take the same
//! fields of a packet as the column `communityId`.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;

use super::flow::Key;
use crate::community_id;
use crate::headers::{Headers, Packet};

/// Flows whose identifiers are kept, a power of two: 64 KiB.
const RECENT: usize = 1024;

/// Identifiers of packets' flows. Those of recent flows are kept, as a SHA-1 costs more than the
/// rest of a packet.
pub struct FlowIds {
    recent: Box<[Option<(Key, u64)>]>,
    seeds: [u64; 2],
}

impl FlowIds {
    /// Creates an empty cache.
    pub fn new() -> Self {
        // Random, so that a sender cannot choose flows that replace each other.
        let random = RandomState::new();
        Self { recent: vec![None; RECENT].into(), seeds: [random.hash_one(0), random.hash_one(1)] }
    }

    /// Returns the identifier of a packet's flow; none without an IP header. `bytes` are the
    /// captured ones, with a header of `link_type` (`LINKTYPE_*`).
    pub fn of(&mut self, bytes: &[u8], link_type: u16) -> Option<u64> {
        let (key, _) = Key::of(&Headers::of(&packet(bytes, link_type)))?;
        let recent = &mut self.recent[key.hash(self.seeds) as usize % RECENT];
        match recent {
            Some((found, id)) if *found == key => Some(*id),
            _ => {
                let id = truncate(key.community_hash());
                *recent = Some((key, id));
                Some(id)
            }
        }
    }
}

impl Default for FlowIds {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns a packet without the properties that have no influence on its flow.
fn packet(bytes: &[u8], link_type: u16) -> Packet<'_> {
    Packet {
        bytes,
        link_type,
        wire_len: bytes.len() as u32,
        time_ns: 0,
        interface: 0,
        lane: 0,
        direction: None,
        owner: None,
    }
}

/// Returns the identifier of a flow from its community ID; none if the text is no such ID.
pub fn flow_id(community_id: &str) -> Option<u64> {
    community_id::hash_in(community_id).map(truncate)
}

/// Returns the identifier of the flow between two addresses; `ports` are those of TCP, UDP, SCTP
/// and UDP-Lite. Fragments have none.
pub fn flow_id_between(addresses: [IpAddr; 2], protocol: u8, ports: Option<[u16; 2]>) -> u64 {
    truncate(community_id::hash(addresses[0], addresses[1], protocol, ports))
}

fn truncate(hash: [u8; community_id::HASH_BYTES]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::community_id_of;

    /// Returns a UDP packet between 10.0.0.1 and 10.0.0.2.
    fn frame(port: u16) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 53, 0, 8, 0, 0]);
        frame
    }

    #[test]
    fn identifiers_of_packets_and_of_community_ids_are_equal() {
        let mut ids = FlowIds::new();
        // More flows than are kept, twice.
        for port in (0..5000).chain(0..5000) {
            let frame = frame(port);
            let text = community_id_of(&packet(&frame, 1)).unwrap();
            assert_eq!(ids.of(&frame, 1), flow_id(&text), "{port}");
            let addresses = [[10, 0, 0, 2], [10, 0, 0, 1]].map(IpAddr::from);
            let between = flow_id_between(addresses, 17, Some([53, port]));
            assert_eq!(flow_id(&text), Some(between), "{port}");
        }
        assert_eq!(ids.of(&[0; 14], 1), None);
    }

    #[test]
    fn other_texts_have_no_identifier() {
        assert!(flow_id("1:LQU9qZlK+B5F3KDmev6m5PMibrg=").is_some());
        for text in ["", "1:", "LQU9qZlK+B5F3KDmev6m5PMibrg=", "2:LQU9qZlK+B5F3KDmev6m5PMibrg=", "1:LQU9"] {
            assert_eq!(flow_id(text), None, "{text}");
        }
    }
}
