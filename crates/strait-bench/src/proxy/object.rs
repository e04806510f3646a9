//! Objects of the origin. The URL identifies an object and determines its body, so that a client
//! can check every byte.
//!
//! A body is a range of one fixed block of pseudo-random bytes, repeated; the URL determines its
//! start. The block's length is prime, so that bytes shifted by a page, a buffer or a segment
//! differ.

use std::fs::File;
use std::io::Write as _;

use crate::error::{Error, Result};
use crate::memory_file;

/// Length of the block in bytes: the largest prime below 2^20.
const PERIOD: u64 = 1_048_573;
/// Limit of one [`Block::stretch`].
pub(crate) const STRETCH_BYTES_MAX: usize = 256 << 10;
/// Number of blocks in the file of [`Block::file`].
const FILE_PERIODS: u64 = 4;

/// Object of the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Size of its body in bytes.
    pub size: u64,
    /// Number among the objects of its size.
    pub id: u64,
    /// True if the origin lets caches store it, for an hour; otherwise it is `no-store`.
    pub cacheable: bool,
}

impl Object {
    /// Returns path and query of its URL: `/<size>/<id>?c=<1 if cacheable>`.
    pub fn target(&self) -> String {
        format!("/{}/{}?c={}", self.size, self.id, u8::from(self.cacheable))
    }

    /// Parses path and query of a URL.
    pub fn parse(target: &str) -> Option<Self> {
        let (path, query) = target.split_once('?')?;
        let (size, id) = path.strip_prefix('/')?.split_once('/')?;
        let cacheable = match query {
            "c=1" => true,
            "c=0" => false,
            _ => return None,
        };
        Some(Self { size: size.parse().ok()?, id: id.parse().ok()?, cacheable })
    }

    /// Returns the position in the repeated block of byte `position` of its body.
    fn place(&self, position: u64) -> u64 {
        (mix_bits(self.id ^ self.size.rotate_left(40)) % PERIOD + position) % PERIOD
    }
}

/// Hashes `value`: every bit of the result depends on all bits (finaliser of splitmix64).
pub(crate) fn mix_bits(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Pseudo-random bytes that all bodies consist of.
#[derive(Debug)]
pub(crate) struct Block {
    bytes: Vec<u8>,
}

impl Block {
    pub(crate) fn new() -> Self {
        let words = (0..PERIOD.div_ceil(8)).flat_map(|word| mix_bits(word).to_le_bytes());
        let mut bytes: Vec<u8> = words.take(PERIOD as usize).collect();
        // A stretch that starts near the end continues in this copy of the start.
        bytes.extend_from_within(..STRETCH_BYTES_MAX);
        Self { bytes }
    }

    /// Returns up to `length` bytes of the object's body from `position` on, as far as they are
    /// contiguous.
    pub(crate) fn stretch(&self, object: &Object, position: u64, length: usize) -> &[u8] {
        let left = object.size.saturating_sub(position).min(STRETCH_BYTES_MAX as u64) as usize;
        let start = object.place(position) as usize;
        &self.bytes[start..start + length.min(left)]
    }

    /// Returns true if `bytes` equal the object's body from `position` on.
    pub(crate) fn matches(&self, object: &Object, mut position: u64, bytes: &[u8]) -> bool {
        bytes.chunks(STRETCH_BYTES_MAX).all(|chunk| {
            let expected = self.stretch(object, position, chunk.len());
            position += chunk.len() as u64;
            expected == chunk
        })
    }

    /// Returns a file in memory with several copies of the block, for sendfile(2).
    pub(crate) fn file(&self) -> Result<File> {
        let mut file = memory_file::create("bodies")?;
        for _ in 0..FILE_PERIODS {
            let written = file.write_all(&self.bytes[..PERIOD as usize]);
            written.map_err(|error| Error::file("write a file in memory", error))?;
        }
        Ok(file)
    }

    /// Returns the position of byte `position` of the object's body in [`Block::file`], and the
    /// number of contiguous bytes there.
    pub(crate) fn in_file(object: &Object, position: u64) -> (u64, usize) {
        let start = object.place(position);
        let left = object.size.saturating_sub(position);
        (start, left.min(FILE_PERIODS * PERIOD - start) as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn target_round_trips(size in any::<u64>(), id in any::<u64>(), cacheable in any::<bool>()) {
            let object = Object { size, id, cacheable };
            prop_assert_eq!(Object::parse(&object.target()), Some(object));
        }

        #[test]
        fn file_has_the_bytes_of_the_block(id in any::<u64>(), position in 0..3_000_000_u64) {
            let (block, object) = (Block::new(), Object { size: 3_000_000, id, cacheable: true });
            let (at, length) = Block::in_file(&object, position);
            let mut bytes = vec![0; length.min(1000)];
            block.file().unwrap().read_exact_at(&mut bytes, at).unwrap();
            prop_assert!(block.matches(&object, position, &bytes));
        }
    }

    #[test]
    fn invalid_targets_are_rejected() {
        for target in ["", "/", "/1", "/1/2", "/1/2?c=2", "/x/2?c=1", "/1/-2?c=1", "1/2?c=1", "/1/2?c=1&d"] {
            assert_eq!(Object::parse(target), None, "{target}");
        }
    }

    #[test]
    fn shifted_or_changed_body_does_not_match() {
        let (block, object) = (Block::new(), Object { size: 2 << 20, id: 7, cacheable: true });
        let mut body = Vec::new();
        while (body.len() as u64) < object.size {
            body.extend_from_slice(block.stretch(&object, body.len() as u64, usize::MAX));
        }
        assert_eq!(body.len(), 2 << 20);
        assert!(block.matches(&object, 0, &body));
        assert!(!block.matches(&object, 1, &body[..4096]) && !block.matches(&object, 1 << 20, &body[..4096]));
        assert!(!block.matches(&Object { id: 8, ..object }, 0, &body[..64]));
        body.push(0);
        assert!(!block.matches(&object, 0, &body), "one byte too many");
        body[99] ^= 1;
        assert!(!block.matches(&object, 0, &body[..100]));
    }
}
