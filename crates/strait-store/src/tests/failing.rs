//! Failures of any file-system call, except for lack of space. The operation returns the error, no
//! stored object is lost, and no partial record is kept.

use std::collections::HashMap;

use rustix::io::Errno;

use super::{PATIENCE, body_of, config, fill_of, open, open_on_disk, wait_until};
use crate::disk::{Call, Disk};
use crate::lane::RESERVES;
use crate::policy::Area;
use crate::spares::SPARES_MIN;
use crate::{Config, Error, Store, hash_of};
use crate::{append, eviction};

type Objects = HashMap<Vec<u8>, Vec<u8>>;

/// Stores and updates some objects. Objects that could not be stored are not added to `objects`.
fn work(store: &Store, objects: &mut Objects, round: u64) {
    for number in 0..12 {
        let size = [100, 20_000, 80_000][number as usize % 3];
        let (key, body) = (format!("{round} {number}").into_bytes(), fill_of(round * 100 + number, size));
        let stored = if number % 2 == 0 {
            store.put(0, &key, b"meta", &[&body])
        } else {
            fill(store, &key, &body, number % 4 == 1)
        };
        if stored.is_ok() {
            objects.insert(key, body);
        }
    }
    let keys: Vec<_> = objects.keys().cloned().collect();
    for key in keys.iter().filter(|key| key.len() % 2 == 0) {
        let Some(record) = store.find(hash_of(key)).into_iter().next() else { continue };
        // The object stays even if the update fails.
        let _ = store.update(0, &record, b"meta");
    }
    let _ = store.sync();
}

fn fill(
    store: &Store,
    key: &[u8],
    body: &[u8],
    is_known: bool,
) -> Result<std::sync::Arc<crate::Record>, Error> {
    let mut writer = store.reserve(0, key, b"meta", is_known.then_some(body.len() as u64))?;
    writer.grow(body.len() as u64)?;
    rustix::io::pwrite(&*writer.extent().file, body, writer.extent().offset).unwrap();
    writer.commit(body.len() as u64)
}

fn check(store: &Store, objects: &Objects) {
    for (key, body) in objects {
        let record =
            store.find(hash_of(key)).into_iter().next().unwrap_or_else(|| panic!("{key:?} was stored"));
        let loaded = store.load(&record, 0).unwrap();
        assert_eq!((loaded.key(), loaded.meta()), (&key[..], &b"meta"[..]));
        let mut read = vec![0; body.len()];
        let extent = record.body().unwrap();
        assert_eq!(rustix::io::pread(&*extent.file, &mut read, extent.offset).unwrap(), body.len());
        assert!(read == *body);
    }
    assert_eq!(store.stats().records as usize, objects.len());
}

#[test]
fn failed_calls_lose_no_stored_object_and_leave_no_partial_one() {
    let calls = [Call::Create, Call::Allocate, Call::Write, Call::Truncate, Call::Rename, Call::Unlink];
    for call in calls {
        for (after, errno) in
            [(0, Errno::ROFS), (1, Errno::IO), (3, Errno::MFILE), (7, Errno::ROFS), (20, Errno::IO)]
        {
            let dir = tempfile::tempdir().unwrap();
            let config = Config { capacity_bytes: 16 << 20, ..config(&dir) };
            let disk = Disk::default();
            let store = Store::open_on(disk.clone(), config.clone()).unwrap();
            assert!(store.wait_loaded(PATIENCE));
            let mut objects = Objects::new();
            for round in 0..3 {
                disk.faults.inject(call, after, 2, errno.raw_os_error());
                work(&store, &mut objects, round);
                check(&store, &objects);
                disk.faults.clear();
            }
            drop(store);
            check(&open(&config), &objects);
        }
    }
}

#[test]
fn file_that_could_not_be_begun_nor_unlinked_is_unlinked_later() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let store = Store::open_on(disk.clone(), config(&dir)).unwrap();
    let segments = &store.shared.segments;
    // The background thread makes spare segments, and then no more.
    wait_until(&store, || {
        segments.spares.count() == SPARES_MIN && store.shared.eviction_lane().reserves.len() == RESERVES
    });
    // Writes the index.
    store.sync().unwrap();
    let state = || (std::fs::read_dir(dir.path()).unwrap().count(), segments.budget.used_bytes());
    let before = state();
    for call in [Call::Write, Call::Allocate] {
        disk.faults.inject_here(call, 0, 1, Errno::IO.raw_os_error());
        disk.faults.inject_here(Call::Unlink, 0, 1, Errno::IO.raw_os_error());
        let error = append::make_segment(&store.shared).unwrap().unwrap_err();
        assert!(error.to_string().contains("Input/output error"), "{error}");
        assert_ne!(state(), before);
        store.sync().unwrap();
        wait_until(&store, || state() == before);
    }
}

#[test]
fn start_without_enough_descriptors_finds_the_rest_next_time() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { capacity_bytes: 16 << 20, ..config(&dir) };
    let mut objects = Objects::new();
    let store = open(&config);
    work(&store, &mut objects, 0);
    drop(store);
    for after in [1, 2, 4] {
        let disk = Disk::default();
        disk.faults.inject(Call::Open, after, 3, Errno::MFILE.raw_os_error());
        let store = Store::open_on(disk, config.clone()).unwrap();
        assert!(store.wait_loaded(PATIENCE));
        assert!(store.stats().records < objects.len() as u64 && store.stats().failed > 0);
        store.put(0, b"meanwhile", b"meta", &[b"body"]).unwrap();
        objects.insert(b"meanwhile".to_vec(), b"body".to_vec());
        drop(store);
        let store = open(&config);
        // All three are there, because the sessions that stored them did not see the older ones.
        for old in store.find(hash_of(b"meanwhile")).into_iter().skip(1) {
            store.remove(&old);
        }
        check(&store, &objects);
    }
}

#[test]
fn object_stays_after_a_failed_read() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let store = Store::open_on(disk.clone(), config(&dir)).unwrap();
    store.put(0, b"key", b"meta", &[b"body"]).unwrap();
    disk.faults.inject(Call::Read, 0, 1, Errno::IO.raw_os_error());
    let record = store.find(hash_of(b"key")).remove(0);
    let error = store.load(&record, 100).unwrap_err();
    assert!(error.to_string().contains("Input/output error"), "{error}");
    assert_eq!(body_of(&store, b"key").unwrap(), b"body");
}

#[test]
fn file_is_evicted_after_a_failed_sync() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = open_on_disk(config(&dir));
    store.put(0, b"before", b"meta", &[b"body"]).unwrap();
    disk.faults.inject(Call::Sync, 0, 1, Errno::IO.raw_os_error());
    let _ = store.sync();
    assert!(store.find(hash_of(b"before")).is_empty());
    store.put(0, b"after", b"meta", &[b"body"]).unwrap();
    store.sync().unwrap();
    drop(store);
    assert_eq!(body_of(&open(&config(&dir)), b"after").unwrap(), b"body");
}

#[test]
fn store_serves_and_recovers_when_it_cannot_create_files() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = open_on_disk(config(&dir));
    store.put(0, b"kept", b"meta", &[b"body"]).unwrap();
    disk.faults.inject(Call::Create, 0, u32::MAX, Errno::MFILE.raw_os_error());
    let refused = (0_u64..1000)
        .find_map(|number| store.put(0, &number.to_le_bytes(), b"", &[&fill_of(number, 10_000)]).err());
    assert!(matches!(refused, Some(Error::System(_) | Error::Full { .. })), "{refused:?}");
    assert_eq!(body_of(&store, b"kept").unwrap(), b"body");
    disk.faults.clear();
    wait_until(&store, || store.put(0, b"again", b"", &[b"body"]).is_ok());
}

#[test]
fn record_is_dropped_if_eviction_cannot_copy_it() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let config = Config { capacity_bytes: 64 << 20, segment_bytes: Some(6 << 20), ..config(&dir) };
    let store = Store::open_on(disk.clone(), config.clone()).unwrap();
    assert!(store.wait_loaded(PATIENCE));
    let mut records = Vec::new();
    for number in 0..2 {
        // Too long to be read and checked during the move.
        let body = fill_of(number, 1_200_000);
        records.push(fill(&store, &number.to_le_bytes(), &body, true).unwrap());
        records[number as usize].touch();
    }
    let file = records[0].body().unwrap().file;
    drop(store.shared.lane(0, "test").map(|mut lane| append::seal(&store.shared, &mut lane)));
    disk.faults.inject(Call::Copy, 1, 1, Errno::IO.raw_os_error());
    eviction::evict(&store.shared, Area::Main, &file);
    assert!(records[0].is_alive() && !records[1].is_alive());
    assert!(!std::sync::Arc::ptr_eq(&records[0].body().unwrap().file, &file));
    drop(store);
    let store = open(&config);
    let extent = store.find(hash_of(&0_u64.to_le_bytes()))[0].body().unwrap();
    let mut body = vec![0; 1_200_000];
    rustix::io::pread(&*extent.file, &mut body, extent.offset).unwrap();
    assert!(body == fill_of(0, 1_200_000) && store.stats().records == 1);
}
