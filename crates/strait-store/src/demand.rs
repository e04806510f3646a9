//! Requests for eviction: refused bytes within the store's limit, and shortages of the file system.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::enospc::EnospcBackoff;

/// Requests for eviction.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// Largest refused request in bytes, added to the free space that eviction aims for.
    refused_bytes: AtomicU64,
    /// ENOSPC backoff.
    pub(crate) enospc: EnospcBackoff,
}

impl Demand {
    /// Notes a refused request of `bytes`.
    pub(crate) fn note_refused(&self, bytes: u64) {
        self.refused_bytes.fetch_max(bytes, Ordering::AcqRel);
    }

    /// Largest refused request in bytes since the last [`clear`](Self::clear).
    pub(crate) fn refused_bytes(&self) -> u64 {
        self.refused_bytes.load(Ordering::Acquire)
    }

    /// Forgets the refused requests: eviction can free no more space for them.
    pub(crate) fn clear(&self) {
        self.refused_bytes.store(0, Ordering::Release);
    }
}
