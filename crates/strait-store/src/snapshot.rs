//! Snapshot of the index on disk, so that a start needs no scan. Written when the store is closed;
//! valid only for the next session.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::file::{NEW, SegmentFile};
use crate::format::FileHeader;
use crate::format::snapshot::{BLOCK_BYTES, Entry, Item, Totals, decode, encode};
use crate::index::Index;
use crate::record::{Location, Record};
use crate::segments::Segments;
use crate::shared::Shared;

pub(crate) const INDEX: &str = "index";
/// Limit of files in a snapshot; their indices have 32 bits.
const FILES_MAX: u64 = u32::MAX as u64;

/// Writes the snapshot of `session`, after everything else. Without a snapshot the next start
/// scans.
pub(crate) fn write(segments: &Segments, index: &Index, session: u64) -> Result<()> {
    let files = segments.queued();
    let mut records = index.all();
    // A record may be removed at any time, and a dead record has no location.
    records.retain(|record| record.is_alive());
    let totals = Totals { files: files.len() as u64, records: records.len() as u64 };
    let path = segments.dir.join(INDEX);
    if totals.bytes() > segments.budget.free_bytes() {
        return Err(Error::Full { operation: "write the index", bytes: totals.bytes() });
    }
    let temporary = path.with_extension(NEW);
    let _ = fs::remove_file(&temporary);
    let written = segments.disk.create(&temporary).and_then(|file| {
        segments.disk.allocate(&file, totals.bytes())?;
        let mut blocks = Blocks { disk: &segments.disk, file, session, place: 0 };
        blocks.write(&[totals])?;
        files
            .chunks(FileHeader::IN_BLOCK)
            .try_for_each(|some| blocks.write(&some.iter().map(|file| file.header).collect::<Vec<_>>()))?;
        let places: std::collections::HashMap<u64, u32> =
            files.iter().zip(0..).map(|(file, place)| (file.number(), place)).collect();
        records.chunks(Entry::IN_BLOCK).try_for_each(|some| {
            let entries: Option<Vec<_>> = some.iter().map(|record| entry(record, &places)).collect();
            blocks.write(&entries.ok_or(io::ErrorKind::InvalidData)?)
        })?;
        segments.disk.sync(&blocks.file)?;
        segments.disk.rename(&temporary, &path, &segments.dir)
    });
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Error::io("write", &path, &error)
    })
}

fn entry(record: &Record, places: &std::collections::HashMap<u64, u32>) -> Option<Entry> {
    let place = record.location()?;
    Some(Entry {
        hash: record.hash,
        sequence: record.sequence(),
        body_len: record.body_len(),
        offset: place.offset,
        body_offset: place.body_offset,
        head_file: *places.get(&place.head.number())?,
        body_file: *places.get(&place.body.number())?,
        head_len: place.head_len,
        hits: u32::from(record.hits()),
    })
}

struct Blocks<'a> {
    disk: &'a Disk,
    file: File,
    session: u64,
    place: u64,
}

impl Blocks<'_> {
    fn write<I: Item>(&mut self, items: &[I]) -> io::Result<()> {
        let block = encode(self.session, self.place, items);
        self.disk.write_bytes(&self.file, &block, self.place * BLOCK_BYTES as u64)?;
        self.place += 1;
        Ok(())
    }
}

/// A loaded snapshot, except for its records.
pub(crate) struct Snapshot {
    file: File,
    session: u64,
    totals: Totals,
    /// Files in eviction order.
    pub(crate) files: Vec<FileHeader>,
}

impl Snapshot {
    /// Opens the snapshot that `session` left in `dir`; `None` unless all its blocks are intact.
    /// Unlinks the file unless the store is read-only, because this session makes it outdated.
    pub(crate) fn take(disk: &Disk, dir: &Path, session: u64) -> Option<Self> {
        let path = dir.join(INDEX);
        let file = disk.open(&path);
        let _ = disk.unlink(&path);
        let file = file.ok()?;
        let totals = *read::<Totals>(disk, &file, session, 0)?.first()?;
        let has_all = file.metadata().ok()?.len() == totals.bytes() && totals.files <= FILES_MAX;
        if !has_all {
            return None;
        }
        let mut snapshot = Self { file, session, totals, files: Vec::new() };
        for place in 1..snapshot.first_of_records() {
            let files = read::<FileHeader>(disk, &snapshot.file, session, place)?;
            snapshot.files.extend(files);
        }
        let mut records = 0;
        snapshot.for_each_block(disk, |entries| records += entries.len() as u64)?;
        (snapshot.files.len() as u64 == totals.files && records == totals.records).then_some(snapshot)
    }

    fn first_of_records(&self) -> u64 {
        1 + self.totals.files.div_ceil(FileHeader::IN_BLOCK as u64)
    }

    fn for_each_block(&self, disk: &Disk, mut look: impl FnMut(Vec<Entry>)) -> Option<()> {
        for place in self.first_of_records()..self.totals.blocks() {
            look(read(disk, &self.file, self.session, place)?);
        }
        Some(())
    }

    /// Adds the records to the index. `files` are in the order of the snapshot. Skips records of
    /// missing files, and records that exceed the length of their file.
    pub(crate) fn load(&self, shared: &Shared, files: &[Option<Arc<SegmentFile>>]) -> Option<()> {
        let get = |place: u32| files.get(place as usize)?.as_ref();
        self.for_each_block(&shared.segments.disk, |entries| {
            for entry in entries {
                let (Some(head), Some(body)) = (get(entry.head_file), get(entry.body_file)) else { continue };
                let head_end = entry.offset.saturating_add(u64::from(entry.head_len));
                let body_end = entry.body_offset.saturating_add(entry.body_len);
                if head_end > head.share.bytes() || body_end > body.share.bytes() {
                    continue;
                }
                let (head, body) = (head.clone(), body.clone());
                let Entry { offset, head_len, body_offset, .. } = entry;
                let record = Record::new(
                    entry.hash,
                    entry.sequence,
                    entry.body_len,
                    Location { head, offset, head_len, body, body_offset },
                );
                record.set_hits(entry.hits.min(u32::from(u8::MAX)) as u8);
                shared.admit(&record);
            }
        })
    }
}

fn read<I: Item>(disk: &Disk, file: &File, session: u64, place: u64) -> Option<Vec<I>> {
    let mut block = Vec::new();
    disk.read(file, &mut block, BLOCK_BYTES, place.checked_mul(BLOCK_BYTES as u64)?).ok()?;
    decode(&block, session, place)
}
