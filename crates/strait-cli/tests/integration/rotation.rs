//! Rotated files: each is complete, valid and within its limit, and together they have all packets.

use std::fs;
use std::path::{Path, PathBuf};

use lab::{Launch, Wire, wait_until};

use crate::refusals::RECORDING;
use crate::rig::{Capture, LIMIT, count, failure, ledger, numbered, packets, run, send, sequence};
use crate::tools::{self, capinfos};

const MIB: u64 = 1 << 20;
/// Number of frames for nearly three files of 1 MiB.
const FRAMES: u64 = 4000;

/// Returns the files of a series, oldest first.
fn series(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Asserts that each file is valid, and returns the sequence numbers of all files in order.
fn content(files: &[PathBuf]) -> Vec<u64> {
    let check = |file: &PathBuf| {
        let numbers = sequence(file);
        assert!(!numbers.is_empty(), "{} is empty", file.display());
        assert_eq!(capinfos(file).0, numbers.len());
        numbers
    };
    files.iter().flat_map(check).collect()
}

fn rotate(options: &[&str]) -> Option<(tempfile::TempDir, Vec<PathBuf>)> {
    let wire = Wire::builder().or_skip()?;
    if !tools::present() {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture.pcapng");
    let capture =
        Capture::start(wire.right(), &[&["-w", file.to_str().unwrap(), "--json"], options].concat());
    send(&wire, &numbered(FRAMES));
    assert_eq!(count(&ledger(&capture.finish()), "delivered"), FRAMES);
    let files = series(directory.path());
    let is_named = |file: &PathBuf| {
        let name = file.file_name().unwrap().to_str().unwrap();
        name.starts_with("capture_0000") && name.ends_with(".pcapng")
    };
    assert!(files.iter().all(is_named), "{files:?}");
    Some((directory, files))
}

#[test]
fn files_rotated_by_size_have_all_packets_and_stay_below_the_limit() {
    for format in ["pcapng", "pcap"] {
        let Some((_directory, files)) = rotate(&["--rotate-mib", "1", "--format", format]) else { return };
        assert_eq!(files.len(), 3, "{files:?}");
        assert!(files.iter().all(|file| fs::metadata(file).unwrap().len() <= MIB));
        assert_eq!(content(&files), (0..FRAMES).collect::<Vec<_>>());
    }
}

#[test]
fn ring_of_files_keeps_the_newest() {
    let Some((_directory, files)) = rotate(&["--rotate-mib", "1", "--ring-files", "2"]) else { return };
    assert_eq!(files.len(), 2, "{files:?}");
    let kept = content(&files);
    assert_eq!(kept, (FRAMES - kept.len() as u64..FRAMES).collect::<Vec<_>>());
}

#[test]
fn name_with_conversions_gets_the_local_time_and_replaces_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("x_%Y%m%d%%.pcap");
    let expected = |suffix: &str| format!("x_{}%{suffix}.pcap", local_date());
    let capture = |options: &[&str]| {
        let arguments = ["capture", "-r", RECORDING, "-w", name.to_str().unwrap()];
        run(&[&arguments, options].concat()).success()
    };
    let before = local_date();
    let _ = capture(&["-G", "1h"]);
    let _ = capture(&["-G", "1h", "-C", "10k", "-W", "1000"]);
    if local_date() != before {
        // The date changed in between, and with it the name.
        return;
    }
    let files = series(directory.path());
    assert!(files.len() > 3, "{files:?}");
    let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
    assert!(names.contains(&&*expected("")) && names.contains(&&*expected("_00002")), "{names:?}");
    let packets_each: Vec<usize> = files.iter().map(|file| packets(file).len()).collect();
    assert_eq!(packets_each.iter().sum::<usize>(), 2 * packets(RECORDING.as_ref()).len(), "{names:?}");
    // Without -G a % is an ordinary character, like in tcpdump.
    let _ = capture(&[]);
    assert!(name.exists());
}

/// Returns the local date in the form 20261123.
fn local_date() -> String {
    Launch::new("date").arg("+%Y%m%d").run(LIMIT).unwrap().success().text().trim().to_owned()
}

#[test]
fn name_with_a_slash_in_its_time_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("x_%D.pcap");
    let arguments = ["capture", "-r", RECORDING, "-w", name.to_str().unwrap(), "-G", "1h"];
    let (code, line) = failure(&run(&arguments));
    assert!(code == 2 && line.contains("use %Y-%m-%d"), "{code} {line}");
    assert!(series(directory.path()).is_empty());
}

#[test]
fn files_rotated_by_time_have_all_packets() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture.pcapng");
    let capture = Capture::start(wire.right(), &["-w", file.to_str().unwrap(), "--rotate-s", "0.2"]);
    let frames = numbered(10_000);
    let mut sent = 0;
    // One frame per check, until there are three files.
    let rotated = || {
        send(&wire, &frames[sent..=sent]);
        sent += 1;
        series(directory.path()).len() >= 3
    };
    assert!(wait_until(LIMIT, rotated));
    capture.finish();
    assert_eq!(content(&series(directory.path())), (0..sent as u64).collect::<Vec<_>>());
}
