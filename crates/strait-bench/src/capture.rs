//! D3's measurement: the highest rate of each capture path, by packet size.
//!
//! For each contestant and size, searches for the highest rate without loss. A run at that rate
//! measures the CPU cost and the delay of a packet (RFC 2544 sections 26.1 and 26.2).

use crate::contestant::Contestant;
use crate::error::Result;
use crate::machine::Machine;
use crate::measure::{Load, Outcome, Rig};
use crate::results::{Figures, Results};
use crate::rounds::{self, Definition, Progress};
use crate::search::{Attempt, Found, Limits, search};

/// Ethernet frame sizes of RFC 2544 section 9.1, including the frame check sequence.
pub const SIZES: [u32; 6] = [64, 128, 256, 512, 1024, 1518];

/// The delay of one in this many packets is measured: reading the clock for every packet would cost
/// as much as the path. A prime number, so that the position of the measured packet in its batch
/// varies.
const DELAY_OF_EACH: u64 = 31;
/// Factor to the next rate after a rate was not confirmed, and limit of such attempts.
const STEP_DOWN: f64 = 0.9;
const CONFIRMATIONS_MAX: u32 = 12;
/// A percentile is reported only if at least this many delays exceed it: with fewer its value is
/// chance.
const DELAYS_BEYOND_MIN: f64 = 10.0;

/// Capture benchmark: contestants, frame sizes and rounds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Contestants to measure.
    pub contestants: Vec<Contestant>,
    /// Frame sizes in bytes, including the frame check sequence.
    pub sizes: Vec<u32>,
    /// Number of rounds.
    pub rounds: u32,
    /// Lowest rate and resolution of the search.
    pub limits: Limits,
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
        benchmark: "capture",
        about: about(rig, plan),
        axis: "frame size, bytes",
        unit: "bytes",
        labels: Vec::new(),
        contestants: &plan.contestants,
        places: &plan.sizes,
        rounds: plan.rounds,
        seconds: rig.seconds,
    };
    let probe = |contestant| rig.probe(contestant);
    rounds::run(&definition, machine, progress, probe, |contestant, size| {
        point(rig, contestant, size, &plan.limits)
    })
}

fn about(rig: &Rig<'_>, plan: &Plan) -> String {
    let copy = if rig.stage { "copies each packet once into a staging ring" } else { "looks at no packet" };
    let wire = if rig.wires.are_private() { "a private veth pair" } else { "two interfaces" };
    format!(
        "Highest rate without loss, and with 0.1 % of loss, by bisection to {:.0} % on {wire}, in packets/s; UDP over \
         IPv4 in 1,024 flows by strait generate --path {}. The rate without loss is that of a run of its own, which lost \
         nothing; CPU, cycles and delay are of that run. Each receiver is a program that {copy}; tcpdump, netsniff-ng and testpmd \
         only count, without a warm-up. CPU is the receiver's own: what the kernel does for it on the generator's CPU is not in it.",
        plan.limits.resolution * 100.0,
        rig.generator,
    )
}

fn point(
    rig: &Rig<'_>,
    contestant: Contestant,
    size_bytes: u32,
    limits: &Limits,
) -> Result<(Figures, String)> {
    let load = Load { size_bytes, rate_pps: None, seconds: rig.seconds, delay_of_each: 0 };
    let mut found = search(limits, |rate_pps| {
        let outcome = rig.measure(contestant, &Load { rate_pps, ..load })?;
        Ok(Attempt { offered_pps: outcome.offered_pps, loss: outcome.loss() })
    })?;
    let confirmed = confirm(&mut found, |rate_pps| {
        rig.measure(contestant, &Load { rate_pps, delay_of_each: DELAY_OF_EACH, ..load })
    })?;
    let mut figures = rates(&found);
    figures.extend(confirmed.iter().flat_map(costs));
    Ok((figures, confirmed.map(|outcome| outcome.got).unwrap_or_default()))
}

/// Measures at the rate that the search found. After a loss, tries lower rates until one has no
/// loss, and stores that rate in `found`; returns None if no attempt succeeds. A separate run
/// avoids reporting the luckiest of many attempts.
fn confirm(
    found: &mut Found,
    mut measure: impl FnMut(Option<f64>) -> Result<Outcome>,
) -> Result<Option<Outcome>> {
    let mut rate_pps = std::mem::take(&mut found.lossfree_pps);
    let attempts = if rate_pps > 0.0 { CONFIRMATIONS_MAX } else { 0 };
    for _ in 0..attempts {
        let outcome = measure((!found.generator_bound).then_some(rate_pps))?;
        found.tries += 1;
        if outcome.loss() <= 0.0 {
            found.lossfree_pps = outcome.offered_pps;
            found.tolerated_pps = found.tolerated_pps.max(outcome.offered_pps);
            return Ok(Some(outcome));
        }
        found.generator_bound = false;
        rate_pps *= STEP_DOWN;
    }
    Ok(None)
}

fn rates(found: &Found) -> Figures {
    let named = [
        ("lossfree_pps", found.lossfree_pps),
        ("tolerated_pps", found.tolerated_pps),
        ("generator_bound", f64::from(u8::from(found.generator_bound))),
        ("tries", f64::from(found.tries)),
    ];
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// CPU cost and delays of a packet.
pub(crate) fn costs(outcome: &Outcome) -> Figures {
    let per_packet = 1.0 / outcome.delivered.max(1) as f64;
    let delay = &outcome.delay;
    let mut named = vec![
        ("loss_percent", outcome.loss() * 100.0),
        ("cpu_s_per_million", outcome.cost.cpu.as_secs_f64() * 1e6 * per_packet),
    ];
    named.extend(outcome.cost.cycles.map(|cycles| ("cycles_per_packet", cycles as f64 * per_packet)));
    if delay.count > 0 {
        named.extend([("delays", delay.count as f64), ("max_us", delay.max_ns as f64 / 1000.0)]);
    }
    for (name, fraction, ns) in
        [("p50_us", 0.5, delay.p50_ns), ("p99_us", 0.99, delay.p99_ns), ("p99.9_us", 0.999, delay.p999_ns)]
    {
        if delay.count as f64 * (1.0 - fraction) >= DELAYS_BEYOND_MIN - 0.5 {
            named.push((name, ns as f64 / 1000.0));
        }
    }
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::child::Cost;
    use crate::receiver::Delays;

    fn outcome(offered_pps: f64, lost: u64) -> Outcome {
        let cost = Cost { cpu: Duration::from_secs(1), cycles: None };
        let (delay, got) = (Delays::default(), String::new());
        let generator_cpu = Duration::ZERO;
        Outcome {
            offered: 1_000_000,
            offered_pps,
            delivered: 1_000_000 - lost,
            cost,
            generator_cpu,
            delay,
            got,
        }
    }

    /// Result of confirming a loss-free rate of 1 million/s when the receiver takes `limit` and the
    /// generator reaches 4 million/s.
    fn confirmed(limit: f64, generator_bound: bool) -> Found {
        let mut found = Found { lossfree_pps: 1e6, tolerated_pps: 1e6, generator_bound, tries: 9 };
        let outcome = confirm(&mut found, |rate| {
            let rate = rate.unwrap_or(4e6);
            Ok(outcome(rate, u64::from(rate > limit)))
        });
        assert_eq!(outcome.unwrap().is_some(), found.lossfree_pps > 0.0);
        found
    }

    #[test]
    fn rate_that_loses_in_confirmation_is_lowered() {
        let rates =
            |found: Found| (found.lossfree_pps, found.tolerated_pps, found.generator_bound, found.tries);
        assert_eq!(rates(confirmed(2e6, false)), (1e6, 1e6, false, 10));
        assert_eq!(rates(confirmed(0.85e6, false)), (0.81e6, 1e6, false, 12));
        assert_eq!(rates(confirmed(1.0, false)), (0.0, 1e6, false, 9 + CONFIRMATIONS_MAX));
        assert_eq!(rates(confirmed(5e6, true)), (4e6, 4e6, true, 10));
        assert_eq!(rates(confirmed(2e6, true)), (0.9e6, 1e6, false, 11));
    }

    #[test]
    fn percentile_of_too_few_delays_is_omitted() {
        let of = |count| {
            let delay = Delays { count, p50_ns: 1, p99_ns: 2, p999_ns: 3, max_ns: 4 };
            costs(&Outcome { delay, ..outcome(1e6, 0) })
        };
        let has = |figures: &Figures, name: &str| figures.contains_key(name);
        let few = of(100);
        assert!(has(&few, "p50_us") && has(&few, "max_us") && !has(&few, "p99_us"));
        let more = of(1000);
        assert!(has(&more, "p99_us") && !has(&more, "p99.9_us"));
        assert!(has(&of(10_000), "p99.9_us"));
        assert!(!has(&of(0), "max_us"));
    }
}
