//! State shared by the callers' threads and the background threads.

use std::collections::{BTreeMap, VecDeque};
use std::hash::RandomState;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::Thread;

use crate::budget::Budget;
use crate::disk::Disk;
use crate::enospc::EnospcBackoff;
use crate::error::{Error, Result};
use crate::file::{SegmentFile, lock, name_of};
use crate::format::checkpoint::{Checkpoint, Held};
use crate::format::{FileHeader, STATE_AT, State};
use crate::index::Index;
use crate::lane::Lane;
use crate::open::Found;
use crate::pending::PendingUnlinks;
use crate::record::{Place, Record};
use crate::stats::Counters;

/// Bits of a file number that count within a session.
const FILE_COUNT_BITS: u32 = 32;

/// State of a store.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) dir: Arc<Path>,
    pub(crate) disk: Disk,
    pub(crate) budget: Arc<Budget>,
    pub(crate) segment_bytes: u64,
    pub(crate) index: Index,
    pub(crate) counters: Counters,
    /// Source of tags that an origin cannot guess.
    pub(crate) tags: RandomState,
    /// Lanes of the callers; the last is that of eviction.
    pub(crate) lanes: Box<[Mutex<Lane>]>,
    /// Files that can be evicted, by queue position.
    pub(crate) queue: Mutex<BTreeMap<u64, Arc<SegmentFile>>>,
    /// Spare segments for the next lane that needs one.
    pub(crate) spares: Mutex<Vec<Arc<SegmentFile>>>,
    /// Released files that are not closed yet.
    pub(crate) unlinks: PendingUnlinks,
    /// Files written to since their last sync.
    pub(crate) dirty: Mutex<Vec<Weak<SegmentFile>>>,
    /// Files that could not be opened, oldest first.
    unread: Mutex<VecDeque<Found>>,
    /// Files of these with a failed unlink.
    unread_failed: Mutex<Vec<Found>>,
    /// Numbers of files that could not be opened, or not be read completely.
    held: Mutex<Vec<u64>>,
    /// True if there are such files: their records are unknown.
    pub(crate) has_unread: AtomicBool,
    /// True if files were created or unlinked since the last sync of the directory.
    pub(crate) is_dir_dirty: AtomicBool,
    /// Checkpoint as on disk.
    pub(crate) checkpoint: Mutex<Checkpoint>,
    /// Largest refused request in bytes, added to the free space that eviction aims for.
    pub(crate) demand_bytes: AtomicU64,
    /// ENOSPC backoff.
    pub(crate) enospc: EnospcBackoff,
    pub(crate) is_closed: AtomicBool,
    pub(crate) is_loaded: Mutex<bool>,
    pub(crate) loaded: Condvar,
    /// The eviction thread.
    pub(crate) thread: OnceLock<Thread>,
    numbers: AtomicU64,
    file_numbers: AtomicU64,
}

impl Shared {
    /// An empty store with the checkpoint of this session.
    pub(crate) fn new(
        dir: Arc<Path>,
        disk: Disk,
        budget: Arc<Budget>,
        segment_bytes: u64,
        lanes: usize,
        checkpoint: Checkpoint,
    ) -> Self {
        Self {
            dir,
            disk,
            budget,
            segment_bytes,
            index: Index::new(),
            counters: Counters::default(),
            tags: RandomState::new(),
            lanes: (0..=lanes.max(1)).map(|_| Mutex::default()).collect(),
            queue: Mutex::default(),
            spares: Mutex::default(),
            unlinks: PendingUnlinks::default(),
            dirty: Mutex::default(),
            unread: Mutex::default(),
            unread_failed: Mutex::default(),
            held: Mutex::default(),
            has_unread: AtomicBool::new(false),
            is_dir_dirty: AtomicBool::new(true),
            demand_bytes: AtomicU64::new(0),
            enospc: EnospcBackoff::new(),
            is_closed: AtomicBool::new(false),
            is_loaded: Mutex::new(false),
            loaded: Condvar::new(),
            thread: OnceLock::new(),
            numbers: AtomicU64::new(checkpoint.first_number()),
            file_numbers: AtomicU64::new(checkpoint.session << FILE_COUNT_BITS),
            checkpoint: Mutex::new(checkpoint),
        }
    }

    /// Locks a caller's lane. Fails once the store is closed.
    pub(crate) fn lane(&self, lane: usize, operation: &'static str) -> Result<MutexGuard<'_, Lane>> {
        let lane = lock(&self.lanes[lane % (self.lanes.len() - 1)]);
        if self.is_closed.load(Ordering::Acquire) { Err(Error::Closed { operation }) } else { Ok(lane) }
    }

    /// Takes the next write number.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::AcqRel)
    }

    /// Number of the last write that has begun.
    pub(crate) fn last_number(&self) -> u64 {
        self.numbers.load(Ordering::Acquire) - 1
    }

    /// Takes the next number of a file, or of a queue position.
    pub(crate) fn next_file_number(&self) -> u64 {
        self.file_numbers.fetch_add(1, Ordering::AcqRel)
    }

    /// Wakes the eviction thread.
    pub(crate) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Requests eviction of `bytes`, and returns the error of a refusal.
    pub(crate) fn full(&self, operation: &'static str, bytes: u64) -> Error {
        self.demand_bytes.fetch_max(bytes, Ordering::AcqRel);
        self.wake();
        Error::Full { operation, bytes }
    }

    /// Counts an error, and returns the result unchanged.
    pub(crate) fn counted<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| match error {
            Error::Full { .. } => self.counters.refused.add(1),
            Error::System(_) => self.counters.failed.add(1),
            _ => {}
        })
    }

    pub(crate) fn note_written(&self, file: &Arc<SegmentFile>) {
        if file.dirty() {
            lock(&self.dirty).push(Arc::downgrade(file));
        }
    }

    /// Adds a record of an earlier session to the index and to the lists of its files.
    pub(crate) fn admit(&self, record: &Arc<Record>) {
        let Some(place) = record.place() else { return };
        place.head.admit(record.hash);
        if !Arc::ptr_eq(&place.head, &place.body) {
            place.body.admit(record.hash);
        }
        self.index.insert(record.clone());
    }

    /// Returns true if an old file must be kept. A file without records may have bodies that an
    /// unreadable file refers to.
    pub(crate) fn is_of_use(&self, file: &SegmentFile) -> bool {
        file.has_members() || self.has_unread.load(Ordering::Acquire)
    }

    /// Leaves a file on disk as it is until its position in the eviction queue is reached.
    pub(crate) fn leave(&self, found: Found) {
        self.hold(found.number);
        lock(&self.unread).push_back(found);
    }

    /// Notes that the records of a file are not all known.
    pub(crate) fn hold(&self, file: u64) {
        self.has_unread.store(true, Ordering::Release);
        lock(&self.held).push(file);
    }

    /// Ends loading. Files that could not be read are held back in the checkpoint with their old
    /// durable number.
    pub(crate) fn settle(&self) {
        let mut checkpoint = lock(&self.checkpoint);
        let mut files = std::mem::take(&mut *lock(&self.held));
        files.sort_unstable();
        files.dedup();
        checkpoint.held =
            files.iter().map(|file| Held { file: *file, durable: checkpoint.durable_in(*file) }).collect();
        drop(checkpoint);
        *lock(&self.is_loaded) = true;
        self.loaded.notify_all();
    }

    /// Unlinks the oldest unopened file if it is older than `position`. Returns its bytes.
    pub(crate) fn evict_unread(&self, position: u64) -> Option<u64> {
        let is_next = |found: &mut Found| found.number < position;
        let found = lock(&self.unread).pop_front_if(is_next)?;
        if self.unlink_unread(&found).is_err() {
            // It keeps its space until a sync has unlinked it.
            lock(&self.unread_failed).push(found);
            return Some(0);
        }
        self.note_name();
        Some(found.share.bytes())
    }

    /// Retries the failed unlinks of unopened files. Returns true if it unlinked any.
    pub(crate) fn retry_unread(&self) -> bool {
        let failed = std::mem::take(&mut *lock(&self.unread_failed));
        let count = failed.len();
        let left: Vec<_> = failed.into_iter().filter(|found| self.unlink_unread(found).is_err()).collect();
        let has_unlinked = left.len() < count;
        lock(&self.unread_failed).extend(left);
        has_unlinked
    }

    fn unlink_unread(&self, found: &Found) -> Result<()> {
        let path = self.dir.join(name_of(&FileHeader { kind: found.kind, number: found.number, tag: 0 }));
        let unlinked = self.disk.unlink(&path);
        self.counted(unlinked.map_err(|error| Error::io("unlink", &path, &error)))
    }

    /// Notes that a file was created or unlinked.
    pub(crate) fn note_name(&self) {
        self.is_dir_dirty.store(true, Ordering::Release);
    }

    /// Queues a file of an earlier session for eviction, by age.
    pub(crate) fn enlist_old(&self, file: Arc<SegmentFile>) {
        file.position.store(file.number(), Ordering::Release);
        lock(&self.queue).insert(file.number(), file);
    }

    /// Appends the file to the eviction queue.
    pub(crate) fn enlist(&self, file: Arc<SegmentFile>) {
        let position = self.next_file_number();
        file.position.store(position, Ordering::Release);
        lock(&self.queue).insert(position, file);
    }

    /// Releases a file: the eviction thread unlinks it, and closes it once it has no readers. Both
    /// can take long.
    pub(crate) fn release_file(&self, file: Arc<SegmentFile>) {
        lock(&self.queue).remove(&file.position.load(Ordering::Acquire));
        if !file.is_released.swap(true, Ordering::AcqRel) {
            self.unlinks.push(file);
            self.wake();
        }
    }

    /// Ends a record, and releases the file of its own if it has one. Returns false if the record
    /// has ended already.
    pub(crate) fn end(&self, record: &Arc<Record>) -> bool {
        let Some(place) = self.release(record) else { return false };
        if place.body.is_own() {
            self.release_file(place.body);
        }
        true
    }

    /// Removes a record from the index and leaves it on disk for the next session.
    pub(crate) fn forget(&self, record: &Arc<Record>) {
        if record.kill().is_some() {
            self.index.remove(record);
        }
    }

    /// Ends a record but keeps its body, which another record uses.
    pub(crate) fn end_head(&self, record: &Arc<Record>) -> bool {
        self.release(record).is_some()
    }

    /// Ends a record. Returns its last place to the one caller that ended it.
    fn release(&self, record: &Arc<Record>) -> Option<Place> {
        let place = record.kill()?;
        self.index.remove(record);
        self.mark_dead(&place.head, place.offset);
        Some(place)
    }

    /// Marks the record at `offset` as dead on disk. Does nothing in a read-only store.
    /// Returns false if the write failed.
    pub(crate) fn mark_dead(&self, file: &Arc<SegmentFile>, offset: u64) -> bool {
        if self.disk.is_read_only() {
            return true;
        }
        let written = file.write_bytes(&State::Dead.code().to_le_bytes(), offset + STATE_AT);
        let is_written = self.counted(written).is_ok();
        if is_written {
            self.note_written(file);
        }
        is_written
    }
}
