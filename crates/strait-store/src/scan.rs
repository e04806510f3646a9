//! Recovery of the records of earlier sessions by reading headers: those behind the last cut of the
//! index's journal after a crash, and all of them if there is no journal.
//!
//! A header is trusted if it repeats its file's tag and has the right checksum. If the machine has
//! run since, all writes are in the page cache, in the order of the calls; only the last call on
//! each segment may have been interrupted, so the last record of each is read and checked whole.
//! After a power loss, a write with a number above the durable one may be partly on disk, so its
//! record is dropped.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::file::SegmentFile;
use crate::format::checkpoint::Checkpoint;
use crate::format::journal::COMPLETE;
use crate::format::{
    FILE_HEADER_BYTES, PAGE_BYTES, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, State, align_up,
};
use crate::policy::Area;
use crate::read;
use crate::record::{Location, Record};
use crate::shared::Shared;

/// Bytes of one read.
const WINDOW_BYTES: u64 = 64 << 10;
/// Limit of unreadable pages that are skipped in a segment. Beyond it the rest is left for the next
/// session.
const UNREAD_PAGES_MAX: u64 = 16;
/// Limit of failed reads in a scan. Beyond it the rest is left for the next session: a failing disk
/// takes seconds for each read.
pub(crate) const FAILED_READS_MAX: u64 = 64;
/// Limit of the body of a last record: longer bodies are not written together with their head.
const LAST_BYTES_MAX: usize = 1 << 30;

/// Part of a file to scan.
pub(crate) struct Unscanned {
    pub(crate) file: Arc<SegmentFile>,
    /// Offset of the first record of that part; [`COMPLETE`] if there is none.
    pub(crate) scan_from: u64,
    /// True if all of the file is known to be on disk.
    pub(crate) is_clean: bool,
}

impl Unscanned {
    /// All of a file.
    pub(crate) fn all_of(file: Arc<SegmentFile>) -> Self {
        Self { file, scan_from: FILE_HEADER_BYTES, is_clean: false }
    }
}

/// Adds the records in `files` to the index, those of the last file first, and queues the files for
/// eviction: in their order if `in_order`, else by their numbers.
pub(crate) fn scan(shared: &Shared, files: &[Unscanned], in_order: bool) {
    let checkpoint = shared.durability.checkpoint().clone();
    let stop = StopCondition { shared, failed_reads: Cell::new(0) };
    let by_number = files.iter().map(|part| (part.file.number(), part.file.clone())).collect();
    let mut scan = Scan { shared, stop: &stop, checkpoint, files: by_number, referring: Vec::new() };
    let scan_next = |part| {
        let end = scan.scan_file(part);
        shared.loading.end_file();
        end
    };
    let mut ends: Vec<u64> = files.iter().rev().map(scan_next).collect();
    ends.reverse();
    scan.adopt_referring();
    // Files that could not be read have no place in the order, and are evicted by their numbers.
    let in_order = in_order && !shared.unread.any();
    for (part, end) in files.iter().zip(ends) {
        scan.queue_file(part, end, in_order);
    }
}

/// A record with its body in another file.
struct Referring {
    header: RecordHeader,
    head: Arc<SegmentFile>,
    offset: u64,
}

/// Condition for ending a scan early: the store is closed, or too many reads failed.
struct StopCondition<'a> {
    shared: &'a Shared,
    failed_reads: Cell<u64>,
}

impl StopCondition<'_> {
    fn is_met(&self) -> bool {
        self.failed_reads.get() >= FAILED_READS_MAX || self.shared.lifecycle.is_closed()
    }

    /// Counts a failed read.
    fn count_failure<T>(&self, read: Result<T>) -> Result<T> {
        if let Err(Error::System(_)) = &read {
            self.failed_reads.set(self.failed_reads.get() + 1);
        }
        read
    }
}

struct Scan<'a> {
    shared: &'a Shared,
    stop: &'a StopCondition<'a>,
    checkpoint: Checkpoint,
    /// Files by number.
    files: HashMap<u64, Arc<SegmentFile>>,
    referring: Vec<Referring>,
}

impl Scan<'_> {
    /// Scans a part of a file. Returns the end of the file's useful bytes.
    fn scan_file(&mut self, part: &Unscanned) -> u64 {
        let file = &part.file;
        let scanned = if part.scan_from == COMPLETE {
            Ok(Some(file.share.bytes()))
        } else if self.stop.is_met() {
            Ok(None)
        } else if file.is_own() {
            self.scan_object_file(file)
        } else {
            self.scan_segment(file, part.scan_from)
        };
        self.shared.counted(scanned).ok().flatten().unwrap_or_else(|| {
            // The records found are valid, but the file may have others.
            self.shared.unread.hold(file.number());
            file.share.bytes()
        })
    }

    /// Adopts the records of a segment from an offset on. Returns the end of the last one, or
    /// `None` if pages could not be read.
    fn scan_segment(&mut self, file: &Arc<SegmentFile>, scan_from: u64) -> Result<Option<u64>> {
        let mut window = Window::new(file, scan_from, self.stop);
        let adopted = self.adopt_records(file, scan_from, &mut window);
        self.shared.counters.failed.add(window.unread_pages);
        let end = adopted?;
        Ok((window.unread_pages == 0).then_some(end))
    }

    /// Adopts the readable records of a segment from an offset on. Returns the end of the last one.
    fn adopt_records(
        &mut self,
        file: &Arc<SegmentFile>,
        scan_from: u64,
        window: &mut Window<'_>,
    ) -> Result<u64> {
        let (mut at, mut end, mut last) = (scan_from, scan_from, None);
        while let Some((location, bytes)) = window.at(at)? {
            at = location;
            let header = RecordHeader::decode(bytes, file.header.tag, at);
            let inside = |header: &RecordHeader| {
                header.extent_len > 0 && at + header.extent_len <= align_up(file.share.bytes(), PAGE_BYTES)
            };
            // Without a header, continue the search: one damaged record must not hide the others.
            let Some(header) = header.filter(inside) else {
                at += RECORD_ALIGN;
                continue;
            };
            let next = at + header.extent_len;
            match header.state {
                State::Committed => {
                    if let Some((header, at)) = last.replace((header, at)) {
                        self.adopt(header, file, at);
                    }
                }
                State::Dead => self.forget_ended(&header, file, at),
                State::Reserved => {}
            }
            // A newer record may refer to the body of a dead one, and a process that has handed the
            // store over may still write and read the extent of a reserved one.
            end = next;
            at = next;
        }
        if let Some((header, at)) = last {
            self.adopt_last(header, file, at);
        }
        Ok(end)
    }

    /// Adopts the record of an object's own file. Returns its end.
    fn scan_object_file(&mut self, file: &Arc<SegmentFile>) -> Result<Option<u64>> {
        let at = FILE_HEADER_BYTES;
        let bytes = self.stop.count_failure(file.read(RECORD_HEADER_BYTES, at))?;
        let header = RecordHeader::decode(&bytes, file.header.tag, at);
        let Some(header) = header.filter(|header| header.state != State::Reserved) else {
            // A process that has handed the store over may still write it.
            return Ok(Some(file.share.bytes()));
        };
        if header.state == State::Committed {
            self.adopt(header, file, at);
        } else {
            self.forget_ended(&header, file, at);
        }
        Ok(Some(at + header.extent_len))
    }

    /// Removes the record of a dead header from the index, to which the journal has added it.
    fn forget_ended(&self, header: &RecordHeader, file: &Arc<SegmentFile>, offset: u64) {
        let of_hash = self.shared.index.find(header.hash);
        let is_it =
            |record: &&Arc<Record>| record.location().is_some_and(|place| place.has_head(file, offset));
        of_hash.iter().filter(is_it).for_each(|record| self.shared.forget(record));
    }

    /// Adopts the last record of a segment, unless its write was interrupted. Reads it whole before
    /// a copy of it is given up.
    fn adopt_last(&mut self, header: RecordHeader, file: &Arc<SegmentFile>, offset: u64) {
        if self.stop.is_met() {
            // The next session checks it.
            return self.shared.unread.hold(file.number());
        }
        let (head_len, body_offset) = (header.head_len() as u32, header.body_offset);
        let location = Location { head: file.clone(), offset, head_len, body: file.clone(), body_offset };
        let record = Record::new(header.hash, header.sequence, header.body_len, location.clone());
        let body_max = if header.body_file == 0 { LAST_BYTES_MAX } else { 0 };
        let is_known = self.checkpoint.covers(file.number(), header.written);
        let read = is_known.then(|| self.stop.count_failure(read::read(&location, &record, body_max)));
        // An unreadable record stays, and is checked when it is loaded.
        if let Some(Err(Error::Corrupt { .. })) = read {
            self.shared.counters.corrupt.add(1);
            self.shared.mark_dead(file, offset);
        } else {
            let _ = read.map(|read| self.shared.counted(read));
            self.adopt(header, file, offset);
        }
    }

    /// Adopts a record, unless it may be incomplete or is a copy.
    fn adopt(&mut self, header: RecordHeader, file: &Arc<SegmentFile>, offset: u64) {
        if !self.checkpoint.covers(file.number(), header.written) {
            self.drop_unsynced(file, offset, file.number());
        } else if header.body_file == 0 {
            self.insert(&header, file, offset, file);
        } else {
            self.referring.push(Referring { header, head: file.clone(), offset });
        }
    }

    /// Drops a record with a part in the file `unsynced_file` that may be incomplete on disk.
    fn drop_unsynced(&self, head: &Arc<SegmentFile>, offset: u64, unsynced_file: u64) {
        self.shared.counters.unsynced.add(1);
        // Mark it dead on disk, because the durable number will pass its number.
        if !self.shared.mark_dead(head, offset) {
            self.shared.unread.hold(unsynced_file);
        }
    }

    fn insert(&self, header: &RecordHeader, head: &Arc<SegmentFile>, offset: u64, body: &Arc<SegmentFile>) {
        if body.is_released.load(Ordering::Acquire) {
            // A caller has removed the record that this one has replaced.
            self.shared.mark_dead(head, offset);
            return;
        }
        let head_len = header.head_len() as u32;
        let body_offset = header.body_offset;
        let new = Location { head: head.clone(), offset, head_len, body: body.clone(), body_offset };
        for other in self.shared.index.find(header.hash) {
            let Some(location) = other.location() else { continue };
            if location.has_head(head, offset) {
                return;
            }
            if other.sequence() == header.sequence {
                // The record was copied. The copy that the journal names may be marked dead
                // already, this one is not.
                return self.shared.relocate_earlier(&other, new);
            }
            let shares_body = Arc::ptr_eq(&location.body, body) && location.body_offset == header.body_offset;
            if shares_body && other.sequence() > header.sequence {
                // The record was updated, and was not marked dead before the crash.
                self.shared.mark_dead(head, offset);
                return;
            }
            if shares_body {
                self.shared.end_head(&other);
            }
        }
        self.shared.admit(Record::new(header.hash, header.sequence, header.body_len, new));
    }

    /// Adopts the records with bodies in other files, now that all files are known.
    fn adopt_referring(&mut self) {
        for Referring { header, head, offset } in std::mem::take(&mut self.referring) {
            let body = self.files.get(&header.body_file).cloned();
            let body = body.filter(|file| header.body_offset + header.body_len <= file.share.bytes());
            match body {
                // The body is older than the head, so a durable number of the body's file that
                // covers the head covers the body.
                Some(body) if !self.checkpoint.covers(body.number(), header.written) => {
                    self.drop_unsynced(&head, offset, body.number());
                }
                Some(body) => self.insert(&header, &head, offset, &body),
                // The body may be in a file that could not be read.
                None if self.shared.unread.any() => {}
                None => drop(self.shared.mark_dead(&head, offset)),
            }
        }
    }

    /// Queues a file for eviction, truncated to its useful bytes. A file without records is
    /// released.
    fn queue_file(&self, part: &Unscanned, end: u64, in_order: bool) {
        let file = &part.file;
        if !self.shared.is_useful(file) {
            return self.shared.release_file(file.clone());
        }
        if end < file.share.bytes() {
            file.cut(align_up(end, PAGE_BYTES).min(file.share.bytes()));
        }
        if !part.is_clean {
            // The last session may have ended before it synced the file.
            self.shared.durability.note_written(file);
        }
        if in_order {
            self.shared.segments.enlist(Area::Main, file.clone());
        } else {
            self.shared.segments.enlist_old(file.clone());
        }
    }
}

/// Part of a segment in memory.
struct Window<'a> {
    file: &'a SegmentFile,
    stop: &'a StopCondition<'a>,
    /// Parts of the segment with data after that being read.
    parts: std::vec::IntoIter<Range<u64>>,
    /// Part being read.
    part: Range<u64>,
    start: u64,
    bytes: Vec<u8>,
    /// Bytes of one read: a single page once a read has failed.
    step_bytes: u64,
    /// Number of unreadable pages.
    unread_pages: u64,
}

impl<'a> Window<'a> {
    fn new(file: &'a SegmentFile, scan_from: u64, stop: &'a StopCondition<'a>) -> Self {
        let parts = file.data_after(scan_from).into_iter();
        let (step_bytes, unread_pages) = (WINDOW_BYTES, 0);
        Self { file, stop, parts, part: 0..0, start: 0, bytes: Vec::new(), step_bytes, unread_pages }
    }

    /// Returns the next possible offset of a header at or after `offset`, and the bytes there;
    /// `None` at the end of the file.
    fn at(&mut self, offset: u64) -> Result<Option<(u64, &[u8])>> {
        let mut offset = offset;
        let has = |window: &Self, offset: u64| {
            offset >= window.start
                && offset + RECORD_HEADER_BYTES as u64 <= window.start + window.bytes.len() as u64
        };
        if !has(self, offset) {
            while offset >= self.part.end {
                let Some(next) = self.parts.next() else { return Ok(None) };
                self.part = next;
                offset = align_up(self.part.start.max(offset), RECORD_ALIGN);
            }
            self.start = offset;
            self.bytes = self.read(offset)?;
        }
        if !has(self, offset) {
            return Ok(None);
        }
        let begin = (offset - self.start) as usize;
        Ok(Some((offset, &self.bytes[begin..begin + RECORD_HEADER_BYTES])))
    }

    /// Reads the bytes at `offset`. An unreadable page is replaced by zeros, so it has no header.
    fn read(&mut self, offset: u64) -> Result<Vec<u8>> {
        loop {
            let end = (offset + self.step_bytes) & !(PAGE_BYTES - 1);
            let end = end.min(align_up(self.part.end, PAGE_BYTES));
            match self.stop.count_failure(self.file.read((end - offset) as usize, offset)) {
                Err(error) if self.stop.is_met() => return Err(error),
                Err(_) if self.step_bytes > PAGE_BYTES => self.step_bytes = PAGE_BYTES,
                Err(_) if self.unread_pages < UNREAD_PAGES_MAX => {
                    self.unread_pages += 1;
                    return Ok(vec![0; (end - offset) as usize]);
                }
                other => return other,
            }
        }
    }
}
