//! D3's measurement: the rate that each way to capture takes, against the size of packets.
//!
//! For each contestant and size it looks for the highest rate without loss, and measures at that rate what a packet
//! costs and how late it is (RFC 2544 sections 26.1 and 26.2).

use crate::contestant::Contestant;
use crate::error::Result;
use crate::machine::Machine;
use crate::measure::{Load, Outcome, Rig};
use crate::results::{Figures, Results};
use crate::rounds::{self, Asked, Progress};
use crate::search::{Found, Limits, Try, search};

/// Ethernet frames' sizes of RFC 2544 section 9.1, check sequence included.
pub const SIZES: [u32; 6] = [64, 128, 256, 512, 1024, 1518];

/// How long a contestant runs before it is measured.
const WARM_UP_S: f64 = 0.2;
/// Of each so many packets one's delay is measured: reading the clock for each would cost as much as the path.
const DELAY_OF_EACH: u64 = 32;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Who.
    pub contestants: Vec<Contestant>,
    /// Bytes of a frame, its check sequence included.
    pub sizes: Vec<u32>,
    /// How often.
    pub rounds: u32,
    /// How closely.
    pub limits: Limits,
}

/// Measures. After an interruption the results are those so far.
///
/// # Errors
/// None of the contestants can be measured here.
pub fn run(
    rig: &Rig<'_>,
    plan: &Plan,
    machine: Machine,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Results> {
    let asked = Asked {
        benchmark: "capture",
        about: about(rig, plan),
        axis: "frame size, bytes",
        unit: "bytes",
        contestants: &plan.contestants,
        places: &plan.sizes,
        rounds: plan.rounds,
    };
    rounds::run(rig, &asked, machine, progress, |contestant, size| point(rig, contestant, size, &plan.limits))
}

fn about(rig: &Rig<'_>, plan: &Plan) -> String {
    let copy = if rig.stage { "copies each packet once into a staging ring" } else { "looks at no packet" };
    let wire = if rig.wire.is_private() { "a private veth pair" } else { "two interfaces" };
    format!(
        "Highest rate without loss, and with 0.1 % of loss, by bisection to {:.0} % on {wire}, in packets/s; UDP over \
         IPv4 in 1,024 flows by strait generate --path {}. Each receiver is a program that {copy}. CPU, cycles and delay \
         are those at the loss-free rate.",
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
    rig.measure(contestant, &Load { seconds: WARM_UP_S.min(rig.seconds), ..load })?;
    let found = search(limits, |rate_pps| {
        let outcome = rig.measure(contestant, &Load { rate_pps, ..load })?;
        Ok(Try { offered_pps: outcome.offered_pps, loss: outcome.loss() })
    })?;
    let mut figures = rates(&found);
    let mut got = String::new();
    if found.lossfree_pps > 0.0 {
        let rate_pps = (!found.generator_bound).then_some(found.lossfree_pps);
        let outcome = rig.measure(contestant, &Load { rate_pps, delay_of_each: DELAY_OF_EACH, ..load })?;
        figures.extend(costs(&outcome));
        got = outcome.got;
    }
    Ok((figures, got))
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

/// What a packet cost and how late it was.
pub(crate) fn costs(outcome: &Outcome) -> Figures {
    let per_packet = 1.0 / outcome.delivered.max(1) as f64;
    let delay = &outcome.delay;
    let mut named = vec![
        ("loss_percent", outcome.loss() * 100.0),
        ("cpu_s_per_million", outcome.cost.cpu.as_secs_f64() * 1e6 * per_packet),
    ];
    named.extend(outcome.cost.cycles.map(|cycles| ("cycles_per_packet", cycles as f64 * per_packet)));
    if delay.count > 0 {
        let us = |ns: u64| ns as f64 / 1000.0;
        named.extend([
            ("p50_us", us(delay.p50_ns)),
            ("p99_us", us(delay.p99_ns)),
            ("p99.9_us", us(delay.p999_ns)),
            ("max_us", us(delay.max_ns)),
        ]);
    }
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
