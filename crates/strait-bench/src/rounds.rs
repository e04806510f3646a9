//! Rounds: every contestant once, then every contestant again, so that a disturbance hits all alike and shows as spread.
//!
//! Both benchmarks run so; they say what to measure at a place on the axis.

use crate::contestant::Contestant;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::measure::{Load, Rig};
use crate::results::{Figures, Results, Skipped};

/// Rate and time of the run that shows whether this machine has a contestant, and the size of its frames.
const PROBE: (f64, f64) = (1000.0, 0.05);
const PROBE_BYTES: u32 = 64;

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

/// What a benchmark measures.
pub(crate) struct Asked<'a> {
    pub(crate) benchmark: &'static str,
    pub(crate) about: String,
    pub(crate) axis: &'static str,
    /// Of a place on the axis.
    pub(crate) unit: &'static str,
    pub(crate) contestants: &'a [Contestant],
    pub(crate) places: &'a [u32],
    pub(crate) rounds: u32,
}

/// Has `point` measure each contestant at each place, round after round. After an interruption the results are those so
/// far.
pub(crate) fn run(
    rig: &Rig<'_>,
    asked: &Asked<'_>,
    machine: Machine,
    progress: &mut dyn FnMut(&Progress<'_>) -> Result<()>,
    point: impl Fn(Contestant, u32) -> Result<(Figures, String)>,
) -> Result<Results> {
    let mut results = Results {
        benchmark: asked.benchmark.into(),
        about: asked.about.clone(),
        axis: asked.axis.into(),
        machine,
        complete: false,
        rounds: asked.rounds,
        seconds: rig.seconds,
        series: Vec::new(),
        skipped: Vec::new(),
    };
    let there = present(rig, asked.contestants, &mut results.skipped)?;
    let at_place = |&place| there.iter().map(move |&contestant| (place, contestant));
    let points: Vec<_> = asked.places.iter().flat_map(at_place).collect();
    let all = points.len() * asked.rounds as usize;
    for (done, &(place, contestant)) in (0..asked.rounds).flat_map(|_| &points).enumerate() {
        let next = format!("{contestant}, {place} {}", asked.unit);
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
fn present(rig: &Rig<'_>, contestants: &[Contestant], skipped: &mut Vec<Skipped>) -> Result<Vec<Contestant>> {
    let (rate, seconds) = PROBE;
    let load = Load { size_bytes: PROBE_BYTES, rate_pps: Some(rate), seconds, delay_of_each: 0 };
    let mut there = Vec::new();
    for &contestant in contestants {
        match rig.measure(contestant, &load) {
            Ok(_) => there.push(contestant),
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
