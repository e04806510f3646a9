//! Files of a sink: whole, unfinished, replaced, in pieces, or absent.

mod compressed;
mod extras;
mod failures;
mod indexes;
mod rotation;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use proptest::prelude::*;

use super::blocks::Blocks;
use super::{FLUSH_BYTES, FLUSH_EVERY, FileSink, Format, FrameRef, LinkType, SinkError, SinkInterface};
use super::{SinkOptions, Statistics, Target};
use crate::file::FileReader;

/// Start of every test capture in nanoseconds since the epoch: 2023-11-14 22:13:20 UTC.
const START_NS: u64 = 1_700_000_000_000_000_000;

fn options(path: &Path) -> SinkOptions {
    SinkOptions::new(Target::Path(path.to_owned()), START_NS)
}

/// Returns frame `number`: a microsecond after its predecessor, `len` bytes with the number.
fn write(sink: &mut FileSink, number: u64, len: usize) -> Result<(), SinkError> {
    let bytes = vec![number as u8; len];
    let timestamp_ns = START_NS + number * 1000;
    sink.write(&FrameRef { timestamp_ns, bytes: &bytes, wire_len: len as u32 + 4, ..FrameRef::default() })
}

/// Returns the numbers of the packets in a file, which must be whole.
fn numbers(path: &Path) -> Vec<u64> {
    let mut reader = FileReader::open(path.to_str().expect("a path in UTF-8")).expect("a capture file");
    let mut numbers = Vec::new();
    while let Some(packet) = reader.next().expect("whole packets") {
        let number = (packet.timestamp_ns - START_NS) / 1000;
        assert!(packet.bytes.iter().all(|byte| *byte == number as u8));
        assert_eq!(packet.wire_len as usize, packet.bytes.len() + 4);
        numbers.push(number);
    }
    numbers
}

fn part_of(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.part", path.display()))
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Returns the names in a directory, sorted.
fn listing(directory: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("a directory entry").file_name().into_string().expect("a name in UTF-8")
    };
    let mut names: Vec<_> = fs::read_dir(directory).expect("a directory").map(name).collect();
    names.sort();
    names
}

#[test]
fn file_gets_its_name_when_it_is_complete() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    fs::write(&path, "an older file").expect("a file");
    let mut sink = FileSink::create(options(&path)).expect("a sink");
    for number in 0..2000 {
        write(&mut sink, number, 900).expect("room");
    }
    assert_eq!(fs::read(&path).expect("the older file"), b"an older file");
    let statistics = Statistics { received: Some(2010), os_dropped: Some(10), ..Statistics::default() };
    let summary = sink.close(&[statistics]).expect("a complete file");
    assert_eq!(listing(directory.path()), ["out.pcapng"]);
    assert_eq!((summary.packets, summary.lost, summary.files), (2000, 0, 1));
    assert_eq!(summary.bytes, fs::metadata(&path).expect("a file").len());
    assert_eq!(summary.last_file, path.display().to_string());
    assert_eq!(numbers(&path), (0..2000).collect::<Vec<_>>());
}

#[test]
fn statistics_and_interfaces_are_in_the_file() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let interface = |name: &str, linktype| SinkInterface {
        name: Some(name.into()),
        filter: Some("udp".into()),
        linktype,
        snaplen: 96,
        ..SinkInterface::default()
    };
    let interfaces = vec![interface("veth0", LinkType::ETHERNET), interface("tun0", LinkType::RAW)];
    let mut sink = FileSink::create(SinkOptions { interfaces, ..options(&path) }).expect("a sink");
    write(&mut sink, 5, 60).expect("room");
    let statistics = Statistics { interface: 1, os_dropped: Some(3), ..Statistics::default() };
    sink.close(&[statistics]).expect("a complete file");
    let mut reader = FileReader::open(path.to_str().expect("a path in UTF-8")).expect("a capture file");
    while reader.next().expect("whole packets").is_some() {}
    let [first, second] = reader.interfaces() else { panic!("{:?}", reader.interfaces()) };
    assert_eq!((first.name.as_deref(), first.link_type, first.snaplen), (Some("veth0"), 1, 96));
    let (first, second) = (first.statistics.expect("counts"), second.statistics.expect("counts"));
    assert_eq!((first.os_dropped, second.os_dropped), (None, Some(3)));
    assert_eq!((second.start_ns, second.end_ns), (Some(START_NS), Some(START_NS + 5000)));
    assert_eq!(second.timestamp_ns, START_NS + 5000);
}

#[test]
fn unfinished_file_is_readable_up_to_the_last_flush() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let mut sink = FileSink::create(options(&path)).expect("a sink");
    assert_eq!(numbers(&part_of(&path)), [] as [u64; 0], "the header is there from the start");
    let now = Instant::now();
    sink.flush_due(now).expect("nothing to do");
    write(&mut sink, 0, 60).expect("room");
    sink.flush_due(now + FLUSH_EVERY / 2).expect("not yet");
    assert_eq!(numbers(&part_of(&path)), [] as [u64; 0]);
    sink.flush_due(now + FLUSH_EVERY).expect("room");
    assert_eq!(numbers(&part_of(&path)), [0]);
    write(&mut sink, 1, 60).expect("room");
    sink.flush().expect("room");
    assert_eq!(numbers(&part_of(&path)), [0, 1]);
    let whole = FLUSH_BYTES as u64 / 1000 + 2;
    (2..whole).for_each(|number| write(&mut sink, number, 1000).expect("room"));
    let flushed = numbers(&part_of(&path));
    assert!(flushed.len() > 2, "a full buffer is written");
    drop(sink);
    assert_eq!(listing(directory.path()), ["out.pcapng.part"], "dropped is not closed");
    assert_eq!(numbers(&part_of(&path)), (0..whole).collect::<Vec<_>>());
}

#[test]
fn pcap_is_written_with_nanoseconds() {
    let directory = directory();
    let path = directory.path().join("out.pcap");
    let mut sink = FileSink::create(SinkOptions { format: Format::Pcap, ..options(&path) }).expect("a sink");
    (0..700).for_each(|number| write(&mut sink, number, 500).expect("room"));
    sink.close(&[Statistics::default()]).expect("a complete file");
    assert_eq!(numbers(&path), (0..700).collect::<Vec<_>>());
    assert_eq!(fs::metadata(&path).expect("a file").len(), 24 + 700 * 516);
}

#[test]
fn symbolic_link_is_kept() {
    let directory = directory();
    let (path, link) = (directory.path().join("real.pcapng"), directory.path().join("link.pcapng"));
    fs::write(&path, "an older file").expect("a file");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    let mut sink = FileSink::create(options(&link)).expect("a sink");
    write(&mut sink, 9, 60).expect("room");
    sink.close(&[]).expect("a complete file");
    assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
    assert_eq!(numbers(&path), [9]);
}

#[test]
fn queues_are_written_only_on_request() {
    let directory = directory();
    for queues in [false, true] {
        let path = directory.path().join("out.pcapng");
        let mut sink = FileSink::create(SinkOptions { queues, ..options(&path) }).expect("a sink");
        let frame = FrameRef { timestamp_ns: START_NS, queue: Some(7), ..FrameRef::default() };
        sink.write(&frame).expect("room");
        sink.close(&[]).expect("a complete file");
        let mut reader = FileReader::open(path.to_str().expect("a path in UTF-8")).expect("a capture file");
        let packet = reader.next().expect("a packet").expect("a packet");
        assert_eq!(packet.queue, queues.then_some(7));
    }
}

proptest! {
    #[test]
    fn whole_blocks_end_at_the_last_boundary(
        pcap: bool, lengths in prop::collection::vec(0usize..100, 1..20), at: prop::sample::Index,
    ) {
        let format = if pcap { Format::Pcap } else { Format::Pcapng };
        let mut header = Vec::new();
        let blocks = Blocks::begin(&mut header, &SinkOptions { format, ..options(Path::new("x")) }).unwrap();
        let (mut written, mut ends) = (Vec::new(), vec![0]);
        for length in lengths {
            let frame = FrameRef { bytes: &vec![0xff; length], ..FrameRef::default() };
            blocks.packet(&mut written, &frame).unwrap();
            ends.push(written.len());
        }
        let cut = at.index(written.len() + 1);
        let packets = ends.iter().rposition(|end| *end <= cut).unwrap();
        prop_assert_eq!(blocks.whole(&written[..cut]), (ends[packets], packets as u64));
    }
}
