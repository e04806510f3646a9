//! Eviction. Frees space ahead of need, one file at a time, oldest first: FIFO with reinsertion.
//! Records that were hit since they were stored or last moved are copied; the others are dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::append;
use crate::error::{Error, Result};
use crate::file::{Extent, SegmentFile, lock};
use crate::format::{PAGE_BYTES, RECORD_HEADER_BYTES, State};
use crate::lane::{Head, Lane};
use crate::pending::PINNED_DIVISOR;
use crate::read::{Loaded, read};
use crate::record::{Location, Record};
use crate::shared::Shared;

/// Number of spare segments.
pub(crate) const SPARES: usize = 2;
/// Limit of files evicted at a time for one shortage.
const SHORTAGE_FILES_MAX: usize = 8;
/// Eviction for one shortage frees at most the used bytes divided by this.
const SHORTAGE_DIVISOR: u64 = 2;
/// Minimum of descriptors that stay free for objects with files of their own.
const FILES_FREE_MIN: usize = 4;
/// Eviction of a file copies at most the segment size divided by this, so that it frees some space.
const REINSERTED_DIVISOR: u64 = 2;
/// Limit of bodies that are read and checked when they are moved. The kernel copies longer ones.
const READ_BYTES_MAX: usize = 1 << 20;

/// Evicts until the spare segments exist and the requested bytes are free.
pub(crate) fn evict_ahead(shared: &Shared) {
    evict_for_shortage(shared);
    while !shared.lifecycle.is_closed() {
        close_unlinked(shared);
        if lacking_segments(shared) > 0 && shared.segments.has_segment() {
            match shared.counted(append::make_segment(shared, "make a segment")) {
                Ok(spare) => add_ready(shared, spare),
                Err(_) if evict_for_shortage(shared) => {}
                Err(_) => return,
            }
        } else if expects_space(shared) || evict_before(shared, u64::MAX).is_none() {
            break;
        }
    }
    shared.demand.clear();
}

/// Number of segments to make.
fn lacking_segments(shared: &Shared) -> usize {
    let lacks_reserve = shared.eviction_lane().reserve.is_none();
    usize::from(lacks_reserve) + SPARES.saturating_sub(shared.segments.spares())
}

/// Adds a new segment: as the reserve of eviction if that is missing, else as a spare.
fn add_ready(shared: &Shared, segment: Arc<SegmentFile>) {
    let reserve = &mut shared.eviction_lane().reserve;
    if reserve.is_none() {
        *reserve = Some(segment);
    } else {
        shared.segments.add_spare(segment);
    }
}

/// Returns true if the requested space is free, or will be once pending unlinks are closed.
fn expects_space(shared: &Shared) -> bool {
    let budget = &shared.segments.budget;
    let expected = shared.segments.unlinks.expected();
    let demand_bytes = shared.segments.extent_bytes_max() + shared.demand.refused_bytes();
    let lacking = lacking_segments(shared);
    let wanted_bytes =
        demand_bytes.min(budget.capacity_bytes / 2) + lacking as u64 * shared.segments.segment_bytes;
    budget.free_bytes() + expected.bytes >= wanted_bytes
        && budget.free_files() + expected.files >= FILES_FREE_MIN + lacking
}

/// Evicts for a shortage of the file system, if there is one and its time has come. Returns true if
/// a file was evicted. The newest file stays.
pub(crate) fn evict_for_shortage(shared: &Shared) -> bool {
    let Some(lacking_bytes) = shared.demand.enospc.take_due() else { return false };
    let wanted_bytes = lacking_bytes.min(shared.segments.budget.used_bytes() / SHORTAGE_DIVISOR);
    let newest = shared.segments.last_position();
    let (mut freed_bytes, mut files) = (0, 0);
    while freed_bytes < wanted_bytes && files < SHORTAGE_FILES_MAX {
        let Some(bytes) = newest.and_then(|newest| evict_before(shared, newest)) else { break };
        close_unlinked(shared);
        freed_bytes += bytes;
        files += 1;
    }
    files > 0
}

/// Unlinks released files, and closes those without readers.
pub(crate) fn close_unlinked(shared: &Shared) {
    if shared.segments.unlinks.close(|unlinked| shared.counted(unlinked)) {
        shared.segments.note_name();
    }
}

/// Evicts the first suitable file with a queue position before `end`. Returns the bytes that it
/// frees; `None` if there is no such file. Skips files with writers. Skips files with readers
/// while readers of evicted files hold their limit: evicting such files frees nothing, and
/// would continue until the store is empty.
pub(crate) fn evict_before(shared: &Shared, end: u64) -> Option<u64> {
    let pinned = shared.segments.unlinks.pending();
    let may_be_pinned = |file: &SegmentFile| {
        pinned.bytes + file.share.bytes() <= shared.segments.budget.capacity_bytes / PINNED_DIVISOR
            && pinned.files < shared.segments.budget.files_max / PINNED_DIVISOR as usize
    };
    let is_free = |file: &SegmentFile| {
        let is_read = file.readers.load(Ordering::Acquire) > 0;
        file.writers.load(Ordering::Acquire) == 0 && (!is_read || may_be_pinned(file))
    };
    let next = shared.segments.first_before(end, is_free);
    if let Some(bytes) = shared.evict_unread(next.as_ref().map_or(end, |(position, _)| *position)) {
        return Some(bytes);
    }
    let (_, file) = next?;
    if file.is_own() && requeue_if_hit(shared, &file) {
        return Some(0);
    }
    evict(shared, &file);
    Some(file.share.bytes())
}

/// Requeues a file of its own if its object was hit; returns true if so. No bytes are copied.
fn requeue_if_hit(shared: &Shared, file: &Arc<SegmentFile>) -> bool {
    let mut was_hit = false;
    for record in members(shared, file, &file.members()) {
        was_hit |= record.hits() > 0;
        record.set_hits(0);
    }
    if was_hit && shared.segments.requeue(file) {
        shared.counters.reinserted.add(1);
    }
    was_hit
}

/// Moves the useful records out of a file and releases the file.
pub(crate) fn evict(shared: &Shared, file: &Arc<SegmentFile>) {
    let mut left = shared.segments.segment_bytes / REINSERTED_DIVISOR;
    for record in members(shared, file, &file.dismiss()) {
        let Some(location) = record.location() else { continue };
        let has_body = Arc::ptr_eq(&location.body, file);
        let bytes = location.head_len as u64 + if has_body { record.body_len() } else { 0 };
        let must_move = !has_body || record.hits() > 0;
        let moved = must_move && bytes <= left && move_away(shared, &record, &location, has_body).is_ok();
        if moved {
            left -= bytes;
            shared.counters.reinserted.add(u64::from(has_body));
        } else if shared.end(&record) {
            shared.counters.evicted.add(1);
        }
    }
    shared.release_file(file.clone());
}

/// Alive records of `hashes` with a part in `file`.
fn members(shared: &Shared, file: &Arc<SegmentFile>, hashes: &[u64]) -> Vec<Arc<Record>> {
    let is_here = |record: &Arc<Record>| {
        let location = lock(&record.location);
        location.as_ref().is_some_and(|it| Arc::ptr_eq(&it.head, file) || Arc::ptr_eq(&it.body, file))
    };
    let mut members: Vec<_> =
        hashes.iter().flat_map(|hash| shared.index.find(*hash)).filter(is_here).collect();
    // The list has a hash once for each record of that hash that was ever in the file.
    members.sort_by_key(|record| record.sequence());
    members.dedup_by_key(|record| record.sequence());
    members
}

/// Copies a record, with its body or only its head, to the segment of eviction. The record
/// keeps its identity; its hits are cleared if its body was moved.
fn move_away(shared: &Shared, record: &Arc<Record>, location: &Location, with_body: bool) -> Result<()> {
    let moved = copy(shared, record, location, with_body);
    match &moved {
        Err(Error::Corrupt { .. }) => shared.counters.corrupt.add(1),
        Err(Error::System(_)) => shared.counters.failed.add(1),
        _ => {}
    }
    let new = moved?;
    let mut now = lock(&record.location);
    // Under the lock of the location, so that a concurrent removal marks the valid copy dead.
    if let Some(now) = &mut *now {
        let old = std::mem::replace(now, new);
        shared.mark_dead(&old.head, old.offset);
        if with_body {
            record.set_hits(0);
        }
    } else {
        shared.mark_dead(&new.head, new.offset);
    }
    Ok(())
}

fn copy(shared: &Shared, record: &Arc<Record>, location: &Location, with_body: bool) -> Result<Location> {
    let loaded = read(location, record, READ_BYTES_MAX)?;
    let mut head = Head { key: loaded.key(), meta: loaded.meta(), header: loaded.header };
    let mut lane = shared.eviction_lane();
    if let Some(body) = loaded.body().filter(|_| with_body) {
        let (file, layout) = append::append(shared, &mut lane, &mut head, &[body])?;
        return Ok(Location::whole(&file, &layout, &head.header));
    }
    if with_body {
        return copy_long(shared, &mut lane, record, location, &loaded);
    }
    let (file, layout) = append::append(shared, &mut lane, &mut head, &[])?;
    let (body, body_offset) = (location.body.clone(), location.body_offset);
    Ok(Location { body, body_offset, ..Location::whole(&file, &layout, &head.header) })
}

/// Copies a long body within the kernel. As with a writer, the extent is first reserved, then
/// committed.
fn copy_long(
    shared: &Shared,
    lane: &mut Lane,
    record: &Arc<Record>,
    location: &Location,
    loaded: &Loaded,
) -> Result<Location> {
    let mut head = Head { key: loaded.key(), meta: loaded.meta(), header: loaded.header };
    let (file, layout) = append::slot(shared, lane, head.header.head_len(), record.body_len())?;
    let header = &mut head.header;
    header.state = State::Reserved;
    header.tag = file.header.tag;
    header.body_file = 0;
    header.extent_len = layout.extent_len();
    header.body_offset = layout.body_offset;
    head.write(&file, &layout, &[]).inspect_err(|error| append::seal_failed(shared, lane, error))?;
    lane.tail = layout.end;
    let from = Extent::new(&location.body, location.body_offset);
    let copied = file.copy_from(&from, record.body_len(), layout.body_offset);
    copied.inspect_err(|error| shared.note_shortage(error, record.body_len()))?;
    head.header.state = State::Committed;
    head.header.written = shared.durability.next_number();
    let header: [u8; RECORD_HEADER_BYTES] = head.header.encode();
    let written = file.write_bytes(&header, layout.offset);
    written.inspect_err(|error| shared.note_shortage(error, PAGE_BYTES))?;
    shared.durability.note_written(&file);
    file.admit(record.hash);
    Ok(Location::whole(&file, &layout, &head.header))
}
