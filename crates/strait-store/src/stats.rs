//! Counters and sizes of a store.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// Counter that several threads increment.
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
    pub(crate) reinserted_bytes: Counter,
    pub(crate) corrupt: Counter,
    pub(crate) scrubbed: Counter,
    pub(crate) scrubbed_bytes: Counter,
    pub(crate) scrub_cpu_ns: Counter,
    pub(crate) unsynced: Counter,
    pub(crate) refused: Counter,
    pub(crate) without_spare: Counter,
    pub(crate) failed: Counter,
}

/// State of a store, and counts of events since it was opened. The field names are those of the
/// JSON output, and of the metrics without the common prefix and suffix
/// (`strait_store_refused_total`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Records in the index.
    pub records: u64,
    /// Bytes of all files, including evicted files with readers.
    pub used_bytes: u64,
    /// Bytes of evicted files with readers.
    pub pinned_bytes: u64,
    /// Limit of `used_bytes`; 0 in a read-only store.
    pub capacity_bytes: u64,
    /// Open files.
    pub files: u64,
    /// Committed records.
    pub stored: u64,
    /// Records removed or replaced on request.
    pub removed: u64,
    /// Records dropped by eviction.
    pub evicted: u64,
    /// Records that eviction kept.
    pub reinserted: u64,
    /// Bytes of records that eviction has copied.
    pub reinserted_bytes: u64,
    /// Damaged records that were dropped.
    pub corrupt: u64,
    /// Records that the scrub has read to their end and found intact.
    pub scrubbed: u64,
    /// Bytes that the scrub has read.
    pub scrubbed_bytes: u64,
    /// CPU time of the scrub in nanoseconds; the metric is in seconds.
    pub scrub_cpu_ns: u64,
    /// Records dropped at loading because a power loss may have damaged them.
    pub unsynced: u64,
    /// Objects refused for lack of space, or because their key, meta or body is too long.
    pub refused: u64,
    /// Segments that a writing thread created itself or waited for, because no spare was ready.
    pub without_spare: u64,
    /// Failed file-system calls.
    pub failed: u64,
    /// Directories that cannot be used now.
    pub lost: u64,
    /// True if the records of earlier sessions are loaded.
    pub is_loaded: bool,
}

impl Stats {
    /// Sum of two stores.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            records: self.records + other.records,
            used_bytes: self.used_bytes + other.used_bytes,
            pinned_bytes: self.pinned_bytes + other.pinned_bytes,
            capacity_bytes: self.capacity_bytes + other.capacity_bytes,
            files: self.files + other.files,
            stored: self.stored + other.stored,
            removed: self.removed + other.removed,
            evicted: self.evicted + other.evicted,
            reinserted: self.reinserted + other.reinserted,
            reinserted_bytes: self.reinserted_bytes + other.reinserted_bytes,
            corrupt: self.corrupt + other.corrupt,
            scrubbed: self.scrubbed + other.scrubbed,
            scrubbed_bytes: self.scrubbed_bytes + other.scrubbed_bytes,
            scrub_cpu_ns: self.scrub_cpu_ns + other.scrub_cpu_ns,
            unsynced: self.unsynced + other.unsynced,
            refused: self.refused + other.refused,
            without_spare: self.without_spare + other.without_spare,
            failed: self.failed + other.failed,
            lost: self.lost + other.lost,
            is_loaded: self.is_loaded && other.is_loaded,
        }
    }
}
