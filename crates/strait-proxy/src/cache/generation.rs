//! Generations of keys: an object that was fetched or read before an invalidation must not get into
//! the memory cache after it.
//!
//! A generation is taken before a fetch or a read, and must still hold when the object is inserted.
//! Keys share counters by a keyed hash, so that clients cannot choose keys that collide. An
//! invalidation ends the generations of a few other keys as well; their objects are not kept in
//! memory this time. A ban ends the generations of the keys that match it.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cache::pattern::Pattern;

/// Counters of keys; a power of two.
const PLACES: usize = 16 << 10;
/// Bans that are remembered; an older generation counts as ended.
const BANS_MAX: usize = 256;

/// Number of invalidations of each counter.
#[derive(Debug)]
pub(crate) struct Generations {
    places: Box<[AtomicU32]>,
    keys: RandomState,
    bans: Mutex<VecDeque<Pattern>>,
    banned: AtomicU64,
}

/// Generation of a key at the time when it was taken.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    generations: Arc<Generations>,
    place: usize,
    ended_before: u32,
    banned_before: u64,
}

impl Default for Generations {
    fn default() -> Self {
        Self {
            places: (0..PLACES).map(|_| AtomicU32::new(0)).collect(),
            keys: RandomState::new(),
            bans: Mutex::default(),
            banned: AtomicU64::new(0),
        }
    }
}

impl Generations {
    /// Takes the current generation of the key with that hash.
    pub(crate) fn take(self: &Arc<Self>, hash: u64) -> Generation {
        let place = self.place(hash);
        let ended_before = self.places[place].load(Ordering::Acquire);
        Generation {
            generations: self.clone(),
            place,
            ended_before,
            banned_before: self.banned.load(Ordering::Acquire),
        }
    }

    fn place(&self, hash: u64) -> usize {
        self.keys.hash_one(hash) as usize % PLACES
    }

    /// Ends the generations of a key that were taken so far.
    pub(crate) fn end(&self, hash: u64) {
        self.places[self.place(hash)].fetch_add(1, Ordering::Release);
    }

    /// Ends the generations of all keys that match.
    pub(crate) fn end_matching(&self, pattern: &Pattern) {
        let mut bans = self.bans.lock().unwrap_or_else(PoisonError::into_inner);
        if bans.len() == BANS_MAX {
            bans.pop_front();
        }
        bans.push_back(pattern.clone());
        self.banned.fetch_add(1, Ordering::Release);
    }

    /// Ends the generations of all keys: a ban that is not remembered.
    pub(crate) fn end_all(&self) {
        let mut bans = self.bans.lock().unwrap_or_else(PoisonError::into_inner);
        bans.clear();
        self.banned.fetch_add(1, Ordering::Release);
    }

    /// Returns true if a ban after the first `before` bans matches the key, or is no longer
    /// remembered.
    fn is_banned_since(&self, before: u64, key: &str) -> bool {
        if self.banned.load(Ordering::Acquire) == before {
            return false;
        }
        let bans = self.bans.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = (self.banned.load(Ordering::Acquire) - before) as usize;
        newer > bans.len() || bans.iter().rev().take(newer).any(|ban| ban.matches(key))
    }
}

impl Generation {
    /// Returns true if the generation has not ended; `key` is its key.
    pub(crate) fn holds(&self, key: &str) -> bool {
        self.generations.places[self.place].load(Ordering::Acquire) == self.ended_before
            && !self.generations.is_banned_since(self.banned_before, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalidation_ends_earlier_generations_alone() {
        let generations = Arc::new(Generations::default());
        let (one, other) = (generations.take(7), generations.take(7));
        let others: Vec<_> = (8..108).map(|hash| generations.take(hash)).collect();
        generations.end(7);
        assert!(
            !one.holds("a")
                && !other.holds("a")
                && others.iter().filter(|generation| generation.holds("a")).count() > 90
        );
        assert!(generations.take(7).holds("a"));
        let taken = generations.take(7);
        generations.end_matching(&Pattern::new("b*").unwrap());
        assert!(taken.holds("a") && !taken.holds("bc") && generations.take(7).holds("bc"));
    }

    #[test]
    fn generations_of_all_keys_end() {
        let generations = Arc::new(Generations::default());
        generations.end_matching(&Pattern::new("b*").unwrap());
        let old = [generations.take(7), generations.take(8)];
        generations.end_all();
        let new = generations.take(7);
        for pattern in ["c*", "d*"] {
            assert!(!old.iter().any(|old| old.holds("a")) && new.holds("a"));
            generations.end_matching(&Pattern::new(pattern).unwrap());
        }
        assert!(!new.holds("c") && new.holds("b"));
    }
}
