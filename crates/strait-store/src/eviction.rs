//! Eviction. Frees space ahead of need, one file at a time, in the order of [`crate::policy`].
//! Records that stay are copied to the segment of eviction; the others are dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::append;
use crate::error::{Error, Result};
use crate::file::{Extent, SegmentFile, lock};
use crate::format::{Layout, PAGE_BYTES, RECORD_HEADER_BYTES, State, hash_of_pieces};
use crate::lane::{Head, Lane, RESERVES};
use crate::pending::PINNED_DIVISOR;
use crate::policy::{Area, Candidate, STAYED_MAX, Selection, weighed_bytes};
use crate::read::{Loaded, read};
use crate::record::{Location, Record};
use crate::shared::Shared;

/// Limit of files evicted at a time for one shortage.
const SHORTAGE_FILES_MAX: usize = 8;
/// Eviction for one shortage frees at most the used bytes divided by this.
const SHORTAGE_DIVISOR: u64 = 2;
/// Minimum of descriptors that stay free for objects with files of their own.
const FILES_FREE_MIN: usize = 4;
/// Limit of bodies that are read and checked when they are moved. The kernel copies longer ones.
const READ_BYTES_MAX: usize = 1 << 20;

/// Evicts until the spare segments exist and the requested bytes are free.
pub(crate) fn evict_ahead(shared: &Shared) {
    shared.demand.begin_pass();
    evict_for_shortage(shared);
    let mut refused_bytes = 0;
    while !shared.lifecycle.is_closed() {
        refused_bytes = shared.demand.refused_bytes();
        close_unlinked(shared);
        match make_lacking(shared).map(|made| shared.counted(made)) {
            Some(Ok(())) => {}
            Some(Err(_)) if evict_for_shortage(shared) => {}
            Some(Err(_)) => {
                shared.demand.note_futile();
                return;
            }
            None if expects_space(shared) => {
                shared.demand.note_done();
                break;
            }
            None if cut_next(shared, false).is_some() || evict_before(shared, u64::MAX).is_some() => {}
            None if cut_next(shared, true).is_some() => {}
            None => {
                shared.demand.note_futile();
                break;
            }
        }
    }
    shared.demand.clear(refused_bytes);
}

/// Number of segments to make.
fn lacking_segments(shared: &Shared) -> usize {
    let reserves = shared.eviction_lane().reserves.len();
    RESERVES.saturating_sub(reserves) + shared.segments.spares.lacking()
}

/// Makes a segment: a reserve of eviction if one is lacking, else a spare. Returns `None` if none
/// is lacking, or if the budget does not allow it.
fn make_lacking(shared: &Shared) -> Option<Result<()>> {
    if shared.eviction_lane().reserves.len() < RESERVES {
        let made = append::make_reserve(shared)?;
        return Some(made.map(|reserve| shared.eviction_lane().reserves.push(reserve)));
    }
    if shared.segments.spares.lacking() == 0 {
        return None;
    }
    Some(append::make_segment(shared)?.map(|spare| {
        shared.segments.spares.add(spare);
        shared.demand.note_freed();
    }))
}

/// Returns true if the requested space is free, or will be once pending unlinks are closed.
fn expects_space(shared: &Shared) -> bool {
    let budget = &shared.segments.budget;
    let expected = shared.segments.unlinks.expected();
    let demand_bytes = shared.segments.extent_bytes_max() + shared.demand.wanted_bytes();
    let lacking = lacking_segments(shared);
    let wanted_bytes =
        demand_bytes.min(budget.capacity_bytes / 2) + lacking as u64 * shared.segments.segment_bytes;
    budget.free_bytes() + expected.bytes >= wanted_bytes
        && budget.free_files() + expected.files >= FILES_FREE_MIN + lacking
}

/// Evicts for a shortage of the file system, if there is one and its time has come. Returns true if
/// it has freed space. The newest file stays.
pub(crate) fn evict_for_shortage(shared: &Shared) -> bool {
    let Some(lacking_bytes) = shared.demand.enospc.take_due() else { return false };
    let wanted_bytes = lacking_bytes.min(shared.segments.budget.used_bytes() / SHORTAGE_DIVISOR);
    let newest = shared.segments.last_position();
    let mut freed_bytes: u64 = std::iter::from_fn(|| cut_next(shared, true)).sum();
    let mut files = 0;
    while freed_bytes < wanted_bytes && files < SHORTAGE_FILES_MAX {
        let Some(bytes) = newest.and_then(|newest| evict_before(shared, newest)) else { break };
        close_unlinked(shared);
        freed_bytes += bytes;
        files += 1;
    }
    freed_bytes > 0
}

/// Unlinks released files, and closes those without readers.
pub(crate) fn close_unlinked(shared: &Shared) {
    let closed = shared.segments.unlinks.close(|unlinked| shared.counted(unlinked));
    if closed.has_unlinked {
        shared.segments.note_name();
    }
    if closed.has_freed {
        shared.demand.note_freed();
    }
}

/// Frees the unused bytes of a full file, without a writer unless `writers_wait`. Returns their
/// number; `None` if there is no such file.
pub(crate) fn cut_next(shared: &Shared, writers_wait: bool) -> Option<u64> {
    let freed_bytes = shared.segments.cut_next(writers_wait)?;
    shared.demand.note_freed();
    Some(freed_bytes)
}

/// Evicts a file with a queue position before `end`: the first one that the policy does not keep,
/// or the one with the lowest score if it keeps many. Returns the bytes that it frees; `None` if
/// there is no file. Skips files with writers. Files with readers come last, because they free
/// nothing until their readers finish, and only up to a limit of such files.
pub(crate) fn evict_before(shared: &Shared, end: u64) -> Option<u64> {
    let mut stayed: Vec<(f64, Arc<SegmentFile>)> = Vec::new();
    while stayed.len() < STAYED_MAX {
        let next = first_before(shared, end);
        let position = next.as_ref().map_or(end, |(_, position, _)| *position);
        if let Some(bytes) = shared.evict_unread(position) {
            return Some(bytes);
        }
        let Some((area, _, file)) = next else { break };
        if area == Area::Window && end == u64::MAX && grow_main(shared, &file) {
            continue;
        }
        if area == Area::Window {
            shared.popularity.count_written(file.share.bytes(), shared.index.len());
            shared.index.age_to(shared.popularity.agings());
        }
        match score_if_kept(shared, area, &file) {
            Some(score) if area == Area::Main => stayed.push((score, file)),
            Some(_) => {}
            None => return Some(evict(shared, area, &file)),
        }
    }
    let (_, file) = stayed.into_iter().min_by(|(one, _), (other, _)| one.total_cmp(other))?;
    drop_file(shared, &file);
    Some(file.share.bytes())
}

/// Moves a file of the window to main as a whole, behind all files, while main grows.
fn grow_main(shared: &Shared, file: &Arc<SegmentFile>) -> bool {
    shared.popularity.policy().grows_main() && shared.segments.requeue(file)
}

/// Returns the next file to evict, with its area and position.
fn first_before(shared: &Shared, end: u64) -> Option<(Area, u64, Arc<SegmentFile>)> {
    let pinned = shared.segments.unlinks.pending();
    let may_be_pinned = |file: &SegmentFile| {
        pinned.bytes + file.share.bytes() <= shared.segments.budget.capacity_bytes / PINNED_DIVISOR
            && pinned.files < shared.segments.budget.files_max / PINNED_DIVISOR as usize
    };
    let is_read = |file: &SegmentFile| file.readers.load(Ordering::Acquire) > 0;
    let wanted = shared.popularity.policy().area(shared.segments.window_bytes());
    let first = |is_free: &dyn Fn(&SegmentFile) -> bool| {
        [wanted, wanted.other()].into_iter().find_map(|area| {
            let (position, file) = shared.segments.first_before(area, end, is_free)?;
            Some((area, position, file))
        })
    };
    first(&|file| !file.has_writers() && !is_read(file))
        .or_else(|| first(&|file| !file.has_writers() && may_be_pinned(file)))
}

/// Moves a file of its own to the end of main if its object is to stay, and returns the object's
/// score then. No bytes are copied.
fn score_if_kept(shared: &Shared, area: Area, file: &Arc<SegmentFile>) -> Option<f64> {
    if !file.is_own() {
        return None;
    }
    let members = members(shared, file, &file.members());
    let candidates = members.iter().filter_map(|record| Some(candidate(record, &record.location()?)));
    let best = candidates.max_by(|one, other| one.score().total_cmp(&other.score()))?;
    let is_kept = shared.popularity.policy().keeps(area, &best) && shared.segments.requeue(file);
    is_kept.then(|| {
        shared.counters.reinserted.add(1);
        best.score()
    })
}

/// Returns a record as the policy sees it. Its bytes are those of an extent, so that a segment of
/// records with long heads and short bodies is never kept whole.
pub(crate) fn candidate(record: &Arc<Record>, location: &Location) -> Candidate<Arc<Record>> {
    let requests = record.requests();
    let bytes = Layout::new(0, location.head_len.into(), record.body_len(), false).extent_len();
    Candidate { object: record.clone(), requests, bytes }
}

/// Moves the records that stay out of a file, and releases the file. Returns the bytes that it
/// frees.
pub(crate) fn evict(shared: &Shared, area: Area, file: &Arc<SegmentFile>) -> u64 {
    let bytes = weighed_bytes(file.share.bytes(), shared.segments.segment_bytes);
    evict_with(shared, file, |candidates| shared.popularity.policy().select(area, candidates, bytes))
}

/// Drops the records with their body in a file, and releases the file.
pub(crate) fn drop_file(shared: &Shared, file: &Arc<SegmentFile>) {
    evict_with(shared, file, |dropped| Selection { kept: Vec::new(), dropped });
}

fn evict_with(
    shared: &Shared,
    file: &Arc<SegmentFile>,
    select: impl FnOnce(Vec<Candidate<Arc<Record>>>) -> Selection<Arc<Record>>,
) -> u64 {
    let mut moved_bytes = 0;
    let (mut candidates, mut dropped) = (Vec::new(), Vec::new());
    for record in members(shared, file, &file.dismiss()) {
        let Some(location) = record.location() else { continue };
        if Arc::ptr_eq(&location.body, file) {
            candidates.push(candidate(&record, &location));
        } else if move_away(shared, &record, &location, false).is_err() {
            dropped.push(record);
        }
    }
    let selection = select(candidates);
    for Candidate { object: record, bytes, .. } in selection.kept {
        let Some(location) = record.location() else { continue };
        if move_away(shared, &record, &location, true).is_ok() {
            shared.counters.reinserted.add(1);
            moved_bytes += bytes;
        } else {
            dropped.push(record);
        }
    }
    dropped.extend(selection.dropped.into_iter().map(|candidate| candidate.object));
    shared.popularity.remember(dropped.iter().map(|record| (record.hash, record.requests())));
    // First, so that the dropped records need not be marked dead in it one by one. A file that
    // cannot be unlinked is tried again.
    if shared.counted(file.unlink()).is_ok() {
        shared.segments.note_name();
    }
    let evicted = dropped.iter().filter(|record| shared.end(record)).count();
    shared.counters.evicted.add(evicted as u64);
    shared.counters.reinserted_bytes.add(moved_bytes);
    let freed_bytes = file.share.bytes().saturating_sub(moved_bytes);
    shared.release_file(file.clone());
    freed_bytes
}

/// Alive records of `hashes` with a part in `file`.
pub(crate) fn members(shared: &Shared, file: &Arc<SegmentFile>, hashes: &[u64]) -> Vec<Arc<Record>> {
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
/// keeps its identity.
fn move_away(shared: &Shared, record: &Arc<Record>, location: &Location, with_body: bool) -> Result<()> {
    let loaded = read(location, record, READ_BYTES_MAX);
    // Until the record has its new location: a cut of the journal has both or neither.
    let mut lane = shared.eviction_lane();
    let moved = loaded.and_then(|loaded| {
        if !record.is_alive() {
            return Err(Error::Removed { operation: "move" });
        }
        let new = copy(shared, &mut lane, record, location, &loaded, with_body)?;
        Ok((new, loaded.header.body_hash.is_some()))
    });
    match &moved {
        Err(error @ Error::Corrupt { .. }) => shared.note_corrupt(error),
        Err(Error::System(_)) => shared.counters.failed.add(1),
        _ => {}
    }
    let (new, has_hash) = moved?;
    shared.relocate(record, new);
    drop(lane);
    if !has_hash {
        // If the old header has got the hash since it was read, the copy lacks it.
        shared.new_bodies.push(record);
    }
    Ok(())
}

fn copy(
    shared: &Shared,
    lane: &mut Lane,
    record: &Arc<Record>,
    location: &Location,
    loaded: &Loaded,
    with_body: bool,
) -> Result<Location> {
    if loaded.header.state == State::Dead {
        // It ended in an earlier session, after the last cut of the journal.
        return Err(Error::Removed { operation: "move" });
    }
    let mut head = Head { key: loaded.key(), meta: loaded.meta(), header: loaded.header, replaces: None };
    if let Some(body) = loaded.body().filter(|_| with_body) {
        // If the process is killed during the write, only the hash shows that it is incomplete.
        head.header.body_hash.get_or_insert_with(|| hash_of_pieces(&[body]));
        let (file, layout) = append::append(shared, lane, &mut head, &[body])?;
        return Ok(Location::whole(&file, &layout, &head.header));
    }
    if with_body {
        return copy_long(shared, lane, record, location, loaded);
    }
    let (file, layout) = append::append(shared, lane, &mut head, &[])?;
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
    let mut head = Head { key: loaded.key(), meta: loaded.meta(), header: loaded.header, replaces: None };
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
