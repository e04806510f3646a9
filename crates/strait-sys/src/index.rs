//! Words that a ring shares with the kernel.

use std::sync::atomic::{AtomicU32, Ordering};

/// Word shared by both sides: an atomic of the standard library, or of loom.
pub(crate) trait Index {
    /// Loads the word.
    fn load(&self, order: Ordering) -> u32;
    /// Stores the word.
    fn store(&self, value: u32, order: Ordering);
}

impl Index for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        AtomicU32::store(self, value, order);
    }
}

#[cfg(loom)]
impl Index for loom::sync::atomic::AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        loom::sync::atomic::AtomicU32::load(self, order)
    }

    fn store(&self, value: u32, order: Ordering) {
        loom::sync::atomic::AtomicU32::store(self, value, order);
    }
}
