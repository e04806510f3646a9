//! Reading of records, with all possible checks.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::file::lock;
use crate::format::{RECORD_HEADER_BYTES, RecordHeader, State, hash_of_pieces};
use crate::record::{Location, Record};
use crate::shared::Shared;

/// Bytes read of a record, in one buffer.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Bytes as on disk, including the record header.
    pub bytes: Vec<u8>,
    /// Range of the key in `bytes`.
    pub key: Range<usize>,
    /// Range of the meta in `bytes`.
    pub meta: Range<usize>,
    /// Range of the body in `bytes`, if it was read.
    pub body: Option<Range<usize>>,
    pub(crate) header: RecordHeader,
}

impl Loaded {
    /// Key of the record.
    pub fn key(&self) -> &[u8] {
        &self.bytes[self.key.clone()]
    }

    /// Meta of the record.
    pub fn meta(&self) -> &[u8] {
        &self.bytes[self.meta.clone()]
    }

    /// Body of the record, if it was read.
    pub fn body(&self) -> Option<&[u8]> {
        self.body.clone().map(|range| &self.bytes[range])
    }
}

/// Reads a record at its current location, and ends the record if it is damaged.
pub(crate) fn load(shared: &Shared, record: &Arc<Record>, body_max: usize) -> Result<Loaded> {
    let location = record.location().ok_or(Error::Removed { operation: "load" })?;
    let loaded = read(&location, record, body_max);
    match &loaded {
        Err(error @ Error::Corrupt { .. }) => shared.end_corrupt(record, error),
        // A record of this session gets another location, or none, before it is marked dead. This
        // one ended in an earlier session, after the last cut of the journal.
        Ok(loaded) if loaded.header.state == State::Dead && record.is_at(&location) => {
            shared.forget(record);
            return Err(Error::Removed { operation: "load" });
        }
        Ok(loaded) if loaded.body.is_some() && loaded.header.body_hash.is_some() => record.set_checked(),
        _ => {}
    }
    shared.counted(loaded)
}

/// Reads like [`read_once`]. Damage is believed after a second read: the first one may have met a
/// write of the header by the scrub, which holds the lock of the location meanwhile, and writes a
/// header at most once at a location.
pub(crate) fn read(location: &Location, record: &Record, body_max: usize) -> Result<Loaded> {
    match read_once(location, record, body_max) {
        Err(Error::Corrupt { .. }) => {
            drop(lock(&record.location));
            read_once(location, record, body_max)
        }
        read => read,
    }
}

/// Reads the head of a record at `place`, and its body if that follows the head and has at most
/// `body_max` bytes.
fn read_once(location: &Location, record: &Record, body_max: usize) -> Result<Loaded> {
    let corrupt = |what| Error::Corrupt { file: location.head.path(), offset: location.offset, what };
    let with_body = location.is_whole() && record.body_len() <= body_max as u64;
    let head_len = location.head_len as usize;
    let body_at = (location.body_offset.saturating_sub(location.offset)) as usize;
    let bytes = if with_body { body_at + record.body_len() as usize } else { head_len };
    let bytes = location.head.read(bytes, location.offset)?;
    let header = RecordHeader::decode(&bytes, location.head.header.tag, location.offset);
    let header = header.ok_or_else(|| corrupt("its header is damaged"))?;
    let is_it = header.hash == record.hash
        && header.sequence == record.sequence()
        && header.head_len() == head_len as u64
        && (header.body_len, header.body_offset) == (record.body_len(), location.body_offset)
        && header.state != State::Reserved;
    if !is_it {
        return Err(corrupt("another record is at its location"));
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
