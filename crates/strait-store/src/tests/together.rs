//! Many threads on one store while it evicts: a reader never gets bytes of another key.

use std::sync::Arc;
use std::time::Instant;

use super::{PATIENCE, config, fill_of, open};
use crate::{Config, Error, Record, Store, hash_of};

const THREADS: u64 = 3;
const STEPS: u64 = 1500;
const KEYS: u64 = 60;

fn size_of(key: u64) -> usize {
    [10, 700, 5000, 20_000, 70_000, 100_000][key as usize % 6]
}

/// Reads the body in place, as sendfile(2) would, and then together with its head.
fn check(store: &Store, record: &Arc<Record>, key: u64) {
    // Another thread may have ended the record.
    let Some(extent) = record.body() else { return };
    let mut body = vec![0; record.body_len() as usize];
    let read = rustix::io::pread(&*extent.file, &mut body, extent.offset).unwrap();
    assert!(read == size_of(key) && body == fill_of(key, read), "the body of {key}");
    let loaded = match store.load(record, 1 << 20) {
        Err(Error::Removed { .. }) => return,
        loaded => loaded.unwrap(),
    };
    assert_eq!(loaded.key(), key.to_le_bytes());
    assert!(loaded.body().is_none_or(|loaded| loaded == body));
}

fn stored(store: &Store, lane: usize, key: u64, step: u64) -> Result<Arc<Record>, Error> {
    let (name, body) = (key.to_le_bytes(), fill_of(key, size_of(key)));
    if step.is_multiple_of(2) {
        return store.put(lane, &name, b"meta", &[&body]);
    }
    let mut writer = store.reserve(lane, &name, b"meta", (step % 4 == 1).then_some(body.len() as u64))?;
    writer.grow(body.len() as u64)?;
    let extent = writer.extent();
    rustix::io::pwrite(&*extent.file, &body, extent.offset).unwrap();
    // Followers read before the commit and after it.
    let record = writer.commit(body.len() as u64)?;
    let mut followed = vec![0; body.len()];
    rustix::io::pread(&*extent.file, &mut followed, extent.offset).unwrap();
    assert!(followed == body);
    Ok(record)
}

fn step(store: &Store, lane: usize, step: u64) {
    let chance = fill_of(lane as u64 * STEPS + step, 8);
    let key = u64::from(chance[6]) % KEYS;
    let found = store.find(hash_of(&key.to_le_bytes()));
    for record in &found {
        check(store, record, key);
        record.touch();
    }
    let done = match (chance[7] % 8, found.first()) {
        (0, Some(record)) => {
            store.remove(record);
            assert!(!record.is_alive());
            Ok(())
        }
        (1..=3, Some(record)) => store.update(lane, record, b"other meta").map(drop),
        _ => stored(store, lane, key, step).map(|new| {
            for old in found {
                if !Arc::ptr_eq(&old, &new) {
                    store.remove(&old);
                }
            }
        }),
    };
    match done {
        Ok(()) | Err(Error::Full { .. } | Error::Removed { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn concurrent_threads_read_only_stored_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { lanes: THREADS as usize, ..config(&dir) };
    let store = open(&config);
    std::thread::scope(|scope| {
        for lane in 0..THREADS as usize {
            let store = &store;
            scope.spawn(move || (0..STEPS).for_each(|number| step(store, lane, number)));
        }
        scope.spawn(|| (0..20).for_each(|_| store.sync().unwrap()));
    });
    // On a busy machine the threads may end before eviction begins.
    let begin = Instant::now();
    for number in STEPS.. {
        if store.stats().evicted > 0 || begin.elapsed() > PATIENCE {
            break;
        }
        step(&store, 0, number);
    }
    let stats = store.stats();
    assert!(stats.corrupt == 0 && stats.failed == 0 && stats.evicted > 0, "{stats:?}");
    assert_eq!(store.verify().corrupt, 0);
    store.close();
    // A scan finds the records of the journal, because each key is there once.
    let counts: Vec<u64> = (0..2)
        .map(|round| {
            if round == 1 {
                std::fs::remove_file(dir.path().join("index")).unwrap();
            }
            let store = open(&Config { capacity_bytes: 64 << 20, ..config.clone() });
            assert_eq!(store.verify().corrupt, 0);
            store.stats().records
        })
        .collect();
    assert_eq!(counts[0], counts[1]);
}
