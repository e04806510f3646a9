//! Snapshot file `index`: the index at the time the store was closed. Each block of 64 KiB has its
//! position and a checksum. So it is written and read in pieces, and a truncated file or a mix of
//! two is detected.
//!
//! ```text
//!  0  magic and version   8  session   16  place of the block   24  kind and count
//! 32  entries   64 KiB - 8  checksum
//! ```
//! The first block has one entry, the totals. The files follow in eviction order, then the records.

use rapidhash::v3::rapidhash_v3;

use super::{FileHeader, FileKind, get, get_u32, put};

const MAGIC: u64 = u64::from_le_bytes(*b"StraitX1");
/// Bytes of a block.
pub const BLOCK_BYTES: usize = 64 << 10;
const ENTRIES_AT: usize = 32;
const CHECK_AT: usize = BLOCK_BYTES - 8;
/// Bytes of the entries of a block.
const ENTRIES_BYTES: usize = CHECK_AT - ENTRIES_AT;

/// Number of entries in the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Files.
    pub files: u64,
    /// Records.
    pub records: u64,
}

impl Totals {
    /// Blocks of the whole snapshot.
    pub fn blocks(&self) -> u64 {
        let files = self.files.div_ceil(FileHeader::IN_BLOCK as u64);
        1 + files + self.records.div_ceil(Entry::IN_BLOCK as u64)
    }

    /// Bytes of the whole snapshot.
    pub fn bytes(&self) -> u64 {
        self.blocks().saturating_mul(BLOCK_BYTES as u64)
    }
}

/// Snapshot entry of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Hash of the key.
    pub hash: u64,
    /// Sequence number, as in the record header.
    pub sequence: u64,
    /// Bytes of the body.
    pub body_len: u64,
    /// Offset of the head.
    pub offset: u64,
    /// Offset of the body.
    pub body_offset: u64,
    /// Index of the file with the head, in the order of the snapshot.
    pub head_file: u32,
    /// Index of the file with the body.
    pub body_file: u32,
    /// Bytes of header, key and meta.
    pub head_len: u32,
    /// Hits so far.
    pub hits: u32,
}

/// Entry of a block.
pub trait Item: Sized {
    /// Code of the kind of entry in its block.
    const KIND: u32;
    /// Bytes of one entry.
    const BYTES: usize;
    /// Limit of entries in a block.
    const IN_BLOCK: usize = ENTRIES_BYTES / Self::BYTES;

    /// Encodes the entry into `bytes`, which are [`Self::BYTES`] long.
    fn encode(&self, bytes: &mut [u8]);

    /// Decodes an entry.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

impl Item for Totals {
    const KIND: u32 = 1;
    const BYTES: usize = 16;

    fn encode(&self, bytes: &mut [u8]) {
        put(bytes, 0, self.files);
        put(bytes, 8, self.records);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self { files: get(bytes, 0)?, records: get(bytes, 8)? })
    }
}

impl Item for FileHeader {
    const KIND: u32 = 2;
    const BYTES: usize = 24;

    fn encode(&self, bytes: &mut [u8]) {
        put(bytes, 0, self.number);
        put(bytes, 8, self.tag);
        put(bytes, 16, self.kind.code());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let kind = FileKind::decode(get(bytes, 16)?)?;
        Some(Self { kind, number: get(bytes, 0)?, tag: get(bytes, 8)? })
    }
}

impl Item for Entry {
    const KIND: u32 = 3;
    const BYTES: usize = 56;

    fn encode(&self, bytes: &mut [u8]) {
        let numbers = [self.hash, self.sequence, self.body_len, self.offset, self.body_offset];
        for (place, number) in numbers.into_iter().enumerate() {
            put(bytes, 8 * place, number);
        }
        put(bytes, 40, u64::from(self.head_file) | u64::from(self.body_file) << 32);
        put(bytes, 48, u64::from(self.head_len) | u64::from(self.hits) << 32);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            hash: get(bytes, 0)?,
            sequence: get(bytes, 8)?,
            body_len: get(bytes, 16)?,
            offset: get(bytes, 24)?,
            body_offset: get(bytes, 32)?,
            head_file: get_u32(bytes, 40)?,
            body_file: get_u32(bytes, 44)?,
            head_len: get_u32(bytes, 48)?,
            hits: get_u32(bytes, 52)?,
        })
    }
}

/// Encodes the block at `place` of the snapshot of `session`, with at most [`Item::IN_BLOCK`]
/// items.
pub fn encode<I: Item>(session: u64, place: u64, items: &[I]) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    let items = &items[..items.len().min(I::IN_BLOCK)];
    put(&mut block, 0, MAGIC);
    put(&mut block, 8, session);
    put(&mut block, 16, place);
    put(&mut block, 24, u64::from(I::KIND) | (items.len() as u64) << 32);
    for (item, bytes) in items.iter().zip(block[ENTRIES_AT..].chunks_exact_mut(I::BYTES)) {
        item.encode(bytes);
    }
    let check = rapidhash_v3(&block[..CHECK_AT]);
    put(&mut block, CHECK_AT, check);
    block
}

/// Decodes the items of `block`; `None` unless it is the intact block at `place` of the snapshot of
/// `session`.
pub fn decode<I: Item>(block: &[u8], session: u64, place: u64) -> Option<Vec<I>> {
    let is_it = get(block, 0)? == MAGIC && (get(block, 8)?, get(block, 16)?) == (session, place);
    let count = get_u32(block, 28)? as usize;
    let fits = get_u32(block, 24)? == I::KIND && count <= I::IN_BLOCK;
    if !is_it || !fits || get(block, CHECK_AT)? != rapidhash_v3(&block[..CHECK_AT]) {
        return None;
    }
    block[ENTRIES_AT..].chunks_exact(I::BYTES).take(count).map(I::decode).collect()
}
