//! The unit of a sensor: systemd accepts it, and its capture works with the privileges of the unit.

use std::fs;
use std::path::Path;

use lab::{Launch, Wire, program_or_skip, wait_until};
use rustix::process::Signal;

use crate::rig::{LIMIT, STRAIT, numbered, send};
use crate::tables::files;

const UNIT: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/strait-capture@.service"));
/// Maximum exposure in tenths. That of the proxy is 19, that of a service without hardening 96.
const EXPOSURE_MAX: &str = "21";

/// Returns the unit of the interface `right` with this program, and files in a directory.
fn unit(directory: &Path) -> String {
    let directory = directory.to_str().unwrap();
    let unit = UNIT.replace("/usr/bin/strait", STRAIT).replace("%i", "right");
    unit.replace("/etc/strait/capture", directory)
}

/// Returns the value of a line of a unit.
fn value<'a>(unit: &'a str, name: &str) -> &'a str {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let values: Vec<&str> = lines.collect();
    assert_eq!(values.len(), 1, "{name}");
    values[0]
}

#[test]
fn systemd_accepts_the_unit_of_a_sensor_and_finds_it_closed() {
    if !program_or_skip("systemd-analyze") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("strait-capture@right.service");
    fs::write(&path, unit(directory.path())).unwrap();
    let analyze = |words: &[&str]| Launch::new("systemd-analyze").args(words).arg(&path).run(LIMIT).unwrap();
    let verified = analyze(&["verify", "--man=no"]).success();
    assert_eq!(verified.stderr, "");
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    let security = analyze(&["security", "--no-pager", "--offline=true", &threshold]);
    assert!(security.status.success(), "{}", security.text());
}

#[test]
fn unit_of_a_sensor_captures_reloads_and_ends_with_complete_tables() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !program_or_skip("setpriv") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let filter = directory.path().join("right.filter");
    fs::write(&filter, "").unwrap();
    let unit = unit(directory.path());
    let [lake, second, targets] = ["lake", "second", "right.targets"].map(|name| directory.path().join(name));
    fs::write(&targets, format!("file:{}\n", lake.display())).unwrap();
    let options = format!("--to-file {} --sensor s1 --tables packets", targets.display());
    let command = value(&unit, "ExecStart").replace("$OPTIONS", &options);
    assert_eq!(value(&unit, "CapabilityBoundingSet"), "CAP_NET_RAW");
    assert_eq!(value(&unit, "AmbientCapabilities"), "CAP_NET_RAW");
    let sensor = wire.right().command("setpriv").args(["--no-new-privs", "--bounding-set", "-all,+net_raw"]);
    let sensor = sensor.args(["--inh-caps", "-all,+net_raw"]).args(command.split(' ')).spawn().unwrap();
    sensor.wait_for_stderr("listening on right", LIMIT).unwrap();
    send(&wire, &numbered(40));

    assert_eq!(value(&unit, "ExecReload"), "/bin/kill -HUP $MAINPID");
    fs::write(&filter, "tcp").unwrap();
    fs::write(&targets, format!("file:{}\nfile:{}\n", lake.display(), second.display())).unwrap();
    sensor.signal(Signal::HUP);
    for note in ["strait: note: the filter is that of ", "strait: note: the targets are those of "] {
        sensor.wait_for_stderr(note, LIMIT).unwrap();
    }
    send(&wire, &numbered(40));
    sensor.signal(Signal::TERM);
    let finished = sensor.wait(LIMIT).unwrap().success();
    // Half of the later frames are TCP.
    for (packets, directory) in [(60, &lake), (20, &second)] {
        assert!(finished.stderr.contains(&format!("wrote {packets} packets")), "{}", finished.stderr);
        assert!(wait_until(LIMIT, || files(directory, ".part").is_empty()));
        assert!(!files(directory, ".parquet").is_empty());
    }
}
