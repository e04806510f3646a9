//! Eviction. Frees space ahead of need, one file at a time, oldest first. Records that were hit
//! since they were stored are copied and stay, as in S3-FIFO; the rest is dropped.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use crate::error::{Error, Result};
use crate::file::{Extent, SegmentFile, lock};
use crate::format::{PAGE_BYTES, RECORD_HEADER_BYTES, State};
use crate::lane::{Head, Lane};
use crate::pending::HELD_PARTS;
use crate::read::{Loaded, read};
use crate::record::{Place, Record};
use crate::shared::Shared;

/// Number of spare segments.
pub(crate) const SPARES: usize = 2;
/// Free files for objects with files of their own.
const FILES_FREE_MIN: usize = 4;
/// Divisor of the segment size: limit of the bytes that are copied when one file is evicted, so
/// that each eviction frees some space.
const REINSERTED_PARTS: u64 = 2;
/// Limit of bodies that are read and checked when they are moved. The kernel copies longer ones.
const READ_BYTES_MAX: usize = 1 << 20;

impl Shared {
    /// Evicts until the spare segments exist and the requested bytes are free.
    pub(crate) fn evict_ahead(&self) {
        self.evict_for_shortage();
        while !self.is_closed.load(Ordering::Acquire) {
            self.close_unlinked();
            if self.lacking_segments() > 0 && self.has_segment() {
                match self.counted(self.make_segment("make a segment")) {
                    Ok(spare) => self.keep_ready(spare),
                    Err(_) if self.evict_for_shortage() => {}
                    Err(_) => return,
                }
            } else if self.expects_space() || self.evict_before(u64::MAX).is_none() {
                break;
            }
        }
        self.demand_bytes.store(0, Ordering::Release);
    }

    fn eviction_lane(&self) -> MutexGuard<'_, Lane> {
        lock(&self.lanes[self.lanes.len() - 1])
    }

    /// Number of segments to make.
    fn lacking_segments(&self) -> usize {
        let lacks_reserve = self.eviction_lane().reserve.is_none();
        usize::from(lacks_reserve) + SPARES.saturating_sub(lock(&self.spares).len())
    }

    /// Keeps a new segment: as the reserve of eviction if that is missing, else as a spare.
    fn keep_ready(&self, segment: Arc<SegmentFile>) {
        let reserve = &mut self.eviction_lane().reserve;
        if reserve.is_none() {
            *reserve = Some(segment);
        } else {
            lock(&self.spares).push(segment);
        }
    }

    /// Returns true if the budget allows another segment.
    fn has_segment(&self) -> bool {
        self.budget.free_bytes() >= self.segment_bytes && self.budget.free_files() > 0
    }

    /// Returns true if the requested space is free, or will be once pending unlinks are closed.
    fn expects_space(&self) -> bool {
        let budget = &self.budget;
        let expected = self.unlinks.expected();
        let demand_bytes = self.extent_bytes_max() + self.demand_bytes.load(Ordering::Acquire);
        let lacking = self.lacking_segments();
        let wanted_bytes = demand_bytes.min(budget.capacity_bytes / 2) + lacking as u64 * self.segment_bytes;
        budget.free_bytes() + expected.bytes >= wanted_bytes
            && budget.free_files() + expected.files >= FILES_FREE_MIN + lacking
    }

    /// Unlinks released files, and closes those without readers.
    pub(crate) fn close_unlinked(&self) {
        if self.unlinks.close(|unlinked| self.counted(unlinked)) {
            self.note_name();
        }
    }

    /// Evicts the first suitable file with a queue position before `end`. Returns the bytes that it
    /// frees; `None` if there is no such file. Skips files with writers. Skips files with readers
    /// while readers of evicted files hold their limit: evicting such files frees nothing, and
    /// would continue until the store is empty.
    pub(crate) fn evict_before(&self, end: u64) -> Option<u64> {
        let held = self.unlinks.pending();
        let may_be_held = |file: &SegmentFile| {
            held.bytes + file.share.bytes() <= self.budget.capacity_bytes / HELD_PARTS
                && held.files < self.budget.files_max / HELD_PARTS as usize
        };
        let is_free = |file: &SegmentFile| {
            let is_read = file.readers.load(Ordering::Acquire) > 0;
            file.writers.load(Ordering::Acquire) == 0 && (!is_read || may_be_held(file))
        };
        let queue = lock(&self.queue);
        let mut waiting = queue.range(..end);
        let next = waiting.find(|(_, file)| is_free(file)).map(|(position, file)| (*position, file.clone()));
        drop(queue);
        if let Some(bytes) = self.evict_unread(next.as_ref().map_or(end, |(position, _)| *position)) {
            return Some(bytes);
        }
        let (_, file) = next?;
        if file.is_own() && self.requeue_if_hit(&file) {
            return Some(0);
        }
        self.evict(&file);
        Some(file.share.bytes())
    }

    /// Requeues a file of its own if its object was hit; returns true if so. No bytes are copied.
    fn requeue_if_hit(&self, file: &Arc<SegmentFile>) -> bool {
        let mut was_hit = false;
        for record in self.members(file, &file.members()) {
            was_hit |= record.hits() > 0;
            record.set_hits(0);
        }
        if was_hit && lock(&self.queue).remove(&file.position.load(Ordering::Acquire)).is_some() {
            self.enlist(file.clone());
            self.counters.reinserted.add(1);
        }
        was_hit
    }

    /// Moves the useful records out of a file and releases the file.
    pub(crate) fn evict(&self, file: &Arc<SegmentFile>) {
        let mut left = self.segment_bytes / REINSERTED_PARTS;
        for record in self.members(file, &file.dismiss()) {
            let Some(place) = record.place() else { continue };
            let has_body = Arc::ptr_eq(&place.body, file);
            let bytes = place.head_len as u64 + if has_body { record.body_len() } else { 0 };
            let is_kept = if has_body { record.hits() > 0 } else { true };
            let moved = is_kept && bytes <= left && self.move_away(&record, &place, has_body).is_ok();
            if moved {
                left -= bytes;
                self.counters.reinserted.add(u64::from(has_body));
            } else if self.end(&record) {
                self.counters.evicted.add(1);
            }
        }
        self.release_file(file.clone());
    }

    /// Alive records of `hashes` with a part in `file`.
    fn members(&self, file: &Arc<SegmentFile>, hashes: &[u64]) -> Vec<Arc<Record>> {
        let is_here = |record: &Arc<Record>| {
            let place = lock(&record.place);
            place.as_ref().is_some_and(|it| Arc::ptr_eq(&it.head, file) || Arc::ptr_eq(&it.body, file))
        };
        let mut members: Vec<_> =
            hashes.iter().flat_map(|hash| self.index.find(*hash)).filter(is_here).collect();
        // The list has a hash once for each record of that hash that was ever in the file.
        members.sort_by_key(|record| record.sequence());
        members.dedup_by_key(|record| record.sequence());
        members
    }

    /// Copies a record, with its body or only its head, to the segment of eviction. The record
    /// keeps its identity; its hits are cleared if its body was moved.
    fn move_away(&self, record: &Arc<Record>, place: &Place, with_body: bool) -> Result<()> {
        let moved = self.copy(record, place, with_body);
        match &moved {
            Err(Error::Corrupt { .. }) => self.counters.corrupt.add(1),
            Err(Error::System(_)) => self.counters.failed.add(1),
            _ => {}
        }
        let new = moved?;
        let mut now = lock(&record.place);
        // Under the lock of the place, so that a concurrent removal marks the valid copy dead.
        if let Some(now) = &mut *now {
            let old = std::mem::replace(now, new);
            self.mark_dead(&old.head, old.offset);
            if with_body {
                record.set_hits(0);
            }
        } else {
            self.mark_dead(&new.head, new.offset);
        }
        Ok(())
    }

    fn copy(&self, record: &Arc<Record>, place: &Place, with_body: bool) -> Result<Place> {
        let loaded = read(place, record, READ_BYTES_MAX)?;
        let mut head = Head { key: loaded.key(), meta: loaded.meta(), header: loaded.header };
        let mut lane = self.eviction_lane();
        if let Some(body) = loaded.body().filter(|_| with_body) {
            let (file, layout) = self.append(&mut lane, &mut head, &[body])?;
            return Ok(Place::whole(&file, &layout, &head.header));
        }
        if with_body {
            return self.copy_long(&mut lane, record, place, &loaded);
        }
        let (file, layout) = self.append(&mut lane, &mut head, &[])?;
        let (body, body_offset) = (place.body.clone(), place.body_offset);
        Ok(Place { body, body_offset, ..Place::whole(&file, &layout, &head.header) })
    }

    /// Copies a long body within the kernel. As with a writer, the extent is first reserved, then
    /// committed.
    fn copy_long(
        &self,
        lane: &mut Lane,
        record: &Arc<Record>,
        place: &Place,
        loaded: &Loaded,
    ) -> Result<Place> {
        let mut head = Head { key: loaded.key(), meta: loaded.meta(), header: loaded.header };
        let (file, layout) = self.slot(lane, head.header.head_len(), record.body_len())?;
        let header = &mut head.header;
        header.state = State::Reserved;
        header.tag = file.header.tag;
        header.body_file = 0;
        header.extent_len = layout.extent_len();
        header.body_offset = layout.body_offset;
        head.write(&file, &layout, &[]).inspect_err(|error| self.seal_failed(lane, error))?;
        lane.tail = layout.end;
        let from = Extent::new(&place.body, place.body_offset);
        let copied = file.copy_from(&from, record.body_len(), layout.body_offset);
        copied.inspect_err(|error| self.note_shortage(error, record.body_len()))?;
        head.header.state = State::Committed;
        head.header.written = self.next_number();
        let header: [u8; RECORD_HEADER_BYTES] = head.header.encode();
        let written = file.write_bytes(&header, layout.offset);
        written.inspect_err(|error| self.note_shortage(error, PAGE_BYTES))?;
        self.note_written(&file);
        file.admit(record.hash);
        Ok(Place::whole(&file, &layout, &head.header))
    }
}
