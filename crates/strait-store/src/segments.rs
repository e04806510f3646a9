//! Files of the store: creation, eviction order and release. Owns the budget and
//! the directory. Does not depend on records.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::budget::{Budget, Share};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::file::{SegmentFile, lock};
use crate::format::{FileHeader, FileKind};
use crate::pending::PendingUnlinks;
use crate::policy::Area;
use crate::spares::Spares;

/// Bits of a file number that count within a session.
const FILE_COUNT_BITS: u32 = 32;
/// Divisor of the segment size: a longer record gets a file of its own.
const EXTENT_PARTS: u64 = 4;
/// Divisor of the segment size: fewer unused bytes at the end of a segment stay.
const UNUSED_PARTS: u64 = 32;

/// Divisor of the number of segments: at most this part has records that are being filled, because
/// eviction skips such a segment. Further records get files of their own.
const FILLED_DIVISOR: u64 = 4;

/// Files of a store.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) dir: Arc<Path>,
    pub(crate) disk: Disk,
    pub(crate) budget: Arc<Budget>,
    pub(crate) segment_bytes: u64,
    /// Source of tags that an origin cannot guess.
    tags: RandomState,
    /// Next number of a file or of a queue position.
    numbers: AtomicU64,
    queues: Mutex<Queues>,
    /// Spare segments for the next lane that needs one.
    pub(crate) spares: Spares,
    /// Number of segments with records that are being filled.
    filled: AtomicU64,
    /// Full files with unused bytes, and their used bytes; at most once each.
    uncut: Mutex<Vec<(Weak<SegmentFile>, u64)>>,
    /// Released files that are not closed yet.
    pub(crate) unlinks: PendingUnlinks,
    /// True if files were created or unlinked since the last sync of the directory.
    is_dir_dirty: AtomicBool,
}

/// Files that can be evicted, by queue position.
#[derive(Debug, Default)]
struct Queues {
    window: BTreeMap<u64, Arc<SegmentFile>>,
    main: BTreeMap<u64, Arc<SegmentFile>>,
    /// Bytes of the files of the window.
    window_bytes: u64,
}

impl Queues {
    fn of(&self, area: Area) -> &BTreeMap<u64, Arc<SegmentFile>> {
        match area {
            Area::Window => &self.window,
            Area::Main => &self.main,
        }
    }

    /// Adds a file, unless it was released.
    fn insert(&mut self, area: Area, position: u64, file: Arc<SegmentFile>) {
        if file.is_released.load(Ordering::Acquire) {
            return;
        }
        file.position.store(position, Ordering::Release);
        match area {
            Area::Window => {
                self.window_bytes += file.share.bytes();
                self.window.insert(position, file);
            }
            Area::Main => drop(self.main.insert(position, file)),
        }
    }

    /// Removes a file. Returns false if it is not queued.
    fn remove(&mut self, file: &SegmentFile) -> bool {
        let position = file.position.load(Ordering::Acquire);
        if self.window.remove(&position).is_some() {
            self.window_bytes -= file.share.bytes();
            return true;
        }
        self.main.remove(&position).is_some()
    }

    /// Returns the bytes of a file above `bytes` to the budget, whether it is queued or not.
    fn shrink(&mut self, file: &SegmentFile, bytes: u64) {
        let before = file.share.bytes();
        file.share.shrink_to(bytes);
        if self.window.contains_key(&file.position.load(Ordering::Acquire)) {
            self.window_bytes -= before - file.share.bytes();
        }
    }
}

impl Segments {
    /// Makes the files of a session, which has none at first.
    pub(crate) fn new(
        dir: Arc<Path>,
        disk: Disk,
        budget: Arc<Budget>,
        segment_bytes: u64,
        session: u64,
    ) -> Self {
        let spares = Spares::new(budget.capacity_bytes, segment_bytes);
        Self {
            dir,
            disk,
            budget,
            segment_bytes,
            tags: RandomState::new(),
            numbers: AtomicU64::new(session << FILE_COUNT_BITS),
            queues: Mutex::default(),
            spares,
            filled: AtomicU64::new(0),
            uncut: Mutex::default(),
            unlinks: PendingUnlinks::default(),
            is_dir_dirty: AtomicBool::new(true),
        }
    }

    /// Limit in bytes of a record in a segment.
    pub(crate) fn extent_bytes_max(&self) -> u64 {
        self.segment_bytes / EXTENT_PARTS
    }

    /// Takes the next number of a file, or of a queue position.
    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::AcqRel)
    }

    /// Creates a file with a new number and tag.
    pub(crate) fn create(&self, kind: FileKind, share: Share) -> Result<Arc<SegmentFile>> {
        let number = self.next_number();
        let header = FileHeader { kind, number, tag: self.tags.hash_one(number) };
        let file = SegmentFile::create(&self.dir, &self.disk, header, share)?;
        self.note_name();
        file.begin().inspect_err(|_| self.discard(file.clone()))?;
        Ok(file)
    }

    /// Unlinks a file that could not be begun. If that fails, each sync retries: otherwise its
    /// space would be lost until the next start.
    fn discard(&self, file: Arc<SegmentFile>) {
        file.is_released.store(true, Ordering::Release);
        if file.unlink().is_err() {
            self.unlinks.push_failed(file);
        }
    }

    /// Queues a file of an earlier session for eviction, by age. Its objects were in use once, so
    /// they are in main.
    pub(crate) fn enlist_old(&self, file: Arc<SegmentFile>) {
        lock(&self.queues).insert(Area::Main, file.number(), file);
    }

    /// Appends the file to the queue of an area.
    pub(crate) fn enlist(&self, area: Area, file: Arc<SegmentFile>) {
        let position = self.next_number();
        lock(&self.queues).insert(area, position, file);
    }

    /// Moves a queued file to the end of main's queue. Returns false if it is not queued.
    pub(crate) fn requeue(&self, file: &Arc<SegmentFile>) -> bool {
        let position = self.next_number();
        let mut queues = lock(&self.queues);
        let is_queued = queues.remove(file);
        if is_queued {
            queues.insert(Area::Main, position, file.clone());
        }
        is_queued
    }

    /// Returns the queued files, oldest first.
    pub(crate) fn queued(&self) -> Vec<Arc<SegmentFile>> {
        let queues = lock(&self.queues);
        let mut files: Vec<_> = queues.window.iter().chain(&queues.main).collect();
        files.sort_unstable_by_key(|(position, _)| **position);
        files.into_iter().map(|(_, file)| file.clone()).collect()
    }

    /// Returns true if another record of the segment may be filled later: one is already, or few
    /// segments have such records.
    pub(crate) fn may_fill(&self, segment: &SegmentFile) -> bool {
        let filled_max = self.budget.capacity_bytes / self.segment_bytes / FILLED_DIVISOR;
        segment.has_writers() || self.filled.load(Ordering::Acquire) < filled_max
    }

    /// Notes that the record at `offset` of a file is being filled.
    pub(crate) fn open_extent(&self, file: &SegmentFile, offset: u64) {
        if file.open_extent(offset) && !file.is_own() {
            self.filled.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Notes that the record at `offset` of a file is not being filled any more. Returns true if it
    /// was the last one of the file.
    pub(crate) fn close_extent(&self, file: &SegmentFile, offset: u64) -> bool {
        let was_last = file.close_extent(offset);
        if was_last && !file.is_own() {
            self.filled.fetch_sub(1, Ordering::AcqRel);
        }
        was_last
    }

    /// Requests that [`cut_next`](Self::cut_next) frees the bytes of a full file above `bytes`, in
    /// a segment only if they are many. Returns false if there is nothing to free.
    pub(crate) fn cut_later(&self, file: &Arc<SegmentFile>, bytes: u64) -> bool {
        let least_bytes = if file.is_own() { 1 } else { self.segment_bytes / UNUSED_PARTS };
        let is_worthwhile = file.share.bytes().saturating_sub(bytes) >= least_bytes;
        if is_worthwhile {
            lock(&self.uncut).push((Arc::downgrade(file), bytes));
        }
        is_worthwhile
    }

    /// Truncates a full file, and returns its unused bytes to the budget and to the caller; `None`
    /// if there is no such file. The eviction thread calls it, as ext4 without a journal waits
    /// until the disk has discarded freed blocks. Writers wait for that too: a file with writers is
    /// truncated only if `writers_wait`.
    pub(crate) fn cut_next(&self, writers_wait: bool) -> Option<u64> {
        loop {
            let mut uncut = lock(&self.uncut);
            let may_cut = |file: &Weak<SegmentFile>| {
                writers_wait || file.upgrade().is_none_or(|file| !file.has_writers())
            };
            let place = uncut.iter().position(|(file, _)| may_cut(file))?;
            let (file, bytes) = uncut.remove(place);
            drop(uncut);
            let Some(file) = file.upgrade() else { continue };
            if !file.is_released.load(Ordering::Acquire) && file.truncate(bytes) {
                let before = file.share.bytes();
                lock(&self.queues).shrink(&file, bytes);
                return Some(before.saturating_sub(bytes));
            }
        }
    }

    /// Returns the bytes of the queued files of the window.
    pub(crate) fn window_bytes(&self) -> u64 {
        lock(&self.queues).window_bytes
    }

    /// Returns the first file of an area with a position before `end` for which `is_free` returns
    /// true, and its position.
    pub(crate) fn first_before(
        &self,
        area: Area,
        end: u64,
        is_free: impl Fn(&SegmentFile) -> bool,
    ) -> Option<(u64, Arc<SegmentFile>)> {
        let queues = lock(&self.queues);
        let mut waiting = queues.of(area).range(..end);
        waiting.find(|(_, file)| is_free(file)).map(|(position, file)| (*position, file.clone()))
    }

    /// Returns the last position in the queues.
    pub(crate) fn last_position(&self) -> Option<u64> {
        let queues = lock(&self.queues);
        let last = [&queues.window, &queues.main].map(|queue| queue.last_key_value());
        last.into_iter().flatten().map(|(position, _)| *position).max()
    }

    /// Takes a file out of the queue and adds it to the pending unlinks. Returns false if it was
    /// released before.
    pub(crate) fn release(&self, file: Arc<SegmentFile>) -> bool {
        let mut queues = lock(&self.queues);
        queues.remove(&file);
        let is_first = !file.is_released.swap(true, Ordering::AcqRel);
        drop(queues);
        if is_first {
            self.unlinks.push(file);
        }
        is_first
    }

    /// Bytes that the store uses on its file system and that are free there.
    pub(crate) fn within_reach_bytes(&self) -> u64 {
        let free_bytes = self.disk.free_bytes(&self.dir).unwrap_or(u64::MAX);
        self.budget.used_bytes().saturating_add(free_bytes)
    }

    /// Notes that a file was created or unlinked.
    pub(crate) fn note_name(&self) {
        self.is_dir_dirty.store(true, Ordering::Release);
    }

    /// Returns true if files were created or unlinked since the last sync of the directory.
    #[cfg(test)]
    pub(crate) fn is_dir_dirty(&self) -> bool {
        self.is_dir_dirty.load(Ordering::Acquire)
    }

    /// Syncs the directory if files were created or unlinked, or if `is_forced`.
    pub(crate) fn sync_dir(&self, is_forced: bool) -> Result<()> {
        if !self.is_dir_dirty.swap(false, Ordering::AcqRel) && !is_forced {
            return Ok(());
        }
        self.disk.sync_dir(&self.dir).map_err(|error| {
            self.note_name();
            Error::io("sync", &self.dir, &error)
        })
    }
}
