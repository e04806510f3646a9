//! Power losses: of each page written since the last sync, the disk may have the old or the new
//! version. The same holds for the journal of the index since it was replaced, because it is not
//! synced.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use strait_store::{Config, Error};

use crate::rig::{Object, check_all, config, open};

const PAGE: usize = 4096;

/// Copies all files in `from`.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        // Skips files that the background thread unlinks at this moment.
        let _ = fs::copy(entry.path(), to.join(entry.file_name()));
    }
}

/// Pseudo-random numbers from a seed.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn is_even(&mut self) -> bool {
        self.next().is_multiple_of(2)
    }
}

/// Turns `now` into a possible disk state after a power loss, given the `synced` state and the
/// journal as it was replaced last: pages and lengths are of either state, new files may be
/// missing, and unlinked files may still be there.
fn lose_power(synced: &Path, journal: &[u8], now: &Path, chance: &mut Chance) {
    let names = |dir: &Path| -> Vec<_> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    let all: HashSet<_> = names(synced).into_iter().chain(names(now)).collect();
    for name in all {
        let (old, new) = (fs::read(synced.join(&name)).ok(), fs::read(now.join(&name)).ok());
        let is_record_file = name.to_string_lossy().contains('.');
        let mixed = match (old, new) {
            (_, new) if name == "index" => new.map(|new| mix(journal, &new, chance)),
            // The checkpoint is replaced atomically, after the sync of the files that it covers.
            (old, _) if !is_record_file => old,
            (Some(old), None) => (chance.is_even()).then_some(old),
            (None, Some(new)) => (chance.is_even()).then(|| mix(&[], &new, chance)),
            (Some(old), Some(new)) => Some(mix(&old, &new, chance)),
            (None, None) => None,
        };
        match mixed {
            Some(bytes) => fs::write(now.join(&name), bytes).unwrap(),
            None => drop(fs::remove_file(now.join(&name))),
        }
    }
}

fn mix(old: &[u8], new: &[u8], chance: &mut Chance) -> Vec<u8> {
    let len = if chance.is_even() { new.len() } else { old.len() };
    let page = |from: &[u8], at: usize| {
        let mut page = from.get(at..).unwrap_or(&[]).to_vec();
        page.resize(PAGE, 0);
        page
    };
    // Equal pages stay equal in any mix.
    let pages = (0..len.next_multiple_of(PAGE)).step_by(PAGE);
    let mut bytes: Vec<u8> =
        pages.flat_map(|at| page(if chance.is_even() { new } else { old }, at)).collect();
    bytes.truncate(len);
    bytes
}

fn store_some(store: &strait_store::Store, numbers: std::ops::Range<u64>) -> Vec<u64> {
    let mut stored = Vec::new();
    for number in numbers {
        let object = Object { number, version: 0 };
        match object.store(store, number as usize % 2) {
            Ok(record) => {
                if number.is_multiple_of(3) {
                    store.update(0, &record, &Object { number, version: 1 }.meta()).unwrap();
                }
                stored.push(number);
            }
            Err(Error::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    stored
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn power_loss_leaves_intact_objects_and_all_synced_ones(seed in any::<u64>(), before in 1_u64..40, after in 1_u64..40) {
        let dir = tempfile::tempdir().unwrap();
        let synced_dir = tempfile::tempdir().unwrap();
        let base = Config { sync_every: None, boot_id: Some([1; 16]), ..config(dir.path()) };
        let mut chance = Chance(seed);

        let store = open(base.clone());
        let mut kept = store_some(&store, 1..before);
        store.sync().unwrap();
        let journal = fs::read(dir.path().join("index")).unwrap();
        kept.extend(store_some(&store, 500..500 + before / 2));
        store.sync().unwrap();
        copy(dir.path(), synced_dir.path());
        // Fills continue across the sync, and old objects are removed after it.
        store_some(&store, 1000..1000 + after);
        for record in store.records().iter().filter(|_| chance.next().is_multiple_of(8)) {
            store.remove(record);
        }
        let now = tempfile::tempdir().unwrap();
        copy(dir.path(), now.path());
        let removed: HashSet<u64> = kept.iter().copied()
            .filter(|number| store.find(strait_store::hash_of(&Object { number: *number, version: 0 }.key())).is_empty())
            .collect();
        drop(store);

        lose_power(synced_dir.path(), &journal, now.path(), &mut chance);
        for boot in [2, 2, 3] {
            // Opens the store twice in the next run, and once more after a second power loss.
            let store = open(Config { dir: now.path().into(), boot_id: Some([boot; 16]), ..base.clone() });
            let there = check_all(&store);
            for number in kept.iter().filter(|number| !removed.contains(number)) {
                prop_assert!(there.contains_key(number), "{} was synced", number);
            }
            let killed = tempfile::tempdir().unwrap();
            copy(now.path(), killed.path());
            drop(store);
            for entry in fs::read_dir(now.path()).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
            copy(killed.path(), now.path());
        }
    }
}
