//! Frames built by etherparse, and strategies that vary them.

use etherparse::{PacketBuilder, TcpOptionElement};
use proptest::prelude::*;

pub(crate) const MACS: ([u8; 6], [u8; 6]) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

/// A finished frame of any of the usual kinds.
pub(crate) fn frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop::collection::vec(any::<u8>(), 0..200);
    let vlan = prop::option::of(0u16..4095);
    (any::<[u8; 32]>(), any::<[u16; 2]>(), vlan, 0u8..6, any::<u32>(), payload).prop_map(
        |(addresses, ports, vlan, kind, number, payload)| {
            build(&addresses, ports, vlan, kind, number, &payload)
        },
    )
}

fn build(
    addresses: &[u8; 32],
    ports: [u16; 2],
    vlan: Option<u16>,
    kind: u8,
    number: u32,
    payload: &[u8],
) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(MACS.0, MACS.1);
    let (source, destination) = addresses.split_at(16);
    let v4 = |bytes: &[u8]| <[u8; 4]>::try_from(&bytes[..4]).unwrap();
    let v6 = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).unwrap();
    let network = match (vlan, kind % 2) {
        (None, 0) => link.ipv4(v4(source), v4(destination), 64),
        (None, _) => link.ipv6(v6(source), v6(destination), 64),
        (Some(id), 0) => link.single_vlan(id.try_into().unwrap()).ipv4(v4(source), v4(destination), 64),
        (Some(id), _) => link.single_vlan(id.try_into().unwrap()).ipv6(v6(source), v6(destination), 64),
    };
    let mut frame = Vec::new();
    match kind / 2 {
        0 => network.udp(ports[0], ports[1]).write(&mut frame, payload).unwrap(),
        1 => network
            .tcp(ports[0], ports[1], number, ports[1])
            .ack(number.rotate_left(7))
            .options(&[TcpOptionElement::MaximumSegmentSize(1460), TcpOptionElement::WindowScale(7)])
            .unwrap()
            .write(&mut frame, payload)
            .unwrap(),
        _ if kind.is_multiple_of(2) => {
            network.icmpv4_echo_request(ports[0], ports[1]).write(&mut frame, payload).unwrap();
        }
        _ => network.icmpv6_echo_request(ports[0], ports[1]).write(&mut frame, payload).unwrap(),
    }
    frame
}
