//! Delay from the generator's timestamp to the program on a quiet line, on which TPACKET_V3's timer
//! has an effect.

use super::capture::SIZE;
use super::context::{Context, Reporter, Subject, of_ratio, point};
use super::measure::{self, plain_wire};
use super::programs::{self, PATHS, STOCK_IMMEDIATE, WAITS};
use crate::claim::{Bound, Claim};
use crate::error::Result;
use crate::results::Results;

const ABOUT: &str = "Delay of 60-byte frames at 1,000 packets/s from the time that the generator stamped to the time \
    that the program reads the frame. Generator on CPU 0, receiver on CPU 1; CPU seconds per second of the run.";

/// Rate in packets/s.
const RATE: f64 = 1000.0;

/// Measures and claims.
pub(super) fn run(context: &Context<'_>, reporter: &mut Reporter<'_>) -> Result<()> {
    let subject = Subject { benchmark: "claims latency", about: ABOUT, axis: "rate, packets/s", labels: &[] };
    let wire = plain_wire()?;
    let generator = programs::generate(context, "sendmmsg", &RATE.to_string(), SIZE, context.seconds);
    let mut receivers = vec![programs::stock_delays(context, true), programs::stock_delays(context, false)];
    for path in PATHS {
        receivers.extend(WAITS.map(|wait| programs::strait_delays(context, path, wait)));
    }
    let points = receivers.iter().map(|receiver| {
        point(receiver.name.clone(), RATE, || {
            measure::point(&context.launcher, &wire, receiver, &generator, context.seconds)
        })
    });
    let claims = |results: &Results| PATHS.iter().map(|path| claim(results, path)).collect();
    context.run(&subject, context.rounds, points.collect(), claims, reporter)
}

fn claim(results: &Results, path: &str) -> Claim {
    let text = format!("Balanced on {path}, 1,000 packets/s: p99 delay, to stock immediate mode");
    let balanced = format!("{path} balanced");
    let keys = ((balanced.as_str(), RATE), (STOCK_IMMEDIATE, RATE));
    of_ratio(text, results, "p99_us", keys, Bound::AtMost(1.2))
}
