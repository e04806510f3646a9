//! The hard limits hold at all times: under churn, while files are filled, and while readers pin
//! evicted files.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use proptest::prelude::*;
use rustix::io::pwrite;

use super::faults::bytes_in;
use super::{PATIENCE, body_of, config, fill_of, open, put_patiently};
use crate::budget::{Budget, Share};
use crate::policy::Area;
use crate::{Config, Error, Store, append, eviction, hash_of};

/// Checks a store and its directory against the limits from another thread until `work` is done.
fn watched(store: &Arc<Store>, dir: &std::path::Path, work: impl FnOnce()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut looks = 0;
            while !done.load(Ordering::Acquire) || looks == 0 {
                let stats = store.stats();
                assert!(stats.used_bytes <= stats.capacity_bytes, "{stats:?}");
                let on_disk = bytes_in(dir);
                assert!(on_disk <= stats.capacity_bytes + SMALL_FILES_BYTES, "{on_disk} on disk, {stats:?}");
                looks += 1;
            }
        });
        work();
        done.store(true, Ordering::Release);
        watch.join().unwrap();
    });
}

/// Bytes of the checkpoint, and of a file that is about to be replaced.
const SMALL_FILES_BYTES: u64 = 64 << 10;

/// Waits until the eviction thread has worked on all refused requests.
fn wait_for_eviction(store: &Store) {
    let begin = Instant::now();
    while store.shared.demand.wanted_bytes() > 0 {
        assert!(begin.elapsed() < PATIENCE, "{:?}", store.stats());
        std::thread::yield_now();
    }
}

#[test]
fn the_limit_holds_under_churn_with_pinned_readers() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    let mut pinned = VecDeque::new();
    watched(&store, dir.path(), || {
        for number in 0_u32..3000 {
            let size = [10_usize, 5000, 20_000, 90_000][number as usize % 4];
            let key = number.to_le_bytes();
            put_patiently(&store, 0, &key, &fill_of(u64::from(number), size));
            let newest = store.find(hash_of(&key)).into_iter().next();
            if let Some(record) = newest.filter(|_| number % 50 == 0) {
                pinned.push_back((record.body().unwrap(), u64::from(number), record.body_len()));
            }
            if pinned.len() > 3 {
                let (extent, number, len) = pinned.pop_front().unwrap();
                let mut bytes = vec![0; len as usize];
                let read = rustix::io::pread(&*extent.file, &mut bytes, extent.offset).unwrap();
                assert_eq!(read as u64, len, "the pinned bytes are gone");
                assert_eq!(bytes, fill_of(number, len as usize));
            }
        }
    });
    let stats = store.stats();
    assert!(stats.evicted > 1000 && stats.failed == 0 && stats.corrupt == 0, "{stats:?}");
}

#[test]
fn objects_with_hits_outlive_those_without() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    let hot: Vec<[u8; 4]> = (0_u32..20).map(|number| (number << 16).to_le_bytes()).collect();
    for key in &hot {
        put_patiently(&store, 0, key, &fill_of(1, 3000));
    }
    for number in 1_u32..1500 {
        put_patiently(&store, 0, &number.to_le_bytes(), &fill_of(2, 9000));
        for record in hot.iter().flat_map(|key| store.find(hash_of(key))) {
            record.touch();
        }
    }
    for key in &hot {
        assert_eq!(body_of(&store, key), Some(fill_of(1, 3000)));
    }
    let stats = store.stats();
    assert!(stats.evicted > 1000 && stats.reinserted >= 20, "{stats:?}");
}

#[test]
fn eviction_frees_space_of_objects_without_bodies() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    for number in 0_u32..400 {
        store.put(0, &[&number.to_le_bytes()[..], &[7; 500]].concat(), b"meta", &[]).unwrap();
    }
    drop(store.shared.lane(0, "test").map(|mut lane| append::seal(&store.shared, &mut lane)));
    let file = store.shared.segments.queued().remove(0);
    let freed_bytes = eviction::evict(&store.shared, Area::Main, &file);
    let stats = store.stats();
    assert!(stats.evicted > 0 && stats.reinserted > 0 && freed_bytes > 0, "{stats:?}");
    assert!(stats.reinserted_bytes >= 504 * stats.reinserted, "{stats:?}");
}

#[test]
fn fill_of_unknown_length_is_refused_at_the_capacity() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    watched(&store, dir.path(), || {
        let mut writer = store.reserve(0, b"endless", b"", None).unwrap();
        let mut refusals = 0;
        let refused = loop {
            let upto = writer.writable_bytes() + 1;
            match writer.grow(upto) {
                Ok(()) => {
                    refusals = 0;
                    let extent = writer.extent();
                    let last = extent.offset + writer.writable_bytes() - 1;
                    pwrite(&*extent.file, b"x", last).unwrap();
                }
                // Eviction has ended several times and has not freed enough.
                Err(error) if refusals == 3 => break error,
                Err(_) => refusals += 1,
            }
            wait_for_eviction(&store);
        };
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        drop(writer);
    });
    // The space of the failed fill is freed, so small objects can be stored again.
    put_patiently(&store, 0, b"small", b"body");
    assert!(store.find(hash_of(b"endless")).is_empty());
    assert!(store.stats().refused > 0);
}

#[test]
fn open_files_have_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        capacity_bytes: 256 << 20,
        segment_bytes: Some(4 << 20),
        files_max: Some(64),
        ..config(&dir)
    };
    let limit = 64;
    let store = open(&config);
    for number in 0_u32..600 {
        let begin = Instant::now();
        let mut writer = loop {
            match store.reserve(0, &number.to_le_bytes(), b"", None) {
                Ok(writer) => break writer,
                Err(Error::Full { .. }) => assert!(begin.elapsed() < PATIENCE),
                Err(error) => panic!("{error}"),
            }
            std::thread::yield_now();
        };
        writer.grow(300_000).unwrap();
        pwrite(&*writer.extent().file, b"12345", writer.extent().offset).unwrap();
        writer.commit(300_000).unwrap();
        assert!(store.stats().files <= limit, "{:?}", store.stats());
    }
    assert!(store.stats().evicted > 0);
}

#[test]
fn too_small_capacity_is_refused_and_the_minimum_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let tried = Store::open(Config { capacity_bytes: 1 << 20, ..Config::new(dir.path()) });
    assert!(tried.unwrap_err().to_string().contains("configure at least 2097152 bytes"));
}

#[test]
fn reserved_bytes_are_left_to_eviction() {
    let budget = Budget::new(2000, 5);
    budget.reserve(500);
    assert!(Share::take(&budget, 1600).is_none());
    let share = Share::take(&budget, 1000).unwrap();
    assert!(share.grow(500) && !share.grow(1));
    let reserve = Share::take_reserved(&budget, 500).unwrap();
    assert!(Share::take_reserved(&budget, 1).is_none());
    drop((share, reserve));
    assert!(Share::take(&budget, 2000).is_some());
}

#[test]
fn requested_objects_outlast_a_scan_that_eviction_cannot_keep_up_with() {
    const COUNT: u64 = 800;
    let dir = tempfile::tempdir().unwrap();
    let config = Config { capacity_bytes: 16 << 20, segment_bytes: Some(64 << 10), ..config(&dir) };
    let store = open(&config);
    let put = |number: u64| store.put(0, &number.to_le_bytes(), b"", &[&[0; 4000]]).map(drop).unwrap();
    let find = |number: u64| store.find(hash_of(&number.to_le_bytes())).into_iter().next();
    // A third of the objects of each file is requested, so that eviction can keep all of them.
    (0..3 * COUNT).for_each(put);
    for number in 3 * COUNT..30 * COUNT {
        put(number);
        if let Some(record) = find(number % COUNT * 3) {
            store.touch(&record);
        }
    }
    let found = (0..COUNT).filter(|number| find(number * 3).is_some()).count();
    assert_eq!(found as u64, COUNT, "{:?}", store.stats());
    store.close();
}

#[test]
fn second_store_in_a_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    let tried = Store::open(config(&dir)).unwrap_err();
    assert!(matches!(tried, Error::InUse(_)), "{tried}");
    store.close();
    open(&config(&dir)).close();
    assert!(matches!(store.put(0, b"a", b"", &[]), Err(Error::Closed { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn budget_is_the_sum_of_its_shares(steps in prop::collection::vec((0_u8..4, 1_u64..500), 1..60)) {
        let budget = Budget::new(2000, 5);
        let mut shares: Vec<(Share, u64)> = Vec::new();
        for (step, bytes) in steps {
            match step {
                0 => if let Some(share) = Share::take(&budget, bytes) { shares.push((share, bytes)); },
                1 => { shares.pop(); }
                2 => if let Some((share, has)) = shares.last_mut() && share.grow(bytes) { *has += bytes; },
                _ => if let Some((share, has)) = shares.last_mut() {
                    share.shrink_to(bytes);
                    *has = (*has).min(bytes);
                },
            }
            prop_assert_eq!(budget.used_bytes(), shares.iter().map(|(_, has)| has).sum::<u64>());
            prop_assert_eq!(budget.files(), shares.len());
            prop_assert!(budget.used_bytes() <= 2000 && budget.files() <= 5);
        }
    }
}
