//! Memory cache of all workers: parsed heads, and small bodies. Shards are locked for a lookup or
//! an insertion, never for I/O.
//!
//! The eviction policy is that of the store ([`strait_store::policy`]). A batch of the oldest
//! objects of an area takes the place of a file. Objects that stay are not copied.

mod shard;

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use strait_http::fields::Fields;
use strait_store::policy::{Area, Popularity, REQUEST};

pub use self::shard::MemoryEntry;
use self::shard::{Shard, Slot};
use crate::cache::object::{Object, Rivals};

/// Maximum of shards.
const SHARDS_MAX: usize = 16;
/// Minimum of largest bodies that fit in one shard.
const BODIES_PER_SHARD_MIN: usize = 8;

/// Memory cache, shared by all workers.
#[derive(Debug)]
pub(crate) struct MemoryCache {
    shards: Box<[Mutex<Shard>]>,
    popularity: Popularity,
}

impl MemoryCache {
    /// Cache of at most `bytes_max` bytes, for bodies of up to `body_max` bytes.
    pub(crate) fn new(bytes_max: usize, body_max: usize) -> Self {
        let fitting = bytes_max / BODIES_PER_SHARD_MIN.saturating_mul(body_max.max(1));
        let shards = SHARDS_MAX.min(fitting.max(1));
        let popularity = Popularity::new(bytes_max as u64);
        let shards = (0..shards).map(|_| Mutex::new(Shard::new(bytes_max / shards))).collect();
        Self { shards, popularity }
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // Hash tables use the lowest and the highest bits.
        Self::lock(&self.shards[(hash >> 32) as usize % self.shards.len()])
    }

    fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the size limit in bytes.
    pub(crate) fn limit(&self, bytes_max: usize) {
        self.popularity.set_capacity(bytes_max as u64);
        for shard in &self.shards {
            let mut shard = Self::lock(shard);
            shard.bytes_max = bytes_max / self.shards.len();
            self.evict(&mut shard);
        }
    }

    /// Returns the `most` objects with the most hits.
    pub(crate) fn most_requested(&self, most: usize) -> Vec<MemoryEntry> {
        let mut all: Vec<_> =
            self.shards.iter().flat_map(|shard| Self::lock(shard).most_requested(most)).collect();
        all.sort_by_key(|object| Reverse(object.hits));
        all.truncate(most);
        all
    }

    /// Removes the objects that match; returns their number.
    pub(crate) fn remove_matching(&self, is_match: impl Fn(&Object) -> bool) -> usize {
        self.shards.iter().map(|shard| Self::lock(shard).remove_matching(&is_match)).sum()
    }

    /// Returns the keys of the objects that match. The heads are read without a lock.
    pub(crate) fn keys(&self, is_match: impl Fn(&Object) -> bool) -> Vec<Arc<str>> {
        let objects = self.shards.iter().flat_map(|shard| Self::lock(shard).objects());
        objects.filter(|object| is_match(object)).map(|object| object.key.clone()).collect()
    }

    /// Returns the matching object of the highest rank, and counts a hit. Returns `None` also if
    /// the store has an object of a higher rank for a request with these fields.
    pub(crate) fn find(
        &self,
        hash: u64,
        request: &Fields<'_>,
        is_wanted: impl Fn(&Object) -> bool,
    ) -> Option<Arc<Object>> {
        let object = self.shard(hash).find(hash, request, is_wanted).cloned()?;
        self.popularity.note_request(hash, object.memory_bytes() as u64);
        Some(object)
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
            self.add(&mut shard, hash, (object, rivals), 1, keys);
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
            self.add(&mut shard, hash, (object.clone(), rivals), 0, keys);
        }
    }

    /// Returns true if an object is not longer than all objects of its shard may be. A longer one
    /// would be evicted at once.
    pub(crate) fn may_hold(&self, hash: u64, object: &Object) -> bool {
        object.memory_bytes() <= self.shard(hash).bytes_max
    }

    /// Replaces an object by one with other bytes of the same response. Returns false if it has
    /// been removed or replaced.
    pub(crate) fn exchange(&self, hash: u64, old: &Arc<Object>, new: Arc<Object>) -> bool {
        let mut shard = self.shard(hash);
        let Some((rivals, hits)) = shard.state_of(hash, old) else { return false };
        // It takes the place of the one that answers the same requests.
        self.add(&mut shard, hash, (new, rivals), hits, &[]);
        true
    }

    /// Adds an object, which begins with the number of earlier requests for it.
    fn add(
        &self,
        shard: &mut Shard,
        hash: u64,
        (object, rivals): (Arc<Object>, Rivals),
        hits: u64,
        keys: &[String],
    ) {
        self.popularity.note_request(hash, object.memory_bytes() as u64);
        let requests = self.popularity.requests_of_dropped(hash).saturating_add(REQUEST);
        let slot = Slot {
            hash,
            object,
            rivals,
            requests: AtomicU8::new(requests),
            used: AtomicU64::new(shard.found.load(Ordering::Relaxed)),
            hits: AtomicU64::new(hits),
        };
        shard.insert(slot, keys);
        let shards = self.shards.len();
        self.popularity.note_objects(shard.count * shards, (shard.bytes * shards) as u64);
        self.evict(shard);
    }

    /// Evicts objects until the shard is within its limit.
    fn evict(&self, shard: &mut Shard) {
        shard.drop_stale_entries();
        while shard.bytes > shard.bytes_max {
            shard.age_to(self.popularity.agings());
            let window_bytes = shard.window.bytes * self.shards.len();
            let wanted = self.popularity.policy().area(window_bytes as u64);
            let area = if shard.queue(wanted).entries.is_empty() { wanted.other() } else { wanted };
            let (batch, bytes) = shard.take_batch(area);
            if batch.is_empty() && shard.window.entries.is_empty() && shard.main.entries.is_empty() {
                return;
            }
            if area == Area::Window {
                self.popularity.count_written(bytes as u64, shard.count * self.shards.len());
            }
            let selection = self.popularity.policy().select(area, batch, bytes as u64);
            let dropped =
                selection.dropped.iter().map(|candidate| (candidate.object.hash, candidate.requests));
            self.popularity.remember(dropped);
            for candidate in &selection.dropped {
                shard.remove_slot(&candidate.object);
            }
            for candidate in &selection.kept {
                shard.main.push(&candidate.object);
            }
        }
    }

    /// Removes the objects of a hash that match; returns their number.
    pub(crate) fn remove(&self, hash: u64, is_match: impl Fn(&Object) -> bool) -> usize {
        self.shard(hash).remove(hash, is_match)
    }

    /// Removes some objects that the store has removed.
    pub(crate) fn tidy(&self) {
        self.shards.iter().for_each(|shard| Self::lock(shard).tidy());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use strait_http::lifetimes::Lifetimes;

    use strait_http::fields::Field;
    use strait_store::Store;

    use super::shard::REMOVED_MAX;
    use super::*;
    use crate::cache::forms::Forms;
    use crate::cache::generation::Generations;
    use crate::cache::meta::Meta;
    use crate::cache::object::{Body, Home, RECORDS_MAX};

    const BODY_BYTES: usize = 10_000;
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n\r\n";

    /// Object that memory alone holds, with that variant and those times of request and receipt.
    fn object_of(key: &str, variant: &str, (requested, received): (u64, u64)) -> Arc<Object> {
        let length = Some(BODY_BYTES as u64);
        let meta = Meta {
            requested,
            received,
            age: 0,
            expired: None,
            forms: Forms::default(),
            lifetimes: Lifetimes::default(),
            first: 0,
            length,
            variant,
            head: HEAD,
        };
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
        let queued = |shard| MemoryCache::lock(shard).window.entries.len();
        let queued: usize = memory.shards.iter().map(queued).sum();
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

    /// Requests an object, and inserts it if it is missing. Returns true if it was a hit.
    fn request(memory: &MemoryCache, number: u64) -> bool {
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let is_hit = memory.find(hash, &Fields::default(), |_| true).is_some();
        if !is_hit {
            replace(memory, hash, &object(&number.to_string()));
        }
        is_hit
    }

    #[test]
    fn requested_objects_outlast_a_scan_and_the_limit_holds() {
        const POPULAR: u64 = 100;
        let memory = MemoryCache::new(400 * BODY_BYTES, BODY_BYTES);
        for round in 0..20 {
            for number in 0..POPULAR {
                request(&memory, number);
            }
            for number in 0..1000 {
                request(&memory, 1_000_000 + 1000 * round + number);
            }
        }
        let hits = (0..POPULAR).filter(|number| request(&memory, *number)).count();
        assert!(hits >= 90, "{hits} of {POPULAR} requested objects are left");
        let bytes: usize = memory.shards.iter().map(|shard| MemoryCache::lock(shard).bytes).sum();
        assert!(bytes <= 400 * BODY_BYTES, "{bytes} bytes");
    }

    #[test]
    fn tidying_frees_the_objects_that_the_store_has_removed() {
        let dir = tempfile::tempdir().unwrap();
        let config =
            strait_store::Config { capacity_bytes: 64 << 20, ..strait_store::Config::new(dir.path()) };
        let store = Store::open(config).unwrap();
        let memory = MemoryCache::new(1000 * BODY_BYTES, BODY_BYTES);
        let meta = Meta {
            requested: 0,
            received: 0,
            age: 0,
            expired: None,
            forms: Forms::default(),
            lifetimes: Lifetimes::default(),
            first: 0,
            length: Some(1),
            variant: "",
            head: HEAD,
        };
        let objects: Vec<_> = (0_u64..300)
            .map(|number| {
                let record = store.put(0, &number.to_le_bytes(), b"", &[b"x"]).unwrap();
                let body = Body::Memory(Arc::new([b'x']), Home::Store(record));
                let object = Arc::new(Object::new("a", &meta, body).unwrap());
                memory.insert(number, (object.clone(), Rivals::default()), &[], || true);
                Arc::downgrade(&object)
            })
            .collect();
        store.records().iter().step_by(2).for_each(|record| store.remove(record));
        memory.tidy();
        assert_eq!(objects.iter().filter(|object| object.strong_count() > 0).count(), 150);
        store.close();
    }
}
