//! The decoder returns all records that the encoders write, for input in pieces of any size.

use proptest::prelude::*;
use strait_pcapng::pcap::Precision;
use strait_pcapng::{
    COMMENT_BYTES_MAX, Decoder, Direction, Error, INTERFACES_MAX, Interface, LinkType, Packet, Record,
    SECRETS_BYTES_MAX, SNAPLEN_MAX, Secrets, Section, Statistics, Step, packet_overhead, pcap, pcapng,
};

use crate::owned::{Owned, OwnedPacket, decode, decode_in_pieces, only_packets, packets};

fn a_packet() -> impl Strategy<Value = OwnedPacket> {
    let direction = prop_oneof![Just(None), Just(Some(Direction::In)), Just(Some(Direction::Out))];
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    let comment = prop::option::of("[^\0]{0,40}");
    (any::<u64>(), bytes, 0u32..70_000, 0u32..3, direction, any::<Option<u32>>(), comment).prop_map(
        |(timestamp_ns, bytes, cut, interface, direction, queue, comment)| {
            let wire_len = bytes.len() as u32 + cut;
            let linktype = LinkType(interface as u16);
            OwnedPacket { timestamp_ns, bytes, wire_len, interface, direction, queue, comment, linktype }
        },
    )
}

fn borrow(packet: &OwnedPacket) -> Packet<'_> {
    Packet {
        timestamp_ns: packet.timestamp_ns,
        bytes: &packet.bytes,
        wire_len: packet.wire_len,
        interface: packet.interface,
        direction: packet.direction,
        queue: packet.queue,
        comment: packet.comment.as_deref(),
    }
}

fn three_interfaces(file: &mut Vec<u8>) -> pcapng::Encoder {
    let mut encoder = pcapng::Encoder::begin(file, &Section::default());
    for number in 0..3 {
        let interface = Interface { linktype: LinkType(number), ..Interface::default() };
        assert_eq!(encoder.interface(file, &interface), Ok(u32::from(number)));
    }
    encoder
}

proptest! {
    #[test]
    fn pcapng_packets_round_trip(wrote in prop::collection::vec(a_packet(), 0..40), piece in 1usize..300) {
        let mut file = Vec::new();
        let encoder = three_interfaces(&mut file);
        for packet in &wrote {
            encoder.packet(&mut file, &borrow(packet)).unwrap();
            prop_assert_eq!(file.len() % 4, 0);
        }
        prop_assert_eq!(&packets(&file), &wrote);
        let (records, end) = decode_in_pieces(&file, piece);
        prop_assert_eq!(end, Ok(()));
        prop_assert_eq!(only_packets(records), wrote);
    }

    #[test]
    fn pcap_packets_round_trip_in_their_precision(
        wrote in prop::collection::vec(a_packet(), 0..40),
        piece in 1usize..300,
        nanoseconds: bool,
    ) {
        let (precision, unit) =
            if nanoseconds { (Precision::Nanoseconds, 1) } else { (Precision::Microseconds, 1000) };
        let mut file = Vec::new();
        let encoder = pcap::Encoder::begin(&mut file, LinkType::RAW, 0, precision);
        let mut expected = Vec::new();
        for mut packet in wrote {
            packet.timestamp_ns %= u64::from(u32::MAX) * 1_000_000_000;
            encoder.packet(&mut file, &borrow(&packet)).unwrap();
            packet.timestamp_ns -= packet.timestamp_ns % unit;
            expected.push(OwnedPacket {
                interface: 0, direction: None, queue: None, comment: None, linktype: LinkType::RAW, ..packet
            });
        }
        let (records, end) = decode_in_pieces(&file, piece);
        prop_assert_eq!(end, Ok(()));
        prop_assert_eq!(only_packets(records), expected);
    }

    #[test]
    fn strings_round_trip(texts in prop::collection::vec(prop::option::of("[^\0]{0,40}"), 7)) {
        let text = |at: usize| texts[at].as_deref();
        let mut file = Vec::new();
        let section = Section { hardware: text(0), os: text(1), application: text(2), comments: &[] };
        let mut encoder = pcapng::Encoder::begin(&mut file, &section);
        let interface = Interface {
            linktype: LinkType::LINUX_SLL2, snaplen: 96,
            name: text(3), description: text(4), filter: text(5), os: text(6), speed_bps: None,
        };
        encoder.interface(&mut file, &interface).unwrap();
        let (records, end) = decode(&file);
        prop_assert_eq!(end, Ok(()));
        let texts = |range: std::ops::Range<usize>| texts[range].to_vec();
        prop_assert_eq!(&records[0], &Owned::Section(texts(0..3).try_into().unwrap()));
        prop_assert_eq!(&records[1], &Owned::Interface {
            index: 0, linktype: LinkType::LINUX_SLL2, snaplen: 96, texts: texts(3..7).try_into().unwrap(),
        });
    }

    #[test]
    fn statistics_round_trip(timestamp_ns: u64, counts in prop::collection::vec(any::<Option<u64>>(), 7)) {
        let mut file = Vec::new();
        let encoder = three_interfaces(&mut file);
        let before = file.len();
        let statistics = Statistics {
            interface: 2, timestamp_ns, start_ns: counts[0], end_ns: counts[1], received: counts[2],
            dropped: counts[3], filter_accepted: counts[4], os_dropped: counts[5], delivered: counts[6],
        };
        encoder.statistics(&mut file, &statistics).unwrap();
        prop_assert!(file.len() - before <= pcapng::STATISTICS_BYTES_MAX);
        prop_assert_eq!(decode(&file).0.pop(), Some(Owned::Statistics(statistics)));
    }
}

#[test]
fn secrets_round_trip_and_are_limited() {
    for length in [0, 1, 2, 3, 4, 100, SECRETS_BYTES_MAX] {
        let mut file = Vec::new();
        three_interfaces(&mut file);
        let data = vec![b'k'; length];
        let secrets = Secrets { kind: Secrets::TLS_KEY_LOG, data: &data };
        pcapng::Encoder::secrets(&mut file, &secrets).unwrap();
        let (mut records, end) = decode(&file);
        assert_eq!((records.pop(), end), (Some(Owned::Secrets(0x544c_534b, data)), Ok(())), "{length}");
    }
    let data = vec![0; SECRETS_BYTES_MAX + 1];
    let refused = pcapng::Encoder::secrets(&mut Vec::new(), &Secrets { kind: 1, data: &data });
    let (bytes, max) = (data.len(), SECRETS_BYTES_MAX);
    assert_eq!(refused, Err(Error::SecretsTooLong { bytes, max }));
}

#[test]
fn speed_round_trips() {
    for speed_bps in [None, Some(100_000_000_000)] {
        let mut file = Vec::new();
        let interface = Interface { speed_bps, name: Some("eth0"), ..Interface::default() };
        pcapng::Encoder::begin(&mut file, &Section::default()).interface(&mut file, &interface).unwrap();
        let mut decoder = Decoder::new();
        let (mut found, mut at) = (None, 0);
        while let Ok(Step::Record { record, consumed }) = decoder.step(&file[at..]) {
            at += consumed;
            if let Record::Interface { interface, .. } = record {
                found = Some(interface.speed_bps);
            }
        }
        assert_eq!(found, Some(speed_bps));
    }
}

#[test]
fn overlong_string_is_cut_between_characters() {
    let long = "é".repeat(40_000);
    let interface = Interface { name: Some(&long), filter: Some(&long), ..Interface::default() };
    let mut file = Vec::new();
    pcapng::Encoder::begin(&mut file, &Section::default()).interface(&mut file, &interface).unwrap();
    let (records, end) = decode(&file);
    assert_eq!(end, Ok(()));
    let Some(Owned::Interface { texts, .. }) = records.last() else { panic!("no interface: {records:?}") };
    let lengths = texts.each_ref().map(|text| text.as_ref().map(String::len));
    assert_eq!(lengths, [Some(65_534), None, Some(65_534), None]);
}

#[test]
fn encoder_refuses_records_that_the_decoder_refuses() {
    let mut file = Vec::new();
    let mut encoder = three_interfaces(&mut file);
    let bytes = vec![0; SNAPLEN_MAX as usize + 1];
    let before = file.len();
    let long = Packet { bytes: &bytes, wire_len: 9, ..Packet::default() };
    assert!(matches!(encoder.packet(&mut file, &long), Err(Error::PacketTooLong { .. })));
    let stray = Packet { interface: 3, ..Packet::default() };
    let refused = Err(Error::NoSuchInterface { interface: 3, known: 3 });
    assert_eq!(encoder.packet(&mut file, &stray), refused);
    assert_eq!(encoder.statistics(&mut file, &Statistics { interface: 3, ..Statistics::default() }), refused);
    assert_eq!(file.len(), before);
    for _ in 3..INTERFACES_MAX {
        encoder.interface(&mut file, &Interface::default()).unwrap();
    }
    let one_more = encoder.interface(&mut file, &Interface::default());
    assert!(matches!(one_more, Err(Error::NoSuchInterface { .. })), "{one_more:?}");
    assert_eq!(decode(&file).1, Ok(()));
}

#[test]
fn interfaces_of_all_sections_have_one_limit() {
    let mut section = Vec::new();
    let mut encoder = pcapng::Encoder::begin(&mut section, &Section::default());
    for _ in 0..INTERFACES_MAX / 4 {
        encoder.interface(&mut section, &Interface::default()).unwrap();
    }
    let mut file = section.repeat(4);
    assert_eq!(decode(&file).1, Ok(()));
    // After the section header.
    let offset = file.len() as u64 + 28;
    file.extend(&section);
    assert_eq!(decode(&file).1, Err(Error::TooManyInterfaces { offset, max: INTERFACES_MAX as u32 }));
}

#[test]
fn long_comment_is_cut_and_within_the_announced_overhead() {
    let comment = "ü".repeat(COMMENT_BYTES_MAX);
    let mut file = Vec::new();
    let encoder = three_interfaces(&mut file);
    let before = file.len();
    let packet = Packet { bytes: b"abc", wire_len: 3, comment: Some(&comment), ..Packet::default() };
    encoder.packet(&mut file, &packet).unwrap();
    assert!(file.len() - before <= packet.bytes.len() + packet_overhead(&packet));
    let read = packets(&file);
    assert_eq!(read[0].comment.as_deref(), Some(&comment[..COMMENT_BYTES_MAX]));
}
