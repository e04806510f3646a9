//! Fuzzes the pcapng reader. The first byte picks a section header and an interface to start with,
//! or neither.
#![no_main]

mod capture_file;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    let start = |word: fn(u32) -> [u8; 4], half: fn(u16) -> [u8; 2]| {
        let section = [word(0x0a0d_0d0a), word(28), word(0x1a2b_3c4d)].concat();
        let version = [half(1), half(0)].concat();
        let interface = [word(1), word(20), word(0), word(0), word(20)].concat();
        [section, version, vec![0xff; 8], word(28).to_vec(), interface].concat()
    };
    let start = match choice & 3 {
        0 | 1 => start(u32::to_le_bytes, u16::to_le_bytes),
        2 => start(u32::to_be_bytes, u16::to_be_bytes),
        _ => Vec::new(),
    };
    capture_file::check(&[&start, rest].concat(), usize::from(choice >> 2));
});
