//! Journal of the index on disk, so that a start needs no scan, after a kill either. Each sync
//! appends the changes of the index as a batch, which ends with a cut. A whole batch in a new file
//! replaces the journal when it has grown too long, and when the store is closed.
//!
//! A cut consists of the records as of some moment, and of the position in each file up to which
//! it knows all records. So any cut stays valid, however old: a start finds the records stored
//! since by scanning behind these positions, and the headers on disk show which records have ended
//! since. A batch that is lost or incomplete costs time, but no object.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::budget::Share;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::file::{NEW, SegmentFile, lock};
use crate::format::journal::{BLOCK_BYTES, COMPLETE, Cut, Entry, FileEntry, Item, Removal, encode};
use crate::format::{FILE_HEADER_BYTES, FileHeader};
use crate::index::Index;
use crate::lane::Lane;
use crate::record::{Location, Record};
use crate::shared::Shared;

pub(crate) const INDEX: &str = "index";
/// Limit of noted records, and of noted removals, between two cuts. Beyond it the next batch is
/// whole.
const CHANGES_MAX: usize = 1 << 18;
/// The journal is replaced when it is longer than a whole batch by this factor and these blocks.
const GROWTH_FACTOR: u64 = 2;
const GROWTH_BLOCKS: u64 = 64;
/// Step by which the share of a new journal grows.
const SHARE_STEP_BYTES: u64 = 1 << 20;
/// Blocks of one write.
const WRITE_BLOCKS: usize = 256;

/// Journal of a store.
#[derive(Debug)]
pub(crate) struct Journal {
    changes: Mutex<Changes>,
    /// A sync holds this lock for the cut and for the write.
    written: Mutex<Written>,
}

/// Changes of the index since the last cut.
#[derive(Debug)]
struct Changes {
    /// Records that were added or moved, some of them several times.
    placed: Vec<Arc<Record>>,
    /// Sequence numbers of records that have ended.
    removed: Vec<u64>,
    /// True if the changes are not all known: the next batch must be whole.
    is_lost: bool,
}

/// The journal on disk.
#[derive(Debug, Default)]
struct Written {
    /// Journal of this session.
    file: Option<JournalFile>,
    /// Share of the journal of an earlier session, until this one replaces it.
    earlier: Option<Share>,
    /// Share for the next journal, while it is too small.
    reserved: Option<Share>,
    files: FileTable,
    /// Number of the last cut.
    number: u64,
}

#[derive(Debug)]
struct JournalFile {
    file: File,
    share: Share,
    blocks: u64,
}

/// Files that the journal names.
#[derive(Debug, Default)]
struct FileTable {
    /// By number: index, and the offset from which to scan.
    known: HashMap<u64, (u32, u64)>,
}

/// Changes of the index up to a cut, to be written once all of them are durable.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Every write to a record of the batch had this number or less, and had ended at the cut.
    pub(crate) number: u64,
    /// True if it has all records.
    is_whole: bool,
    files: Vec<FileEntry>,
    entries: Vec<Entry>,
    removals: Vec<Removal>,
}

impl Default for Journal {
    fn default() -> Self {
        let changes = Changes { placed: Vec::new(), removed: Vec::new(), is_lost: true };
        Self { changes: Mutex::new(changes), written: Mutex::default() }
    }
}

impl Journal {
    /// Notes that a record was added or moved. Call it before a cut can be made: with the lock of
    /// the lane that has written the record.
    pub(crate) fn note_placed(&self, record: &Arc<Record>) {
        let mut changes = lock(&self.changes);
        if changes.has_room() {
            changes.placed.push(record.clone());
        }
    }

    /// Notes that a record has ended. Call it after the write that marks it dead, so that the sync
    /// of that write precedes the batch.
    pub(crate) fn note_removed(&self, record: &Record) {
        let mut changes = lock(&self.changes);
        if changes.has_room() {
            changes.removed.push(record.sequence());
        }
    }

    /// Keeps the share of the journal of an earlier session.
    pub(crate) fn keep(&self, earlier: Option<Share>) {
        lock(&self.written).earlier = earlier;
    }

    /// Notes that the next batch must be whole, because one was not written.
    pub(crate) fn lose(&self) {
        lock(&self.changes).lose();
    }

    /// Removes the journal of an earlier session: the records of this one are not all known.
    pub(crate) fn discard(&self, shared: &Shared) {
        let path = shared.segments.dir.join(INDEX);
        let unlinked = shared.segments.disk.unlink(&path);
        if shared.counted(unlinked.map_err(|error| Error::io("unlink", &path, &error))).is_ok() {
            lock(&self.written).earlier = None;
        }
    }
}

impl Changes {
    fn has_room(&mut self) -> bool {
        if self.placed.len().max(self.removed.len()) >= CHANGES_MAX {
            self.lose();
        }
        !self.is_lost
    }

    fn lose(&mut self) {
        *self = Self { placed: Vec::new(), removed: Vec::new(), is_lost: true };
    }

    fn take(&mut self) -> Self {
        let none = Self { placed: Vec::new(), removed: Vec::new(), is_lost: false };
        std::mem::replace(self, none)
    }

    /// Returns the added and moved records, each once, by shard, so that a start finds the blocks
    /// with those of one key.
    fn placed_once(mut self) -> Vec<Arc<Record>> {
        self.placed.sort_unstable_by_key(|record| (Index::shard_of(record.hash), record.sequence()));
        self.placed.dedup_by_key(|record| record.sequence());
        self.placed
    }
}

impl FileTable {
    /// Returns the index of a file. A start scans a new one from its first record.
    fn index(&mut self, file: &SegmentFile, named: &mut Vec<FileEntry>) -> u32 {
        if let Some((index, _)) = self.known.get(&file.number()) {
            return *index;
        }
        self.name(file.header, FILE_HEADER_BYTES, named)
    }

    /// Returns true if the head of a record is behind the offset from which its file is scanned.
    fn is_behind(&self, location: &Location) -> bool {
        let known = self.known.get(&location.head.number());
        known.is_none_or(|(_, scan_from)| location.offset >= *scan_from)
    }

    /// Names a file, unless it is known with this offset. Returns its index.
    fn name(&mut self, header: FileHeader, scan_from: u64, named: &mut Vec<FileEntry>) -> u32 {
        let next = self.known.len() as u32;
        let known = self.known.entry(header.number).or_insert((next, 0));
        if known.1 != scan_from {
            known.1 = scan_from;
            named.push(FileEntry { header, scan_from });
        }
        known.0
    }
}

/// Makes a cut: collects the changes since the last one, or all records if `is_whole` or if it is
/// time to replace the journal.
///
/// The positions are taken first, then the number, then the records. So a record before a position
/// has ended its write before and is collected, and a record with a higher number, which the sync
/// of this batch may miss, is behind the position of its file. Such a record is left to the next
/// batch.
pub(crate) fn cut(shared: &Shared, is_whole: bool) -> Batch {
    let mut written = lock(&shared.journal.written);
    let mut positions = Positions::default();
    for lane in &shared.lanes {
        positions.note_lane(&lock(lane));
    }
    // A file is not held further: that would keep an evicted one from being freed.
    let queued: Vec<_> = shared
        .segments
        .queued()
        .iter()
        .map(|file| {
            positions.note(file, COMPLETE);
            file.number()
        })
        .collect();
    let number = shared.durability.last_number();
    // A write takes its number and ends under the lock of a lane, so after this loop all writes
    // up to `number` have ended. No other lane is locked meanwhile: a caller may wait in its lane
    // for eviction.
    for lane in &shared.lanes {
        drop(lock(lane));
    }
    if shared.unread.any() {
        // The index lacks the records that could not be read.
        return Batch { number, ..Batch::default() };
    }
    // Until the records are collected, eviction must not move one.
    let eviction = shared.eviction_lane();
    let changes = lock(&shared.journal.changes).take();
    let is_whole = is_whole || changes.is_lost || written.is_too_long(shared);
    let mut batch = Batch { number, is_whole, ..Batch::default() };
    let records = if is_whole {
        written.files = FileTable::default();
        shared.index.all_unordered()
    } else {
        let known = changes.removed.iter().copied().filter(|sequence| *sequence <= written.number);
        batch.removals = known.map(Removal).collect();
        changes.placed_once()
    };
    for (file, scan_from) in positions.in_order(&queued) {
        written.files.name(file, scan_from, &mut batch.files);
    }
    for record in records {
        // A record can be removed at any time, and a dead record has no location.
        let Some(location) = record.location() else { continue };
        if record.sequence() > number || written.files.is_behind(&location) {
            // It is not known to be durable. The next batch has it.
            shared.journal.note_placed(&record);
        } else {
            batch.entries.push(entry(&record, &location, &mut written.files, &mut batch.files));
        }
    }
    drop(eviction);
    batch
}

/// Offset in each file from which it can have records that the cut does not know.
#[derive(Default)]
struct Positions(HashMap<u64, (FileHeader, u64)>);

impl Positions {
    fn note_lane(&mut self, lane: &Lane) {
        if let Some(file) = &lane.current {
            self.note(file, lane.tail);
        }
    }

    /// Notes a file with records up to `end`. The first call for a file counts.
    fn note(&mut self, file: &SegmentFile, end: u64) {
        let scan_from = file.first_open_extent().map_or(end, |offset| offset.min(end));
        self.0.entry(file.number()).or_insert((file.header, scan_from));
    }

    /// Returns the files and their offsets, first those with the numbers `queued` in their order.
    fn in_order(mut self, queued: &[u64]) -> Vec<(FileHeader, u64)> {
        let mut ordered: Vec<_> = queued.iter().filter_map(|number| self.0.remove(number)).collect();
        ordered.extend(self.0.into_values());
        ordered
    }
}

fn entry(record: &Record, place: &Location, files: &mut FileTable, named: &mut Vec<FileEntry>) -> Entry {
    Entry {
        hash: record.hash,
        sequence: record.sequence(),
        body_len: record.body_len(),
        offset: place.offset,
        body_offset: place.body_offset,
        head_file: files.index(&place.head, named),
        body_file: files.index(&place.body, named),
        head_len: place.head_len,
        hits: u32::from(record.requests()),
    }
}

impl Written {
    fn is_too_long(&self, shared: &Shared) -> bool {
        let (records, files) = (shared.index.len(), shared.segments.budget.files());
        let whole = (records / Entry::IN_BLOCK + files / FileEntry::IN_BLOCK) as u64;
        self.file.as_ref().is_none_or(|file| file.blocks > GROWTH_FACTOR * whole + GROWTH_BLOCKS)
    }

    /// Takes a share of `bytes` for a new journal. In a full store eviction frees space step by
    /// step; if it does not free enough in time, the share continues to grow at the next sync.
    fn share(&mut self, shared: &Shared, bytes: u64) -> Result<Share> {
        shared.when_free("write the index", bytes, || {
            let share = self.reserved.take().or_else(|| Share::take(&shared.segments.budget, 0))?;
            share.shrink_to(bytes);
            while share.bytes() < bytes {
                if !share.grow(SHARE_STEP_BYTES.min(bytes - share.bytes())) {
                    self.reserved = Some(share);
                    return None;
                }
            }
            Some(share)
        })
    }

    /// Replaces the journal by one with `batch` only.
    fn replace(&mut self, shared: &Shared, session: u64, batch: &Batch, is_last: bool) -> Result<()> {
        let segments = &shared.segments;
        let (path, bytes) = (segments.dir.join(INDEX), batch.blocks() * BLOCK_BYTES as u64);
        let share = self.share(shared, bytes)?;
        let temporary = path.with_extension(NEW);
        let _ = fs::remove_file(&temporary);
        let written = segments.disk.create(&temporary).and_then(|file| {
            segments.disk.allocate(&file, bytes)?;
            write(&segments.disk, &file, (session, 0), batch, is_last)?;
            segments.disk.sync(&file)?;
            segments.disk.rename(&temporary, &path)?;
            Ok(file)
        });
        let file = written.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            failed(shared, &path, bytes, &error)
        })?;
        self.file = Some(JournalFile { file, share, blocks: batch.blocks() });
        self.earlier = None;
        // Last: the file is there, and counts, whether it survives a power loss or not.
        segments.disk.sync_dir(&segments.dir).map_err(|error| failed(shared, &path, bytes, &error))
    }

    /// Appends `batch` to the journal. Not synced: an incomplete batch is recognised, and the cut
    /// before it is valid as well.
    fn append(&mut self, shared: &Shared, session: u64, batch: &Batch) -> Result<()> {
        let Some(journal) = &mut self.file else { return Ok(()) };
        let (blocks, bytes) = (batch.blocks(), batch.blocks() * BLOCK_BYTES as u64);
        shared.when_free("write the index", bytes, || journal.share.grow(bytes).then_some(()))?;
        let written = write(&shared.segments.disk, &journal.file, (session, journal.blocks), batch, false);
        journal.blocks += blocks;
        written.map_err(|error| failed(shared, &shared.segments.dir.join(INDEX), bytes, &error))
    }
}

fn failed(shared: &Shared, path: &Path, bytes: u64, error: &io::Error) -> Error {
    let error = Error::io("write", path, error);
    shared.note_shortage(&error, bytes);
    error
}

impl Batch {
    fn blocks(&self) -> u64 {
        fn of<I: Item>(items: &[I]) -> u64 {
            items.len().div_ceil(I::IN_BLOCK) as u64
        }
        of(&self.files) + of(&self.entries) + of(&self.removals) + 1
    }

    fn is_empty(&self) -> bool {
        self.blocks() == 1
    }
}

/// Writes a batch whose changes are durable, unless there are none. After an error the next batch
/// is whole; until then the last cut on disk stays valid.
pub(crate) fn write_batch(shared: &Shared, session: u64, batch: &Batch, is_last: bool) -> Result<()> {
    let mut written = lock(&shared.journal.written);
    let result = if batch.is_whole {
        written.replace(shared, session, batch, is_last)
    } else if batch.is_empty() {
        Ok(())
    } else {
        written.append(shared, session, batch)
    };
    written.number = batch.number;
    result.inspect_err(|_| shared.journal.lose())
}

/// Writes the blocks of a batch at a place, the cut last.
fn write(
    disk: &Disk,
    file: &File,
    (session, first): (u64, u64),
    batch: &Batch,
    is_last: bool,
) -> io::Result<()> {
    let mut blocks = Blocks { disk, file, session, place: first, buffer: Vec::new() };
    blocks.add(&batch.files)?;
    blocks.add(&batch.entries)?;
    blocks.add(&batch.removals)?;
    blocks.add(&[Cut { first, number: batch.number, is_last }])?;
    blocks.flush()
}

struct Blocks<'a> {
    disk: &'a Disk,
    file: &'a File,
    session: u64,
    /// Place of the next block.
    place: u64,
    buffer: Vec<u8>,
}

impl Blocks<'_> {
    fn add<I: Item>(&mut self, items: &[I]) -> io::Result<()> {
        for items in items.chunks(I::IN_BLOCK) {
            encode(self.session, self.place, items, &mut self.buffer);
            self.place += 1;
            if self.buffer.len() >= WRITE_BLOCKS * BLOCK_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let begin = self.place * BLOCK_BYTES as u64 - self.buffer.len() as u64;
        self.disk.write_bytes(self.file, &self.buffer, begin)?;
        self.buffer.clear();
        Ok(())
    }
}
