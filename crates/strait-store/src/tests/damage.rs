//! Recovery from damaged, lost and truncated files.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::{PATIENCE, body_of, config, fill_of, open};
use crate::file::name_of;
use crate::format::{FileHeader, FileKind, RECORD_HEADER_BYTES};
use crate::policy::REQUEST;
use crate::{Config, Error, Store, hash_of};

/// Sizes of the objects: small and long ones in segments, and one in a file of its own.
const SIZES: [usize; 12] = [0, 10, 100, 1000, 5000, 9000, 17_000, 30_000, 40_000, 50, 90_000, 700];

fn filled(config: &Config) -> HashMap<Vec<u8>, Vec<u8>> {
    let store = open(config);
    let mut objects = HashMap::new();
    for (number, size) in SIZES.into_iter().enumerate() {
        let (key, body) = (format!("key {number}").into_bytes(), fill_of(number as u64, size));
        store.put(0, &key, b"meta", &[&body]).unwrap();
        objects.insert(key, body);
    }
    store.close();
    objects
}

/// Asserts that every object found is right. Returns their number.
fn count_right(store: &Store, objects: &HashMap<Vec<u8>, Vec<u8>>) -> usize {
    let mut count = 0;
    for (key, body) in objects {
        for record in store.find(hash_of(key)) {
            match store.load(&record, usize::MAX) {
                Ok(loaded) => {
                    assert_eq!((loaded.key(), loaded.meta()), (&key[..], &b"meta"[..]));
                    assert!(loaded.body().unwrap() == body);
                    count += 1;
                }
                Err(Error::Corrupt { .. }) => assert!(!record.is_alive()),
                Err(error) => panic!("{error}"),
            }
        }
    }
    count
}

fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_string_lossy().ends_with(ending)).collect()
}

fn change(path: &Path, how: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    how(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn dir_and_config() -> (TempDir, Config) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    (dir, config)
}

#[test]
fn start_after_close_restores_hits() {
    let (dir, config) = dir_and_config();
    filled(&config);
    let store = open(&config);
    store.find(hash_of(b"key 3"))[0].touch();
    store.close();
    assert!(dir.path().join("index").exists());
    let store = open(&config);
    assert_eq!(store.find(hash_of(b"key 3"))[0].requests(), 2 * REQUEST, "a scan would not know");
}

#[test]
fn without_a_valid_journal_a_scan_finds_everything() {
    let damages: [fn(&Path); 5] = [
        |path| fs::remove_file(path).unwrap(),
        |path| change(path, |bytes| bytes.truncate(bytes.len() / 2)),
        |path| change(path, |bytes| bytes[40] ^= 1),
        |path| change(path, |bytes| bytes[7] = b'2'),
        |path| change(path, Vec::clear),
    ];
    for damage in damages {
        let (dir, config) = dir_and_config();
        let objects = filled(&config);
        damage(&dir.path().join("index"));
        assert_eq!(count_right(&open(&config), &objects), objects.len());
    }
}

#[test]
fn journal_of_an_earlier_session_restores_no_removed_object() {
    let (dir, config) = dir_and_config();
    let objects = filled(&config);
    let old = fs::read(dir.path().join("index")).unwrap();
    let store = open(&config);
    store.remove(&store.find(hash_of(b"key 4"))[0]);
    store.close();
    fs::write(dir.path().join("index"), old).unwrap();
    let store = open(&config);
    for record in store.find(hash_of(b"key 4")) {
        assert!(matches!(store.load(&record, 1 << 20), Err(Error::Removed { .. })));
    }
    assert!(store.find(hash_of(b"key 4")).is_empty() && store.stats().corrupt == 0);
    assert_eq!(count_right(&store, &objects), objects.len() - 1);
}

#[test]
fn without_a_checkpoint_all_records_are_dropped() {
    let (dir, config) = dir_and_config();
    let objects = filled(&config);
    change(&dir.path().join("marks"), |bytes| bytes[30] ^= 1);
    let store = open(&config);
    assert_eq!(count_right(&store, &objects), 0);
    store.put(0, b"new", b"", &[b"body"]).unwrap();
    store.close();
    assert_eq!(open(&config).stats().records, 1);
}

#[test]
fn truncated_record_is_dropped_by_the_scan() {
    let (dir, config) = dir_and_config();
    let objects = filled(&config);
    fs::remove_file(dir.path().join("index")).unwrap();
    // The last record is key 11; the end of its body is missing.
    change(&files(dir.path(), "segment")[0], |bytes| {
        let body = fill_of(11, 700);
        let at = bytes.windows(700).rposition(|window| window == body).unwrap();
        bytes[at + 300..at + 700].fill(0);
    });
    let store = open(&config);
    assert_eq!(store.stats().corrupt, 1);
    assert!(store.find(hash_of(b"key 11")).is_empty());
    assert_eq!(count_right(&store, &objects), objects.len() - 1);
}

#[test]
fn forged_record_in_a_body_is_not_found() {
    let (dir, config) = dir_and_config();
    filled(&config);
    let forged = fs::read(&files(dir.path(), "segment")[0]).unwrap()[128..20_000].to_vec();
    let other = tempfile::tempdir().unwrap();
    let config = Config { dir: other.path().into(), ..config };
    let store = open(&config);
    // At every possible offset of a record in it, and after a damaged header.
    for shift in 0..128 {
        let body = [&vec![0; shift][..], &forged].concat();
        store.put(0, format!("outer {shift}").as_bytes(), b"meta", &[&body]).unwrap();
    }
    store.close();
    fs::remove_file(other.path().join("index")).unwrap();
    for path in files(other.path(), "segment") {
        change(&path, |bytes| bytes[128 + 20] ^= 1);
    }
    let store = open(&config);
    assert!(store.stats().records > 100);
    assert!((0..12).all(|number| store.find(hash_of(format!("key {number}").as_bytes())).is_empty()));
}

#[test]
fn verify_finds_damaged_records() {
    let (dir, config) = dir_and_config();
    let objects = filled(&config);
    let body = fill_of(10, 90_000);
    change(&files(dir.path(), "object")[0], |bytes| {
        let at = bytes.windows(90_000).position(|window| window == body).unwrap();
        bytes[at + 80_000] ^= 1;
    });
    let store = open(&config);
    let writer = store.reserve(0, b"spliced", b"", Some(5)).unwrap();
    rustix::io::pwrite(&*writer.extent().file, b"bytes", writer.extent().offset).unwrap();
    writer.commit(5).unwrap();
    let verified = store.verify();
    assert_eq!((verified.whole, verified.unhashed, verified.corrupt), (objects.len() as u64 - 1, 1, 1));
    assert_eq!(store.verify().corrupt, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn damaged_bytes_cost_only_the_objects_they_belong_to(
        at in any::<prop::sample::Index>(), bits in 1_u8..255, len in 1_usize..200, without_index in any::<bool>(),
    ) {
        let (dir, config) = dir_and_config();
        let objects = filled(&config);
        let path = files(dir.path(), "segment").remove(0);
        change(&path, |bytes| {
            // After the file header: damage to that costs the whole file.
            let at = 128 + at.index(bytes.len() - 128 - len);
            bytes[at..at + len].iter_mut().for_each(|byte| *byte ^= bits);
        });
        if without_index {
            fs::remove_file(dir.path().join("index")).unwrap();
        }
        let store = open(&config);
        // 200 bytes overlap three records at most.
        prop_assert!(count_right(&store, &objects) + 3 >= objects.len());
        store.put(0, b"after", b"", &[&[1; RECORD_HEADER_BYTES]]).unwrap();
        store.close();
        prop_assert!(count_right(&open(&config), &objects) + 3 >= objects.len());
    }
}

#[test]
fn entries_that_are_no_regular_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    let objects = filled(&config);
    let header = |number| FileHeader { kind: FileKind::Segment, number, tag: 0 };
    let [dangling, directory] =
        [0xffff_0001, 0xffff_0002].map(|number| dir.path().join(name_of(&header(number))));
    std::os::unix::fs::symlink(dir.path().join("nothing"), &dangling).unwrap();
    fs::create_dir(&directory).unwrap();
    let store = open(&config);
    assert_eq!(count_right(&store, &objects), SIZES.len());
    store.close();
    assert!(fs::symlink_metadata(&dangling).is_ok() && directory.is_dir());
}

#[test]
fn links_in_place_of_files_are_not_followed() {
    for name in ["lock", "marks", "index"] {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = open(&config(&dir));
        store.put(0, b"key", b"meta", &[b"body"]).unwrap();
        store.close();
        drop(store);
        let (link, target) = (dir.path().join(name), other.path().join(name));
        fs::rename(&link, &target).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let before = fs::read(&target).unwrap();
        match Store::open(config(&dir)) {
            // The index is made again from the records.
            Ok(store) => {
                assert!(name == "index" && store.wait_loaded(PATIENCE));
                assert_eq!(body_of(&store, b"key").unwrap(), b"body");
            }
            Err(error) => assert!(name != "index" && error.to_string().contains(name), "{error}"),
        }
        assert_eq!(fs::read(&target).unwrap(), before, "{name}");
    }
}
