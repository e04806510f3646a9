//! Cost of the default wait policy at full rate, compared with the cheapest policy of the same
//! path.

use super::capture;
use super::context::{Context, Reporter, Subject};
use super::measure::plain_wire;
use super::programs::{self, PATHS, WAITS};
use crate::claim::{Bound, Claim};
use crate::error::Result;
use crate::results::Results;

const ABOUT: &str = "CPU of each path under each wait policy, 60-byte frames by sendmmsg at full rate. Generator on \
    CPU 0, receiver on CPU 1.";

/// Measures and claims.
pub(super) fn run(context: &Context<'_>, reporter: &mut Reporter<'_>) -> Result<()> {
    let subject = Subject { benchmark: "claims balanced", about: ABOUT, axis: "load", labels: &["sendmmsg"] };
    let wire = plain_wire()?;
    let receivers = PATHS.iter().flat_map(|path| WAITS.map(|wait| programs::strait(context, path, wait)));
    let point = |receiver| capture::at_full_rate(context, ("sendmmsg", 0.0), &wire, receiver);
    let claims = |results: &Results| PATHS.iter().map(|path| claim(results, path)).collect();
    context.run(&subject, context.rounds, receivers.map(point).collect(), claims, reporter)
}

fn claim(results: &Results, path: &str) -> Claim {
    let [balanced, latency, busy] = ["balanced", "latency", "busy"].map(|wait| format!("{path} {wait}"));
    let keys = [&balanced, &latency, &busy].map(|name| ((name.as_str(), 0.0), "cpu_s_per_million"));
    let ratios = results.paired(&keys, |cpu| {
        let cheapest = cpu[1].min(cpu[2]);
        (cheapest > 0.0).then(|| cpu[0] / cheapest)
    });
    let claim = format!("Balanced on {path}, full rate: CPU, to the cheaper of Latency and Busy");
    Claim::of_values(claim, &ratios, "x", Bound::AtMost(1.5))
}
