//! Files that are whole, cut, damaged, growing in a pipe, or missing.

use std::fs::File;
use std::io::{Seek, Write};
use std::task::Poll;

use strait_pcapng::{Format, Interface, Packet, Section, Statistics, pcap, pcapng};

use super::{FileError, FileReader, PacketRef, READ_BYTES};
use crate::compression::Compression;
use crate::frame::Direction;

fn a_file(packets: u32, bytes: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = pcapng::Encoder::begin(&mut file, &Section::default());
    let interface = Interface { name: Some("veth0"), snaplen: 2000, ..Interface::default() };
    encoder.interface(&mut file, &interface).unwrap();
    for number in 0..packets {
        let direction = Some(strait_pcapng::Direction::Out);
        let wire_len = bytes.len() as u32;
        let packet =
            Packet { timestamp_ns: u64::from(number), bytes, wire_len, direction, ..Packet::default() };
        encoder.packet(&mut file, &packet).unwrap();
    }
    encoder.statistics(&mut file, &Statistics { received: Some(9), ..Statistics::default() }).unwrap();
    file
}

fn reader(bytes: &[u8]) -> Result<FileReader, FileError> {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("bytes in it");
    file.rewind().expect("a file that seeks");
    FileReader::new(file, "test.pcapng".into())
}

/// Reads packets until the end or an error.
fn count(reader: &mut FileReader) -> (u32, Result<(), FileError>) {
    let mut packets = 0;
    loop {
        match reader.next() {
            Ok(Some(packet)) => assert_eq!(packet.timestamp_ns, u64::from(packets)),
            Ok(None) => return (packets, Ok(())),
            Err(error) => return (packets, Err(error)),
        }
        packets += 1;
    }
}

#[test]
fn packets_interfaces_and_statistics_are_read() {
    let mut reader = reader(&a_file(3000, &[7; 700])).expect("a whole file");
    assert_eq!((reader.format(), reader.link_type()), (Some(Format::Pcapng), 1));
    let first = reader.next().expect("a packet").expect("a packet");
    assert_eq!((first.bytes, first.direction, first.interface), (&[7; 700][..], Direction::Out, 0));
    let mut packets = 1;
    while let Some(packet) = reader.next().expect("whole packets") {
        assert_eq!(packet.timestamp_ns, packets);
        packets += 1;
    }
    assert_eq!(packets, 3000);
    let interface = &reader.interfaces()[0];
    assert_eq!((interface.name.as_deref(), interface.snaplen), (Some("veth0"), 2000));
    assert_eq!(interface.statistics.and_then(|statistics| statistics.received), Some(9));
    assert_eq!(reader.next().expect("still the end"), None);
}

#[test]
fn cut_file_gives_all_whole_packets_and_then_its_error_with_offset() {
    let file = a_file(1000, &[1; 900]);
    let cut = file.len() - 500;
    let mut reader = reader(&file[..cut]).expect("a file with an interface");
    let (packets, end) = count(&mut reader);
    assert_eq!(packets, 999);
    let error = end.expect_err("a cut file");
    let FileError::Truncated { offset, end, .. } = &error else { panic!("{error}") };
    assert_eq!((*offset, *end), (reader.offset(), cut as u64));
    let expected =
        format!("test.pcapng is cut at byte {cut}: the block that starts at byte {offset} is incomplete");
    assert_eq!(error.to_string(), expected);
    assert!(matches!(count(&mut reader), (0, Err(FileError::Truncated { .. }))), "the error comes again");
}

#[test]
fn block_longer_than_the_buffer_is_read() {
    let long = vec![3; 262_144];
    let mut file = a_file(2, b"short");
    file.extend(a_file(1, &long));
    assert!(long.len() + 32 > READ_BYTES);
    let mut reader = reader(&file).expect("a whole file");
    let lengths: Vec<_> =
        std::iter::from_fn(|| reader.next().expect("whole packets").map(|packet| packet.bytes.len()))
            .collect();
    assert_eq!(lengths, [5, 5, 262_144]);
    assert_eq!(reader.interfaces().len(), 2);
}

#[test]
fn damage_is_reported_after_all_earlier_packets() {
    let mut file = a_file(10, b"fine");
    let statistics_at = file.len() - 24;
    file[statistics_at + 20] ^= 4;
    let (packets, end) = count(&mut reader(&file).expect("a file with an interface"));
    let message = end.expect_err("a broken file").to_string();
    assert_eq!(packets, 10);
    assert!(message.starts_with("test.pcapng: block at byte "), "{message}");
}

#[test]
fn pipe_is_read_while_it_fills() {
    let (read, mut write) = std::io::pipe().expect("a pipe");
    let file = a_file(200, &[5; 1000]);
    let writer = std::thread::spawn(move || {
        for part in file.chunks(777) {
            write.write_all(part).expect("a reader at the other end");
        }
    });
    let source = File::from(std::os::fd::OwnedFd::from(read));
    let mut reader = FileReader::new(source, "standard input".into()).expect("a file with an interface");
    assert!(matches!(count(&mut reader), (200, Ok(()))));
    writer.join().expect("the writer ends well");
}

#[test]
fn pcap_files_have_one_interface() {
    let mut file = Vec::new();
    let linktype = strait_pcapng::LinkType::RAW;
    let encoder = pcap::Encoder::begin(&mut file, linktype, 96, pcap::Precision::Microseconds);
    encoder.packet(&mut file, &Packet { bytes: b"x", wire_len: 9, ..Packet::default() }).unwrap();
    let mut reader = reader(&file).expect("a whole file");
    assert_eq!((reader.link_type(), reader.interfaces().len()), (101, 1));
    let packet = reader.next().expect("a packet").expect("a packet");
    assert_eq!((packet.wire_len, packet.direction), (9, Direction::Unknown));
}

#[test]
fn file_without_interfaces_is_empty() {
    let mut file = Vec::new();
    pcapng::Encoder::begin(&mut file, &Section::default());
    let mut reader = reader(&file).expect("a whole file");
    assert_eq!(reader.link_type(), 1);
    assert_eq!(reader.next().expect("no packet"), None);
}

#[test]
fn file_of_another_format_is_refused_when_opened() {
    let error_of = |bytes: &[u8]| reader(bytes).expect_err("no capture file").to_string();
    assert_eq!(error_of(b""), "test.pcapng: the file is empty");
    assert!(error_of(b"GET / HTTP/1.1").contains("not a pcap or pcapng file"));
    assert!(error_of(&a_file(0, b"")[..20]).contains("is cut at byte 20"));
    let missing = FileReader::open("/nowhere/at/all.pcap").expect_err("no such file").to_string();
    assert!(missing.starts_with("open /nowhere/at/all.pcap: No such file"), "{missing}");
    let directory = FileReader::open("/").expect_err("a directory").to_string();
    assert!(directory.starts_with("read /: Is a directory"), "{directory}");
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).expect("memory");
    encoder.finish().expect("memory")
}

fn zstd(content: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(content, 1).expect("memory")
}

#[test]
fn compressed_file_is_read_like_its_content() {
    let content = a_file(3000, &[7; 700]);
    let (first, second) = content.split_at(10_000);
    for packed in [gzip(&content), zstd(&content), [zstd(first), zstd(second)].concat()] {
        let mut reader = reader(&packed).expect("a whole file");
        assert!(reader.compression().is_some());
        assert_eq!((reader.format(), reader.link_type()), (Some(Format::Pcapng), 1));
        assert!(matches!(count(&mut reader), (3000, Ok(()))));
        assert_eq!(reader.offset(), content.len() as u64);
        assert!(reader.skip_to(u64::MAX).is_err(), "a compressed file cannot seek");
    }
}

#[test]
fn cut_or_damaged_compression_gives_the_packets_before_and_one_line() {
    let content = a_file(40_000, &[7; 100]);
    let mut packed = gzip(&content);
    let cut = packed.len() - 20;
    let mut cut_reader = reader(&packed[..cut]).expect("a file with an interface");
    let (packets, end) = count(&mut cut_reader);
    assert!(packets > 35_000, "{packets}");
    let expected = format!("test.pcapng is cut at byte {cut}: its gzip data is incomplete");
    assert_eq!(end.expect_err("a cut file").to_string(), expected);
    *packed.last_mut().expect("bytes") ^= 1;
    let mut damaged = reader(&packed).expect("a file with an interface");
    let (packets, end) = count(&mut damaged);
    let end = end.expect_err("a damaged file").to_string();
    assert_eq!(packets, 40_000);
    let length = packed.len();
    let place = format!("(gzip data before byte {length})");
    assert_eq!(end, format!("test.pcapng: damaged: the checksum is wrong {place}"));
    assert_eq!(count(&mut damaged).1.expect_err("again").to_string(), end);
}

/// Returns the next packet without waiting.
fn try_next(reader: &mut FileReader) -> Result<Poll<Option<PacketRef<'_>>>, FileError> {
    match reader.try_fill()? {
        Poll::Ready(_) => reader.buffered().next().map(Poll::Ready),
        Poll::Pending => Ok(Poll::Pending),
    }
}

#[test]
fn compressed_pipe_gives_packets_without_waiting_for_more() {
    let content = a_file(2, b"packet");
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).expect("memory");
    let (read, mut write) = std::io::pipe().expect("a pipe");
    // The last packet is in the second block, and the statistics are.
    let (first, second) = content.split_at(content.len() - 30);
    encoder.write_all(first).expect("memory");
    encoder.flush().expect("memory");
    write.write_all(encoder.get_ref()).expect("room");
    let sent = encoder.get_ref().len();
    let source = File::from(std::os::fd::OwnedFd::from(read));
    let mut reader = FileReader::new(source, "standard input".into()).expect("a file with an interface");
    assert!(matches!(try_next(&mut reader), Ok(Poll::Ready(Some(_)))));
    assert!(matches!(try_next(&mut reader), Ok(Poll::Ready(Some(_)))));
    for _ in 0..100 {
        assert!(matches!(try_next(&mut reader), Ok(Poll::Pending)), "the statistics are incomplete");
    }
    encoder.write_all(second).expect("memory");
    let packed = encoder.finish().expect("memory");
    let (last, rest) = packed[sent..].split_at(1);
    write.write_all(last).expect("room");
    assert!(matches!(try_next(&mut reader), Ok(Poll::Pending)), "the block is incomplete");
    write.write_all(rest).expect("room");
    drop(write);
    assert!(matches!(try_next(&mut reader), Ok(Poll::Ready(None))));
}

fn lz4(content: &[u8]) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(content).expect("memory");
    encoder.finish().expect("memory")
}

#[test]
fn compression_without_content_returns_to_a_caller_that_does_not_wait() {
    let content = a_file(3, b"packet");
    let (first, second) = content.split_at(content.len() - 30);
    // A frame of twelve megabytes that has only blocks without output.
    let empty = [&lz4(b"x")[..7], &[1, 0, 0, 0, 0].repeat((12 << 20) / 5), &[0; 4]].concat();
    let mut reader = reader(&[lz4(first), empty, lz4(second)].concat()).expect("a file with an interface");
    let (mut packets, mut pending) = (0, 0);
    loop {
        match try_next(&mut reader).expect("valid input") {
            Poll::Ready(Some(_)) => packets += 1,
            Poll::Ready(None) => break,
            Poll::Pending => pending += 1,
        }
    }
    assert_eq!(packets, 3);
    assert!((1..10).contains(&pending), "{pending}");
}

#[test]
fn legacy_lz4_is_refused_with_the_command_that_decompresses() {
    let legacy = [&[0x02, 0x21, 0x4c, 0x18, 5, 0, 0, 0][..], b"\x40data and more bytes"].concat();
    let error = reader(&legacy).expect_err("the legacy format").to_string();
    let remedy = "decompress it first (`lz4 -dc FILE | ... -`)";
    assert_eq!(error, format!("test.pcapng: the legacy format of LZ4 is not read: {remedy}"));
}

#[test]
fn frame_after_skippable_ones_shows_the_compression() {
    let content = a_file(3000, &[7; 700]);
    let skippable =
        |bytes: u32| [&[0x5f, 0x2a, 0x4d, 0x18][..], &bytes.to_le_bytes(), &vec![9; bytes as usize]].concat();
    let start = [skippable(4), skippable(0), skippable(200_000)].concat();
    for (frames, compression) in [(zstd(&content), Compression::Zstd), (lz4(&content), Compression::Lz4)] {
        let mut reader = reader(&[&start[..], &frames].concat()).expect("a whole file");
        assert_eq!(reader.compression(), Some(compression));
        assert!(matches!(count(&mut reader), (3000, Ok(()))));
    }
    // Longer than the buffer, cut, and without another frame.
    let long = [skippable(READ_BYTES as u32), zstd(&content)].concat();
    assert!(matches!(count(&mut reader(&long).expect("a whole file")), (3000, Ok(()))));
    for end in [4, 9, 100, start.len() - 1, start.len()] {
        reader(&start[..end]).expect_err("no capture file");
    }
}
