//! Mixed traffic of some megabytes: tables have the packets and flows of tshark, capinfos and
//! nfdump. `bench/compare_volume.py` compares them, and also captures of many gigabytes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use lab::{Finished, Launch, fetched_or_skip};

use crate::rig::{LIMIT, STRAIT};
use crate::tools;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/compare_volume.py");

/// Compares tables of `strait` in `programs`. Skips the test if another program is not installed.
fn compare_or_skip(programs: &Path, directory: &Path) -> Option<Finished> {
    let python = fetched_or_skip("tables/bin/python")?;
    fetched_or_skip("nfdump/usr/bin/nfpcapd")?;
    if !tools::present() {
        return None;
    }
    let launch = Launch::new(&python).arg(SCRIPT).args(["--gib", "0.004", "--keep", "--dir"]).arg(directory);
    let launch = launch.arg("--bin").arg(programs).env("PYTHONDONTWRITEBYTECODE", "1");
    Some(launch.run(LIMIT).unwrap())
}

#[test]
fn tables_of_mixed_traffic_have_the_packets_and_flows_of_other_programs() {
    let directory = tempfile::tempdir().unwrap();
    let programs = Path::new(STRAIT).parent().unwrap();
    let Some(finished) = compare_or_skip(programs, directory.path()) else { return };
    let text = finished.success().text();
    let compared = ["packets, ", "permitted: packets of 802.1ad", "permitted: flows of fragments"];
    assert!(compared.iter().all(|words| text.contains(words)), "{text}");
    assert!(!text.contains("DIFFERENT"), "{text}");
}

#[test]
fn missing_packets_of_mixed_traffic_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("strait");
    fs::write(&program, format!("#!/bin/sh\nexec '{STRAIT}' \"$@\" not udp port 53\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let Some(finished) = compare_or_skip(directory.path(), directory.path()) else { return };
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let text = finished.text();
    let faults = [
        "DIFFERENT packets: rows, capinfos",
        "DIFFERENT packets that only strait, only tshark has: (0, ",
        "DIFFERENT flows that only strait, only tshark has: (0, ",
        "DIFFERENT flows that only strait, only nfdump has: (0, ",
    ];
    for words in faults {
        assert!(text.contains(words), "{words}: {text}");
    }
}
