//! Calls in the caller's thread: slow ones are left to the background threads.

use rustix::io::pwrite;

use super::{PATIENCE, body_of, config, fill_of, wait_until};
use crate::disk::{Call, Disk};
use crate::{Config, Store};

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

/// Fills six segments while the eviction thread is stopped. Returns the number of segments for
/// which no spare was ready.
fn burst(store: &Store, number: u64) -> u64 {
    const OBJECTS: u64 = 18;
    let before = store.stats().without_spare;
    let stopped = store.shared.eviction_lane();
    for number in number * OBJECTS..(number + 1) * OBJECTS {
        let body = fill_of(number, 60_000);
        let writer = store.reserve(0, &number.to_le_bytes(), b"", Some(body.len() as u64)).unwrap();
        let extent = writer.extent();
        pwrite(&*extent.file, &body, extent.offset).unwrap();
        writer.commit(body.len() as u64).unwrap();
    }
    drop(stopped);
    // It makes new spares before the next burst.
    wait_until(store, || store.shared.segments.spares.lacking() == 0);
    store.stats().without_spare - before
}

#[test]
fn steady_bursts_of_fills_find_spare_segments_also_in_a_full_store() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, config) = (Disk::default(), Config { capacity_bytes: 64 << 20, ..config(&dir) });
    let store = Store::open_on(disk.clone(), config).unwrap();
    wait_until(&store, || store.shared.segments.spares.lacking() == 0);
    let first: u64 = (0..4).map(|number| burst(&store, number)).sum();
    assert!(first > 0, "the demand was not known");
    let before = [Call::Create, Call::Allocate, Call::Truncate, Call::Unlink, Call::Sync];
    let before = before.map(|call| (call, disk.faults.count_here(call)));
    let later: u64 = (4..80).map(|number| burst(&store, number)).sum();
    let stats = store.stats();
    assert!(later == 0 && stats.evicted > 0 && stats.refused == 0, "{later} {stats:?}");
    for (call, count) in before {
        assert_eq!(disk.faults.count_here(call), count, "{call:?}");
    }
}
