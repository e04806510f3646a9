//! Files that the encoder does not write: big-endian, several sections, obsolete and simple
//! packets, unusual clocks.

use strait_pcapng::{Direction, LinkType, NameRecord, Section, Statistics, pcapng};

use crate::owned::{Owned, decode, packets};

/// Writes blocks in either byte order, field by field.
pub(crate) struct Maker {
    big: bool,
    pub(crate) file: Vec<u8>,
}

impl Maker {
    pub(crate) fn new(big: bool) -> Self {
        Self { big, file: Vec::new() }
    }

    pub(crate) fn u16(&self, value: u16) -> Vec<u8> {
        if self.big { value.to_be_bytes().into() } else { value.to_le_bytes().into() }
    }

    pub(crate) fn u32(&self, value: u32) -> Vec<u8> {
        if self.big { value.to_be_bytes().into() } else { value.to_le_bytes().into() }
    }

    pub(crate) fn u64(&self, value: u64) -> Vec<u8> {
        if self.big { value.to_be_bytes().into() } else { value.to_le_bytes().into() }
    }

    pub(crate) fn option(&self, code: u16, value: &[u8]) -> Vec<u8> {
        let mut option = [self.u16(code), self.u16(value.len() as u16), value.to_vec()].concat();
        option.resize(option.len().next_multiple_of(4), 0);
        option
    }

    /// Adds a block of `kind` with these parts as its body.
    pub(crate) fn block(&mut self, kind: u32, parts: &[Vec<u8>]) -> &mut Self {
        let mut body = parts.concat();
        body.resize(body.len().next_multiple_of(4), 0);
        let total = self.u32(body.len() as u32 + 12);
        self.file.extend([self.u32(kind), total.clone(), body, total].concat());
        self
    }

    pub(crate) fn section(&mut self, major: u16, minor: u16) -> &mut Self {
        let body = [self.u32(0x1a2b_3c4d), self.u16(major), self.u16(minor), self.u64(u64::MAX)];
        self.block(0x0a0d_0d0a, &body)
    }

    pub(crate) fn interface(&mut self, linktype: u16, snaplen: u32, options: &[Vec<u8>]) -> &mut Self {
        let body = [self.u16(linktype), self.u16(0), self.u32(snaplen), options.concat()];
        self.block(1, &body)
    }

    pub(crate) fn packet(
        &mut self,
        interface: u32,
        units: u64,
        bytes: &[u8],
        options: &[Vec<u8>],
    ) -> &mut Self {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(4), 0);
        let (high, low) = ((units >> 32) as u32, units as u32);
        let len = self.u32(bytes.len() as u32);
        let body =
            [self.u32(interface), self.u32(high), self.u32(low), len.clone(), len, padded, options.concat()];
        self.block(6, &body)
    }
}

const ORDERS: [bool; 2] = [false, true];

#[test]
fn both_byte_orders_decode_to_the_same_records() {
    for big in ORDERS {
        let mut maker = Maker::new(big);
        let name = maker.option(2, b"eth7");
        let filter = maker.option(11, b"\0udp");
        let resolution = maker.option(9, &[3]);
        let flags = maker.option(2, &maker.u32(2));
        let queue = maker.option(6, &maker.u32(5));
        maker.section(1, 0).interface(113, 64, &[name, filter, resolution]).packet(
            0,
            1 << 33,
            b"hello",
            &[flags, queue],
        );
        let (records, end) = decode(&maker.file);
        assert_eq!(end, Ok(()));
        let texts = [Some("eth7".into()), None, Some("udp".into()), None];
        let linktype = LinkType::LINUX_SLL;
        assert_eq!(records[1], Owned::Interface { index: 0, linktype, snaplen: 64, texts });
        let packet = packets(&maker.file).remove(0);
        assert_eq!(packet.timestamp_ns, (1 << 33) * 1_000_000);
        assert_eq!((packet.bytes, packet.wire_len), (b"hello".to_vec(), 5));
        assert_eq!((packet.direction, packet.queue), (Some(Direction::Out), Some(5)));
        assert_eq!(packet.linktype, linktype);
    }
}

#[test]
fn sections_of_both_byte_orders_number_interfaces_through_the_file() {
    let mut file = Vec::new();
    for big in [false, true, false] {
        let mut maker = Maker::new(big);
        maker.section(1, 2).interface(1, 0, &[]).interface(101, 0, &[]).packet(1, 7, b"x", &[]);
        file.extend(maker.file);
    }
    let interfaces: Vec<_> = packets(&file).iter().map(|packet| packet.interface).collect();
    assert_eq!(interfaces, [1, 3, 5]);
    assert!(packets(&file).iter().all(|packet| packet.linktype == LinkType::RAW));
}

#[test]
fn section_of_an_unknown_version_is_skipped_and_reported() {
    let mut maker = Maker::new(false);
    maker.section(1, 0).interface(1, 0, &[]).packet(0, 1, b"before", &[]);
    maker.section(2, 0).block(1, &[]).block(6, &[vec![9; 8]]);
    maker.section(1, 0).interface(1, 0, &[]).packet(0, 1, b"after", &[]);
    let (records, end) = decode(&maker.file);
    assert_eq!(end, Ok(()));
    assert!(records.contains(&Owned::UnknownSection(2, 0)));
    let bytes: Vec<_> = packets(&maker.file).into_iter().map(|packet| packet.bytes).collect();
    assert_eq!(bytes, [b"before".to_vec(), b"after".to_vec()]);
}

#[test]
fn unknown_blocks_and_options_are_skipped() {
    for big in ORDERS {
        let mut maker = Maker::new(big);
        let comment = maker.option(1, b"a comment");
        let custom = maker.option(2988, b"\0\0\x12\x34vendor");
        let end = maker.option(0, b"");
        maker.section(1, 0).block(4, &[vec![0; 4]]).interface(1, 0, &[comment.clone(), end.clone()]);
        maker.block(0x0bad, &[b"custom".to_vec()]).block(0x8000_0001, &[]);
        maker.packet(0, 1, b"one", &[comment, custom, end, vec![7; 4]]);
        assert_eq!(packets(&maker.file).len(), 1);
    }
}

#[test]
fn secrets_of_both_byte_orders_are_read_and_defective_ones_skipped() {
    for big in [false, true] {
        let mut maker = Maker::new(big);
        maker.section(1, 0);
        let (kind, length) = (maker.u32(0x5747_4b4c), maker.u32(5));
        maker.block(10, &[kind.clone(), length, b"a key".to_vec()]);
        let too_long = maker.u32(9);
        maker.block(10, &[kind.clone(), too_long, b"8 bytes.".to_vec()]);
        maker.block(10, &[kind]);
        maker.block(10, &[]);
        let (records, end) = decode(&maker.file);
        assert_eq!(end, Ok(()));
        assert_eq!(records[1..], [Owned::Secrets(0x5747_4b4c, b"a key".to_vec())], "{big}");
    }
}

#[test]
fn names_of_both_byte_orders_are_read_written_and_defective_ones_skipped() {
    let values: [(u16, &[u8]); 3] =
        [(1, b"\xc0\0\x02\x01a.org\0b.org\0"), (2, b"0123456789abcdefc.org\0"), (1, b"")];
    for big in [false, true] {
        let mut maker = Maker::new(big);
        maker.section(1, 0);
        let records = values.map(|(kind, value)| maker.option(kind, value)).concat();
        let (end, comment) = (maker.option(0, b""), maker.option(2, b"server"));
        maker.block(4, &[records.clone(), end, comment]);
        maker.block(4, &[records]);
        let too_long = [maker.u16(1), maker.u16(9), b"8 bytes.".to_vec()].concat();
        maker.block(4, &[too_long]);
        maker.block(4, &[]);
        let (found, end) = decode(&maker.file);
        assert_eq!(end, Ok(()));
        let names = Owned::Names(values.map(|(kind, value)| (kind, value.to_vec())).to_vec());
        assert_eq!(found[1..], [names.clone(), names.clone(), Owned::Names(vec![])], "{big}");

        let mut file = Vec::new();
        pcapng::Encoder::begin(&mut file, &Section::default());
        pcapng::Encoder::names(&mut file, values.map(|(kind, value)| NameRecord { kind, value }));
        let (found, end) = decode(&file);
        assert_eq!((&found[1..], end), (&[names][..], Ok(())));
    }
}

#[test]
fn simple_and_obsolete_packets_are_read() {
    for big in ORDERS {
        let mut maker = Maker::new(big);
        maker.section(1, 0).interface(1, 4, &[]);
        let simple = [maker.u32(1000), b"abcd".to_vec()];
        let flags = maker.option(2, &maker.u32(1));
        let obsolete = [
            maker.u16(0),
            maker.u16(3),
            maker.u32(0),
            maker.u32(9),
            maker.u32(2),
            maker.u32(60),
            b"xy\0\0".to_vec(),
            flags,
        ];
        maker.block(3, &simple).block(2, &obsolete);
        let packets = packets(&maker.file);
        assert_eq!((packets[0].bytes.as_slice(), packets[0].wire_len), (&b"abcd"[..], 1000));
        assert_eq!((packets[1].bytes.as_slice(), packets[1].wire_len), (&b"xy"[..], 60));
        assert_eq!((packets[1].timestamp_ns, packets[1].direction), (9_000, Some(Direction::In)));
    }
}

#[test]
fn clocks_with_an_offset_and_a_binary_resolution_are_read() {
    for big in ORDERS {
        let mut maker = Maker::new(big);
        let resolution = maker.option(9, &[0x94]);
        let offset = maker.option(14, &maker.u64(1_000_000_000));
        let start = maker.option(2, &[maker.u32(0), maker.u32(1 << 20)].concat());
        let received = maker.option(4, &maker.u64(77));
        maker.section(1, 0).interface(1, 0, &[resolution, offset]).packet(0, 3 << 19, b"", &[]);
        let body = [maker.u32(0), maker.u32(0), maker.u32(2 << 20), start, received];
        maker.block(5, &body);
        let (records, _) = decode(&maker.file);
        assert_eq!(packets(&maker.file)[0].timestamp_ns, 1_000_000_001_500_000_000);
        let expected = Statistics {
            timestamp_ns: 1_000_000_002_000_000_000,
            start_ns: Some(1_000_000_001_000_000_000),
            received: Some(77),
            ..Statistics::default()
        };
        assert_eq!(records.last(), Some(&Owned::Statistics(expected)));
    }
}

#[test]
fn invalid_utf8_and_zero_bytes_end_a_string() {
    let mut maker = Maker::new(false);
    let name = maker.option(2, b"eth\xff0");
    let description = maker.option(3, b"up\0link");
    maker.section(1, 0).interface(1, 0, &[name, description]);
    let Some(Owned::Interface { texts, .. }) = decode(&maker.file).0.pop() else { panic!("no interface") };
    assert_eq!(texts, [Some("eth".into()), Some("up".into()), None, None]);
}

#[test]
fn a_wire_length_below_the_captured_length_is_raised_to_it() {
    let mut maker = Maker::new(false);
    let body = [0, 0, 1, 4, 2].map(|word| maker.u32(word)).concat();
    maker.section(1, 0).interface(1, 0, &[]).block(6, &[body, b"abcd".to_vec()]);
    assert_eq!(packets(&maker.file)[0].wire_len, 4);
}

#[test]
fn pcap_of_either_order_and_precision_is_read() {
    for (big, magic, ns) in [
        (false, 0xa1b2_c3d4, 5_000_006_000u64),
        (true, 0xa1b2_c3d4, 5_000_006_000),
        (false, 0xa1b2_3c4d, 5_000_000_006),
        (true, 0xa1b2_3c4d, 5_000_000_006),
    ] {
        let maker = Maker::new(big);
        let header = [maker.u32(magic), maker.u16(2), maker.u16(4), vec![0; 8], maker.u32(65_535)].concat();
        // The upper half of the link type has the length of the frame check sequence, 4 bytes.
        let linktype = maker.u32(0x2400_0065);
        let record = [5, 6, 3, 60].map(|word| maker.u32(word)).concat();
        let file = [header, linktype, record, b"abc".to_vec()].concat();
        let packet = packets(&file).remove(0);
        assert_eq!((packet.timestamp_ns, packet.wire_len), (ns, 60));
        assert_eq!((packet.bytes.as_slice(), packet.linktype), (&b"abc"[..], LinkType::RAW));
    }
}
