//! Reading of records, with all possible checks.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::{Hasher, RECORD_HEADER_BYTES, RecordHeader, State, hash_of_pieces};
use crate::record::{Location, Record};
use crate::shared::Shared;

/// Bytes of one read during verification.
const PIECE_BYTES: usize = 1 << 20;

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

/// Result of a verification. Each record is counted once: as whole, unhashed, corrupt or
/// unreadable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Records that are intact to the last byte.
    pub whole: u64,
    /// Records with an intact head and a readable body of the right length that has no hash: a
    /// spliced body never was in the process's memory, so its bytes cannot be checked.
    pub unhashed: u64,
    /// Damaged records; they are removed.
    pub corrupt: u64,
    /// Records that could not be read.
    pub unreadable: u64,
    /// Bytes read.
    pub bytes: u64,
}

/// Reads a record and its body in pieces, and checks both. A record that ended during the check
/// is not counted.
pub(crate) fn verify(shared: &Shared, record: &Arc<Record>, verified: &mut Verified) {
    let checked = load(shared, record, PIECE_BYTES).and_then(|loaded| {
        let is_read = loaded.body.is_some();
        let body = if is_read { 0 } else { verify_body(shared, record, loaded.header.body_hash)? };
        Ok((loaded.bytes.len() as u64 + body, loaded.header.body_hash.is_none()))
    });
    match checked {
        // The record ended during the check; its successor may be counted as well.
        Ok(_) | Err(Error::System(_) | Error::Removed { .. }) if !record.is_alive() => {}
        Ok((bytes, is_unhashed)) => {
            verified.whole += u64::from(!is_unhashed);
            verified.unhashed += u64::from(is_unhashed);
            verified.bytes += bytes;
        }
        Err(Error::Corrupt { .. }) => verified.corrupt += 1,
        Err(_) => verified.unreadable += 1,
    }
}

/// Reads and checks a long body. Returns its length.
fn verify_body(shared: &Shared, record: &Arc<Record>, hash: Option<u64>) -> Result<u64> {
    let location = record.location().ok_or(Error::Removed { operation: "verify" })?;
    let corrupt = |what| {
        if shared.end(record) {
            shared.counters.corrupt.add(1);
        }
        Error::Corrupt { file: location.body.path(), offset: location.offset, what }
    };
    let mut hasher = Hasher::new();
    let mut read = 0;
    while read < record.body_len() {
        let wanted = (record.body_len() - read).min(PIECE_BYTES as u64) as usize;
        let piece = shared.counted(location.body.read(wanted, location.body_offset + read))?;
        if piece.len() < wanted {
            return Err(corrupt("the file ends in its body"));
        }
        hasher.write(&piece);
        read += piece.len() as u64;
    }
    let is_right = hash.is_none_or(|hash| hash == hasher.finish());
    if is_right { Ok(read) } else { Err(corrupt("its body is damaged")) }
}

/// Reads a record at its current location, and ends the record if it is damaged.
pub(crate) fn load(shared: &Shared, record: &Arc<Record>, body_max: usize) -> Result<Loaded> {
    let location = record.location().ok_or(Error::Removed { operation: "load" })?;
    let loaded = read(&location, record, body_max);
    if let Ok(Loaded { header: RecordHeader { state: State::Dead, .. }, .. }) = &loaded
        && record.is_at(&location)
    {
        // A record of this session gets another location, or none, before it is marked dead. This
        // one ended in an earlier session, after the last cut of the journal.
        shared.forget(record);
        return Err(Error::Removed { operation: "load" });
    }
    if let Err(Error::Corrupt { .. }) = &loaded
        && shared.end(record)
    {
        shared.counters.corrupt.add(1);
    }
    shared.counted(loaded)
}

/// Reads the head of a record at `place`, and its body if that follows the head and has at most
/// `body_max` bytes.
pub(crate) fn read(location: &Location, record: &Record, body_max: usize) -> Result<Loaded> {
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
