//! Highest rate of live frames that a receiver takes without loss.
//!
//! Bisects between 0 and a rate with loss. A rate counts as free of loss if one of two tries is,
//! because the machine itself may have been disturbed. The number of steps is bounded.

use lab::Wire;

use crate::capture::SIZE;
use crate::claim::{Bound, Claim};
use crate::contestants::{self, Receiver, STOCK};
use crate::error::{Error, Result};
use crate::measure;
use crate::results::{Figures, Results};
use crate::run::{Contest, Context};
use crate::table::{self, Column};

const ABOUT: &str = "Highest rate of XDP live frames of 60 bytes that a receiver takes without a loss, found by \
    bisection: 8 steps, each tried twice at most. Generator on CPU 0, receiver on CPU 1.";

/// Steps after the one at full rate. Each halves the interval on a logarithmic scale: to 1.5 %
/// here.
const STEPS: usize = 8;
/// Lowest rate: a receiver that loses packets here has no loss-free rate.
const RATE_PPS_MIN: f64 = 50_000.0;
/// A rate is not tested if the generator reaches less than this share of it.
const RATE_SHARE_MIN: f64 = 0.9;
/// Fewer rounds than elsewhere, because a search consists of many points.
const ROUNDS_MAX: usize = 3;

const COLUMNS: [Column; 2] = [
    Column { title: "loss-free M/s", figure: "lossfree_pps", scale: 1e-6, decimals: 3, ratio: true },
    Column { title: "tries", figure: "tries", scale: 1.0, decimals: 0, ratio: false },
];

/// Measures, prints the table and returns the results with their claims.
pub(crate) fn run(context: &Context) -> Result<Results> {
    let mut results = context.results("lossfree", ABOUT);
    let wire = measure::napi_wire()?;
    let tools = &context.tools;
    let ours = ["v3", "xdp"].map(|path| contestants::strait(tools, path, "balanced"));
    let receivers = [contestants::stock(tools, false)].into_iter().chain(ours);
    let contests: Vec<_> = receivers.map(|receiver| contest(context, &wire, receiver)).collect();
    context.run(&mut results, &contests, context.rounds.min(ROUNDS_MAX))?;
    results.claims = vec![Claim::of_ratio(
        "xdp, live: loss-free rate, to stock libpcap",
        &results,
        "lossfree_pps",
        ("xdp balanced", STOCK),
        Bound::AtLeast(2.8),
    )];
    print!("{}", table::of_series(&results, "", STOCK, &COLUMNS));
    Ok(results)
}

fn contest<'a>(context: &'a Context, wire: &'a Wire, receiver: Receiver) -> Contest<'a> {
    Contest::new(receiver.name.clone(), move || {
        let mut tries = 0.0;
        let best = search(|rate| {
            tries += 1.0;
            attempt(context, wire, &receiver, rate)
        })?;
        Ok(Figures::from([("lossfree_pps", best), ("tries", tries)]))
    })
}

/// One try at a rate, or at full rate.
#[derive(Clone, Copy, Debug)]
struct Try {
    /// Achieved rate of the generator, in packets/s.
    offered_pps: f64,
    lost: bool,
}

fn attempt(context: &Context, wire: &Wire, receiver: &Receiver, rate: Option<f64>) -> Result<Try> {
    let text = rate.map_or("max".to_owned(), |rate| format!("{rate:.0}"));
    let generator = contestants::generate(&context.tools, "live", &text, SIZE, context.seconds);
    let figures = measure::point(&context.tools, wire, receiver, &generator, context.seconds)?;
    let offered_pps = figures["offered_pps"];
    if rate.is_some_and(|rate| offered_pps < rate * RATE_SHARE_MIN) {
        return Err(Error::Void(format!("the generator reached {offered_pps:.0} of {text} packets/s")));
    }
    Ok(Try { offered_pps, lost: figures["lost_packets"] > 0.0 })
}

/// Returns the highest achieved rate at which `attempt` lost nothing; 0 if there is none.
fn search(mut attempt: impl FnMut(Option<f64>) -> Result<Try>) -> Result<f64> {
    let mut twice = |rate| {
        let first = attempt(rate)?;
        if first.lost { attempt(rate) } else { Ok(first) }
    };
    let full = twice(None)?;
    if !full.lost {
        return Ok(full.offered_pps);
    }
    let (mut low, mut high, mut best) = (RATE_PPS_MIN, full.offered_pps.max(RATE_PPS_MIN), 0.0_f64);
    for _ in 0..STEPS {
        let rate = (low * high).sqrt();
        let tried = twice(Some(rate))?;
        if tried.lost {
            high = rate;
        } else {
            low = rate;
            best = best.max(tried.offered_pps);
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches with a generator that reaches `full` and a receiver that loses above `limit`.
    /// Returns the rate and the number of tries.
    fn found(full: f64, limit: f64) -> (f64, usize) {
        let mut tries = 0;
        let best = search(|rate| {
            tries += 1;
            let offered_pps = rate.unwrap_or(full).min(full);
            Ok(Try { offered_pps, lost: offered_pps > limit })
        });
        (best.unwrap(), tries)
    }

    #[test]
    fn search_approaches_the_limit_from_below_within_its_steps() {
        let (best, tries) = found(4_000_000.0, 1_300_000.0);
        assert!((1_275_000.0..=1_300_000.0).contains(&best), "{best}");
        assert!(tries <= 2 * (STEPS + 1));
    }

    #[test]
    fn receiver_without_loss_needs_one_try() {
        assert_eq!(found(4e6, 5e6), (4e6, 1));
    }

    #[test]
    fn receiver_that_always_loses_has_no_lossfree_rate() {
        assert!(found(4e6, 10.0).0.abs() < f64::EPSILON);
    }

    #[test]
    fn single_loss_is_retried() {
        let mut tries = 0;
        let best = search(|_| {
            tries += 1;
            Ok(Try { offered_pps: 1e6, lost: tries == 1 })
        });
        assert!((best.unwrap() - 1e6).abs() < 1.0);
    }
}
