//! `strait demo`: the same answer on every path, without root as far as that goes, and nothing left behind.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use lab::{Finished, Launch, skip, wait_until};
use serde_json::Value;

use crate::refusals::{AS_NOBODY, everyones_copy};
use crate::rig::{LIMIT, STRAIT, closes, failure, lost};

const SHORT: [&str; 5] = ["demo", "--count", "3000", "--rate", "30000"];

fn is_root() -> bool {
    strait_sys::process::is_root()
}

#[test]
fn every_path_gives_the_same_answer_and_every_ledger_closes() {
    if !lab::root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let launch = || Launch::new(STRAIT).args(SHORT).env("TMPDIR", directory.path());
    let text = launch().run(LIMIT).unwrap().success().text();
    let rows: Vec<Vec<&str>> = text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), ["recv", "v2", "v3", "xdp"], "{text}");
    assert!(rows.iter().all(|row| row.ends_with(&["0", "yes", "closes"])), "{text}");

    let finished = launch().arg("--json").run(LIMIT).unwrap().success();
    assert_eq!(finished.text().lines().count(), 1);
    let rows: Value = serde_json::from_str(&finished.text()).unwrap();
    for row in rows.as_array().unwrap() {
        assert!(closes(&row["ledger"]) && lost(&row["ledger"]) == 0, "{row}");
        assert_eq!((&row["same_packets"], &row["packets"]), (&true.into(), &row["ledger"]["delivered"]));
        assert!(row["packets"].as_u64().unwrap() > 1000, "{row}");
    }
    assert_eq!(rows.as_array().unwrap().len(), 4);
    assert_empty(directory.path());
}

#[test]
fn an_ordinary_user_sees_the_packet_sockets_and_why_xdp_is_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let finished = as_ordinary_user(directory.path());
    if finished.status.code() == Some(3) && finished.stderr.contains("user namespaces") {
        return skip(failure(&finished).1);
    }
    let text = finished.success().text();
    let rows: Vec<&str> = text.lines().skip(2).collect();
    assert_eq!(rows.len(), 4, "{text}");
    for (row, path) in rows.iter().zip(["recv", "v2", "v3"]) {
        assert!(row.starts_with(path) && row.contains(" yes ") && row.ends_with(" closes"), "{text}");
    }
    assert!(rows[3].starts_with("xdp    SKIP: needs root"), "{text}");
}

fn as_ordinary_user(directory: &Path) -> Finished {
    if !is_root() {
        return Launch::new(STRAIT).args(SHORT).run(LIMIT).unwrap();
    }
    let strait = everyones_copy(directory);
    Launch::new("setpriv").args(AS_NOBODY).arg(strait).args(SHORT).run(LIMIT).unwrap()
}

#[test]
fn an_interrupted_demo_leaves_no_file_and_no_namespace() {
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

/// The network namespaces, as `net:[INODE]`, that a process is in or holds open. Empty if it is gone.
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
