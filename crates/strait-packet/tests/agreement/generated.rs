//! Generated frames are valid for etherparse, vary as documented, and their probes can be read.

use std::collections::{HashMap, HashSet};

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use strait_packet::probe::{self, Probe};
use strait_packet::traffic::{FLOWS_MAX, FrameTemplate, Kind, Sizes, Traffic};
use strait_packet::{FlowKey, Header, Network, network};

/// Asserts that etherparse reads the frame to its end and computes the same checksums.
fn assert_valid(frame: &[u8]) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    match packet.net.as_ref().unwrap() {
        NetSlice::Ipv4(net) => {
            let header = net.header().to_header();
            assert_eq!(header.calc_header_checksum(), header.header_checksum);
            let (source, destination) = (header.source, header.destination);
            match packet.transport.unwrap() {
                TransportSlice::Udp(udp) => {
                    let sum = udp.to_header().calc_checksum_ipv4_raw(source, destination, udp.payload());
                    assert_eq!(sum.unwrap(), udp.checksum());
                }
                TransportSlice::Tcp(tcp) => {
                    assert_eq!(tcp.calc_checksum_ipv4(source, destination).unwrap(), tcp.checksum());
                }
                other => panic!("{other:?}"),
            }
        }
        NetSlice::Ipv6(net) => {
            let header = net.header().to_header();
            match packet.transport.unwrap() {
                TransportSlice::Udp(udp) => {
                    let sum = udp.to_header().calc_checksum_ipv6_raw(
                        header.source,
                        header.destination,
                        udp.payload(),
                    );
                    assert_eq!(sum.unwrap(), udp.checksum());
                }
                TransportSlice::Tcp(tcp) => {
                    let sum = tcp.to_header().calc_checksum_ipv6_raw(
                        header.source,
                        header.destination,
                        tcp.payload(),
                    );
                    assert_eq!(sum.unwrap(), tcp.checksum());
                }
                other => panic!("{other:?}"),
            }
        }
        NetSlice::Arp(arp) => panic!("{arp:?}"),
    }
}

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(Kind::ALL.to_vec())
}

proptest! {
    #[test]
    fn every_frame_is_valid_and_its_probe_is_readable(
        kind in kind(), size in 64u16..=9018, vlan in prop::option::of(0u16..=4094),
        flows in 1..=FLOWS_MAX, sequence: u64, now_ns: u64,
    ) {
        let traffic = Traffic::builder()
            .kinds(&[kind]).sizes(Sizes::new(&[size]).unwrap()).vlan(vlan).flows(flows).build().unwrap();
        let mut out = [0xaa; 9100];
        let len = traffic.write_frame(sequence, now_ns, &mut out);
        let shortest = FrameTemplate::len_min(kind, vlan.is_some());
        prop_assert_eq!(len, usize::from(size - 4).max(shortest));
        prop_assert_eq!(len, traffic.frame_len(sequence));
        assert_valid(&out[..len]);
        prop_assert_eq!(probe::read(&out[..len]), Some(Probe { sequence, sent_ns: now_ns }));
        prop_assert_eq!(FlowKey::of(&out[..len]).unwrap().vlan, vlan);
        prop_assert!(out[len..].iter().all(|byte| *byte == 0xaa));
    }
}

#[test]
fn size_64_is_a_buffer_of_60_bytes_and_a_short_buffer_is_not_written() {
    let traffic = Traffic::builder().build().unwrap();
    let mut out = [0; 60];
    assert_eq!(traffic.write_frame(7, 9, &mut out), 60);
    assert_eq!(traffic.frame_len_max(), 60);
    assert_eq!(traffic.write_frame(7, 9, &mut out[..59]), 0);
}

#[test]
fn flows_differ_and_have_equal_numbers_of_frames() {
    let traffic = Traffic::builder().flows(500).kinds(&Kind::ALL).build().unwrap();
    let mut counts: HashMap<FlowKey, u32> = HashMap::new();
    let mut out = [0; 128];
    for sequence in 0..5_000 {
        let len = traffic.write_frame(sequence, 0, &mut out);
        *counts.entry(FlowKey::of(&out[..len]).unwrap()).or_default() += 1;
    }
    assert_eq!(counts.len(), 500);
    assert!(counts.values().all(|count| *count == 10));
    let protocols: HashSet<(bool, u8)> =
        counts.keys().map(|key| (key.source.address.is_ipv4(), key.protocol)).collect();
    assert_eq!(protocols.len(), 4);
}

#[test]
fn frames_of_the_last_flow_are_valid() {
    let traffic = Traffic::builder().flows(FLOWS_MAX).build().unwrap();
    let mut out = [0; 60];
    let keys = [0, u64::from(FLOWS_MAX) - 1].map(|sequence| {
        traffic.write_frame(sequence, 0, &mut out);
        FlowKey::of(&out).unwrap().to_string()
    });
    assert_eq!(
        keys,
        ["udp 198.18.0.1.49152 > 198.19.0.1.20000", "udp 198.18.64.0.65535 > 198.19.0.64.20063"]
    );
}

#[test]
fn every_flow_has_all_sizes() {
    for flows in [1, 5, 12, 24, 1000] {
        let traffic = Traffic::builder().flows(flows).sizes(Sizes::imix()).build().unwrap();
        let mut sizes: HashMap<u32, HashMap<usize, u32>> = HashMap::new();
        for sequence in 0..u64::from(flows) * 12 {
            let of_flow = sizes.entry(traffic.flow_of(sequence)).or_default();
            *of_flow.entry(traffic.frame_len(sequence)).or_default() += 1;
        }
        let mix = HashMap::from([(60, 7), (590, 4), (1514, 1)]);
        assert!(sizes.values().all(|of_flow| *of_flow == mix), "{flows} flows");
    }
}

/// Builds frames as a generator in the kernel does: from offsets, bases and sums.
#[test]
fn offsets_bases_and_sums_produce_the_same_frame() {
    for kind in Kind::ALL {
        let traffic = Traffic::builder().kinds(&[kind]).flows(70_000).build().unwrap();
        let template = &traffic.templates()[0];
        let (offsets, bases) = (template.offsets(), template.bases());
        let (sequence, now_ns) = (69_123u64, 0x0123_4567_89ab_cdefu64);
        let (low, high) = (sequence as u32 % (1 << 14), sequence as u32 >> 14);
        let mut frame = template.bytes().to_vec();
        let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
        let source = bases.source_address + low;
        let destination = bases.destination_address + high;
        let ports = [bases.source_port + low as u16, bases.destination_port + high as u16];
        put(offsets.source_address, &source.to_be_bytes());
        put(offsets.destination_address, &destination.to_be_bytes());
        put(offsets.source_port, &ports[0].to_be_bytes());
        put(offsets.destination_port, &ports[1].to_be_bytes());
        put(offsets.sequence, &sequence.to_be_bytes());
        put(offsets.sent_ns, &now_ns.to_be_bytes());
        let words = |number: u64| (0..4).map(|word| number >> (16 * word) & 0xffff).sum::<u64>();
        let fold = |sum: u64| !((sum % 0xffff) as u16);
        let addresses = words(u64::from(source)) + words(u64::from(destination));
        if let Some(at) = offsets.header_checksum {
            put(at, &fold(u64::from(template.header_sum()) + addresses).to_be_bytes());
        }
        let ports = u64::from(ports[0]) + u64::from(ports[1]);
        let sum = u64::from(template.transport_sum()) + addresses + ports + words(sequence) + words(now_ns);
        put(offsets.transport_checksum, &fold(sum).to_be_bytes());
        let mut written = vec![0; frame.len()];
        traffic.write_frame(sequence, now_ns, &mut written);
        assert_eq!(frame, written);
    }
}

#[test]
fn invalid_options_are_refused_with_their_limits() {
    let error_of = |text: &str| text.parse::<Sizes>().unwrap_err().to_string();
    assert_eq!(error_of("63"), "frame size 63: expected 64 to 9018");
    assert_eq!(error_of("64,9019"), "frame size 9019: expected 64 to 9018");
    assert_eq!(
        error_of("64,,64"),
        "frame size: expected a number of bytes, several with commas between them, or imix"
    );
    assert_eq!(error_of(&vec!["64"; 65].join(",")), "number of frame sizes 65: expected 1 to 64");
    assert_eq!("64,512,1518".parse::<Sizes>().unwrap().slots(), [64, 512, 1518]);
    let refused = |builder: strait_packet::traffic::TrafficBuilder| builder.build().unwrap_err().to_string();
    assert_eq!(refused(Traffic::builder().flows(0)), "number of flows 0: expected 1 to 1048576");
    assert_eq!(refused(Traffic::builder().vlan(Some(4095))), "VLAN identifier 4095: expected 0 to 4094");
    assert_eq!(refused(Traffic::builder().kinds(&[])), "number of frame kinds 0: expected 1 to 4");
    assert!(Traffic::builder().flows(2).ports(65_534, 65_535).build().is_ok());
    assert_eq!(
        refused(Traffic::builder().flows(3).ports(65_534, 9)),
        "source port 65534: expected 0 to 65533"
    );
}

#[test]
fn foreign_frame_has_no_probe() {
    let traffic = Traffic::builder().build().unwrap();
    let mut frame = [0; 60];
    traffic.write_frame(1, 2, &mut frame);
    assert_eq!(probe::read(&frame[..59]), None);
    frame[42] ^= 1;
    assert_eq!(probe::read(&frame), None);
    assert_eq!(probe::read(&[0; 60]), None);
    assert!(matches!(network(&frame), Ok((_, Network::Ipv4(_)))));
    assert_eq!(Header::Ipv4.to_string(), "ip");
}
