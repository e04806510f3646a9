//! Claim about Strait's speed, and its verdict from a measurement.
//!
//! The median decides; if only noise may have missed the bound, the verdict says that the bound is
//! within the spread. Nothing is rounded in Strait's favour. [`crate::claims`] makes the claims,
//! and [`crate::results`] stores them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::stats::Summary;

/// Bound of a figure; `<= 1.1` or `>= 3` in the results.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Bound {
    /// Upper bound.
    AtMost(f64),
    /// Lower bound.
    AtLeast(f64),
}

/// One claim and its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Text of the claim.
    #[serde(rename = "claim")]
    pub text: String,
    /// Bound of the figure.
    pub bound: Bound,
    /// Unit of the figure; `x` for a ratio.
    pub unit: String,
    /// The figure over all rounds; None without a measurement.
    pub measured: Option<Summary>,
    /// The verdict.
    pub verdict: Verdict,
}

/// Verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The median meets the bound.
    Holds,
    /// The median misses the bound.
    Short,
    /// The median misses the bound, which lies between the best and the worst round.
    ShortWithinSpread,
    /// There are no figures: the points failed or were not selected.
    NotMeasured,
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }

    fn judge(self, measured: Option<Summary>) -> Verdict {
        let Some(Summary { median, min, max, .. }) = measured else { return Verdict::NotMeasured };
        match self.holds(median) {
            true => Verdict::Holds,
            false if self.holds(min) || self.holds(max) => Verdict::ShortWithinSpread,
            false => Verdict::Short,
        }
    }
}

impl Claim {
    /// Creates a claim on figures computed round by round.
    pub fn of_values(text: impl Into<String>, values: &[f64], unit: &str, bound: Bound) -> Self {
        let measured = Summary::of(values);
        Self { text: text.into(), bound, unit: unit.into(), measured, verdict: bound.judge(measured) }
    }

    /// Creates a claim on a ratio computed over the rounds; None if it was not measured.
    pub(crate) fn of_summary(text: impl Into<String>, measured: Option<Summary>, bound: Bound) -> Self {
        Self { text: text.into(), bound, unit: "x".into(), measured, verdict: bound.judge(measured) }
    }

    /// Judges the claim by its worst round instead of the median.
    pub(crate) fn worst(mut self) -> Self {
        if let Some(measured) = &mut self.measured {
            let worst = match self.bound {
                Bound::AtMost(_) => measured.max,
                Bound::AtLeast(_) => measured.min,
            };
            self.verdict = if self.bound.holds(worst) { Verdict::Holds } else { Verdict::Short };
        }
        self
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::AtLeast(least) => write!(f, ">= {least}"),
        }
    }
}

impl From<Bound> for String {
    fn from(bound: Bound) -> Self {
        bound.to_string()
    }
}

impl TryFrom<String> for Bound {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = |text: &str| text.parse().map_err(|_| format!("'{text}' is not a bound"));
        match text.split_once(' ') {
            Some(("<=", most)) => Ok(Self::AtMost(number(most)?)),
            Some((">=", least)) => Ok(Self::AtLeast(number(least)?)),
            _ => Err(format!("'{text}' is not a bound")),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "holds",
            Self::Short => "short",
            Self::ShortWithinSpread => "short, bound within the spread",
            Self::NotMeasured => "not measured",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(values: &[f64], bound: Bound) -> Verdict {
        Claim::of_values("", values, "x", bound).verdict
    }

    #[test]
    fn median_decides_and_noise_is_reported() {
        assert_eq!(verdict(&[0.9, 1.0, 3.0], Bound::AtMost(1.0)), Verdict::Holds);
        assert_eq!(verdict(&[0.9, 1.1, 1.2], Bound::AtMost(1.0)), Verdict::ShortWithinSpread);
        assert_eq!(verdict(&[1.01, 1.1, 1.2], Bound::AtMost(1.0)), Verdict::Short);
        assert_eq!(verdict(&[0.9, 0.95], Bound::AtLeast(1.0)), Verdict::Short);
        assert_eq!(verdict(&[], Bound::AtLeast(1.0)), Verdict::NotMeasured);
    }

    #[test]
    fn worst_claim_is_judged_by_the_worst_round() {
        let claim = Claim::of_values("", &[0.0, 0.0, 1.0], "packets", Bound::AtMost(0.0));
        assert_eq!(claim.verdict, Verdict::Holds);
        assert_eq!(claim.worst().verdict, Verdict::Short);
    }
}
