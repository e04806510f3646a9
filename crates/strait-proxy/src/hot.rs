//! The objects that a worker has at hand: heads that are read already, and small bodies. One thread has it to itself, so that a hit
//! takes no lock.
//!
//! Room is made in the order of arrival; what was asked for since it came, or since its last turn, gets another turn.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::contents::AtHand;
use crate::lookup::RECORDS_MAX;
use crate::object::{Body, Object};

/// Objects that are looked at at a time.
const SWEPT: usize = 4096;

/// Objects at hand.
#[derive(Debug, Default)]
pub(crate) struct Hot {
    by_hash: HashMap<u64, SmallVec<[Rc<Slot>; 1]>, BuildHasherDefault<AsItIs>>,
    /// In order of arrival; some are gone from the map already.
    queue: VecDeque<Rc<Slot>>,
    /// How many are not.
    count: usize,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Slot {
    hash: u64,
    object: Arc<Object>,
    was_asked_for: Cell<bool>,
    /// How often it was.
    hits: Cell<u64>,
    is_gone: Cell<bool>,
}

impl Hot {
    /// Of so many bytes at most.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Sets how many bytes there may be.
    pub(crate) fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.make_room();
    }

    /// Those that were asked for most often.
    pub(crate) fn hottest(&self, most: usize) -> Vec<AtHand> {
        let mut slots: Vec<_> = self.by_hash.values().flatten().filter(|slot| slot.hits.get() > 0).collect();
        let by_hits = |slot: &&Rc<Slot>| Reverse(slot.hits.get());
        if slots.len() > most {
            slots.select_nth_unstable_by_key(most, by_hits);
            slots.truncate(most);
        }
        slots.sort_by_key(by_hits);
        let tell = |slot: &Rc<Slot>| AtHand {
            uri: slot.object.key.to_string(),
            bytes: slot.object.length.unwrap_or(0),
            hits: slot.hits.get(),
            in_memory: matches!(slot.object.body, Body::Memory(..)),
        };
        slots.into_iter().map(tell).collect()
    }

    /// Removes those that are meant; how many that were.
    pub(crate) fn forget(&mut self, is_meant: impl Fn(&Object) -> bool) -> usize {
        let slots = self.by_hash.values().flatten();
        let meant: Vec<_> = slots.filter(|slot| is_meant(&slot.object)).cloned().collect();
        for slot in &meant {
            self.remove(slot.hash, |object| std::ptr::eq(object, Arc::as_ptr(&slot.object)));
        }
        meant.len()
    }

    /// The newest object of that hash that is wanted.
    pub(crate) fn find(&self, hash: u64, is_wanted: impl Fn(&Object) -> bool) -> Option<&Arc<Object>> {
        let slot = self.by_hash.get(&hash)?.iter().rev().find(|slot| is_wanted(&slot.object))?;
        slot.was_asked_for.set(true);
        slot.hits.set(slot.hits.get() + 1);
        Some(&slot.object)
    }

    /// The newest object of that hash that is meant, which nobody asks for.
    pub(crate) fn peek(&self, hash: u64, is_meant: impl Fn(&Object) -> bool) -> Option<&Arc<Object>> {
        self.by_hash.get(&hash)?.iter().rev().map(|slot| &slot.object).find(|object| is_meant(object))
    }

    /// Adds an object that was asked for so often, in place of one that answers the same requests.
    pub(crate) fn insert(&mut self, hash: u64, object: Arc<Object>, hits: u64) {
        self.remove(hash, |other| other.is_for_same(&object));
        let slot = Rc::new(Slot {
            hash,
            object,
            was_asked_for: Cell::new(false),
            hits: Cell::new(hits),
            is_gone: Cell::new(false),
        });
        self.bytes += slot.object.memory_bytes();
        self.count += 1;
        let slots = self.by_hash.entry(hash).or_default();
        slots.push(slot.clone());
        let oldest = slots.first().filter(|_| slots.len() > RECORDS_MAX).map(|oldest| oldest.object.clone());
        if let Some(oldest) = oldest {
            self.remove(hash, |object| std::ptr::eq(object, Arc::as_ptr(&oldest)));
        }
        self.queue.push_back(slot);
        self.make_room();
    }

    /// Lets go of objects that the store has let go of: their files stay on disk until then.
    pub(crate) fn tidy(&mut self) {
        (0..SWEPT.min(self.queue.len())).for_each(|_| self.sweep());
    }

    /// Lets go of the oldest object if the store has; else it is the newest.
    fn sweep(&mut self) {
        let Some(slot) = self.queue.pop_front() else { return };
        if slot.is_gone.get() {
            return;
        }
        if slot.object.is_alive() {
            self.queue.push_back(slot);
        } else {
            self.remove(slot.hash, |object| std::ptr::eq(object, Arc::as_ptr(&slot.object)));
        }
    }

    /// Removes those of a hash that are meant; whether there were any.
    pub(crate) fn remove(&mut self, hash: u64, is_meant: impl Fn(&Object) -> bool) -> bool {
        let Some(slots) = self.by_hash.get_mut(&hash) else { return false };
        let before = slots.len();
        slots.retain(|slot| {
            let stays = !is_meant(&slot.object);
            if !stays {
                slot.is_gone.set(true);
                self.count -= 1;
                self.bytes -= slot.object.memory_bytes();
            }
            stays
        });
        let removed = slots.len() < before;
        if slots.is_empty() {
            self.by_hash.remove(&hash);
        }
        removed
    }

    fn make_room(&mut self) {
        while self.bytes > self.bytes_max || self.queue.len() > 2 * self.count + 64 {
            let Some(slot) = self.queue.pop_front() else { return };
            if slot.is_gone.get() {
                continue;
            }
            if slot.was_asked_for.replace(false) && slot.object.is_alive() {
                self.queue.push_back(slot);
                continue;
            }
            self.remove(slot.hash, |object| std::ptr::eq(object, Arc::as_ptr(&slot.object)));
        }
    }
}

/// Keys are hashes already.
#[derive(Debug, Default)]
pub(crate) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
