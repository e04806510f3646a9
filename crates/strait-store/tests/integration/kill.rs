//! A process that stores, updates and removes objects is killed at many points, also while it
//! writes the journal of the index. All operations that it reported are found afterwards, all
//! records found are intact, and the journal leads to the same records as a scan.
//!
//! The process is this test program, started again for the one test `a_process_to_be_killed`, which
//! otherwise does nothing.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, fs};

use strait_store::format::journal::{BLOCK_BYTES, Block, Cut};
use strait_store::{Config, Error, Store, hash_of};

use crate::rig::{Object, check, check_all, config, is_hashed_by_scrub, open, store_together};

/// Environment variables with the directory and the first number of the process.
const DIR: &str = "STRAIT_STORE_KILL_DIR";
const FIRST: &str = "STRAIT_STORE_KILL_FIRST";
/// Environment variable with the capacity of the store.
const CAPACITY: &str = "STRAIT_STORE_KILL_CAPACITY";
/// Capacity that is full at most kills, so that eviction moves and drops records.
const SMALL_BYTES: u64 = 5 << 20;
/// Environment variable with the number of kills.
const KILLS: &str = "STRAIT_STORE_KILLS";
const KILLS_DEFAULT: u64 = 300;
/// Number of objects of one process; it is killed before it has stored all.
const OBJECTS_MAX: u64 = 100_000;

/// A line printed by the process after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    Stored(u64),
    /// The record has a meta of version 1.
    Updated(u64),
    /// The removal begins, or has ended.
    Removing(u64),
    Removed(u64),
    /// The store is so full that objects may be evicted from now on.
    Filled(u64),
}

/// Held by the tests that start processes: between fork(2) and execve(2) one has the lock of a
/// store of the other test.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_process_to_be_killed() {
    let (Ok(dir), Ok(first)) = (env::var(DIR), env::var(FIRST)) else { return };
    let first: u64 = first.parse().unwrap();
    let capacity_bytes = env::var(CAPACITY).unwrap().parse().unwrap();
    // One after the other: long bodies are being written during many of the syncs.
    let config = Config { capacity_bytes, sync_every: Some(Duration::ZERO), ..config(Path::new(&dir)) };
    let store = strait_store::Store::open(config).unwrap();
    let say = |what: &str, number: u64| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{what} {number}").and_then(|()| out.flush()).unwrap();
    };
    let mut together = HashMap::new();
    for number in first..first + OBJECTS_MAX {
        if number.is_multiple_of(16) {
            together = store_together(&store, number as usize / 16 % 2, number..number + 8);
        }
        let object = Object { number, version: 0 };
        let stats = store.stats();
        if stats.used_bytes > stats.capacity_bytes / 4 * 3 {
            say("filled", number);
        }
        let stored = together.remove(&number);
        let record = match stored.unwrap_or_else(|| object.store(&store, number as usize % 2)) {
            Ok(record) => record,
            Err(Error::Full { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        say("stored", number);
        if number.is_multiple_of(4) {
            store.touch(&record);
        }
        if number.is_multiple_of(3) {
            let updated = store.update(0, &record, &Object { number, version: 1 }.meta());
            match updated {
                Ok(_) => say("updated", number),
                Err(Error::Full { .. } | Error::Removed { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        } else if number.is_multiple_of(7) {
            say("removing", number);
            store.remove(&record);
            say("removed", number);
        }
    }
}

fn start(dir: &Path, first: u64, capacity_bytes: u64) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "kill::a_process_to_be_killed", "--nocapture"]);
    command.env(DIR, dir).env(FIRST, first.to_string()).env(CAPACITY, capacity_bytes.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Runs the process, kills it after `lines` lines, as soon as `is_due` returns true as well, and
/// reads the rest of its output.
fn run(dir: &Path, first: u64, lines: usize, capacity_bytes: u64, is_due: impl Fn() -> bool) -> Vec<Report> {
    let mut child = start(dir, first, capacity_bytes);
    let mut reports = Vec::new();
    let mut is_killed = false;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = words.get(1).and_then(|word| word.parse().ok());
        reports.extend(match (words[0], number) {
            ("stored", Some(number)) => Some(Report::Stored(number)),
            ("updated", Some(number)) => Some(Report::Updated(number)),
            ("removing", Some(number)) => Some(Report::Removing(number)),
            ("removed", Some(number)) => Some(Report::Removed(number)),
            ("filled", Some(number)) => Some(Report::Filled(number)),
            _ => None,
        });
        if !is_killed && reports.len() >= lines && is_due() {
            child.kill().unwrap();
            is_killed = true;
        }
    }
    child.wait().unwrap();
    reports
}

/// Expected state of each number: its least version, or `None` if it must be absent. Numbers in
/// between are not listed.
fn expected(reports: &[Report]) -> HashMap<u64, Option<u64>> {
    let mut expected = HashMap::new();
    for report in reports {
        match *report {
            Report::Stored(number) => drop(expected.insert(number, Some(0))),
            Report::Updated(number) => drop(expected.insert(number, Some(1))),
            Report::Removing(number) => drop(expected.remove(&number)),
            Report::Removed(number) => drop(expected.insert(number, None)),
            Report::Filled(_) => {}
        }
    }
    expected
}

/// Returns the least number of records with a hash that the scrub of a killed process has added,
/// and the number of records without a hash.
fn hashes(dir: &Path) -> (u64, u64) {
    let store = Store::open_to_read(dir).unwrap();
    let verified = store.verify();
    assert_eq!((verified.corrupt, verified.unreadable), (0, 0));
    let records = store.records();
    let of_scrub = records
        .iter()
        .filter(|record| check(&store, record).is_some_and(|(number, _)| is_hashed_by_scrub(number)))
        .count() as u64;
    (of_scrub.saturating_sub(verified.unhashed), verified.unhashed)
}

/// Number of the cuts in the journal of a store.
fn cuts(dir: &Path) -> usize {
    let bytes = fs::read(dir.join("index")).unwrap_or_default();
    let blocks = bytes.chunks_exact(BLOCK_BYTES).zip(0..);
    blocks
        .filter(|(block, place)| Block::check(block, *place).is_some_and(|it| it.items::<Cut>().count() == 1))
        .count()
}

/// All records of a store, read by the journal of its index, and by a scan. Changes nothing.
fn by_journal_and_by_scan(dir: &Path) -> [HashMap<u64, Vec<u64>>; 2] {
    let read = || check_all(&Store::open_to_read(dir).unwrap());
    let by_journal = read();
    let (index, aside) = (dir.join("index"), dir.join("aside"));
    let moved = fs::rename(&index, &aside);
    let by_scan = read();
    if moved.is_ok() {
        fs::rename(aside, index).unwrap();
    }
    [by_journal, by_scan]
}

#[test]
fn killed_process_leaves_intact_and_complete_objects() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (mut first, mut found, mut cut, mut begun) = (0, 0, 0, 0);
    let (mut scrubbed, mut unhashed) = (0, 0);
    let kills = env::var(KILLS).map_or(KILLS_DEFAULT, |kills| kills.parse().unwrap());
    for round in 0..kills {
        // Each third process lives for some syncs.
        let factor = if round.is_multiple_of(3) { 6 } else { 1 };
        let lines = 1 + (round * round * 7 % 90 * factor) as usize;
        // How many syncs that are depends on the disk: some wait for a batch of the journal.
        let is_due = || !round.is_multiple_of(6) || cuts(dir.path()) > 1;
        let reports = run(dir.path(), first, lines, config(dir.path()).capacity_bytes, is_due);
        if round % 4 == 1 {
            let (of_scrub, none) = hashes(dir.path());
            scrubbed += of_scrub;
            unhashed += none;
        }
        cut += usize::from(cuts(dir.path()) > 1);
        begun += usize::from(dir.path().join("index.new").exists());
        let [by_journal, by_scan] = by_journal_and_by_scan(dir.path());
        assert_eq!(by_journal, by_scan);
        let store = open(config(dir.path()));
        let there = check_all(&store);
        let stats = store.stats();
        let is_filled = reports.iter().any(|report| matches!(report, Report::Filled(_)));
        for (number, version) in expected(&reports) {
            let has = there.get(&number).and_then(|versions| versions.first()).copied();
            match version {
                None => assert_eq!(has, None, "{number} was removed"),
                Some(version) if !is_filled => {
                    assert!(has >= Some(version), "{number}: {has:?} {stats:?} {reports:?}");
                }
                Some(version) => assert!(has.is_none_or(|has| has >= version)),
            }
        }
        let newest = reports.iter().rev().find_map(|report| match report {
            Report::Stored(number) if !number.is_multiple_of(7) => Some(*number),
            _ => None,
        });
        // Eviction drops objects in files of their own first, even the newest one.
        if let Some(number) = newest.filter(|_| !is_filled) {
            assert!(
                !store.find(hash_of(&Object { number, version: 0 }.key())).is_empty(),
                "{number} was stored"
            );
        }
        assert!(stats.used_bytes <= stats.capacity_bytes && stats.failed == 0, "{stats:?}");
        found += there.len();
        first += OBJECTS_MAX;
        // Every other round, the next process opens the directory of a killed one.
        if round % 2 == 0 {
            store.close();
        }
        if stats.used_bytes > 8 << 20 {
            store.records().iter().for_each(|record| store.remove(record));
        }
    }
    assert!(found > kills as usize);
    println!("{scrubbed} hashes of killed scrubs, {unhashed} bodies without a hash");
    assert!(scrubbed > 0 && unhashed > 0, "kills before and after the writes of the scrub");
    println!("{cut} killed after an appended batch, {begun} while the journal was replaced");
    assert!(cut > kills as usize / 10 && begun > 0, "{cut} {begun}");
}

#[test]
fn killed_process_with_a_full_store_leaves_a_journal_that_agrees_with_a_scan() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (mut stored, mut left) = (0, 0);
    for round in 0..60 {
        let lines = 100 + (round * round * 7 % 400) as usize;
        let reports = run(dir.path(), round * OBJECTS_MAX, lines, SMALL_BYTES, || true);
        let [by_journal, by_scan] = by_journal_and_by_scan(dir.path());
        assert_eq!(by_journal, by_scan);
        let expected = expected(&reports);
        assert!(by_scan.keys().all(|number| expected.get(number) != Some(&None)), "none was removed");
        stored += expected.values().filter(|version| version.is_some()).count();
        left = by_scan.len();
    }
    assert!(stored > 4 * left, "most of {stored} objects are evicted");
}
