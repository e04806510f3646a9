//! Hard limits of a store: bytes of all files, and number of open files. A file's share is returned
//! when its last reader closes it: until then its blocks are in use, even if it is unlinked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Limits of a store, and the used part of them.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) capacity_bytes: u64,
    used_bytes: AtomicU64,
    /// Bytes that only eviction may use.
    reserved_bytes: AtomicU64,
    pub(crate) files_max: usize,
    files: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(capacity_bytes: u64, files_max: usize) -> Arc<Self> {
        let (used_bytes, reserved_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { capacity_bytes, used_bytes, reserved_bytes, files_max, files: AtomicUsize::new(0) })
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

    /// Reserves `bytes` for eviction.
    pub(crate) fn reserve(&self, bytes: u64) {
        self.reserved_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Takes `bytes`. Takes nothing and returns false if that exceeds the limit or, except for
    /// eviction, leaves less than the reserved bytes.
    fn take(&self, bytes: u64, is_reserved: bool) -> bool {
        let left = if is_reserved { 0 } else { self.reserved_bytes.load(Ordering::Acquire) };
        let bytes_max = self.capacity_bytes.saturating_sub(left);
        let within = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= bytes_max);
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
        let share = Self::of_new_file(budget)?;
        share.grow(bytes).then_some(share)
    }

    /// Share of a new file of `bytes` that were reserved for eviction.
    pub(crate) fn take_reserved(budget: &Arc<Budget>, bytes: u64) -> Option<Self> {
        let share = Self::of_new_file(budget)?;
        share.add(bytes, true).then(|| {
            budget.reserved_bytes.fetch_sub(bytes, Ordering::AcqRel);
            share
        })
    }

    fn of_new_file(budget: &Arc<Budget>) -> Option<Self> {
        let within = |files: usize| (files < budget.files_max).then_some(files + 1);
        budget.files.fetch_update(Ordering::AcqRel, Ordering::Acquire, within).ok()?;
        Some(Self { budget: budget.clone(), bytes: AtomicU64::new(0) })
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
        self.add(more, false)
    }

    fn add(&self, more: u64, is_reserved: bool) -> bool {
        let taken = self.budget.take(more, is_reserved);
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
