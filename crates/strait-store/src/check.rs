//! Check of a record against its hashes, in steps of bounded length, so that callers can yield or
//! wait between them. Hits, the scrub and a verification use it. Eviction may move the record
//! meanwhile; no lock is held while bytes are read.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::file::{Extent, SegmentFile, lock};
use crate::format::{Hasher, RECORD_HEADER_BYTES, RecordHeader, SUMMED_AT};
use crate::read;
use crate::record::{Location, Record};
use crate::shared::Shared;

/// Bytes of the body that are read in one step.
const PIECE_BYTES: u64 = 256 << 10;

const REMOVED: Error = Error::Removed { operation: "check" };
const CUT_BODY: &str = "the file ends in its body";
const DAMAGED_BODY: &str = "its body is damaged";

/// Check of one record. [`Store::check_next`](crate::Store::check_next) takes a step.
#[derive(Debug)]
pub struct Check {
    record: Arc<Record>,
    /// Header, from the first step on.
    header: Option<RecordHeader>,
    hasher: Hasher,
    /// Bytes of the body that were read.
    body_bytes: u64,
    /// Result, once all was read.
    outcome: Option<Outcome>,
}

/// Step of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Bytes that were read.
    pub(crate) bytes: u64,
    /// Result of the check; `None` if more steps follow.
    pub(crate) outcome: Option<Outcome>,
}

/// Result of the check of an undamaged record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The record is intact.
    Whole,
    /// The head is intact. The body had no hash, and has got one.
    Hashed,
}

impl Check {
    pub(crate) fn new(record: &Arc<Record>) -> Self {
        Self { record: record.clone(), header: None, hasher: Hasher::new(), body_bytes: 0, outcome: None }
    }

    /// The record.
    pub(crate) fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Bytes of the body that were read so far.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Returns true if the body has a hash; `None` before the first step.
    pub(crate) fn has_hash(&self) -> Option<bool> {
        self.header.map(|header| header.body_hash.is_some())
    }

    /// Reads and checks the head, then the body piece by piece.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the record is damaged; it is then removed.
    pub(crate) fn step(&mut self, shared: &Shared) -> Result<Step> {
        if self.outcome.is_some() {
            return Ok(Step { bytes: 0, outcome: self.outcome });
        }
        let step = self.read_next(shared)?;
        self.outcome = step.outcome;
        Ok(step)
    }

    fn read_next(&mut self, shared: &Shared) -> Result<Step> {
        let Some(header) = self.header else { return self.read_head(shared) };
        let location = self.record.location().ok_or(REMOVED)?;
        let read = self.read_piece(&location.body, location.body_offset);
        let Some(bytes) = shared.counted(read)? else {
            return Err(self.damaged(shared, &location, CUT_BODY));
        };
        if self.body_bytes < self.record.body_len() {
            return Ok(Step { bytes, outcome: None });
        }
        let hash = self.hasher.finish();
        if header.body_hash.is_some_and(|expected| expected != hash) {
            return Err(self.damaged(shared, &location, DAMAGED_BODY));
        }
        self.record.set_checked();
        if header.body_hash.is_some() {
            return Ok(Step { bytes, outcome: Some(Outcome::Whole) });
        }
        self.add_hash(shared, hash)?;
        Ok(Step { bytes, outcome: Some(Outcome::Hashed) })
    }

    /// Takes the next step in the body of a record that was removed or evicted since the first
    /// step: `body` is its body, pinned by the caller. Returns true at the end: the body is intact.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the body is damaged, and [`Error::Removed`] if there is no hash to
    /// compare it with.
    pub fn next_in(&mut self, body: &Extent) -> Result<bool> {
        let hash = self.header.and_then(|header| header.body_hash).ok_or(REMOVED)?;
        let corrupt = |what| Error::Corrupt { file: body.file.path(), offset: body.offset, what };
        self.read_piece(&body.file, body.offset)?.ok_or_else(|| corrupt(CUT_BODY))?;
        let is_over = self.body_bytes == self.record.body_len();
        if is_over && self.hasher.finish() != hash {
            return Err(corrupt(DAMAGED_BODY));
        }
        Ok(is_over)
    }

    /// Reads the next piece of the body, which begins at `offset` of `file`. Returns its length;
    /// `None` if the file ends before.
    fn read_piece(&mut self, file: &SegmentFile, offset: u64) -> Result<Option<u64>> {
        let bytes = (self.record.body_len() - self.body_bytes).min(PIECE_BYTES);
        let piece = file.read(bytes as usize, offset + self.body_bytes)?;
        if (piece.len() as u64) < bytes {
            return Ok(None);
        }
        self.hasher.write(&piece);
        self.body_bytes += bytes;
        Ok(Some(bytes))
    }

    /// Reads the head, and a short body with it.
    fn read_head(&mut self, shared: &Shared) -> Result<Step> {
        let loaded = read::load(shared, &self.record, PIECE_BYTES as usize)?;
        let bytes = loaded.bytes.len() as u64;
        self.header = Some(loaded.header);
        if loaded.body.is_some() && loaded.header.body_hash.is_some() {
            self.body_bytes = self.record.body_len();
            return Ok(Step { bytes, outcome: Some(Outcome::Whole) });
        }
        Ok(Step { bytes, outcome: None })
    }

    /// Ends a check of a hit: there is nothing to compare the body with before the scrub has read
    /// it.
    pub(crate) fn leave_to_scrub(&self, shared: &Shared) {
        if !self.record.is_checked() {
            self.record.set_checked();
            shared.new_bodies.push(&self.record);
        }
    }

    /// Ends a record with a damaged body. Returns the error.
    fn damaged(&self, shared: &Shared, location: &Location, what: &'static str) -> Error {
        let error = Error::Corrupt { file: location.body.path(), offset: location.offset, what };
        shared.end_corrupt(&self.record, &error);
        error
    }

    /// Adds the hash of the body to the header at the current location.
    fn add_hash(&self, shared: &Shared, hash: u64) -> Result<()> {
        if shared.segments.disk.is_read_only() {
            return Ok(());
        }
        let place = lock(&self.record.location);
        let Some(location) = place.clone() else { return Err(REMOVED) };
        let is_right = shared.counted(write_hash(shared, &self.record, &location, hash));
        drop(place);
        if is_right? { Ok(()) } else { Err(self.damaged(shared, &location, "its header or body is damaged")) }
    }
}

/// Writes the hash of the body into a header on disk, unless another check has done so meanwhile.
/// The state is not written, because a removal changes it. Returns false if the header is damaged
/// or has another hash. The caller holds the lock of the location.
fn write_hash(shared: &Shared, record: &Record, location: &Location, hash: u64) -> Result<bool> {
    let bytes = location.head.read(RECORD_HEADER_BYTES, location.offset)?;
    let header = RecordHeader::decode(&bytes, location.head.header.tag, location.offset);
    let Some(header) = header.filter(|header| header.sequence == record.sequence()) else { return Ok(false) };
    if let Some(other) = header.body_hash {
        return Ok(other == hash);
    }
    let bytes = RecordHeader { body_hash: Some(hash), ..header }.encode();
    location.head.write_bytes(&bytes[SUMMED_AT as usize..], location.offset + SUMMED_AT)?;
    shared.durability.note_written(&location.head);
    Ok(true)
}

/// Result of a verification. Each record is counted once: as whole, unhashed, corrupt or
/// unreadable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Records that are intact to the last byte.
    pub whole: u64,
    /// Records with an intact head and a readable body of the right length that had no hash. The
    /// verification has added it, unless the store is read-only.
    pub unhashed: u64,
    /// Damaged records; they are removed.
    pub corrupt: u64,
    /// Records that could not be read.
    pub unreadable: u64,
    /// Bytes read.
    pub bytes: u64,
}

impl Verified {
    /// Sum of two verifications.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            whole: self.whole + other.whole,
            unhashed: self.unhashed + other.unhashed,
            corrupt: self.corrupt + other.corrupt,
            unreadable: self.unreadable + other.unreadable,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Checks a record and counts it. A record that ended during the check is not counted.
    pub(crate) fn add(&mut self, shared: &Shared, record: &Arc<Record>) {
        let mut check = Check::new(record);
        let outcome = loop {
            let step = check.step(shared);
            self.bytes += step.as_ref().map_or(0, |step| step.bytes);
            match step.map(|step| step.outcome) {
                Ok(None) => {}
                Ok(Some(outcome)) => break Ok(outcome),
                Err(error) => break Err(error),
            }
        };
        match outcome {
            // Its successor may be counted as well.
            Ok(_) | Err(Error::System(_) | Error::Removed { .. }) if !record.is_alive() => {}
            Ok(Outcome::Whole) => self.whole += 1,
            Ok(Outcome::Hashed) => self.unhashed += 1,
            Err(Error::Corrupt { .. }) => self.corrupt += 1,
            Err(_) => self.unreadable += 1,
        }
    }
}
