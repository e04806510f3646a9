//! Compares the store with a map in memory under random sequences of operations. Without eviction
//! both hold the same objects. The scrub runs all the time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rustix::io::pwrite;
use tempfile::TempDir;

use super::{config, fill_of, killed, open};
use crate::eviction;
use crate::format::PAGED_FROM_BYTES;
use crate::policy::Area;
use crate::{Config, Error, Record, Scrub, Store, hash_of};

/// An operation on one of a few keys.
#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u8,
        size: usize,
    },
    Reserve {
        key: u8,
        size: usize,
        is_known: bool,
    },
    Abandon {
        key: u8,
        size: usize,
    },
    Update {
        key: u8,
    },
    Remove {
        key: u8,
    },
    Touch {
        key: u8,
    },
    Reopen,
    Sync,
    /// The process is killed, and the journal of the index lost from this part on.
    Kill {
        kept: u8,
    },
    Evict,
}

fn step() -> impl Strategy<Value = Step> {
    let size = || prop_oneof![Just(0_usize), 1..300_usize, 15_000..17_000_usize, 60_000..150_000_usize];
    let key = || 0_u8..6;
    prop_oneof![
        4 => (key(), size()).prop_map(|(key, size)| Step::Put { key, size }),
        3 => (key(), size(), any::<bool>()).prop_map(|(key, size, is_known)| Step::Reserve { key, size, is_known }),
        1 => (key(), size()).prop_map(|(key, size)| Step::Abandon { key, size }),
        3 => key().prop_map(|key| Step::Update { key }),
        1 => key().prop_map(|key| Step::Remove { key }),
        1 => key().prop_map(|key| Step::Touch { key }),
        1 => Just(Step::Reopen),
        2 => Just(Step::Sync),
        1 => prop_oneof![Just(u8::MAX), any::<u8>()].prop_map(|kept| Step::Kill { kept }),
        1 => Just(Step::Evict),
    ]
}

/// Meta and body of each key.
type Model = HashMap<u8, (Vec<u8>, Vec<u8>)>;

struct Pair {
    config: Config,
    store: Arc<Store>,
    model: Model,
    count: u64,
    /// Directories after kills.
    dirs: Vec<TempDir>,
}

impl Pair {
    fn record(&self, key: u8) -> Option<Arc<Record>> {
        self.store.find(hash_of(&[key])).into_iter().next()
    }

    /// Removes the old records of the key, as a caller does once the new one is stored.
    fn replace(&mut self, key: u8, new: &Arc<Record>, meta: Vec<u8>, body: Vec<u8>) {
        for old in self.store.find(new.hash) {
            if !Arc::ptr_eq(&old, new) {
                self.store.remove(&old);
            }
        }
        self.model.insert(key, (meta, body));
    }

    fn take(&mut self, step: &Step) {
        self.count += 1;
        let meta = fill_of(self.count + 1000, 20);
        match *step {
            Step::Put { key, size } => {
                let body = fill_of(self.count, size);
                let (left, right) = body.split_at(size / 3);
                let record = self.store.put(0, &[key], &meta, &[left, right]).unwrap();
                self.replace(key, &record, meta, body);
            }
            Step::Reserve { key, size, is_known } => {
                let body = fill_of(self.count, size);
                let writer = self.written(key, &meta, &body, is_known);
                let record = writer.commit(size as u64).unwrap();
                self.replace(key, &record, meta, body);
            }
            Step::Abandon { key, size } => drop(self.written(key, &meta, &fill_of(self.count, size), true)),
            Step::Update { key } => {
                let Some(old) = self.record(key) else { return };
                let new = self.store.update(0, &old, &meta).unwrap();
                assert!(!old.is_alive() && new.is_alive());
                self.model.get_mut(&key).unwrap().0 = meta;
            }
            Step::Remove { key } => {
                self.record(key).iter().for_each(|record| self.store.remove(record));
                self.model.remove(&key);
            }
            Step::Touch { key } => self.record(key).iter().for_each(|record| record.touch()),
            Step::Reopen => {
                self.store.close();
                self.store = open(&self.config);
            }
            Step::Sync => self.store.sync().unwrap(),
            Step::Kill { kept } => self.kill(kept),
            Step::Evict => self.evict(),
        }
    }

    /// Continues with the files that a killed process would leave.
    fn kill(&mut self, kept: u8) {
        let dir = killed(&self.config.dir);
        let index = dir.path().join("index");
        if let Ok(bytes) = std::fs::read(&index) {
            std::fs::write(index, &bytes[..bytes.len() * usize::from(kept) / usize::from(u8::MAX)]).unwrap();
        }
        self.config.dir = dir.path().into();
        self.store = open(&self.config);
        self.dirs.push(dir);
        // Records that ended after the last cut of the journal are dropped when they are loaded.
        for record in self.store.records() {
            let loaded = self.store.load(&record, usize::MAX);
            assert!(loaded.is_ok() || matches!(loaded, Err(Error::Removed { .. })), "{loaded:?}");
        }
    }

    fn written(&self, key: u8, meta: &[u8], body: &[u8], is_known: bool) -> crate::Writer {
        let len = body.len() as u64;
        let mut writer = self.store.reserve(0, &[key], meta, is_known.then_some(len)).unwrap();
        writer.grow(len).unwrap();
        let extent = writer.extent();
        assert!(
            (body.len() as u64) < PAGED_FROM_BYTES || extent.offset.is_multiple_of(4096),
            "long bodies begin on a page"
        );
        assert_eq!(pwrite(&*extent.file, body, extent.offset).unwrap(), body.len());
        writer
    }

    /// Evicts the oldest file, as if space was short. The objects that the policy admits must
    /// stay if they fit, others may be gone.
    fn evict(&mut self) {
        let next = self.store.shared.segments.queued().into_iter().next();
        let is_admitted = |record: &Arc<Record>| {
            let candidate = eviction::candidate(record, &record.location().unwrap());
            self.store.shared.popularity.policy().admits(Area::Main, &candidate)
        };
        let admitted: Vec<u8> =
            (0..6).filter(|key| self.record(*key).as_ref().is_some_and(is_admitted)).collect();
        let Some(file) = next.filter(|file| !file.is_own()) else { return };
        eviction::evict(&self.store.shared, Area::Main, &file);
        let gone: Vec<u8> = (0..6).filter(|key| self.record(*key).is_none()).collect();
        let half = self.store.shared.segments.segment_bytes / 2;
        let admitted_bytes: usize =
            admitted.iter().filter_map(|key| self.model.get(key)).map(|(_, body)| body.len()).sum();
        for key in gone {
            assert!(!admitted.contains(&key) || admitted_bytes as u64 > half, "{key} is gone");
            self.model.remove(&key);
        }
    }

    fn check(&self) {
        for key in 0..6 {
            let found = self.store.find(hash_of(&[key]));
            let Some((meta, body)) = self.model.get(&key) else {
                assert!(found.is_empty(), "{key} was removed");
                continue;
            };
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].body_len(), body.len() as u64);
            let loaded = self.store.load(&found[0], usize::MAX).unwrap();
            assert_eq!((loaded.key(), loaded.meta()), (&[key][..], &meta[..]));
            let extent = found[0].body().unwrap();
            let mut bytes = vec![0; body.len()];
            assert_eq!(rustix::io::pread(&*extent.file, &mut bytes, extent.offset).unwrap(), body.len());
            assert!(bytes == *body && loaded.body().is_none_or(|read| read == body));
        }
        assert_eq!(self.store.stats().records, self.model.len() as u64);
        assert_eq!(self.store.records().len(), self.model.len());
        assert_eq!(self.store.stats().corrupt, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]
    #[test]
    fn store_matches_a_map(steps in prop::collection::vec(step(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            capacity_bytes: 32 << 20,
            segment_bytes: Some(512 << 10),
            scrub: Some(Scrub { bytes_per_second: u64::MAX, every: Duration::from_millis(1) }),
            ..config(&dir)
        };
        let mut pair = Pair { store: open(&config), config, model: Model::new(), count: 0, dirs: Vec::new() };
        for step in &steps {
            pair.take(step);
            pair.check();
        }
    }
}
