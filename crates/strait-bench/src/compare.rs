//! Comparison of two results: the ratio of each figure, and a verdict from the spreads.

use std::fmt::Write as _;

use crate::error::{Error, Result};
use crate::results::Results;
use crate::stats::Summary;
use crate::table::{self, Shown, aligned, is_bound};

/// Ratio of one figure in two results.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratio {
    /// Contestant name.
    pub contestant: String,
    /// Place on the axis of the first result.
    pub at: f64,
    /// Name of the place.
    pub place: String,
    /// Name of the figure.
    pub figure: &'static str,
    /// Title of the figure.
    pub title: &'static str,
    /// Median of the second divided by median of the first.
    pub ratio: f64,
    /// Smallest and largest ratio of any two rounds.
    pub range: (f64, f64),
    /// Verdict from the range.
    pub verdict: Verdict,
}

/// Verdict on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The rounds do not overlap, and the second result is better.
    Better,
    /// The rounds do not overlap, and the second result is worse.
    Worse,
    /// The rounds overlap.
    Undecided,
    /// One result has a single round, so its spread is unknown.
    NoSpread,
    /// The generator limited one of them, so the receiver's own rate is unknown.
    GeneratorBound,
}

impl Ratio {
    fn bound(self) -> Self {
        Self { verdict: Verdict::GeneratorBound, ..self }
    }
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Undecided => "within the spread",
            Self::NoSpread => "one round: no spread known",
            Self::GeneratorBound => "generator-bound",
        }
    }
}

/// Returns the ratios, `second` to `first`, of all figures that both have.
///
/// # Errors
/// The results are of different benchmarks, or have nothing in common.
pub fn ratios(first: &Results, second: &Results) -> Result<Vec<Ratio>> {
    if first.benchmark != second.benchmark {
        let (one, other) = (&first.benchmark, &second.benchmark);
        return Err(Error::Usage(format!(
            "one file is of strait bench {one}, the other of strait bench {other}"
        )));
    }
    let mut ratios = Vec::new();
    for shown in table::figures(first) {
        for series in &first.series {
            let (contestant, at) = (&series.contestant, series.at);
            let Some(other_at) = same_place(first, second, at) else { continue };
            let other = second.summary(contestant, other_at, shown.figure);
            if let (Some(&one), Some(other)) = (series.summary.get(shown.figure), other) {
                let bound =
                    is_bound(first, contestant, at, &shown) || is_bound(second, contestant, other_at, &shown);
                let ratio = ratio(&shown, contestant, (at, first.place_name(at)), one, other);
                ratios.extend(ratio.map(|ratio| if bound { ratio.bound() } else { ratio }));
            }
        }
    }
    if ratios.is_empty() {
        return Err(Error::Usage("the two files have no contestant and size in common".into()));
    }
    Ok(ratios)
}

/// Returns the place in `other` that corresponds to `at`: of equal name if either has labels, else
/// of equal number.
fn same_place(results: &Results, other: &Results, at: f64) -> Option<f64> {
    if results.labels.is_empty() && other.labels.is_empty() {
        return Some(at);
    }
    let name = results.place_name(at);
    other.labels.iter().position(|label| *label == name).map(|index| index as f64)
}

/// Returns None if a figure of the first is 0.
fn ratio(
    shown: &Shown,
    contestant: &str,
    (at, place): (f64, String),
    first: Summary,
    second: Summary,
) -> Option<Ratio> {
    if first.min <= 0.0 {
        return None;
    }
    let range = (second.min / first.max, second.max / first.min);
    let single = first.rounds < 2 || second.rounds < 2;
    let verdict = match range {
        _ if single => Verdict::NoSpread,
        (least, _) if least > 1.0 => more(shown.more_is_better),
        (_, most) if most < 1.0 => more(!shown.more_is_better),
        _ => Verdict::Undecided,
    };
    let (figure, title, contestant) = (shown.figure, shown.title, contestant.to_owned());
    Some(Ratio { contestant, at, place, figure, title, ratio: second.median / first.median, range, verdict })
}

fn more(is_better: bool) -> Verdict {
    if is_better { Verdict::Better } else { Verdict::Worse }
}

/// Lists facts that the ratios do not show: interrupted results, and series in only one of them.
pub fn remarks(first: &Results, second: &Results) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    for (name, results, other) in [("first", first, second), ("second", second, first)] {
        if !results.complete {
            let _ = writeln!(text, "the {name} was interrupted: it has fewer rounds than requested");
        }
        for series in &results.series {
            let at = same_place(results, other, series.at);
            if at.and_then(|at| other.series(&series.contestant, at)).is_none() {
                let place = results.place_name(series.at);
                let _ = writeln!(text, "only the {name} has {} at {place}", series.contestant);
            }
        }
    }
    text
}

/// Formats the ratios as text, one table for each figure.
pub fn text(ratios: &[Ratio], axis: &str) -> String {
    let mut text = String::new();
    for group in ratios.chunk_by(|one, other| one.figure == other.figure) {
        let mut rows = vec![vec![
            "second to first".into(),
            axis.to_owned(),
            "ratio".into(),
            "spread".into(),
            String::new(),
        ]];
        rows.extend(group.iter().map(row));
        text = text + group[0].title + "\n" + &aligned(&rows) + "\n";
    }
    text
}

fn row(ratio: &Ratio) -> Vec<String> {
    let (least, most) = ratio.range;
    vec![
        ratio.contestant.clone(),
        ratio.place.clone(),
        format!("{:.3}", ratio.ratio),
        format!("{least:.3}..{most:.3}"),
        ratio.verdict.name().to_owned(),
    ]
}

/// Returns the ratios as a JSON array.
pub fn json(ratios: &[Ratio]) -> serde_json::Value {
    let object = |ratio: &Ratio| {
        serde_json::json!({
            "contestant": ratio.contestant, "at": ratio.at, "place": ratio.place, "figure": ratio.figure, "ratio": ratio.ratio,
            "min": ratio.range.0, "max": ratio.range.1, "verdict": ratio.verdict.name(),
        })
    };
    ratios.iter().map(object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;

    #[test]
    fn change_counts_only_without_overlapping_rounds() {
        let first = results(&[("v3", 64.0, &[1.0, 1.1]), ("v2", 64.0, &[1.0, 2.0]), ("recv", 64.0, &[1.0])]);
        let second = results(&[("v3", 64.0, &[2.2, 2.0]), ("v2", 64.0, &[1.5, 1.8]), ("recv", 64.0, &[9.0])]);
        let ratios = ratios(&first, &second).unwrap();
        let found: Vec<_> = ratios.iter().map(|ratio| (ratio.contestant.as_str(), ratio.verdict)).collect();
        assert_eq!(found, [("v3", Verdict::Better), ("v2", Verdict::Undecided), ("recv", Verdict::NoSpread)]);
        assert!((ratios[0].ratio - 2.0).abs() < 1e-9);
        assert!((ratios[0].range.0 - 2.0 / 1.1).abs() < 1e-9 && (ratios[0].range.1 - 2.2).abs() < 1e-9);
        let back = super::ratios(&second, &first).unwrap();
        assert_eq!(back[0].verdict, Verdict::Worse);
        assert!(
            text(&ratios, "bytes").contains("2.000  1.818..2.200                      better"),
            "{}",
            text(&ratios, "bytes")
        );
    }

    #[test]
    fn named_places_are_compared_by_name() {
        let named = |labels: &[&str], series: &[(&str, f64, &[f64])]| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            Results { labels, ..results(series) }
        };
        let first = named(&["hit-4k", "miss-13k"], &[("v3", 0.0, &[9.0]), ("v3", 1.0, &[1.0])]);
        let second = named(&["miss-13k"], &[("v3", 0.0, &[2.0])]);
        let ratios = ratios(&first, &second).unwrap();
        assert_eq!((ratios.len(), ratios[0].place.as_str()), (1, "miss-13k"));
        assert!((ratios[0].ratio - 2.0).abs() < 1e-9);
        assert_eq!(remarks(&first, &second), "only the first has v3 at hit-4k\n");
    }

    #[test]
    fn results_without_common_series_are_an_error() {
        let first = results(&[("v3", 64.0, &[1.0])]);
        assert!(ratios(&first, &results(&[("v3", 128.0, &[1.0])])).is_err());
        let latency = Results { benchmark: "latency".into(), ..results(&[("v3", 64.0, &[1.0])]) };
        assert!(ratios(&first, &latency).unwrap_err().to_string().contains("strait bench latency"));
    }
}
