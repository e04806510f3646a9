//! Properties of capture files, checked by the targets of both formats.
//!
//! For any bytes, the decoder never panics, always advances, gives the same result for any split
//! into pieces, and returns packets that survive encoding and decoding.

use strait_pcapng::{COMMENT_BYTES_MAX, Decoder, Interface, LinkType, Packet, Record, Section, Step, pcapng};

/// Packet with owned bytes and comment; those of `packet` are empty.
#[derive(Debug, PartialEq)]
struct OwnedPacket {
    packet: Packet<'static>,
    bytes: Vec<u8>,
    comment: Option<String>,
    linktype: LinkType,
}

/// Checks these properties of `file`; `piece` is the length of the pieces of the second reading.
pub fn check(file: &[u8], piece: usize) {
    let (packets, whole) = read(file, file.len());
    let (again, in_pieces) = read(file, piece.max(1));
    assert_eq!(packets, again);
    assert_eq!(whole, in_pieces);
    let (rewritten, end) = read(&write(&packets), usize::MAX);
    assert_eq!(end, Ok(()));
    assert_eq!(rewritten.len(), packets.len());
    for (before, after) in packets.iter().zip(&rewritten) {
        let interface = before.packet.interface;
        assert_eq!(Packet { interface, ..after.packet }, before.packet);
        assert_eq!((&after.bytes, after.linktype), (&before.bytes, before.linktype));
        check_comment(before.comment.as_deref(), after.comment.as_deref());
    }
}

/// Checks a comment `before` encoding and `after` it: only what is beyond the limit is cut.
fn check_comment(before: Option<&str>, after: Option<&str>) {
    match (before, after) {
        (Some(before), Some(after)) if before.len() > COMMENT_BYTES_MAX => assert!(before.starts_with(after)),
        _ => assert_eq!(before, after),
    }
}

/// Returns the packets of `file`, and an error if it is malformed. The position of an error may
/// depend on the split into pieces, its existence must not. Pieces are read by `Decoder::packet`
/// where it returns a packet.
fn read(file: &[u8], piece: usize) -> (Vec<OwnedPacket>, Result<(), ()>) {
    let (mut decoder, mut packets) = (Decoder::new(), Vec::new());
    let (mut start, mut end) = (0, piece.min(file.len()));
    loop {
        let input = &file[start..end];
        if piece < file.len()
            && let Ok(Some((consumed, packet, linktype))) = decoder.packet(input)
        {
            store(Record::Packet { packet, linktype }, &mut packets);
            start += consumed;
            continue;
        }
        let consumed = match decoder.step(input) {
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return (packets, Err(()));
            }
            Ok(Step::NeedMore(bytes)) if end == file.len() => {
                assert!(bytes > input.len());
                return (packets, decoder.finish(input).map_err(|_| ()));
            }
            Ok(Step::NeedMore(bytes)) => {
                assert!(bytes > input.len());
                end = (end + piece).min(file.len());
                continue;
            }
            Ok(Step::Record { consumed, record }) => {
                store(record, &mut packets);
                consumed
            }
            Ok(Step::Skipped { consumed }) => consumed,
        };
        assert!(consumed > 0 && consumed <= input.len());
        start += consumed;
        assert_eq!(decoder.offset(), start as u64);
    }
}

fn store(record: Record<'_>, packets: &mut Vec<OwnedPacket>) {
    check_copy(&record);
    if let Record::Packet { packet, linktype } = record {
        assert!(packet.wire_len as usize >= packet.bytes.len());
        packets.push(OwnedPacket {
            packet: Packet { bytes: &[], comment: None, ..packet },
            bytes: packet.bytes.to_vec(),
            comment: packet.comment.map(str::to_owned),
            linktype,
        });
    }
}

/// Checks that a copy of names or secrets has the same content.
fn check_copy(record: &Record<'_>) {
    let mut copy = Vec::new();
    let mut encoder = pcapng::Encoder::begin(&mut copy, &Section::default());
    encoder.interface(&mut copy, &Interface::default()).expect("one interface");
    let start = copy.len();
    match record {
        Record::Names(names) => pcapng::Encoder::names(&mut copy, names.records()),
        Record::Secrets(secrets) if pcapng::Encoder::secrets(&mut copy, secrets).is_ok() => {}
        _ => return,
    }
    let mut decoder = Decoder::new();
    let mut at = 0;
    while at < start {
        match decoder.step(&copy[at..]) {
            Ok(Step::Record { consumed, .. }) => at += consumed,
            other => panic!("{other:?}"),
        }
    }
    match (record, decoder.step(&copy[at..])) {
        (Record::Names(before), Ok(Step::Record { record: Record::Names(after), .. })) => {
            assert!(before.records().eq(after.records()));
        }
        (Record::Secrets(before), Ok(Step::Record { record: Record::Secrets(after), .. })) => {
            assert_eq!(*before, after);
        }
        (_, other) => panic!("{other:?}"),
    }
}

/// Writes the packets to a new file, with one interface for each link type.
fn write(packets: &[OwnedPacket]) -> Vec<u8> {
    let (mut file, mut linktypes) = (Vec::new(), Vec::new());
    let mut encoder = pcapng::Encoder::begin(&mut file, &Section::default());
    for packet in packets {
        let known = linktypes.iter().position(|linktype| *linktype == packet.linktype);
        let interface = known.unwrap_or_else(|| {
            let described = Interface { linktype: packet.linktype, ..Interface::default() };
            encoder.interface(&mut file, &described).expect("few link types");
            linktypes.push(packet.linktype);
            linktypes.len() - 1
        });
        let packet = Packet {
            bytes: &packet.bytes,
            comment: packet.comment.as_deref(),
            interface: interface as u32,
            ..packet.packet
        };
        encoder.packet(&mut file, &packet).expect("a packet within the limits");
    }
    file
}
