//! `scripts/setup`, `scripts/setup-programs` and `scripts/setup-vm`: each job installs only its own
//! packages, and a failed fetch is not repeated for a day.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use lab::{Finished, Launch};

use crate::rig::LIMIT;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts");

/// Returns the packages that a job would install with an empty PATH.
fn needed(job: &str) -> Vec<String> {
    let empty = tempfile::tempdir().unwrap();
    let script = format!("{SCRIPTS}/setup");
    // The script adds the directories of system daemons to the PATH, but checks for none of those
    // programs.
    let launch = Launch::new("/bin/bash").args([&*script, job, "--dry-run"]).env("PATH", empty.path());
    let text = launch.env("HOME", empty.path()).run(LIMIT).unwrap().success().text();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn demo_needs_only_a_linker_libpcap_and_tcpdump() {
    let needed = needed("demo");
    let allowed = ["gcc", "libc6-dev", "libpcap0.8", "tcpdump"];
    assert!(needed.iter().all(|package| allowed.contains(&package.as_str())), "{needed:?}");
    assert!(needed.iter().any(|package| package == "tcpdump"), "{needed:?}");
}

#[test]
fn each_job_needs_only_its_own_programs() {
    let (tests, bench, vm) = (needed("test"), needed("bench"), needed("vm"));
    for package in ["valgrind", "chromium-headless-shell", "tshark"] {
        let has = |packages: &[String]| packages.iter().any(|needed| needed == package);
        assert_eq!((has(&tests), has(&bench), has(&vm)), (true, false, false), "{package}");
    }
    let unknown = Launch::new(format!("{SCRIPTS}/setup")).arg("all").run(LIMIT).unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(unknown.stderr.starts_with("usage: "), "{}", unknown.stderr);
}

#[test]
fn failed_fetch_is_not_repeated_for_a_day_unless_requested() {
    for (script, arguments, stamp, code) in [
        ("setup-programs", &["suricata"][..], "programs/suricata.failed", 0),
        ("setup-vm", &[], "vm/qemu.failed", 1),
    ] {
        fails_once(script, arguments, stamp, code);
    }
}

fn fails_once(script: &str, arguments: &[&str], stamp: &str, code: i32) {
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    write_program(&folder.path().join("apt-get"), &format!("echo >>{}; exit 1", calls.display()));
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let fetch = || -> Finished {
        let launch = Launch::new(format!("{SCRIPTS}/{script}")).args(arguments);
        let finished = launch.env("XDG_CACHE_HOME", folder.path()).env("PATH", &path).run(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(code), "{}", finished.stderr);
        finished
    };
    let tried = || fs::read_to_string(&calls).unwrap().lines().count();
    let stamp = folder.path().join("strait").join(stamp);
    let retry = format!("To try again: rm {}", stamp.display());

    assert!(fetch().stderr.contains(&retry));
    let first = tried();
    assert!(first > 0);
    assert!(fetch().stderr.contains(&retry));
    assert_eq!(tried(), first);
    fs::remove_file(&stamp).unwrap();
    fetch();
    let second = tried();
    assert!(second > first);
    // A day later the fetch is tried again.
    let yesterday = SystemTime::now() - Duration::from_hours(25);
    fs::File::options().write(true).open(&stamp).unwrap().set_modified(yesterday).unwrap();
    assert!(fetch().stderr.contains(&retry));
    let third = tried();
    assert!(third > second);
    // The new failure is recorded.
    fetch();
    assert_eq!(tried(), third);
}

fn write_program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}
