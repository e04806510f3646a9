//! D2's experiment: delay of packets from the wire to the program, by path, wait policy and rate.
//!
//! The choice of ring and wait policy decides whether a packet is 10 us or a second late.

use crate::capture::costs;
use crate::contestant::Contestant;
use crate::error::Result;
use crate::machine::Machine;
use crate::measure::{Load, Rig};
use crate::results::{Figures, Results};
use crate::rounds::{self, Definition, Progress};

/// Rates in packets/s, from an idle line to a busy one.
pub const RATES: [u32; 4] = [100, 1_000, 10_000, 100_000];
/// Frame size in bytes.
const SIZE: u32 = 64;
/// Limit of measured delays in a second.
const DELAYS_PER_S: u32 = 20_000;
/// A measurement lasts until this many packets have come, so that more than one is beyond the 99th
/// percentile, but no longer than the second limit.
const PACKETS_MIN: f64 = 1000.0;
const SECONDS_MAX: f64 = 10.0;

/// Latency benchmark: contestants, rates and rounds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Contestants to measure.
    pub contestants: Vec<Contestant>,
    /// Rates in packets/s.
    pub rates: Vec<u32>,
    /// Number of rounds.
    pub rounds: u32,
}

/// Runs the benchmark. After an interruption, returns the results so far.
///
/// # Errors
/// None of the contestants can be measured here.
pub fn run(
    rig: &Rig<'_>,
    plan: &Plan,
    machine: Machine,
    progress: &mut dyn FnMut(&Progress<'_>) -> Result<()>,
) -> Result<Results> {
    let definition = Definition {
        benchmark: "latency",
        about: format!(
            "Delay of 64-byte frames from the generator's stamp to the program that reads them, by strait generate \
             --path {}; and the CPU time that a packet costs the receiver at that rate, without what the kernel does for it \
             on the generator's CPU. A percentile is given where ten packets at least were later.",
            rig.generator
        ),
        axis: "rate, packets/s",
        unit: "packets/s",
        labels: Vec::new(),
        contestants: &plan.contestants,
        places: &plan.rates,
        rounds: plan.rounds,
        seconds: rig.seconds,
    };
    let probe = |contestant| rig.probe(contestant);
    rounds::run(&definition, machine, progress, probe, |contestant, rate| point(rig, contestant, rate))
}

fn point(rig: &Rig<'_>, contestant: Contestant, rate: u32) -> Result<(Figures, String)> {
    let load = Load {
        size_bytes: SIZE,
        rate_pps: Some(rate.into()),
        seconds: rig.seconds.max((PACKETS_MIN / f64::from(rate)).min(SECONDS_MAX)),
        delay_of_each: u64::from(rate.div_ceil(DELAYS_PER_S)),
    };
    let outcome = rig.measure(contestant, &load)?;
    let mut figures = costs(&outcome);
    figures.insert("offered_pps".into(), outcome.offered_pps);
    Ok((figures, outcome.got))
}
