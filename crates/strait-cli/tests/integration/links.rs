//! A link that is down, goes down or is removed: one clear line, and no captured packet is lost.

use lab::{End, Wire, wait_until};
use strait_capture::file::FileReader;

use crate::rig::{
    Capture, LIMIT, PATHS, SOCKET_PATHS, assert_complete, count, failure, ledger, numbered, send, strait,
};

#[test]
fn interface_that_is_down_is_reported_at_once() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    wire.right().set_up(false);
    for path in PATHS {
        let finished = strait(wire.right(), &["capture", "-i", "right", "-p", path]).run(LIMIT).unwrap();
        let (code, line) = failure(&finished);
        assert_eq!(code, 1, "{line}");
        assert!(
            line.contains("on right: Network is down") && line.contains("ip link set right up"),
            "{line}"
        );
    }
    wire.left().set_up(false);
    for path in ["sendmmsg", "ring", "xdp"] {
        let arguments = ["generate", "-o", "left", "-p", path, "--count", "5"];
        let (code, line) = failure(&strait(wire.left(), &arguments).run(LIMIT).unwrap());
        assert_eq!(code, 1, "{line}");
        assert!(line.contains("on left: Network is down"), "{line}");
    }
}

#[test]
fn link_down_is_noted_and_the_capture_goes_on() {
    for path in PATHS {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("capture.pcapng");
        let arguments = ["-p", path, "-w", file.to_str().unwrap(), "--json"];
        let capture = Capture::start(wire.right(), &arguments);
        let frames = numbered(FRAMES);
        let (first, second) = frames.split_at(frames.len() / 2);
        send(&wire, first);
        // When the link goes down, XDP loses frames that have not reached its ring.
        assert!(wait_until(LIMIT, || part_holds(&file, first.len())));
        wire.right().set_up(false);
        assert!(wait_until(LIMIT, || capture.stderr().contains("right is down")), "{path}");
        wire.right().set_up(true);
        assert!(wait_until(LIMIT, || capture.stderr().contains("right is up again")), "{path}");
        let running = || wire.left().interface().is_running() && wire.right().interface().is_running();
        assert!(wait_until(LIMIT, running));
        send(&wire, second);
        let finished = capture.finish();
        let ledger = ledger(&finished);
        assert_eq!((count(&ledger, "delivered"), count(&ledger["events"], "link_downs")), (FRAMES, 1));
        assert!(ledger["link_down_seconds"].as_f64().unwrap() > 0.0, "{ledger}");
        assert_eq!(finished.stderr.matches("strait: note: right is ").count(), 2, "{}", finished.stderr);
        assert_complete(&file, FRAMES);
    }
}

#[test]
fn larger_mtu_is_noted_once_if_slots_cut_longer_packets() {
    // Slots for 1500 bytes have 2 KiB.
    for (path, mtus, notes) in [
        ("v2", &["1600", "1900"][..], 0),
        ("v2", &["1600", "9000"], 1),
        ("v2", &["4000", "9000"], 1),
        ("v3", &["4000", "9000"], 0),
    ] {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let capture = Capture::start(wire.right(), &["-p", path, "--json"]);
        for mtu in mtus {
            let command = wire.right().command("ip").args(["link", "set", "right", "mtu", *mtu]);
            let _ = command.run(LIMIT).unwrap().success();
        }
        let finished = capture.finish();
        assert_eq!(finished.stderr.matches("right has an MTU of").count(), notes, "{}", finished.stderr);
    }
}

#[test]
fn lost_carrier_is_noted_and_the_capture_goes_on() {
    for path in PATHS {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("capture.pcapng");
        let capture = Capture::start(wire.right(), &["-p", path, "-w", file.to_str().unwrap(), "--json"]);
        let frames = numbered(FRAMES);
        let (first, second) = frames.split_at(frames.len() / 2);
        send(&wire, first);
        wire.left().set_up(false);
        assert!(wait_until(LIMIT, || capture.stderr().contains("right has no carrier")), "{path}");
        wire.left().set_up(true);
        assert!(wait_until(LIMIT, || capture.stderr().contains("right has a carrier again")), "{path}");
        let running = || wire.left().interface().is_running() && wire.right().interface().is_running();
        assert!(wait_until(LIMIT, running));
        send(&wire, second);
        let finished = capture.finish();
        let ledger = ledger(&finished);
        let event = |name| count(&ledger["events"], name);
        assert_eq!(count(&ledger, "delivered"), FRAMES, "{path}: {ledger}");
        assert_eq!((event("link_downs"), event("carrier_losses")), (0, 1), "{path}: {ledger}");
        assert!(ledger["no_carrier_seconds"].as_f64().unwrap() > 0.0, "{path}: {ledger}");
        assert_eq!(ledger["link_down_seconds"], 0.0, "{path}");
        assert_eq!(finished.stderr.matches("strait: note: right ").count(), 2, "{}", finished.stderr);
        assert_complete(&file, FRAMES);
    }
}

/// Returns true if a running capture has written at least `packets` packets.
fn part_holds(file: &std::path::Path, packets: usize) -> bool {
    let part = file.with_extension("pcapng.part");
    let Ok(mut reader) = FileReader::open(part.to_str().unwrap()) else { return false };
    let mut found = 0;
    while let Ok(Some(_)) = reader.next() {
        found += 1;
    }
    found >= packets
}

#[test]
fn removed_interface_ends_the_capture_with_all_packets() {
    for path in PATHS {
        lose(path, &[], GONE, End::delete);
    }
}

#[test]
fn removed_interface_ends_every_lane() {
    for path in SOCKET_PATHS {
        lose(path, &["--queues", "0-2"], GONE, End::delete);
    }
}

#[test]
fn interface_moved_to_another_namespace_is_reported_as_gone() {
    for path in PATHS {
        lose(path, &[], GONE, |end| {
            let process = lab::Launch::new("unshare").args(["--net", "sleep", "100"]).spawn().unwrap();
            let id = process.id().to_string();
            let own = std::fs::read_link("/proc/self/ns/net").unwrap();
            let elsewhere = || std::fs::read_link(format!("/proc/{id}/ns/net")).is_ok_and(|link| link != own);
            assert!(wait_until(LIMIT, elsewhere));
            let _ =
                end.command("ip").args(["link", "set", "right", "netns", &id]).run(LIMIT).unwrap().success();
        });
    }
}

const GONE: &str = "capture on right: the interface was removed";

const FRAMES: u64 = 200;

fn lose(path: &str, options: &[&str], words: &str, fail: impl Fn(&End)) {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture.pcapng");
    let fixed = ["-p", path, "-w", file.to_str().unwrap(), "--json"];
    let capture = Capture::start(wire.right(), &[&fixed, options].concat());
    let frames = numbered(FRAMES);
    send(&wire, &frames[..frames.len() / 2]);
    // The other half is in its rings when the link fails.
    capture.freeze();
    send(&wire, &frames[frames.len() / 2..]);
    fail(wire.right());
    capture.thaw();
    let finished = capture.wait();
    let ledger = ledger(&finished);
    assert_eq!(count(&ledger, "delivered"), FRAMES, "{path}: {ledger}");
    let (code, line) = failure(&finished);
    assert_eq!(code, 1, "{path}: {line}");
    assert!(line.contains("right") && line.contains(words), "{path}: {line}");
    if options.is_empty() {
        assert_complete(&file, FRAMES);
    }
    assert!(file.exists());
}
