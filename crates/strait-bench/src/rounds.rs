//! Runs rounds: every contestant once, then every contestant again, so that a disturbance affects
//! all alike and shows in the spread.
//!
//! All benchmarks use this module; they provide the measurement of one place.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::results::{Figures, Results, Skipped};

/// Progress of a benchmark.
#[derive(Debug)]
pub struct Progress<'a> {
    /// Results so far.
    pub results: &'a Results,
    /// Number of finished measurements.
    pub done: usize,
    /// Number of all measurements.
    pub all: usize,
    /// Name of the next measurement.
    pub next: String,
}

/// Makes a measurement. After a signal, returns `Interrupted` for any error: measured programs also
/// receive the signal.
pub(crate) fn attempt<T>(terminated: &AtomicBool, attempt: impl FnOnce() -> Result<T>) -> Result<T> {
    let interrupted = || terminated.load(Ordering::Relaxed);
    let outcome = if interrupted() { Err(Error::Interrupted) } else { attempt() };
    if interrupted() { Err(Error::Interrupted) } else { outcome }
}

/// Definition of a benchmark.
pub(crate) struct Definition<'a, C> {
    pub(crate) benchmark: &'static str,
    pub(crate) about: String,
    pub(crate) axis: &'static str,
    /// Unit of the places.
    pub(crate) unit: &'static str,
    /// Names of the places if they are not numbers.
    pub(crate) labels: Vec<String>,
    pub(crate) contestants: &'a [C],
    pub(crate) places: &'a [u32],
    pub(crate) rounds: u32,
    /// Duration of a measurement in seconds.
    pub(crate) seconds: f64,
}

/// One contestant at one place on the axis, with its measurement.
pub(crate) struct Point<'a> {
    pub(crate) contestant: String,
    pub(crate) place: f64,
    pub(crate) measure: Box<dyn Fn() -> Result<(Figures, String)> + 'a>,
}

/// Reports the progress before each measurement; an error ends the benchmark.
pub(crate) type Report<'a> = dyn FnMut(&Progress<'_>) -> Result<()> + 'a;

/// Measures each contestant at each place with `point`, round after round. Contestants that fail
/// `probe` are skipped. After an interruption, returns the results so far.
pub(crate) fn run<C: Copy + Display>(
    definition: &Definition<'_, C>,
    machine: Machine,
    progress: &mut Report<'_>,
    probe: impl Fn(C) -> Result<()>,
    point: impl Fn(C, u32) -> Result<(Figures, String)>,
) -> Result<Results> {
    let mut results = Results {
        benchmark: definition.benchmark.into(),
        about: definition.about.clone(),
        axis: definition.axis.into(),
        labels: definition.labels.clone(),
        machine,
        rounds: definition.rounds,
        seconds: definition.seconds,
        ..Results::default()
    };
    let measurable = self::measurable(definition.contestants, probe, &mut results.skipped)?;
    let point = &point;
    let at = |place: u32, contestant: C| Point {
        contestant: contestant.to_string(),
        place: place.into(),
        measure: Box::new(move || point(contestant, place)),
    };
    let at_place = |&place| measurable.iter().map(move |&contestant| at(place, contestant));
    let points: Vec<_> = definition.places.iter().flat_map(at_place).collect();
    measure(&mut results, &points, definition.unit, progress)?;
    Ok(results)
}

/// Measures all points in each round. After an interruption, the results stay incomplete.
pub(crate) fn measure(
    results: &mut Results,
    points: &[Point<'_>],
    unit: &str,
    progress: &mut Report<'_>,
) -> Result<()> {
    let all = points.len() * results.rounds as usize;
    for (done, point) in (0..results.rounds).flat_map(|_| points).enumerate() {
        let next = format!("{}, {} {unit}", point.contestant, results.place_name(point.place));
        progress(&Progress { results, done, all, next })?;
        match (point.measure)() {
            Err(Error::Interrupted) => return Ok(()),
            outcome => results.record(&point.contestant, point.place, outcome),
        }
    }
    results.complete = true;
    Ok(())
}

/// Returns the contestants that can be measured here; adds the others to `skipped`.
pub(crate) fn measurable<C: Copy + Display>(
    contestants: &[C],
    probe: impl Fn(C) -> Result<()>,
    skipped: &mut Vec<Skipped>,
) -> Result<Vec<C>> {
    let mut measurable = Vec::new();
    for &contestant in contestants {
        match probe(contestant) {
            Ok(()) => measurable.push(contestant),
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => {
                skipped.push(Skipped { contestant: contestant.to_string(), reason: error.reason() });
            }
        }
    }
    match (measurable.is_empty(), skipped.first()) {
        (true, Some(Skipped { contestant, reason })) => {
            Err(Error::Invalid(format!("nothing can be measured here; {contestant}: {reason}")))
        }
        _ => Ok(measurable),
    }
}
