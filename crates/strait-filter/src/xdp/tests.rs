//! Tests that need no kernel: the metadata's layout and invalid options.

use super::{FRAME_BYTES_MAX, GeneratorFields, GeneratorOptions, Metadata, generator_program};
use crate::Error;

#[test]
fn metadata_has_the_documented_layout() {
    let mut bytes = [0; Metadata::BYTES];
    assert_eq!(Metadata::parse(&bytes), None, "no magic, no metadata");
    bytes[0..4].copy_from_slice(&(Metadata::MAGIC | 5).to_ne_bytes());
    bytes[4..8].copy_from_slice(&96_u32.to_ne_bytes());
    bytes[8..16].copy_from_slice(&1_000_000_007_u64.to_ne_bytes());
    bytes[16..24].copy_from_slice(&1_518_u64.to_ne_bytes());
    bytes[24..28].copy_from_slice(&0xdead_beef_u32.to_ne_bytes());
    bytes[28..32].copy_from_slice(&0x8100_2064_u32.to_ne_bytes());
    let metadata = Metadata::parse(&bytes).unwrap();
    let expected = Metadata {
        snaplen: 96,
        timestamp_ns: 1_000_000_007,
        hardware_ns: 1518,
        rx_hash: 0xdead_beef,
        vlan_tci: 0x2064,
        vlan_tpid: 0x8100,
        flags: Metadata::TIME | Metadata::RX_HASH,
    };
    assert_eq!(metadata, expected);
    assert!(metadata.has(Metadata::TIME) && !metadata.has(Metadata::TIME | Metadata::HARDWARE_TIME));
}

fn options() -> GeneratorOptions {
    GeneratorOptions {
        state_fd: 3,
        ifindex: 1,
        frame_bytes: 60,
        flows: 1,
        flow_low_bits: 14,
        fields: GeneratorFields {
            source_address: 26,
            destination_address: 30,
            header_checksum: Some(24),
            source_port: 34,
            destination_port: 36,
            transport_checksum: 40,
            sequence: 44,
            sent_ns: 52,
        },
        addresses: [1, 2],
        ports: [3, 4],
        header_sum: 0,
        transport_sum: 0,
        udp: true,
        frames_max: u64::MAX,
        pace: None,
        clock_offset_ns: 0,
    }
}

#[test]
fn invalid_generator_options_are_refused() {
    assert!(generator_program(&options()).is_ok());
    let outside = GeneratorOptions { frame_bytes: 59, ..options() };
    let too_long = GeneratorOptions { frame_bytes: FRAME_BYTES_MAX + 1, ..options() };
    let no_flow = GeneratorOptions { flows: 0, ..options() };
    let no_bits = GeneratorOptions { flow_low_bits: 32, ..options() };
    for bad in [outside, too_long, no_flow, no_bits] {
        assert!(matches!(generator_program(&bad), Err(Error::BadTemplate { .. })), "{bad:?}");
    }
}
