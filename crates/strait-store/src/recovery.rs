//! Recovery of the index from its journal, at the start of a session. Reads the records as of the
//! last cut; [`crate::scan`] then finds the ones stored since.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::disk::Disk;
use crate::file::SegmentFile;
use crate::format::checkpoint::Checkpoint;
use crate::format::journal::{BLOCK_BYTES, Block, Cut, Entry, FileEntry, Removal};
use crate::journal::INDEX;
use crate::record::{Location, Record};
use crate::shared::Shared;

/// Blocks of one read.
const READ_BLOCKS: u64 = 64;

/// A valid journal, except for its records.
pub(crate) struct Recovery {
    file: File,
    /// Blocks of the batches up to the last valid cut, oldest first.
    batches: Vec<Range<u64>>,
    /// Files by their index, about in the order of eviction.
    pub(crate) files: Vec<FileEntry>,
    /// Records of the first batch.
    records: usize,
    /// True if the last session has closed the store after the last cut.
    pub(crate) is_closed: bool,
}

/// Batches read so far.
#[derive(Default)]
struct Batches {
    session: u64,
    last: Option<Cut>,
    ranges: Vec<Range<u64>>,
    files: Vec<FileEntry>,
    indices: HashMap<u64, usize>,
    /// Records of the first batch.
    records: usize,
    /// Files that the batch being read names.
    named: Vec<FileEntry>,
}

impl Recovery {
    /// Opens the journal in `dir`, in the session of `checkpoint`; `None` if it has no valid cut.
    /// Damage, and a cut that is not known to be durable, end it.
    pub(crate) fn open(disk: &Disk, dir: &Path, checkpoint: &Checkpoint) -> Option<Self> {
        let file = disk.open(&dir.join(INDEX)).ok()?;
        let blocks = file.metadata().ok()?.len() / BLOCK_BYTES as u64;
        let mut read = Batches::default();
        for_each_block(disk, &file, 0..blocks, |place, block| read.add(checkpoint, place, &block));
        let is_closed = read.last?.is_last && read.session + 1 == checkpoint.session;
        Some(Self { file, batches: read.ranges, files: read.files, records: read.records, is_closed })
    }

    /// Adds the records to the index, newest batch first. `files` are in the order of the journal.
    /// Skips records of missing files, and records that exceed the length of their file. `None` if
    /// the journal cannot be read any more.
    pub(crate) fn load(&self, shared: &Shared, files: &[Option<Arc<SegmentFile>>]) -> Option<()> {
        shared.index.reserve(self.records);
        // Records that a later batch has removed or placed.
        let mut later = HashSet::new();
        for (index, blocks) in self.batches.iter().enumerate().rev() {
            let mut placed = Vec::new();
            let disk = &shared.segments.disk;
            let end = for_each_block(disk, &self.file, blocks.clone(), |_, block| {
                for entry in block.items::<Entry>().filter(|entry| !later.contains(&entry.sequence)) {
                    admit(shared, &entry, files);
                    // No batch is before the first one.
                    placed.extend((index > 0).then_some(entry.sequence));
                }
                placed.extend(block.items::<Removal>().map(|removal| removal.0));
                Some(())
            });
            if end < blocks.end {
                return None;
            }
            later.extend(placed);
        }
        Some(())
    }
}

impl Batches {
    /// Adds a block; `None` if it is not the next one of the journal.
    fn add(&mut self, checkpoint: &Checkpoint, place: u64, block: &Block<'_>) -> Option<()> {
        if place == 0 {
            self.session = block.session;
        }
        if block.session != self.session || self.session >= checkpoint.session {
            return None;
        }
        self.named.extend(block.items::<FileEntry>());
        if self.ranges.is_empty() {
            self.records += block.items::<Entry>().count();
        }
        let Some(cut) = block.items::<Cut>().next() else { return Some(()) };
        let first = self.ranges.last().map_or(0, |batch| batch.end);
        // No file has this number: such a write is durable everywhere except in held-back files.
        if cut.first != first || !checkpoint.covers(0, cut.number) {
            return None;
        }
        self.ranges.push(first..place + 1);
        self.last = Some(cut);
        for file in std::mem::take(&mut self.named) {
            let index = *self.indices.entry(file.header.number).or_insert(self.files.len());
            match self.files.get_mut(index) {
                Some(known) => *known = file,
                None => self.files.push(file),
            }
        }
        Some(())
    }
}

/// Calls `look` with the blocks in `places`, until it returns `None`, or one is damaged or
/// unreadable. Returns the place of that block, else the end.
fn for_each_block(
    disk: &Disk,
    file: &File,
    places: Range<u64>,
    mut look: impl FnMut(u64, Block<'_>) -> Option<()>,
) -> u64 {
    let mut buffer = Vec::new();
    let mut place = places.start;
    while place < places.end {
        let count = READ_BLOCKS.min(places.end - place);
        buffer.clear();
        let bytes = count as usize * BLOCK_BYTES;
        if disk.read(file, &mut buffer, bytes, place.saturating_mul(BLOCK_BYTES as u64)).is_err() {
            return place;
        }
        for bytes in buffer.chunks(BLOCK_BYTES) {
            if Block::check(bytes, place).and_then(|block| look(place, block)).is_none() {
                return place;
            }
            place += 1;
        }
        if buffer.len() < bytes {
            return place;
        }
    }
    place
}

fn admit(shared: &Shared, entry: &Entry, files: &[Option<Arc<SegmentFile>>]) {
    let get = |index: u32| files.get(index as usize)?.as_ref();
    let (Some(head), Some(body)) = (get(entry.head_file), get(entry.body_file)) else { return };
    let head_end = entry.offset.saturating_add(u64::from(entry.head_len));
    let body_end = entry.body_offset.saturating_add(entry.body_len);
    if head_end > head.share.bytes() || body_end > body.share.bytes() {
        return;
    }
    let (head, body) = (head.clone(), body.clone());
    let Entry { offset, head_len, body_offset, .. } = *entry;
    let location = Location { head, offset, head_len, body, body_offset };
    let record = Record::new(entry.hash, entry.sequence, entry.body_len, location);
    record.set_requests(entry.hits.min(u32::from(u8::MAX)) as u8);
    shared.admit(&record);
}
