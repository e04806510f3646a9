//! Self-checking objects, and a store for them.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::{pread, pwrite};
use rustix::pipe::{SpliceFlags, splice};
use strait_store::{Config, Error, Extent, NewObject, Record, Scrub, Store, hash_of};

/// Deadline of every wait.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A small store, so that segments are sealed and files evicted often. Its scrub runs all the time,
/// and writes the headers of all records with bodies that came in pieces.
pub(crate) fn config(dir: &Path) -> Config {
    Config {
        capacity_bytes: 24 << 20,
        segment_bytes: Some(512 << 10),
        lanes: 2,
        sync_every: Some(Duration::from_millis(20)),
        scrub: Some(Scrub { bytes_per_second: u64::MAX, every: Duration::from_millis(50) }),
        ..Config::new(dir)
    }
}

pub(crate) fn open(config: Config) -> Arc<Store> {
    let store = Store::open(config).unwrap();
    assert!(store.wait_loaded(PATIENCE));
    store
}

/// The object of a number. Its meta has its version, and its body follows from its number.
pub(crate) struct Object {
    pub(crate) number: u64,
    pub(crate) version: u64,
}

impl Object {
    pub(crate) fn key(&self) -> Vec<u8> {
        format!("object {}", self.number).into_bytes()
    }

    pub(crate) fn meta(&self) -> Vec<u8> {
        format!("{} {} {}", self.number, self.version, "m".repeat(self.number as usize % 900)).into_bytes()
    }

    /// Length of the body: mostly short or long, sometimes long enough for a file of its own.
    pub(crate) fn len(&self) -> usize {
        match self.number % 16 {
            0 => 0,
            1..=8 => (self.number as usize * 37) % 9000,
            9..=13 => 16_384 + (self.number as usize * 101) % 40_000,
            14 => 70_000 + self.number as usize % 5000,
            _ => 150_000 + (self.number as usize * 1009) % 300_000,
        }
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        let word =
            |at: usize| (self.number << 32 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        (0..self.len().div_ceil(8)).flat_map(word).take(self.len()).collect()
    }

    fn is_put(&self) -> bool {
        self.len() < 60_000 && !self.number.is_multiple_of(5)
    }

    /// Returns true if a fill knows the length of the body.
    fn is_known(&self) -> bool {
        !self.number.is_multiple_of(3)
    }

    /// Way of writing a reserved body.
    fn way(&self) -> Way {
        match self.number / 3 % 3 {
            0 => Way::Copy,
            1 => Way::CopyWithHash,
            _ => Way::Splice,
        }
    }

    /// Stores the object by `put` or by `reserve`; long bodies are written in steps, as in a fill.
    pub(crate) fn store(&self, store: &Store, lane: usize) -> Result<Arc<Record>, Error> {
        let body = self.body();
        if self.is_put() {
            return store.put(lane, &self.key(), &self.meta(), &[&body]);
        }
        let known = self.is_known().then_some(body.len() as u64);
        let mut writer = store.reserve(lane, &self.key(), &self.meta(), known)?;
        let extent = writer.extent();
        for (step, bytes) in body.chunks(50_000).enumerate() {
            let at = step as u64 * 50_000;
            writer.grow(at + bytes.len() as u64)?;
            let written = match self.way() {
                Way::Splice => splice_through(bytes, &extent, at),
                Way::Copy | Way::CopyWithHash => pwrite(&*extent.file, bytes, extent.offset + at).unwrap(),
            };
            assert_eq!(written, bytes.len());
            if self.way() == Way::CopyWithHash {
                writer.hash(at, bytes);
            }
        }
        writer.commit(body.len() as u64)
    }
}

/// Stores those of the objects that are put with one call; returns the results by number.
pub(crate) fn store_together(
    store: &Store,
    lane: usize,
    numbers: Range<u64>,
) -> HashMap<u64, Result<Arc<Record>, Error>> {
    let objects = numbers.map(|number| Object { number, version: 0 }).filter(Object::is_put);
    let parts: Vec<_> = objects.map(|it| (it.number, it.key(), it.meta(), it.body())).collect();
    let all: Vec<_> = parts.iter().map(|(_, key, meta, body)| NewObject { key, meta, body }).collect();
    parts.iter().map(|(number, ..)| *number).zip(store.put_all(lane, &all)).collect()
}

/// Ways of writing a body, as the fills of a proxy do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Copy,
    CopyWithHash,
    Splice,
}

/// Moves bytes through a pipe to an offset in an extent; returns their number.
fn splice_through(bytes: &[u8], extent: &Extent, at: u64) -> usize {
    let (from, into) = rustix::pipe::pipe().unwrap();
    // They are fewer than a pipe holds.
    assert_eq!(rustix::io::write(&into, bytes).unwrap(), bytes.len());
    drop(into);
    let (mut offset, mut left) = (extent.offset + at, bytes.len());
    while left > 0 {
        let moved = splice(&from, None, &*extent.file, Some(&mut offset), left, SpliceFlags::MOVE).unwrap();
        assert_ne!(moved, 0);
        left -= moved;
    }
    bytes.len()
}

/// Returns true if the object of a number is stored without a hash. A short body of unknown length
/// gets one when it is copied to a segment.
pub(crate) fn is_hashed_by_scrub(number: u64) -> bool {
    let object = Object { number, version: 0 };
    !object.is_put() && object.is_known() && object.way() != Way::CopyWithHash
}

/// Reads a record and compares all its bytes with those expected from its key and meta. Returns its
/// number and version; `None` if it was removed after the journal of the index was last written, or
/// is evicted meanwhile.
pub(crate) fn check(store: &Store, record: &Arc<Record>) -> Option<(u64, u64)> {
    let loaded = match store.load(record, 1 << 20) {
        Err(Error::Removed { .. }) if !record.is_alive() => return None,
        loaded => loaded.unwrap(),
    };
    let meta = String::from_utf8(loaded.meta().to_vec()).unwrap();
    let mut words = meta.split(' ').map(|word| word.parse().unwrap_or(0));
    let object = Object { number: words.next().unwrap(), version: words.next().unwrap() };
    assert_eq!(meta.as_bytes(), object.meta());
    assert_eq!(loaded.key(), object.key());
    assert_eq!(record.hash, hash_of(&object.key()));
    assert_eq!(record.body_len(), object.len() as u64);
    let Some(extent) = record.body() else {
        // Eviction can take it after it was loaded.
        assert!(!record.is_alive());
        return None;
    };
    let mut body = vec![0; object.len()];
    assert_eq!(pread(&*extent.file, &mut body, extent.offset).unwrap_or(0), body.len(), "{meta}");
    assert!(body == object.body(), "the body of {} is right", object.number);
    assert!(loaded.body().is_none_or(|read| read == body));
    Some((object.number, object.version))
}

/// Checks all records, by their contents and by their hashes. Returns the versions of each number,
/// newest first.
pub(crate) fn check_all(store: &Store) -> HashMap<u64, Vec<u64>> {
    let verified = store.verify();
    assert_eq!((verified.corrupt, verified.unreadable), (0, 0));
    let mut versions = HashMap::<u64, Vec<u64>>::new();
    for record in store.records() {
        let Some((number, version)) = check(store, &record) else { continue };
        versions.entry(number).or_default().push(version);
    }
    versions
}
