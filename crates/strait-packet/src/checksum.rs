//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! The generator and the tests use it. A [`Sum`] takes the bytes in pieces. The ones
//! complement sum of 16-bit words does not depend on the grouping of the words, so pieces of 32 and
//! 64 bits are added whole and folded at the end.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A running ones' complement sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    sum: u64,
}

impl Sum {
    /// Returns the sum of no bytes.
    pub const fn new() -> Self {
        Self { sum: 0 }
    }

    /// Adds bytes. Only the last piece may have an odd length; it is padded with a zero byte.
    pub fn add(&mut self, bytes: &[u8]) {
        let (words, last) = bytes.as_chunks::<4>();
        for word in words {
            self.add_u32(u32::from_be_bytes(*word));
        }
        let (pairs, odd) = last.as_chunks::<2>();
        for pair in pairs {
            self.add_u16(u16::from_be_bytes(*pair));
        }
        if let [byte] = odd {
            self.add_u16(u16::from(*byte) << 8);
        }
    }

    /// Adds a 16-bit word.
    #[inline]
    pub fn add_u16(&mut self, word: u16) {
        self.add_u64(u64::from(word));
    }

    /// Adds two words at once.
    #[inline]
    pub fn add_u32(&mut self, words: u32) {
        self.add_u64(u64::from(words));
    }

    /// Adds four words at once.
    #[inline]
    pub fn add_u64(&mut self, words: u64) {
        let (sum, carried) = self.sum.overflowing_add(words);
        self.sum = sum + u64::from(carried);
    }

    /// Adds the pseudo header of TCP and UDP over IPv4 (RFC 9293 s3.1); `len` counts header and
    /// payload.
    pub fn add_pseudo_v4(&mut self, source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: u32) {
        self.add(&source.octets());
        self.add(&destination.octets());
        self.add_u16(u16::from(protocol));
        self.add_u32(len);
    }

    /// Adds the pseudo header of upper layers over IPv6 (RFC 8200 s8.1); `len` counts header and
    /// payload.
    pub fn add_pseudo_v6(&mut self, source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, len: u32) {
        self.add(&source.octets());
        self.add(&destination.octets());
        self.add_u16(u16::from(protocol));
        self.add_u32(len);
    }

    /// Returns the sum folded to 16 bits, not complemented.
    #[inline]
    pub fn fold(self) -> u16 {
        let (sum, carried) = ((self.sum >> 32) as u32).overflowing_add(self.sum as u32);
        let sum = sum + u32::from(carried);
        let (sum, carried) = ((sum >> 16) as u16).overflowing_add(sum as u16);
        sum + u16::from(carried)
    }

    /// Returns the checksum: the folded sum, complemented. It is 0 for bytes that contain a correct
    /// checksum.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.fold()
    }

    /// Returns the checksum for a UDP header. There 0 means "no checksum", so a checksum of 0 is
    /// sent as 0xffff (RFC 768).
    #[inline]
    pub fn finish_udp(self) -> u16 {
        match self.finish() {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

/// Returns the checksum of `bytes`.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = Sum::new();
    sum.add(bytes);
    sum.finish()
}

/// Returns `checksum` updated for a word that changes from `old` to `new` (RFC 1624, equation 3).
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let mut sum = Sum::new();
    sum.add_u16(!checksum);
    sum.add_u16(!old);
    sum.add_u16(new);
    sum.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checksum of RFC 1071 s4.1, word by word.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071_holds() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&bytes), !0xddf2);
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_plain_sum(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(checksum(&bytes), plain(&bytes));
        }

        #[test]
        fn whole_words_fold_as_their_parts(words in prop::collection::vec(any::<u64>(), 0..20)) {
            let mut sum = Sum::new();
            let mut bytes = Vec::new();
            for word in words {
                sum.add_u64(word);
                bytes.extend(word.to_be_bytes());
            }
            prop_assert_eq!(sum.finish(), plain(&bytes));
        }

        #[test]
        fn an_update_equals_a_fresh_sum(mut bytes in prop::collection::vec(any::<u8>(), 20..=20), at in 0usize..10, new: u16) {
            prop_assume!(bytes.iter().any(|byte| *byte != 0));
            let before = checksum(&bytes);
            let old = u16::from_be_bytes([bytes[at * 2], bytes[at * 2 + 1]]);
            bytes[at * 2..at * 2 + 2].copy_from_slice(&new.to_be_bytes());
            prop_assume!(bytes.iter().any(|byte| *byte != 0));
            prop_assert_eq!(update(before, old, new), checksum(&bytes));
        }
    }
}
