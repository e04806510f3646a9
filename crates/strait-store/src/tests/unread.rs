//! Unreadable files at loading: other files are not affected, and records not known to be on disk
//! are not trusted later.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use tempfile::TempDir;

use super::{PATIENCE, body_of, config, fill_of, killed, open};
use crate::disk::{Call, Disk};
use crate::file::{SegmentFile, kind_and_number};
use crate::open::Opened;
use crate::scan::{FAILED_READS_MAX, Unscanned, scan};
use crate::{Config, Error, Store, hash_of};

/// Opens before that of the oldest file: the checkpoint and the journal.
const OPENS_BEFORE: u32 = 2;
/// Reads before those of records: the checkpoint and the header of the one file.
const READS_BEFORE: u32 = 2;
/// Reads that fail for one page: the window, and then the page.
const READS_OF_A_PAGE: u32 = 2;

/// Configuration for run `boot` of the machine.
fn in_boot(config: &Config, boot: u8) -> Config {
    Config { boot_id: Some([boot; 16]), ..config.clone() }
}

fn open_with(config: &Config, call: Call, after: u32, times: u32) -> Arc<Store> {
    let disk = Disk::default();
    disk.faults.inject(call, after, times, Errno::IO.raw_os_error());
    let store = Store::open_on(disk, config.clone()).unwrap();
    assert!(store.wait_loaded(PATIENCE));
    store
}

fn has(store: &Store, key: &[u8]) -> bool {
    body_of(store, key).is_some()
}

fn put(store: &Store, key: &[u8]) {
    store.put(0, key, b"meta", &[&fill_of(1, 1000)]).unwrap();
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| kind_and_number(&path.file_name().unwrap().to_string_lossy()).is_some()).collect()
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    files(dir).into_iter().filter(|path| path.to_string_lossy().ends_with("segment")).collect()
}

#[test]
fn unopened_file_does_not_hold_back_others() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    let store = open(&in_boot(&config, 1));
    put(&store, b"old");
    store.close();
    let store = open_with(&in_boot(&config, 1), Call::Open, OPENS_BEFORE, 1);
    assert!(!has(&store, b"old") && store.stats().failed == 1);
    put(&store, b"new");
    store.sync().unwrap();
    let after = killed(dir.path());
    store.close();
    let config = Config { dir: after.path().into(), ..config };
    // Two power losses follow, and the file cannot be read between them.
    let store = open_with(&in_boot(&config, 2), Call::Open, OPENS_BEFORE, 1);
    assert!(has(&store, b"new") && !has(&store, b"old"));
    store.close();
    let store = open(&in_boot(&config, 3));
    assert!(has(&store, b"new") && has(&store, b"old") && store.stats().unsynced == 0);
    store.close();
    let store = open(&in_boot(&config, 4));
    assert!(has(&store, b"new") && has(&store, b"old"));
}

#[test]
fn unsynced_record_is_dropped_when_its_file_can_be_read_again() {
    for next_boot in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&in_boot(&config(&dir), 1));
        put(&store, b"old");
        let file = store.find(hash_of(b"old"))[0].body().unwrap().file.path();
        let dir = killed(dir.path());
        drop(store);
        let config = config(&dir);
        // Spare segments may have lower numbers.
        let older = segments(dir.path()).iter().filter(|path| path.file_name() < file.file_name()).count();
        let store = open_with(&in_boot(&config, 1), Call::Open, OPENS_BEFORE + older as u32, 1);
        put(&store, b"new");
        store.close();
        // Without a reboot, all writes are in the page cache.
        let store = open(&in_boot(&config, next_boot));
        assert!(has(&store, b"new"));
        assert_eq!(has(&store, b"old"), next_boot == 1);
        assert_eq!(store.stats().unsynced, u64::from(next_boot != 1));
        store.close();
        let store = open(&in_boot(&config, 3));
        assert!(has(&store, b"new"));
        assert_eq!(has(&store, b"old"), next_boot == 1, "it has been synced since, or is dead");
    }
}

#[test]
fn synced_head_is_dropped_if_its_body_was_held_back() {
    for next_boot in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&in_boot(&config(&dir), 1));
        let record = store.put(0, b"key", b"old", &[&fill_of(1, 100_000)]).unwrap();
        let record = store.update(0, &record, b"new").unwrap();
        let (head, body) = (record.location().unwrap().head, record.body().unwrap().file.path());
        assert!(!head.is_own() && head.path() != body);
        let dir = killed(dir.path());
        drop((store, record));
        let config = config(&dir);
        let older = files(dir.path()).iter().filter(|path| path.file_name() < body.file_name()).count();
        let store = open_with(&in_boot(&config, 1), Call::Open, OPENS_BEFORE + older as u32, 1);
        assert!(store.find(hash_of(b"key")).is_empty() && store.stats().unsynced == 0);
        // The head is synced now, and the durable number is past both.
        put(&store, b"other");
        store.close();
        for boot in [next_boot, 3] {
            let store = open(&in_boot(&config, boot));
            assert!(has(&store, b"other"));
            let found = store.find(hash_of(b"key"));
            assert_eq!(found.len(), usize::from(next_boot == 1), "it has been synced since, or is dead");
            assert_eq!(store.stats().unsynced, u64::from(boot == 2));
            store.close();
        }
    }
}

#[test]
fn unreadable_page_hides_its_records_for_one_session() {
    const COUNT: u64 = 60;
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    let key = |number: u64| format!("key {number}").into_bytes();
    let store = open(&in_boot(&config, 1));
    (0..COUNT).for_each(|number| put(&store, &key(number)));
    store.close();
    fs::remove_file(dir.path().join("index")).unwrap();
    let store = open_with(&in_boot(&config, 1), Call::Read, READS_BEFORE, READS_OF_A_PAGE);
    let found = (0..COUNT).filter(|number| has(&store, &key(*number))).count() as u64;
    // A page has three records and the begin of a fourth.
    assert!((COUNT - 4..COUNT).contains(&found), "{found} found");
    assert!(!has(&store, &key(0)) && has(&store, &key(COUNT - 1)));
    put(&store, b"new");
    store.close();
    assert!(!dir.path().join("index").exists());
    let store = open(&in_boot(&config, 2));
    assert!(has(&store, b"new") && (0..COUNT).all(|number| has(&store, &key(number))));
}

#[test]
fn unreadable_segment_is_left_for_the_next_session() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    let store = open(&config);
    (0_u64..200).for_each(|number| put(&store, &number.to_le_bytes()));
    store.close();
    fs::remove_file(dir.path().join("index")).unwrap();
    let store = open_with(&config, Call::Read, READS_BEFORE, u32::MAX);
    assert_eq!(store.stats().records, 0);
    store.close();
    assert_eq!(open(&config).stats().records, 200);
}

/// Makes a store that was closed in order and must be scanned. Returns its number of files.
fn to_be_scanned(config: &Config) -> u64 {
    let store = open(config);
    (0_u64..200)
        .for_each(|number| drop(store.put(0, &number.to_le_bytes(), b"meta", &[&fill_of(1, 10_000)])));
    assert_eq!(store.stats().records, 200);
    store.close();
    fs::remove_file(config.dir.join("index")).unwrap();
    files(&config.dir).len() as u64
}

#[test]
fn scan_of_a_failing_disk_ends_after_some_reads() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    let count = to_be_scanned(&config);
    let disk = Disk::default();
    let (before, errno) = (count + 1, Errno::IO.raw_os_error());
    disk.faults.inject(Call::Read, before as u32, u32::MAX, errno);
    let store = Store::open_on(disk.clone(), config.clone()).unwrap();
    assert!(store.wait_loaded(PATIENCE));
    let failed = disk.faults.count(Call::Read) - before;
    assert_eq!(failed, FAILED_READS_MAX, "of {count} files");
    // Each of the first three segments takes one read of many pages and 17 of one; then the rest is
    // left.
    assert!(store.stats().failed > FAILED_READS_MAX / 2, "{:?}", store.stats());
    assert_eq!(store.stats().records, 0);
    store.close();
    assert_eq!(open(&config).stats().records, 200);
}

#[test]
fn scan_finds_the_newest_objects_first() {
    // The reads of the spare segments, which come first, are fewer than a quarter.
    const COUNT: u64 = 240;
    // Those of one segment are found in their order, and the number of a segment that was made
    // ahead may be lower than that of the one before.
    const SEGMENT_MAX: u64 = 14;
    let dir = tempfile::tempdir().unwrap();
    let config = Config { capacity_bytes: 16 << 20, ..config(&dir) };
    let store = open(&config);
    for number in 0..COUNT {
        store.put(0, &number.to_le_bytes(), b"meta", &[&fill_of(number, 20_000)]).unwrap();
    }
    // A copy of a segment that is not cut has more to read.
    let is_cut = |segment: &Arc<SegmentFile>| segment.share.bytes() < store.shared.segments.segment_bytes;
    let begin = Instant::now();
    while !store.shared.segments.queued().iter().all(is_cut) {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    let dead = killed(dir.path());
    // Opens it after a kill; the scan ends when reads fail. Returns the objects found by then, and
    // the number of reads.
    let found_after = |reads: u64| {
        let copy = killed(dead.path());
        let disk = Disk::default();
        disk.faults.inject(Call::Read, reads as u32, u32::MAX, Errno::IO.raw_os_error());
        let store =
            Store::open_on(disk.clone(), Config { dir: copy.path().into(), ..config.clone() }).unwrap();
        assert!(store.wait_loaded(PATIENCE));
        let is_found = |number: &u64| !store.find(hash_of(&number.to_le_bytes())).is_empty();
        ((0..COUNT).filter(is_found).collect::<Vec<_>>(), disk.faults.count(Call::Read))
    };
    let (all, reads) = found_after(u64::from(u32::MAX));
    assert_eq!(all.len() as u64, COUNT);
    // The checkpoint, and the header of each file.
    let before = 1 + files(dead.path()).len() as u64;
    for quarter in 1..4 {
        let (found, _) = found_after(before + (reads - before) * quarter / 4);
        let count = found.len() as u64;
        assert!(count > 0 && count < COUNT, "{quarter}: {count}");
        let newest = found.iter().filter(|number| **number >= COUNT - count).count() as u64;
        assert!(newest + SEGMENT_MAX >= count, "{quarter}: {found:?}");
    }
}

#[test]
fn scan_ends_when_the_store_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    to_be_scanned(&config);
    let disk = Disk::default();
    let Opened { shared, earlier, lock } = crate::open::open(disk.clone(), config.clone()).unwrap();
    let files = earlier.files.into_iter().filter_map(|found| crate::load::open(&shared, found));
    let files: Vec<_> = files.map(Unscanned::all_of).collect();
    let before = disk.faults.count(Call::Read);
    shared.lifecycle.close();
    scan(&shared, &files, false);
    assert_eq!(disk.faults.count(Call::Read), before);
    assert!(shared.unread.any() && shared.index.len() == 0);
    drop((shared, lock));
    assert_eq!(open(&config).stats().records, 200);
}

/// Stores objects until the store evicts one.
fn put_until_evicted(store: &Store) {
    let begin = Instant::now();
    for number in 0_u64.. {
        match store.put(0, &number.to_le_bytes(), b"meta", &[&fill_of(2, 10_000)]) {
            Ok(_) | Err(Error::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        if store.stats().evicted > 0 {
            break;
        }
        assert!(begin.elapsed() < PATIENCE);
    }
}

/// Opens a store of one record whose file cannot be opened. Returns the store and this file.
fn open_without_its_file(dir: &TempDir) -> (Arc<Store>, PathBuf) {
    let config = config(dir);
    let store = open(&config);
    put(&store, b"old");
    store.close();
    let oldest = segments(dir.path()).remove(0);
    (open_with(&config, Call::Open, OPENS_BEFORE, 1), oldest)
}

#[test]
fn unopened_file_is_evicted_by_age() {
    let dir = tempfile::tempdir().unwrap();
    let (store, oldest) = open_without_its_file(&dir);
    put_until_evicted(&store);
    assert!(!oldest.exists(), "it is older than the evicted file");
    assert!(store.find(hash_of(b"old")).is_empty());
    let stats = store.stats();
    assert!(stats.used_bytes <= stats.capacity_bytes);
}

#[test]
fn failed_unlink_of_an_unopened_file_keeps_its_space_until_a_sync() {
    let dir = tempfile::tempdir().unwrap();
    let (store, oldest) = open_without_its_file(&dir);
    let failed = store.stats().failed;
    store.shared.segments.disk.faults.inject(Call::Unlink, 0, 1, Errno::IO.raw_os_error());
    put_until_evicted(&store);
    assert!(oldest.exists() && store.stats().failed == failed + 1, "{:?}", store.stats());
    // The eviction thread may unlink a listed file at this moment.
    let listed = files(dir.path()).into_iter().filter_map(|path| fs::metadata(path).ok());
    assert!(listed.map(|data| data.len()).sum::<u64>() <= store.stats().capacity_bytes);
    store.sync().unwrap();
    assert!(!oldest.exists());
}
