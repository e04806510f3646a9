//! Reading records back, with every check that can be made.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::{Hasher, RECORD_HEADER_BYTES, RecordHeader, State, hash_of_pieces};
use crate::record::{Place, Record};
use crate::shared::Shared;

/// Bytes that a check reads at a time.
const PIECE_BYTES: usize = 1 << 20;

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

/// What a check of all records has found. Each is counted once: as whole, unhashed, corrupt or unreadable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Records that are as they were written, to the last byte.
    pub whole: u64,
    /// Records whose head is as it was written, and whose body stands where it should and can be read. Its bytes cannot be checked, for
    /// they were never in the process's memory when it was written.
    pub unhashed: u64,
    /// Records that were not, and are gone now.
    pub corrupt: u64,
    /// Records that could not be read.
    pub unreadable: u64,
    /// Bytes that were read.
    pub bytes: u64,
}

impl Shared {
    /// Reads a record, and its body wherever it stands, in pieces. One that ended meanwhile is not counted.
    pub(crate) fn verify(&self, record: &Arc<Record>, verified: &mut Verified) {
        let checked = self.load(record, PIECE_BYTES).and_then(|loaded| {
            let is_read = loaded.body.is_some();
            let body = if is_read { 0 } else { self.verify_body(record, loaded.header.body_hash)? };
            Ok((loaded.bytes.len() as u64 + body, loaded.header.body_hash.is_none()))
        });
        match checked {
            // Its successor may be counted as well.
            Ok(_) | Err(Error::System(_) | Error::Gone { .. }) if !record.is_alive() => {}
            Ok((bytes, is_unhashed)) => {
                verified.whole += u64::from(!is_unhashed);
                verified.unhashed += u64::from(is_unhashed);
                verified.bytes += bytes;
            }
            Err(Error::Corrupt { .. }) => verified.corrupt += 1,
            Err(_) => verified.unreadable += 1,
        }
    }

    /// Reads a long body; its bytes.
    fn verify_body(&self, record: &Arc<Record>, hash: Option<u64>) -> Result<u64> {
        let place = record.place().ok_or(Error::Gone { operation: "verify" })?;
        let corrupt = |what| {
            if self.end(record) {
                self.counters.corrupt.add(1);
            }
            Error::Corrupt { file: place.body.path(), offset: place.offset, what }
        };
        let mut hasher = Hasher::new();
        let mut read = 0;
        while read < record.body_len() {
            let wanted = (record.body_len() - read).min(PIECE_BYTES as u64) as usize;
            let piece = self.counted(place.body.read(wanted, place.body_offset + read))?;
            if piece.len() < wanted {
                return Err(corrupt("the file ends in its body"));
            }
            hasher.write(&piece);
            read += piece.len() as u64;
        }
        let is_right = hash.is_none_or(|hash| hash == hasher.finish());
        if is_right { Ok(read) } else { Err(corrupt("its body is damaged")) }
    }

    /// Reads a record where it is now, and ends it if it is not as written.
    pub(crate) fn load(&self, record: &Arc<Record>, body_max: usize) -> Result<Loaded> {
        let place = record.place().ok_or(Error::Gone { operation: "load" })?;
        let loaded = read(&place, record, body_max);
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
