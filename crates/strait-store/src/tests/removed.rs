//! What was removed stays removed: it is synced as what is written is, though it has no number.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{PATIENCE, config, fill_of, open};
use crate::disk::{Call, Disk};
use crate::file::{SegmentFile, lock};
use crate::room::SPARES;
use crate::{Config, Record, Store};

/// A store with one object, all of it on disk.
fn synced(disk: &Disk, config: &Config, size: usize) -> (Arc<Store>, Arc<Record>) {
    let store = Store::open_on(disk.clone(), config.clone()).unwrap();
    assert!(store.wait_loaded(PATIENCE));
    let record = store.put(0, b"key", b"meta", &[&fill_of(1, size)]).unwrap();
    let begin = Instant::now();
    // Segments are made ready meanwhile, and then no more.
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
fn a_removal_is_synced_though_nothing_else_is_written() {
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
    assert_eq!(disk.faults.count(Call::Sync), before + 1, "the file, and no marks");
}

#[test]
fn an_idle_store_syncs_a_removal_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    // In a segment: the header is to be synced. In a file of its own: the directory, from which it is gone.
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
fn what_is_removed_last_is_synced_when_the_store_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let (store, record) = synced(&disk, &config(&dir), 100);
    let head = head_of(&record);
    store.remove(&record);
    store.close();
    assert!(is_clean(&head));
    drop((store, record, head));
    // No snapshot hides it from the next but one.
    std::fs::remove_file(dir.path().join("index")).unwrap();
    assert_eq!(open(&config(&dir)).stats().records, 0);
}

#[test]
fn a_removal_is_synced_though_its_file_is_not_unlinked_yet() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let (store, record) = synced(&disk, &config(&dir), 100_000);
    let head = head_of(&record);
    assert!(head.is_own());
    // As if the eviction thread, which unlinks, were busy elsewhere.
    assert!(!head.is_leaving.swap(true, Ordering::AcqRel));
    store.remove(&record);
    assert!(head.path().exists() && !is_clean(&head));
    store.sync().unwrap();
    assert!(head.path().exists() && is_clean(&head));
    head.is_leaving.store(false, Ordering::Release);
    store.shared.let_go(head);
}
