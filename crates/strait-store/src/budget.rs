//! Hard limits of a store: bytes of all files, and number of open files. A file's share is returned
//! when its last reader closes it: until then its blocks are in use, even if it is unlinked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Limits of a store, and the used part of them.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) capacity_bytes: u64,
    used_bytes: AtomicU64,
    pub(crate) files_max: usize,
    files: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(capacity_bytes: u64, files_max: usize) -> Arc<Self> {
        let (used_bytes, files) = (AtomicU64::new(0), AtomicUsize::new(0));
        Arc::new(Self { capacity_bytes, used_bytes, files_max, files })
    }

    /// Used bytes.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire)
    }

    /// Open files.
    pub(crate) fn files(&self) -> usize {
        self.files.load(Ordering::Acquire)
    }

    /// Bytes left below the limit.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes())
    }

    /// Files that can still be opened.
    pub(crate) fn free_files(&self) -> usize {
        self.files_max.saturating_sub(self.files())
    }

    /// Reserves `bytes`. Reserves nothing and returns false if that exceeds the limit.
    fn take(&self, bytes: u64) -> bool {
        let within = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.capacity_bytes);
        self.used_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, within).is_ok()
    }
}

/// Share of one file in the budget.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: AtomicU64,
}

impl Share {
    /// Share of a new file of `bytes`; `None` if it exceeds a limit.
    pub(crate) fn take(budget: &Arc<Budget>, bytes: u64) -> Option<Self> {
        let within = |files: usize| (files < budget.files_max).then_some(files + 1);
        budget.files.fetch_update(Ordering::AcqRel, Ordering::Acquire, within).ok()?;
        let share = Self { budget: budget.clone(), bytes: AtomicU64::new(0) };
        share.grow(bytes).then_some(share)
    }

    /// Share of an existing file, counted even if it exceeds a limit.
    pub(crate) fn of_existing(budget: &Arc<Budget>, bytes: u64) -> Self {
        budget.files.fetch_add(1, Ordering::AcqRel);
        budget.used_bytes.fetch_add(bytes, Ordering::AcqRel);
        Self { budget: budget.clone(), bytes: AtomicU64::new(bytes) }
    }

    /// Bytes of the share.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Adds `more` bytes; returns false, and adds none, if that exceeds the limit.
    pub(crate) fn grow(&self, more: u64) -> bool {
        let taken = self.budget.take(more);
        if taken {
            self.bytes.fetch_add(more, Ordering::AcqRel);
        }
        taken
    }

    /// Returns the bytes above `bytes` to the budget.
    pub(crate) fn shrink_to(&self, bytes: u64) {
        let before = self.bytes.fetch_min(bytes, Ordering::AcqRel);
        self.budget.used_bytes.fetch_sub(before.saturating_sub(bytes), Ordering::AcqRel);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used_bytes.fetch_sub(self.bytes(), Ordering::AcqRel);
        self.budget.files.fetch_sub(1, Ordering::AcqRel);
    }
}
