//! Tests of the whole store, each in a directory of its own.

mod callers;
mod damage;
mod failing;
pub(crate) mod faults;
mod full;
mod journal;
mod limit;
mod model;
mod pinned;
mod progress;
mod reading;
mod removed;
mod runs;
mod scrub;
mod several;
mod together;
mod unread;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::disk::Disk;
use crate::{Config, Error, Store, hash_of};

/// Deadline of every wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// A small store in `dir`.
fn config(dir: &TempDir) -> Config {
    Config {
        capacity_bytes: 4 << 20,
        segment_bytes: Some(256 << 10),
        sync_every: None,
        ..Config::new(dir.path())
    }
}

fn open(config: &Config) -> Arc<Store> {
    let store = Store::open(config.clone()).unwrap();
    assert!(store.wait_loaded(PATIENCE));
    store
}

/// Opens a store, and returns the disk on which calls can be made to fail.
fn open_on_disk(config: Config) -> (Disk, Arc<Store>) {
    let disk = Disk::default();
    let store = Store::open_on(disk.clone(), config).unwrap();
    assert!(store.wait_loaded(PATIENCE));
    (disk, store)
}

/// Copies a directory as a killed process would leave it.
fn killed(from: &Path) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        // Skips files that the background thread unlinks at this moment.
        let _ = std::fs::copy(entry.path(), to.path().join(entry.file_name()));
    }
    to
}

/// Returns bytes that identify their seed.
fn fill_of(seed: u64, size: usize) -> Vec<u8> {
    let word = |at: usize| (seed << 32 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..size.div_ceil(8)).flat_map(word).take(size).collect()
}

fn body_of(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    let record = store.find(hash_of(key)).into_iter().next()?;
    let loaded = store.load(&record, usize::MAX).unwrap();
    assert_eq!(loaded.key(), key);
    Some(loaded.body().unwrap().to_vec())
}

/// Waits until `is_done` returns true.
fn wait_until(store: &Store, is_done: impl Fn() -> bool) {
    assert!(lab::wait_until(PATIENCE, is_done), "{:?}", store.stats());
}

/// Retries until the object is stored: eviction may have to come first.
fn put_patiently(store: &Store, lane: usize, key: &[u8], body: &[u8]) {
    let begin = Instant::now();
    loop {
        match store.put(lane, key, b"meta", &[body]) {
            Ok(_) => return,
            Err(Error::Full { .. }) => assert!(begin.elapsed() < PATIENCE, "{:?}", store.stats()),
            Err(error) => panic!("{error}"),
        }
        std::thread::yield_now();
    }
}

#[test]
fn stored_objects_are_found_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    for size in [0_usize, 1, 100, 5000, 20_000, 100_000] {
        store.put(0, format!("k{size}").as_bytes(), b"meta", &[&vec![7; size]]).unwrap();
    }
    store.close();
    let store = open(&config(&dir));
    for size in [0_usize, 1, 100, 5000, 20_000, 100_000] {
        assert_eq!(body_of(&store, format!("k{size}").as_bytes()), Some(vec![7; size]));
    }
    assert_eq!(store.stats().records, 6);
}
