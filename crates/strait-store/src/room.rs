//! Eviction: keeps room free ahead of need, one file at a time, the oldest first. What was hit since it was stored is stored
//! again and gets another turn, as in S3-FIFO; the rest goes.

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

/// Segments that are kept ready.
pub(crate) const SPARES: usize = 2;
/// Files that are kept free for objects with files of their own.
const FILES_FREE_MIN: usize = 4;
/// So much of a segment is stored again at most when it is evicted, so that each gives some room.
const REINSERTED_PARTS: u64 = 2;
/// Bodies up to this size are read and checked when they are moved; longer ones are copied by the kernel.
const READ_BYTES_MAX: usize = 1 << 20;

impl Shared {
    /// Evicts until there are spare segments, and as much free as was asked for.
    pub(crate) fn make_room(&self) {
        self.relieve();
        while !self.is_closed.load(Ordering::Acquire) {
            self.close_unlinked();
            if self.lacking_segments() > 0 && self.has_segment() {
                match self.counted(self.make_segment("make a segment")) {
                    Ok(spare) => self.keep_ready(spare),
                    Err(_) if self.relieve() => {}
                    Err(_) => return,
                }
            } else if self.expects_room() || self.evict_before(u64::MAX).is_none() {
                break;
            }
        }
        self.demand_bytes.store(0, Ordering::Release);
    }

    fn eviction_lane(&self) -> MutexGuard<'_, Lane> {
        lock(&self.lanes[self.lanes.len() - 1])
    }

    /// Segments that are to be made ready.
    fn lacking_segments(&self) -> usize {
        let lacks_reserve = self.eviction_lane().reserve.is_none();
        usize::from(lacks_reserve) + SPARES.saturating_sub(lock(&self.spares).len())
    }

    /// Eviction's own comes first.
    fn keep_ready(&self, segment: Arc<SegmentFile>) {
        let reserve = &mut self.eviction_lane().reserve;
        if reserve.is_none() {
            *reserve = Some(segment);
        } else {
            lock(&self.spares).push(segment);
        }
    }

    /// Whether another segment can be made.
    fn has_segment(&self) -> bool {
        self.budget.free_bytes() >= self.segment_bytes && self.budget.free_files() > 0
    }

    /// Returns true if there is room for all that is to be kept ready, or will be once pending unlinks are closed.
    fn expects_room(&self) -> bool {
        let budget = &self.budget;
        let expected = self.unlinks.expected();
        let demand_bytes = self.extent_bytes_max() + self.demand_bytes.load(Ordering::Acquire);
        let lacking = self.lacking_segments();
        let wanted_bytes = demand_bytes.min(budget.capacity_bytes / 2) + lacking as u64 * self.segment_bytes;
        budget.free_bytes() + expected.bytes >= wanted_bytes
            && budget.free_files() + expected.files >= FILES_FREE_MIN + lacking
    }

    /// Unlinks the files that were let go, and closes those that are not read.
    pub(crate) fn close_unlinked(&self) {
        if self.unlinks.close() {
            self.note_name();
        }
    }

    /// Evicts the file whose turn it is, of those with a turn before `end`; the bytes that it gives back, if there is one. One that
    /// is being written to waits for a later turn; so does one that is being read, where readers hold as much of evicted files as they
    /// may: it would give back nothing, nor would the next, until the store is empty.
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
        let next = waiting.find(|(_, file)| is_free(file)).map(|(turn, file)| (*turn, file.clone()));
        drop(queue);
        if let Some(bytes) = self.evict_unread(next.as_ref().map_or(end, |(turn, _)| *turn)) {
            return Some(bytes);
        }
        let (_, file) = next?;
        if file.is_own() && self.gets_another_turn(&file) {
            return Some(0);
        }
        self.evict(&file);
        Some(file.share.bytes())
    }

    /// Whether the object in a file of its own was hit: then nothing needs to be copied.
    fn gets_another_turn(&self, file: &Arc<SegmentFile>) -> bool {
        let mut was_hit = false;
        for record in self.members(file, &file.members()) {
            was_hit |= record.hits() > 0;
            record.set_hits(0);
        }
        if was_hit && lock(&self.queue).remove(&file.turn.load(Ordering::Acquire)).is_some() {
            self.enlist(file.clone());
            self.counters.reinserted.add(1);
        }
        was_hit
    }

    /// Empties a file of what is of use in it, and lets it go.
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
        self.let_go(file.clone());
    }

    /// The living records of `hashes` that have a part in `file`.
    fn members(&self, file: &Arc<SegmentFile>, hashes: &[u64]) -> Vec<Arc<Record>> {
        let is_here = |record: &Arc<Record>| {
            let place = lock(&record.place);
            place.as_ref().is_some_and(|it| Arc::ptr_eq(&it.head, file) || Arc::ptr_eq(&it.body, file))
        };
        let mut members: Vec<_> =
            hashes.iter().flat_map(|hash| self.index.find(*hash)).filter(is_here).collect();
        // A hash stands in the list once for each record that it ever was here.
        members.sort_by_key(|record| record.sequence());
        members.dedup_by_key(|record| record.sequence());
        members
    }

    /// Stores a record again, its body too or only its head, where eviction writes. It stays the same record, with no hits.
    fn move_away(&self, record: &Arc<Record>, place: &Place, with_body: bool) -> Result<()> {
        let moved = self.copy(record, place, with_body);
        match &moved {
            Err(Error::Corrupt { .. }) => self.counters.corrupt.add(1),
            Err(Error::System(_)) => self.counters.failed.add(1),
            _ => {}
        }
        let new = moved?;
        let mut now = lock(&record.place);
        // Under its lock, so that whoever removes it meanwhile marks the one that counts.
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

    /// Copies a body within the kernel: as a writer would, first reserved, then committed.
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
        head.write(&file, &layout, &[]).inspect_err(|error| self.spoilt(lane, error))?;
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
