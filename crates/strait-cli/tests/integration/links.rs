//! A link that is down, goes down or vanishes: one clear line, and nothing is lost that was captured.

use lab::{End, Wire};

use crate::rig::{
    Capture, LIMIT, PATHS, SOCKET_PATHS, assert_complete, count, failure, ledger, numbered, send, strait,
};

#[test]
fn an_interface_that_is_down_is_told_at_once() {
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
fn an_interface_that_goes_down_ends_the_capture_with_all_that_came() {
    for path in PATHS {
        lose(path, &[], "down", |end| end.set_up(false));
    }
}

#[test]
fn an_interface_that_vanishes_ends_the_capture_with_all_that_came() {
    for path in PATHS {
        lose(path, &[], "", End::delete);
    }
}

#[test]
fn an_interface_that_vanishes_ends_every_lane() {
    for path in SOCKET_PATHS {
        lose(path, &["--queues", "0-2"], "", End::delete);
    }
}

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
