//! Blocks that belong to no packet: their places in the files, and the limits.

use std::fs::{File, Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::{START_NS, directory, listing, numbers, options, write};
use crate::extra::{ExtraBlock, ExtraBlocks, Secrets};
use crate::file::FileReader;
use crate::sink::{FileSink, Format, SinkOptions, Summary};

fn block(number: u64, bytes: usize) -> ExtraBlock {
    let data = vec![number as u8; bytes];
    ExtraBlock::secrets(&Secrets { kind: Secrets::TLS_KEY_LOG, data: &data }).expect("a short block")
}

/// Item of a file, in order.
#[derive(Debug, PartialEq, Eq)]
enum Item {
    Packet(u64),
    Block(ExtraBlock),
}

fn items(path: &Path) -> Vec<Item> {
    let (extras, mut items) = (ExtraBlocks::default(), Vec::new());
    let path = path.to_str().expect("UTF-8");
    let mut reader = FileReader::open_collecting(path, Some(extras.clone())).expect("a capture file");
    loop {
        let packet = reader.next().expect("whole blocks");
        items.extend(std::iter::from_fn(|| extras.take()).map(Item::Block));
        let Some(packet) = packet else { return items };
        items.push(Item::Packet((packet.timestamp_ns - START_NS) / 1000));
    }
}

fn blocks(path: &Path) -> Vec<ExtraBlock> {
    let block = |item| match item {
        Item::Block(block) => Some(block),
        Item::Packet(_) => None,
    };
    items(path).into_iter().filter_map(block).collect()
}

/// Returns the number of each block.
fn numbers_of(blocks: &[ExtraBlock]) -> Vec<u8> {
    blocks.iter().map(|block| block.bytes()[16]).collect()
}

#[test]
fn block_precedes_the_buffered_packets_and_follows_the_written_ones() {
    let directory = directory();
    for name in ["out.pcapng", "out.pcapng.zst"] {
        let path = directory.path().join(name);
        let mut sink = FileSink::create(options(&path)).expect("a sink");
        sink.start().expect("a thread");
        sink.add_block(block(1, 5)).expect("room");
        write(&mut sink, 0, 100).expect("room");
        sink.flush().expect("room");
        write(&mut sink, 1, 100).expect("room");
        sink.add_block(block(2, 6)).expect("room");
        write(&mut sink, 2, 100).expect("room");
        sink.add_block(block(3, 7)).expect("room");
        let summary = sink.close(&[]).expect("a complete file");
        assert_eq!((summary.packets, summary.lost_blocks, summary.unrepeated_blocks), (3, 0, 0));
        let (packet, block) = (Item::Packet, |number, bytes| Item::Block(block(number, bytes)));
        assert_eq!(
            items(&path),
            [block(1, 5), packet(0), block(2, 6), block(3, 7), packet(1), packet(2)],
            "{name}"
        );
    }
}

#[test]
fn each_file_of_a_rotation_starts_with_the_blocks_before_and_keeps_its_limit() {
    for compressed in ["", ".gz"] {
        let directory = directory();
        let path = directory.path().join(format!("out.pcapng{compressed}"));
        let rotate_bytes = Some(20_000);
        let mut sink = FileSink::create(SinkOptions { rotate_bytes, ..options(&path) }).expect("a sink");
        for number in 0..500 {
            if number % 20 == 0 {
                sink.add_block(block(number / 20, 100)).expect("room");
            }
            let bytes = (0..900).map(|at| (number * 31 + at * at * 17) as u8).collect::<Vec<_>>();
            let packet = crate::sink::FrameRef {
                timestamp_ns: START_NS + number * 1000,
                bytes: &bytes,
                wire_len: 900,
                ..Default::default()
            };
            sink.write(&packet).expect("room");
        }
        let summary = sink.close(&[]).expect("complete files");
        let names = listing(directory.path());
        assert!(names.len() >= 8 || !compressed.is_empty(), "{names:?}");
        assert_eq!((summary.packets, summary.lost_blocks, summary.unrepeated_blocks), (500, 0, 0));
        for name in &names {
            let path = directory.path().join(name);
            let length = path.metadata().expect("a file").len();
            assert!(length <= 20_000, "{name} has {length} bytes");
            let items = items(&path);
            let last = items.iter().rev().find_map(|item| match item {
                Item::Packet(number) => Some(*number),
                Item::Block(_) => None,
            });
            // All blocks that were added before its last packet, in order, each once. The block
            // that was added before the first packet of the next file may be among them.
            let added = last.expect("a packet") / 20 + 1;
            let found = numbers_of(&blocks(&path));
            assert!((added..=added + 1).contains(&(found.len() as u64)), "{name}: {found:?}");
            assert!(found.iter().copied().eq(0..found.len() as u8), "{name}: {found:?}");
        }
    }
}

#[test]
fn later_files_start_with_the_newest_blocks_in_half_of_their_limit() {
    let directory = directory();
    let rotate_bytes = Some(8192);
    let path = directory.path().join("out.pcapng");
    let mut sink = FileSink::create(SinkOptions { rotate_bytes, ..options(&path) }).expect("a sink");
    for number in 0..50 {
        sink.add_block(block(number, 300)).expect("room");
        write(&mut sink, number, 500).expect("room");
    }
    sink.add_block(block(50, 5000)).expect("room");
    let Summary { lost_blocks, unrepeated_blocks, .. } = sink.close(&[]).expect("complete files");
    assert_eq!(lost_blocks, 1, "longer than half of a file");
    assert!((30..50).contains(&unrepeated_blocks), "{unrepeated_blocks}");
    let names = listing(directory.path());
    let last = directory.path().join(names.last().expect("a file"));
    let found = blocks(&last);
    assert!(found.len() > 8 && found.last() == Some(&block(49, 300)), "{}", found.len());
    for name in names {
        let length = directory.path().join(&name).metadata().expect("a file").len();
        assert!(length <= 8192, "{name} has {length} bytes");
    }
}

#[test]
fn blocks_without_packets_are_bounded_with_rotation() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let rotate_bytes = Some(10_000);
    let mut sink = FileSink::create(SinkOptions { rotate_bytes, ..options(&path) }).expect("a sink");
    (0..100).for_each(|number| sink.add_block(block(number, 1000)).expect("room"));
    let summary = sink.close(&[]).expect("a complete file");
    assert_eq!((summary.files, summary.lost_blocks), (1, 96));
}

#[test]
fn pcap_file_holds_no_block() {
    let directory = directory();
    let path = directory.path().join("out.pcap");
    let format = Format::Pcap;
    let mut sink = FileSink::create(SinkOptions { format, ..options(&path) }).expect("a sink");
    sink.add_block(block(1, 5)).expect("no failure");
    write(&mut sink, 0, 100).expect("room");
    assert_eq!(sink.close(&[]).expect("a complete file").lost_blocks, 1);
    assert_eq!(numbers(&path), [0]);
}

#[test]
fn index_has_the_packets_around_blocks() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let flow = Box::new(|frame: &crate::sink::FrameRef<'_>, _| frame.bytes.first().map(|&byte| byte.into()));
    let mut sink = FileSink::create_indexed(options(&path), flow).expect("a sink");
    for number in 0..3000 {
        write(&mut sink, number, 900).expect("room");
        if number % 7 == 0 {
            sink.add_block(block(number, 50)).expect("room");
        }
    }
    sink.close(&[]).expect("a complete file");
    assert_eq!(numbers(&path), (0..3000).collect::<Vec<_>>());
    let index = crate::index::load(&path, &File::open(&path).expect("a file")).expect("an index");
    let name = path.to_str().expect("UTF-8");
    let built = crate::index::build(name, |packet| packet.bytes.first().map(|&byte| byte.into()));
    assert_eq!(crate::index::Index::parse(built.expect("an index")), Ok(index));
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("a file").permissions().mode() & 0o777
}

#[test]
fn files_with_secrets_are_readable_by_their_user_only() {
    for name in ["out.pcapng", "out.pcapng.zst"] {
        let directory = directory();
        let path = directory.path().join(name);
        let rotate_bytes = Some(8192);
        let mut sink = FileSink::create(SinkOptions { rotate_bytes, ..options(&path) }).expect("a sink");
        sink.start().expect("a thread");
        let part = directory.path().join(&listing(directory.path())[0]);
        // The umask of the test may be that of a private file.
        set_permissions(&part, Permissions::from_mode(0o644)).expect("an own file");
        let name = ExtraBlock::names([([192, 0, 2, 1].into(), "host")]);
        sink.add_block(name).expect("room");
        sink.flush().expect("room");
        assert_eq!(mode(&part), 0o644, "names are no secrets");
        sink.add_block(block(1, 100)).expect("room");
        assert_eq!(mode(&part), 0o600, "before the secrets are written");
        for number in 0..20_000 {
            write(&mut sink, number, 500).expect("room");
            if number > 100 && listing(directory.path()).len() > 2 {
                break;
            }
        }
        sink.close(&[]).expect("complete files");
        let names = listing(directory.path());
        assert!(names.len() > 1, "{names:?}");
        for name in names {
            assert_eq!(mode(&directory.path().join(&name)), 0o600, "{name}");
        }
    }
}

#[test]
fn file_has_the_mode_of_the_umask_also_after_an_empty_one_that_is_wider() {
    let permitted = 0o666 & !strait_os::process::umask();
    for before in [None, Some(0o666), Some(0o600)] {
        let directory = directory();
        let path = directory.path().join("out.pcapng");
        let part = super::part_of(&path);
        if let Some(before) = before {
            // The empty file of a capture that was killed.
            let mode = Permissions::from_mode(before);
            File::create(&part).and_then(|file| file.set_permissions(mode)).expect("a file");
        }
        let sink = FileSink::create(options(&path)).expect("a sink");
        let expected = permitted & before.unwrap_or(permitted);
        assert_eq!(mode(&part), expected, "{before:?}");
        sink.close(&[]).expect("a complete file");
        assert_eq!(mode(&path), expected, "{before:?}");
    }
}

#[test]
fn private_file_has_its_mode_before_the_first_byte() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let is_private = true;
    let part = super::part_of(&path);
    // The empty file of a capture that was killed.
    File::create(&part).and_then(|file| file.set_permissions(Permissions::from_mode(0o666))).expect("a file");
    let sink = FileSink::create(SinkOptions { is_private, ..options(&path) }).expect("a sink");
    assert_eq!(mode(&part), 0o600);
    sink.close(&[]).expect("a complete file");
    let second = directory.path().join("second.pcapng");
    let sink = FileSink::create(SinkOptions { is_private, ..options(&second) }).expect("a sink");
    sink.close(&[]).expect("a complete file");
    assert_eq!((mode(&path), mode(&second)), (0o600, 0o600));
}

#[test]
fn names_evict_no_secrets() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let rotate_bytes = Some(20_000);
    let mut sink = FileSink::create(SinkOptions { rotate_bytes, ..options(&path) }).expect("a sink");
    let host = "h".repeat(250);
    sink.add_block(block(7, 300)).expect("room");
    for number in 0..500_u64 {
        let name = ExtraBlock::names([([10, 0, (number >> 8) as u8, number as u8].into(), &*host)]);
        sink.add_block(name).expect("room");
        write(&mut sink, number, 100).expect("room");
    }
    let summary = sink.close(&[]).expect("complete files");
    assert!(summary.unrepeated_blocks > 300, "{summary:?}");
    let names = listing(directory.path());
    assert!(names.len() > 5, "{names:?}");
    for name in names {
        let path = directory.path().join(&name);
        let length = path.metadata().expect("a file").len();
        assert!(length <= 20_000, "{name} has {length} bytes");
        let blocks = blocks(&path);
        assert_eq!(blocks.iter().filter(|found| **found == block(7, 300)).count(), 1, "{name}");
    }
}

#[test]
fn block_that_waits_is_never_evicted() {
    // A block of nearly half a file, alone and after another one.
    for (first, second) in [(2010, 20), (1500, 500)] {
        let directory = directory();
        let path = directory.path().join("out.pcapng");
        let rotate_bytes = Some(4096);
        let mut sink = FileSink::create(SinkOptions { rotate_bytes, ..options(&path) }).expect("a sink");
        write(&mut sink, 0, 3000).expect("room");
        sink.add_block(block(1, first)).expect("room");
        sink.add_block(block(2, second)).expect("room");
        write(&mut sink, 1, 3000).expect("room");
        let summary = sink.close(&[]).expect("complete files");
        let in_files: std::collections::BTreeSet<u8> = listing(directory.path())
            .iter()
            .flat_map(|name| numbers_of(&blocks(&directory.path().join(name))))
            .collect();
        assert_eq!(in_files.len() as u64 + summary.lost_blocks, 2, "{in_files:?} {summary:?}");
    }
}

#[test]
fn blocks_that_cannot_be_written_are_lost() {
    let mut sink = FileSink::create(options(Path::new("/dev/null"))).expect("a sink");
    // Every write to this file fails for lack of space.
    sink.output = Some(super::super::output::Output::failing());
    (0..3).for_each(|number| sink.add_block(block(number, 100)).expect("room in memory"));
    sink.flush().expect_err("a full device");
    sink.add_block(block(3, 100)).expect("it is counted");
    let summary = sink.close(&[]).expect("the failure is known");
    assert_eq!(summary.lost_blocks, 4);
}

#[test]
fn comments_leave_half_of_a_file_to_packets() {
    let directory = directory();
    let rotate_bytes = Some(4096);
    let path = directory.path().join("out.pcapng");
    for (last, is_refused) in [(48, false), (49, true)] {
        let comments = vec!["c".repeat(2000), "c".repeat(last)];
        let created = FileSink::create(SinkOptions { rotate_bytes, comments, ..options(&path) });
        assert_eq!(created.is_err(), is_refused, "{last}");
    }
}
