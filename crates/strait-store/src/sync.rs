//! Syncs of the store. No caller waits for one, except in `sync` and `close`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::file::{SegmentFile, lock};
use crate::format::PAGE_BYTES;
use crate::format::checkpoint::{Checkpoint, HELD_MAX};
use crate::open::write_checkpoint;
use crate::shared::Shared;

impl Shared {
    /// Syncs every file written to, including removals, and then advances the durable number past
    /// all writes that had ended before.
    pub(crate) fn sync(&self) -> Result<()> {
        self.retry_unlinks();
        let mut checkpoint = lock(&self.checkpoint);
        let last = self.last_number();
        // A write takes its number and ends under the lock of a lane, so after this loop all writes
        // up to `last` have ended.
        self.lanes.iter().for_each(|lane| drop(lock(lane)));
        let dirty = std::mem::take(&mut *lock(&self.dirty));
        let mut has_unlinked = false;
        for file in dirty.iter().filter_map(std::sync::Weak::upgrade) {
            // A sync of an unlinked file is useless and would delay its close. A released file that
            // still has its name is synced: otherwise a power loss would bring a removed record
            // back.
            if file.is_unlinked.load(Ordering::Acquire) {
                has_unlinked = true;
                continue;
            }
            file.is_dirty.store(false, Ordering::Release);
            if self.counted(file.sync()).is_err() {
                self.distrust(&file);
            }
        }
        // The eviction thread may have unlinked a file without having noted it yet.
        if self.is_dir_dirty.swap(false, Ordering::AcqRel) || has_unlinked {
            let synced = self.disk.sync_dir(&self.dir);
            synced.map_err(|error| {
                self.note_name();
                crate::error::Error::io("sync", &self.dir, &error)
            })?;
        }
        // A removal has no number.
        if checkpoint.durable < last && checkpoint.held.len() <= HELD_MAX {
            let next = Checkpoint { durable: last, ..checkpoint.clone() };
            let written = write_checkpoint(&self.disk, &self.dir, &next);
            written.inspect_err(|error| self.note_shortage(error, PAGE_BYTES))?;
            *checkpoint = next;
        }
        Ok(())
    }

    /// Retries failed unlinks. The eviction thread closes the unlinked files.
    fn retry_unlinks(&self) {
        let mut has_unlinked = self.unlinks.retry(|unlinked| self.counted(unlinked));
        has_unlinked |= self.retry_unread();
        if has_unlinked {
            self.note_name();
            self.wake();
        }
    }

    /// Evicts a file that could not be synced: afterwards the kernel may have dropped dirty pages,
    /// so it is unknown which are on disk (fsync(2)).
    fn distrust(&self, file: &Arc<SegmentFile>) {
        for lane in &self.lanes {
            let mut lane = lock(lane);
            if lane.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, file)) {
                lane.current = None;
            }
        }
        self.evict(file);
    }

    /// Ends the session: syncs everything, and releases the spare segments.
    pub(crate) fn finish(&self) {
        for lane in &self.lanes {
            let mut lane = lock(lane);
            self.seal(&mut lane);
            if let Some(reserve) = lane.reserve.take() {
                self.release_file(reserve);
            }
        }
        let spares = std::mem::take(&mut *lock(&self.spares));
        for spare in spares {
            self.release_file(spare);
        }
        self.close_unlinked();
        let synced = self.counted(self.sync());
        let session = lock(&self.checkpoint).session;
        // A snapshot must not miss records that could not be read, or name records that a power
        // loss may take.
        if synced.is_ok() && !self.has_unread.load(Ordering::Acquire) {
            let _ = self.counted(self.write_snapshot(session));
        }
    }
}
