//! Calls in the caller's thread: slow ones are left to the background threads.

use std::time::Instant;

use rustix::io::pwrite;

use super::{PATIENCE, body_of, config, fill_of};
use crate::disk::{Call, Disk};
use crate::{Config, Store};

/// Waits until `is_done` returns true.
fn wait_until(store: &Store, is_done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_done() {
        assert!(begin.elapsed() < PATIENCE, "{:?}", store.stats());
        std::thread::yield_now();
    }
}

#[test]
fn commit_of_unknown_length_leaves_the_truncation_to_the_background() {
    const BODY_BYTES: usize = 300_000;
    let dir = tempfile::tempdir().unwrap();
    let (disk, config) = (Disk::default(), Config { capacity_bytes: 16 << 20, ..config(&dir) });
    let store = Store::open_on(disk.clone(), config).unwrap();
    assert!(store.wait_loaded(PATIENCE));
    let mut writer = store.reserve(0, b"key", b"", None).unwrap();
    writer.grow(BODY_BYTES as u64).unwrap();
    let extent = writer.extent();
    pwrite(&*extent.file, &fill_of(1, BODY_BYTES), extent.offset).unwrap();
    let record = writer.commit(BODY_BYTES as u64).unwrap();
    assert_eq!(disk.faults.count_here(Call::Truncate), 0);
    let file = record.body().unwrap().file;
    wait_until(&store, || file.share.bytes() < extent.offset + BODY_BYTES as u64 + 4096);
    assert_eq!(std::fs::metadata(file.path()).unwrap().len(), file.share.bytes());
    assert_eq!(body_of(&store, b"key"), Some(fill_of(1, BODY_BYTES)));
}
