//! What the threads that use a store and its background thread share.

use std::collections::{BTreeMap, VecDeque};
use std::hash::RandomState;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::Thread;

use crate::budget::Budget;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::file::{SegmentFile, lock, name_of};
use crate::format::marks::{Held, Marks};
use crate::format::{FileHeader, STATE_AT, State};
use crate::index::Index;
use crate::lane::Lane;
use crate::open::Found;
use crate::pending::PendingUnlinks;
use crate::record::{Place, Record};
use crate::relief::Relief;
use crate::stats::Counters;

/// Bits of a file's number that count within a session.
const FILE_COUNT_BITS: u32 = 32;

/// The store itself.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) dir: Arc<Path>,
    pub(crate) disk: Disk,
    pub(crate) budget: Arc<Budget>,
    pub(crate) segment_bytes: u64,
    pub(crate) index: Index,
    pub(crate) counters: Counters,
    /// Makes numbers that nobody outside can guess.
    pub(crate) tags: RandomState,
    /// Those of the callers, and behind them that of eviction.
    pub(crate) lanes: Box<[Mutex<Lane>]>,
    /// Files that can be evicted, by their turn.
    pub(crate) queue: Mutex<BTreeMap<u64, Arc<SegmentFile>>>,
    /// Segments that are ready for the next lane that needs one.
    pub(crate) spares: Mutex<Vec<Arc<SegmentFile>>>,
    /// Files that are to be unlinked, or are and still read.
    pub(crate) unlinks: PendingUnlinks,
    /// Files that were written to since they were synced.
    pub(crate) dirty: Mutex<Vec<Weak<SegmentFile>>>,
    /// Files that could not be opened, by age.
    unread: Mutex<VecDeque<Found>>,
    /// Numbers of those, and of files that could not be read to their end.
    held: Mutex<Vec<u64>>,
    /// Whether there are any: what they have is not known.
    pub(crate) has_unread: AtomicBool,
    /// Whether files were made or unlinked since the directory was synced.
    pub(crate) is_dir_dirty: AtomicBool,
    /// As on disk.
    pub(crate) marks: Mutex<Marks>,
    /// Bytes that were asked for and not had: so much more is evicted.
    pub(crate) demand_bytes: AtomicU64,
    /// What the file system had not.
    pub(crate) relief: Relief,
    pub(crate) is_closed: AtomicBool,
    pub(crate) is_loaded: Mutex<bool>,
    pub(crate) loaded: Condvar,
    /// The background thread.
    pub(crate) thread: OnceLock<Thread>,
    numbers: AtomicU64,
    file_numbers: AtomicU64,
}

impl Shared {
    /// An empty one, whose marks are those of this session.
    pub(crate) fn new(
        dir: Arc<Path>,
        disk: Disk,
        budget: Arc<Budget>,
        segment_bytes: u64,
        lanes: usize,
        marks: Marks,
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
            held: Mutex::default(),
            has_unread: AtomicBool::new(false),
            is_dir_dirty: AtomicBool::new(true),
            demand_bytes: AtomicU64::new(0),
            relief: Relief::new(),
            is_closed: AtomicBool::new(false),
            is_loaded: Mutex::new(false),
            loaded: Condvar::new(),
            thread: OnceLock::new(),
            numbers: AtomicU64::new(marks.first_number()),
            file_numbers: AtomicU64::new(marks.session << FILE_COUNT_BITS),
            marks: Mutex::new(marks),
        }
    }

    /// The caller's lane. Nothing is written through it once the store is closed.
    pub(crate) fn lane(&self, lane: usize, operation: &'static str) -> Result<MutexGuard<'_, Lane>> {
        let lane = lock(&self.lanes[lane % (self.lanes.len() - 1)]);
        if self.is_closed.load(Ordering::Acquire) { Err(Error::Closed { operation }) } else { Ok(lane) }
    }

    /// The number of a write.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::AcqRel)
    }

    /// The number of the last write that has begun.
    pub(crate) fn last_number(&self) -> u64 {
        self.numbers.load(Ordering::Acquire) - 1
    }

    /// The number of a file, or of a turn in the queue.
    pub(crate) fn next_file_number(&self) -> u64 {
        self.file_numbers.fetch_add(1, Ordering::AcqRel)
    }

    /// Has the background thread look at what there is to do.
    pub(crate) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// There is no room; more is to be evicted.
    pub(crate) fn full(&self, operation: &'static str, bytes: u64) -> Error {
        self.demand_bytes.fetch_max(bytes, Ordering::AcqRel);
        self.wake();
        Error::Full { operation, bytes }
    }

    /// The same result; counted if it is an error.
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

    /// Puts a record of an earlier session into the index, and into the lists of its files.
    pub(crate) fn admit(&self, record: &Arc<Record>) {
        let Some(place) = record.place() else { return };
        place.head.admit(record.hash);
        if !Arc::ptr_eq(&place.head, &place.body) {
            place.body.admit(record.hash);
        }
        self.index.insert(record.clone());
    }

    /// Whether an old file is worth keeping. One without records may have what is referred to from a file that could not be read.
    pub(crate) fn is_of_use(&self, file: &SegmentFile) -> bool {
        file.has_members() || self.has_unread.load(Ordering::Acquire)
    }

    /// Leaves a file as it is, until it is its turn to be evicted.
    pub(crate) fn leave(&self, found: Found) {
        self.hold(found.number);
        lock(&self.unread).push_back(found);
    }

    /// Notes that it is not known what all is in a file.
    pub(crate) fn hold(&self, file: u64) {
        self.has_unread.store(true, Ordering::Release);
        lock(&self.held).push(file);
    }

    /// Ends the loading: of what could not be read no more is said to be on disk than was known before.
    pub(crate) fn settle(&self) {
        let mut marks = lock(&self.marks);
        let mut files = std::mem::take(&mut *lock(&self.held));
        files.sort_unstable();
        files.dedup();
        marks.held =
            files.iter().map(|file| Held { file: *file, durable: marks.durable_in(*file) }).collect();
        drop(marks);
        *lock(&self.is_loaded) = true;
        self.loaded.notify_all();
    }

    /// Takes away a file that could not be opened, if it is older than `turn`: its bytes.
    pub(crate) fn evict_unread(&self, turn: u64) -> Option<u64> {
        let is_next = |found: &mut Found| found.number < turn;
        let found = lock(&self.unread).pop_front_if(is_next)?;
        let header = FileHeader { kind: found.kind, number: found.number, tag: 0 };
        // If that fails the next start finds it and tries again.
        let _ = self.disk.unlink(&self.dir.join(name_of(&header)));
        self.note_name();
        Some(found.share.bytes())
    }

    /// Notes that a file was made or unlinked.
    pub(crate) fn note_name(&self) {
        self.is_dir_dirty.store(true, Ordering::Release);
    }

    /// Lets a file of an earlier session be evicted when its turn comes, which is by age.
    pub(crate) fn enlist_old(&self, file: Arc<SegmentFile>) {
        file.turn.store(file.number(), Ordering::Release);
        lock(&self.queue).insert(file.number(), file);
    }

    /// Lets the file be evicted when its turn comes.
    pub(crate) fn enlist(&self, file: Arc<SegmentFile>) {
        let turn = self.next_file_number();
        file.turn.store(turn, Ordering::Release);
        lock(&self.queue).insert(turn, file);
    }

    /// Has the file unlinked, and closed when nobody reads it any more: by the background thread, for both can take long.
    pub(crate) fn let_go(&self, file: Arc<SegmentFile>) {
        lock(&self.queue).remove(&file.turn.load(Ordering::Acquire));
        if !file.is_leaving.swap(true, Ordering::AcqRel) {
            self.unlinks.push(file);
            self.wake();
        }
    }

    /// Ends a record whose body nobody else has; false if it has ended already.
    pub(crate) fn end(&self, record: &Arc<Record>) -> bool {
        let Some(place) = self.release(record) else { return false };
        if place.body.is_own() {
            self.let_go(place.body);
        }
        true
    }

    /// Takes a record out of the index and leaves it on disk, for the next session.
    pub(crate) fn forget(&self, record: &Arc<Record>) {
        if record.kill().is_some() {
            self.index.remove(record);
        }
    }

    /// Ends a record and leaves its body.
    pub(crate) fn end_head(&self, record: &Arc<Record>) -> bool {
        self.release(record).is_some()
    }

    /// Ends a record, which has no place from then on; its last place for the one caller that ended it.
    fn release(&self, record: &Arc<Record>) -> Option<Place> {
        let place = record.kill()?;
        self.index.remove(record);
        self.mark_dead(&place.head, place.offset);
        Some(place)
    }

    /// Writes down that the record at `offset` is dead, unless nothing is written at all; false if that failed.
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
