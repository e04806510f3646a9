//! Hit-for-miss: keys with a recent response for one client alone. Requests for them are not
//! coalesced.
//!
//! A table with one place per hash, which the latest key takes. A key that is forgotten costs one
//! request that waits for another.

use std::cell::Cell;

/// Seconds for which a key is remembered.
const SECONDS: u64 = 120;
/// Maximum of remembered keys; a power of two.
const PLACES: usize = 8 << 10;

/// Hit-for-miss keys by their hash.
#[derive(Debug)]
pub(crate) struct HitForMiss(Box<[Cell<(u64, u64)>]>);

impl Default for HitForMiss {
    fn default() -> Self {
        Self(vec![Cell::default(); PLACES].into_boxed_slice())
    }
}

impl HitForMiss {
    fn place(&self, hash: u64) -> &Cell<(u64, u64)> {
        &self.0[hash as usize % PLACES]
    }

    /// Returns true if the last response for a key was for one client alone.
    pub(crate) fn has(&self, hash: u64, now: u64) -> bool {
        let (other, until) = self.place(hash).get();
        other == hash && now < until
    }

    /// Notes such a response.
    pub(crate) fn note(&self, hash: u64, now: u64) {
        self.place(hash).set((hash, now + SECONDS));
    }

    /// Forgets a key: its responses are shared again.
    pub(crate) fn forget(&self, hash: u64) {
        if self.place(hash).get().0 == hash {
            self.place(hash).set((0, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_key_of_a_place_is_remembered_for_a_while() {
        let hit_for_miss = HitForMiss::default();
        hit_for_miss.note(7, 100);
        assert!(hit_for_miss.has(7, 100 + SECONDS - 1) && !hit_for_miss.has(7, 100 + SECONDS));
        hit_for_miss.note(7 + PLACES as u64, 100);
        assert!(!hit_for_miss.has(7, 100) && hit_for_miss.has(7 + PLACES as u64, 100));
        hit_for_miss.forget(7);
        assert!(hit_for_miss.has(7 + PLACES as u64, 100));
        hit_for_miss.forget(7 + PLACES as u64);
        assert!(!hit_for_miss.has(7 + PLACES as u64, 100));
    }
}
