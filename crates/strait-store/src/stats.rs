//! Counts of what a store did and holds.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// A count that several threads add to.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Events since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) stored: Counter,
    pub(crate) removed: Counter,
    pub(crate) evicted: Counter,
    pub(crate) reinserted: Counter,
    pub(crate) corrupt: Counter,
    pub(crate) unsynced: Counter,
    pub(crate) refused: Counter,
    pub(crate) failed: Counter,
}

/// What a store holds, and what has happened since it was opened. The names are those of the JSON, and of the metrics but for what all
/// metrics have: `strait_store_refused_total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Records that can be found.
    pub records: u64,
    /// Bytes of all files, those included that are evicted and still read.
    pub used_bytes: u64,
    /// Bytes of those files that are evicted and still read.
    pub pinned_bytes: u64,
    /// The limit of `used_bytes`; 0 where the store is only read.
    pub capacity_bytes: u64,
    /// Files that are open.
    pub files: u64,
    /// Records that were committed.
    pub stored: u64,
    /// Records that were removed or replaced on request.
    pub removed: u64,
    /// Records that were dropped to make room.
    pub evicted: u64,
    /// Records that were kept when their file was evicted, for they had been hit.
    pub reinserted: u64,
    /// Records that were not as written, and were dropped.
    pub corrupt: u64,
    /// Records that a power loss may have damaged, and were dropped when the store was loaded.
    pub unsynced: u64,
    /// Requests for room that were refused.
    pub refused: u64,
    /// Calls to the file system that failed.
    pub failed: u64,
    /// Whether the records of earlier sessions can be found.
    pub is_loaded: bool,
}
