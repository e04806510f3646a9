//! Syncs of the store. No caller waits for one, except in `sync` and `close`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::durability::write_checkpoint;
use crate::error::{Error, Result};
use crate::file::{SegmentFile, lock};
use crate::format::PAGE_BYTES;
use crate::format::checkpoint::{Checkpoint, HELD_MAX};
use crate::shared::Shared;
use crate::{append, eviction, journal};

/// Syncs every file written to, including removals, advances the durable number past all writes
/// that had ended before, and then adds the changes of the index to its journal.
pub(crate) fn sync(shared: &Shared) -> Result<()> {
    sync_with(shared, false)
}

/// Like [`sync`], and replaces the journal if `is_last`.
fn sync_with(shared: &Shared, is_last: bool) -> Result<()> {
    shared.retry_unlinks();
    let mut checkpoint = shared.durability.checkpoint();
    let batch = journal::cut(shared, is_last);
    // If a batch is not written, the next one is whole.
    sync_files(shared, &mut checkpoint, batch.number).inspect_err(|_| shared.journal.lose())?;
    if shared.unread.any() || checkpoint.durable < batch.number {
        // The index lacks records that could not be read, or not all of it is durable.
        shared.journal.lose();
    } else {
        let written = journal::write_batch(shared, checkpoint.session, &batch, is_last);
        // Without a batch the store works as well; the next start takes longer.
        if !matches!(written, Err(Error::Full { .. })) {
            let _ = shared.counted(written);
        }
    }
    Ok(())
}

/// Syncs every file written to, and advances the durable number to `last`. All writes up to it have
/// ended.
fn sync_files(shared: &Shared, checkpoint: &mut Checkpoint, last: u64) -> Result<()> {
    let dirty = shared.durability.take_dirty();
    let mut has_unlinked = false;
    for file in &dirty {
        let Some(file) = file.upgrade() else {
            // It was unlinked and closed.
            has_unlinked = true;
            continue;
        };
        // A sync of an unlinked file is useless and would delay its close. A released file that
        // still has its name is synced: otherwise a power loss would bring a removed record
        // back.
        if file.is_unlinked.load(Ordering::Acquire) {
            has_unlinked = true;
            continue;
        }
        file.is_dirty.store(false, Ordering::Release);
        if shared.counted(file.sync()).is_err() {
            distrust(shared, &file);
        }
    }
    // The eviction thread may have unlinked a file without having noted it yet.
    shared.segments.sync_dir(has_unlinked)?;
    // A removal has no number.
    if checkpoint.durable < last && checkpoint.held.len() <= HELD_MAX {
        let next = Checkpoint { durable: last, ..checkpoint.clone() };
        let written = write_checkpoint(&shared.segments.disk, &shared.segments.dir, &next);
        written.inspect_err(|error| shared.note_shortage(error, PAGE_BYTES))?;
        *checkpoint = next;
    }
    Ok(())
}

/// Evicts a file that could not be synced: afterwards the kernel may have dropped dirty pages,
/// so it is unknown which are on disk (fsync(2)).
fn distrust(shared: &Shared, file: &Arc<SegmentFile>) {
    for lane in &shared.lanes {
        let mut lane = lock(lane);
        if lane.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, file)) {
            lane.current = None;
        }
    }
    eviction::drop_file(shared, file);
}

/// Ends the session: syncs everything, and releases the spare segments.
pub(crate) fn finish(shared: &Shared) {
    if shared.lifecycle.is_abandoned() {
        return;
    }
    for lane in &shared.lanes {
        let mut lane = lock(lane);
        append::seal(shared, &mut lane);
        for reserve in lane.reserves.drain(..) {
            shared.release_file(reserve);
        }
    }
    for spare in shared.segments.spares.take_all() {
        shared.release_file(spare);
    }
    eviction::close_unlinked(shared);
    while eviction::cut_next(shared, true).is_some() {}
    let _ = shared.counted(sync_with(shared, true));
}
