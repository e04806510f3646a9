//! SIGHUP during `strait capture -F FILE`: the filter changes without a gap, and the ledger
//! balances.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use lab::{Finished, Launch, Process, Wire, program_or_skip, wait_until};
use rustix::process::{Pid, Signal};
use strait_packet::traffic::{Kind, Traffic};

use crate::rig::{
    Capture, LIMIT, STRAIT, assert_complete, balances, count, frames_of, ledger, lost, numbered, send,
    send_until, sizes, status, strait,
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
        fs::write(self.directory.path().join("filter"), filter).unwrap();
        self.request(note);
    }

    /// Sends SIGHUP, and waits until the capture has printed one more `note`.
    fn request(&self, note: &str) {
        let notes = |stderr: &str| stderr.matches(note).count();
        let before = notes(&self.capture.stderr());
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
    assert!(notes[1].contains("it has more than 1048576 bytes"), "{}", notes[1]);
    assert_eq!(finished.stderr.lines().count(), 2, "{}", finished.stderr);
    let ledger = ledger(&finished);
    assert!(balances(&ledger) && count(&ledger, "filtered") >= 50, "{ledger}");
    assert_eq!(count(&ledger, "delivered"), 30, "{ledger}");
}

#[test]
fn file_that_is_not_regular_is_not_read_again() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let filtered = Filtered::start(&wire, "v3", "udp", &[]);
    let file = filtered.directory.path().join("filter");
    for target in ["/dev/null", "/dev/zero"] {
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(target, &file).unwrap();
        filtered.request(KEPT);
    }
    // Without a writer the usual open of a FIFO would wait.
    fs::remove_file(&file).unwrap();
    let _ = Launch::new("mkfifo").arg(&file).run(LIMIT).unwrap().success();
    filtered.request(KEPT);
    send(&wire, &frames(Kind::Udp4, 30));
    send(&wire, &frames(Kind::Tcp4, 50));
    let (finished, _directory) = filtered.finish();
    assert_eq!(finished.stderr.matches("it is not a regular file").count(), 3, "{}", finished.stderr);
    assert_eq!(count(&ledger(&finished), "delivered"), 30);
}

#[test]
fn capture_ends_while_a_filter_is_compiled() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let filtered = Filtered::start(&wire, "v3", "udp", &[]);
    // libpcap's compiler needs minutes for them.
    let hosts: Vec<String> =
        (0..3000).map(|host| format!("host 10.{}.{}.{}", host % 7, host / 50, host % 50)).collect();
    fs::write(filtered.directory.path().join("filter"), hosts.join(" or ")).unwrap();
    filtered.capture.signal_often(Signal::HUP, 1);
    let compiles = || filtered.capture.threads().contains(&"filter".to_owned());
    assert!(wait_until(LIMIT, compiles), "a thread compiles");
    send(&wire, &frames(Kind::Udp4, 30));
    let (finished, _directory) = filtered.finish();
    assert_eq!(count(&ledger(&finished), "delivered"), 30);
    assert!(!finished.stderr.contains("note: the filter"), "{}", finished.stderr);
}

#[test]
fn hangup_during_the_start_reads_the_file_again() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let filter = directory.path().join("filter");
    let _ = Launch::new("mkfifo").arg(&filter).run(LIMIT).unwrap().success();
    // It waits for the writer of its filter.
    let arguments = ["capture", "-i", "right", "--json", "-F", filter.to_str().unwrap()];
    let starting = strait(wire.right(), &arguments).spawn().unwrap();
    let id = starting.id().to_string();
    let handles_hangup = || {
        let caught = status(&id, "SigCgt").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        caught.is_some_and(|mask| mask & 1 != 0)
    };
    assert!(wait_until(LIMIT, handles_hangup));
    starting.signal(Signal::HUP);
    let mut writer = fs::File::options().write(true).open(&filter).unwrap();
    std::io::Write::write_all(&mut writer, b"udp").unwrap();
    drop(writer);
    starting.wait_for_stderr(KEPT, LIMIT).unwrap();
    starting.signal(Signal::INT);
    let finished = starting.wait(LIMIT).unwrap().success();
    assert!(balances(&ledger(&finished)), "{}", finished.stderr);
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
    let (directory, terminal) = at_terminal(&wire, "");
    let [out, part] = ["out.pcapng", "out.pcapng.part"].map(|name| directory.path().join(name));
    assert!(part.exists() && !out.exists());
    terminal.signal(Signal::KILL);
    assert!(wait_until(LIMIT, || out.exists()), "the file is complete");
}

#[test]
fn capture_under_nohup_outlives_its_terminal() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !program_or_skip("script") {
        return;
    }
    let (directory, terminal) = at_terminal(&wire, "trap '' HUP; echo $$ >pid; exec ");
    let [out, pid] = ["out.pcapng", "pid"].map(|name| directory.path().join(name));
    let id = fs::read_to_string(pid).unwrap().trim().to_owned();
    terminal.signal(Signal::KILL);
    let has_terminal = || stat(&id).is_some_and(|stat| stat[4] != "0");
    assert!(wait_until(LIMIT, || !has_terminal()), "the terminal is lost");
    let process = Pid::from_raw(id.parse().unwrap()).unwrap();
    rustix::process::kill_process(process, Signal::HUP).unwrap();
    let log = directory.path().join("log");
    let has_read = || fs::read_to_string(&log).is_ok_and(|text| text.contains(REPLACED));
    assert!(wait_until(LIMIT, has_read), "SIGHUP reads the filter again");
    assert!(!out.exists());
    rustix::process::kill_process(process, Signal::TERM).unwrap();
    assert!(wait_until(LIMIT, || out.exists()), "the file is complete");
}

/// Returns the fields of `/proc/ID/stat` after the name of the program.
fn stat(id: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    Some(text.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

/// Starts a capture at a terminal, after the commands `before` of a shell, and waits until it is
/// open. Its standard error is the file `log`.
fn at_terminal(wire: &Wire, before: &str) -> (tempfile::TempDir, Process) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("filter"), "").unwrap();
    let at = directory.path().display();
    let command = format!("cd {at}; {before}{STRAIT} capture -i right -F filter -w out.pcapng 2>log");
    let terminal = wire.right().command("script").args(["-qec", &command, "/dev/null"]).spawn().unwrap();
    let log = directory.path().join("log");
    let is_open = || fs::read_to_string(&log).is_ok_and(|text| text.contains("listening on right"));
    assert!(wait_until(LIMIT, is_open));
    (directory, terminal)
}
