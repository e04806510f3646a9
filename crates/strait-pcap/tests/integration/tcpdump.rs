//! tcpdump, unmodified, on each path: it prints and writes what stock tcpdump beside it does.

use std::fs;
use std::path::Path;
use std::time::Duration;

use lab::{Launch, Process, Wire, program_or_skip};
use strait_packet::traffic::Kind;

use crate::rig::{LIMIT, library, send};

const FRAMES: u64 = 300;

fn tcpdump(wire: &Wire, path: Option<&str>, file: &Path, filter: &str) -> Process {
    let launch = wire.right().command("tcpdump").args(["-Z", "root", "-n", "-i", "right", "-w"]).arg(file);
    let launch = match path {
        Some(path) => launch.env("LD_PRELOAD", library()).env("STRAIT_PATH", path).env("STRAIT_STRICT", "1"),
        None => launch,
    };
    let process = launch.arg("--immediate-mode").arg(filter).spawn().unwrap();
    process.wait_for_stderr("listening on", LIMIT).unwrap();
    process
}

/// The packets of a file as tcpdump prints them, bytes and all, without their times.
fn printed(file: &Path) -> String {
    let launch = Launch::new("tcpdump").args(["-ttnnxxr"]).arg(file);
    let text = launch.run(LIMIT).unwrap().success().text();
    text.lines()
        .map(|line| if line.starts_with('\t') { line } else { line.split_once(' ').unwrap().1 })
        .collect()
}

/// Captures the same traffic by `path` and, where it leaves packets to others, by stock tcpdump.
fn beside_stock(path: &str, filter: &str) -> (Vec<String>, String) {
    let wire = Wire::builder().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut files = vec![(Some(path), directory.path().join("ours"))];
    if path != "xdp" {
        files.push((None, directory.path().join("theirs")));
    }
    let running: Vec<_> = files.iter().map(|(path, file)| tcpdump(&wire, *path, file, filter)).collect();
    let before = wire.right().stats().rx_packets;
    send(&wire, &[Kind::Udp4, Kind::Tcp4, Kind::Udp6], FRAMES, Duration::ZERO, || false);
    assert!(lab::wait_until(LIMIT, || wire.right().stats().rx_packets - before >= FRAMES));
    std::thread::sleep(Duration::from_millis(300));
    let mut said = String::new();
    for process in running {
        let finished = process.interrupt(LIMIT).unwrap().success();
        said = if said.is_empty() { finished.stderr } else { said };
    }
    (files.iter().map(|(_, file)| printed(file)).collect(), said)
}

#[test]
fn tcpdump_writes_the_same_packets_on_every_path() {
    if !program_or_skip("tcpdump") || Wire::builder().or_skip().is_none() {
        return;
    }
    let mut answers = Vec::new();
    for path in ["recv", "v2", "v3", "auto", "xdp"] {
        let (files, said) = beside_stock(path, "udp and port 20000");
        assert!(files.windows(2).all(|pair| pair[0] == pair[1]), "{path}: {said}");
        assert!(said.contains("received by filter\n0 packets dropped by kernel"), "{path}: {said}");
        answers.extend(files);
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "each path gives the same");
    assert!(answers[0].len() > 10_000, "{}", answers[0]);
}

#[test]
fn libpcap_captures_where_strait_cannot_unless_told_not_to() {
    if !program_or_skip("tcpdump") {
        return;
    }
    let Some(wire) = Wire::builder().or_skip() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    let launch = |strict: &str| {
        let launch = wire.right().command("tcpdump").args(["-Z", "root", "-n", "-i", "right", "-w"]);
        let launch = launch.arg(file.path()).env("LD_PRELOAD", library());
        launch.env("STRAIT_PATH", "xdp-zc").env("STRAIT_STRICT", strict).spawn().unwrap()
    };
    let process = launch("0");
    process.wait_for_stderr("listening on", LIMIT).unwrap();
    let finished = process.interrupt(LIMIT).unwrap().success();
    assert!(finished.stderr.contains("libpcap captures instead"), "{}", finished.stderr);
    let finished = launch("1").wait(LIMIT).unwrap();
    assert!(!finished.status.success() && finished.stderr.contains("zero-copy"), "{}", finished.stderr);
    assert_eq!(fs::read(file.path()).unwrap().len(), 24, "the first run wrote a header and no packet");
}
