//! What is in memory alone is one worker's, and what makes it out of date may come to another: a lease ends for all of them at once.
//!
//! Keys share places. To end one key's leases ends those of a few others, which are fetched again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Places for keys; a power of two.
const PLACES: usize = 16 << 10;

/// How often the leases of each place were ended.
#[derive(Debug)]
pub(crate) struct Leases(Box<[AtomicU32]>);

/// The right to show what was fetched since it was taken.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    leases: Arc<Leases>,
    place: usize,
    ended_before: u32,
}

impl Default for Leases {
    fn default() -> Self {
        Self((0..PLACES).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Leases {
    /// A lease of the key with such a hash.
    pub(crate) fn take(self: &Arc<Self>, hash: u64) -> Lease {
        let place = hash as usize % PLACES;
        Lease { leases: self.clone(), place, ended_before: self.0[place].load(Ordering::Acquire) }
    }

    /// Ends those that were taken so far.
    pub(crate) fn end(&self, hash: u64) {
        self.0[hash as usize % PLACES].fetch_add(1, Ordering::Release);
    }
}

impl Lease {
    /// Whether it has not ended.
    pub(crate) fn holds(&self) -> bool {
        self.leases.0[self.place].load(Ordering::Acquire) == self.ended_before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_for_all_who_have_it_and_not_for_who_takes_it_then() {
        let leases = Arc::new(Leases::default());
        let (one, other, another) = (leases.take(7), leases.take(7), leases.take(8));
        leases.end(7);
        assert!(!one.holds() && !other.holds() && another.holds());
        assert!(leases.take(7).holds());
    }
}
