//! Tests of the `file` path: each packet of a file is lent once, whatever the batches are.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use strait_capture::sink::{FileSink, FrameRef, SinkOptions, Target};
use strait_capture::{ErrorKind, Lane, Session};
use strait_ledger::Capture;
use tempfile::TempDir;

use crate::corpus::frames;

/// Bytes of a file with more packets than a batch and a read have.
const FILE_BYTES: usize = 1 << 20;
/// Most packets of a batch.
const BATCH_PACKETS: usize = 1024;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// Returns a file with these packets, each with its position as its time.
fn written(directory: &TempDir, frames: &[Vec<u8>]) -> PathBuf {
    let path = directory.path().join("input");
    let mut sink = FileSink::create(SinkOptions::new(Target::Path(path.clone()), 0)).unwrap();
    for (bytes, timestamp_ns) in frames.iter().zip(0..) {
        let wire_len = bytes.len() as u32;
        sink.write(&FrameRef { bytes, wire_len, timestamp_ns, ..FrameRef::default() }).unwrap();
    }
    sink.close(&[]).unwrap();
    path
}

/// Returns frames of a megabyte.
fn many() -> Vec<Vec<u8>> {
    let frames = frames();
    let bytes: usize = frames.iter().map(Vec::len).sum();
    frames.iter().cycle().take(frames.len() * FILE_BYTES.div_ceil(bytes)).cloned().collect()
}

fn open(path: &Path, filter: &str) -> (Session, Lane) {
    let mut session = Session::builder(path.to_str().unwrap()).filter(filter).open_file().unwrap();
    let lane = session.take_lanes().remove(0);
    (session, lane)
}

/// Reads a lane to its end: takes at most `limit` frames of each batch of at most `batch` frames.
/// Returns the times and bytes of the frames, and the error at the end.
fn read(lane: &mut Lane, batch: usize, limit: usize) -> (Vec<(u64, Vec<u8>)>, Option<strait_capture::Error>) {
    let mut seen = Vec::new();
    loop {
        match lane.next_batch_of(batch, soon()) {
            Ok(Some(mut lent)) => {
                let before = seen.len();
                seen.extend(
                    lent.frames().take(limit).map(|frame| (frame.timestamp_ns, frame.bytes.to_vec())),
                );
                assert!(seen.len() - before <= batch.min(BATCH_PACKETS));
                if seen.len() - before < limit {
                    assert!(lent.is_empty(), "all frames were taken");
                }
            }
            Ok(None) => return (seen, None),
            Err(error) => return (seen, Some(error)),
        }
    }
}

fn counts(lane: Lane) -> Capture {
    let capture = lane.finish().unwrap().capture;
    assert_eq!(capture.check_balance(), Ok(()));
    capture
}

#[test]
fn each_packet_is_lent_once_and_those_that_are_left_come_again() {
    let directory = tempfile::tempdir().unwrap();
    let frames = many();
    let path = written(&directory, &frames);
    let expected: Vec<(u64, Vec<u8>)> = (0..).zip(frames.clone()).collect();
    for (batch, limit) in [(usize::MAX, usize::MAX), (usize::MAX, 3), (7, usize::MAX), (1, 1)] {
        let (_session, mut lane) = open(&path, "");
        let (seen, error) = read(&mut lane, batch, limit);
        assert!(seen == expected && error.is_none(), "{batch} {limit}: {} {error:?}", seen.len());
        let capture = counts(lane);
        let all = frames.len() as u64;
        assert_eq!((capture.received, capture.delivered, capture.filtered), (all, all, 0), "{batch} {limit}");
    }
}

#[test]
fn rejected_packets_are_counted_up_to_the_last_frame_that_was_taken() {
    let directory = tempfile::tempdir().unwrap();
    let frames = many();
    let path = written(&directory, &frames);
    let (_session, mut lane) = open(&path, "greater 9000");
    let (seen, error) = read(&mut lane, usize::MAX, usize::MAX);
    assert!(seen.is_empty() && error.is_none(), "{error:?}");
    assert_eq!(counts(lane).filtered, frames.len() as u64);
    // The packet after which it stops is the last one of the count.
    let size = frames[5].len();
    let (_session, mut lane) = open(&path, &format!("len == {size}"));
    let first = frames.iter().position(|frame| frame.len() == size).unwrap() as u64;
    let time = loop {
        let mut batch = lane.next_batch(soon()).unwrap().unwrap();
        let taken = batch.frames().next().map(|frame| frame.timestamp_ns);
        if let Some(time) = taken {
            break time;
        }
    };
    assert_eq!(time, first);
    let capture = counts(lane);
    assert_eq!((capture.received, capture.delivered, capture.filtered), (first + 1, 1, first));
}

#[test]
fn packets_before_the_end_of_a_cut_file_come_before_its_error() {
    let directory = tempfile::tempdir().unwrap();
    let frames = frames();
    let path = written(&directory, &frames);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let (_session, mut lane) = open(&path, "");
    let (seen, error) = read(&mut lane, usize::MAX, usize::MAX);
    let count = seen.len();
    assert!((1..frames.len()).contains(&count), "{count}");
    assert!(seen.into_iter().map(|(_, bytes)| bytes).eq(frames[..count].iter().cloned()));
    assert!(error.unwrap().to_string().contains("is cut at byte"));
    assert!(lane.next_batch(soon()).unwrap().is_none(), "the error comes once");
    assert_eq!(counts(lane).delivered, count as u64);
}

#[test]
fn packets_before_another_link_type_come_before_its_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = written(&directory, &frames()[..4]);
    // Interface of link type 101, and a packet of it with four bytes.
    let words: [u32; 14] = [1, 20, 101, 0, 20, 6, 36, 1, 0, 0, 4, 4, 0, 36];
    let mut file = std::fs::read(&path).unwrap();
    file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    std::fs::write(&path, file).unwrap();
    let (_session, mut lane) = open(&path, "");
    let (seen, error) = read(&mut lane, usize::MAX, usize::MAX);
    assert_eq!(seen.len(), 4);
    let error = error.unwrap();
    assert!(error.to_string().contains("packets of link types 1 and 101"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert_eq!(counts(lane).received, 4);
}

#[test]
fn file_is_not_read_further_after_the_session_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let path = written(&directory, &frames());
    for (filter, borrowed) in [("", 3), ("greater 9000", 0)] {
        let (mut session, mut lane) = open(&path, filter);
        for _ in 0..borrowed {
            assert_eq!(lane.next_batch_of(1, soon()).unwrap().unwrap().frames().count(), 1);
        }
        session.stop().unwrap();
        assert!(lane.next_batch(soon()).unwrap().is_none(), "{filter}");
        let report = session.report(vec![lane.finish().unwrap()]);
        assert_eq!((report.capture.received, report.capture.delivered), (borrowed, borrowed), "{filter}");
    }
}
