//! A file system that is full before the store reaches its limit. The store continues within the
//! space that it has.

use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use tempfile::TempDir;

use super::faults::bytes_in;
use super::{PATIENCE, body_of, config, fill_of, open_on_disk};
use crate::disk::{Call, Disk};
use crate::format::KEY_BYTES_MAX;
use crate::{Config, Error, Record, Store, hash_of};
use crate::{append, eviction};

const SEGMENT_BYTES: u64 = 256 << 10;

fn opened(dir: &TempDir) -> (Disk, Arc<Store>) {
    open_on_disk(Config { capacity_bytes: 64 << 20, segment_bytes: Some(SEGMENT_BYTES), ..config(dir) })
}

/// Retries until `try_it` succeeds: eviction may have to free disk space first.
fn patiently(mut try_it: impl FnMut() -> Result<Arc<Record>, Error>) -> Arc<Record> {
    let begin = Instant::now();
    loop {
        match try_it() {
            Ok(record) => return record,
            Err(Error::Full { .. } | Error::System(_)) => assert!(begin.elapsed() < PATIENCE),
            Err(error) => panic!("{error}"),
        }
        std::thread::yield_now();
    }
}

fn fill(store: &Store, key: &[u8], body: &[u8], len: Option<u64>) -> Result<Arc<Record>, Error> {
    let mut writer = store.reserve(0, key, b"meta", len)?;
    writer.grow(body.len() as u64)?;
    let extent = writer.extent();
    assert_eq!(rustix::io::pwrite(&*extent.file, body, extent.offset).unwrap(), body.len());
    writer.commit(body.len() as u64)
}

#[test]
fn full_disk_refuses_an_object_and_keeps_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let store = Store::open_on(disk.clone(), config(&dir)).unwrap();
    store.put(0, b"a", b"", &[b"kept"]).unwrap();
    disk.faults.inject_here(Call::Write, 0, 1, rustix::io::Errno::NOSPC.raw_os_error());
    let refused = store.put(0, b"b", b"", &[b"lost"]).unwrap_err();
    assert!(refused.to_string().contains("No space left"), "{refused}");
    disk.faults.clear();
    store.put(0, b"c", b"", &[b"kept"]).unwrap();
    for (key, body) in [(b"a", Some(b"kept".to_vec())), (b"b", None), (b"c", Some(b"kept".to_vec()))] {
        assert_eq!(body_of(&store, key), body);
    }
    assert_eq!(store.stats().failed, 1);
}

#[test]
fn refusals_of_too_long_parts_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (_, store) = opened(&dir);
    let long = vec![7; KEY_BYTES_MAX + 1];
    assert!(matches!(store.put(0, &long, b"", &[]), Err(Error::TooLong { .. })));
    assert!(matches!(store.reserve(0, &long, b"", None), Err(Error::TooLong { .. })));
    let mut writer = store.reserve(0, b"key", b"", Some(1)).unwrap();
    assert!(matches!(writer.grow(2), Err(Error::TooLong { .. })));
    assert_eq!(store.stats().refused, 3);
}

#[test]
fn disk_smaller_than_the_limit_acts_as_the_limit() {
    const DISK_BYTES: u64 = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = opened(&dir);
    disk.faults.limit(dir.path(), DISK_BYTES);
    for number in 0_u64..1200 {
        let (key, body) = (number.to_le_bytes(), fill_of(number, 10_000));
        patiently(|| store.put(0, &key, b"meta", &[&body]));
        assert!(bytes_in(dir.path()) <= DISK_BYTES + 2 * SEGMENT_BYTES);
    }
    let stats = store.stats();
    assert!(stats.evicted > 0 && stats.refused == 0 && stats.corrupt == 0, "{stats:?}");
    assert!(stats.records > 200, "more was evicted than the disk needs: {stats:?}");
    // The newest objects are there and intact.
    for number in 1100_u64..1200 {
        assert_eq!(body_of(&store, &number.to_le_bytes()), Some(fill_of(number, 10_000)));
    }
}

#[test]
fn objects_in_their_own_files_get_space_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = opened(&dir);
    disk.faults.limit(dir.path(), 8 << 20);
    for number in 0_u64..40 {
        let body = fill_of(number, 900_000);
        // With a known and an unknown length.
        let len = number.is_multiple_of(2).then_some(body.len() as u64);
        let record = patiently(|| fill(&store, &number.to_le_bytes(), &body, len));
        assert!(record.body().unwrap().file.is_own());
    }
    let stats = store.stats();
    assert!(stats.evicted > 20 && stats.records >= 4, "{stats:?}");
}

/// Fills a disk of `disk_bytes` with objects of 10,000 bytes.
fn filled(disk: &Disk, store: &Store, dir: &TempDir, disk_bytes: u64) {
    disk.faults.limit(dir.path(), disk_bytes);
    for number in 0_u64.. {
        patiently(|| store.put(0, &number.to_le_bytes(), b"meta", &[&fill_of(number, 10_000)]));
        if store.stats().evicted > 0 {
            return;
        }
    }
}

#[test]
fn request_larger_than_the_disk_is_refused_and_evicts_nothing() {
    const DISK_BYTES: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = opened(&dir);
    filled(&disk, &store, &dir, DISK_BYTES);
    let before = store.stats();
    // Longer than the disk and shorter than the limit, alternating with small objects, for which
    // there is space.
    for number in 0_u64..200 {
        let refused = store.reserve(0, b"long", b"meta", Some(2 * DISK_BYTES)).map(drop);
        assert!(matches!(refused, Err(Error::System(_))), "{refused:?}");
        let _ = store.put(0, b"small", b"meta", &[&fill_of(number, 100)]);
        std::thread::yield_now();
    }
    let after = store.stats();
    // Some make room for segments of the small ones; an eviction for one long request would take
    // half of the store.
    assert!(after.evicted - before.evicted < before.records / 2, "{before:?} {after:?}");
    assert!(after.failed >= before.failed + 200);
}

#[test]
fn long_object_gets_a_first_step_and_evicts_at_most_half_of_the_store() {
    const DISK_BYTES: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = opened(&dir);
    filled(&disk, &store, &dir, DISK_BYTES);
    let records = store.stats().records;
    let begin = Instant::now();
    let long = DISK_BYTES * 3 / 4;
    let writer = loop {
        match store.reserve(0, b"long", b"meta", Some(long)) {
            Ok(writer) => break writer,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::yield_now();
    };
    assert!((1..long).contains(&writer.writable_bytes()), "{}", writer.writable_bytes());
    assert!(store.stats().records > records / 4, "{records} {:?}", store.stats());
}

#[test]
fn refused_long_objects_among_small_ones_evict_little() {
    const DISK_BYTES: u64 = 32 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = opened(&dir);
    filled(&disk, &store, &dir, DISK_BYTES);
    let before = store.stats();
    let begin = Instant::now();
    let (mut long, mut small) = (0, 0);
    while long < 2000 || small < 100 {
        assert!(begin.elapsed() < PATIENCE, "{long} {small} {:?}", store.stats());
        let _ = store.reserve(0, b"long", b"meta", Some(DISK_BYTES * 3 / 4));
        long += 1;
        if small < 100 {
            small += u64::from(store.put(0, b"small", b"meta", &[&fill_of(small, 10_000)]).is_ok());
        }
    }
    assert!(store.stats().records > before.records / 2, "{before:?} {:?}", store.stats());
}

/// Waits until the store has evicted something because of `failure`, which is a lack of space.
fn assert_evicts_after(failure: impl FnOnce(&Disk, &Store)) {
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = opened(&dir);
    for number in 0_u64..200 {
        patiently(|| store.put(0, &number.to_le_bytes(), b"meta", &[&fill_of(number, 10_000)]));
    }
    let before = store.stats();
    assert_eq!((before.evicted, before.failed), (0, 0));
    failure(&disk, &store);
    let begin = Instant::now();
    while store.stats().evicted == 0 {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    assert_eq!(store.stats().failed, 1);
}

#[test]
fn store_evicts_if_the_disk_is_full_only_at_a_write() {
    let no_space = Errno::NOSPC.raw_os_error();
    // The writes of an object in a file of its own: the file header, the record header, the body,
    // the committed header.
    for after in 0..4 {
        assert_evicts_after(|disk, store| {
            disk.faults.inject_here(Call::Write, after, 1, no_space);
            assert!(store.put(0, b"long", b"meta", &[&fill_of(1, 300_000)]).is_err());
        });
    }
    // The writes of one in a segment: its header, and the committed header.
    for after in 0..2 {
        assert_evicts_after(|disk, store| {
            disk.faults.inject_here(Call::Write, after, 1, no_space);
            assert!(fill(store, b"key", b"body", Some(4)).is_err());
        });
    }
}

#[test]
fn reported_write_failure_is_counted_and_triggers_eviction() {
    for len in [Some(50_000), Some(900_000), None] {
        assert_evicts_after(|_, store| {
            let writer = store.reserve(0, b"key", b"meta", len).unwrap();
            writer.failed(&Errno::NOSPC.into());
        });
    }
    let dir = tempfile::tempdir().unwrap();
    let (_, store) = opened(&dir);
    let writer = store.reserve(0, b"key", b"meta", None).unwrap();
    writer.failed(&Errno::IO.into());
    assert!(store.stats().failed == 1 && store.shared.demand.enospc.due_in().is_none());
}

#[test]
fn newest_file_is_not_evicted_while_all_others_are_being_filled() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = opened(&dir);
    let seal = || drop(store.shared.lane(0, "test").map(|mut lane| append::seal(&store.shared, &mut lane)));
    let _writer = store.reserve(0, b"half", b"meta", Some(100)).unwrap();
    seal();
    store.put(0, b"newest", b"meta", &[b"body"]).unwrap();
    seal();
    disk.faults.inject(Call::Allocate, 0, u32::MAX, Errno::NOSPC.raw_os_error());
    let begin = Instant::now();
    while store.stats().failed < 3 {
        assert!(store.reserve(0, b"another", b"meta", None).is_err());
        assert!(begin.elapsed() < PATIENCE);
    }
    eviction::evict_for_shortage(&store.shared);
    assert!(body_of(&store, b"newest").is_some());
}

#[test]
fn backoff_keeps_the_store_if_eviction_does_not_help() {
    const COUNT: u64 = 600;
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = opened(&dir);
    for number in 0..COUNT {
        patiently(|| store.put(0, &number.to_le_bytes(), b"meta", &[&fill_of(number, 10_000)]));
    }
    disk.faults.inject(Call::Allocate, 0, u32::MAX, Errno::NOSPC.raw_os_error());
    let mut refused = 0;
    let begin = Instant::now();
    while refused < 1000 || store.stats().evicted == 0 {
        assert!(begin.elapsed() < PATIENCE, "{refused} {:?}", store.stats());
        refused += u64::from(store.put(0, b"another", b"meta", &[&fill_of(1, 10_000)]).is_err());
    }
    // Each attempt evicts one segment, and attempts become rare.
    assert!(store.stats().records > COUNT / 2, "{:?}", store.stats());
    disk.faults.clear();
    patiently(|| store.put(0, b"again", b"meta", &[b"body"]));
    assert!(!store.find(hash_of(b"again")).is_empty());
}
