//! Counter that one thread writes and others read.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number that one thread changes. Adding is a load and a store: no lock, no locked instruction.
/// Readers get a recent number. Several threads that change one counter lose counts: give each its
/// own, and add the numbers.
#[derive(Debug, Default)]
pub struct SingleWriterCounter(AtomicU64);

impl SingleWriterCounter {
    /// Adds `more`; wraps around at 2^64. Concurrent calls of `add` and `sub` lose counts.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Ordering::Relaxed);
    }

    /// Subtracts `less`; wraps around at 0. Concurrent calls of `add` and `sub` lose counts.
    #[inline]
    pub fn sub(&self, less: u64) {
        self.0.store(self.get().wrapping_sub(less), Ordering::Relaxed);
    }

    /// Returns the number.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clone for SingleWriterCounter {
    fn clone(&self) -> Self {
        Self(self.get().into())
    }
}
