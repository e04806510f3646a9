//! Fuzzes the store's files: headers of files and records, checkpoints, blocks of the index's
//! journal.
//! Accepted data is within its limits and encodes to the same bytes. Random bytes rarely have valid
//! checksums, so they are also used as the numbers of a header, which is then encoded and decoded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_store::format::checkpoint::Checkpoint;
use strait_store::format::journal::{BLOCK_BYTES, Block, Cut, Entry, FileEntry, Item, Removal, encode};
use strait_store::format::{
    BODY_BYTES_MAX, FileHeader, KEY_BYTES_MAX, Layout, META_BYTES_MAX, RECORD_ALIGN, RECORD_HEADER_BYTES,
    RecordHeader, State,
};

fuzz_target!(|data: &[u8]| {
    let number = |place: usize| {
        let bytes = data.get(8 * place..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    if let Some(header) = FileHeader::decode(data) {
        assert_eq!(FileHeader::decode(&header.encode()), Some(header));
    }
    if let Some(checkpoint) = Checkpoint::decode(data) {
        let next = Checkpoint::decode(&checkpoint.encode()).expect("it was read").next([0; 16]);
        assert!(next.first_number() > checkpoint.first_number() && next.session > checkpoint.session);
    }
    check(data, number(1), number(0));
    let state = [State::Reserved, State::Committed, State::Dead][number(0) as usize % 3];
    let header = RecordHeader {
        state,
        tag: number(1),
        sequence: number(2),
        written: number(3),
        hash: number(4),
        extent_len: number(5),
        body_len: number(6),
        body_file: number(7) % 3,
        body_offset: number(8),
        body_hash: Some(number(9)).filter(|hash| hash % 2 == 0),
        head_hash: number(10),
        key_len: number(11) as u32,
        meta_len: (number(11) >> 32) as u32,
    };
    if let Some(decoded) = check(&header.encode(), header.tag, number(12)) {
        assert_eq!(decoded, header);
    }
    blocks::<Cut>(data);
    blocks::<FileEntry>(data);
    blocks::<Entry>(data);
    blocks::<Removal>(data);
});

/// Checks that the parts of an accepted header are at valid places.
fn check(bytes: &[u8], tag: u64, offset: u64) -> Option<RecordHeader> {
    let header = RecordHeader::decode(bytes, tag, offset)?;
    assert!(header.key_len as usize <= KEY_BYTES_MAX && header.meta_len as usize <= META_BYTES_MAX);
    assert!(header.body_len <= BODY_BYTES_MAX && header.extent_len.is_multiple_of(RECORD_ALIGN));
    if header.extent_len > 0 {
        let end = offset.checked_add(header.extent_len).expect("it is within numbers");
        assert!(offset + header.head_len() <= end);
        assert!(header.body_file != 0 || header.body_offset + header.body_len <= end);
        assert!(header.body_file != 0 || header.body_offset >= offset + header.head_len());
    }
    let layout = Layout::new(offset % BODY_BYTES_MAX, header.head_len(), header.body_len, false);
    assert!(layout.head_end <= layout.body_offset && layout.body_offset + header.body_len <= layout.end);
    assert_eq!(RecordHeader::decode(&header.encode(), tag, offset), Some(header));
    assert_eq!(RecordHeader::decode(&header.encode()[..RECORD_HEADER_BYTES - 1], tag, offset), None);
    Some(header)
}

/// Decodes the bytes as a block, and as the items of one.
fn blocks<I: Item + PartialEq>(data: &[u8]) {
    assert!(Block::check(data, 0).is_none_or(|block| block.items::<I>().count() <= I::IN_BLOCK));
    let items: Vec<I> = data.chunks_exact(I::BYTES).filter_map(I::decode).take(I::IN_BLOCK).collect();
    let mut block = Vec::new();
    encode(7, 3, &items, &mut block);
    assert_eq!(block.len(), BLOCK_BYTES);
    let decoded = Block::check(&block, 3).expect("it is intact");
    assert!(decoded.session == 7 && decoded.items::<I>().eq(items));
    assert!(Block::check(&block, 4).is_none());
    let at = data.len() * 31 % BLOCK_BYTES;
    block[at] ^= 1;
    assert!(Block::check(&block, 3).is_none());
}
