//! `strait capture -i any`: lines name the interface like tcpdump, and tcpdump reads the files.

use lab::{Launch, Wire, program_or_skip};

use crate::rig::{Capture, LIMIT, numbered, send, strait};

const FRAMES: u64 = 40;
const COUNT: &str = "40";
const ARGUMENTS: [&str; 6] = ["capture", "-i", "any", "--direction", "in", "-c"];

/// Returns the beginnings of lines without their times, which are equal in tcpdump and strait.
fn beginnings(text: &str) -> Vec<String> {
    let fields = |line: &str| line.split_whitespace().skip(1).take(6).collect::<Vec<_>>().join(" ");
    text.lines().map(fields).collect()
}

#[test]
fn lines_and_files_equal_those_of_tcpdump() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("tcpdump")) else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    let saved = strait(wire.right(), &ARGUMENTS).args([COUNT, "-w"]).arg(file.path());
    let [printing, saving] =
        [strait(wire.right(), &ARGUMENTS).arg(COUNT), saved].map(|launch| Capture::watch(launch));
    let ours = wire.right().command("tcpdump").args(["-nli", "any", "-Q", "in", "-c", COUNT]);
    // A small snaplen: with whole packets tcpdump's ring would hold only 32 of them.
    let theirs = ours.args(["--immediate-mode", "-s", "200"]).spawn().unwrap();
    theirs.wait_for_stderr("listening on", LIMIT).unwrap();
    send(&wire, &numbered(FRAMES));
    let (printed, theirs) = (printing.wait().success().text(), theirs.wait(LIMIT).unwrap().success().text());
    assert!(printed.lines().all(|line| line.contains(" right In  IP") || line.contains(" right B ")));
    assert_eq!(beginnings(&printed), beginnings(&theirs));
    let _ = saving.wait().success();
    let read = Launch::new("tcpdump").args(["-nr"]).arg(file.path()).run(LIMIT).unwrap().success();
    assert!(read.stderr.contains("link-type LINUX_SLL2"), "{}", read.stderr);
    assert_eq!(read.text().lines().count() as u64, FRAMES);
}
