//! `strait generate`: the requested frames arrive at the other end, complete and valid, at the
//! requested pace.

use std::path::{Path, PathBuf};

use lab::{End, Offload, Wire, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{
    Capture, LIMIT, assert_complete, count, failure, ledger, packets, sequence, strait, without_notes,
};
use crate::tools::{self, CHECKSUMS, tshark};

/// Runs `strait generate` at the left end and returns its account.
fn generate(end: &End, options: &[&str]) -> Value {
    let arguments = [&["generate", "-o", end.name(), "--json"], options].concat();
    let finished = strait(end, &arguments).run(LIMIT).unwrap().success();
    let text = finished.text();
    assert_eq!((text.lines().count(), without_notes(&finished.stderr).as_str()), (1, ""), "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Like [`generate`], with a capture at the right end into a file of the directory. Asserts that
/// the file has all sent frames.
fn generate_and_capture(wire: &Wire, directory: &Path, options: &[&str]) -> (Value, PathBuf) {
    let file = directory.join("capture.pcapng");
    let capture = Capture::start(wire.right(), &["-w", file.to_str().unwrap(), "--ring-mib", "64", "--json"]);
    let before = wire.right().stats().rx_packets;
    let account = generate(wire.left(), options);
    wire.await_arrival(before, count(&account, "frames"));
    let ledger = ledger(&capture.finish());
    assert_eq!(ledger["delivered"], account["frames"], "{ledger}");
    assert_eq!(ledger["bytes"], account["bytes"], "{ledger}");
    (account, file)
}

/// Returns a wire that accepts redirected frames. A veth evaluates the settings of its peer when it
/// is set up.
fn live_wire() -> Option<Wire> {
    let wire = Wire::builder().offloads(&[Offload::Gro]).or_skip()?;
    wire.left().set_up(false);
    wire.left().set_up(true);
    assert!(wait_until(LIMIT, || wire.left().interface().is_running()));
    Some(wire)
}

/// Asserts by tshark that each frame has checksums and that all are correct.
fn assert_checksums(file: &Path) {
    let fields = ["ip.checksum.status", "udp.checksum.status", "tcp.checksum.status"];
    for (number, checked) in tshark(file, &CHECKSUMS, &fields).into_iter().enumerate() {
        let checked: Vec<String> = checked.into_iter().filter(|status| !status.is_empty()).collect();
        assert!(
            !checked.is_empty() && checked.iter().all(|status| status == "1"),
            "frame {number}: {checked:?}"
        );
    }
}

#[test]
fn every_frame_of_every_path_arrives_once_and_valid() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for path in ["sendmmsg", "ring", "xdp"] {
        let options = [
            "-p",
            path,
            "--count",
            "400",
            "--kind",
            "udp4,tcp4,udp6,tcp6",
            "--size",
            "64,512,1518",
            "--flows",
            "64",
        ];
        let (account, file) = generate_and_capture(&wire, directory.path(), &options);
        assert_eq!(count(&account, "frames"), 400, "{path}: {account}");
        assert_complete(&file, 400);
        assert_checksums(&file);
    }
}

#[test]
fn kinds_flows_and_vlan_are_as_requested() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let options = ["--count", "240", "--kind", "udp4,tcp6", "--flows", "24", "--vlan", "7", "--size", "128"];
    let macs = ["--source-mac", "02:00:00:00:00:aa", "--destination-mac", "02:00:00:00:00:bb"];
    let (_, file) = generate_and_capture(&wire, directory.path(), &[&options[..], &macs].concat());
    assert_complete(&file, 240);
    let fields = ["vlan.id", "frame.len", "eth.src", "eth.dst", "_ws.col.Protocol", "ip.src", "ipv6.src"];
    let rows = tshark(&file, &[], &fields);
    for row in &rows {
        assert_eq!(row[..4], ["7", "124", "02:00:00:00:00:aa", "02:00:00:00:00:bb"], "{row:?}");
    }
    let with = |protocol: &str| rows.iter().filter(|row| row[4] == protocol).count();
    assert_eq!((with("UDP"), with("TCP")), (120, 120));
    let mut flows: Vec<_> = rows.iter().map(|row| (&row[5], &row[6])).collect();
    flows.sort();
    flows.dedup();
    assert_eq!(flows.len(), 24);
}

#[test]
fn internet_mix_has_its_shares() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (account, file) = generate_and_capture(
        &wire,
        directory.path(),
        &["--count", "1200", "--size", "imix", "--flows", "10"],
    );
    // Without the frame check sequence.
    for (len, share) in [(60, 700), (590, 400), (1514, 100)] {
        assert_eq!(packets(&file).iter().filter(|packet| packet.wire_len == len).count(), share, "{len}");
    }
    assert_eq!(count(&account, "bytes"), 700 * 60 + 400 * 590 + 100 * 1514);
}

#[test]
fn jumbo_frames_cross_a_link_with_a_large_mtu() {
    let Some(wire) = Wire::builder().mtu(9000).or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    for path in ["sendmmsg", "ring", "xdp"] {
        let (_, file) =
            generate_and_capture(&wire, directory.path(), &["-p", path, "--count", "20", "--size", "9018"]);
        assert_complete(&file, 20);
        assert!(packets(&file).iter().all(|packet| packet.bytes.len() == 9014));
    }
}

#[test]
fn size_above_the_mtu_is_reported_before_any_frame_is_sent() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in ["sendmmsg", "ring", "xdp", "live"] {
        for (size, mtu) in [("1519", "mtu 1501"), ("9018", "mtu 9000")] {
            let arguments = ["generate", "-o", "left", "-p", path, "--count", "9", "--size", size];
            let (code, line) = failure(&strait(wire.left(), &arguments).run(LIMIT).unwrap());
            assert_eq!(code, 2, "{line}");
            assert!(
                line.contains(&format!("--size {size}: left accepts frames of up to 1518 bytes")),
                "{line}"
            );
            assert!(line.ends_with(mtu), "{line}");
        }
    }
    assert_eq!(wire.left().stats().tx_packets, 0);
    // The MTU does not include a VLAN tag.
    let tagged = generate(wire.left(), &["--count", "9", "--size", "1518", "--vlan", "5"]);
    assert_eq!(count(&tagged, "frames"), 9, "{tagged}");
}

#[test]
fn no_frame_is_sent_before_it_is_due() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in ["sendmmsg", "ring", "xdp"] {
        assert_not_early(&wire, path, 1.0);
    }
}

#[test]
fn no_live_frame_is_sent_before_it_is_due() {
    let Some(wire) = live_wire() else { return };
    // Delayed frames follow each other at 15/16 of the interval.
    assert_not_early(&wire, "live", 15.0 / 16.0);
}

/// Asserts that all frames are sent, and none before `share` of its due time. Delays depend on the
/// machine; catching up is tested with a simulated clock (`parse::tests`).
fn assert_not_early(wire: &Wire, path: &str, share: f64) {
    const FRAMES: u64 = 1000;
    let options = ["-p", path, "--rate", "5000", "--count", &FRAMES.to_string()];
    let account = generate(wire.left(), &options);
    assert_eq!(count(&account, "frames") + count(&account, "dropped"), FRAMES, "{path}: {account}");
    let earliest = (FRAMES - 1) as f64 / 5000.0 * share;
    assert!(account["seconds"].as_f64().unwrap() >= earliest * 0.99, "{path}: {account}");
}

#[test]
fn duration_or_signal_ends_generate_with_its_account() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let account = generate(wire.left(), &["--duration", "0.2", "--rate", "1000"]);
    let frames = count(&account, "frames");
    assert!((1..=210).contains(&frames) && account["seconds"].as_f64().unwrap() >= 0.19, "{account}");

    for signal in [Signal::INT, Signal::TERM] {
        let before = wire.right().stats().rx_packets;
        let process = strait(wire.left(), &["generate", "-o", "left", "--rate", "1000"]).spawn().unwrap();
        assert!(wait_until(LIMIT, || wire.right().stats().rx_packets > before));
        process.signal(signal);
        let text = process.wait(LIMIT).unwrap().success().text();
        assert!(text.starts_with("sent ") && text.contains("frames/s"), "{text}");
    }
}

#[test]
fn failing_link_ends_generate_with_the_account_of_sent_frames() {
    for path in ["sendmmsg", "ring", "xdp"] {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let before = wire.right().stats().rx_packets;
        let arguments = ["generate", "-o", "left", "-p", path, "--rate", "1000", "--json"];
        let process = strait(wire.left(), &arguments).spawn().unwrap();
        assert!(wait_until(LIMIT, || wire.right().stats().rx_packets > before));
        wire.left().set_up(false);
        let finished = process.wait(LIMIT).unwrap();
        let (code, line) = failure(&finished);
        assert!(code != 0 && line.contains("left"), "{line}");
        let account: Value = serde_json::from_str(&finished.text()).unwrap();
        assert!(count(&account, "frames") >= wire.right().stats().rx_packets - before, "{account}");
        assert_eq!(count(&account, "bytes"), 60 * count(&account, "frames"), "{account}");
    }
}

#[test]
fn live_frames_are_numbered_and_valid() {
    let Some(wire) = live_wire() else { return };
    if !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let options = ["-p", "live", "--count", "3000", "--rate", "20000", "--size", "128", "--flows", "100"];
    let (account, file) = generate_and_capture(&wire, directory.path(), &options);
    let (frames, dropped) = (count(&account, "frames"), count(&account, "dropped"));
    assert_eq!(frames + dropped, 3000, "{account}");
    let mut numbers = sequence(&file);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len() as u64, frames, "every number once");
    assert!(numbers.iter().all(|&number| number < 3000));
    assert!(packets(&file).iter().all(|packet| packet.bytes.len() == 124));
    assert_checksums(&file);
}

#[test]
fn signal_ends_live_frames_with_the_account() {
    let Some(wire) = live_wire() else { return };
    let before = wire.right().stats().rx_packets;
    let process = strait(wire.left(), &["generate", "-o", "left", "-p", "live", "--json"]).spawn().unwrap();
    assert!(wait_until(LIMIT, || wire.right().stats().rx_packets > before));
    let finished = process.interrupt(LIMIT).unwrap().success();
    let account: Value = serde_json::from_str(&finished.text()).unwrap();
    assert!(count(&account, "frames") > 0, "{account}");
}

#[test]
fn live_frames_are_refused_if_the_other_end_cannot_receive_them() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let finished =
        strait(wire.left(), &["generate", "-o", "left", "-p", "live", "--count", "9"]).run(LIMIT).unwrap();
    let (code, line) = failure(&finished);
    assert_eq!(code, 3, "{line}");
    assert!(line.contains("gro on"), "{line}");
}
