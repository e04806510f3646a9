//! Strait's claims on its speed, and whether a measurement supports them.
//!
//! Each benchmark makes its claims from its own results. The median decides; if only noise may have
//! missed the bound, the verdict says that the bound is within the spread. Nothing is rounded in
//! Strait's favour.

use std::fmt;

use serde::{Serialize, Serializer};
use strait_bench::Summary;

use crate::results::Results;

/// Bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// One claim and its verdict.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Claim {
    #[serde(rename = "claim")]
    pub(crate) text: String,
    pub(crate) bound: Bound,
    /// Unit of the figure; `x` for a ratio.
    pub(crate) unit: &'static str,
    pub(crate) measured: Option<Summary>,
    pub(crate) verdict: Verdict,
}

/// Verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Holds,
    /// The median misses the bound.
    Short,
    /// The median misses the bound, which lies between the best and the worst round.
    ShortWithinSpread,
    /// There are no figures: the points failed or were left out.
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
    pub(crate) fn of_values(
        text: impl Into<String>,
        values: &[f64],
        unit: &'static str,
        bound: Bound,
    ) -> Self {
        let measured = Summary::of(values);
        Self { text: text.into(), bound, unit, measured, verdict: bound.judge(measured) }
    }

    /// Creates a claim on a ratio computed over the rounds; None if it was not measured.
    pub(crate) fn of_summary(text: impl Into<String>, measured: Option<Summary>, bound: Bound) -> Self {
        Self { text: text.into(), bound, unit: "x", measured, verdict: bound.judge(measured) }
    }

    /// Creates a claim on a figure of a series, multiplied by `scale`.
    pub(crate) fn of_figure(
        text: impl Into<String>,
        results: &Results,
        key: (&str, &str),
        (scale, unit): (f64, &'static str),
        bound: Bound,
    ) -> Self {
        let values = results.paired(&[key], |values| Some(values[0] * scale));
        Self::of_values(text, &values, unit, bound)
    }

    /// Creates a claim on the ratio of a figure in two series.
    pub(crate) fn of_ratio(
        text: impl Into<String>,
        results: &Results,
        figure: &str,
        (this, to): (&str, &str),
        bound: Bound,
    ) -> Self {
        Self::of_values(text, &results.ratios((this, figure), (to, figure)), "x", bound)
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

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
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
    use crate::results::tests::results;

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

    #[test]
    fn ratio_is_computed_round_by_round() {
        let results = results(&[("a", &[1.0, 20.0]), ("b", &[2.0, 10.0])]);
        let claim = Claim::of_ratio("", &results, "x", ("a", "b"), Bound::AtLeast(1.0));
        assert_eq!(claim.measured, Some(Summary { median: 1.25, min: 0.5, max: 2.0, rounds: 2 }));
    }
}
