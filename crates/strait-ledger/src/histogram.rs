//! Histogram of nanoseconds with a bounded range and fixed memory.
//!
//! `strait top` and the benchmarks record delays in it. Recording never allocates and never fails:
//! a value out of range counts as the nearer end of the range. The counts are [`buckets`].

use std::fmt;

use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::buckets::{self, Buckets};
use crate::number::{Grouped, duration_ns};

/// Upper end of the range, in nanoseconds: one minute. A longer duration counts as this.
pub const RANGE_NS_MAX: u64 = 60_000_000_000;

/// Precision: a recorded value is at most 0.1 % from the ends of its bucket.
const BITS: u32 = 10;

/// Durations in nanoseconds, from 1 to [`RANGE_NS_MAX`].
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    buckets: Box<Buckets<BITS, { buckets::len(BITS, RANGE_NS_MAX) }>>,
}

impl Histogram {
    /// Creates an empty histogram, and allocates all its memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one duration of `ns` nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.buckets.record(ns.max(1));
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.buckets.add(&other.buckets);
    }

    /// Returns the number of recorded durations.
    pub fn count(&self) -> u64 {
        self.buckets.count()
    }

    /// Returns the number of durations of at most `ns` nanoseconds, to the precision of a bucket.
    pub fn count_up_to(&self, ns: u64) -> u64 {
        self.buckets.count_up_to(ns)
    }

    /// Returns a quantile in nanoseconds, the duration that `fraction` (0 to 1) of all durations do
    /// not exceed; 0 if nothing was recorded.
    pub fn quantile_ns(&self, fraction: f64) -> u64 {
        self.buckets.quantile(fraction).map_or(0, |bucket| bucket.end - 1)
    }

    /// Returns the median, in nanoseconds.
    pub fn p50_ns(&self) -> u64 {
        self.quantile_ns(0.50)
    }

    /// Returns the 90th percentile, in nanoseconds.
    pub fn p90_ns(&self) -> u64 {
        self.quantile_ns(0.90)
    }

    /// Returns the 99th percentile, in nanoseconds.
    pub fn p99_ns(&self) -> u64 {
        self.quantile_ns(0.99)
    }

    /// Returns the longest duration, in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.quantile_ns(1.0)
    }
}

impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p90, p99, max] =
            [self.p50_ns(), self.p90_ns(), self.p99_ns(), self.max_ns()].map(duration_ns);
        write!(f, "p50 {p50}, p90 {p90}, p99 {p99}, max {max} of {}", Grouped(self.count()))
    }
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Histogram", 5)?;
        fields.serialize_field("count", &self.count())?;
        fields.serialize_field("p50_ns", &self.p50_ns())?;
        fields.serialize_field("p90_ns", &self.p90_ns())?;
        fields.serialize_field("p99_ns", &self.p99_ns())?;
        fields.serialize_field("max_ns", &self.max_ns())?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn percentiles_are_within_the_stated_error(mut values in prop::collection::vec(1..=RANGE_NS_MAX, 1..300)) {
            let mut histogram = Histogram::new();
            for value in &values {
                histogram.record(*value);
            }
            values.sort_unstable();
            for fraction in [0.5, 0.9, 0.99] {
                let rank = (fraction * values.len() as f64).ceil() as usize;
                let exact = values[rank.clamp(1, values.len()) - 1];
                let found = histogram.quantile_ns(fraction);
                prop_assert!(found.abs_diff(exact) as f64 <= exact as f64 * 0.001 + 1.0, "{found} for {exact}");
            }
        }
    }

    #[test]
    fn out_of_range_counts_at_the_nearer_end() {
        let mut histogram = Histogram::new();
        histogram.record(0);
        histogram.record(u64::MAX);
        assert_eq!(histogram.count(), 2);
        assert_eq!(histogram.quantile_ns(0.0), 1);
        assert!(histogram.max_ns() >= RANGE_NS_MAX);
    }

    #[test]
    fn empty_histogram_has_no_delay() {
        let histogram = Histogram::new();
        assert_eq!((histogram.count(), histogram.p99_ns(), histogram.max_ns()), (0, 0, 0));
    }

    #[test]
    fn adding_keeps_every_count() {
        let mut one = Histogram::new();
        one.record(1_000);
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!(sum.count(), 2);
        let json = serde_json::to_value(&sum).unwrap();
        assert_eq!(json["count"], 2);
        assert_eq!(json["p50_ns"], 1000);
    }
}
