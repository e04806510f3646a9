//! Index file `index`: a journal of the index. Its blocks of 4 KiB form batches, each of which ends
//! with a cut: the state of the index at one moment. The first batch has all records, each later
//! one the changes since the cut before. Every block has its position and a checksum, so a reader
//! recognises where a truncated or damaged file ends, and uses the last cut before.
//!
//! ```text
//!  0  magic and version   8  session   16  place of the block   24  kind and count
//! 32  entries   4 KiB - 8  checksum
//! ```
//! A batch has blocks of files, of records, of removals, and the block of the cut.

use rapidhash::v3::rapidhash_v3;

use super::{FileHeader, FileKind, get, get_u32, put};

const MAGIC: u64 = u64::from_le_bytes(*b"StraitX2");
/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
const ENTRIES_AT: usize = 32;
const CHECK_AT: usize = BLOCK_BYTES - 8;
/// Bytes of the entries of a block.
const ENTRIES_BYTES: usize = CHECK_AT - ENTRIES_AT;
/// [`FileEntry::scan_from`] of a file that gets no more records.
pub const COMPLETE: u64 = u64::MAX;

/// End of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Place of the first block of the batch.
    pub first: u64,
    /// Every write to a record of the index had this number or less.
    pub number: u64,
    /// True if the store was closed after this cut, so that nothing has changed since.
    pub is_last: bool,
}

/// A file with records of the index. Its index, to which records refer, is the number of files that
/// the journal names before it. A file that is named again keeps its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Header of the file.
    pub header: FileHeader,
    /// Offset from which the file can have records that the journal does not know, or [`COMPLETE`].
    pub scan_from: u64,
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Hash of the key.
    pub hash: u64,
    /// Sequence number, as in the record header. It identifies the record.
    pub sequence: u64,
    /// Bytes of the body.
    pub body_len: u64,
    /// Offset of the head.
    pub offset: u64,
    /// Offset of the body.
    pub body_offset: u64,
    /// Index of the file with the head.
    pub head_file: u32,
    /// Index of the file with the body.
    pub body_file: u32,
    /// Bytes of header, key and meta.
    pub head_len: u32,
    /// Hits so far.
    pub hits: u32,
}

/// Sequence number of a record that was removed since the cut before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal(pub u64);

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

impl Item for Cut {
    const KIND: u32 = 1;
    const BYTES: usize = 24;

    fn encode(&self, bytes: &mut [u8]) {
        put(bytes, 0, self.first);
        put(bytes, 8, self.number);
        put(bytes, 16, self.is_last.into());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self { first: get(bytes, 0)?, number: get(bytes, 8)?, is_last: get(bytes, 16)? == 1 })
    }
}

impl Item for FileEntry {
    const KIND: u32 = 2;
    const BYTES: usize = 32;

    fn encode(&self, bytes: &mut [u8]) {
        put(bytes, 0, self.header.number);
        put(bytes, 8, self.header.tag);
        put(bytes, 16, self.header.kind.code());
        put(bytes, 24, self.scan_from);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let kind = FileKind::decode(get(bytes, 16)?)?;
        let header = FileHeader { kind, number: get(bytes, 0)?, tag: get(bytes, 8)? };
        Some(Self { header, scan_from: get(bytes, 24)? })
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

impl Item for Removal {
    const KIND: u32 = 4;
    const BYTES: usize = 8;

    fn encode(&self, bytes: &mut [u8]) {
        put(bytes, 0, self.0);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        get(bytes, 0).map(Self)
    }
}

/// Appends the block at `place` of the journal of `session`, with at most [`Item::IN_BLOCK`] items.
pub fn encode<I: Item>(session: u64, place: u64, items: &[I], into: &mut Vec<u8>) {
    let begin = into.len();
    into.resize(begin + BLOCK_BYTES, 0);
    let block = &mut into[begin..];
    let items = &items[..items.len().min(I::IN_BLOCK)];
    put(block, 0, MAGIC);
    put(block, 8, session);
    put(block, 16, place);
    put(block, 24, u64::from(I::KIND) | (items.len() as u64) << 32);
    for (item, bytes) in items.iter().zip(block[ENTRIES_AT..].chunks_exact_mut(I::BYTES)) {
        item.encode(bytes);
    }
    let check = rapidhash_v3(&block[..CHECK_AT]);
    put(block, CHECK_AT, check);
}

/// An intact block.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// Session that wrote the journal.
    pub session: u64,
    kind: u32,
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Block<'a> {
    /// Checks `bytes`; `None` unless they are an intact block at `place`.
    pub fn check(bytes: &'a [u8], place: u64) -> Option<Self> {
        let is_it = bytes.len() == BLOCK_BYTES && get(bytes, 0)? == MAGIC && get(bytes, 16)? == place;
        if !is_it || get(bytes, CHECK_AT)? != rapidhash_v3(&bytes[..CHECK_AT]) {
            return None;
        }
        let (kind, count) = (get_u32(bytes, 24)?, get_u32(bytes, 28)? as usize);
        Some(Self { session: get(bytes, 8)?, kind, count, bytes })
    }

    /// Items of the block; none if they are of another kind.
    pub fn items<I: Item>(&self) -> impl Iterator<Item = I> + use<'a, I> {
        let count = if self.kind == I::KIND { self.count.min(I::IN_BLOCK) } else { 0 };
        let items = self.bytes[ENTRIES_AT..CHECK_AT].chunks_exact(I::BYTES);
        items.take(count).filter_map(I::decode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_is_refused_with_a_wrong_bit_or_at_another_place() {
        let items: Vec<Removal> = (0..Removal::IN_BLOCK as u64).map(Removal).collect();
        let mut block = Vec::new();
        encode(3, 9, &items, &mut block);
        let intact = Block::check(&block, 9).unwrap();
        assert_eq!((intact.session, intact.items::<Removal>().collect::<Vec<_>>()), (3, items));
        assert_eq!(intact.items::<Cut>().count(), 0);
        assert!(Block::check(&block, 8).is_none() && Block::check(&block[1..], 9).is_none());
        for at in (0..BLOCK_BYTES).step_by(37) {
            block[at] ^= 1;
            assert!(Block::check(&block, 9).is_none(), "{at}");
            block[at] ^= 1;
        }
    }

    #[test]
    fn items_round_trip() {
        fn trip<I: Item + PartialEq + std::fmt::Debug>(item: I) {
            let mut block = Vec::new();
            encode(1, 0, std::slice::from_ref(&item), &mut block);
            assert_eq!(Block::check(&block, 0).unwrap().items::<I>().collect::<Vec<_>>(), [item]);
        }
        let header = FileHeader { kind: FileKind::Own, number: 5, tag: u64::MAX };
        trip(Cut { first: 7, number: 1 << 41, is_last: true });
        trip(FileEntry { header, scan_from: COMPLETE });
        trip(Removal(u64::MAX));
        let (body_len, body_offset) = (1 << 40, 4096);
        let (head_file, body_file, head_len, hits) = (1, u32::MAX, 112, 255);
        let (hash, sequence, offset) = (1, 2, 128);
        trip(Entry { hash, sequence, body_len, offset, body_offset, head_file, body_file, head_len, hits });
    }
}
