//! When what was written is made to outlive a power loss: never while anybody waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::file::{SegmentFile, lock};
use crate::format::PAGE_BYTES;
use crate::format::marks::{HELD_MAX, Marks};
use crate::open::write_marks;
use crate::shared::Shared;

impl Shared {
    /// Syncs every file that was written to, removals included, and then notes that all writes that had ended before are on disk.
    pub(crate) fn sync(&self) -> Result<()> {
        let mut marks = lock(&self.marks);
        let last = self.last_number();
        // A number is taken and its write is done under the lock of a lane: behind this all up to `last` are done.
        self.lanes.iter().for_each(|lane| drop(lock(lane)));
        let dirty = std::mem::take(&mut *lock(&self.dirty));
        let mut has_unlinked = false;
        for file in dirty.iter().filter_map(std::sync::Weak::upgrade) {
            // An unlinked file has nothing to be kept, and a sync of it would delay its close. One
            // that is only about to be unlinked still has its name: a power loss would bring a
            // removed record back.
            if file.has_left.load(Ordering::Acquire) {
                has_unlinked = true;
                continue;
            }
            file.is_dirty.store(false, Ordering::Release);
            if self.counted(file.sync()).is_err() {
                self.distrust(&file);
            }
        }
        // The thread that unlinked a file may not have noted it yet.
        if self.is_dir_dirty.swap(false, Ordering::AcqRel) || has_unlinked {
            let synced = self.disk.sync_dir(&self.dir);
            synced.map_err(|error| {
                self.note_name();
                crate::error::Error::io("sync", &self.dir, &error)
            })?;
        }
        // A removal has no number.
        if marks.durable < last && marks.held.len() <= HELD_MAX {
            let next = Marks { durable: last, ..marks.clone() };
            let written = write_marks(&self.disk, &self.dir, &next);
            written.inspect_err(|error| self.note_shortage(error, PAGE_BYTES))?;
            *marks = next;
        }
        Ok(())
    }

    /// Gives up a file that could not be synced: after that nobody can say which of its pages are on disk (fsync(2)).
    fn distrust(&self, file: &Arc<SegmentFile>) {
        for lane in &self.lanes {
            let mut lane = lock(lane);
            if lane.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, file)) {
                lane.current = None;
            }
        }
        self.evict(file);
    }

    /// The end of the session: everything is on disk, and what was only kept ready is gone.
    pub(crate) fn finish(&self) {
        for lane in &self.lanes {
            let mut lane = lock(lane);
            self.seal(&mut lane);
            if let Some(reserve) = lane.reserve.take() {
                self.let_go(reserve);
            }
        }
        let spares = std::mem::take(&mut *lock(&self.spares));
        for spare in spares {
            self.let_go(spare);
        }
        self.close_unlinked();
        let synced = self.counted(self.sync());
        let session = lock(&self.marks).session;
        // What could not be read is in no snapshot; what could not be synced may be lost with the next power.
        if synced.is_ok() && !self.has_unread.load(Ordering::Acquire) {
            let _ = self.counted(self.write_snapshot(session));
        }
    }
}
