//! Byte format of the store's files, without I/O: headers of files and records, and the layout of a
//! record. `docs/internals/store.md` draws them.
//!
//! All numbers are little-endian. Bytes from the disk are untrusted: decoders check lengths against
//! limits and against each other.

pub mod checkpoint;
pub mod journal;

use rapidhash::v3::{DEFAULT_RAPID_SECRETS, RapidStreamHasherV3, rapidhash_v3};

/// Bytes of a file header; the first record begins after them.
pub const FILE_HEADER_BYTES: u64 = 128;
/// Bytes of a record's header.
pub const RECORD_HEADER_BYTES: usize = 112;
/// Alignment of records, so that no header crosses a page or a sector.
pub const RECORD_ALIGN: u64 = 128;
/// A page of the page cache and a block of the file system.
pub const PAGE_BYTES: u64 = 4096;
/// Bodies of this size and more begin on a page: sendfile(2) then refers to one page less, and a
/// write fills whole pages. Smaller ones are read into memory, and the gaps before them would waste
/// space: half a page each.
pub const PAGED_FROM_BYTES: u64 = (32 << 10) + 1;
/// Alignment of smaller bodies.
const BODY_ALIGN: u64 = 8;
/// Limit of a key in bytes.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Limit of a record's meta in bytes.
pub const META_BYTES_MAX: usize = 1 << 20;
/// Limit of a body in bytes.
pub const BODY_BYTES_MAX: u64 = 1 << 46;

const FILE_MAGIC: u64 = u64::from_le_bytes(*b"StraitS1");
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"StR1");
/// Offset of the state in a record header. The checksum excludes it, because it is changed in
/// place.
pub const STATE_AT: u64 = 4;
/// Offset of the bytes that the checksum of a record header covers, up to and with the checksum.
/// They are replaced together, without the state, when the body gets its hash.
pub const SUMMED_AT: u64 = 8;
const FLAG_BODY_HASH: u32 = 1;

/// Hash of a key, the index key of its records (rapidhash).
pub fn hash_of(key: &[u8]) -> u64 {
    rapidhash_v3(key)
}

/// Hash of the concatenation of all `pieces`.
pub(crate) fn hash_of_pieces(pieces: &[&[u8]]) -> u64 {
    if let [piece] = pieces {
        return rapidhash_v3(piece);
    }
    let mut hasher = Hasher::new();
    for piece in pieces {
        hasher.write(piece);
    }
    hasher.finish()
}

/// Incremental rapidhash.
pub(crate) struct Hasher(RapidStreamHasherV3<'static>);

impl std::fmt::Debug for Hasher {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_tuple("Hasher").field(&self.finish()).finish()
    }
}

impl Hasher {
    pub(crate) fn new() -> Self {
        Self(RapidStreamHasherV3::new(&DEFAULT_RAPID_SECRETS))
    }

    pub(crate) fn write(&mut self, piece: &[u8]) {
        self.0.write(piece);
    }

    pub(crate) fn finish(&self) -> u64 {
        self.0.finish()
    }
}

/// Rounds `bytes` up to a multiple of `align`, a power of two.
pub(crate) fn align_up(bytes: u64, align: u64) -> u64 {
    bytes.saturating_add(align - 1) & !(align - 1)
}

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Many records, back to back.
    Segment,
    /// One record, with a body of any length.
    Own,
}

impl FileKind {
    fn code(self) -> u64 {
        match self {
            Self::Segment => 1,
            Self::Own => 2,
        }
    }

    fn decode(code: u64) -> Option<Self> {
        [Self::Segment, Self::Own].into_iter().find(|kind| kind.code() == code)
    }
}

/// Header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Kind of the file.
    pub kind: FileKind,
    /// Number of the file, from which its name is made.
    pub number: u64,
    /// Random number that all records of the file repeat. Without it an origin cannot craft body
    /// bytes that a scan accepts as a record.
    pub tag: u64,
}

impl FileHeader {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; FILE_HEADER_BYTES as usize] {
        let mut bytes = [0; FILE_HEADER_BYTES as usize];
        put(&mut bytes, 0, FILE_MAGIC);
        put(&mut bytes, 8, self.kind.code());
        put(&mut bytes, 16, self.number);
        put(&mut bytes, 24, self.tag);
        let check = rapidhash_v3(&bytes[..32]);
        put(&mut bytes, 32, check);
        bytes
    }

    /// Decodes `bytes`; `None` if they are not a header of this version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let kind = FileKind::decode(get(bytes, 8)?)?;
        let is_right = get(bytes, 0)? == FILE_MAGIC && get(bytes, 32)? == rapidhash_v3(bytes.get(..32)?);
        is_right.then_some(Self { kind, number: get(bytes, 16)?, tag: get(bytes, 24)? })
    }
}

/// State of a record. The codes differ in many bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The extent is being filled, or its writer gave up.
    Reserved,
    /// The record is complete.
    Committed,
    /// The record was removed or replaced.
    Dead,
}

impl State {
    /// Code of the state on disk.
    pub fn code(self) -> u32 {
        match self {
            Self::Reserved => 0x9b1c_52e7,
            Self::Committed => 0x64e3_ad35,
            Self::Dead => 0xd27a_0f8c,
        }
    }

    fn decode(code: u32) -> Option<Self> {
        [Self::Reserved, Self::Committed, Self::Dead].into_iter().find(|state| state.code() == code)
    }
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// State of the record.
    pub state: State,
    /// Tag of the file.
    pub tag: u64,
    /// Order of the records of one key: the newest has the highest number. A copy keeps it. 0 while
    /// reserved.
    pub sequence: u64,
    /// Number of this write. The checkpoint stores the highest number up to which writes are
    /// durable. 0 while reserved.
    pub written: u64,
    /// Hash of the key.
    pub hash: u64,
    /// Bytes from this header to the next possible record; 0 for a reserved record in a file of its
    /// own.
    pub extent_len: u64,
    /// Bytes of the body.
    pub body_len: u64,
    /// Number of the file with the body; 0: this file.
    pub body_file: u64,
    /// Offset of the body in its file.
    pub body_offset: u64,
    /// Hash of the body. A body that did not pass through memory gets it from the scrub.
    pub body_hash: Option<u64>,
    /// Hash of key and meta together.
    pub head_hash: u64,
    /// Bytes of the key.
    pub key_len: u32,
    /// Bytes of the meta.
    pub meta_len: u32,
}

impl RecordHeader {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        bytes[..4].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.state.code().to_le_bytes());
        let numbers = [
            self.tag,
            self.sequence,
            self.written,
            self.hash,
            self.extent_len,
            self.body_len,
            self.body_file,
            self.body_offset,
            self.body_hash.unwrap_or(0),
            self.head_hash,
        ];
        for (place, number) in numbers.into_iter().enumerate() {
            put(&mut bytes, 8 + 8 * place, number);
        }
        let flags = if self.body_hash.is_some() { FLAG_BODY_HASH } else { 0 };
        bytes[88..92].copy_from_slice(&self.key_len.to_le_bytes());
        bytes[92..96].copy_from_slice(&self.meta_len.to_le_bytes());
        bytes[96..100].copy_from_slice(&flags.to_le_bytes());
        let check = rapidhash_v3(&bytes[8..104]);
        put(&mut bytes, 104, check);
        bytes
    }

    /// Decodes `bytes` read at `offset` of the file with `tag`; `None` unless they are a header
    /// with consistent lengths.
    pub fn decode(bytes: &[u8], tag: u64, offset: u64) -> Option<Self> {
        let bytes = bytes.get(..RECORD_HEADER_BYTES)?;
        let is_ours = get_u32(bytes, 0)? == RECORD_MAGIC && get(bytes, 8)? == tag;
        if !is_ours || get(bytes, 104)? != rapidhash_v3(&bytes[8..104]) {
            return None;
        }
        let flags = get_u32(bytes, 96)?;
        let header = Self {
            state: State::decode(get_u32(bytes, 4)?)?,
            tag,
            sequence: get(bytes, 16)?,
            written: get(bytes, 24)?,
            hash: get(bytes, 32)?,
            extent_len: get(bytes, 40)?,
            body_len: get(bytes, 48)?,
            body_file: get(bytes, 56)?,
            body_offset: get(bytes, 64)?,
            body_hash: if flags & FLAG_BODY_HASH == 0 { None } else { Some(get(bytes, 72)?) },
            head_hash: get(bytes, 80)?,
            key_len: get_u32(bytes, 88)?,
            meta_len: get_u32(bytes, 92)?,
        };
        header.agrees(offset).then_some(header)
    }

    /// Bytes of header, key and meta.
    pub fn head_len(&self) -> u64 {
        RECORD_HEADER_BYTES as u64 + self.key_len as u64 + self.meta_len as u64
    }

    /// Returns true if the lengths are within their limits and within the extent.
    fn agrees(&self, offset: u64) -> bool {
        let lengths = self.key_len as usize <= KEY_BYTES_MAX
            && self.meta_len as usize <= META_BYTES_MAX
            && self.body_len <= BODY_BYTES_MAX
            && self.body_offset <= BODY_BYTES_MAX
            && self.extent_len <= 2 * BODY_BYTES_MAX
            && self.extent_len.is_multiple_of(RECORD_ALIGN);
        let open_ended = self.state == State::Reserved && self.extent_len == 0;
        let Some(end) = offset.checked_add(self.extent_len).filter(|_| lengths) else { return false };
        let head_end = offset.saturating_add(self.head_len());
        let body_fits = self.body_offset >= head_end && self.body_offset + self.body_len <= end;
        open_ended || (head_end <= end && (self.body_file != 0 || body_fits))
    }
}

/// Layout of a record in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the header.
    pub offset: u64,
    /// End of header, key and meta.
    pub head_end: u64,
    /// Offset of the body.
    pub body_offset: u64,
    /// Offset of the next possible record.
    pub end: u64,
}

impl Layout {
    /// Layout of a record at `offset` with the body after the head. The body begins on a page if it
    /// is long or `paged`.
    pub fn new(offset: u64, head_len: u64, body_len: u64, paged: bool) -> Self {
        let head_end = offset + head_len;
        let align = if paged || body_len >= PAGED_FROM_BYTES { PAGE_BYTES } else { BODY_ALIGN };
        let body_offset = align_up(head_end, align);
        Self { offset, head_end, body_offset, end: align_up(body_offset + body_len, RECORD_ALIGN) }
    }

    /// Bytes of the extent.
    pub fn extent_len(&self) -> u64 {
        self.end - self.offset
    }
}

fn put(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

pub(crate) fn get(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn get_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_hash_as_the_whole(len in 0_usize..5000, cuts in prop::collection::vec(0_usize..5000, 0..5)) {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 31) as u8).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(len)).chain([0, len]).collect();
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(hash_of_pieces(&pieces), hash_of_pieces(&[&bytes]));
        }
    }
}
