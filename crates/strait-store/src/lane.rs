//! Lanes, and the heads of new records. Each lane appends records to a segment of its own, so that
//! writing threads never wait for each other.

use std::io::IoSlice;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::file::SegmentFile;
use crate::format::{
    BODY_BYTES_MAX, KEY_BYTES_MAX, Layout, META_BYTES_MAX, PAGE_BYTES, RecordHeader, State, hash_of,
    hash_of_pieces,
};
use crate::policy::Area;
use crate::record::Record;

/// Number of segments that eviction has for itself. The eviction of a file fills less than one, but
/// may free less than the next one takes.
pub(crate) const RESERVES: usize = 2;

/// Number of pieces in most writes.
const PIECES: usize = 8;

/// Append position of a writing thread.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) current: Option<Arc<SegmentFile>>,
    /// Offset of the next record.
    pub(crate) tail: u64,
    /// Area of its segments.
    pub(crate) area: Area,
    /// Next segments, in the lane of eviction only: eviction must not depend on free space.
    pub(crate) reserves: Vec<Arc<SegmentFile>>,
}

/// Key and meta of a new record, and its header except for the fields that depend on its position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) meta: &'a [u8],
    pub(crate) header: RecordHeader,
    /// Record that the new one replaces. Once it has ended, as by a removal, nothing is written.
    pub(crate) replaces: Option<&'a Record>,
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
        Ok(Self { key, meta, header, replaces: None })
    }

    /// Head of a new record with a body that is in memory.
    pub(crate) fn of_object(new: &NewObject<'a>) -> Result<Self> {
        let mut head = Self::new(new.key, new.meta, new.body.len() as u64)?;
        head.header.body_hash = Some(hash_of(new.body));
        Ok(head)
    }

    /// Fails if the record that this one replaces has ended.
    pub(crate) fn check_wanted(&self) -> Result<()> {
        let is_wanted = self.replaces.is_none_or(Record::is_alive);
        if is_wanted { Ok(()) } else { Err(Error::Removed { operation: "replace" }) }
    }

    /// Completes the header of a committed record with its place and its number.
    pub(crate) fn commit(&mut self, written: u64, file: &SegmentFile, layout: &Layout) {
        let header = &mut self.header;
        header.state = State::Committed;
        header.tag = file.header.tag;
        header.extent_len = layout.extent_len();
        header.written = written;
        if header.sequence == 0 {
            header.sequence = written;
        }
        if header.body_file == 0 {
            header.body_offset = layout.body_offset;
        }
    }

    /// Writes the head into `file`, and `body` after it unless that is empty.
    pub(crate) fn write(&self, file: &SegmentFile, layout: &Layout, body: &[&[u8]]) -> Result<()> {
        let header = self.header.encode();
        let gap = if body.is_empty() { 0 } else { layout.body_offset - layout.head_end };
        let mut pieces: SmallVec<[IoSlice<'_>; PIECES]> = SmallVec::new();
        pieces.extend([&header[..], self.key, self.meta, zeros(gap)].map(IoSlice::new));
        pieces.extend(body.iter().map(|piece| IoSlice::new(piece)));
        file.write(&mut pieces, layout.offset)
    }
}

/// Bytes of a gap, which is less than a page.
pub(crate) fn zeros(bytes: u64) -> &'static [u8] {
    const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
    &ZEROS[..bytes as usize]
}

/// Object to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewObject<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its metadata.
    pub meta: &'a [u8],
    /// Its body.
    pub body: &'a [u8],
}

fn within(what: &'static str, bytes: u64, bytes_max: u64) -> Result<()> {
    if bytes <= bytes_max { Ok(()) } else { Err(Error::TooLong { what, bytes, bytes_max }) }
}
