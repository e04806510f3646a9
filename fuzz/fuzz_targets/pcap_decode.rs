//! Fuzzes the pcap reader. The first byte selects a header, so that most inputs have a valid one.
#![no_main]

mod capture_file;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    let magic: u32 = if choice & 1 == 0 { 0xa1b2_c3d4 } else { 0xa1b2_3c4d };
    let header = |word: fn(u32) -> [u8; 4], half: fn(u16) -> [u8; 2]| {
        [&word(magic)[..], &half(2), &half(4), &[0; 8], &word(65_535), &word(1)].concat()
    };
    let start = match choice & 6 {
        0 | 2 => header(u32::to_le_bytes, u16::to_le_bytes),
        4 => header(u32::to_be_bytes, u16::to_be_bytes),
        _ => Vec::new(),
    };
    capture_file::check(&[&start, rest].concat(), usize::from(choice >> 3));
});
