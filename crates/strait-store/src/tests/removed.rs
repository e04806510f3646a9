//! Removed records stay removed: removals are synced like writes, though they have no number.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{PATIENCE, body_of, config, fill_of, open, wait_until};
use crate::disk::{Call, Disk};
use crate::file::SegmentFile;
use crate::spares::SPARES_MIN;
use crate::{Config, Record, Store};

/// Opens a store with one object that is entirely on disk.
fn synced(disk: &Disk, config: &Config, size: usize) -> (Arc<Store>, Arc<Record>) {
    let store = Store::open_on(disk.clone(), config.clone()).unwrap();
    assert!(store.wait_loaded(PATIENCE));
    let record = store.put(0, b"key", b"meta", &[&fill_of(1, size)]).unwrap();
    let begin = Instant::now();
    // The background thread makes spare segments meanwhile, and then no more.
    while store.shared.segments.spares.count() < SPARES_MIN {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    store.sync().unwrap();
    (store, record)
}

fn head_of(record: &Record) -> Arc<SegmentFile> {
    record.location().unwrap().head
}

fn is_clean(file: &SegmentFile) -> bool {
    !file.is_dirty.load(Ordering::Acquire)
}

#[test]
fn removal_is_synced_without_other_writes() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let (store, record) = synced(&disk, &config(&dir), 100);
    let before = disk.faults.count(Call::Sync);
    store.sync().unwrap();
    assert_eq!(disk.faults.count(Call::Sync), before, "there is nothing to be synced");
    let head = head_of(&record);
    store.remove(&record);
    assert!(!is_clean(&head));
    store.sync().unwrap();
    assert!(is_clean(&head));
    assert_eq!(
        disk.faults.count(Call::Sync),
        before + 1,
        "the file is synced, the checkpoint is not written"
    );
}

#[test]
fn rewritten_record_has_another_body_unless_it_was_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    // In a segment, and in a file of its own.
    for size in [100, 200_000] {
        let (old, new) = (fill_of(1, size), fill_of(2, 2 * size));
        let record = store.put(0, b"key", b"old", &[&old]).unwrap();
        let (used, pieces) = (store.stats().records, [&new[..size], &new[size..]]);
        let written = store.rewrite(0, &record, (b"key", b"new"), &pieces).unwrap();
        assert_eq!((store.stats().records, record.is_alive()), (used, false));
        assert_eq!(store.load(&written, usize::MAX).unwrap().meta(), b"new");
        assert_eq!(body_of(&store, b"key"), Some(new.clone()));
        assert!(store.rewrite(0, &record, (b"key", b"new"), &pieces).is_err());
        // It is removed while the other one is written.
        store.remove(&written);
        let late = store.put(0, b"key", b"late", &pieces).unwrap();
        assert!(store.succeed(&written, late.clone(), false, "rewrite").is_err() && !late.is_alive());
        assert_eq!(body_of(&store, b"key"), None);
    }
    assert_eq!(store.stats().records, 0);
}

#[test]
fn idle_store_syncs_a_removal_in_the_background() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    // In a segment the header must be synced; for a file of its own the directory, from which the
    // file is unlinked.
    for size in [100, 100_000] {
        let config = Config { sync_every: Some(Duration::from_millis(20)), ..config(&dir) };
        let (store, record) = synced(&disk, &config, size);
        let before = disk.faults.count(Call::Sync);
        store.remove(&record);
        drop(record);
        let begin = Instant::now();
        let is_done = || {
            let is_clean = !store.shared.segments.is_dir_dirty();
            is_clean && disk.faults.count(Call::Sync) > before
        };
        while !is_done() {
            assert!(begin.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
    }
}

#[test]
fn closing_syncs_the_last_removal() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let (store, record) = synced(&disk, &config(&dir), 100);
    let head = head_of(&record);
    store.remove(&record);
    store.close();
    assert!(is_clean(&head));
    drop((store, record, head));
    // Without the journal, only the synced header keeps the record dead.
    std::fs::remove_file(dir.path().join("index")).unwrap();
    assert_eq!(open(&config(&dir)).stats().records, 0);
}

#[test]
fn removal_is_synced_before_its_file_is_unlinked() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let (store, record) = synced(&disk, &config(&dir), 100_000);
    let head = head_of(&record);
    assert!(head.is_own());
    // As if the eviction thread, which unlinks, were busy.
    assert!(!head.is_released.swap(true, Ordering::AcqRel));
    store.remove(&record);
    assert!(head.path().exists() && !is_clean(&head));
    store.sync().unwrap();
    assert!(head.path().exists() && is_clean(&head));
    head.is_released.store(false, Ordering::Release);
    store.shared.release_file(head);
}

#[test]
fn failed_unlink_is_counted_and_retried_at_the_next_sync() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let (store, record) = synced(&disk, &config(&dir), 100_000);
    let head = head_of(&record);
    let path = head.path();
    disk.faults.inject(Call::Unlink, 0, 2, Errno::IO.raw_os_error());
    store.remove(&record);
    wait_until(&store, || store.stats().failed == 1);
    store.sync().unwrap();
    assert_eq!(store.stats().failed, 2, "the retry fails, too");
    assert!(path.exists() && is_clean(&head), "a file with a name is synced");
    let used_bytes = store.stats().used_bytes;
    store.sync().unwrap();
    assert!(!path.exists());
    drop(head);
    wait_until(&store, || store.stats().used_bytes < used_bytes);
    assert_eq!(store.stats().failed, 2);
}

#[test]
fn file_with_failed_unlinks_keeps_its_space_and_is_not_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let (store, record) = synced(&disk, &config(&dir), 100_000);
    let path = head_of(&record).path();
    let used_bytes = store.stats().used_bytes;
    disk.faults.inject(Call::Unlink, 0, u32::MAX, Errno::IO.raw_os_error());
    store.remove(&record);
    wait_until(&store, || store.stats().failed > 0);
    store.sync().unwrap();
    assert!(path.exists() && store.stats().used_bytes >= used_bytes, "{:?}", store.stats());
    store.close();
    drop((store, record));
    let store = open(&config(&dir));
    assert_eq!(store.stats().records, 0);
    wait_until(&store, || !path.exists());
}
