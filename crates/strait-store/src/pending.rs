//! Pending unlinks: files released by eviction or a removal, until they are closed. A file with
//! readers keeps its disk space, so its bytes still count to the limit; eviction counts on getting
//! them back instead of emptying the next file. Called by the store's eviction thread; the only
//! file system calls are unlink(2) and close(2).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::file::{SegmentFile, lock};

/// Time for which a released file with readers counts as about to be freed. Most readers are in a
/// sendfile(2) of milliseconds; a longer one waits for its client.
const FREED_SOON: Duration = Duration::from_millis(200);
/// Divisor of the limits: readers of evicted files hold at most this part. Beyond it only files
/// without readers are evicted. If there are none, reservations are refused until readers finish.
pub(crate) const HELD_PARTS: u64 = 4;

/// Files to be unlinked, and unlinked files with readers.
#[derive(Debug, Default)]
pub(crate) struct PendingUnlinks {
    files: Mutex<Vec<PendingUnlink>>,
    pinned_bytes: AtomicU64,
    pinned_files: AtomicUsize,
}

#[derive(Debug)]
struct PendingUnlink {
    file: Arc<SegmentFile>,
    since: Instant,
}

/// Bytes and number of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) bytes: u64,
    pub(crate) files: usize,
}

impl PendingUnlinks {
    /// Adds a released file.
    pub(crate) fn push(&self, file: Arc<SegmentFile>) {
        lock(&self.files).push(PendingUnlink { file, since: Instant::now() });
    }

    /// Returns true if no file is pending.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.files).is_empty()
    }

    /// Bytes of evicted files that are still read, as of the last [`close`](Self::close).
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes.load(Ordering::Relaxed)
    }

    /// Number of evicted files that are still read, as of the last [`close`](Self::close).
    pub(crate) fn pinned_files(&self) -> usize {
        self.pinned_files.load(Ordering::Relaxed)
    }

    /// Unlinks the released files and closes those without readers. Returns true if it unlinked
    /// any.
    pub(crate) fn close(&self) -> bool {
        let pending = std::mem::take(&mut *lock(&self.files));
        let mut has_unlinked = false;
        let mut read = Vec::new();
        for pending in pending {
            if !pending.file.is_unlinked.load(Ordering::Acquire) {
                pending.file.unlink();
                // Set only after the unlink, because a sync skips files with this flag.
                pending.file.is_unlinked.store(true, Ordering::Release);
                has_unlinked = true;
            }
            if Arc::strong_count(&pending.file) > 1 {
                read.push(pending);
            }
        }
        let bytes = read.iter().map(|pending| pending.file.share.bytes()).sum();
        self.pinned_bytes.store(bytes, Ordering::Relaxed);
        self.pinned_files.store(read.len(), Ordering::Relaxed);
        lock(&self.files).append(&mut read);
        has_unlinked
    }

    /// Space that pending files are about to give back.
    pub(crate) fn expected(&self) -> Space {
        self.space(|pending| pending.since.elapsed() < FREED_SOON)
    }

    /// Space that all pending files take.
    pub(crate) fn pending(&self) -> Space {
        self.space(|_| true)
    }

    fn space(&self, is_meant: impl Fn(&PendingUnlink) -> bool) -> Space {
        let mut space = Space::default();
        for pending in lock(&self.files).iter().filter(|pending| is_meant(pending)) {
            space.bytes += pending.file.share.bytes();
            space.files += 1;
        }
        space
    }
}
