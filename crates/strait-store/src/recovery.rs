//! Recovery of the index from its journal, at the start of a session. Reads the records as of the
//! last cut; [`crate::scan`] then finds the ones stored since.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::sync::Arc;

use crate::disk::Disk;
use crate::file::SegmentFile;
use crate::format::checkpoint::Checkpoint;
use crate::format::journal::{BLOCK_BYTES, Block, Cut, Entry, FileEntry, Removal};
use crate::index::Index;
use crate::journal::INDEX;
use crate::record::{Location, Record};
use crate::shared::Shared;

/// Blocks of one read, and of a unit.
const READ_BLOCKS: u64 = 64;

/// A valid journal, except for its records.
pub(crate) struct Recovery {
    file: File,
    /// Parts with records, those of the newest batch first.
    pub(crate) units: Vec<Unit>,
    /// Files by their index, about in the order of eviction.
    pub(crate) files: Vec<FileEntry>,
    /// Number of records, counted in each batch.
    pub(crate) records: usize,
    /// Last batch that has placed or removed a record, by its sequence; none if that is the first
    /// batch.
    newest: HashMap<u64, usize, BuildHasherDefault<Spread>>,
    /// True if the last session has closed the store after the last cut.
    pub(crate) is_closed: bool,
}

/// Blocks of records in one batch, which are read together.
pub(crate) struct Unit {
    batch: usize,
    blocks: Range<u64>,
    /// Shards of the index that the records are in.
    pub(crate) shards: RangeInclusive<usize>,
}

/// Batches read so far.
#[derive(Default)]
struct Batches {
    session: u64,
    last: Option<Cut>,
    /// Number of complete batches, and the place after the last one.
    count: usize,
    end: u64,
    units: Vec<Unit>,
    files: Vec<FileEntry>,
    indices: HashMap<u64, usize>,
    records: usize,
    newest: HashMap<u64, usize, BuildHasherDefault<Spread>>,
    /// The batch being read.
    begun: Begun,
}

/// Batch without a cut so far.
#[derive(Default)]
struct Begun {
    units: Vec<Unit>,
    files: Vec<FileEntry>,
    records: usize,
    /// Sequences of the records that it places and removes.
    changed: Vec<u64>,
}

/// Hash of a sequence number. The first hit after a start waits for as many hashes as the later
/// batches have entries, and the numbers are the store's own, so they need no keyed hash.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
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
        let Batches { mut units, files, records, newest, .. } = read;
        units.sort_by_key(|unit| Reverse(unit.batch));
        Some(Self { file, units, files, records, newest, is_closed })
    }

    /// Adds the records of a unit to the index. `files` are in the order of the journal. Skips
    /// records that a later batch has placed or removed, records of missing files, and records that
    /// exceed the length of their file. `None` if the journal cannot be read any more.
    pub(crate) fn load(
        &self,
        shared: &Shared,
        unit: usize,
        files: &[Option<Arc<SegmentFile>>],
    ) -> Option<()> {
        let Unit { batch, blocks, .. } = self.units.get(unit)?;
        let is_last = |sequence| self.newest.get(&sequence).is_none_or(|last| last == batch);
        let end = for_each_block(&shared.segments.disk, &self.file, blocks.clone(), |_, block| {
            let entries = block.items::<Entry>().filter(|entry| is_last(entry.sequence));
            entries.for_each(|entry| admit(shared, &entry, files));
            Some(())
        });
        (end == blocks.end).then_some(())
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
        self.begun.add(self.count, place, block);
        let Some(cut) = block.items::<Cut>().next() else { return Some(()) };
        // No file has this number: such a write is durable everywhere except in held-back files.
        if cut.first != self.end || !checkpoint.covers(0, cut.number) {
            return None;
        }
        let begun = std::mem::take(&mut self.begun);
        self.units.extend(begun.units);
        self.records += begun.records;
        self.newest.extend(begun.changed.into_iter().map(|sequence| (sequence, self.count)));
        for file in begun.files {
            let index = *self.indices.entry(file.header.number).or_insert(self.files.len());
            match self.files.get_mut(index) {
                Some(known) => *known = file,
                None => self.files.push(file),
            }
        }
        (self.last, self.end) = (Some(cut), place + 1);
        self.count += 1;
        Some(())
    }
}

impl Begun {
    fn add(&mut self, batch: usize, place: u64, block: &Block<'_>) {
        self.files.extend(block.items::<FileEntry>());
        self.changed.extend(block.items::<Removal>().map(|removal| removal.0));
        for entry in block.items::<Entry>() {
            self.records += 1;
            self.note_shard(batch, place, Index::shard_of(entry.hash));
            // No batch is before the first one.
            self.changed.extend((batch > 0).then_some(entry.sequence));
        }
    }

    /// Adds the block at `place` with a record in `shard` to the last unit, or to a new one.
    fn note_shard(&mut self, batch: usize, place: u64, shard: usize) {
        let last = self.units.last_mut().filter(|last| place - last.blocks.start < READ_BLOCKS);
        let Some(last) = last else {
            let unit = Unit { batch, blocks: place..place + 1, shards: shard..=shard };
            return self.units.push(unit);
        };
        last.blocks.end = place + 1;
        last.shards = shard.min(*last.shards.start())..=shard.max(*last.shards.end());
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
    shared.admit(record);
}
