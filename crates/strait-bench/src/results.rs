//! Results of a benchmark: every figure of every round, the machine and the command, as one JSON
//! document.
//!
//! A series has the measurements of one contestant at one place on the axis, such as a frame size
//! or a rate. A failed measurement is recorded with its reason, and is not part of the medians.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use strait_program::replace;

use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::stats::Summary;

/// Figures of one measurement by name; the name ends with the unit.
pub type Figures = BTreeMap<String, f64>;

/// Contestant and place on the axis of a series.
pub type Key<'a> = (&'a str, f64);

/// Limit of a results file in bytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Results of a benchmark.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// `capture`, `latency`, `tax`, `proxy`, `cache`, `restart`, `certificates`, `send` and the
    /// load, `claims` and their subject, or `instructions` and the NIC or `tls`.
    pub benchmark: String,
    /// Description of the measurement.
    pub about: String,
    /// Name of the axis, with its unit.
    pub axis: String,
    /// Names of the places if they are not numbers; the first belongs to place 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Machine, program and command.
    pub machine: Machine,
    /// True if the measurement was not interrupted.
    pub complete: bool,
    /// Requested number of rounds.
    pub rounds: u32,
    /// Duration of a measurement in seconds.
    pub seconds: f64,
    /// Series in the order of the first round.
    pub series: Vec<Series>,
    /// Contestants that cannot be measured on this machine.
    pub skipped: Vec<Skipped>,
    /// Claims on these figures, with their verdicts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Claim>,
}

/// Contestant that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// Contestant name.
    pub contestant: String,
    /// Reason.
    pub reason: String,
}

/// One contestant at one place on the axis, over all rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Contestant name.
    pub contestant: String,
    /// Place on the axis.
    pub at: f64,
    /// Path and mode that the contestant used.
    #[serde(default)]
    pub got: String,
    /// Median and spread of each figure.
    pub summary: BTreeMap<String, Summary>,
    /// All rounds.
    pub rounds: Vec<Round>,
}

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Round {
    /// Measured figures.
    Measured(Figures),
    /// Failed measurement.
    Failed {
        /// Text of the error.
        failure: String,
    },
}

impl Results {
    /// Adds the next round of a series.
    pub fn record(&mut self, contestant: &str, at: f64, outcome: Result<(Figures, String)>) {
        let found =
            |series: &Series| series.contestant == contestant && (series.at - at).abs() < f64::EPSILON;
        let index = self.series.iter().position(found).unwrap_or_else(|| {
            let (contestant, got) = (contestant.to_owned(), String::new());
            self.series.push(Series { contestant, at, got, summary: BTreeMap::new(), rounds: Vec::new() });
            self.series.len() - 1
        });
        let series = &mut self.series[index];
        series.rounds.push(match outcome {
            Ok((figures, got)) => {
                series.got = got;
                Round::Measured(figures)
            }
            Err(error) => Round::Failed { failure: error.to_string() },
        });
        series.summarise();
    }

    /// Returns the distinct contestants in their order.
    pub fn contestants(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for series in &self.series {
            if !names.contains(&series.contestant.as_str()) {
                names.push(series.contestant.as_str());
            }
        }
        names
    }

    /// Returns the distinct places on the axis, ascending.
    pub fn places(&self) -> Vec<f64> {
        let mut places: Vec<f64> = self.series.iter().map(|series| series.at).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }

    /// Returns the name of a place, or its number if it has none.
    pub fn place_name(&self, at: f64) -> String {
        self.labels.get(at as usize).cloned().unwrap_or_else(|| at.to_string())
    }

    /// Returns the series of a contestant at a place.
    pub fn series(&self, contestant: &str, at: f64) -> Option<&Series> {
        self.series
            .iter()
            .find(|series| series.contestant == contestant && (series.at - at).abs() < f64::EPSILON)
    }

    /// Returns median and spread of a figure of a series.
    pub fn summary(&self, contestant: &str, at: f64, figure: &str) -> Option<Summary> {
        self.series(contestant, at)?.summary.get(figure).copied()
    }

    /// Applies `combine` to figures of several series, round by round. Omits rounds in which one of
    /// the figures or the result is missing.
    pub fn paired(&self, keys: &[(Key<'_>, &str)], combine: impl Fn(&[f64]) -> Option<f64>) -> Vec<f64> {
        let rounds = self.series.iter().map(|series| series.rounds.len()).max().unwrap_or(0);
        let figure = |round, ((contestant, at), figure): &(Key<'_>, &str)| {
            self.series(contestant, *at)?.figure(round, figure)
        };
        let all = |round| keys.iter().map(|key| figure(round, key)).collect::<Option<Vec<_>>>();
        (0..rounds).filter_map(|round| combine(&all(round)?)).collect()
    }

    /// Returns the ratios of a figure of two series, round by round.
    pub fn ratios(&self, figure: &str, this: Key<'_>, to: Key<'_>) -> Vec<f64> {
        self.paired(&[(this, figure), (to, figure)], |values| {
            (values[1] > 0.0).then(|| values[0] / values[1])
        })
    }

    /// Returns the ratio of a contestant's figure to the best of `others` in the same round at the
    /// same place, and the name of the contestant with the best median.
    pub fn ratio_to_best<'a>(
        &self,
        contestant: &str,
        others: &[&'a str],
        (figure, more_is_better): (&str, bool),
        at: f64,
    ) -> Option<(Summary, &'a str)> {
        let better = |one: f64, other: f64| if more_is_better { one > other } else { one < other };
        let best =
            |values: &mut dyn Iterator<Item = f64>| values.reduce(|a, b| if better(b, a) { b } else { a });
        let of_round = |name: &str, round| self.series(name, at)?.figure(round, figure);
        let ratio = |round| {
            let reference = best(&mut others.iter().filter_map(|other| of_round(other, round)))?;
            Some(of_round(contestant, round)? / reference).filter(|ratio| ratio.is_finite())
        };
        let ratios: Vec<f64> = (0..self.rounds as usize).filter_map(ratio).collect();
        let median = |name: &str| Some(self.summary(name, at, figure)?.median);
        let known = others.iter().filter_map(|&name| Some((median(name)?, name)));
        let (_, name) = known.reduce(|a, b| if better(b.0, a.0) { b } else { a })?;
        Some((Summary::of(&ratios)?, name))
    }

    /// Returns the JSON document.
    pub fn to_json(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self);
        text.map_err(|error| Error::file("write the results", error))
    }

    /// Reads a document of [`Results::to_json`].
    pub fn read(path: &Path) -> Result<Self> {
        let operation = || format!("read {}", path.display());
        let length = fs::metadata(path).map_err(|error| Error::file(operation(), error))?.len();
        if length > FILE_BYTES_MAX {
            return Err(Error::Usage(format!(
                "{}: {length} bytes are too many for results of strait bench",
                path.display()
            )));
        }
        let text = fs::read_to_string(path).map_err(|error| Error::file(operation(), error))?;
        serde_json::from_str(&text)
            .map_err(|_| Error::Usage(format!("{}: not results of strait bench", path.display())))
    }
}

/// Writes `text` to `path` completely, or leaves the file unchanged.
pub fn write_file(path: &Path, text: &str) -> Result<()> {
    replace::replace(path, text.as_bytes()).map_err(|error| cannot_write(path, error))
}

/// Checks that [`write_file`] can write `path`, before hours of measuring.
pub fn check_writable(path: &Path) -> Result<()> {
    replace::check(path).map_err(|error| cannot_write(path, error))
}

fn cannot_write(path: &Path, error: std::io::Error) -> Error {
    Error::file(format!("write {}", path.display()), error)
}

/// Creates figures from names and values.
pub(crate) fn figures<'a>(named: impl IntoIterator<Item = (&'a str, f64)>) -> Figures {
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl Series {
    fn figure(&self, round: usize, figure: &str) -> Option<f64> {
        match self.rounds.get(round)? {
            Round::Measured(figures) => figures.get(figure).copied(),
            Round::Failed { .. } => None,
        }
    }

    /// Returns the reasons of failed rounds.
    pub fn failures(&self) -> impl Iterator<Item = &str> {
        self.rounds.iter().filter_map(|round| match round {
            Round::Failed { failure } => Some(failure.as_str()),
            Round::Measured(_) => None,
        })
    }

    fn summarise(&mut self) {
        let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for round in &self.rounds {
            let Round::Measured(figures) = round else { continue };
            for (figure, value) in figures {
                values.entry(figure).or_default().push(*value);
            }
        }
        let summary = |(figure, values): (&str, Vec<f64>)| Some((figure.to_owned(), Summary::of(&values)?));
        self.summary = values.into_iter().filter_map(summary).collect();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Builds results with one figure, `lossfree_pps`; NaN makes a failed round.
    pub(crate) fn results(series: &[(&str, f64, &[f64])]) -> Results {
        let mut results = Results {
            benchmark: "capture".into(),
            about: "a test".into(),
            axis: "frame size, bytes".into(),
            complete: true,
            seconds: 1.0,
            ..Results::default()
        };
        for &(contestant, at, values) in series {
            for &value in values {
                let outcome = if value.is_nan() { Err(Error::Invalid("broke".into())) } else { Ok(value) };
                let figures = |value| (Figures::from([("lossfree_pps".to_owned(), value)]), "got".to_owned());
                results.record(contestant, at, outcome.map(figures));
            }
        }
        results
    }

    #[test]
    fn planted_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("saved"), directory.path().join("victim"));
        fs::write(&victim, "untouched").unwrap();
        for is_link in [true, false] {
            for write in [check_writable, |path: &Path| write_file(path, "text")] {
                let part = path.with_file_name(replace::part_name(path.file_name().unwrap()));
                let planted = if is_link {
                    std::os::unix::fs::symlink(&victim, part)
                } else {
                    fs::hard_link(&victim, part)
                };
                planted.unwrap();
                write(&path).unwrap();
                assert_eq!(fs::read(&victim).unwrap(), b"untouched");
            }
            assert_eq!(fs::read(&path).unwrap(), b"text");
        }
        assert!(check_writable(Path::new("/dev/null")).unwrap_err().to_string().contains("give a file"));
    }

    #[test]
    fn best_other_is_chosen_in_each_round() {
        let mut results =
            results(&[("a", 1.0, &[4.0, 6.0]), ("b", 1.0, &[2.0, 2.0]), ("c", 1.0, &[1.0, 3.0])]);
        results.rounds = 2;
        let figure = ("lossfree_pps", true);
        let (ratio, name) = results.ratio_to_best("a", &["b", "c"], figure, 1.0).unwrap();
        assert_eq!((ratio.min, ratio.max, ratio.rounds), (2.0, 2.0, 2));
        assert_eq!(name, "b");
        assert!(results.ratio_to_best("a", &["d"], figure, 1.0).is_none());
    }

    #[test]
    fn ratios_pair_rounds_and_skip_failed_ones() {
        let results = results(&[("a", 1.0, &[2.0, 9.0, 6.0]), ("b", 1.0, &[1.0, f64::NAN, 2.0])]);
        let ratios = |one, other| results.ratios("lossfree_pps", (one, 1.0), (other, 1.0));
        assert_eq!(ratios("a", "b"), [2.0, 3.0]);
        assert_eq!(results.series("b", 1.0).unwrap().failures().collect::<Vec<_>>(), ["broke"]);
        assert_eq!(results.summary("b", 1.0, "lossfree_pps").unwrap().rounds, 2);
        assert!(ratios("a", "c").is_empty());
    }

    #[test]
    fn file_has_every_round_and_failure() {
        let json = serde_json::to_value(results(&[("a", 1.0, &[2.0, f64::NAN])])).unwrap();
        assert_eq!(json["series"][0]["rounds"][0]["lossfree_pps"], 2.0);
        assert_eq!(json["series"][0]["rounds"][1]["failure"], "broke");
        assert_eq!(json["series"][0]["summary"]["lossfree_pps"]["median"], 2.0);
    }

    #[test]
    fn claims_round_trip() {
        use crate::claim::Bound;
        for bound in [Bound::AtMost(1.1), Bound::AtLeast(1000.0)] {
            let claims = vec![Claim::of_values("fast", &[1.0, 2.0], "x", bound)];
            let written = Results { claims: claims.clone(), ..results(&[]) };
            let read: Results = serde_json::from_str(&written.to_json().unwrap()).unwrap();
            assert_eq!(read.claims, claims);
        }
    }

    #[test]
    fn committed_results_are_readable() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
        let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let files: Vec<_> =
            files.filter(|path| path.extension().is_some_and(|name| name == "json")).collect();
        assert!(files.len() > 20, "{files:?}");
        for path in files {
            let results = Results::read(&path).unwrap();
            let is_shown = results.series.is_empty() || !crate::table::figures(&results).is_empty();
            assert!(is_shown, "{}: no figure of {} is shown", path.display(), results.benchmark);
            assert!(results.series.is_empty() || crate::compare::ratios(&results, &results).is_ok());
        }
    }

    #[test]
    fn rounds_and_failures_round_trip() {
        let written = results(&[("v3", 64.0, &[2.0, f64::NAN, 4.0]), ("v3", 128.0, &[1.0])]);
        let read: Results = serde_json::from_str(&written.to_json().unwrap()).unwrap();
        let series = read.series("v3", 64.0).unwrap();
        assert_eq!(series.failures().collect::<Vec<_>>(), ["broke"]);
        assert_eq!(series.rounds.len(), 3);
        let summary = read.summary("v3", 64.0, "lossfree_pps").unwrap();
        assert_eq!((summary.median, summary.rounds), (3.0, 2));
        assert_eq!((read.contestants(), read.places()), (vec!["v3"], vec![64.0, 128.0]));
    }
}
