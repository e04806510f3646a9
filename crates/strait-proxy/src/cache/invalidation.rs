//! Invalidation: the one order in which the cache removes the objects of a key. PURGE, bans, unsafe
//! methods (RFC 9111, section 4.4) and failed validations use it.
//!
//! Fills, validations and reads from the store put objects into the cache. One that began before
//! the invalidation must not put a removed object back. Hence the order:
//!
//! 1. Fills. An invalidated fill publishes nothing. A publication under way is awaited, so that the
//!    next steps remove its object.
//! 2. Generations. An object that was fetched or read before this step does not get into the memory
//!    cache after it. The memory cache checks the generation under its lock, so that an insertion
//!    either is refused or precedes step 3.
//! 3. Memory cache.
//! 4. Generations again. A validation of an object that memory alone holds takes a new generation,
//!    and can have found the object between steps 2 and 3.
//! 5. Store. A validation can replace a record between its listing and its removal. It inserts the
//!    new record before the old one ends. Hence the records of a key are listed again until no
//!    listed one was removed or had ended ([`disk::remove`]). A removed record cannot be replaced.
//! 6. Memory cache again. A read can have inserted an object of the store between steps 4 and 5.
//!    The object answers no request, because every lookup checks that its records are alive, but it
//!    would use memory. After step 5 the same check refuses the insertion.
//!
//! A tag is that of responses, not of keys. Its keys are collected from memory and store, and then
//! invalidated one by one. Before that, the fills with the tag are invalidated, and those without a
//! head, whose tags are unknown: each object of a fill is then either collected or not stored. The
//! generations of all keys end, because the key of a fill that no other request follows is not
//! listed, and may be in no cache yet; such a fill is not kept in memory, whatever its tags. The
//! same holds for parts that are requested later with the fields of a removed head.
//!
//! A soft purge ([`Effect::Expire`]) marks objects as stale instead. It takes the same steps, so
//! that no object without a mark gets into the cache after it. Objects of memory alone come back
//! with their mark after step 4, under a new generation. In step 5 each record is replaced by one
//! with the mark, which is on disk as soon as the removal would be.
//!
//! In an upgrade, the process that takes over the store learns of each removal at its end: see
//! [`crate::cache::removals`].
//!
//! The fills come before the store, so that no record is published after step 5, and the
//! generations before the memory cache, so that no object that memory alone holds is inserted after
//! step 3.

use std::sync::Arc;

use strait_http::fields::Fields;
use strait_store::{Stores, hash_of};

use crate::cache::disk;
use crate::cache::fills::Fills;
use crate::cache::generation::Generations;
use crate::cache::memory::MemoryCache;
use crate::cache::object::{Object, Rivals};
use crate::cache::pattern::Pattern;
use crate::cache::removals::ALL;
use crate::cache::tag::Tag;
use crate::cache::worker::{Local, Shared};

/// Keys that are invalidated.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keys<'a> {
    /// One key and its hash.
    One(u64, &'a str),
    /// All keys that match.
    Matching(&'a Pattern),
}

/// Effect of a purge on the objects of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Remove,
    /// They are stale from now on: a soft purge.
    Expire,
}

/// Numbers of removed objects, or of those marked as stale.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Removed {
    pub(crate) in_memory: usize,
    pub(crate) stored: usize,
}

impl std::iter::Sum for Removed {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            in_memory: sum.in_memory + one.in_memory,
            stored: sum.stored + one.stored,
        })
    }
}

impl<'a> Keys<'a> {
    /// Returns one key.
    pub(crate) fn of_uri(uri: &'a str) -> Self {
        Self::One(hash_of(uri.as_bytes()), uri)
    }

    fn invalidate_fills(self, fills: &Fills) {
        match self {
            Self::One(hash, key) => fills.invalidate(hash, key),
            Self::Matching(pattern) => fills.invalidate_matching(|key| pattern.matches(key)),
        }
    }

    fn end(self, generations: &Generations) {
        match self {
            Self::One(hash, _) => generations.end(hash),
            Self::Matching(pattern) => generations.end_matching(pattern),
        }
    }

    /// Removes the objects of these keys for which `is_match` returns true.
    fn remove_from_memory(self, memory: &MemoryCache, is_match: impl Fn(&Object) -> bool) -> usize {
        match self {
            Self::One(hash, key) => memory.remove(hash, |object| object.is_for(key) && is_match(object)),
            Self::Matching(pattern) => {
                memory.remove_matching(|object| pattern.matches(&object.key) && is_match(object))
            }
        }
    }

    /// Removes all records of these keys; returns their number.
    pub(crate) fn remove_from(self, store: &Stores) -> usize {
        match self {
            Self::One(hash, key) => disk::remove(store, hash, key),
            Self::Matching(pattern) => disk::remove_matching(store, |key| pattern.matches(key)),
        }
    }
}

impl Shared {
    /// Removes all objects of these keys from the cache, in the order of this module.
    pub(crate) fn invalidate(&self, keys: Keys<'_>) -> Removed {
        keys.invalidate_fills(&self.fills);
        keys.end(&self.generations);
        let in_memory = keys.remove_from_memory(&self.memory, |_| true);
        keys.end(&self.generations);
        let stored = self.store.as_ref().map_or(0, |store| keys.remove_from(store));
        if self.store.is_some() {
            keys.remove_from_memory(&self.memory, |object| !object.is_alive());
        }
        self.heir.send(|| match keys {
            Keys::One(_, key) => text(b'k', key),
            Keys::Matching(pattern) => text(b'm', pattern.as_str()),
        });
        Removed { in_memory, stored }
    }

    /// Empties the cache of this process for the rest of its life, because another process has
    /// taken over the store, and does not report its removals. The files stay.
    pub(crate) fn retire(&self) {
        self.fills.stop_sharing();
        self.generations.end_all();
        self.memory.limit(0);
        self.memory.remove_matching(|_| true);
        if let Some(store) = &self.store {
            store.forget();
        }
    }

    /// Purges all objects of a key.
    pub(crate) fn purge(&self, key: &str, effect: Effect) -> Removed {
        match effect {
            Effect::Remove => self.invalidate(Keys::of_uri(key)),
            Effect::Expire => self.expire(hash_of(key.as_bytes()), key),
        }
    }

    /// Marks all objects of a key as stale, in the order of this module.
    fn expire(&self, hash: u64, key: &str) -> Removed {
        let (keys, now) = (Keys::One(hash, key), self.clock.now());
        keys.invalidate_fills(&self.fills);
        keys.end(&self.generations);
        let alone = self.memory.all(hash, |object| object.is_for(key) && !object.is_stored());
        let in_memory = keys.remove_from_memory(&self.memory, |_| true);
        keys.end(&self.generations);
        for object in alone {
            let generation = self.generations.take(hash);
            let Some(object) = object.expired(now, generation.clone()) else { continue };
            let object = (Arc::new(object), Rivals::new());
            self.memory.insert(hash, object, &[], || generation.holds(key));
        }
        let stored = self.store.as_ref().map_or(0, |store| disk::expire(store, hash, key, now));
        if self.store.is_some() {
            keys.remove_from_memory(&self.memory, |object| !object.is_alive());
        }
        self.heir.send(|| text(b'e', key));
        Removed { in_memory, stored }
    }

    /// Purges all objects of the keys of responses with one of these tags.
    pub(crate) fn purge_tags(&self, tags: &[Tag], effect: Effect) -> Removed {
        let has_any = |fields: &Fields<'_>| tags.iter().any(|tag| tag.is_in(fields));
        let has_tag = |object: &Object| has_any(&object.fields());
        self.fills.invalidate_some(|fill| fill.object_now().is_none_or(|object| has_tag(&object)));
        self.generations.end_all();
        let mut keys = self.memory.keys(has_tag);
        keys.extend(self.store.iter().flat_map(|store| disk::keys(store, has_any)));
        keys.sort_unstable();
        keys.dedup();
        let removed = keys.iter().map(|key| self.purge(key, effect)).sum();
        self.heir.send(|| {
            let letter = if effect == Effect::Expire { b'u' } else { b't' };
            text(letter, &tags.iter().map(Tag::as_str).collect::<Vec<_>>().join(" "))
        });
        removed
    }

    /// Carries out a removal of the process that this one replaces, from its text. An unknown text
    /// removes everything: it comes from another version.
    pub(crate) fn carry_out(&self, text: &[u8]) {
        if self.carry_out_known(text).is_none() && text != ALL {
            self.carry_out(ALL);
        }
    }

    fn carry_out_known(&self, text: &[u8]) -> Option<()> {
        let (letter, rest) = text.split_first()?;
        let rest = std::str::from_utf8(rest).ok()?;
        let tags = || rest.split(' ').map(|tag| Tag::new(tag).ok()).collect::<Option<Vec<_>>>();
        match letter {
            b'k' => drop(self.purge(rest, Effect::Remove)),
            b'e' => drop(self.purge(rest, Effect::Expire)),
            b't' => drop(self.purge_tags(&tags()?, Effect::Remove)),
            b'u' => drop(self.purge_tags(&tags()?, Effect::Expire)),
            b'm' => drop(self.invalidate(Keys::Matching(&Pattern::new(rest).ok()?))),
            _ => return None,
        }
        Some(())
    }
}

/// Returns the text of a removal for another process: a letter, and the key, the pattern or the
/// tags.
fn text(letter: u8, subject: &str) -> Vec<u8> {
    [&[letter], subject.as_bytes()].concat()
}

impl Local {
    /// Removes all objects for a key from the store and from memory; returns their number.
    pub(crate) fn forget(&self, hash: u64, key: &str) -> usize {
        let removed = self.shared.invalidate(Keys::One(hash, key));
        // Most objects in memory are in the store as well.
        removed.stored.max(removed.in_memory)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use strait_http::lifetimes::Lifetimes;

    use super::*;
    use crate::cache::forms::Forms;
    use crate::cache::meta::Meta;
    use crate::cache::worker::{Worker, descriptors};
    use crate::config::file::Config;
    use crate::config::settings::Settings;
    use crate::io::clock::Clock;
    use crate::io::gate::Gates;
    use crate::observe::counters::Counters;

    const KEY: &str = "http://a/";

    fn shared(store: &Arc<Stores>, settings: &Settings) -> Arc<Shared> {
        Arc::new(Shared {
            clock: Clock::fixed(1000),
            store: Some(store.clone()),
            fills: Fills::default(),
            memory: MemoryCache::new(settings.memory, settings.memory_object),
            generations: <_>::default(),
            scans: <_>::default(),
            compressor: <_>::default(),
            gates: Arc::new(Gates::new(settings.gates)),
            background: <_>::default(),
            descriptors: descriptors(),
            counters: [Counters::default()].into(),
            origin_http2_abuses: <_>::default(),
            log_lost: <_>::default(),
            refusals: <_>::default(),
            spans: <_>::default(),
            heir: <_>::default(),
            failed_upgrades: <_>::default(),
            failed_reloads: <_>::default(),
        })
    }

    fn put(store: &Stores) {
        let head = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n\r\n";
        let meta = Meta {
            requested: 1,
            received: 1,
            age: 0,
            expired: None,
            forms: Forms::default(),
            lifetimes: Lifetimes::default(),
            first: 0,
            length: Some(1),
            variant: "",
            head,
        };
        store.put(0, KEY.as_bytes(), &meta.encode(), &[b"x"]).unwrap();
    }

    fn store(dir: &tempfile::TempDir) -> Arc<Stores> {
        let config = strait_store::Config {
            capacity_bytes: 64 << 20,
            segment_bytes: Some(1 << 20),
            ..strait_store::Config::new(dir.path())
        };
        Stores::of(strait_store::Store::open(config).unwrap())
    }

    #[test]
    fn read_during_a_soft_purge_leaves_nothing_fresh() {
        const ROUNDS: usize = 1_000;
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let settings = Arc::new(Settings::new(&Config::from_toml("").unwrap()).unwrap());
        let (shared, hash) = (shared(&store, &settings), hash_of(KEY.as_bytes()));
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let worker = Worker::new(shared.clone(), settings.clone(), <_>::default(), 0);
                for _ in 0..ROUNDS {
                    start.wait();
                    drop(worker.find(hash, KEY, &Fields::default()));
                    start.wait();
                    let found = worker.find(hash, KEY, &Fields::default()).unwrap();
                    assert!(!found.times.is_fresh(2) && found.times.expired == Some(1000));
                    start.wait();
                }
            });
            for _ in 0..ROUNDS {
                put(&store);
                start.wait();
                assert_eq!(shared.purge(KEY, Effect::Expire).stored, 1);
                start.wait();
                start.wait();
                // Nothing is left to mark.
                assert_eq!(shared.purge(KEY, Effect::Expire).stored, 0);
                assert_eq!(shared.purge(KEY, Effect::Remove).stored, 1);
            }
        });
        store.close();
    }

    #[test]
    fn removals_of_another_process_are_carried_out() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let settings = Settings::new(&Config::from_toml("").unwrap()).unwrap();
        let (shared, hash) = (shared(&store, &settings), hash_of(KEY.as_bytes()));
        let is_left = |text: &str| {
            put(&store);
            shared.carry_out(text.as_bytes());
            let left = !store.find(hash).is_empty();
            shared.invalidate(Keys::of_uri(KEY));
            left
        };
        for text in ["khttp://a/", "mhttp://a/*", "m*", "", "xhttp://a/", "t\u{e9}", "m"] {
            assert!(!is_left(text), "{text:?}");
        }
        for text in ["khttp://b/", "ehttp://a/", "mhttp://b/*", "tx y", "ux"] {
            assert!(is_left(text), "{text:?}");
        }
        store.close();
    }

    #[test]
    fn read_during_an_invalidation_leaves_nothing_in_memory() {
        const ROUNDS: usize = 2_000;
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let settings = Arc::new(Settings::new(&Config::from_toml("").unwrap()).unwrap());
        let (shared, keys) = (shared(&store, &settings), Keys::of_uri(KEY));
        let Keys::One(hash, _) = keys else { unreachable!() };
        let start = Barrier::new(2);
        let (mut removed, mut left) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let worker = Worker::new(shared.clone(), settings.clone(), <_>::default(), 0);
                for _ in 0..ROUNDS {
                    start.wait();
                    drop(worker.find(hash, KEY, &Fields::default()));
                    start.wait();
                }
            });
            for _ in 0..ROUNDS {
                put(&store);
                start.wait();
                removed += shared.invalidate(keys).stored;
                start.wait();
                left += shared.memory.all(hash, |_| true).len() + store.find(hash).len();
            }
        });
        assert_eq!((removed, left), (ROUNDS, 0));
        store.close();
    }
}
