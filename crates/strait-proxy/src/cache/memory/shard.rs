//! Shard of the memory cache: a part of all objects, under one lock.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use serde::Serialize;
use smallvec::SmallVec;
use strait_http::fields::Fields;
use strait_http::vary::matches_variant;
use strait_store::policy::{Area, Candidate, REQUEST};

use crate::cache::hash::IdentityHasher;
use crate::cache::object::{Body, Object, RECORDS_MAX, Rivals};

/// Batches of a full shard, and minimum of objects in one.
const BATCHES: usize = 64;
const BATCH_OBJECTS_MIN: usize = 8;
/// Maximum of objects that one sweep checks.
const SWEEP_OBJECTS_MAX: usize = 4096;
/// Maximum of queue entries of removed objects in a shard, beyond its number of objects. Each uses
/// the memory of a slot; the object itself is freed at once.
pub(super) const REMOVED_MAX: usize = 64;

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

/// Objects of a part of all hashes, under one lock.
#[derive(Debug, Default)]
pub(super) struct Shard {
    /// Number of successful lookups.
    pub(super) found: AtomicU64,
    by_hash: HashMap<u64, SmallVec<[Arc<Slot>; 1]>, BuildHasherDefault<IdentityHasher>>,
    pub(super) window: Queue,
    pub(super) main: Queue,
    /// Place in the queues of the next object that a sweep checks.
    swept: usize,
    /// Agings of the numbers of requests so far.
    aged: u32,
    /// Number of slots in the map.
    pub(super) count: usize,
    pub(super) bytes: usize,
    pub(super) bytes_max: usize,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) hash: u64,
    pub(super) object: Arc<Object>,
    pub(super) rivals: Rivals,
    /// Number of requests for the eviction policy, in units of [`REQUEST`], halved now and then.
    pub(super) requests: AtomicU8,
    /// Number of the last lookup that found it.
    pub(super) used: AtomicU64,
    /// Number of hits.
    pub(super) hits: AtomicU64,
}

/// Objects of an area, in the order of eviction.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Some slots are already removed from the map, and their objects freed.
    pub(super) entries: VecDeque<Entry>,
    pub(super) bytes: usize,
}

/// Slot in a queue. Its bytes count until the entry is removed.
#[derive(Debug)]
pub(super) struct Entry {
    slot: Weak<Slot>,
    pub(super) bytes: usize,
}

impl Queue {
    pub(super) fn push(&mut self, slot: &Arc<Slot>) {
        let bytes = slot.object.memory_bytes();
        self.bytes += bytes;
        self.entries.push_back(Entry { slot: Arc::downgrade(slot), bytes });
    }

    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    fn drop_stale_entries(&mut self) {
        self.entries.retain(|entry| {
            let stays = entry.slot.strong_count() > 0;
            self.bytes -= if stays { 0 } else { entry.bytes };
            stays
        });
    }
}

impl Shard {
    /// Shard of at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Returns the objects with the most hits.
    pub(super) fn most_requested(&self, most: usize) -> Vec<MemoryEntry> {
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
    pub(super) fn remove_matching(&mut self, is_match: impl Fn(&Object) -> bool) -> usize {
        let slots = self.by_hash.values().flatten();
        let matching: Vec<_> = slots.filter(|slot| is_match(&slot.object)).cloned().collect();
        for slot in &matching {
            self.remove_slot(slot);
        }
        matching.len()
    }

    /// Returns all objects.
    pub(super) fn objects(&self) -> Vec<Arc<Object>> {
        self.by_hash.values().flatten().map(|slot| slot.object.clone()).collect()
    }

    /// Returns the matching object of the highest rank, unless a rival answers such a request.
    pub(super) fn find(
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
        // Losing a request in a race is harmless.
        let requests = slot.requests.load(Ordering::Relaxed);
        slot.requests.store(requests.saturating_add(REQUEST), Ordering::Relaxed);
        slot.used.store(self.found.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        slot.hits.fetch_add(1, Ordering::Relaxed);
        Some(&slot.object)
    }

    /// Returns the newest object of that hash that matches, without a hit.
    pub(super) fn peek(&self, hash: u64, is_match: impl Fn(&Object) -> bool) -> Option<&Arc<Object>> {
        self.by_hash.get(&hash)?.iter().rev().map(|slot| &slot.object).find(|object| is_match(object))
    }

    /// Returns the rivals of an object, and its number of hits; `None` if it has been removed.
    pub(super) fn state_of(&self, hash: u64, object: &Arc<Object>) -> Option<(Rivals, u64)> {
        let slot = self.by_hash.get(&hash)?.iter().find(|slot| Arc::ptr_eq(&slot.object, object))?;
        Some((slot.rivals.clone(), slot.hits.load(Ordering::Relaxed)))
    }

    pub(super) fn all(&self, hash: u64, is_match: impl Fn(&Object) -> bool) -> Vec<Arc<Object>> {
        let slots = self.by_hash.get(&hash).into_iter().flatten();
        slots.map(|slot| &slot.object).filter(|object| is_match(object)).cloned().collect()
    }

    /// Adds an object, unless a more recent one answers the same requests.
    pub(super) fn insert(&mut self, slot: Slot, keys: &[String]) {
        let hash = slot.hash;
        if self.peek(hash, |other| other.outranks(&slot.object)).is_some() {
            return;
        }
        let replaced = |other: &&Arc<Slot>| other.object.is_for_same(&slot.object);
        let earlier = self.by_hash.get(&hash).into_iter().flatten().find(replaced);
        let earlier = earlier.map_or(0, |earlier| earlier.requests.load(Ordering::Relaxed));
        slot.requests.fetch_max(earlier.saturating_add(REQUEST), Ordering::Relaxed);
        self.remove(hash, |other| other.is_for_same(&slot.object));
        let slot = Arc::new(slot);
        self.bytes += slot.object.memory_bytes();
        self.count += 1;
        let slots = self.by_hash.entry(hash).or_default();
        slots.push(slot.clone());
        if slots.len() > RECORDS_MAX {
            let others = slots[..RECORDS_MAX].iter();
            // Clients choose the values of keyed fields; many values must not evict the object that
            // plain requests share.
            let rank = |slot: &&Arc<Slot>| (slot.object.is_plain(keys), slot.used.load(Ordering::Relaxed));
            if let Some(least) = others.min_by_key(rank).cloned() {
                self.remove_slot(&least);
            }
        }
        self.window.push(&slot);
    }

    /// Removes objects that the store has removed, because they use memory and answer no request.
    pub(super) fn tidy(&mut self) {
        let entries = self.window.entries.len() + self.main.entries.len();
        for _ in 0..SWEEP_OBJECTS_MAX.min(entries) {
            self.swept = (self.swept + 1) % entries;
            let entry = self.window.entries.iter().chain(&self.main.entries).nth(self.swept);
            let slot = entry.and_then(|entry| entry.slot.upgrade());
            if let Some(slot) = slot.filter(|slot| !slot.object.is_alive()) {
                self.remove_slot(&slot);
            }
        }
    }

    /// Removes the objects of a hash that match; returns their number.
    pub(super) fn remove(&mut self, hash: u64, is_match: impl Fn(&Object) -> bool) -> usize {
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

    pub(super) fn remove_slot(&mut self, slot: &Arc<Slot>) {
        self.remove(slot.hash, |object| std::ptr::eq(object, Arc::as_ptr(&slot.object)));
    }

    pub(super) fn queue(&mut self, area: Area) -> &mut Queue {
        match area {
            Area::Window => &mut self.window,
            Area::Main => &mut self.main,
        }
    }

    /// Drops the entries of removed slots once they are more than the others. So the cost for each
    /// removal is constant.
    pub(super) fn drop_stale_entries(&mut self) {
        if self.window.entries.len() + self.main.entries.len() > 2 * self.count + REMOVED_MAX {
            self.window.drop_stale_entries();
            self.main.drop_stale_entries();
        }
    }

    /// Takes the oldest objects of an area out of its queue, and removes those among them that the
    /// store has removed. Returns the others, and the bytes of all.
    pub(super) fn take_batch(&mut self, area: Area) -> (Vec<Candidate<Arc<Slot>>>, usize) {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while bytes < self.bytes_max / BATCHES || batch.len() < BATCH_OBJECTS_MIN {
            let Some(entry) = self.queue(area).pop() else { break };
            bytes += entry.bytes;
            let Some(slot) = entry.slot.upgrade() else { continue };
            if slot.object.is_alive() {
                let requests = slot.requests.load(Ordering::Relaxed);
                batch.push(Candidate { object: slot, requests, bytes: entry.bytes as u64 });
            } else {
                self.remove_slot(&slot);
            }
        }
        (batch, bytes)
    }

    /// Halves the numbers of requests once for each aging since the last call.
    pub(super) fn age_to(&mut self, agings: u32) {
        let due = agings.wrapping_sub(std::mem::replace(&mut self.aged, agings)).min(u8::BITS - 1);
        if due > 0 {
            for slot in self.by_hash.values().flatten() {
                let requests = slot.requests.load(Ordering::Relaxed);
                slot.requests.store(requests >> due, Ordering::Relaxed);
            }
        }
    }
}
