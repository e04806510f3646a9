//! Counts of values in buckets with a fixed relative width and fixed memory.
//!
//! Each value below `2^BITS` has a bucket of its own. Above, each octave (from one power of two to
//! the next) has `2^BITS` buckets of equal width, so a value and the ends of its bucket differ by
//! at most one part in `2^BITS`:
//!
//! ```text
//! BITS = 2     value     0   1   2   3   4   5   6   7   8   10    12    14    16      20 ...
//!              bucket  │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │ 7 │ 8   │ 9   │ 10  │ 11  │ 12    │ 13 ...
//! ```
//!
//! [`Histogram`](crate::Histogram) counts nanoseconds with `BITS` = 10. The proxy counts the
//! microseconds of responses with `BITS` = 2, in the memory of each worker: one thread records
//! while others read, and recording is two loads and two stores.

use std::ops::Range;

use crate::counter::SingleWriterCounter;

/// Counts of values in `LEN` buckets and of values beyond them, and the sum of the values. [`len`]
/// returns the number of buckets for a range of values.
///
/// One thread calls [`record`](Self::record); others can read meanwhile.
#[derive(Clone, Debug)]
pub struct Buckets<const BITS: u32, const LEN: usize> {
    counts: [SingleWriterCounter; LEN],
    /// Number of values beyond the last bucket.
    beyond: SingleWriterCounter,
    sum: SingleWriterCounter,
}

/// Returns the number of buckets for values up to `value_max`.
pub const fn len(bits: u32, value_max: u64) -> usize {
    index(bits, value_max) + 1
}

/// Returns the bucket of a value.
#[inline]
const fn index(bits: u32, value: u64) -> usize {
    if value < 1 << bits {
        return value as usize;
    }
    let shift = value.ilog2() - bits;
    // The highest bit of the value carries into the number of the octave.
    ((shift as usize) << bits) + (value >> shift) as usize
}

/// Returns the values of a bucket.
fn values(bits: u32, index: usize) -> Range<u64> {
    let octaves = index >> bits;
    if octaves == 0 {
        return index as u64..index as u64 + 1;
    }
    let shift = octaves - 1;
    let first = (index - (shift << bits)) as u64;
    first << shift..(first + 1) << shift
}

impl<const BITS: u32, const LEN: usize> Default for Buckets<BITS, LEN> {
    fn default() -> Self {
        const { assert!(LEN > 0 && LEN <= (64 - BITS as usize) << BITS, "the last bucket ends beyond 2^63") };
        let counts = std::array::from_fn(|_| SingleWriterCounter::default());
        Self { counts, beyond: SingleWriterCounter::default(), sum: SingleWriterCounter::default() }
    }
}

impl<const BITS: u32, const LEN: usize> Buckets<BITS, LEN> {
    /// Counts a value. Concurrent calls lose counts.
    #[inline]
    pub fn record(&self, value: u64) {
        self.counts.get(index(BITS, value)).unwrap_or(&self.beyond).add(1);
        self.sum.add(value);
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter().zip(&other.counts).for_each(|(own, other)| own.add(other.get()));
        self.beyond.add(other.beyond.get());
        self.sum.add(other.sum());
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        total(&self.counts) + self.beyond.get()
    }

    /// Returns the sum of the values.
    pub fn sum(&self) -> u64 {
        self.sum.get()
    }

    /// Returns the number of values in the buckets up to that of `value`; of all values if `value`
    /// is beyond the last bucket.
    pub fn count_up_to(&self, value: u64) -> u64 {
        self.counts.get(..=index(BITS, value)).map_or_else(|| self.count(), total)
    }

    /// Returns the bucket of the value that `fraction` (0 to 1) of all values do not exceed; `None`
    /// without values. For a value beyond the last bucket returns the last bucket.
    pub fn quantile(&self, fraction: f64) -> Option<Range<u64>> {
        let wanted = ((self.count() as f64 * fraction.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        let index = self.counts.iter().chain([&self.beyond]).position(|count| {
            seen += count.get();
            seen >= wanted
        })?;
        Some(values(BITS, index.min(LEN - 1)))
    }

    /// Returns for each octave its end, and the number of values below it. The first octave begins
    /// at 0. Values beyond the last bucket are in no octave.
    pub fn octaves(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut below = 0;
        self.counts.chunks(1 << BITS).enumerate().map(move |(octave, counts)| {
            below += total(counts);
            (values(BITS, (octave << BITS) + counts.len() - 1).end, below)
        })
    }
}

fn total(counts: &[SingleWriterCounter]) -> u64 {
    counts.iter().map(SingleWriterCounter::get).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_below_the_end_of_their_bucket() {
        for value in (0..5000).chain([1 << 20, (1 << 20) + 1, 100_000_000]) {
            let index = index(2, value);
            assert!(values(2, index).contains(&value), "{value}: {index}");
            assert!(index == 0 || value >= values(2, index - 1).end, "{value}: {index}");
        }
        assert_eq!(len(2, (1 << 27) - 1), 104);
    }

    #[test]
    fn values_beyond_the_last_bucket_are_in_no_octave() {
        let mut buckets = Buckets::<2, 104>::default();
        buckets.record(u64::MAX);
        assert_eq!(buckets.quantile(1.0), Some(117_440_512..1 << 27));
        assert_eq!((buckets.count(), buckets.sum()), (1, u64::MAX));
        buckets.record((1 << 27) - 1);
        buckets.add(&Buckets::default());
        assert_eq!((buckets.count_up_to((1 << 27) - 1), buckets.count_up_to(1 << 27)), (1, 2));
        assert_eq!(buckets.octaves().last(), Some((1 << 27, 1)));
    }

    #[test]
    fn octaves_count_the_values_below_their_ends() {
        let mut buckets = Buckets::<2, 104>::default();
        (1..=100).for_each(|value| buckets.record(value));
        buckets.add(&buckets.clone());
        let octaves: Vec<_> = buckets.octaves().collect();
        assert_eq!((octaves[0], octaves[1], octaves.last()), ((4, 6), (8, 14), Some(&(1 << 27, 200))));
    }

    #[test]
    fn one_thread_records_while_another_reads() {
        let buckets = Buckets::<2, 104>::default();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..10_000).for_each(|value| buckets.record(value)));
            let mut before = 0;
            while before < 10_000 {
                let now = buckets.count();
                assert!(now >= before);
                before = now;
            }
        });
        assert_eq!(buckets.sum(), 49_995_000);
    }

    proptest! {
        #[test]
        fn buckets_are_adjacent_and_at_most_one_part_in_their_number_wide(
            value in 0..1_u64 << 62,
            bits in 0..12_u32,
        ) {
            let bucket = values(bits, index(bits, value));
            prop_assert!(bucket.contains(&value));
            prop_assert!(bucket.end - bucket.start <= (value >> bits).max(1));
            prop_assert_eq!(index(bits, bucket.end), index(bits, value) + 1);
        }
    }
}
