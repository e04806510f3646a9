//! Memory cache of all workers: parsed heads, and small bodies. Shards are locked for a lookup or
//! an insertion, never for I/O.
//!
//! The eviction policy is CLOCK: the oldest object is evicted unless it was requested since its
//! insertion or since it was last spared.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::Serialize;
use smallvec::SmallVec;
use strait_http::fields::Fields;
use strait_http::vary::matches_variant;

use crate::cache::hash::IdentityHasher;
use crate::cache::object::{Body, Object, RECORDS_MAX, Rivals};

/// Maximum of shards.
const SHARDS_MAX: usize = 16;
/// Minimum of largest bodies that fit in one shard.
const BODIES_PER_SHARD_MIN: usize = 8;
/// Maximum of objects that one sweep checks.
const SWEEP_OBJECTS_MAX: usize = 4096;
/// Maximum of queue entries of removed objects in a shard, beyond its number of objects. Each uses
/// the memory of a slot; the object itself is freed at once.
const REMOVED_MAX: usize = 64;

/// Object in the memory cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryEntry {
    /// Its URI.
    pub uri: String,
    /// Length of its body in bytes.
    pub bytes: u64,
    /// Number of hits.
    pub hits: u64,
    /// True if its body is in memory.
    pub in_memory: bool,
}

/// Memory cache, shared by all workers.
#[derive(Debug)]
pub(crate) struct MemoryCache(Box<[Mutex<Shard>]>);

impl MemoryCache {
    /// Cache of at most `bytes_max` bytes, for bodies of up to `body_max` bytes.
    pub(crate) fn new(bytes_max: usize, body_max: usize) -> Self {
        let fitting = bytes_max / BODIES_PER_SHARD_MIN.saturating_mul(body_max.max(1));
        let shards = SHARDS_MAX.min(fitting.max(1));
        Self((0..shards).map(|_| Mutex::new(Shard::new(bytes_max / shards))).collect())
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // Hash tables use the lowest and the highest bits.
        Self::lock(&self.0[(hash >> 32) as usize % self.0.len()])
    }

    fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the size limit in bytes.
    pub(crate) fn limit(&self, bytes_max: usize) {
        self.0.iter().for_each(|shard| Self::lock(shard).limit(bytes_max / self.0.len()));
    }

    /// Returns the `most` objects with the most hits.
    pub(crate) fn most_requested(&self, most: usize) -> Vec<MemoryEntry> {
        let mut all: Vec<_> =
            self.0.iter().flat_map(|shard| Self::lock(shard).most_requested(most)).collect();
        all.sort_by_key(|object| Reverse(object.hits));
        all.truncate(most);
        all
    }

    /// Removes the objects that match; returns their number.
    pub(crate) fn remove_matching(&self, is_match: impl Fn(&Object) -> bool) -> usize {
        self.0.iter().map(|shard| Self::lock(shard).remove_matching(&is_match)).sum()
    }

    /// Returns the matching object of the highest rank, and counts a hit. Returns `None` also if
    /// the store has an object of a higher rank for a request with these fields.
    pub(crate) fn find(
        &self,
        hash: u64,
        request: &Fields<'_>,
        is_wanted: impl Fn(&Object) -> bool,
    ) -> Option<Arc<Object>> {
        self.shard(hash).find(hash, request, is_wanted).cloned()
    }

    /// Returns the objects of that hash that match, without a hit.
    pub(crate) fn all(&self, hash: u64, is_match: impl Fn(&Object) -> bool) -> Vec<Arc<Object>> {
        self.shard(hash).all(hash, is_match)
    }

    /// Like [`find`](Self::find), without a hit.
    pub(crate) fn peek(&self, hash: u64, is_match: impl Fn(&Object) -> bool) -> Option<Arc<Object>> {
        self.shard(hash).peek(hash, is_match).cloned()
    }

    /// Adds an object from the store with one hit, in place of the one that answers the same
    /// requests, unless `is_current` returns false. `is_current` runs under the lock: an
    /// invalidation ends generations before it removes objects, so it misses no insertion.
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

    /// Replaces the object that answers the same requests by a new one, unless that object is more
    /// recent or `is_current` returns false. The new one is added if it replaces an older one, or
    /// if memory alone holds it. Objects that yield to it are removed, because it is missing in
    /// their list of rivals: the next lookup in the store inserts them again with that rival.
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
        let was_cached = shard.remove(hash, |other| other.is_for_same(object)) > 0;
        if object.is_stored() {
            shard.remove(hash, |other| other.yields_to(object));
        }
        // Parts are combined by a lookup in the store.
        if object.is_whole() && (was_cached || !object.is_stored()) && is_current() {
            shard.insert(hash, object.clone(), rivals, 0, keys);
        }
    }

    /// Removes the objects of a hash that match; returns their number.
    pub(crate) fn remove(&self, hash: u64, is_match: impl Fn(&Object) -> bool) -> usize {
        self.shard(hash).remove(hash, is_match)
    }

    /// Removes some objects that the store has removed.
    pub(crate) fn tidy(&self) {
        self.0.iter().for_each(|shard| Self::lock(shard).tidy());
    }
}

/// Objects of a part of all hashes, under one lock.
#[derive(Debug, Default)]
struct Shard {
    /// Number of successful lookups.
    found: AtomicU64,
    by_hash: HashMap<u64, SmallVec<[Arc<Slot>; 1]>, BuildHasherDefault<IdentityHasher>>,
    /// Slots in order of insertion. Some are already removed from the map, and their objects freed.
    queue: VecDeque<Weak<Slot>>,
    /// Number of slots in the map.
    count: usize,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Slot {
    hash: u64,
    object: Arc<Object>,
    rivals: Rivals,
    was_requested: AtomicBool,
    /// Number of the last lookup that found it.
    used: AtomicU64,
    /// Number of hits.
    hits: AtomicU64,
}

impl Shard {
    /// Shard of at most `bytes_max` bytes.
    fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Sets the size limit in bytes.
    fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.evict();
    }

    /// Returns the objects with the most hits.
    fn most_requested(&self, most: usize) -> Vec<MemoryEntry> {
        let mut slots: Vec<_> =
            self.by_hash.values().flatten().filter(|slot| slot.hits.load(Ordering::Relaxed) > 0).collect();
        let by_hits = |slot: &&Arc<Slot>| Reverse(slot.hits.load(Ordering::Relaxed));
        if slots.len() > most {
            slots.select_nth_unstable_by_key(most, by_hits);
            slots.truncate(most);
        }
        slots.sort_by_key(by_hits);
        let entry = |slot: &Arc<Slot>| MemoryEntry {
            uri: slot.object.key.to_string(),
            bytes: slot.object.length.unwrap_or(0),
            hits: slot.hits.load(Ordering::Relaxed),
            in_memory: matches!(slot.object.body, Body::Memory(..)),
        };
        slots.into_iter().map(entry).collect()
    }

    /// Removes the objects that match; returns their number.
    fn remove_matching(&mut self, is_match: impl Fn(&Object) -> bool) -> usize {
        let slots = self.by_hash.values().flatten();
        let matching: Vec<_> = slots.filter(|slot| is_match(&slot.object)).cloned().collect();
        for slot in &matching {
            self.remove(slot.hash, |object| std::ptr::eq(object, Arc::as_ptr(&slot.object)));
        }
        matching.len()
    }

    /// Returns the matching object of the highest rank, unless a rival answers such a request.
    fn find(
        &self,
        hash: u64,
        request: &Fields<'_>,
        is_wanted: impl Fn(&Object) -> bool,
    ) -> Option<&Arc<Object>> {
        let wanted = self.by_hash.get(&hash)?.iter().filter(|slot| is_wanted(&slot.object));
        let slot = wanted.max_by_key(|slot| slot.object.rank())?;
        if slot.rivals.iter().any(|rival| matches_variant(request, rival)) {
            return None;
        }
        slot.was_requested.store(true, Ordering::Relaxed);
        slot.used.store(self.found.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        slot.hits.fetch_add(1, Ordering::Relaxed);
        Some(&slot.object)
    }

    /// Returns the newest object of that hash that matches, without a hit.
    fn peek(&self, hash: u64, is_match: impl Fn(&Object) -> bool) -> Option<&Arc<Object>> {
        self.by_hash.get(&hash)?.iter().rev().map(|slot| &slot.object).find(|object| is_match(object))
    }

    fn all(&self, hash: u64, is_match: impl Fn(&Object) -> bool) -> Vec<Arc<Object>> {
        let slots = self.by_hash.get(&hash).into_iter().flatten();
        slots.map(|slot| &slot.object).filter(|object| is_match(object)).cloned().collect()
    }

    /// Adds an object with that number of hits, unless a more recent one answers the same requests.
    fn insert(&mut self, hash: u64, object: Arc<Object>, rivals: Rivals, hits: u64, keys: &[String]) {
        if self.peek(hash, |other| other.outranks(&object)).is_some() {
            return;
        }
        self.remove(hash, |other| other.is_for_same(&object));
        let slot = Arc::new(Slot {
            hash,
            object,
            rivals,
            was_requested: AtomicBool::new(false),
            used: AtomicU64::new(self.found.load(Ordering::Relaxed)),
            hits: AtomicU64::new(hits),
        });
        self.bytes += slot.object.memory_bytes();
        self.count += 1;
        let slots = self.by_hash.entry(hash).or_default();
        slots.push(slot.clone());
        if slots.len() > RECORDS_MAX {
            let others = slots[..RECORDS_MAX].iter();
            // Clients choose the values of keyed fields; many values must not evict the object that
            // plain requests share.
            let rank = |slot: &&Arc<Slot>| (slot.object.is_plain(keys), slot.used.load(Ordering::Relaxed));
            if let Some(least) = others.min_by_key(rank).map(|slot| slot.object.clone()) {
                self.remove(hash, |object| std::ptr::eq(object, Arc::as_ptr(&least)));
            }
        }
        self.queue.push_back(Arc::downgrade(&slot));
        self.evict();
    }

    /// Removes objects that the store has removed, because they use memory and answer no request.
    fn tidy(&mut self) {
        (0..SWEEP_OBJECTS_MAX.min(self.queue.len())).for_each(|_| self.sweep());
    }

    /// Removes the oldest object if the store has removed it; otherwise moves it to the end of the
    /// queue.
    fn sweep(&mut self) {
        let Some(slot) = self.queue.pop_front().and_then(|slot| slot.upgrade()) else { return };
        if slot.object.is_alive() {
            self.queue.push_back(Arc::downgrade(&slot));
        } else {
            self.remove(slot.hash, |object| std::ptr::eq(object, Arc::as_ptr(&slot.object)));
        }
    }

    /// Removes the objects of a hash that match; returns their number.
    fn remove(&mut self, hash: u64, is_match: impl Fn(&Object) -> bool) -> usize {
        let Some(slots) = self.by_hash.get_mut(&hash) else { return 0 };
        let before = slots.len();
        slots.retain(|slot| {
            let stays = !is_match(&slot.object);
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

    fn evict(&mut self) {
        if self.queue.len() > 2 * self.count + REMOVED_MAX {
            // At least half of the entries are stale, so the cost per removal is constant.
            self.queue.retain(|slot| slot.strong_count() > 0);
        }
        while self.bytes > self.bytes_max {
            let Some(slot) = self.queue.pop_front() else { return };
            let Some(slot) = slot.upgrade() else { continue };
            if slot.was_requested.swap(false, Ordering::Relaxed) && slot.object.is_alive() {
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

    /// Object that memory alone holds, with that variant and those times of request and receipt.
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
    fn older_object_does_not_replace_a_newer_one() {
        let memory = MemoryCache::new(100 * BODY_BYTES, BODY_BYTES);
        // Two workers: the response that was requested first is inserted last.
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
    fn many_values_of_a_keyed_field_do_not_evict_the_plain_object() {
        let memory = MemoryCache::new(10_000 * BODY_BYTES, BODY_BYTES);
        let request = Fields::default();
        replace(&memory, 7, &object("a"));
        replace(&memory, 7, &object_of("a", "x-host:used\n", (0, 0)));
        for number in 0..200 {
            memory.find(7, &request, |object| &**object.variant() == "x-host:used\n").unwrap();
            replace(&memory, 7, &object_of("a", &format!("x-host:{number}\n"), (0, 0)));
        }
        assert_eq!(memory.all(7, |_| true).len(), RECORDS_MAX);
        let has = |variant: &str| memory.peek(7, |object| &**object.variant() == variant).is_some();
        assert!(has("") && has("x-host:used\n") && has("x-host:199\n") && !has("x-host:0\n"));
    }

    #[test]
    fn most_recent_object_answers_unless_a_rival_matches() {
        let memory = MemoryCache::new(100 * BODY_BYTES, BODY_BYTES);
        replace(&memory, 7, &object_of("a", "b:1\n", (20, 21)));
        replace(&memory, 7, &object_of("a", "c:1\n", (10, 11)));
        let fields = [("B", "1"), ("C", "1")].map(|(name, value)| Field { name, value: value.as_bytes() });
        let request: Fields<'_> = fields.into_iter().collect();
        let found = |memory: &MemoryCache| memory.find(7, &request, |object| object.matches(&request, &[]));
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
