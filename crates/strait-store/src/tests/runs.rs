//! Objects that are stored together: adjacent ones take one write, and a failed write loses and
//! revives none.

use std::sync::Arc;

use rustix::io::Errno;

use super::{body_of, config, fill_of, killed, open, open_on_disk, wait_until};
use crate::disk::{Call, Disk};
use crate::spares::SPARES_MIN;
use crate::{Config, Error, NewObject, Record, Store};

const COUNT: u64 = 40;

/// Two segments in all; the last objects share pages.
fn body(number: u64) -> Vec<u8> {
    fill_of(number, if number < 35 { 13_000 } else { 300 })
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn put_all(store: &Store) -> Vec<Result<Arc<Record>, Error>> {
    let all: Vec<_> = (0..COUNT).map(|number| (key(number), body(number))).collect();
    let all: Vec<_> = all.iter().map(|(key, body)| NewObject { key, meta: b"meta", body }).collect();
    store.put_all(0, &all)
}

fn has(store: &Store, number: u64) -> bool {
    body_of(store, &key(number)).is_some_and(|stored| stored == body(number))
}

#[test]
fn adjacent_objects_take_one_write_and_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = open_on_disk(config(&dir));
    assert!(put_all(&store).iter().all(Result::is_ok));
    // The background thread writes headers of segments, too.
    let writes = disk.faults.count(Call::Write);
    assert!(writes < COUNT / 2, "{writes}");
    assert!((0..COUNT).all(|number| has(&store, number)));
    let copy = killed(dir.path());
    drop(store);
    for dir in [&copy, &dir] {
        let store = open(&config(dir));
        assert!((0..COUNT).all(|number| has(&store, number)));
        assert_eq!((store.stats().records, store.verify().corrupt), (COUNT, 0));
    }
}

#[test]
fn failed_write_of_several_objects_loses_and_revives_none() {
    for (after, times) in [(1, 1), (1, 2), (1, 4), (2, 2), (3, 2), (3, 3)] {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        let config = Config { capacity_bytes: 16 << 20, ..config(&dir) };
        let store = Store::open_on(disk.clone(), config.clone()).unwrap();
        // Their headers are written by another thread then.
        wait_until(&store, || store.shared.segments.spares.count() == SPARES_MIN);
        disk.faults.inject_here(Call::Write, after, times, Errno::IO.raw_os_error());
        let stored: Vec<_> = put_all(&store).iter().map(Result::is_ok).collect();
        // The first write is that of one object. After a failed write of several, each is written
        // again.
        assert_eq!(stored.iter().all(|is_stored| *is_stored), times == 1, "{after} {times}");
        let check = |store: &Store| {
            for (number, is_stored) in (0..).zip(&stored) {
                assert_eq!(has(store, number), *is_stored, "{after} {times} {number}");
            }
        };
        check(&store);
        drop(store);
        check(&open(&config));
    }
}
