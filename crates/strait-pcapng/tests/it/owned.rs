//! Records that own their bytes, so that tests can store and compare them.

use strait_pcapng::{Decoder, Direction, Error, LinkType, Record, Statistics, Step};

/// A [`Record`] that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owned {
    Packet(OwnedPacket),
    Interface { index: u32, linktype: LinkType, snaplen: u32, texts: [Option<String>; 4] },
    Names(Vec<(u16, Vec<u8>)>),
    Secrets(u32, Vec<u8>),
    Statistics(Statistics),
    Section([Option<String>; 3]),
    UnknownSection(u16, u16),
}

/// A packet that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnedPacket {
    pub(crate) timestamp_ns: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) wire_len: u32,
    pub(crate) interface: u32,
    pub(crate) direction: Option<Direction>,
    pub(crate) queue: Option<u32>,
    pub(crate) comment: Option<String>,
    pub(crate) linktype: LinkType,
}

fn own(text: Option<&str>) -> Option<String> {
    text.map(str::to_owned)
}

impl From<Record<'_>> for Owned {
    fn from(record: Record<'_>) -> Self {
        match record {
            Record::Packet { packet, linktype } => Self::Packet(OwnedPacket {
                timestamp_ns: packet.timestamp_ns,
                bytes: packet.bytes.to_vec(),
                wire_len: packet.wire_len,
                interface: packet.interface,
                direction: packet.direction,
                queue: packet.queue,
                comment: own(packet.comment),
                linktype,
            }),
            Record::Interface { index, interface } => Self::Interface {
                index,
                linktype: interface.linktype,
                snaplen: interface.snaplen,
                texts: [
                    own(interface.name),
                    own(interface.description),
                    own(interface.filter),
                    own(interface.os),
                ],
            },
            Record::Names(names) => {
                Self::Names(names.records().map(|record| (record.kind, record.value.to_vec())).collect())
            }
            Record::Secrets(secrets) => Self::Secrets(secrets.kind, secrets.data.to_vec()),
            Record::Statistics(statistics) => Self::Statistics(statistics),
            Record::Section(section) => {
                Self::Section([own(section.hardware), own(section.os), own(section.application)])
            }
            Record::UnknownSection { major, minor } => Self::UnknownSection(major, minor),
        }
    }
}

/// Returns every record of a file, and the error at its end.
pub(crate) fn decode(file: &[u8]) -> (Vec<Owned>, Result<(), Error>) {
    decode_in_pieces(file, file.len())
}

/// Like [`decode`], but the input grows by `piece` bytes when the decoder needs more, and packets
/// are taken by [`Decoder::packet`] if it is shorter than the file.
pub(crate) fn decode_in_pieces(file: &[u8], piece: usize) -> (Vec<Owned>, Result<(), Error>) {
    let (mut decoder, mut records) = (Decoder::new(), Vec::new());
    let (mut start, mut end) = (0, piece.min(file.len()));
    loop {
        if piece < file.len()
            && let Ok(Some((consumed, packet, linktype))) = decoder.packet(&file[start..end])
        {
            records.push(Record::Packet { packet, linktype }.into());
            start += consumed;
            continue;
        }
        match decoder.step(&file[start..end]) {
            Err(error) => return (records, Err(error)),
            Ok(Step::NeedMore(bytes)) => {
                assert!(bytes > end - start, "asks for {bytes} and has {}", end - start);
                if end == file.len() {
                    return (records, decoder.finish(&file[start..]));
                }
                end = (end + piece.max(1)).min(file.len());
            }
            Ok(Step::Record { consumed, record }) => {
                records.push(record.into());
                start += consumed;
            }
            Ok(Step::Skipped { consumed }) => start += consumed,
        }
        assert_eq!(decoder.offset(), start as u64);
    }
}

/// Returns the packets of a file, which must be complete.
pub(crate) fn packets(file: &[u8]) -> Vec<OwnedPacket> {
    let (records, end) = decode(file);
    end.expect("a whole file");
    only_packets(records)
}

/// Returns the packets among `records`.
pub(crate) fn only_packets(records: Vec<Owned>) -> Vec<OwnedPacket> {
    let packet = |record| match record {
        Owned::Packet(packet) => Some(packet),
        _ => None,
    };
    records.into_iter().filter_map(packet).collect()
}
