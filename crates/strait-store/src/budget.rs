//! The hard limits: bytes of all files, and how many there are. A file's share is given back when the last who reads it lets go
//! of it, for until then its blocks are in use, whatever the directory says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What there is for all files of a store, and what of it is taken.
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

    /// Bytes that are taken.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire)
    }

    /// Files that are open.
    pub(crate) fn files(&self) -> usize {
        self.files.load(Ordering::Acquire)
    }

    /// Bytes that can be taken.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes())
    }

    /// Files that can be opened.
    pub(crate) fn free_files(&self) -> usize {
        self.files_max.saturating_sub(self.files())
    }

    /// Takes `bytes`, or nothing where that would pass the limit.
    fn take(&self, bytes: u64) -> bool {
        let within = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.capacity_bytes);
        self.used_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, within).is_ok()
    }
}

/// What one file has of the budget.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: AtomicU64,
}

impl Share {
    /// That of a new file of `bytes`, if there is room for it.
    pub(crate) fn take(budget: &Arc<Budget>, bytes: u64) -> Option<Self> {
        let within = |files: usize| (files < budget.files_max).then_some(files + 1);
        budget.files.fetch_update(Ordering::AcqRel, Ordering::Acquire, within).ok()?;
        let share = Self { budget: budget.clone(), bytes: AtomicU64::new(0) };
        share.grow(bytes).then_some(share)
    }

    /// That of a file which is there already, room or not.
    pub(crate) fn of_existing(budget: &Arc<Budget>, bytes: u64) -> Self {
        budget.files.fetch_add(1, Ordering::AcqRel);
        budget.used_bytes.fetch_add(bytes, Ordering::AcqRel);
        Self { budget: budget.clone(), bytes: AtomicU64::new(bytes) }
    }

    /// Bytes of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Takes `more` bytes, or nothing.
    pub(crate) fn grow(&self, more: u64) -> bool {
        let taken = self.budget.take(more);
        if taken {
            self.bytes.fetch_add(more, Ordering::AcqRel);
        }
        taken
    }

    /// Gives back what it has above `bytes`.
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
