//! Lanes: each appends records to a segment of its own, so that threads that write never wait for each other.

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

/// A record may have this part of a segment; what is longer gets a file of its own.
const SEGMENT_PARTS: u64 = 4;
/// Pieces of most writes.
const PIECES: usize = 8;

/// Where a thread appends.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) current: Option<Arc<SegmentFile>>,
    /// Where the next record goes.
    pub(crate) tail: u64,
    /// The next segment, in the lane of eviction: what it needs to make room must not depend on there being room.
    pub(crate) reserve: Option<Arc<SegmentFile>>,
}

/// Key and meta of a record to be written, and the header but for what its place decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) meta: &'a [u8],
    pub(crate) header: RecordHeader,
}

impl<'a> Head<'a> {
    /// Of a new record.
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

    /// Writes it into `file`, with a body behind it or none.
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
    /// Bytes of a record that goes into a segment, at most.
    pub(crate) fn extent_bytes_max(&self) -> u64 {
        self.segment_bytes / SEGMENT_PARTS
    }

    /// Whether a record with such a body goes into a segment.
    pub(crate) fn fits_segment(&self, header: &RecordHeader, body_len: u64) -> bool {
        let most = Layout::new(0, header.head_len(), body_len, true).extent_len();
        most <= self.extent_bytes_max()
    }

    /// Where the lane's next record goes, in a new segment if need be. The caller moves the lane's tail on when it is written.
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

    /// Puts a whole record into the lane's segment and into the index.
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

    /// Appends a committed record: `head`, and `body` unless it stands elsewhere. It is not in the index yet.
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
        // Half a record may be there now. Nothing points to it, but what cannot be written to is left.
        head.write(&file, &layout, body).inspect_err(|error| self.spoilt(lane, error))?;
        lane.tail = layout.end;
        self.note_written(&file);
        file.admit(head.header.hash);
        Ok((file, layout))
    }

    /// Ends the lane's segment: what it did not need is given back, and it can be evicted.
    pub(crate) fn seal(&self, lane: &mut Lane) {
        let Some(file) = lane.current.take() else { return };
        if lane.tail == FILE_HEADER_BYTES {
            return self.let_go(file);
        }
        file.cut(align_up(lane.tail, PAGE_BYTES));
        self.enlist(file);
    }

    /// A segment that was made ready, or a new one.
    fn next_segment(&self) -> Result<Arc<SegmentFile>> {
        let ready = lock(&self.spares).pop();
        self.wake();
        ready.map_or_else(|| self.make_segment("begin a segment"), Ok)
    }

    /// Makes a segment, if there is room.
    pub(crate) fn make_segment(&self, operation: &'static str) -> Result<Arc<SegmentFile>> {
        let Some(share) = Share::take(&self.budget, self.segment_bytes) else {
            return Err(self.full(operation, self.segment_bytes));
        };
        self.make_file(FileKind::Segment, share)
    }

    /// Makes a file with a number and a tag of its own.
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
