//! `strait generate --path live`: generates frames in the kernel, in system calls that are short
//! enough to end in time.
//!
//! Between its batches the kernel checks for a signal, but not for a deadline. So the number of
//! frames of a call follows from the duration of the previous call.

use std::time::{Duration, Instant};

use strait_capture::LiveGenerator;
use strait_ledger as ledger;
use strait_packet::traffic::Traffic;

use super::Limits;
use crate::Error;
use crate::parse::Rate;

/// Program runs in the first call. A slow driver needs some tens of milliseconds for them.
const RUNS_FIRST: u32 = 1 << 13;
/// Minimum runs per call: one batch of the kernel.
const RUNS_MIN: u32 = 64;
/// Maximum runs per call.
const RUNS_MAX: u32 = 1 << 26;
/// Maximum growth from call to call. One call that was fast by chance must not make the next one
/// long.
const GROWTH_MAX: u32 = 8;
/// Target duration of a call. The setup of a call takes the kernel some 20 ms, in which it sends no
/// frame, and the program catches up by a sixteenth of the time. Calls of 50 ms would therefore
/// miss half of a given rate. The last calls are limited to the remaining duration, and a signal
/// ends a call at once.
const CALL: Duration = Duration::from_millis(500);

pub(super) fn run(
    interface: &str,
    traffic: &Traffic,
    rate: Rate,
    limits: &Limits<'_>,
) -> Result<ledger::Send, Error> {
    let mut generator = LiveGenerator::open(interface, traffic, rate.pps(), limits.count)?;
    let started = Instant::now();
    let mut sent = 0;
    let mut runs = RUNS_FIRST;
    while !limits.reached(sent, started) {
        let called = Instant::now();
        sent = generator.run(runs)?;
        runs = next_runs(runs, called.elapsed(), limits.duration.saturating_sub(started.elapsed()));
    }
    let elapsed = started.elapsed();
    let mut account = generator.finish()?;
    account.set_elapsed(elapsed);
    Ok(account)
}

/// Returns the runs of the next call after a call of `runs` that took `took`, with `left` of the
/// duration remaining.
fn next_runs(runs: u32, took: Duration, left: Duration) -> u32 {
    let per_second = f64::from(runs) / took.as_secs_f64().max(1e-9);
    let fitting = per_second * left.min(CALL).as_secs_f64();
    (fitting as u32).clamp(RUNS_MIN, runs.saturating_mul(GROWTH_MAX).min(RUNS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a kernel that sends `per_second` frames and needs `setup` for each call, until the
    /// end of `duration`. Returns the time passed and the longest call.
    fn simulate(per_second: f64, setup: Duration, duration: Duration) -> (Duration, Duration) {
        let (mut passed, mut longest, mut runs) = (Duration::ZERO, Duration::ZERO, RUNS_FIRST);
        while passed < duration {
            let took = setup + Duration::from_secs_f64(f64::from(runs) / per_second);
            passed += took;
            longest = longest.max(took);
            runs = next_runs(runs, took, duration.saturating_sub(passed));
        }
        (passed, longest)
    }

    #[test]
    fn live_frames_end_within_one_call_of_their_duration() {
        let duration = Duration::from_secs(1);
        for per_second in [1e5, 4e5, 4e6, 4e7] {
            for setup_ms in [0, 1, 20] {
                let setup = Duration::from_millis(setup_ms);
                let (passed, longest) = simulate(per_second, setup, duration);
                assert!(passed < duration + CALL / 10 + setup, "{per_second} {setup_ms}: {passed:?}");
                assert!(longest <= CALL + CALL / 5 + setup, "{per_second} {setup_ms}: {longest:?}");
            }
        }
    }

    #[test]
    fn runs_per_call_grow_by_a_limited_factor() {
        assert_eq!(next_runs(1 << 10, Duration::ZERO, Duration::MAX), 1 << 13);
        assert_eq!(next_runs(RUNS_MAX, Duration::ZERO, Duration::MAX), RUNS_MAX);
        assert_eq!(next_runs(1 << 10, Duration::from_secs(9), Duration::ZERO), RUNS_MIN);
    }
}
