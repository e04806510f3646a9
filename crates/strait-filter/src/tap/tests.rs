//! Layout of records. The kernel runs the programs in the tests of the capture crate.

use super::layout::{DATA, Record, Sizes};
use super::{TapOptions, tap_program};
use crate::cbpf::Program;
use crate::translate::{Context, Options};

#[test]
fn record_has_the_documented_layout() {
    let mut bytes = [0; Record::BYTES];
    bytes[0..4].copy_from_slice(&60_u32.to_ne_bytes());
    bytes[4..8].copy_from_slice(&(0x8000_05ea_u32).to_ne_bytes());
    bytes[8..16].copy_from_slice(&7_u64.to_ne_bytes());
    bytes[16..20].copy_from_slice(&0x8100_0064_u32.to_ne_bytes());
    bytes[20..24].copy_from_slice(&9_u32.to_ne_bytes());
    let record = Record::parse(&bytes);
    let expected =
        Record { captured: 60, wire_len: 1514, is_sent: true, timestamp_ns: 7, tag: 0x8100_0064, mark: 9 };
    assert_eq!(record, expected);
    assert_eq!(record.stride(), 88, "24 + 60 bytes, aligned to 8");
}

#[test]
fn last_record_of_each_ring_ends_before_the_next_field() {
    for (ring_bytes, frame_bytes_max) in [(1 << 12, 1), (1 << 22, 1514), (1 << 25, 262_144)] {
        let sizes = Sizes { ring_bytes, spill_bytes: ring_bytes * 4, frame_bytes_max };
        let longest = Record { captured: frame_bytes_max + 4, ..Record::default() };
        let end = |data: usize, ring_bytes: u32| data + ring_bytes as usize - 8 + longest.stride();
        assert!(end(DATA, ring_bytes) <= sizes.spill() + 7, "{sizes:?}");
        assert!(end(sizes.spill(), sizes.spill_bytes) <= sizes.value_bytes() + 7, "{sizes:?}");
    }
}

#[test]
fn program_assembles_for_both_hooks_and_several_lanes() {
    for (context, doorbells) in [(Context::Received, &[4][..]), (Context::Sent, &[4, 5, 6])] {
        let options = TapOptions {
            interface: Options { context, ..Options::default() },
            rings_fd: 3,
            doorbells,
            sizes: Sizes { ring_bytes: 1 << 20, spill_bytes: 1 << 22, frame_bytes_max: 1514 },
            rx_hash: true,
            owner: None,
            confinement: None,
        };
        let program = tap_program(&Program::accept_all(96), &options).unwrap();
        assert!(program.len() > 60, "{} instructions", program.len());
    }
}
