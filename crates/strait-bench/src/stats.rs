//! Median and spread of several rounds.
//!
//! The median, because one disturbed round must not decide; the spread, because it shows how
//! reliable the median is.

use serde::{Deserialize, Serialize};

/// Median and spread of one figure over the rounds in which it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Middle value, or mean of the middle two.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Number of rounds.
    pub rounds: usize,
}

impl Summary {
    /// Returns the summary of `values`; None if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { median: f64::midpoint(low, high), min, max, rounds: sorted.len() })
    }

    /// Converts to another unit.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let Self { median, min, max, rounds } = self;
        Self { median: median * factor, min: min * factor, max: max * factor, rounds }
    }

    /// Formats as `median (min..max)` with `decimals` decimals; only the median if there was one
    /// round.
    pub fn text(self, decimals: usize) -> String {
        let Self { median, min, max, rounds } = self;
        match rounds {
            1 => format!("{median:.decimals$}"),
            _ => format!("{median:.decimals$} ({min:.decimals$}..{max:.decimals$})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_or_the_mean_of_the_middle_two() {
        let odd = Summary::of(&[3.0, 1.0, 9.0]).unwrap();
        assert_eq!(odd, Summary { median: 3.0, min: 1.0, max: 9.0, rounds: 3 });
        assert!((Summary::of(&[4.0, 1.0, 2.0, 9.0]).unwrap().median - 3.0).abs() < 1e-12);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn text_shows_the_spread_of_several_rounds() {
        assert_eq!(Summary::of(&[1.0]).unwrap().text(2), "1.00");
        assert_eq!(Summary::of(&[1.0, 2.0, 3.0]).unwrap().scaled(10.0).text(0), "20 (10..30)");
    }
}
