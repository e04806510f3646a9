//! State shared by the callers' threads and the background threads: one part for each concern, each
//! with its owner in a file of its own, and the operations on records that need several parts.
//!
//! `docs/internals/store.md` has the order of the locks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::demand::Demand;
use crate::durability::Durability;
use crate::enospc::is_no_space;
use crate::error::{Error, Result};
use crate::file::{SegmentFile, lock, name_of};
use crate::format::checkpoint::Held;
use crate::format::{FileHeader, RECORD_ALIGN, STATE_AT, State};
use crate::index::Index;
use crate::journal::Journal;
use crate::lane::{Lane, RESERVES};
use crate::lifecycle::Lifecycle;
use crate::loading::Loading;
use crate::new_bodies::NewBodies;
use crate::policy::{Area, Popularity, REQUEST};
use crate::record::{Location, Record};
use crate::segments::Segments;
use crate::stats::Counters;
use crate::unread::{Found, Unread};

/// Longest wait for eviction to free any space, and longest wait in all. A disk that takes longer
/// must not hold up the callers.
const SPACE_WAIT_MAX: Duration = Duration::from_secs(1);
const SPACE_WAITS_MAX: Duration = Duration::from_secs(5);

/// State of a store.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) index: Index,
    pub(crate) popularity: Popularity,
    pub(crate) segments: Segments,
    /// Lanes of the callers; the last is that of eviction.
    pub(crate) lanes: Box<[Mutex<Lane>]>,
    pub(crate) durability: Durability,
    pub(crate) journal: Journal,
    pub(crate) unread: Unread,
    pub(crate) demand: Demand,
    pub(crate) loading: Loading,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) new_bodies: NewBodies,
    /// Text about the last damage that was found.
    pub(crate) damage: Mutex<Option<String>>,
    pub(crate) counters: Counters,
}

impl Shared {
    /// An empty store with `lanes` lanes for callers.
    pub(crate) fn new(segments: Segments, durability: Durability, lanes: usize) -> Self {
        let callers = (0..lanes.max(1)).map(|_| Lane::default());
        let of_eviction = Lane { area: Area::Main, ..Lane::default() };
        segments.budget.reserve(RESERVES as u64 * segments.segment_bytes);
        Self {
            index: Index::new(),
            popularity: Popularity::new(segments.budget.capacity_bytes),
            segments,
            lanes: callers.chain([of_eviction]).map(Mutex::new).collect(),
            durability,
            journal: Journal::default(),
            unread: Unread::default(),
            demand: Demand::default(),
            loading: Loading::default(),
            lifecycle: Lifecycle::default(),
            new_bodies: NewBodies::default(),
            damage: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// Locks a caller's lane. Fails once the store is closed.
    pub(crate) fn lane(&self, lane: usize, operation: &'static str) -> Result<MutexGuard<'_, Lane>> {
        let lane = lock(&self.lanes[lane % (self.lanes.len() - 1)]);
        if self.lifecycle.is_closed() { Err(Error::Closed { operation }) } else { Ok(lane) }
    }

    /// Locks the lane of eviction.
    pub(crate) fn eviction_lane(&self) -> MutexGuard<'_, Lane> {
        lock(&self.lanes[self.lanes.len() - 1])
    }

    /// Takes space by `take`, and waits for eviction while there is none.
    ///
    /// # Errors
    /// [`Error::Full`] if eviction finds nothing to evict, or frees nothing for [`SPACE_WAIT_MAX`].
    pub(crate) fn when_free<T>(
        &self,
        operation: &'static str,
        bytes: u64,
        mut take: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        if let Some(taken) = take() {
            return Ok(taken);
        }
        let _request = self.demand.request(bytes);
        let end = Instant::now() + SPACE_WAITS_MAX;
        loop {
            let deadline = end.min(Instant::now() + SPACE_WAIT_MAX);
            let since = self.demand.now();
            if let Some(taken) = take() {
                return Ok(taken);
            }
            self.lifecycle.wake();
            // The thread that evicts loads the store before that, and closes it after that.
            let evicts = self.loading.is_done() && !self.lifecycle.is_closed();
            if !evicts || !self.demand.wait_freed(since, deadline) {
                return take().ok_or_else(|| self.full(operation, bytes));
            }
        }
    }

    /// Requests eviction of `bytes`, and returns the error of a refusal.
    pub(crate) fn full(&self, operation: &'static str, bytes: u64) -> Error {
        self.demand.note_refused(bytes);
        self.lifecycle.wake();
        Error::Full { operation, bytes }
    }

    /// Counts an error, and returns the result unchanged.
    pub(crate) fn counted<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| match error {
            Error::Full { .. } | Error::TooLong { .. } => self.counters.refused.add(1),
            Error::System(_) => self.counters.failed.add(1),
            _ => {}
        })
    }

    /// Notes the result of an allocation of `bytes`, and returns it.
    pub(crate) fn allocated<T>(&self, result: Result<T>, bytes: u64) -> Result<T> {
        match &result {
            Ok(_) => self.demand.enospc.note_allocated(bytes),
            Err(error) => self.note_shortage(error, bytes),
        }
        result
    }

    /// Returns true if the file system had no space for `bytes`, but can have it after eviction.
    pub(crate) fn is_short_of(&self, error: &Error, bytes: u64) -> bool {
        is_no_space(error) && bytes <= self.segments.within_reach_bytes()
    }

    /// Requests eviction if `error` is a shortage of `bytes` that eviction can cure.
    pub(crate) fn note_shortage(&self, error: &Error, bytes: u64) {
        if self.is_short_of(error, bytes) {
            self.demand.enospc.note_shortage(bytes);
            self.lifecycle.wake();
        }
    }

    /// Adds a new record to the index. It begins with the number of earlier requests for its
    /// object.
    pub(crate) fn add(&self, record: &Arc<Record>) {
        let others = self.index.find(record.hash);
        let of_others = others.iter().map(|other| other.requests());
        let of_dropped = self.popularity.requests_of_dropped(record.hash);
        record.set_requests(of_others.fold(of_dropped, u8::max).saturating_add(REQUEST));
        record.set_checked();
        self.insert(record);
        self.counters.stored.add(1);
        self.popularity.note_objects(self.index.len(), self.segments.budget.used_bytes());
        self.note_request(record);
    }

    /// Adds a new record to the index and to the journal.
    pub(crate) fn insert(&self, record: &Arc<Record>) {
        self.index.insert(record.clone());
        self.journal.note_placed(record);
    }

    /// Counts a hit.
    pub(crate) fn touch(&self, record: &Record) {
        record.touch();
        self.note_request(record);
    }

    fn note_request(&self, record: &Record) {
        // With a header: objects without a body use memory in the tuner's simulations, too.
        self.popularity.note_request(record.hash, RECORD_ALIGN + record.body_len());
    }

    /// Adds a record of an earlier session to the index and to the lists of its files, unless its
    /// key was removed since the store was opened.
    pub(crate) fn admit(&self, record: Arc<Record>) {
        let ended = self.loading.ended();
        if ended.has(record.hash) {
            drop(ended);
            self.counters.removed.add(1);
            if let Some(location) = record.kill() {
                self.mark_dead(&location.head, location.offset);
            }
            return;
        }
        if let Some(location) = &*lock(&record.location) {
            Self::list(&record, location);
        }
        self.index.insert(record);
    }

    /// Gives a record of an earlier session the location of a copy that was made after the last cut
    /// of the journal.
    pub(crate) fn relocate_earlier(&self, record: &Arc<Record>, new: Location) {
        Self::list(record, &new);
        self.relocate(record, new);
    }

    fn list(record: &Record, location: &Location) {
        location.head.admit(record.hash);
        if !Arc::ptr_eq(&location.head, &location.body) {
            location.body.admit(record.hash);
        }
    }

    /// Returns true if an old file must be kept. A file without records may have bodies that an
    /// unreadable file refers to.
    pub(crate) fn is_useful(&self, file: &SegmentFile) -> bool {
        // The records of a segment can end one by one. The space of an object's own file is freed
        // with its last one.
        let is_used = if file.is_own() {
            let parts = file.members().into_iter().flat_map(|hash| self.index.find(hash));
            let mut parts = parts.filter_map(|record| record.location());
            parts.any(|place| [place.head.number(), place.body.number()].contains(&file.number()))
        } else {
            file.has_members()
        };
        is_used || self.unread.any()
    }

    /// Ends loading. Files that could not be read are held back in the checkpoint with their old
    /// durable number.
    pub(crate) fn settle(&self) {
        if self.unread.any() {
            self.journal.discard(self);
        }
        let mut checkpoint = self.durability.checkpoint();
        let files = self.unread.take_held();
        checkpoint.held =
            files.iter().map(|file| Held { file: *file, durable: checkpoint.durable_in(*file) }).collect();
        drop(checkpoint);
        self.loading.end();
    }

    /// Unlinks the oldest unopened file if it is older than `position`. Returns the freed bytes.
    pub(crate) fn evict_unread(&self, position: u64) -> Option<u64> {
        let found = self.unread.take_before(position)?;
        if self.unlink_unread(&found).is_err() {
            // It keeps its space until a sync has unlinked it.
            self.unread.add_failed(found);
            return Some(0);
        }
        self.segments.note_name();
        Some(found.share.bytes())
    }

    /// Retries the failed unlinks. The eviction thread closes the unlinked files.
    pub(crate) fn retry_unlinks(&self) {
        let mut has_unlinked = self.segments.unlinks.retry(|unlinked| self.counted(unlinked));
        for found in self.unread.take_failed() {
            if self.unlink_unread(&found).is_ok() {
                has_unlinked = true;
            } else {
                self.unread.add_failed(found);
            }
        }
        if has_unlinked {
            self.segments.note_name();
            self.lifecycle.wake();
        }
    }

    fn unlink_unread(&self, found: &Found) -> Result<()> {
        let header = FileHeader { kind: found.kind, number: found.number, tag: 0 };
        let path = self.segments.dir.join(name_of(&header));
        let unlinked = self.segments.disk.unlink(&path);
        self.counted(unlinked.map_err(|error| Error::io("unlink", &path, &error)))
    }

    /// Releases a file: the eviction thread unlinks it, and closes it once it has no readers. Both
    /// can take long.
    pub(crate) fn release_file(&self, file: Arc<SegmentFile>) {
        if self.segments.release(file) {
            self.lifecycle.wake();
        }
    }

    /// Requests that the eviction thread frees the unused bytes of a full file: that can take long.
    pub(crate) fn cut_later(&self, file: &Arc<SegmentFile>, bytes: u64) {
        if self.segments.cut_later(file, bytes) {
            self.lifecycle.wake();
        }
    }

    /// Ends a record, and releases the file of its own if it has one. Returns false if the record
    /// has ended already.
    pub(crate) fn end(&self, record: &Arc<Record>) -> bool {
        let Some(location) = self.release(record) else { return false };
        if location.body.is_own() {
            self.release_file(location.body);
        }
        true
    }

    /// Ends a damaged record, and counts it unless it has ended already.
    pub(crate) fn end_corrupt(&self, record: &Arc<Record>, error: &Error) {
        if self.end(record) {
            self.note_corrupt(error);
        }
    }

    /// Counts a damaged record, and keeps the text of the error.
    pub(crate) fn note_corrupt(&self, error: &Error) {
        self.counters.corrupt.add(1);
        *lock(&self.damage) = Some(error.to_string());
    }

    /// Removes a record from the index and leaves it on disk for the next session.
    pub(crate) fn forget(&self, record: &Arc<Record>) {
        if record.kill().is_some() {
            self.index.remove(record);
            self.journal.note_removed(record);
        }
    }

    /// Ends a record but keeps its body, which another record uses.
    pub(crate) fn end_head(&self, record: &Arc<Record>) -> bool {
        self.release(record).is_some()
    }

    /// Ends a record. Returns its last location to the one caller that ended it.
    fn release(&self, record: &Arc<Record>) -> Option<Location> {
        let location = record.kill()?;
        self.index.remove(record);
        self.mark_dead(&location.head, location.offset);
        self.journal.note_removed(record);
        Some(location)
    }

    /// Gives a record a new location, to which its bytes have been copied.
    pub(crate) fn relocate(&self, record: &Arc<Record>, new: Location) {
        let mut now = lock(&record.location);
        // Under the lock of the location, so that a concurrent removal marks the valid copy dead.
        if let Some(now) = &mut *now {
            let old = std::mem::replace(now, new);
            self.mark_dead(&old.head, old.offset);
            self.journal.note_placed(record);
        } else {
            self.mark_dead(&new.head, new.offset);
        }
    }

    /// Marks the record at `offset` as dead on disk. Does nothing in a read-only store, and in a
    /// file without a name, which no later session finds. Returns false if the write failed.
    pub(crate) fn mark_dead(&self, file: &Arc<SegmentFile>, offset: u64) -> bool {
        if self.segments.disk.is_read_only() || file.is_unlinked.load(Ordering::Acquire) {
            return true;
        }
        let written = file.write_bytes(&State::Dead.code().to_le_bytes(), offset + STATE_AT);
        let is_written = self.counted(written).is_ok();
        if is_written {
            self.durability.note_written(file);
        }
        is_written
    }
}
