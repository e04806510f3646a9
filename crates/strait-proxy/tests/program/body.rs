//! Bodies generated from a number, so that a reader can check every byte.
//!
//! A body is a slice of one block of noise, repeated. The length of the block is a prime, so bytes
//! that are off by a page, a pipe or a segment differ.

use std::ops::Range;
use std::sync::LazyLock;

/// Bytes of the block: the largest prime below 2^20.
const PERIOD: u64 = 1_048_573;

static BLOCK: LazyLock<Vec<u8>> = LazyLock::new(|| {
    // The finaliser of splitmix64.
    let scramble = |word: u64| {
        let z = word.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut bytes: Vec<u8> = (0..PERIOD.div_ceil(8)).flat_map(|word| scramble(word).to_le_bytes()).collect();
    bytes.truncate(PERIOD as usize);
    bytes
});

/// Body: its number, and its length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) id: u64,
    pub(crate) len: u64,
}

impl Body {
    pub(crate) const fn new(id: u64, len: u64) -> Self {
        Self { id, len }
    }

    /// Returns the target of its URL: `/<id>/<len>`.
    pub(crate) fn target(&self) -> String {
        format!("/{}/{}", self.id, self.len)
    }

    /// Returns the body of a target. The query is ignored.
    pub(crate) fn parse(target: &str) -> Option<Self> {
        let path = target.split('?').next()?.strip_prefix('/')?;
        let (id, len) = path.split_once('/')?;
        Some(Self { id: id.parse().ok()?, len: len.parse().ok()? })
    }

    /// Returns bytes of `range`, or as many as are contiguous in the block.
    pub(crate) fn piece(&self, range: Range<u64>) -> &'static [u8] {
        let start = (self.id * 7919 + range.start) % PERIOD;
        let end = (start + range.end.min(self.len) - range.start).min(PERIOD);
        &BLOCK[start as usize..end as usize]
    }

    /// Returns a copy of the bytes of a range.
    pub(crate) fn bytes(&self, range: Range<u64>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        while (bytes.len() as u64) < range.end - range.start {
            bytes.extend_from_slice(self.piece(range.start + bytes.len() as u64..range.end));
        }
        bytes
    }

    /// Returns true if `bytes` are its bytes from `at` on.
    pub(crate) fn is(&self, at: u64, bytes: &[u8]) -> bool {
        let end = at + bytes.len() as u64;
        let mut done = 0;
        while done < bytes.len() {
            let piece = self.piece(at + done as u64..end);
            if piece.is_empty() || bytes[done..done + piece.len()] != *piece {
                return false;
            }
            done += piece.len();
        }
        end <= self.len
    }

    /// Panics unless `bytes` are the whole body.
    #[track_caller]
    pub(crate) fn assert_whole(&self, bytes: &[u8]) {
        assert_eq!(bytes.len() as u64, self.len, "the length of {}", self.target());
        assert!(self.is(0, bytes), "the bytes of {}", self.target());
    }
}

#[test]
fn bodies_differ_and_their_pieces_join() {
    let (one, other) = (Body::new(1, 3 * PERIOD), Body::new(2, 3 * PERIOD));
    let mut bytes = one.bytes(0..PERIOD + 5);
    bytes.extend(one.bytes(PERIOD + 5..3 * PERIOD));
    one.assert_whole(&bytes);
    assert!(!other.is(0, &bytes) && !one.is(1, &bytes[..100]) && one.is(9, &bytes[9..100]));
    assert_eq!(Body::parse(&format!("{}?x", one.target())), Some(one));
}
