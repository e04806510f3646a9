//! tcpdump, unmodified, on each path.

mod cases;
mod statistics;

use std::fs;

use lab::{Wire, program_or_skip};

use crate::rig::{LIMIT, library};

#[test]
fn libpcap_captures_if_strait_cannot_unless_strict() {
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
