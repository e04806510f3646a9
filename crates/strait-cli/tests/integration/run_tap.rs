//! `strait run --path tap` with programs that drop their privileges before they open a device, or
//! before they set their filter.

use std::fs;
use std::path::Path;

use lab::{End, Launch, Process, Wire, program_or_skip, wait_until};
use strait_packet::traffic::{Kind, Traffic};

use crate::rig::{LIMIT, STRAIT, frames_of, send, strait};

const FRAMES: u64 = 200;

/// Starts `strait run` with a program that captures UDP packets at the right end.
fn start(wire: &Wire, report: &Path, program: &[&str]) -> Process {
    let report = format!("--report={}", report.display());
    let launch = strait(wire.right(), &["run", "--path", "tap", "--strict", &report, "--"]);
    launch.args(program).spawn().unwrap()
}

/// Checks the report of a capture that the kernel filtered.
fn check(report: &Path) {
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains("path tap ") && report.contains("the ledger balances"), "{report}");
    assert!(!report.contains("filter runs in this process"), "{report}");
}

/// Returns true while a broker runs in this end's namespace.
fn has_broker(end: &End) -> bool {
    let namespace = end.run(|| fs::read_link("/proc/thread-self/ns/net")).unwrap();
    let is_broker = |process: &fs::DirEntry| {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let is_here = fs::read_link(process.path().join("ns/net")).is_ok_and(|found| found == namespace);
        is_here && command.windows(10).any(|word| word == b"tap-broker")
    };
    fs::read_dir("/proc").unwrap().flatten().any(|process| is_broker(&process))
}

/// Returns frames of UDP and TCP, and the number of those of UDP.
fn frames() -> (Vec<Vec<u8>>, usize) {
    const PROTOCOL: usize = 23;
    const UDP: u8 = 17;
    let traffic = Traffic::builder().kinds(&[Kind::Udp4, Kind::Tcp4]).flows(8).build().unwrap();
    let frames = frames_of(&traffic, FRAMES);
    let udp = frames.iter().filter(|frame| frame[PROTOCOL] == UDP).count();
    assert!((1..frames.len()).contains(&udp));
    (frames, udp)
}

fn count_udp(file: &Path) -> usize {
    let read = Launch::new("tcpdump").args(["-nnr"]).arg(file).arg("udp").run(LIMIT).unwrap().success();
    read.text().lines().count()
}

/// Runs a program that writes the packets to a file. It is `ready` when it prints this.
fn captures_into_a_file(program: &str, ready: &str) {
    if !program_or_skip(program) || !program_or_skip("tcpdump") {
        return;
    }
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let [file, report] = ["captured", "report"].map(|name| directory.path().join(name));
    let (frames, expected) = frames();
    let count = expected.to_string();
    let options = ["-i", "right", "-f", "udp", "-c", &count, "-w", file.to_str().unwrap()];
    let process = start(&wire, &report, &[&[program], &options[..]].concat());
    process.wait_for_stderr(ready, LIMIT).unwrap();
    send(&wire, &frames);
    let _ = process.wait(LIMIT).unwrap().success();
    assert_eq!(count_udp(&file), expected);
    check(&report);
    assert!(wait_until(LIMIT, || !has_broker(wire.right())), "the broker ends with its program");
}

#[test]
fn dumpcap_captures_on_the_tap() {
    captures_into_a_file("dumpcap", "File:");
}

#[test]
fn tshark_captures_on_the_tap() {
    captures_into_a_file("tshark", "Capture started");
}

/// tcpdump drops root before it sets its filter.
#[test]
fn filter_of_tcpdump_without_privileges_runs_in_the_program() {
    if !program_or_skip("tcpdump") {
        return;
    }
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report");
    let (frames, expected) = frames();
    let count = expected.to_string();
    let process = start(&wire, &report, &["tcpdump", "-Z", "nobody", "-nli", "right", "-c", &count, "udp"]);
    process.wait_for_stderr("listening on", LIMIT).unwrap();
    assert!(has_broker(wire.right()));
    send(&wire, &frames);
    let finished = process.wait(LIMIT).unwrap().success();
    assert_eq!(finished.text().lines().count(), expected, "{}", finished.text());
    check(&report);
}

/// Runs a mode of the caller in `broker.py`, after a `preparation` by a shell.
fn calls_the_broker(preparation: &str, mode: &str) {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/broker.py");
    if !program_or_skip("python3") {
        return;
    }
    let Some(wire) = Wire::builder().or_skip() else { return };
    let run = format!(r#"{preparation}; exec "$0" run --path tap -- python3 "$1" {mode}"#);
    let caller = wire.right().command("sh").args(["-c", &run, STRAIT, SCRIPT]);
    let finished = caller.run(LIMIT).unwrap().success();
    assert_eq!(finished.text().trim(), "passed");
    assert!(wait_until(LIMIT, || !has_broker(wire.right())), "the broker ends with its program");
}

#[test]
fn packet_socket_with_a_locked_filter_is_no_proof() {
    calls_the_broker(":", "locked");
}

#[test]
fn broker_keeps_no_descriptor_of_its_caller() {
    calls_the_broker("exec 9</dev/zero", "descriptors");
}

#[test]
fn broker_has_a_name_and_may_open_more_files_than_its_caller() {
    calls_the_broker("ulimit -S -n 64", "identity");
}
