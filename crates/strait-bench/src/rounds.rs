//! Rounds: every contestant once, then every contestant again, so that a disturbance hits all alike and shows as spread.
//!
//! All benchmarks run so; they say what to measure at a place on the axis.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::results::{Figures, Results, Skipped};

/// How far a benchmark is, for whoever waits.
#[derive(Debug)]
pub struct Progress<'a> {
    /// What was measured so far.
    pub results: &'a Results,
    /// Measurements made.
    pub done: usize,
    /// Measurements to make.
    pub all: usize,
    /// The one that comes next.
    pub next: String,
}

/// Makes a try. What goes wrong after a signal is the signal's: the programs that are measured get it too.
pub(crate) fn attempt<T>(terminated: &AtomicBool, attempt: impl FnOnce() -> Result<T>) -> Result<T> {
    let interrupted = || terminated.load(Ordering::Relaxed);
    let outcome = if interrupted() { Err(Error::Interrupted) } else { attempt() };
    if interrupted() { Err(Error::Interrupted) } else { outcome }
}

/// What a benchmark measures.
pub(crate) struct Asked<'a, C> {
    pub(crate) benchmark: &'static str,
    pub(crate) about: String,
    pub(crate) axis: &'static str,
    /// Of a place on the axis.
    pub(crate) unit: &'static str,
    /// Names of the places, where they are no numbers.
    pub(crate) labels: Vec<String>,
    pub(crate) contestants: &'a [C],
    pub(crate) places: &'a [u32],
    pub(crate) rounds: u32,
    /// Seconds that each try lasts.
    pub(crate) seconds: f64,
}

/// Has `point` measure each contestant at each place, round after round; those on which `probe` fails are left out. After an
/// interruption the results are those so far.
pub(crate) fn run<C: Copy + Display>(
    asked: &Asked<'_, C>,
    machine: Machine,
    progress: &mut dyn FnMut(&Progress<'_>) -> Result<()>,
    probe: impl Fn(C) -> Result<()>,
    point: impl Fn(C, u32) -> Result<(Figures, String)>,
) -> Result<Results> {
    let mut results = Results {
        benchmark: asked.benchmark.into(),
        about: asked.about.clone(),
        axis: asked.axis.into(),
        labels: asked.labels.clone(),
        machine,
        complete: false,
        rounds: asked.rounds,
        seconds: asked.seconds,
        series: Vec::new(),
        skipped: Vec::new(),
    };
    let there = present(asked.contestants, probe, &mut results.skipped)?;
    let at_place = |&place| there.iter().map(move |&contestant| (place, contestant));
    let points: Vec<_> = asked.places.iter().flat_map(at_place).collect();
    let all = points.len() * asked.rounds as usize;
    for (done, &(place, contestant)) in (0..asked.rounds).flat_map(|_| &points).enumerate() {
        let next = format!("{contestant}, {} {}", results.place_name(place.into()), asked.unit);
        progress(&Progress { results: &results, done, all, next })?;
        match point(contestant, place) {
            Err(Error::Interrupted) => return Ok(results),
            outcome => results.record(&contestant.to_string(), place.into(), outcome),
        }
    }
    results.complete = true;
    Ok(results)
}

/// The contestants that can be measured here; why not is noted of the others.
fn present<C: Copy + Display>(
    contestants: &[C],
    probe: impl Fn(C) -> Result<()>,
    skipped: &mut Vec<Skipped>,
) -> Result<Vec<C>> {
    let mut there = Vec::new();
    for &contestant in contestants {
        match probe(contestant) {
            Ok(()) => there.push(contestant),
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => {
                skipped.push(Skipped { contestant: contestant.to_string(), reason: error.reason() });
            }
        }
    }
    match (there.is_empty(), skipped.first()) {
        (true, Some(Skipped { contestant, reason })) => {
            Err(Error::Void(format!("nothing can be measured here; {contestant}: {reason}")))
        }
        _ => Ok(there),
    }
}
