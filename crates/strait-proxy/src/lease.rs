//! What is in memory alone is one worker's, and what makes it out of date may come to another: a lease ends for all of them at once.
//!
//! Keys share places, and nobody outside can tell which do. To end one key's leases ends those of a few others, which are fetched again.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Places for keys; a power of two.
const PLACES: usize = 16 << 10;

/// How often the leases of each place were ended.
#[derive(Debug)]
pub(crate) struct Leases {
    places: Box<[AtomicU32]>,
    keys: RandomState,
}

/// The right to show what was fetched since it was taken.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    leases: Arc<Leases>,
    place: usize,
    ended_before: u32,
}

impl Default for Leases {
    fn default() -> Self {
        Self { places: (0..PLACES).map(|_| AtomicU32::new(0)).collect(), keys: RandomState::new() }
    }
}

impl Leases {
    /// A lease of the key with such a hash.
    pub(crate) fn take(self: &Arc<Self>, hash: u64) -> Lease {
        let place = self.place(hash);
        Lease { leases: self.clone(), place, ended_before: self.places[place].load(Ordering::Acquire) }
    }

    fn place(&self, hash: u64) -> usize {
        self.keys.hash_one(hash) as usize % PLACES
    }

    /// Ends those that were taken so far.
    pub(crate) fn end(&self, hash: u64) {
        self.places[self.place(hash)].fetch_add(1, Ordering::Release);
    }

    /// The same of all keys.
    pub(crate) fn end_all(&self) {
        for place in &self.places {
            place.fetch_add(1, Ordering::Release);
        }
    }
}

impl Lease {
    /// Whether it has not ended.
    pub(crate) fn holds(&self) -> bool {
        self.leases.places[self.place].load(Ordering::Acquire) == self.ended_before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_for_all_who_have_it_and_not_for_who_takes_it_then() {
        let leases = Arc::new(Leases::default());
        let (one, other) = (leases.take(7), leases.take(7));
        let others: Vec<_> = (8..108).map(|hash| leases.take(hash)).collect();
        leases.end(7);
        assert!(!one.holds() && !other.holds() && others.iter().filter(|lease| lease.holds()).count() > 90);
        assert!(leases.take(7).holds());
        leases.end_all();
        assert!(!others.iter().any(Lease::holds));
    }
}
