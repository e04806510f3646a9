//! Settings of a run of claims, points that `only` selects, and claims from results.
//!
//! Every benchmark of claims imports it. It imports none of them.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use super::peers::Peers;
use crate::child::Launcher;
use crate::claim::{Bound, Claim};
use crate::error::Result;
use crate::machine::Machine;
use crate::results::{Figures, Key, Results};
use crate::rounds::{self, Point, Report};

/// CPU of generators.
pub(super) const GENERATOR_CPU: u32 = 0;
/// CPU of receivers.
pub(super) const RECEIVER_CPU: u32 = 1;

/// Settings shared by all benchmarks of a run.
#[derive(Debug)]
pub struct Context<'a> {
    /// Starts the programs.
    pub launcher: Launcher,
    /// Compiled peers.
    pub peers: Peers,
    /// Machine and command.
    pub machine: Machine,
    /// Number of rounds; benchmarks of many or few points take a multiple or a limit.
    pub rounds: u32,
    /// Duration of a point in seconds.
    pub seconds: f64,
    /// Only points with this in their `benchmark/place/contestant`.
    pub only: Option<String>,
    /// Directory for captured files and caches.
    pub disk: PathBuf,
    /// Set by a signal; no further point is then measured.
    pub terminated: &'a AtomicBool,
}

/// Receives the progress and each finished result.
pub struct Reporter<'a> {
    /// Called before each measurement.
    pub progress: &'a mut Report<'a>,
    /// Called with the results of a benchmark, with their claims.
    pub finished: &'a mut dyn FnMut(Results) -> Result<()>,
}

/// Names of a benchmark of captures and of its axis.
pub(super) struct Subject {
    /// `claims` and the subject.
    pub(super) benchmark: &'static str,
    pub(super) about: &'static str,
    pub(super) axis: &'static str,
    /// Names of the places if they are not numbers.
    pub(super) labels: &'static [&'static str],
}

/// Creates a point.
pub(super) fn point<'a>(
    contestant: impl Into<String>,
    place: f64,
    measure: impl Fn() -> Result<Figures> + 'a,
) -> Point<'a> {
    let measure = move || Ok((measure()?, String::new()));
    Point { contestant: contestant.into(), place, measure: Box::new(measure) }
}

impl Context<'_> {
    /// Measures the points that `only` selects, adds the claims and reports the results.
    pub(super) fn run(
        &self,
        subject: &Subject,
        rounds: u32,
        points: Vec<Point<'_>>,
        claims: impl FnOnce(&Results) -> Vec<Claim>,
        reporter: &mut Reporter<'_>,
    ) -> Result<()> {
        let mut results = Results {
            benchmark: subject.benchmark.into(),
            about: subject.about.into(),
            axis: subject.axis.into(),
            labels: subject.labels.iter().map(|&label| label.to_owned()).collect(),
            machine: self.machine.clone(),
            rounds,
            seconds: self.seconds,
            ..Results::default()
        };
        let name = subject.benchmark.trim_start_matches("claims ");
        let label =
            |point: &Point<'_>| format!("{name}/{}/{}", results.place_name(point.place), point.contestant);
        let is_wanted = |point: &Point<'_>| self.only.as_ref().is_none_or(|only| label(point).contains(only));
        let points: Vec<_> =
            points.into_iter().filter(is_wanted).map(|point| self.unless_ended(point)).collect();
        rounds::measure(&mut results, &points, "", reporter.progress)?;
        results.claims = claims(&results);
        if self.only.is_some() {
            results.claims.retain(|claim| claim.measured.is_some());
        }
        (reporter.finished)(results)
    }

    /// Makes the point fail as interrupted after a signal.
    fn unless_ended<'b>(&'b self, point: Point<'b>) -> Point<'b> {
        let Point { contestant, place, measure } = point;
        let measure = Box::new(move || rounds::attempt(self.terminated, &measure));
        Point { contestant, place, measure }
    }
}

/// Creates a claim on a figure of a series, multiplied by `scale`.
pub(super) fn of_figure(
    text: impl Into<String>,
    results: &Results,
    key: (Key<'_>, &str),
    (scale, unit): (f64, &str),
    bound: Bound,
) -> Claim {
    let values = results.paired(&[key], |values| Some(values[0] * scale));
    Claim::of_values(text, &values, unit, bound)
}

/// Creates a claim on the ratio of a figure of two series.
pub(super) fn of_ratio(
    text: impl Into<String>,
    results: &Results,
    figure: &str,
    (this, to): (Key<'_>, Key<'_>),
    bound: Bound,
) -> Claim {
    Claim::of_values(text, &results.ratios(figure, this, to), "x", bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;
    use crate::stats::Summary;

    #[test]
    fn ratio_is_computed_round_by_round() {
        let results = results(&[("a", 1.0, &[1.0, 20.0]), ("b", 1.0, &[2.0, 10.0])]);
        let keys = (("a", 1.0), ("b", 1.0));
        let claim = of_ratio("", &results, "lossfree_pps", keys, Bound::AtLeast(1.0));
        assert_eq!(claim.measured, Some(Summary { median: 1.25, min: 0.5, max: 2.0, rounds: 2 }));
    }
}
