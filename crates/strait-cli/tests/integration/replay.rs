//! `strait replay`: the sent packets equal those of the file, with the requested count and pace.

use std::path::{Path, PathBuf};

use lab::{Wire, wait_until};
use serde_json::Value;
use strait_capture::sink::{FileSink, FrameRef, LinkType, SinkInterface, SinkOptions, Target};

use crate::refusals::RECORDING;
use crate::rig::{Capture, LIMIT, Packet, count, failure, ledger, numbered, packets, strait};

/// Replays `file` from the left end. Returns the account and the packets captured at the right end.
fn replay(wire: &Wire, file: &Path, options: &[&str]) -> (Value, Vec<Packet>) {
    let directory = tempfile::tempdir().unwrap();
    let captured = directory.path().join("captured.pcapng");
    let capture = Capture::start(wire.right(), &["-w", captured.to_str().unwrap(), "--json"]);
    let before = wire.right().stats().rx_packets;
    let arguments = [&["replay", file.to_str().unwrap(), "-o", "left", "--json"], options].concat();
    let finished = strait(wire.left(), &arguments).run(LIMIT).unwrap().success();
    let account: Value = serde_json::from_str(&finished.text()).unwrap();
    wire.await_arrival(before, count(&account, "frames"));
    assert_eq!(ledger(&capture.finish())["delivered"], account["frames"]);
    (account, packets(&captured))
}

/// Writes a capture file of `frames` with `step_ns` between two of them.
fn file(directory: &Path, frames: &[Vec<u8>], step_ns: u64) -> PathBuf {
    let path = directory.join("input.pcapng");
    let mut sink = FileSink::create(SinkOptions::new(Target::Path(path.clone()), 0)).unwrap();
    for (i, bytes) in frames.iter().enumerate() {
        let timestamp_ns = 1_700_000_000_000_000_000 + i as u64 * step_ns;
        let frame = FrameRef { timestamp_ns, bytes, wire_len: bytes.len() as u32, ..FrameRef::default() };
        sink.write(&frame).unwrap();
    }
    sink.close(&[]).unwrap();
    path
}

#[test]
fn replayed_recording_is_captured_byte_for_byte() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let recording = packets(Path::new(RECORDING));
    let (account, captured) = replay(&wire, Path::new(RECORDING), &["--rate", "max"]);
    assert!(recording.len() > 100);
    assert_eq!(count(&account, "frames"), recording.len() as u64);
    assert_eq!(captured, recording);
}

#[test]
fn loop_sends_the_file_again() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let recording = packets(Path::new(RECORDING));
    let (_, captured) = replay(&wire, Path::new(RECORDING), &["--rate", "max", "--loop", "3"]);
    assert_eq!(captured, [&recording[..], &recording, &recording].concat());
}

#[test]
fn rate_replaces_the_pace_of_the_file() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    // The file spans a century, so that the test would not end at its pace.
    let input = file(directory.path(), &numbered(1000), 3_000_000_000_000_000_000 / 1000);
    let account = replay(&wire, &input, &["--rate", "4000"]).0;
    assert_eq!(count(&account, "frames"), 1000, "{account}");
    assert!(account["seconds"].as_f64().unwrap() >= 999.0 / 4000.0, "{account}");
}

#[test]
fn pace_of_the_file_is_multiplied_by_the_speed() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    // Files of half a second, at their own pace, and of an hour, at a higher speed.
    for (step_ns, options, seconds) in
        [(50_000_000, &[][..], 0.5), (360_000_000_000, &["--speed", "36000"][..], 0.1)]
    {
        let input = file(directory.path(), &numbered(11), step_ns);
        let account = replay(&wire, &input, options).0;
        assert_eq!(count(&account, "frames"), 11, "{account}");
        assert!(account["seconds"].as_f64().unwrap() >= seconds, "{account}");
    }
}

#[test]
fn signal_ends_a_long_wait_with_the_account() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    // An hour between packets.
    let input = file(directory.path(), &numbered(3), 3_600_000_000_000);
    let process =
        strait(wire.left(), &["replay", input.to_str().unwrap(), "-o", "left", "--json"]).spawn().unwrap();
    assert!(wait_until(LIMIT, || wire.left().stats().tx_packets == 1), "the first packet leaves at once");
    let finished = process.interrupt(LIMIT).unwrap().success();
    let account: Value = serde_json::from_str(&finished.text()).unwrap();
    assert_eq!(count(&account, "frames"), 1, "{account}");
}

#[test]
fn frames_above_the_mtu_are_counted_as_refused() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut frames = numbered(10);
    for (i, len) in [(3, 1515), (5, 9022), (7, 9023), (9, 20_000)] {
        frames[i].resize(len, 0);
    }
    let input = file(directory.path(), &frames, 0);
    let (account, captured) = replay(&wire, &input, &[]);
    assert_eq!((count(&account, "frames"), count(&account, "refused")), (6, 4), "{account}");
    let fitting: Vec<_> = frames.into_iter().filter(|frame| frame.len() <= 1514).collect();
    assert_eq!(captured.into_iter().map(|packet| packet.bytes).collect::<Vec<_>>(), fitting);
}

#[test]
fn frames_above_the_buffer_size_are_refused_not_truncated() {
    // The MTU of the loopback is 64 KiB.
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut frames = numbered(2);
    frames[1].resize(20_000, 0);
    let input = file(directory.path(), &frames, 0);
    let arguments = ["replay", input.to_str().unwrap(), "-o", "lo", "--json"];
    let finished = strait(wire.left(), &arguments).run(LIMIT).unwrap().success();
    let account: Value = serde_json::from_str(&finished.text()).unwrap();
    assert_eq!((count(&account, "frames"), count(&account, "refused")), (1, 1), "{account}");
}

#[test]
fn damaged_file_is_sent_up_to_the_damage() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let input = file(directory.path(), &numbered(10), 0);
    let whole = std::fs::read(&input).unwrap();
    std::fs::write(&input, &whole[..whole.len() / 2]).unwrap();
    let before = wire.left().stats().tx_packets;
    let arguments = ["replay", input.to_str().unwrap(), "-o", "left", "--json"];
    let finished = strait(wire.left(), &arguments).run(LIMIT).unwrap();
    let (code, line) = failure(&finished);
    assert_eq!(code, 1, "{line}");
    assert!(line.contains("is cut at byte"), "{line}");
    let account: Value = serde_json::from_str(&finished.text()).unwrap();
    let sent = count(&account, "frames");
    assert!((1..10).contains(&sent), "{account}");
    assert_eq!(wire.left().stats().tx_packets - before, sent);
}

#[test]
fn frames_that_are_not_ethernet_are_not_sent() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("raw.pcapng");
    let options = SinkOptions {
        interfaces: vec![SinkInterface { linktype: LinkType(101), ..SinkInterface::default() }],
        ..SinkOptions::new(Target::Path(path.clone()), 0)
    };
    let mut sink = FileSink::create(options).unwrap();
    sink.write(&FrameRef { bytes: &[0x45; 40], wire_len: 40, ..FrameRef::default() }).unwrap();
    sink.close(&[]).unwrap();
    let finished = strait(wire.left(), &["replay", path.to_str().unwrap(), "-o", "left"]).run(LIMIT).unwrap();
    let (code, line) = failure(&finished);
    assert_eq!(code, 1, "{line}");
    assert!(line.contains("link type 101 is not Ethernet"), "{line}");
    assert_eq!(wire.left().stats().tx_packets, 0);
}

#[test]
fn replay_without_a_sent_packet_prints_no_account() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let raw = directory.path().join("raw.pcapng");
    let interfaces = vec![SinkInterface { linktype: LinkType(101), ..SinkInterface::default() }];
    let options = SinkOptions { interfaces, ..SinkOptions::new(Target::Path(raw.clone()), 0) };
    let mut sink = FileSink::create(options).unwrap();
    sink.write(&FrameRef { bytes: &[0x45; 20], wire_len: 20, ..FrameRef::default() }).unwrap();
    sink.close(&[]).unwrap();
    let missing = directory.path().join("nosuch");
    for (file, words) in [(&missing, "No such file"), (&raw, "is not Ethernet")] {
        for options in [&[][..], &["--json"]] {
            let arguments = [&["replay", file.to_str().unwrap(), "-o", "left"], options].concat();
            let finished = strait(wire.left(), &arguments).run(LIMIT).unwrap();
            let (code, line) = failure(&finished);
            assert!(code == 1 && line.contains(words), "{line}");
            assert_eq!(finished.text(), "", "{words}");
        }
    }
}
