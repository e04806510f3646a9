//! Eviction while callers hold records, and bytes of evicted files: it frees what it needs and
//! never empties the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{PATIENCE, config, fill_of, open};
use crate::{Config, Error, Extent, Record, Store};

/// Objects of one size, so that the store holds the same count of them at every full capacity.
const OBJECT_BYTES: usize = 8000;

/// Stores an object, and retries while eviction has to come first.
fn put(store: &Store, number: u64) -> Arc<Record> {
    let begin = Instant::now();
    loop {
        match store.put(0, &number.to_le_bytes(), b"meta", &[&fill_of(number, OBJECT_BYTES)]) {
            Ok(record) => return record,
            Err(Error::Full { .. }) => assert!(begin.elapsed() < PATIENCE, "{:?}", store.stats()),
            Err(error) => panic!("{error}"),
        }
        std::thread::yield_now();
    }
}

/// Stores objects until some have been evicted. Returns the next number.
fn put_to_capacity(store: &Store) -> u64 {
    let mut number = 0;
    while store.stats().evicted == 0 {
        put(store, number);
        number += 1;
    }
    number
}

#[test]
fn held_dead_records_do_not_hold_disk_space() {
    let dir = tempfile::tempdir().unwrap();
    // 64 segments: eviction can be some segments ahead while its thread waits for a CPU.
    let store = open(&Config { capacity_bytes: 16 << 20, ..config(&dir) });
    let first = put_to_capacity(&store);
    let full = store.stats().records;
    // One record of each file would be enough to hold all files; a memory cache holds as many.
    let mut held = Vec::new();
    for number in first..first + 6000 {
        held.push(put(&store, number));
        let records = store.stats().records;
        assert!(records * 10 >= full * 8, "{records} of {full} records are left: {:?}", store.stats());
    }
    assert!(held.iter().filter(|record| !record.is_alive()).count() > 4000);
}

#[test]
fn readers_of_evicted_files_pin_a_bounded_part_of_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    let mut number = put_to_capacity(&store);
    let full = store.stats().records;
    // A slow reader of every file: eviction frees nothing.
    let mut readers: Vec<_> = store.records().iter().filter_map(|record| record.body()).collect();
    let mut refused = 0;
    let begin = Instant::now();
    while refused < 1000 || store.stats().pinned_bytes == 0 {
        assert!(begin.elapsed() < PATIENCE, "{:?}", store.stats());
        match store.put(0, &number.to_le_bytes(), b"meta", &[&fill_of(number, OBJECT_BYTES)]) {
            Ok(record) => readers.extend(record.body()),
            Err(Error::Full { .. }) => {
                refused += 1;
                // The sum of these waits is longer than a pending unlink counts as about to be
                // freed.
                std::thread::park_timeout(Duration::from_millis(2));
            }
            Err(error) => panic!("{error}"),
        }
        number += 1;
    }
    let stats = store.stats();
    assert!(stats.used_bytes <= stats.capacity_bytes && stats.refused > 0, "{stats:?}");
    assert!(stats.records * 2 >= full, "{} of {full} records are left: {stats:?}", stats.records);
    // The space is used again once the readers have finished.
    drop(readers);
    put(&store, number);
    assert!(store.stats().records * 2 >= full, "{:?}", store.stats());
}

/// Stores an object larger than the part that readers may pin, and begins to read it.
fn put_large(store: &Store) -> (Arc<Record>, Extent, Vec<u8>) {
    let body = fill_of(u64::MAX, (store.stats().capacity_bytes / 2) as usize);
    let record = store.put(0, b"large", b"meta", &[&body]).unwrap();
    let extent = record.body().unwrap();
    (record, extent, body)
}

/// Stores several times the capacity, and then reads the large object.
fn put_during_read(store: &Store, extent: &Extent, body: &[u8]) {
    let first = put_to_capacity(store);
    for number in first..first + 3000 {
        put(store, number);
    }
    assert!(store.stats().evicted > 2000, "{:?}", store.stats());
    assert!(store.stats().used_bytes <= store.stats().capacity_bytes, "{:?}", store.stats());
    assert!(extent.file.read(body.len(), extent.offset).unwrap() == body);
}

#[test]
fn slow_reader_of_a_large_object_does_not_stop_eviction() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    let (record, extent, body) = put_large(&store);
    put_during_read(&store, &extent, &body);
    assert!(record.is_alive(), "it is evicted once it is not read: {:?}", store.stats());
    drop(extent);
    for number in 1_000_000..1_003_000 {
        put(&store, number);
    }
    assert!(!record.is_alive(), "{:?}", store.stats());
}

#[test]
fn slow_reader_of_a_large_removed_object_does_not_stop_eviction() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    let (record, extent, body) = put_large(&store);
    store.remove(&record);
    put_during_read(&store, &extent, &body);
}

#[test]
fn eviction_continues_during_a_sync() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { sync_every: Some(Duration::from_millis(1)), ..config(&dir) };
    let store = open(&config);
    // A sync holds this lock from its begin to its end, so the next one waits here, as for a slow
    // disk.
    let checkpoint = store.shared.durability.checkpoint();
    let first = put_to_capacity(&store);
    for number in first..first + 1000 {
        put(&store, number);
    }
    assert!(store.stats().evicted > 500, "{:?}", store.stats());
    drop(checkpoint);
}
