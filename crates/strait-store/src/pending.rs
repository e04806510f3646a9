//! Pending unlinks: files released by eviction or a removal, until they are closed. A file with
//! readers keeps its disk space, so its bytes still count towards the limit; eviction expects them
//! to be freed instead of emptying the next file. The eviction thread unlinks and closes; the only
//! file system calls are unlink(2) and close(2).
//!
//! If unlink(2) fails, the file keeps its name and its space, and the next sync retries. Until then
//! a sync includes the file: without its dead records on disk, a power loss would restore them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::file::{SegmentFile, lock};

/// Time for which a released file with readers counts as about to be freed. Most readers are in a
/// sendfile(2) of milliseconds; a longer one waits for its client.
const FREED_SOON: Duration = Duration::from_millis(200);
/// Divisor of the limits: readers of evicted files hold at most this part. Beyond it only files
/// without readers are evicted. If there are none, reservations are refused until readers finish.
pub(crate) const PINNED_DIVISOR: u64 = 4;

/// Files to be unlinked, and unlinked files with readers.
#[derive(Debug, Default)]
pub(crate) struct PendingUnlinks {
    files: Mutex<Vec<PendingUnlink>>,
    /// Files with a failed unlink.
    failed: Mutex<Vec<PendingUnlink>>,
    pinned_bytes: AtomicU64,
    pinned_files: AtomicUsize,
}

#[derive(Debug)]
struct PendingUnlink {
    file: Arc<SegmentFile>,
    since: Instant,
}

/// Result of closing files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    /// True if a file was unlinked.
    pub(crate) has_unlinked: bool,
    /// True if a file was closed, which frees its space.
    pub(crate) has_freed: bool,
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

    /// Adds a file that could not be unlinked.
    pub(crate) fn push_failed(&self, file: Arc<SegmentFile>) {
        lock(&self.failed).push(PendingUnlink { file, since: Instant::now() });
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

    /// Unlinks the released files and closes those without readers. `count` counts a failure.
    pub(crate) fn close(&self, mut count: impl FnMut(Result<()>) -> Result<()>) -> Closed {
        let pending = std::mem::take(&mut *lock(&self.files));
        let (mut has_unlinked, mut has_freed) = (false, false);
        let mut read = Vec::new();
        for pending in pending {
            if !pending.file.is_unlinked.load(Ordering::Acquire) {
                let unlinked = pending.file.unlink();
                if unlinked.is_err() {
                    // Before it is counted: who sees the count can rely on the retry.
                    lock(&self.failed).push(pending);
                    let _ = count(unlinked);
                    continue;
                }
                has_unlinked = true;
            }
            if Arc::strong_count(&pending.file) > 1 {
                read.push(pending);
            } else {
                has_freed = true;
            }
        }
        let bytes = read.iter().map(|pending| pending.file.share.bytes()).sum();
        self.pinned_bytes.store(bytes, Ordering::Relaxed);
        self.pinned_files.store(read.len(), Ordering::Relaxed);
        lock(&self.files).append(&mut read);
        Closed { has_unlinked, has_freed }
    }

    /// Retries the failed unlinks. The eviction thread then closes the unlinked files. `count`
    /// counts a failure. Returns true if it unlinked any.
    pub(crate) fn retry(&self, mut count: impl FnMut(Result<()>) -> Result<()>) -> bool {
        let failed = std::mem::take(&mut *lock(&self.failed));
        let mut has_unlinked = false;
        for pending in failed {
            if count(pending.file.unlink()).is_err() {
                lock(&self.failed).push(pending);
            } else {
                lock(&self.files).push(pending);
                has_unlinked = true;
            }
        }
        has_unlinked
    }

    /// Space of pending files that is expected to be freed soon.
    pub(crate) fn expected(&self) -> Space {
        self.space(|pending| pending.since.elapsed() < FREED_SOON)
    }

    /// Space of all pending files.
    pub(crate) fn pending(&self) -> Space {
        let mut space = self.space(|_| true);
        lock(&self.failed).iter().for_each(|pending| space.add(&pending.file));
        space
    }

    fn space(&self, is_meant: impl Fn(&PendingUnlink) -> bool) -> Space {
        let mut space = Space::default();
        for pending in lock(&self.files).iter().filter(|pending| is_meant(pending)) {
            space.add(&pending.file);
        }
        space
    }
}

impl Space {
    fn add(&mut self, file: &SegmentFile) {
        self.bytes += file.share.bytes();
        self.files += 1;
    }
}
