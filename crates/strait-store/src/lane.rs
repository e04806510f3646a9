//! Lanes. Each appends records to a segment of its own, so that writing threads never wait for each
//! other.

use std::hash::BuildHasher as _;
use std::io::IoSlice;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::budget::Share;
use crate::error::{Error, Result};
use crate::file::{SegmentFile, lock};
use crate::format::{
    BODY_BYTES_MAX, FILE_HEADER_BYTES, FileHeader, FileKind, KEY_BYTES_MAX, Layout, META_BYTES_MAX,
    PAGE_BYTES, RecordHeader, State, align_up, hash_of, hash_of_pieces,
};
use crate::record::{Place, Record};
use crate::shared::Shared;

/// Divisor of the segment size: a longer record gets a file of its own.
const SEGMENT_PARTS: u64 = 4;
/// Number of pieces in most writes.
const PIECES: usize = 8;

/// Append position of a writing thread.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) current: Option<Arc<SegmentFile>>,
    /// Offset of the next record.
    pub(crate) tail: u64,
    /// Next segment, in the lane of eviction only: eviction must not depend on free space.
    pub(crate) reserve: Option<Arc<SegmentFile>>,
}

/// Key and meta of a new record, and its header except for the fields that depend on its position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) meta: &'a [u8],
    pub(crate) header: RecordHeader,
}

impl<'a> Head<'a> {
    /// Head of a new record.
    pub(crate) fn new(key: &'a [u8], meta: &'a [u8], body_len: u64) -> Result<Self> {
        within("a key", key.len() as u64, KEY_BYTES_MAX as u64)?;
        within("a record's meta", meta.len() as u64, META_BYTES_MAX as u64)?;
        within("a body", body_len, BODY_BYTES_MAX)?;
        let header = RecordHeader {
            state: State::Reserved,
            tag: 0,
            sequence: 0,
            written: 0,
            hash: hash_of(key),
            extent_len: 0,
            body_len,
            body_file: 0,
            body_offset: 0,
            body_hash: None,
            head_hash: hash_of_pieces(&[key, meta]),
            key_len: key.len() as u32,
            meta_len: meta.len() as u32,
        };
        Ok(Self { key, meta, header })
    }

    /// Writes the head into `file`, and `body` after it unless that is empty.
    pub(crate) fn write(&self, file: &SegmentFile, layout: &Layout, body: &[&[u8]]) -> Result<()> {
        const NOTHING: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
        let header = self.header.encode();
        let gap = if body.is_empty() { 0 } else { (layout.body_offset - layout.head_end) as usize };
        let mut pieces: SmallVec<[IoSlice<'_>; PIECES]> = SmallVec::new();
        pieces.extend([&header[..], self.key, self.meta, &NOTHING[..gap]].map(IoSlice::new));
        pieces.extend(body.iter().map(|piece| IoSlice::new(piece)));
        file.write(&mut pieces, layout.offset)
    }
}

fn within(what: &'static str, bytes: u64, bytes_max: u64) -> Result<()> {
    if bytes <= bytes_max { Ok(()) } else { Err(Error::TooLong { what, bytes, bytes_max }) }
}

impl Shared {
    /// Limit in bytes of a record in a segment.
    pub(crate) fn extent_bytes_max(&self) -> u64 {
        self.segment_bytes / SEGMENT_PARTS
    }

    /// Returns true if a record with a body of `body_len` goes into a segment.
    pub(crate) fn fits_segment(&self, header: &RecordHeader, body_len: u64) -> bool {
        let most = Layout::new(0, header.head_len(), body_len, true).extent_len();
        most <= self.extent_bytes_max()
    }

    /// Position of the lane's next record, in a new segment if the current one is full. The caller
    /// advances the lane's tail after the write.
    pub(crate) fn slot(
        &self,
        lane: &mut Lane,
        head_len: u64,
        body_len: u64,
    ) -> Result<(Arc<SegmentFile>, Layout)> {
        loop {
            if let Some(file) = &lane.current {
                let layout = Layout::new(lane.tail, head_len, body_len, false);
                if layout.end <= self.segment_bytes {
                    return Ok((file.clone(), layout));
                }
            }
            self.seal(lane);
            lane.current = Some(lane.reserve.take().map_or_else(|| self.next_segment(), Ok)?);
            lane.tail = FILE_HEADER_BYTES;
        }
    }

    /// Writes a whole record to the lane's segment and adds it to the index.
    pub(crate) fn put(&self, lane: usize, mut head: Head<'_>, body: &[&[u8]]) -> Result<Arc<Record>> {
        let mut lane = self.lane(lane, "put")?;
        let (file, layout) = self.append(&mut lane, &mut head, body)?;
        let header = &head.header;
        let place = Place::whole(&file, &layout, header);
        let record = Record::new(header.hash, header.sequence, header.body_len, place);
        self.index.insert(record.clone());
        self.counters.stored.add(1);
        Ok(record)
    }

    /// Appends a committed record: `head`, and `body` unless the body is in another file. Does not
    /// add it to the index.
    pub(crate) fn append(
        &self,
        lane: &mut Lane,
        head: &mut Head<'_>,
        body: &[&[u8]],
    ) -> Result<(Arc<SegmentFile>, Layout)> {
        let body_len = if head.header.body_file == 0 { head.header.body_len } else { 0 };
        let (file, layout) = self.slot(lane, head.header.head_len(), body_len)?;
        let header = &mut head.header;
        header.state = State::Committed;
        header.tag = file.header.tag;
        header.extent_len = layout.extent_len();
        header.written = self.next_number();
        if header.sequence == 0 {
            header.sequence = header.written;
        }
        if header.body_file == 0 {
            header.body_offset = layout.body_offset;
        }
        // Half a record may be written now. No index entry points to it, but the segment takes no
        // more records.
        head.write(&file, &layout, body).inspect_err(|error| self.seal_failed(lane, error))?;
        lane.tail = layout.end;
        self.note_written(&file);
        file.admit(head.header.hash);
        Ok((file, layout))
    }

    /// Ends the lane's segment: returns its unused bytes to the budget and queues it for eviction.
    pub(crate) fn seal(&self, lane: &mut Lane) {
        let Some(file) = lane.current.take() else { return };
        if lane.tail == FILE_HEADER_BYTES {
            return self.release_file(file);
        }
        file.cut(align_up(lane.tail, PAGE_BYTES));
        self.enlist(file);
    }

    /// Returns a spare segment, or creates one.
    fn next_segment(&self) -> Result<Arc<SegmentFile>> {
        let ready = lock(&self.spares).pop();
        self.wake();
        ready.map_or_else(|| self.make_segment("begin a segment"), Ok)
    }

    /// Creates a segment, if the budget allows it.
    pub(crate) fn make_segment(&self, operation: &'static str) -> Result<Arc<SegmentFile>> {
        let Some(share) = Share::take(&self.budget, self.segment_bytes) else {
            return Err(self.full(operation, self.segment_bytes));
        };
        self.make_file(FileKind::Segment, share)
    }

    /// Creates a file with a new number and tag.
    pub(crate) fn make_file(&self, kind: FileKind, share: Share) -> Result<Arc<SegmentFile>> {
        let number = self.next_file_number();
        let tag = self.tags.hash_one(number);
        let header = FileHeader { kind, number, tag };
        let bytes = share.bytes();
        let file = self.allocated(SegmentFile::create(&self.dir, &self.disk, header, share), bytes)?;
        self.note_name();
        Ok(file)
    }
}
