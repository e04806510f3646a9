//! Fuzzes readers of ethtool answers: no words make one panic, and the number of strings has its
//! limit.
//!
//! Input: words of 32 bits in the machine's order.

#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_os::ethtool::{Offload, parse};

const OFFLOADS: [Offload; 6] = [
    Offload::RxChecksum,
    Offload::TxChecksum,
    Offload::ScatterGather,
    Offload::Tso,
    Offload::Gso,
    Offload::Gro,
];

fuzz_target!(|data: &[u8]| {
    let (words, _) = data.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    let _ = (parse::channels(&words), parse::rings(&words), parse::flags(&words));
    if let Ok(driver) = parse::driver(&words) {
        assert!([&driver.name, &driver.version, &driver.bus].iter().all(|text| !text.contains('\0')));
    }
    let count = words.first().copied().unwrap_or_default();
    assert!(parse::feature_count(count).map_or(count > 256, |taken| taken == count));
    let Ok(mut names) = parse::strings(&words) else { return };
    assert!(names.len() <= words.len());
    for offload in OFFLOADS {
        let _ = parse::is_fixed(offload, &names, &words);
    }
    // Names that a kernel has, at any place among the bits.
    names.insert(count as usize % (names.len() + 1), "rx-gro".into());
    let _ = parse::is_fixed(Offload::Gro, &names, &words);
});
