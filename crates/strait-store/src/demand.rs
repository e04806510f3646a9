//! Requests for eviction: refused bytes within the store's limit, and shortages of the file system.
//! Callers wait here for the space that eviction frees.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use crate::enospc::EnospcBackoff;
use crate::file::lock;

/// Requests for eviction.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// Largest refused request in bytes.
    refused_bytes: AtomicU64,
    /// Bytes that callers wait for.
    waiting_bytes: AtomicU64,
    /// ENOSPC backoff.
    pub(crate) enospc: EnospcBackoff,
    progress: Mutex<Progress>,
    has_progressed: Condvar,
}

/// Progress of eviction, for the callers that wait for it.
#[derive(Debug, Default)]
struct Progress {
    /// Number of times that space was freed.
    freed: u64,
    /// Number of passes that have begun.
    passes: u64,
    /// The last pass that found nothing to evict.
    futile: u64,
    /// True if a wait has timed out since a pass reached its goal.
    is_stalled: bool,
}

/// State of eviction that a wait begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Since {
    freed: u64,
    passes: u64,
}

impl Demand {
    /// Notes a refused request of `bytes`.
    pub(crate) fn note_refused(&self, bytes: u64) {
        self.refused_bytes.fetch_max(bytes, Ordering::AcqRel);
    }

    /// Bytes to free in addition to those that are always kept free: for the callers that wait, and
    /// for the largest request that was refused since the last [`clear`](Self::clear).
    pub(crate) fn wanted_bytes(&self) -> u64 {
        self.waiting_bytes.load(Ordering::Acquire).max(self.refused_bytes())
    }

    /// Largest request in bytes that was refused since the last [`clear`](Self::clear).
    pub(crate) fn refused_bytes(&self) -> u64 {
        self.refused_bytes.load(Ordering::Acquire)
    }

    /// Forgets the refused requests of at most `bytes`: eviction can free no more space for them. A
    /// larger one that came meanwhile stays for the next pass, for which its caller has woken the
    /// thread.
    pub(crate) fn clear(&self, bytes: u64) {
        let _ = self.refused_bytes.compare_exchange(bytes, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Requests `bytes` until the result is dropped.
    pub(crate) fn request(&self, bytes: u64) -> Request<'_> {
        self.waiting_bytes.fetch_add(bytes, Ordering::AcqRel);
        Request { demand: self, bytes }
    }

    /// Begins a pass of eviction.
    pub(crate) fn begin_pass(&self) {
        lock(&self.progress).passes += 1;
    }

    /// Notes that space was freed.
    pub(crate) fn note_freed(&self) {
        lock(&self.progress).freed += 1;
        self.has_progressed.notify_all();
    }

    /// Notes that the current pass has freed all that was requested.
    pub(crate) fn note_done(&self) {
        lock(&self.progress).is_stalled = false;
    }

    /// Notes that the current pass can evict nothing.
    pub(crate) fn note_futile(&self) {
        let mut progress = lock(&self.progress);
        progress.futile = progress.passes;
        drop(progress);
        self.has_progressed.notify_all();
    }

    /// Returns the state before an attempt to take space.
    pub(crate) fn now(&self) -> Since {
        let progress = lock(&self.progress);
        Since { freed: progress.freed, passes: progress.passes }
    }

    /// Waits until space was freed since `since`. Returns false if a pass that began after it found
    /// nothing to evict, or if nothing was freed until `deadline`. After such a stall it does not
    /// wait until a pass has freed all that was requested.
    pub(crate) fn wait_freed(&self, since: Since, deadline: Instant) -> bool {
        let mut progress = lock(&self.progress);
        loop {
            if progress.freed != since.freed {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            progress.is_stalled |= left.is_zero();
            if progress.is_stalled || progress.futile > since.passes {
                return false;
            }
            let Ok((guard, _)) = self.has_progressed.wait_timeout(progress, left) else { return false };
            progress = guard;
        }
    }
}

/// Request of a caller that waits for space.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    demand: &'a Demand,
    bytes: u64,
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.demand.waiting_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_that_is_refused_during_a_pass_is_left_to_the_next_one() {
        let demand = Demand::default();
        demand.note_refused(10);
        let seen = demand.refused_bytes();
        demand.note_refused(20);
        demand.clear(seen);
        assert_eq!(demand.wanted_bytes(), 20);
        demand.clear(20);
        assert_eq!(demand.wanted_bytes(), 0);
    }
}
