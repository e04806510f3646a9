//! `strait generate --path live`: frames made inside the kernel, in runs that are long enough to cost little and short
//! enough to end in time.

use std::time::{Duration, Instant};

use strait_capture::LiveGenerator;
use strait_ledger as ledger;
use strait_packet::traffic::Traffic;

use super::Limits;
use crate::Error;
use crate::parse::Rate;

/// Runs of the program in one go: about a second of frames at the highest rates, less where most find none due.
const RUNS_MAX: u32 = 1 << 22;
/// The fewest: what a program that finds nothing due does in some milliseconds.
const RUNS_MIN: u32 = 1 << 16;
/// Runs that a second has room for, at most.
const RUNS_PER_SECOND: f64 = 4e6;

pub(super) fn run(
    interface: &str,
    traffic: &Traffic,
    rate: Rate,
    limits: &Limits<'_>,
) -> Result<ledger::Send, Error> {
    let mut generator = LiveGenerator::open(interface, traffic, rate.pps(), limits.count)?;
    let started = Instant::now();
    let mut sent = 0;
    while !limits.reached(sent, started) {
        sent = generator.run(runs_in(limits.duration.saturating_sub(started.elapsed())))?;
    }
    let elapsed = started.elapsed();
    let mut account = generator.finish()?;
    account.set_elapsed(elapsed);
    Ok(account)
}

/// How many runs to ask for when `left` is left.
fn runs_in(left: Duration) -> u32 {
    let runs = left.as_secs_f64() * RUNS_PER_SECOND;
    (runs as u32).clamp(RUNS_MIN, RUNS_MAX)
}
