//! Syncs of the store. No caller waits for one, except in `sync` and `close`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::durability::write_checkpoint;
use crate::error::Result;
use crate::file::{SegmentFile, lock};
use crate::format::PAGE_BYTES;
use crate::format::checkpoint::{Checkpoint, HELD_MAX};
use crate::shared::Shared;
use crate::{append, eviction, snapshot};

/// Syncs every file written to, including removals, and then advances the durable number past
/// all writes that had ended before.
pub(crate) fn sync(shared: &Shared) -> Result<()> {
    shared.retry_unlinks();
    let mut checkpoint = shared.durability.checkpoint();
    let last = shared.durability.last_number();
    // A write takes its number and ends under the lock of a lane, so after this loop all writes
    // up to `last` have ended.
    shared.lanes.iter().for_each(|lane| drop(lock(lane)));
    let dirty = shared.durability.take_dirty();
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
        if let Some(reserve) = lane.reserve.take() {
            shared.release_file(reserve);
        }
    }
    for spare in shared.segments.take_spares() {
        shared.release_file(spare);
    }
    eviction::close_unlinked(shared);
    let synced = shared.counted(sync(shared));
    let session = shared.durability.checkpoint().session;
    // A snapshot must not lack records that could not be read, or contain records that a power loss
    // may remove.
    if synced.is_ok() && !shared.unread.any() {
        let _ = shared.counted(snapshot::write(&shared.segments, &shared.index, session));
    }
}
