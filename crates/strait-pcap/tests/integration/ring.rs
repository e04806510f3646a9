//! dumpcap and tshark, unmodified, with a ring of files: a new file starts in the middle of a
//! batch.

use std::fs;
use std::path::Path;
use std::time::Duration;

use lab::{Finished, Launch, Wire, program_or_skip};
use strait_packet::traffic::Kind;

use crate::rig::{LIMIT, SOCKETS, on, send_mixed};

#[test]
fn a_ring_of_files_holds_every_packet_that_the_filter_lets_pass() {
    if !["dumpcap", "tshark"].into_iter().all(program_or_skip) {
        return;
    }
    for program in ["dumpcap", "tshark"] {
        for path in SOCKETS {
            let Some(wire) = Wire::builder().or_skip() else { return };
            let directory = tempfile::tempdir().unwrap();
            let finished = fill_ring(&wire, program, path, directory.path());
            let numbers = probe_numbers(directory.path());
            let sent: Vec<u64> = (0..600).filter(|number| number % 2 == 0).collect();
            assert_eq!(numbers, sent, "{program} {path}: {}", finished.stderr);
        }
    }
}

/// Captures 300 of 600 frames, over 20 KiB for each file.
fn fill_ring(wire: &Wire, program: &str, path: &str, directory: &Path) -> Finished {
    let launch = wire.right().command(program).args(["-i", "right", "-f", "udp", "-c", "300"]);
    let launch =
        launch.args(["-b", "filesize:20", "-b", "files:20", "-w"]).arg(directory.join("ring.pcapng"));
    // tshark parses dumpcap's standard error, so the report goes to a file.
    let report = tempfile::NamedTempFile::new().unwrap();
    let process = on(Some(path), launch).env("STRAIT_REPORT", report.path()).spawn().unwrap();
    let files = || fs::read_dir(directory).unwrap().count();
    assert!(lab::wait_until(LIMIT, || files() > 0), "{program} {path}: {}", process.stderr());
    send_mixed(wire, &[Kind::Udp4, Kind::Tcp4], 600, Duration::ZERO);
    let finished = process.wait(LIMIT).unwrap().success();
    assert!(files() > 4, "{program} {path}: {} files", files());
    let report = fs::read_to_string(report.path()).unwrap();
    assert!(report.contains(&format!("path {path}")) && report.contains("the ledger balances"), "{report}");
    finished
}

#[test]
fn unwritable_report_is_printed_on_standard_error() {
    if !program_or_skip("tcpdump") {
        return;
    }
    let Some(wire) = Wire::builder().or_skip() else { return };
    let launch = wire.right().command("tcpdump").args(["-ni", "right"]);
    let process = on(Some("v3"), launch).env("STRAIT_REPORT", "/dev/full").spawn().unwrap();
    process.wait_for_stderr("listening on", LIMIT).unwrap();
    let stderr = process.interrupt(LIMIT).unwrap().success().stderr;
    assert!(
        stderr.contains("--report=/dev/full (STRAIT_REPORT): the report is lost: No space left"),
        "{stderr}"
    );
}

#[test]
fn notices_do_not_disturb_tshark() {
    if !["dumpcap", "tshark"].into_iter().all(program_or_skip) {
        return;
    }
    let Some(wire) = Wire::builder().or_skip() else { return };
    let report = tempfile::NamedTempFile::new().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    for notices in [Path::new("1"), report.path()] {
        let launch = wire.right().command("tshark").args(["-i", "right", "-c", "5", "-w"]).arg(file.path());
        let launch = on(Some("xdp-zc"), launch).env("STRAIT_STRICT", "0").env("STRAIT_REPORT", notices);
        let process = launch.spawn().unwrap();
        process.wait_for_stderr("Capture started", LIMIT).unwrap();
        send_mixed(&wire, &[Kind::Udp4], 5, Duration::ZERO);
        let finished = process.wait(LIMIT).unwrap().success();
        assert!(!finished.stderr.contains("Unknown message"), "{}", finished.stderr);
    }
    let notices = fs::read_to_string(report.path()).unwrap();
    assert!(notices.contains("libpcap captures instead"), "{notices}");
}

/// Returns the numbers of the generated frames in all files, in order of the files' names.
fn probe_numbers(directory: &Path) -> Vec<u64> {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let all = directory.join("all.pcapng");
    let _ = Launch::new("mergecap").args(["-a", "-w"]).arg(&all).args(files).run(LIMIT).unwrap().success();
    let launch = Launch::new("tshark").args(["-n", "-T", "fields", "-e", "udp.payload", "-r"]).arg(all);
    launch.run(LIMIT).unwrap().success().text().lines().map(number).collect()
}

/// Returns the number in a generated frame's payload: it follows two bytes of magic, in eight
/// bytes.
fn number(payload: &str) -> u64 {
    u64::from_str_radix(&payload[4..20], 16).unwrap_or_else(|_| panic!("{payload} has a number"))
}
