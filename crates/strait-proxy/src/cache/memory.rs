//! The memory cache of all workers: objects whose heads are read already, and small bodies. Its
//! shards are locked for a lookup or an insertion, never for I/O.
//!
//! Room is made in the order of arrival; what was asked for since it came, or since its last turn,
//! gets another turn.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::Serialize;
use smallvec::SmallVec;
use strait_http::fields::Fields;
use strait_http::vary::says;

use crate::cache::hash::IdentityHasher;
use crate::cache::object::{Body, Object, RECORDS_MAX, Rivals};

/// Shards at most.
const SHARDS_MAX: usize = 16;
/// Bodies of the largest size that a shard has room for at least.
const BODIES_PER_SHARD_MIN: usize = 8;
/// Objects that are looked at at a time.
const SWEPT: usize = 4096;
/// Entries of removed objects that a shard's queue may hold beside as many as there are objects;
/// each is as large as a slot, for the object itself is freed at once.
const REMOVED_MAX: usize = 64;

/// An object in the memory cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryEntry {
    /// The URI that it is kept for.
    pub uri: String,
    /// Bytes of its body.
    pub bytes: u64,
    /// How often it was asked for.
    pub hits: u64,
    /// Whether its body is in memory.
    pub in_memory: bool,
}

/// The memory cache, shared by all workers.
#[derive(Debug)]
pub(crate) struct MemoryCache(Box<[Mutex<Shard>]>);

impl MemoryCache {
    /// Of so many bytes at most, for bodies of up to `body_max` bytes.
    pub(crate) fn new(bytes_max: usize, body_max: usize) -> Self {
        let fitting = bytes_max / BODIES_PER_SHARD_MIN.saturating_mul(body_max.max(1));
        let shards = SHARDS_MAX.min(fitting.max(1));
        Self((0..shards).map(|_| Mutex::new(Shard::new(bytes_max / shards))).collect())
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // A table takes its places from the lowest and the highest bits.
        Self::lock(&self.0[(hash >> 32) as usize % self.0.len()])
    }

    fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how many bytes there may be.
    pub(crate) fn limit(&self, bytes_max: usize) {
        self.0.iter().for_each(|shard| Self::lock(shard).limit(bytes_max / self.0.len()));
    }

    /// The objects that were asked for most often, `most` of them.
    pub(crate) fn hottest(&self, most: usize) -> Vec<MemoryEntry> {
        let mut all: Vec<_> = self.0.iter().flat_map(|shard| Self::lock(shard).hottest(most)).collect();
        all.sort_by_key(|object| Reverse(object.hits));
        all.truncate(most);
        all
    }

    /// Removes the objects that are meant; returns their number.
    pub(crate) fn forget(&self, is_meant: impl Fn(&Object) -> bool) -> usize {
        self.0.iter().map(|shard| Self::lock(shard).forget(&is_meant)).sum()
    }

    /// The object of the highest rank of that hash that is wanted, counted as a hit. `None` also
    /// where the store has one of a higher rank for a request with these fields.
    pub(crate) fn find(
        &self,
        hash: u64,
        asked: &Fields<'_>,
        is_wanted: impl Fn(&Object) -> bool,
    ) -> Option<Arc<Object>> {
        self.shard(hash).find(hash, asked, is_wanted).cloned()
    }

    /// The objects of that hash that are meant, without a hit.
    pub(crate) fn all(&self, hash: u64, is_meant: impl Fn(&Object) -> bool) -> Vec<Arc<Object>> {
        self.shard(hash).all(hash, is_meant)
    }

    /// Like [`find`](Self::find), without a hit.
    pub(crate) fn peek(&self, hash: u64, is_meant: impl Fn(&Object) -> bool) -> Option<Arc<Object>> {
        self.shard(hash).peek(hash, is_meant).cloned()
    }

    /// Adds an object that was found in the store, with one hit, in place of one that answers the
    /// same requests; not one that `is_current` rejects. That is asked under the lock: an
    /// invalidation outdates first and removes then, so that it meets every insertion.
    pub(crate) fn insert(
        &self,
        hash: u64,
        (object, rivals): (Arc<Object>, Rivals),
        keys: &[String],
        is_current: impl Fn() -> bool,
    ) {
        let mut shard = self.shard(hash);
        if is_current() {
            shard.insert(hash, object, rivals, 1, keys);
        }
    }

    /// Notes an object that has just come, in place of what answered the same requests, unless that
    /// is more recent or `is_current` rejects the object. It is added if an older one was here,
    /// or if nothing else has it. Objects that yield to it are removed: to be here again they
    /// are compared with what the store has.
    pub(crate) fn replace(
        &self,
        hash: u64,
        (object, rivals): (&Arc<Object>, Rivals),
        keys: &[String],
        is_current: impl Fn() -> bool,
    ) {
        let mut shard = self.shard(hash);
        if shard.peek(hash, |other| other.outranks(object)).is_some() {
            return;
        }
        let was_here = shard.remove(hash, |other| other.is_for_same(object)) > 0;
        if object.is_stored() {
            shard.remove(hash, |other| other.yields_to(object));
        }
        // Parts are put together when they are looked for.
        if object.is_whole() && (was_here || !object.is_stored()) && is_current() {
            shard.insert(hash, object.clone(), rivals, 0, keys);
        }
    }

    /// Removes the objects of a hash that are meant; returns their number.
    pub(crate) fn remove(&self, hash: u64, is_meant: impl Fn(&Object) -> bool) -> usize {
        self.shard(hash).remove(hash, is_meant)
    }

    /// Drops dead objects, some at a time: nothing will ask for them.
    pub(crate) fn tidy(&self) {
        self.0.iter().for_each(|shard| Self::lock(shard).tidy());
    }
}

/// The objects of one part of all hashes, under one lock.
#[derive(Debug, Default)]
struct Shard {
    /// Lookups that found something.
    found: AtomicU64,
    by_hash: HashMap<u64, SmallVec<[Arc<Slot>; 1]>, BuildHasherDefault<IdentityHasher>>,
    /// In order of arrival; some are gone from the map already, and freed with all that they hold.
    queue: VecDeque<Weak<Slot>>,
    /// How many are not.
    count: usize,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Slot {
    hash: u64,
    object: Arc<Object>,
    rivals: Rivals,
    was_asked_for: AtomicBool,
    /// The lookup that found it last.
    used: AtomicU64,
    /// How often it was.
    hits: AtomicU64,
}

impl Shard {
    /// Of so many bytes at most.
    fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Sets how many bytes there may be.
    fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.make_room();
    }

    /// Those that were asked for most often.
    fn hottest(&self, most: usize) -> Vec<MemoryEntry> {
        let mut slots: Vec<_> =
            self.by_hash.values().flatten().filter(|slot| slot.hits.load(Ordering::Relaxed) > 0).collect();
        let by_hits = |slot: &&Arc<Slot>| Reverse(slot.hits.load(Ordering::Relaxed));
        if slots.len() > most {
            slots.select_nth_unstable_by_key(most, by_hits);
            slots.truncate(most);
        }
        slots.sort_by_key(by_hits);
        let tell = |slot: &Arc<Slot>| MemoryEntry {
            uri: slot.object.key.to_string(),
            bytes: slot.object.length.unwrap_or(0),
            hits: slot.hits.load(Ordering::Relaxed),
            in_memory: matches!(slot.object.body, Body::Memory(..)),
        };
        slots.into_iter().map(tell).collect()
    }

    /// Removes those that are meant; how many that were.
    fn forget(&mut self, is_meant: impl Fn(&Object) -> bool) -> usize {
        let slots = self.by_hash.values().flatten();
        let meant: Vec<_> = slots.filter(|slot| is_meant(&slot.object)).cloned().collect();
        for slot in &meant {
            self.remove(slot.hash, |object| std::ptr::eq(object, Arc::as_ptr(&slot.object)));
        }
        meant.len()
    }

    /// The object of the highest rank of that hash that is wanted, unless a rival answers such a
    /// request.
    fn find(
        &self,
        hash: u64,
        asked: &Fields<'_>,
        is_wanted: impl Fn(&Object) -> bool,
    ) -> Option<&Arc<Object>> {
        let wanted = self.by_hash.get(&hash)?.iter().filter(|slot| is_wanted(&slot.object));
        let slot = wanted.max_by_key(|slot| slot.object.rank())?;
        if slot.rivals.iter().any(|rival| says(asked, rival)) {
            return None;
        }
        slot.was_asked_for.store(true, Ordering::Relaxed);
        slot.used.store(self.found.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        slot.hits.fetch_add(1, Ordering::Relaxed);
        Some(&slot.object)
    }

    /// The newest object of that hash that is meant, which nobody asks for.
    fn peek(&self, hash: u64, is_meant: impl Fn(&Object) -> bool) -> Option<&Arc<Object>> {
        self.by_hash.get(&hash)?.iter().rev().map(|slot| &slot.object).find(|object| is_meant(object))
    }

    fn all(&self, hash: u64, is_meant: impl Fn(&Object) -> bool) -> Vec<Arc<Object>> {
        let slots = self.by_hash.get(&hash).into_iter().flatten();
        slots.map(|slot| &slot.object).filter(|object| is_meant(object)).cloned().collect()
    }

    /// Adds an object that was asked for so often, in place of one that answers the same requests
    /// and is not more recent.
    fn insert(&mut self, hash: u64, object: Arc<Object>, rivals: Rivals, hits: u64, keys: &[String]) {
        if self.peek(hash, |other| other.outranks(&object)).is_some() {
            return;
        }
        self.remove(hash, |other| other.is_for_same(&object));
        let slot = Arc::new(Slot {
            hash,
            object,
            rivals,
            was_asked_for: AtomicBool::new(false),
            used: AtomicU64::new(self.found.load(Ordering::Relaxed)),
            hits: AtomicU64::new(hits),
        });
        self.bytes += slot.object.memory_bytes();
        self.count += 1;
        let slots = self.by_hash.entry(hash).or_default();
        slots.push(slot.clone());
        if slots.len() > RECORDS_MAX {
            let others = slots[..RECORDS_MAX].iter();
            // Clients choose the values of keyed fields: many of them do not remove what others share.
            let rank = |slot: &&Arc<Slot>| (slot.object.is_plain(keys), slot.used.load(Ordering::Relaxed));
            if let Some(least) = others.min_by_key(rank).map(|slot| slot.object.clone()) {
                self.remove(hash, |object| std::ptr::eq(object, Arc::as_ptr(&least)));
            }
        }
        self.queue.push_back(Arc::downgrade(&slot));
        self.make_room();
    }

    /// Lets go of objects that the store has let go of: their files stay on disk until then.
    fn tidy(&mut self) {
        (0..SWEPT.min(self.queue.len())).for_each(|_| self.sweep());
    }

    /// Lets go of the oldest object if the store has; else it is the newest.
    fn sweep(&mut self) {
        let Some(slot) = self.queue.pop_front().and_then(|slot| slot.upgrade()) else { return };
        if slot.object.is_alive() {
            self.queue.push_back(Arc::downgrade(&slot));
        } else {
            self.remove(slot.hash, |object| std::ptr::eq(object, Arc::as_ptr(&slot.object)));
        }
    }

    /// Removes the objects of a hash that are meant; returns their number.
    fn remove(&mut self, hash: u64, is_meant: impl Fn(&Object) -> bool) -> usize {
        let Some(slots) = self.by_hash.get_mut(&hash) else { return 0 };
        let before = slots.len();
        slots.retain(|slot| {
            let stays = !is_meant(&slot.object);
            if !stays {
                self.count -= 1;
                self.bytes -= slot.object.memory_bytes();
            }
            stays
        });
        let removed = before - slots.len();
        if slots.is_empty() {
            self.by_hash.remove(&hash);
        }
        removed
    }

    fn make_room(&mut self) {
        if self.queue.len() > 2 * self.count + REMOVED_MAX {
            // At least half of them are gone, so that a removal costs two looks in all.
            self.queue.retain(|slot| slot.strong_count() > 0);
        }
        while self.bytes > self.bytes_max {
            let Some(slot) = self.queue.pop_front() else { return };
            let Some(slot) = slot.upgrade() else { continue };
            if slot.was_asked_for.swap(false, Ordering::Relaxed) && slot.object.is_alive() {
                self.queue.push_back(Arc::downgrade(&slot));
                continue;
            }
            self.remove(slot.hash, |object| std::ptr::eq(object, Arc::as_ptr(&slot.object)));
        }
    }
}

#[cfg(test)]
mod tests {
    use strait_http::fields::Field;

    use super::*;
    use crate::cache::generation::Generations;
    use crate::cache::meta::Meta;
    use crate::cache::object::Home;

    const BODY_BYTES: usize = 10_000;

    /// An object in memory alone, asked for and received then, with that variant.
    fn object_of(key: &str, variant: &str, (requested, received): (u64, u64)) -> Arc<Object> {
        let head = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n\r\n";
        let length = Some(BODY_BYTES as u64);
        let meta = Meta { requested, received, age: 0, first: 0, length, variant, head };
        let home = Home::Memory(Arc::new(Generations::default()).take(0));
        Arc::new(Object::new(key, &meta, Body::Memory(vec![0; BODY_BYTES].into(), home)).unwrap())
    }

    fn object(key: &str) -> Arc<Object> {
        object_of(key, "", (0, 0))
    }

    fn replace(memory: &MemoryCache, hash: u64, object: &Arc<Object>) {
        memory.replace(hash, (object, Rivals::default()), &[], || true);
    }

    #[test]
    fn an_older_object_does_not_take_the_place_of_a_newer_one() {
        let memory = MemoryCache::new(100 * BODY_BYTES, BODY_BYTES);
        // Two workers: the one asked first is kept last.
        let (older, newer) = (object_of("a", "", (9, 10)), object_of("a", "", (10, 11)));
        let received = || memory.peek(7, |_| true).unwrap().times.received;
        replace(&memory, 7, &newer);
        replace(&memory, 7, &older);
        assert_eq!(received(), 11);
        memory.insert(7, (older, Rivals::default()), &[], || true);
        assert_eq!(received(), 11);
        let next = object_of("a", "", (11, 12));
        replace(&memory, 7, &next);
        assert_eq!((received(), memory.all(7, |_| true).len()), (12, 1));
    }

    #[test]
    fn many_values_of_a_keyed_field_leave_the_plain_object() {
        let memory = MemoryCache::new(10_000 * BODY_BYTES, BODY_BYTES);
        let asked = Fields::default();
        replace(&memory, 7, &object("a"));
        replace(&memory, 7, &object_of("a", "x-host:used\n", (0, 0)));
        for number in 0..200 {
            memory.find(7, &asked, |object| &**object.variant() == "x-host:used\n").unwrap();
            replace(&memory, 7, &object_of("a", &format!("x-host:{number}\n"), (0, 0)));
        }
        assert_eq!(memory.all(7, |_| true).len(), RECORDS_MAX);
        let has = |variant: &str| memory.peek(7, |object| &**object.variant() == variant).is_some();
        assert!(has("") && has("x-host:used\n") && has("x-host:199\n") && !has("x-host:0\n"));
    }

    #[test]
    fn the_most_recent_of_several_objects_answers_and_rivals_are_asked_for_elsewhere() {
        let memory = MemoryCache::new(100 * BODY_BYTES, BODY_BYTES);
        replace(&memory, 7, &object_of("a", "b:1\n", (20, 21)));
        replace(&memory, 7, &object_of("a", "c:1\n", (10, 11)));
        let fields = [("B", "1"), ("C", "1")].map(|(name, value)| Field { name, value: value.as_bytes() });
        let asked: Fields<'_> = fields.into_iter().collect();
        let found = |memory: &MemoryCache| memory.find(7, &asked, |object| object.matches(&asked, &[]));
        assert_eq!(&**found(&memory).unwrap().variant(), "b:1\n");
        let memory = MemoryCache::new(100 * BODY_BYTES, BODY_BYTES);
        let rivals = Rivals::from_iter(["b:1\n".into()]);
        memory.insert(7, (object_of("a", "c:1\n", (10, 11)), rivals), &[], || true);
        assert!(found(&memory).is_none());
        let alone: Fields<'_> = [fields[1]].into_iter().collect();
        assert!(memory.find(7, &alone, |object| object.matches(&alone, &[])).is_some());
    }

    #[test]
    fn replaced_objects_are_freed_at_once() {
        let memory = MemoryCache::new(100 * BODY_BYTES, BODY_BYTES);
        let mut before: Option<Weak<Object>> = None;
        for _ in 0..1000 {
            let object = object("a");
            let now = Arc::downgrade(&object);
            replace(&memory, 7, &object);
            assert_eq!(before.map_or(0, |before| before.strong_count()), 0);
            before = Some(now);
        }
        let queued: usize = memory.0.iter().map(|shard| MemoryCache::lock(shard).queue.len()).sum();
        assert!(queued <= 2 + REMOVED_MAX, "{queued} entries for one object");
    }

    #[test]
    fn many_replacements_remove_no_other_object() {
        let memory = MemoryCache::new(100 * BODY_BYTES, BODY_BYTES);
        replace(&memory, 7, &object("a"));
        for _ in 0..1000 {
            replace(&memory, 8, &object("b"));
        }
        assert!(memory.peek(7, |_| true).is_some() && memory.peek(8, |_| true).is_some());
    }
}
