//! Flow keys: those of fragments and of all link headers, and their text.

use etherparse::PacketBuilder;
use strait_packet::summary::link_type;
use strait_packet::{Error, FlowKey, Header, network_on};

use crate::frames::MACS;

fn udp(source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(MACS.0, MACS.1).ipv4(source, destination, 64);
    builder.udp(ports[0], ports[1]).write(&mut frame, &[1; 30]).unwrap();
    frame
}

#[test]
fn fragments_of_a_packet_have_one_flow_key() {
    let mut first = udp([10, 0, 0, 1], [10, 0, 0, 2], [4242, 53]);
    first[20] = 0x20;
    let mut last = first.clone();
    last[20..22].copy_from_slice(&[0, 185]);
    assert_eq!(FlowKey::of(&first), FlowKey::of(&last));
    assert_eq!(FlowKey::of(&first).unwrap().source.port, 0);
}

#[test]
fn flow_key_is_displayed_like_a_summary() {
    let key = FlowKey::of(&udp([10, 0, 0, 1], [10, 0, 0, 2], [4242, 53])).unwrap();
    assert_eq!(key.to_string(), "udp 10.0.0.1.4242 > 10.0.0.2.53");
    assert_eq!(FlowKey { vlan: Some(5), ..key }.to_string(), "vlan 5, udp 10.0.0.1.4242 > 10.0.0.2.53");
    assert_eq!(FlowKey::of(&[0; 60]), None);
}

#[test]
fn flow_key_does_not_depend_on_the_link_header() {
    let ethernet = udp([10, 0, 0, 1], [10, 0, 0, 2], [4242, 53]);
    let cooked = [&[8, 0], &[0; 18][..], &ethernet[14..]].concat();
    let older = [&[0; 14], &[8, 0][..], &ethernet[14..]].concat();
    let key = |link_type, frame: &[u8]| {
        let (untagged, network) = network_on(link_type, frame).unwrap();
        FlowKey::of_network(&untagged, &network)
    };
    let expected = FlowKey::of(&ethernet);
    assert_eq!(key(link_type::ETHERNET, &ethernet), expected);
    assert_eq!(key(link_type::LINUX_SLL2, &cooked), expected);
    assert_eq!(key(link_type::LINUX_SLL, &older), expected);
    assert_eq!(key(link_type::RAW, &ethernet[14..]), expected);
}

#[test]
fn a_link_header_that_is_cut_or_unknown_is_an_error() {
    let cut = |needed, had| Error::Truncated { header: Header::Link, needed, had };
    assert_eq!(network_on(link_type::LINUX_SLL2, &[8; 19]).unwrap_err(), cut(20, 19));
    assert_eq!(network_on(link_type::RAW, &[]).unwrap_err(), cut(1, 0));
    assert!(matches!(network_on(9999, &[0; 60]), Err(Error::Invalid { header: Header::Link, .. })));
}
