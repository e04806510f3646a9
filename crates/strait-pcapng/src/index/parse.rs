//! Parses an index. Every field is checked before any is used: the file may be damaged, or made by
//! another user.

use rapidhash::v3::rapidhash_v3;

use super::{
    COMMUNITY_ID, DESCRIBES, FOOTER_BYTES, HEADER_BYTES, INDEX_BYTES_MAX, Identity, MAGIC, PART_HEADER_BYTES,
    PART_PACKETS_MAX, VERSION, filter,
};
use crate::bytes::array;

/// Reason for refusing an index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The first bytes are not those of an index.
    #[error("it is no index")]
    NotAnIndex,
    /// Another version, or other identifiers of flows.
    #[error("version {version} with flow identifiers {kind} is not supported, only 1 with 1")]
    Version {
        /// Version of the format.
        version: u16,
        /// Kind of the identifiers.
        kind: u16,
    },
    /// It is longer than [`INDEX_BYTES_MAX`].
    #[error("it has more than {INDEX_BYTES_MAX} bytes")]
    TooLong,
    /// The checksum does not match the content.
    #[error("it is damaged: the checksum does not match")]
    Checksum,
    /// A field has an impossible value, or the parts do not cover the capture file.
    #[error("it is damaged: the part at byte {at} is not valid")]
    Part {
        /// Offset of the part in the index.
        at: usize,
    },
}

/// Parsed index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// Parts, without header and footer.
    parts: Vec<u8>,
    count: u64,
    identity: Identity,
}

/// Part of a capture file: whole blocks, the last of them a packet, unless it is the first or the
/// last part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Offset of its first byte.
    pub start: u64,
    /// Offset after its last byte.
    pub end: u64,
    /// Earliest time of its packets in nanoseconds since the epoch; 0 without packets.
    pub first_ns: u64,
    /// Latest time of its packets.
    pub last_ns: u64,
    /// Number of packets.
    pub packets: u32,
    /// True if it describes interfaces of packets in later parts: it cannot be skipped.
    pub describes: bool,
    filter: &'a [u8],
}

impl Part<'_> {
    /// Returns the maximum number of flows of the part; none if its filter has no space for more.
    pub fn flows_max(&self) -> Option<u64> {
        filter::flows_max(self.filter)
    }

    /// Returns true if the part may have packets of this flow; false only if it has none.
    pub fn may_have(&self, flow: u64) -> bool {
        filter::has(self.filter, flow)
    }
}

impl Index {
    /// Parses the content of an index.
    ///
    /// # Errors
    /// It is no index, is too long, or has an invalid field.
    pub fn parse(mut bytes: Vec<u8>) -> Result<Self, IndexError> {
        if bytes.len() < HEADER_BYTES + FOOTER_BYTES || bytes[..MAGIC.len()] != MAGIC {
            return Err(IndexError::NotAnIndex);
        }
        if bytes.len() > INDEX_BYTES_MAX {
            return Err(IndexError::TooLong);
        }
        let (version, kind) = (u16::from_le_bytes(array(&bytes, 8)), u16::from_le_bytes(array(&bytes, 10)));
        if (version, kind) != (VERSION, COMMUNITY_ID) {
            return Err(IndexError::Version { version, kind });
        }
        let footer = bytes.len() - FOOTER_BYTES;
        let checksum_at = bytes.len() - 8;
        if rapidhash_v3(&bytes[..checksum_at]) != u64_at(&bytes, checksum_at) {
            return Err(IndexError::Checksum);
        }
        let count = u64_at(&bytes, footer);
        let identity = Identity {
            bytes: u64_at(&bytes, footer + 8),
            modified_ns: u64_at(&bytes, footer + 16) as i64,
            digest: u64_at(&bytes, footer + 24),
        };
        bytes.truncate(footer);
        bytes.drain(..HEADER_BYTES);
        let index = Self { parts: bytes, count, identity };
        index.check()?;
        Ok(index)
    }

    /// Checks each part, and that all of them cover the capture file.
    fn check(&self) -> Result<(), IndexError> {
        let mut parts = self.parts();
        let mut count = 0;
        while parts.next_checked()?.is_some() {
            count += 1;
        }
        let is_whole = (count, parts.offset) == (self.count, self.identity.bytes);
        if is_whole { Ok(()) } else { Err(IndexError::Part { at: HEADER_BYTES + self.parts.len() }) }
    }

    /// Returns the state of the capture file when it was indexed.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the number of parts.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Returns true if there is no part.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the parts in the order of the file.
    pub fn parts(&self) -> Parts<'_> {
        Parts { bytes: &self.parts, at: 0, offset: 0 }
    }
}

/// Iterator over the parts of an [`Index`].
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Offset of the next part in the capture file.
    offset: u64,
}

impl<'a> Parts<'a> {
    fn next_checked(&mut self) -> Result<Option<Part<'a>>, IndexError> {
        let at = self.at;
        let rest = &self.bytes[at..];
        if rest.is_empty() {
            return Ok(None);
        }
        self.read(rest).map(Some).ok_or(IndexError::Part { at: HEADER_BYTES + at })
    }

    fn read(&mut self, rest: &'a [u8]) -> Option<Part<'a>> {
        let (header, rest) = rest.split_first_chunk::<PART_HEADER_BYTES>()?;
        let bytes = u64_at(header, 0);
        let flags = u16::from_le_bytes(array(header, 28));
        let words = usize::from(u16::from_le_bytes(array(header, 30)));
        let part = Part {
            start: self.offset,
            end: self.offset.checked_add(bytes)?,
            first_ns: u64_at(header, 8),
            last_ns: u64_at(header, 16),
            packets: u32::from_le_bytes(array(header, 24)),
            describes: flags & DESCRIBES != 0,
            filter: rest.get(..words * 8)?,
        };
        let is_valid = bytes > 0
            && flags & !DESCRIBES == 0
            && part.packets <= PART_PACKETS_MAX
            && part.first_ns <= part.last_ns
            && (part.packets > 0 || (part.last_ns == 0 && words == 0));
        self.at += PART_HEADER_BYTES + words * 8;
        self.offset = part.end;
        is_valid.then_some(part)
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = Part<'a>;

    /// Returns the next part. All of them are valid, as [`Index::parse`] has checked them.
    fn next(&mut self) -> Option<Part<'a>> {
        self.next_checked().ok().flatten()
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}
