//! A read-only store leaves its directory unchanged, in any state of the directory.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rapidhash::v3::rapidhash_v3;
use rustix::fs::{FlockOperation, flock};

use super::{PATIENCE, body_of, config, fill_of, killed, open};
use crate::open::READERS_WAIT_MAX;
use crate::{Config, Error, Store, hash_of};

/// Time of change in ns of the directory; length, time of change, inode and hash of each file.
type State = (i64, BTreeMap<String, (u64, i64, u64, u64)>);

fn state(dir: &Path) -> State {
    let of = |data: &fs::Metadata| data.mtime() * 1_000_000_000 + data.mtime_nsec();
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let files = entries.map(|entry| {
        let (data, bytes) = (entry.metadata().unwrap(), fs::read(entry.path()).unwrap());
        let name = entry.file_name().into_string().unwrap();
        (name, (data.len(), of(&data), data.ino(), rapidhash_v3(&bytes)))
    });
    (of(&fs::metadata(dir).unwrap()), files.collect())
}

/// Stores two records in a segment and one in a file of its own; removes the oldest.
fn put_some(store: &Store) {
    for (key, size) in [(&b"removed"[..], 100), (b"small", 5000), (b"long", 100_000)] {
        store.put(0, key, b"meta", &[&fill_of(3, size)]).unwrap();
    }
    store.remove(&store.find(hash_of(b"removed"))[0]);
}

/// Reads everything in every way. Returns the numbers of found and of damaged records.
fn read_all(dir: &Path) -> (u64, u64) {
    let before = state(dir);
    let store = Store::open_to_read(dir).unwrap();
    let found = store.stats().records;
    assert_eq!(store.records().len() as u64, found);
    assert!(store.is_loaded() && store.find(hash_of(b"removed")).is_empty());
    let corrupt = store.verify().corrupt;
    let put = store.put(0, b"key", b"meta", &[b"body"]);
    assert!(matches!(put, Err(Error::Closed { .. })), "{put:?}");
    for record in store.records() {
        assert!(store.update(0, &record, b"other").is_err());
        store.remove(&record);
    }
    store.sync().unwrap();
    assert_eq!(store.stats().failed, 0);
    store.close();
    drop(store);
    assert_eq!(state(dir), before);
    (found, corrupt)
}

#[test]
fn read_only_store_leaves_a_closed_directory_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    put_some(&store);
    store.close();
    assert!(dir.path().join("index").exists());
    assert_eq!((read_all(dir.path()), read_all(dir.path())), ((2, 0), (2, 0)));
    let store = Store::open_to_read(dir.path()).unwrap();
    assert_eq!(body_of(&store, b"small"), Some(fill_of(3, 5000)));
    // A read-only store does not block a writing one.
    assert_eq!(open(&config(&dir)).stats().records, 2);
    assert_eq!(body_of(&store, b"small"), Some(fill_of(3, 5000)));
}

#[test]
fn read_only_store_leaves_the_directory_of_a_killed_process_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    put_some(&store);
    let _writer = store.reserve(0, b"half", b"meta", Some(3000)).unwrap();
    let copy = killed(dir.path());
    assert_eq!(read_all(copy.path()), (2, 0));
    // A lock file is neither needed nor created.
    fs::remove_file(copy.path().join("lock")).unwrap();
    assert_eq!(read_all(copy.path()), (2, 0));
    assert!(!copy.path().join("lock").exists());
}

#[test]
fn records_lost_with_the_power_are_not_found_and_not_marked() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&Config { boot_id: Some([1; 16]), ..config(&dir) });
    put_some(&store);
    let copy = killed(dir.path());
    assert_eq!(read_all(copy.path()), (0, 0));
    assert_eq!(Store::open_to_read(copy.path()).unwrap().stats().unsynced, 2);
}

#[test]
fn damaged_records_are_reported_and_left_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    put_some(&store);
    store.close();
    drop(store);
    for entry in fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        let body = fill_of(3, 5000);
        if let Some(at) =
            bytes.windows(5000).position(|window| window == body).filter(|_| bytes.len() < 50_000)
        {
            bytes[at + 2500] ^= 1;
            fs::write(path, bytes).unwrap();
        }
    }
    assert_eq!((read_all(dir.path()), read_all(dir.path())), ((2, 1), (2, 1)));
}

#[test]
fn unwritable_directory_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    put_some(&store);
    store.close();
    let set = |mode: u32| {
        let files = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        files.for_each(|path| fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o666)).unwrap());
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
    };
    // Root ignores the modes; `read_all` detects writes by the times of change.
    set(0o500);
    let read = read_all(dir.path());
    set(0o700);
    assert_eq!(read, (2, 0));
}

#[test]
fn opening_to_write_waits_for_readers() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&config(&dir)));
    let lock = fs::File::open(dir.path().join("lock")).unwrap();
    flock(&lock, FlockOperation::LockShared).unwrap();
    let (opened, is_open) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| opened.send(Store::open(config(&dir)).map(drop)).unwrap());
        let waited = is_open.recv_timeout(Duration::from_millis(120));
        assert!(matches!(waited, Err(RecvTimeoutError::Timeout)), "{waited:?}");
        drop(lock);
        is_open.recv_timeout(PATIENCE).unwrap().unwrap();
    });
}

#[test]
fn directory_in_use_or_without_a_store_is_refused_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let refused = Store::open_to_read(dir.path()).unwrap_err();
    assert!(matches!(refused, Error::NoStore(_)), "{refused}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(Store::open_to_read(&dir.path().join("none")).is_err() && !dir.path().join("none").exists());
    let _store = open(&config(&dir));
    let refused = Store::open_to_read(dir.path()).unwrap_err();
    assert!(matches!(refused, Error::InUse(_)), "{refused}");
    let begin = Instant::now();
    let refused = Store::open(config(&dir)).unwrap_err();
    assert!(matches!(refused, Error::InUse(_)), "{refused}");
    assert!(begin.elapsed() < READERS_WAIT_MAX, "the store waited for a writer");
}
