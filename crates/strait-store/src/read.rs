//! Reading records back, with every check that can be made.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::{RECORD_HEADER_BYTES, RecordHeader, State, hash_of_pieces};
use crate::record::{Place, Record};
use crate::shared::Shared;

/// What was read of a record, in one buffer.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// As it stands on disk, the record's own header included.
    pub bytes: Vec<u8>,
    /// Where the key is in it.
    pub key: Range<usize>,
    /// Where the meta is in it.
    pub meta: Range<usize>,
    /// Where the body is in it, if it was read.
    pub body: Option<Range<usize>>,
    pub(crate) header: RecordHeader,
}

impl Loaded {
    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.bytes[self.key.clone()]
    }

    /// The meta.
    pub fn meta(&self) -> &[u8] {
        &self.bytes[self.meta.clone()]
    }

    /// The body, if it was read.
    pub fn body(&self) -> Option<&[u8]> {
        self.body.clone().map(|range| &self.bytes[range])
    }
}

impl Shared {
    /// Reads a record where it is now, and ends it if it is not as written.
    pub(crate) fn load(&self, record: &Arc<Record>, body_max: usize) -> Result<Loaded> {
        let loaded = read(&record.place(), record, body_max);
        if let Err(Error::Corrupt { .. }) = &loaded
            && self.end(record)
        {
            self.counters.corrupt.add(1);
        }
        self.counted(loaded)
    }
}

/// Reads a record at `place`: its head, and its body if that stands behind it and has at most `body_max` bytes.
pub(crate) fn read(place: &Place, record: &Record, body_max: usize) -> Result<Loaded> {
    let corrupt = |what| Error::Corrupt { file: place.head.path(), offset: place.offset, what };
    let with_body = place.is_whole() && record.body_len() <= body_max as u64;
    let head_len = place.head_len as usize;
    let body_at = (place.body_offset.saturating_sub(place.offset)) as usize;
    let bytes = if with_body { body_at + record.body_len() as usize } else { head_len };
    let bytes = place.head.read(bytes, place.offset)?;
    let header = RecordHeader::decode(&bytes, place.head.header.tag, place.offset);
    let header = header.ok_or_else(|| corrupt("its header is damaged"))?;
    let is_it = header.hash == record.hash
        && header.sequence == record.sequence()
        && header.head_len() == head_len as u64
        && (header.body_len, header.body_offset) == (record.body_len(), place.body_offset)
        && header.state != State::Reserved;
    if !is_it {
        return Err(corrupt("another record stands there"));
    }
    let key = RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + header.key_len as usize;
    let meta = key.end..head_len;
    let (Some(key_bytes), Some(meta_bytes)) = (bytes.get(key.clone()), bytes.get(meta.clone())) else {
        return Err(corrupt("the file ends in its head"));
    };
    if hash_of_pieces(&[key_bytes, meta_bytes]) != header.head_hash {
        return Err(corrupt("its key or meta is damaged"));
    }
    let body = with_body.then_some(body_at..body_at + record.body_len() as usize);
    if let Some(range) = &body {
        let body = bytes.get(range.clone()).ok_or_else(|| corrupt("the file ends in its body"))?;
        if header.body_hash.is_some_and(|hash| hash != hash_of_pieces(&[body])) {
            return Err(corrupt("its body is damaged"));
        }
    }
    Ok(Loaded { bytes, key, meta, body, header })
}
