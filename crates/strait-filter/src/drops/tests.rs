//! Layout of places and records. The kernel runs the program in the tests of `strait drops`.

use super::{Copies, Offsets, Options, Place, Record, program};

fn bytes() -> Vec<u8> {
    let mut bytes = vec![0; Record::BYTES + 3];
    bytes[0..8].copy_from_slice(&0xffff_ffff_8100_0000_u64.to_ne_bytes());
    for (at, value) in [(8, 5_u32), (12, 2), (16, 0xf000_0001), (32, 60), (36, 3), (40, 101)] {
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes[20..22].copy_from_slice(&0x0800_u16.to_ne_bytes());
    bytes[22] = 17;
    bytes[24..32].copy_from_slice(&77_u64.to_ne_bytes());
    bytes[Record::BYTES..].copy_from_slice(b"abc");
    bytes
}

#[test]
fn record_has_the_documented_layout() {
    let place = Place {
        location: 0xffff_ffff_8100_0000,
        reason: 5,
        ifindex: 2,
        namespace: 0xf000_0001,
        ether_type: 0x0800,
        ip_protocol: 17,
    };
    let record = Record { place, timestamp_ns: 77, wire_len: 60, captured: 3, link_type: 101 };
    assert_eq!(Record::parse(&bytes()), Some((record, &b"abc"[..])));
}

#[test]
fn record_that_ends_early_is_refused() {
    let bytes = bytes();
    for len in 0..bytes.len() {
        assert_eq!(Record::parse(&bytes[..len]), None, "cut at {len}");
    }
}

#[test]
fn program_assembles_with_and_without_copies() {
    let counts = Options {
        counts_fd: 3,
        state_fd: 4,
        offsets: Offsets::new([8; Offsets::MEMBERS.len()]).unwrap(),
        consumed: Some(1),
        members: Some((0xffff_ffff_8100_0000, 0xffff_ffff_8100_0100)),
        has_receiver: true,
        namespace: Some(0xf000_0001),
        ifindex: Some(2),
        copies: None,
    };
    let copies = Options { copies: Some(Copies { ring_fd: 5, snaplen: 256 }), ..counts };
    let (counts, copies) = (program(&counts).unwrap().len(), program(&copies).unwrap().len());
    assert!(counts > 50 && copies > counts + 40, "{counts} {copies}");
}
