//! Indexes beside the files of a sink.

use std::fs::File;

use super::*;
use crate::index::{Index, build, load};

/// Identifies a flow by the first byte of its frame.
fn flow_of(bytes: &[u8]) -> Option<u64> {
    bytes.first().map(|byte| u64::from(*byte).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn sink(options: SinkOptions) -> FileSink {
    FileSink::create_indexed(options, Box::new(|frame, _| flow_of(frame.bytes))).expect("a sink")
}

fn index_of(path: &Path) -> Index {
    load(path, &File::open(path).expect("a file")).expect("an index")
}

#[test]
fn index_of_a_live_file_is_that_of_the_complete_file() {
    for name in ["out.pcapng", "out.pcap"] {
        let directory = directory();
        let path = directory.path().join(name);
        let format = if name.ends_with('g') { Format::Pcapng } else { Format::Pcap };
        let mut sink = sink(SinkOptions { format, ..options(&path) });
        (0..5000).for_each(|number| write(&mut sink, number, 900).expect("room"));
        sink.close(&[]).expect("a complete file");
        let index = index_of(&path);
        assert_eq!(index.parts().map(|part| u64::from(part.packets)).sum::<u64>(), 5000);
        assert!(index.len() > 4, "{} parts", index.len());
        let built = build(path.to_str().expect("UTF-8"), |packet| flow_of(packet.bytes));
        assert_eq!(Index::parse(built.expect("an index")), Ok(index), "{name}");
    }
}

#[test]
fn each_file_of_a_rotation_has_an_index_and_a_ring_deletes_both() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let rotation = SinkOptions { rotate_bytes: Some(10_000), ring_files: Some(2), ..options(&path) };
    let mut sink = sink(rotation);
    (0..100).for_each(|number| write(&mut sink, number, 900).expect("room"));
    let summary = sink.close(&[]).expect("complete files");
    let names = listing(directory.path());
    assert_eq!((names.len(), summary.files - summary.deleted, summary.unindexed), (4, 2, 0), "{names:?}");
    for pair in names.chunks(2) {
        assert_eq!(format!("{}.sidx", pair[0]), pair[1]);
        index_of(&directory.path().join(&pair[0]));
    }
}

#[test]
fn changed_and_copied_files_have_no_index() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let mut sink = sink(options(&path));
    (0..10).for_each(|number| write(&mut sink, number, 900).expect("room"));
    sink.close(&[]).expect("a complete file");
    let refusal =
        |path: &Path| load(path, &File::open(path).expect("a file")).expect_err("no index").to_string();
    let modified = fs::metadata(&path).expect("a file").modified().expect("a time");
    let mut bytes = fs::read(&path).expect("a file");
    bytes[0x30] ^= 1;
    fs::write(&path, &bytes).expect("a file");
    assert_eq!(refusal(&path), "it has changed since it was indexed");
    // The time does not help.
    File::options().write(true).open(&path).and_then(|file| file.set_modified(modified)).expect("a file");
    assert_eq!(refusal(&path), "it has changed since it was indexed");
    bytes[0x30] ^= 1;
    fs::write(&path, &bytes).expect("a file");
    File::options().write(true).open(&path).and_then(|file| file.set_modified(modified)).expect("a file");
    index_of(&path);
    let other = directory.path().join("other.pcapng");
    fs::copy(&path, &other).expect("a copy");
    assert_eq!(refusal(&other), "it has no index");
}

#[test]
fn file_without_an_index_is_still_complete() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    // A directory has the name of the index.
    fs::create_dir(directory.path().join("out.pcapng.sidx")).expect("a directory");
    let mut sink = sink(options(&path));
    write(&mut sink, 0, 900).expect("room");
    let summary = sink.close(&[]).expect("a complete file");
    assert_eq!((summary.packets, summary.files, summary.unindexed), (1, 1, 1));
    assert!(
        summary.last_unindexed.starts_with(&format!("{}: ", path.display())),
        "{}",
        summary.last_unindexed
    );
    assert_eq!(numbers(&path), [0]);
}

#[test]
fn stream_cannot_have_an_index() {
    let null = SinkOptions::new(Target::Path("/dev/null".into()), START_NS);
    let refused = FileSink::create_indexed(null, Box::new(|_, _| None)).expect_err("no index");
    assert_eq!(refused.to_string(), "an index needs the name of a file");
}

#[test]
fn file_that_is_cut_gets_no_index() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let mut sink = sink(options(&path));
    (0..10).for_each(|number| write(&mut sink, number, 900).expect("room"));
    sink.close(&[]).expect("a complete file");
    let bytes = fs::read(&path).expect("a file");
    fs::write(&path, &bytes[..bytes.len() - 200]).expect("a file");
    let refused = build(path.to_str().expect("UTF-8"), |_| None).expect_err("no index");
    assert!(refused.to_string().contains("is cut at byte"), "{refused}");
}
