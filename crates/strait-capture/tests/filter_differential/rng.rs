//! Pseudorandom numbers that are equal in every run, so that a failure can be reproduced.

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) struct Rng(u64);

impl Rng {
    /// Returns the sequence of this seed. `STRAIT_TEST_SEED` is added to it, to test other values
    /// than a usual run.
    pub(crate) fn new(seed: u64) -> Self {
        let more = std::env::var("STRAIT_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0_u64);
        Self(seed ^ more.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to `limit` - 1.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Returns true with this probability in percent.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }
}
