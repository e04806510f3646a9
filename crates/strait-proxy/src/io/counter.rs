//! Counter that one thread writes and others read.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number that one thread changes. Adding is a load and a store: no lock, no locked instruction.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, less: u64) {
        self.0.store(self.get().wrapping_sub(less), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
