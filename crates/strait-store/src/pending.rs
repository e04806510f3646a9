//! Pending unlinks: files that eviction or a removal has let go, until they are closed. A file that is still read keeps its disk
//! space, so its bytes count to the limit; eviction counts on them instead of emptying the next file. Called by the store's
//! eviction thread; the only file system calls are unlink(2) and close(2).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::file::{SegmentFile, lock};

/// How long a file that is still read counts as about to be freed. Most readers are in a sendfile(2) of milliseconds; one that
/// takes longer waits for its client.
const FREED_SOON: Duration = Duration::from_millis(200);
/// Eviction leaves this part of the limits at most to readers of evicted files. Beyond it only files that are not read are evicted;
/// where there are none, requests for room are refused until readers let go.
pub(crate) const HELD_PARTS: u64 = 4;

/// Files to be unlinked, or unlinked and still read.
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

/// Room that files take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    pub(crate) files: usize,
}

impl PendingUnlinks {
    /// Adds a file that was let go.
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

    /// Unlinks the files that were let go and closes those that are not read; returns true if it unlinked any.
    pub(crate) fn close(&self) -> bool {
        let pending = std::mem::take(&mut *lock(&self.files));
        let mut has_unlinked = false;
        let mut read = Vec::new();
        for pending in pending {
            if !pending.file.has_left.load(Ordering::Acquire) {
                pending.file.unlink();
                // Not before: a sync leaves out the files that have left.
                pending.file.has_left.store(true, Ordering::Release);
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

    /// Room that pending files are about to give back.
    pub(crate) fn expected(&self) -> Room {
        self.room(|pending| pending.since.elapsed() < FREED_SOON)
    }

    /// Room that all pending files take.
    pub(crate) fn pending(&self) -> Room {
        self.room(|_| true)
    }

    fn room(&self, is_meant: impl Fn(&PendingUnlink) -> bool) -> Room {
        let mut room = Room::default();
        for pending in lock(&self.files).iter().filter(|pending| is_meant(pending)) {
            room.bytes += pending.file.share.bytes();
            room.files += 1;
        }
        room
    }
}
