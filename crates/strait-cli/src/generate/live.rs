//! `strait generate --path live`: frames made inside the kernel, in calls that are short enough to
//! end in time.
//!
//! The kernel looks for a signal between its batches, but at no clock: how many frames a call asks
//! for follows from how long the calls before it took.

use std::time::{Duration, Instant};

use strait_capture::LiveGenerator;
use strait_ledger as ledger;
use strait_packet::traffic::Traffic;

use super::Limits;
use crate::Error;
use crate::parse::Rate;

/// Runs of the program in the first call: a slow driver takes some tens of milliseconds for them.
const RUNS_FIRST: u32 = 1 << 13;
/// The fewest, a batch of the kernel's.
const RUNS_MIN: u32 = 64;
/// The most, whatever the measured rate is.
const RUNS_MAX: u32 = 1 << 26;
/// A call asks for at most this many times the runs of the one before: one call that was quick by
/// chance must not make the next one long.
const GROWTH_MAX: u32 = 8;
/// How long a call is meant to take at most. Each costs the kernel some 20 ms beside its frames, in
/// which none leaves, and the program catches up by a sixteenth of the time: with calls of 50 ms
/// half of a pace is missed. The last ones are as short as what is left of the duration, and a
/// signal ends a call at once.
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

/// Runs to ask for where the last call took `took` for `runs`, and `left` is left of the duration.
fn next_runs(runs: u32, took: Duration, left: Duration) -> u32 {
    let per_second = f64::from(runs) / took.as_secs_f64().max(1e-9);
    let fitting = per_second * left.min(CALL).as_secs_f64();
    (fitting as u32).clamp(RUNS_MIN, runs.saturating_mul(GROWTH_MAX).min(RUNS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time that passes in a kernel that makes `per_second` frames and takes `setup` for each call,
    /// until the end of `duration`; and the longest call.
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
    fn live_frames_end_within_a_call_of_their_duration_at_any_rate() {
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
    fn a_call_that_was_quick_by_chance_does_not_make_the_next_one_long() {
        assert_eq!(next_runs(1 << 10, Duration::ZERO, Duration::MAX), 1 << 13);
        assert_eq!(next_runs(RUNS_MAX, Duration::ZERO, Duration::MAX), RUNS_MAX);
        assert_eq!(next_runs(1 << 10, Duration::from_secs(9), Duration::ZERO), RUNS_MIN);
    }
}
