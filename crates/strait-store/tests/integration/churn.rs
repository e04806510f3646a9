//! The store under steady eviction, with producers that never pause and slow readers: no put is
//! refused, and files with readers stay in the store.
//!
//! `STRAIT_CHURN_SECONDS` lengthens the test.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::{deleted_files, wait_until};
use strait_store::{Config, Extent, Store, hash_of};

use crate::rig::{Object, PATIENCE, check_all, config, open};

/// Objects that are stored at least, several times the capacity.
const STORED_MIN: u64 = 6000;
/// Different objects.
const OBJECTS: u64 = 4000;
/// Objects that are stored before the store is full.
const FIRST: u64 = 600;
/// Slow readers of each producer, and the number of its requests that each outlasts.
const READERS: usize = 3;
const READER_REQUESTS: u64 = 400;
/// Readers that outlast the whole test.
const READERS_TO_THE_END: usize = 6;

/// Shortest duration of a test.
fn duration() -> Duration {
    std::env::var("STRAIT_CHURN_SECONDS")
        .map_or(Duration::ZERO, |seconds| Duration::from_secs(seconds.parse().unwrap()))
}

/// Requests objects, popular ones more often, and stores the missing ones, with slow readers of
/// some. Returns the number of stored objects.
fn produce(store: &Store, lane: usize, is_over: impl Fn(u64) -> bool) -> u64 {
    let mut readers: VecDeque<(u64, Extent)> = VecDeque::new();
    let mut stored = 0;
    for request in 0_u64.. {
        if is_over(stored) {
            break;
        }
        let random = (request * 2 + lane as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let object = Object { number: random % (1 + random / 7 % OBJECTS), version: 1 };
        let found = store.find(hash_of(&object.key()));
        let record = if let Some(record) = found.into_iter().next() {
            store.touch(&record);
            record
        } else {
            stored += 1;
            object.store(store, lane).unwrap_or_else(|error| panic!("{error}: {:?}", store.stats()))
        };
        while readers.front().is_some_and(|(since, _)| since + READER_REQUESTS < request) {
            readers.pop_front();
        }
        if readers.len() < READERS {
            readers.extend(record.body().map(|body| (request, body)));
        }
    }
    stored
}

#[test]
fn no_put_is_refused_under_churn_with_slow_readers() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { capacity_bytes: 64 << 20, segment_bytes: Some(1 << 20), ..config(dir.path()) };
    let store = open(config);
    produce(&store, 0, |stored| stored >= FIRST);
    assert_eq!(store.stats().evicted, 0, "the store is full too early");
    let records = store.records();
    let step = records.len() / READERS_TO_THE_END;
    let readers: Vec<_> = records.iter().step_by(step).map(|record| (record, record.body())).collect();
    let (begin, total) = (Instant::now(), AtomicU64::new(0));
    let is_over = |stored| stored >= STORED_MIN && begin.elapsed() >= duration();
    thread::scope(|scope| {
        for lane in 0..2 {
            let (store, total) = (&store, &total);
            scope.spawn(move || total.fetch_add(produce(store, lane, is_over), Ordering::Relaxed));
        }
    });
    let stats = store.stats();
    println!("{} stored, {} evicted, {} used bytes", total.into_inner(), stats.evicted, stats.used_bytes);
    assert_eq!((stats.refused, stats.failed, stats.corrupt), (0, 0, 0), "{stats:?}");
    assert!(stats.evicted >= STORED_MIN, "{stats:?}");
    // Files with readers were not evicted.
    assert!(wait_until(PATIENCE, || deleted_files(dir.path()) == 0), "{:?}", store.stats());
    assert!(readers.iter().all(|(record, _)| record.is_alive()));
    drop(readers);
    check_all(&store);
    store.close();
}
