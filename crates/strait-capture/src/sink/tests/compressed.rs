//! Compressed files: whole, rotated, unfinished, on a full disk.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::{START_NS, directory, listing, numbers, options, part_of, write};
use crate::compression::Compression;
use crate::file::{FileError, FileReader};
use crate::sink::compressor::Compressor;
use crate::sink::worker::Worker;
use crate::sink::{FLUSH_BYTES, FileSink, Format, FrameRef, SinkError, SinkOptions, Statistics};

const ENDINGS: [&str; 3] = ["zst", "gz", "LZ4"];

/// Returns the numbers of the packets of an unfinished file, which must end within a frame.
fn numbers_of_cut(path: &Path) -> Vec<u64> {
    let mut reader = FileReader::open(path.to_str().expect("a path in UTF-8")).expect("a capture file");
    let mut numbers = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(packet)) => numbers.push((packet.timestamp_ns - START_NS) / 1000),
            Err(FileError::CutCompression { .. }) => return numbers,
            other => panic!("{other:?} after {} packets", numbers.len()),
        }
    }
}

#[test]
fn compressed_files_have_all_packets_and_truthful_counts() {
    let directory = directory();
    for ending in ENDINGS {
        for format in [Format::Pcapng, Format::Pcap] {
            let path = directory.path().join(format!("out.{ending}"));
            let mut sink = FileSink::create(SinkOptions { format, ..options(&path) }).expect("a sink");
            if format == Format::Pcapng {
                sink.start().expect("a thread");
            }
            (0..2000).for_each(|number| write(&mut sink, number, 900).expect("room"));
            let summary = sink.close(&[Statistics::default()]).expect("a complete file");
            assert_eq!(numbers(&path), (0..2000).collect::<Vec<_>>());
            let bytes = fs::metadata(&path).expect("a file").len();
            let mut reader = FileReader::open(path.to_str().expect("a path")).expect("a capture file");
            while reader.next().expect("whole packets").is_some() {}
            assert_eq!(reader.compression(), Compression::of_name(&path));
            assert_eq!((summary.bytes, summary.content_bytes), (bytes, reader.offset()), "{ending}");
            assert_eq!((reader.file_offset(), reader.format()), (bytes, Some(format)));
            assert!(bytes < summary.content_bytes / 10, "{ending}: {bytes}");
        }
    }
}

#[test]
fn each_flush_makes_packets_readable() {
    let directory = directory();
    for ending in ENDINGS {
        let path = directory.path().join(format!("out.pcapng.{ending}"));
        let mut sink = FileSink::create(options(&path)).expect("a sink");
        assert_eq!(numbers_of_cut(&part_of(&path)), [] as [u64; 0], "the header is there from the start");
        for number in 0..20 {
            write(&mut sink, number, 60).expect("room");
            assert_eq!(numbers_of_cut(&part_of(&path)), (0..number).collect::<Vec<_>>());
            sink.flush().expect("room");
            let length = fs::metadata(part_of(&path)).expect("a file").len();
            sink.flush().expect("room");
            assert_eq!(fs::metadata(part_of(&path)).expect("a file").len(), length, "nothing to write");
            assert_eq!(numbers_of_cut(&part_of(&path)), (0..=number).collect::<Vec<_>>());
        }
        drop(sink);
        assert_eq!(listing(directory.path()), [format!("out.pcapng.{ending}.part")], "dropped is not closed");
        fs::remove_file(part_of(&path)).expect("a file");
    }
}

/// Writes a packet without redundancy every third time, with a thread that compresses on request.
/// Returns the names of the files.
fn rotate(directory: &Path, ending: &str, limit: u64, packets: u64, is_threaded: bool) -> Vec<String> {
    let path = directory.join(format!("out.pcapng.{ending}"));
    let mut sink =
        FileSink::create(SinkOptions { rotate_bytes: Some(limit), ..options(&path) }).expect("a sink");
    if is_threaded {
        sink.start().expect("a thread");
    }
    let mut noise = 1_u64;
    for number in 0..packets {
        let mut bytes = vec![7; 1000];
        if number % 3 == 0 {
            for byte in &mut bytes {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (noise >> 56) as u8;
            }
        }
        let timestamp_ns = START_NS + number * 1000;
        let frame = FrameRef { timestamp_ns, bytes: &bytes, wire_len: 1000, ..FrameRef::default() };
        sink.write(&frame).expect("room");
    }
    let summary = sink.close(&[]).expect("complete files");
    let names = listing(directory);
    assert_eq!((summary.packets, summary.files), (packets, names.len() as u64));
    let bytes = names.iter().map(|name| fs::metadata(directory.join(name)).expect("a file").len());
    assert_eq!(summary.bytes, bytes.sum::<u64>());
    names
}

/// Returns bytes that cannot be compressed.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(next).collect()
}

#[test]
fn growth_of_content_that_cannot_be_compressed_is_bounded() {
    let content = noise(4 * FLUSH_BYTES);
    for compression in [Compression::Zstd, Compression::Gzip, Compression::Lz4] {
        for length in [1, 60, 1000, 16 << 10, 40_000, 100_000, FLUSH_BYTES, content.len()] {
            let mut compressor = Compressor::new(compression).expect("memory");
            let begun = compressor.compress(&[0; 24]).expect("memory").len();
            let mut bytes = 0;
            // As before a rotation: the buffer that the thread has, and the one that is filled.
            let (first, second) = content[..length].split_at(length / 2);
            for part in [first, second].into_iter().filter(|part| !part.is_empty()) {
                bytes += compressor.compress(part).expect("memory").len() as u64;
            }
            bytes += compressor.finish().expect("memory").len() as u64;
            let bound = length as u64 + Compressor::overhead_max(length as u64);
            assert!(begun > 0 && bytes <= bound, "{compression:?}: {bytes} bytes of {length}");
        }
    }
}

#[test]
fn rotation_limit_holds_without_redundancy() {
    let bytes = noise(4 << 20);
    for (ending, is_threaded) in ENDINGS.into_iter().flat_map(|ending| [(ending, false), (ending, true)]) {
        let (directory, limit) = (directory(), 500_000);
        let base = options(&directory.path().join(format!("out.pcapng.{ending}")));
        let mut sink = FileSink::create(SinkOptions { rotate_bytes: Some(limit), ..base }).expect("a sink");
        if is_threaded {
            sink.start().expect("a thread");
        }
        for (number, bytes) in (0..).zip(bytes.chunks(100)) {
            let timestamp_ns = START_NS + number * 1000;
            sink.write(&FrameRef { timestamp_ns, bytes, wire_len: 100, ..FrameRef::default() })
                .expect("room");
        }
        sink.close(&[]).expect("complete files");
        for name in listing(directory.path()) {
            let bytes = fs::metadata(directory.path().join(&name)).expect("a file").len();
            assert!(bytes <= limit, "{name} has {bytes} bytes");
        }
    }
}

#[test]
fn rotation_limits_the_compressed_bytes() {
    for (ending, is_threaded) in ENDINGS.into_iter().flat_map(|ending| [(ending, false), (ending, true)]) {
        let (directory, limit) = (directory(), 200_000);
        let names = rotate(directory.path(), ending, limit, 4000, is_threaded);
        assert!((5..=20).contains(&names.len()), "{names:?}");
        let mut packets = 0;
        for (number, name) in names.iter().enumerate() {
            assert!(name.starts_with(&format!("out_{:05}_20231114221320.pcapng.", number + 1)), "{name}");
            let path = directory.path().join(name);
            let bytes = fs::metadata(&path).expect("a file").len();
            assert!(bytes <= limit, "{name} has {bytes} bytes");
            assert!(bytes > limit * 4 / 5 || number + 1 == names.len(), "{name} has only {bytes} bytes");
            let mut reader = FileReader::open(path.to_str().expect("a path")).expect("a capture file");
            while let Some(packet) = reader.next().expect("whole packets") {
                assert_eq!(packet.timestamp_ns, START_NS + packets * 1000);
                packets += 1;
            }
        }
        assert_eq!(packets, 4000);
    }
}

#[test]
fn smallest_limit_holds_for_compressed_files() {
    for ending in ENDINGS {
        let directory = directory();
        for name in rotate(directory.path(), ending, 4096, 50, true) {
            let bytes = fs::metadata(directory.path().join(&name)).expect("a file").len();
            assert!(bytes <= 4096, "{name} has {bytes} bytes");
        }
    }
}

#[test]
fn compressed_files_are_rotated_at_the_end_of_each_period() {
    // Packets of 1000 bytes in each minute: fewer than 16 KiB, more, and so many that the thread
    // has a buffer at the end of the minute.
    let periods = [10, 60, 300, 60, 600, 300, 1];
    for (ending, is_threaded) in ENDINGS.into_iter().flat_map(|ending| [(ending, false), (ending, true)]) {
        let directory = directory();
        let base = options(&directory.path().join(format!("out.pcapng.{ending}")));
        let options = SinkOptions { rotate_every: Some(Duration::from_mins(1)), ..base };
        let mut sink = FileSink::create(options).expect("a sink");
        if is_threaded {
            sink.start().expect("a thread");
        }
        let mut times = Vec::new();
        for (minute, packets) in (0_u64..).zip(periods) {
            times.push((0..packets).map(|packet| minute * 60_000_000 + packet).collect::<Vec<_>>());
        }
        for time in times.iter().flatten() {
            write(&mut sink, *time, 1000).expect("room");
        }
        let summary = sink.close(&[]).expect("complete files");
        assert_eq!((summary.packets, summary.files), (periods.iter().sum(), 7), "{ending} {is_threaded}");
        let names = listing(directory.path());
        let found: Vec<_> = names.iter().map(|name| numbers(&directory.path().join(name))).collect();
        assert_eq!(found, times, "{ending} {is_threaded}");
    }
}

#[test]
fn index_of_a_compressed_file_is_refused() {
    let directory = directory();
    let options = options(&directory.path().join("out.pcapng.zst"));
    let error = FileSink::create_indexed(options, Box::new(|_, _| None)).expect_err("a usage error");
    assert!(matches!(&error, SinkError::Usage(_)), "{error}");
    assert!(error.to_string().contains("without .zst"), "{error}");
    assert_eq!(listing(directory.path()), [] as [String; 0]);
}

#[test]
fn existing_compressed_file_is_not_indexed() {
    let directory = directory();
    let path = directory.path().join("out.pcapng.gz");
    let mut sink = FileSink::create(options(&path)).expect("a sink");
    write(&mut sink, 0, 60).expect("room");
    sink.close(&[]).expect("a complete file");
    let error = crate::index::build(path.to_str().expect("a path"), |_| None).expect_err("no index");
    assert!(
        error
            .to_string()
            .ends_with("a compressed file has no index, as it is read from its start: decompress it first")
    );
}

#[test]
fn end_of_the_thread_keeps_the_written_packets_and_names_their_file() {
    let directory = directory();
    let path = directory.path().join("out.pcapng.zst");
    let mut sink = FileSink::create(options(&path)).expect("a sink");
    (0..100).for_each(|number| write(&mut sink, number, 1000).expect("room"));
    sink.flush().expect("room");
    sink.worker = Some(Worker::that_ends());
    let mut given = 100;
    let error = loop {
        given += 1;
        if let Err(error) = write(&mut sink, given - 1, 1000) {
            break error;
        }
        assert!(given < 10_000, "the thread has ended");
    };
    let SinkError::Write { file, packets, bytes, .. } = &error else { panic!("{error}") };
    assert_eq!((file, *packets), (&part_of(&path).display().to_string(), 100));
    assert_eq!(fs::metadata(part_of(&path)).expect("a file").len(), *bytes);
    assert_eq!(sink.written_bytes(), *bytes);
    let summary = sink.close(&[]).expect("nothing more to write");
    assert_eq!((summary.packets, summary.lost, summary.bytes), (100, given - 100, *bytes));
    assert!(summary.content_bytes > 100_000 && summary.files == 0, "{summary:?}");
    assert_eq!(numbers_of_cut(&part_of(&path)), (0..100).collect::<Vec<_>>());
}
