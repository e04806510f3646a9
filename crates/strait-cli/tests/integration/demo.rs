//! `strait demo`: equal results on every path, a run without root, and no leftovers.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use lab::{Finished, Launch, skip, wait_until};
use serde_json::Value;

use crate::refusals::{AS_NOBODY, copy_for_all_users};
use crate::rig::{LIMIT, STRAIT, balances, failure, lost, run};

const SHORT: [&str; 5] = ["demo", "--count", "3000", "--rate", "30000"];
/// The paths of the first part, in their order.
const PATHS: [&str; 5] = ["recv", "v2", "v3", "tap", "xdp"];
/// The parts of the demo, as its JSON object names them.
const PARTS: [&str; 5] = ["paths", "burst", "delay", "http", "resume"];

fn is_root() -> bool {
    strait_os::process::is_root()
}

#[test]
fn all_paths_capture_equal_packets_and_all_ledgers_balance() {
    if !lab::root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let launch = || Launch::new(STRAIT).args(SHORT).env("TMPDIR", directory.path());
    let text = launch().run(LIMIT).unwrap().success().text();
    let rows = rows(&text);
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), PATHS, "{text}");
    let is_skipped = |row: &Vec<&str>| row[..2] == ["tap", "SKIP:"];
    assert!(rows.iter().all(|row| is_skipped(row) || row.ends_with(&["0", "yes", "balances"])), "{text}");
    // The tap captures wherever strait capture can open it.
    let tap = run(&["capture", "-i", "lo", "--path", "tap", "-d", "0.01", "--json"]);
    assert_eq!(rows.iter().any(is_skipped), tap.status.code() == Some(3), "{text}{}", tap.stderr);
    assert_explained(&text);

    let finished = launch().arg("--json").run(LIMIT).unwrap().success();
    assert_eq!(finished.text().lines().count(), 1);
    let parts: Value = serde_json::from_str(&finished.text()).unwrap();
    let rows = &parts["paths"];
    for row in rows.as_array().unwrap().iter().filter(|row| row["skipped"].is_null()) {
        assert!(balances(&row["ledger"]) && lost(&row["ledger"]) == 0, "{row}");
        assert_eq!((&row["same_packets"], &row["packets"]), (&true.into(), &row["ledger"]["delivered"]));
        assert!(row["packets"].as_u64().unwrap() > 1000, "{row}");
    }
    assert_eq!(rows.as_array().unwrap().len(), PATHS.len());
    assert_parts(&parts);
    assert_empty(directory.path());
}

/// Returns the rows of the first part's table.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().skip_while(|line| !line.trim_start().starts_with("path ")).skip(1);
    lines.take(PATHS.len()).map(|line| line.split_whitespace().collect()).collect()
}

/// Asserts that each part has a sentence and a next command, or the reason for a skip, and that the
/// demo ends with its summary.
fn assert_explained(text: &str) {
    let count = |start: &str| text.lines().filter(|line| line.trim_start().starts_with(start)).count();
    let parts = PARTS.len();
    assert_eq!((count("=> ") + count("SKIP: "), count("next: ")), (parts, count("=> ")), "{text}");
    let commands: Vec<_> = text.lines().filter(|line| line.contains("next: ")).collect();
    // The commands name strait by its path, as the test called it.
    assert!(commands.iter().all(|line| line.contains("/strait ")), "{text}");
    assert!(text.contains("accounts for each one"), "{text}");
}

/// Asserts the figures of the parts after the first, apart from those that depend on the machine's
/// speed.
fn assert_parts(parts: &Value) {
    assert_eq!(parts.as_object().unwrap().len(), PARTS.len(), "{parts}");
    let burst = &parts["burst"];
    assert!(balances(&burst["ledger"]), "{burst}");
    assert_eq!(burst["ledger"]["received"], burst["arrived"], "{burst}");
    assert!(
        burst["ledger"]["lost"]["ring_full"].as_u64().unwrap() > 0,
        "the burst exceeds the ring: {burst}"
    );
    let delay = &parts["delay"];
    assert!(delay["skipped"].is_string() || delay["under_strait_run"]["packets"] == 100, "{delay}");
    let http = &parts["http"];
    assert!(http["requests"][0]["cache_status"].as_str().unwrap().contains("stored"), "{http}");
    assert!(http["requests"][1]["cache_status"].as_str().unwrap().contains("hit"), "{http}");
    // Only body bytes that the proxy read together with the origin's head are copied. Their number
    // depends on timing.
    assert_eq!(http["copied"], http["account"]["filled_copied"], "{http}");
    let resume = &parts["resume"];
    let bytes = |name: &str| resume[name].as_u64().unwrap();
    assert!(bytes("kept") > 0 && resume["same"] == true, "{resume}");
    assert_eq!(bytes("kept") + bytes("sent"), bytes("bytes"), "{resume}");
}

#[test]
fn unprivileged_user_captures_by_packet_sockets_and_paths_of_bpf_are_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let finished = as_ordinary_user(directory.path());
    if finished.status.code() == Some(3) && finished.stderr.contains("user namespaces") {
        return skip(failure(&finished).1);
    }
    let text = finished.success().text();
    let rows = rows(&text);
    assert_eq!(rows.len(), PATHS.len(), "{text}");
    for (row, path) in rows.iter().zip(["recv", "v2", "v3"]) {
        assert!(row[0] == path && row.ends_with(&["yes", "balances"]), "{text}");
    }
    assert_eq!(rows[3][..4], ["tap", "SKIP:", "needs", "root"], "{text}");
    assert_eq!(rows[4][..4], ["xdp", "SKIP:", "needs", "root"], "{text}");
    assert_explained(&text);
    // These parts need no privilege.
    assert!(text.contains("second request") && text.contains("the files are   the same"), "{text}");
}

#[test]
fn failing_part_fails_the_demo() {
    if !lab::root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // A limit of 20 MiB per file, in blocks of 512 bytes. Only the first part stays below it.
    let script = "trap '' XFSZ; ulimit -f 40960; exec \"$0\" \"$@\"";
    let launch = || {
        let launch = Launch::new("sh").args(["-c", script, STRAIT]).args(SHORT);
        launch.env("TMPDIR", directory.path())
    };
    let finished = launch().run(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let text = finished.text();
    assert!(text.contains("FAILED: write a file to send"), "{text}");
    assert!(
        !text.contains("accounts for each one") && text.matches("next: ").count() == PARTS.len(),
        "{text}"
    );
    assert!(finished.stderr.contains("failed: "), "{}", finished.stderr);

    let finished = launch().arg("--json").run(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let parts: Value = serde_json::from_str(&finished.text()).unwrap();
    assert!(parts["resume"]["failed"].is_string() && parts["resume"]["skipped"].is_null(), "{parts}");
    assert_empty(directory.path());
}

#[test]
fn demo_without_the_program_of_the_proxy_skips_that_part() {
    if !lab::root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let strait = directory.path().join("strait");
    fs::copy(STRAIT, &strait).unwrap();
    let launch = Launch::new(&strait).args(SHORT).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let text = launch.run(LIMIT).unwrap().success().text();
    assert!(text.contains("needs the program strait-proxy, which is not installed"), "{text}");
    assert_explained(&text);
}

fn as_ordinary_user(directory: &Path) -> Finished {
    if !is_root() {
        return Launch::new(STRAIT).args(SHORT).run(LIMIT).unwrap();
    }
    let strait = copy_for_all_users(directory);
    Launch::new("setpriv").args(AS_NOBODY).arg(strait).args(SHORT).run(LIMIT).unwrap()
}

#[test]
fn interrupted_demo_leaves_no_file_and_no_namespace() {
    if !lab::root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let endless = ["demo", "--count", "10000000", "--rate", "1000"];
    let demo = Launch::new(STRAIT).args(endless).env("TMPDIR", directory.path()).spawn().unwrap();
    let scratch = directory.path().join(format!("strait-demo-{}", demo.id()));
    assert!(wait_until(LIMIT, || scratch.join("capture.pcapng.part").exists()), "{}", demo.stderr());
    let mine = fs::read_link("/proc/self/ns/net").unwrap();
    let made: HashSet<PathBuf> = held_by(demo.id()).into_iter().filter(|name| *name != mine).collect();
    assert_eq!(made.len(), 2, "{made:?}");

    let (code, line) = failure(&demo.interrupt(LIMIT).unwrap());
    assert_eq!(code, 1);
    assert!(line.contains("interrupted"), "{line}");
    assert_empty(directory.path());
    let still_held = processes().into_iter().flat_map(held_by).any(|name| made.contains(&name));
    assert!(!still_held, "{made:?}");
}

fn assert_empty(directory: &Path) {
    let left: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn processes() -> Vec<u32> {
    let names = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

/// Returns the network namespaces, as `net:[INODE]`, that a process is in or holds open. Empty if
/// the process has ended.
fn held_by(id: u32) -> Vec<PathBuf> {
    let links = |folder: String| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect::<Vec<_>>()
    };
    let tasks = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let inside = tasks.filter_map(|task| fs::read_link(task.path().join("ns/net")).ok());
    let is_network = |name: &PathBuf| name.to_string_lossy().starts_with("net:[");
    inside.chain(links(format!("/proc/{id}/fd"))).filter(is_network).collect()
}
