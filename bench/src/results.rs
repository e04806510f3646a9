//! Results of a benchmark: every figure of every round, in a file that is rewritten after each
//! point.
//!
//! A point is one measurement of one series in one round. A failed point is recorded with its
//! reason; only the medians leave it out.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;
use strait_bench::Summary;

use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::machine::Machine;

/// Figures of one point by name; the name ends with the unit.
pub(crate) type Figures = BTreeMap<&'static str, f64>;

/// Results of a benchmark.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    /// Name of the benchmark and of its file.
    pub(crate) name: &'static str,
    /// Description of the measurement.
    about: &'static str,
    machine: Machine,
    /// Number of rounds, set at their start.
    pub(crate) rounds: usize,
    seconds_per_point: f64,
    pub(crate) series: Vec<Series>,
    pub(crate) claims: Vec<Claim>,
}

/// One contestant under one load, over all rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Median and spread of each figure.
    summary: BTreeMap<&'static str, Summary>,
    pub(crate) rounds: Vec<Point>,
}

/// One measurement.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Point {
    /// Measured figures.
    Measured(Figures),
    /// Failed measurement.
    Failed {
        /// Text of the error.
        failure: String,
    },
}

impl Point {
    fn failure(&self) -> Option<&str> {
        match self {
            Self::Failed { failure } => Some(failure),
            Self::Measured(_) => None,
        }
    }
}

impl Results {
    /// Creates empty results.
    pub(crate) fn new(name: &'static str, about: &'static str, machine: Machine, seconds: f64) -> Self {
        let (series, claims) = (Vec::new(), Vec::new());
        Self { name, about, machine, rounds: 0, seconds_per_point: seconds, series, claims }
    }

    /// Adds the next round's point of a series.
    pub(crate) fn record(&mut self, name: &str, outcome: Result<Figures>) {
        let at = self.series.iter().position(|series| series.name == name).unwrap_or_else(|| {
            self.series.push(Series { name: name.into(), summary: BTreeMap::new(), rounds: Vec::new() });
            self.series.len() - 1
        });
        self.series[at].rounds.push(match outcome {
            Ok(figures) => Point::Measured(figures),
            Err(error) => Point::Failed { failure: error.to_string() },
        });
        self.series[at].summarise();
    }

    /// Returns the series of that name.
    pub(crate) fn series(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    /// Returns median and spread of a figure of a series.
    pub(crate) fn summary(&self, name: &str, figure: &str) -> Option<Summary> {
        self.series(name)?.summary.get(figure).copied()
    }

    /// Applies `combine` to the figures of several series, round by round. Leaves out rounds
    /// without one of the figures or without a result.
    pub(crate) fn paired(&self, keys: &[(&str, &str)], combine: impl Fn(&[f64]) -> Option<f64>) -> Vec<f64> {
        let figure = |round: usize, key: &(&str, &str)| self.series(key.0)?.figure(round, key.1);
        let rounds = self.series.iter().map(|series| series.rounds.len()).max().unwrap_or(0);
        let all = |round| keys.iter().map(|key| figure(round, key)).collect::<Option<Vec<_>>>();
        (0..rounds).filter_map(|round| combine(&all(round)?)).collect()
    }

    /// Returns the ratios of two figures, round by round.
    pub(crate) fn ratios(&self, this: (&str, &str), to: (&str, &str)) -> Vec<f64> {
        self.paired(&[this, to], |values| (values[1] > 0.0).then(|| values[0] / values[1]))
    }

    /// Writes `<name>.json` in `directory` completely, or leaves the file unchanged.
    pub(crate) fn save(&self, directory: &Path) -> Result<()> {
        save_json(directory, self.name, self)
    }
}

/// Writes `value` to `<name>.json` in `directory`.
pub(crate) fn save_json(directory: &Path, name: &str, value: &impl Serialize) -> Result<()> {
    let (path, part) = (directory.join(format!("{name}.json")), directory.join(format!(".{name}.json.part")));
    let failed = |source| Error::file(format!("write {}", path.display()), source);
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    fs::create_dir_all(directory).map_err(failed)?;
    fs::write(&part, text).map_err(failed)?;
    fs::rename(&part, &path).map_err(failed)
}

impl Series {
    fn figure(&self, round: usize, figure: &str) -> Option<f64> {
        match self.rounds.get(round)? {
            Point::Measured(figures) => figures.get(figure).copied(),
            Point::Failed { .. } => None,
        }
    }

    /// Returns the reasons of failed rounds.
    pub(crate) fn failures(&self) -> Vec<&str> {
        self.rounds.iter().filter_map(Point::failure).collect()
    }

    fn summarise(&mut self) {
        let mut values: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        for point in &self.rounds {
            let Point::Measured(figures) = point else { continue };
            for (figure, value) in figures {
                values.entry(figure).or_default().push(*value);
            }
        }
        let summary = |(figure, values): (_, Vec<f64>)| Some((figure, Summary::of(&values)?));
        self.summary = values.into_iter().filter_map(summary).collect();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Builds results with one figure `x`; NaN makes a failed round.
    pub(crate) fn results(series: &[(&str, &[f64])]) -> Results {
        let mut results = Results::new("test", "", Machine::default(), 0.0);
        for (name, values) in series {
            for value in *values {
                let outcome = if value.is_nan() { Err(Error::Void("broke".into())) } else { Ok(*value) };
                results.record(name, outcome.map(|value| Figures::from([("x", value)])));
            }
        }
        results
    }

    #[test]
    fn ratios_pair_rounds_and_skip_failed_ones() {
        let results = results(&[("a", &[2.0, 9.0, 6.0]), ("b", &[1.0, f64::NAN, 2.0])]);
        assert_eq!(results.ratios(("a", "x"), ("b", "x")), [2.0, 3.0]);
        assert_eq!(results.series("b").unwrap().failures(), ["broke"]);
        assert_eq!(results.summary("b", "x").unwrap().rounds, 2);
        assert!(results.ratios(("a", "x"), ("c", "x")).is_empty());
    }

    #[test]
    fn file_has_every_round_and_failure() {
        let json = serde_json::to_value(results(&[("a", &[2.0, f64::NAN])])).unwrap();
        assert_eq!(json["series"][0]["rounds"][0]["x"], 2.0);
        assert_eq!(json["series"][0]["rounds"][1]["failure"], "broke");
        assert_eq!(json["series"][0]["summary"]["x"]["median"], 2.0);
    }
}
