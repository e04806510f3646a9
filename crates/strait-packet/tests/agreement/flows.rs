//! Flow keys: fragments stay together, and a key reads like a line.

use etherparse::PacketBuilder;
use strait_packet::FlowKey;

use crate::frames::MACS;

fn udp(source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(MACS.0, MACS.1).ipv4(source, destination, 64);
    builder.udp(ports[0], ports[1]).write(&mut frame, &[1; 30]).unwrap();
    frame
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
    assert_eq!(FlowKey { vlan: Some(5), ..key }.to_string(), "vlan 5, udp 10.0.0.1.4242 > 10.0.0.2.53");
    assert_eq!(FlowKey::of(&[0; 60]), None);
}
