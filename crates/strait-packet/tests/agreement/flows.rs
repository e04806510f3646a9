//! Flow keys: both directions of a flow meet, different flows part, fragments stay together.

use std::collections::HashSet;

use etherparse::PacketBuilder;
use proptest::prelude::*;
use strait_packet::FlowKey;

use crate::frames::{MACS, frame};

fn udp(source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(MACS.0, MACS.1).ipv4(source, destination, 64);
    builder.udp(ports[0], ports[1]).write(&mut frame, &[1; 30]).unwrap();
    frame
}

proptest! {
    #[test]
    fn both_directions_hash_alike(frame in frame()) {
        let key = FlowKey::of(&frame).unwrap();
        prop_assert_eq!(key.symmetric_hash(), key.reversed().symmetric_hash());
        prop_assert_eq!(key.canonical(), key.reversed().canonical());
        prop_assert_ne!(key.with_vlan(Some(7)).symmetric_hash(), key.with_vlan(None).symmetric_hash());
    }
}

#[test]
fn ten_thousand_flows_have_as_many_hashes_and_spread_over_lanes() {
    let mut hashes = HashSet::new();
    let mut lanes = [0u32; 8];
    for flow in 0..10_000u16 {
        let [high, low] = flow.to_be_bytes();
        let key = FlowKey::of(&udp([10, 0, high, low], [10, 1, 0, 1], [1000 + flow, 53])).unwrap();
        hashes.insert(key.symmetric_hash());
        lanes[(key.symmetric_hash() % 8) as usize] += 1;
    }
    assert_eq!(hashes.len(), 10_000);
    assert!(lanes.iter().all(|count| (1100..1400).contains(count)), "{lanes:?}");
}

#[test]
fn fragments_of_a_packet_are_in_one_flow() {
    let mut first = udp([10, 0, 0, 1], [10, 0, 0, 2], [4242, 53]);
    first[20] = 0x20;
    let mut last = first.clone();
    last[20..22].copy_from_slice(&[0, 185]);
    assert_eq!(FlowKey::of(&first), FlowKey::of(&last));
    assert_eq!(FlowKey::of(&first).unwrap().source.port, 0);
}

#[test]
fn a_key_reads_like_a_line() {
    let key = FlowKey::of(&udp([10, 0, 0, 1], [10, 0, 0, 2], [4242, 53])).unwrap();
    assert_eq!(key.to_string(), "udp 10.0.0.1.4242 > 10.0.0.2.53");
    assert_eq!(key.with_vlan(Some(5)).to_string(), "vlan 5, udp 10.0.0.1.4242 > 10.0.0.2.53");
    assert_eq!(FlowKey::of(&[0; 60]), None);
}
