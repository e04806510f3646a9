//! Removed records stay removed: removals are synced like writes, though they have no number.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{PATIENCE, config, fill_of, open};
use crate::disk::{Call, Disk};
use crate::eviction::SPARES;
use crate::file::{SegmentFile, lock};
use crate::{Config, Record, Store};

/// Opens a store with one object that is entirely on disk.
fn synced(disk: &Disk, config: &Config, size: usize) -> (Arc<Store>, Arc<Record>) {
    let store = Store::open_on(disk.clone(), config.clone()).unwrap();
    assert!(store.wait_loaded(PATIENCE));
    let record = store.put(0, b"key", b"meta", &[&fill_of(1, size)]).unwrap();
    let begin = Instant::now();
    // The background thread makes spare segments meanwhile, and then no more.
    while lock(&store.shared.spares).len() < SPARES {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    store.sync().unwrap();
    (store, record)
}

fn head_of(record: &Record) -> Arc<SegmentFile> {
    record.place().unwrap().head
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
            let is_clean = !store.shared.is_dir_dirty.load(Ordering::Acquire);
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
    // Without the snapshot, only the synced header keeps the record dead.
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
