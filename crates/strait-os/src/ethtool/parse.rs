//! Parsers of the kernel's replies without I/O: each takes the words of one structure, with the
//! command.
//!
//! [`Ethtool`](super::Ethtool) calls them with the replies. Tests and fuzz targets can pass any
//! words. A truncated structure is an error.

use strait_sys::netdevice::{FEATURE_BLOCK_WORDS, FEATURES_MAX, STRING_WORDS};

use super::{Channels, Driver, Flags, Offload, Rings};
use crate::{Error, Kind, Result};

/// `ETH_FLAG_LRO` and `ETH_FLAG_RXVLAN`.
const LRO: u32 = 1 << 15;
const RX_VLAN: u32 = 1 << 8;
/// Words before the strings of `struct ethtool_gstrings`: command, set, number of strings.
const STRINGS_HEADER_WORDS: usize = 3;
/// Words before the blocks of `struct ethtool_gfeatures`: command, number of blocks.
const FEATURES_HEADER_WORDS: usize = 2;

/// Reads `struct ethtool_channels`.
pub fn channels(words: &[u32]) -> Result<Channels> {
    let &[_, rx_max, _, _, combined_max, rx, tx, _, combined] = fields(words)?;
    Ok(Channels { rx, tx, combined, rx_max, combined_max })
}

/// Reads `struct ethtool_ringparam`.
pub fn rings(words: &[u32]) -> Result<Rings> {
    let &[_, rx_max, _, _, tx_max, rx, _, _, tx] = fields(words)?;
    Ok(Rings { rx, rx_max, tx, tx_max })
}

/// Reads the speed in `struct ethtool_cmd`, in bits per second: Mbit/s in two halves of 16 bits.
pub fn speed_bps(words: &[u32]) -> Result<Option<u64>> {
    let &[_, _, _, speed, _, _, _, speed_hi] = fields(words)?;
    // Each half comes first in its word, in the byte order of the machine.
    let half = |word: u32| {
        let [first, second, ..] = word.to_ne_bytes();
        u16::from_ne_bytes([first, second])
    };
    let megabits = u32::from(half(speed_hi)) << 16 | u32::from(half(speed));
    // SPEED_UNKNOWN has all bits set; some drivers report 0 or 65535 without a carrier.
    let is_known = !matches!(megabits, 0 | 0xffff | u32::MAX);
    Ok(is_known.then(|| u64::from(megabits) * 1_000_000))
}

/// Reads `struct ethtool_value` of `ETHTOOL_GFLAGS`.
pub fn flags(words: &[u32]) -> Result<Flags> {
    let &[_, flags] = fields(words)?;
    Ok(Flags { lro: flags & LRO != 0, rx_vlan: flags & RX_VLAN != 0 })
}

/// Reads `struct ethtool_drvinfo`.
pub fn driver(words: &[u32]) -> Result<Driver> {
    let [name, version, firmware, bus]: &[[u32; STRING_WORDS]; 4] =
        words.get(1..).and_then(|words| words.as_chunks().0.first_chunk()).ok_or_else(cut_short)?;
    let text = |words| fixed_string(words);
    Ok(Driver { name: text(name), version: text(version), firmware: text(firmware), bus: text(bus) })
}

/// Checks the number of features that `ETHTOOL_GSSET_INFO` reports.
pub fn feature_count(count: u32) -> Result<u32> {
    if count as usize > FEATURES_MAX {
        return Err(failed(format!("{count} features: more than the limit of {FEATURES_MAX}")));
    }
    Ok(count)
}

/// Reads `struct ethtool_gstrings`.
pub fn strings(words: &[u32]) -> Result<Vec<String>> {
    let (&[_, _, count], strings) =
        words.split_first_chunk::<STRINGS_HEADER_WORDS>().ok_or_else(cut_short)?;
    let strings = strings.as_chunks::<STRING_WORDS>().0.get(..count as usize).ok_or_else(cut_short)?;
    Ok(strings.iter().map(|words| fixed_string(words)).collect())
}

/// Reads `struct ethtool_gfeatures`: returns true if no feature of `offload` can be switched.
/// `names` are the names of the feature bits.
pub fn is_fixed(offload: Offload, names: &[String], words: &[u32]) -> Result<bool> {
    let blocks = words.get(FEATURES_HEADER_WORDS..).ok_or_else(cut_short)?;
    let blocks = blocks.as_chunks::<FEATURE_BLOCK_WORDS>().0;
    for (bit, name) in names.iter().enumerate() {
        if offload.features().contains(&name.as_str()) {
            let [available, ..] = blocks.get(bit / u32::BITS as usize).ok_or_else(cut_short)?;
            if available & (1 << (bit % u32::BITS as usize)) != 0 {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Decodes a string of a fixed-length field, which need not end in NUL.
fn fixed_string(words: &[u32]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn fields<const N: usize>(words: &[u32]) -> Result<&[u32; N]> {
    words.first_chunk().ok_or_else(cut_short)
}

fn cut_short() -> Error {
    failed("a truncated reply".into())
}

fn failed(cause: String) -> Error {
    Error::new(Kind::Failed, "read", "ethtool reply", cause)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fixed_strings_end_at_nul_or_at_the_end() {
        let word = u32::from_ne_bytes;
        assert_eq!(fixed_string(&[word(*b"veth"), 0]), "veth");
        assert_eq!(fixed_string(&[word(*b"virt"), word(*b"io\0x")]), "virtio");
        assert_eq!(fixed_string(&[word(*b"full")]), "full");
    }

    #[test]
    fn truncated_answers_are_errors() {
        let words = [0; 49];
        assert!((0..9).all(|len| channels(&words[..len]).is_err() && rings(&words[..len]).is_err()));
        assert!((0..2).all(|len| flags(&words[..len]).is_err()));
        assert!((0..33).all(|len| driver(&words[..len]).is_err()));
        assert!(channels(&words).is_ok() && rings(&words).is_ok() && driver(&words).is_ok());
        let two = [0x1b, 4, 2];
        let strings_of = |len| strings(&[&two[..], &words[..len]].concat());
        assert!((0..16).all(|len| strings_of(len).is_err()));
        assert_eq!(strings_of(16).unwrap(), ["", ""]);
    }

    #[test]
    fn speed_has_two_halves_and_can_be_unknown() {
        let halves = |low: u16, high: u16| {
            let word = |half: u16| {
                let [first, second] = half.to_ne_bytes();
                u32::from_ne_bytes([first, second, 0xee, 0xee])
            };
            speed_bps(&[0, 0, 0, word(low), 0, 0, 0, word(high), 0, 0, 0]).unwrap()
        };
        assert_eq!((halves(1000, 0), halves(0x86a0, 1)), (Some(1_000_000_000), Some(100_000_000_000)));
        assert_eq!((halves(0, 0), halves(0xffff, 0), halves(0xffff, 0xffff)), (None, None, None));
        assert!((0..8).all(|len| speed_bps(&[0; 8][..len]).is_err()));
    }

    #[test]
    fn a_feature_is_fixed_unless_its_bit_is_available() {
        let names: Vec<String> =
            (0..40).map(|bit| if bit == 33 { "rx-gro" } else { "other" }.into()).collect();
        let mut words = [0; 10];
        assert!(is_fixed(Offload::Gro, &names, &words).unwrap());
        words[6] = 1 << 1;
        assert!(!is_fixed(Offload::Gro, &names, &words).unwrap());
        assert!(is_fixed(Offload::Gro, &names, &words[..9]).is_err(), "the second block is truncated");
    }

    proptest! {
        #[test]
        fn any_answer_is_parsed_without_panic(
            words in proptest::collection::vec(any::<u32>(), 0..80),
            count: u32,
            small in 0..12u32,
        ) {
            let _ = (channels(&words), rings(&words), flags(&words), driver(&words), feature_count(count));
            let _ = (strings(&words), speed_bps(&words));
            let counted = [&[0, 4, small], &words[..]].concat();
            if let Ok(names) = strings(&counted) {
                prop_assert_eq!(names.len(), small as usize);
            }
            let names = vec!["rx-gro".to_owned(); count as usize % 300];
            let _ = is_fixed(Offload::Gro, &names, &words);
        }
    }
}
