//! SIGHUP during `strait capture -F FILE`: the filter changes without a gap, and the ledger
//! balances.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use lab::{Finished, Wire, program_or_skip, wait_until};
use rustix::process::Signal;
use strait_packet::traffic::{Kind, Traffic};

use crate::rig::{
    Capture, LIMIT, STRAIT, assert_complete, balances, count, frames_of, ledger, lost, numbered, send, sizes,
};

/// Note after a replaced filter.
const REPLACED: &str = "strait: note: the filter is that of ";
/// Note after a refused one.
const KEPT: &str = "strait: note: the filter stays as it was: ";

/// Running capture with a filter file, and its output.
struct Filtered {
    capture: Capture,
    directory: tempfile::TempDir,
}

impl Filtered {
    /// Starts a capture at the right end of the wire, on a path with packet sockets or another one.
    fn start(wire: &Wire, path: &str, filter: &str, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("filter"), filter).unwrap();
        let [file, out] = ["filter", "out.pcapng"].map(|name| directory.path().join(name));
        let [file, out] = [file, out].map(|path| path.to_str().unwrap().to_owned());
        let arguments = ["--path", path, "-F", &file, "-w", &out, "--json"];
        let capture = Capture::start(wire.right(), &[&arguments[..], options].concat());
        Self { capture, directory }
    }

    fn out(&self) -> PathBuf {
        self.directory.path().join("out.pcapng")
    }

    /// Writes another filter, and waits until the capture has printed one more `note`.
    fn reload(&self, filter: &str, note: &str) {
        let notes = |stderr: &str| stderr.matches(note).count();
        let before = notes(&self.capture.stderr());
        fs::write(self.directory.path().join("filter"), filter).unwrap();
        self.capture.signal_often(Signal::HUP, 1);
        let has_read = || notes(&self.capture.stderr()) > before;
        assert!(wait_until(LIMIT, has_read), "{}", self.capture.stderr());
    }

    fn finish(self) -> (Finished, tempfile::TempDir) {
        (self.capture.finish(), self.directory)
    }
}

/// Returns frames of one kind.
fn frames(kind: Kind, number: u64) -> Vec<Vec<u8>> {
    frames_of(&Traffic::builder().kinds(&[kind]).sizes(sizes("100,512")).flows(4).build().unwrap(), number)
}

#[test]
fn reloaded_filter_selects_later_frames_and_the_ledger_balances() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (udp, tcp) = (frames(Kind::Udp4, 30), frames(Kind::Tcp4, 50));
    for (path, queues) in [("recv", "0"), ("v2", "0"), ("v3", "0"), ("v3", "0-1")] {
        let filtered = Filtered::start(&wire, path, "udp", &["--queues", queues]);
        send(&wire, &udp);
        send(&wire, &tcp);
        filtered.reload("tcp", REPLACED);
        send(&wire, &udp);
        send(&wire, &tcp);
        filtered.reload("", REPLACED);
        send(&wire, &udp);
        let (finished, _directory) = filtered.finish();
        let ledger = ledger(&finished);
        assert!(balances(&ledger) && lost(&ledger) == 0, "{path} {queues}: {ledger}");
        let counts = ["delivered", "filtered"].map(|name| count(&ledger, name));
        assert_eq!(counts, [30 + 50 + 30, 50 + 30], "{path} {queues}: {ledger}");
    }
}

/// Sends numbered frames until `ended`, and waits until they have arrived. Returns their number.
fn send_until(wire: &Wire, frames: &[Vec<u8>], ended: &AtomicBool) -> u64 {
    let mut sent = 0;
    for some in frames.chunks(50) {
        if ended.load(Ordering::Acquire) {
            return sent;
        }
        send(wire, some);
        sent += some.len() as u64;
    }
    panic!("all {sent} frames were sent before the filter was replaced often enough");
}

#[test]
fn frames_that_both_filters_match_pass_while_the_filter_is_replaced() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let traffic = Traffic::builder().kinds(&[Kind::Udp4]).sizes(sizes("100")).flows(4).build().unwrap();
    let frames = frames_of(&traffic, 400_000);
    // The ring holds all frames.
    let filtered = Filtered::start(&wire, "v3", "ether[0] >= 0", &["--ring-mib", "128"]);
    let ended = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send_until(&wire, &frames, &ended));
        for filter in ["udp", "greater 1", "ip", "udp and greater 50", ""].iter().cycle().take(20) {
            filtered.reload(filter, REPLACED);
        }
        ended.store(true, Ordering::Release);
        sending.join().unwrap()
    });
    let out = filtered.out();
    let (finished, _directory) = filtered.finish();
    let ledger = ledger(&finished);
    assert!(balances(&ledger) && lost(&ledger) == 0, "{ledger}");
    assert_eq!((count(&ledger, "delivered"), count(&ledger, "filtered")), (sent, 0), "{ledger}");
    assert_complete(&out, sent);
}

#[test]
fn defective_file_keeps_the_filter_and_prints_one_line() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (udp, tcp) = (frames(Kind::Udp4, 30), frames(Kind::Tcp4, 50));
    let filtered = Filtered::start(&wire, "v3", "udp", &[]);
    filtered.reload("udp and (", KEPT);
    filtered.reload(&"x".repeat(2 << 20), KEPT);
    send(&wire, &udp);
    send(&wire, &tcp);
    let (finished, _directory) = filtered.finish();
    let notes: Vec<&str> = finished.stderr.lines().filter(|line| line.starts_with(KEPT)).collect();
    assert_eq!(notes.len(), 2, "{}", finished.stderr);
    assert!(notes[1].contains("2097152 bytes, more than 1048576"), "{}", notes[1]);
    assert_eq!(finished.stderr.lines().count(), 2, "{}", finished.stderr);
    let ledger = ledger(&finished);
    assert!(balances(&ledger) && count(&ledger, "filtered") >= 50, "{ledger}");
    assert_eq!(count(&ledger, "delivered"), 30, "{ledger}");
}

#[test]
fn paths_without_packet_sockets_refuse_and_keep_the_filter() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (udp, tcp) = (frames(Kind::Udp4, 30), frames(Kind::Tcp4, 50));
    let filtered = Filtered::start(&wire, "tap", "udp", &[]);
    filtered
        .reload("tcp", "the path tap cannot replace the filter of a running capture: restart the capture");
    send(&wire, &udp);
    send(&wire, &tcp);
    let (finished, _directory) = filtered.finish();
    let ledger = ledger(&finished);
    assert!(balances(&ledger), "{ledger}");
    assert_eq!(count(&ledger, "delivered"), 30, "{ledger}");
}

#[test]
fn hangup_without_a_filter_file_ends_the_capture_with_a_complete_file() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out.pcapng");
    let capture = Capture::start(wire.right(), &["-w", out.to_str().unwrap(), "--json"]);
    send(&wire, &numbered(100));
    let finished = capture.end(Signal::HUP).success();
    assert!(balances(&ledger(&finished)), "{}", finished.stderr);
    assert_complete(&out, 100);
}

#[test]
fn closed_terminal_ends_a_capture_with_a_filter_file() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !program_or_skip("script") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let [filter, out, part] =
        ["filter", "out.pcapng", "out.pcapng.part"].map(|name| directory.path().join(name));
    fs::write(&filter, "").unwrap();
    let command = format!("{STRAIT} capture -i right -F {} -w {}", filter.display(), out.display());
    let terminal = wire.right().command("script").args(["-qec", &command, "/dev/null"]).spawn().unwrap();
    terminal.wait_for_stdout("listening on right", LIMIT).unwrap();
    assert!(part.exists() && !out.exists());
    terminal.signal(Signal::KILL);
    assert!(wait_until(LIMIT, || out.exists()), "the file is complete");
}
