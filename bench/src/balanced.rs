//! Cost of the default wait policy at full rate, compared with the cheapest policy of the same
//! path.

use crate::capture;
use crate::claim::{Bound, Claim};
use crate::contestants::{self, PATHS, WAITS};
use crate::error::Result;
use crate::measure;
use crate::results::Results;
use crate::run::Context;
use crate::table;

const ABOUT: &str = "CPU of each path under each wait policy, 60-byte frames by sendmmsg at full rate. Generator on \
    CPU 0, receiver on CPU 1.";

const FIGURE: &str = "cpu_s_per_million";

/// Measures, prints the tables and returns the results with their claims.
pub(crate) fn run(context: &Context) -> Result<Results> {
    let mut results = context.results("balanced", ABOUT);
    let wire = measure::plain_wire()?;
    let receivers =
        PATHS.iter().flat_map(|path| WAITS.map(|wait| contestants::strait(&context.tools, path, wait)));
    let contests: Vec<_> =
        receivers.map(|receiver| capture::contest(context, "sendmmsg", &wire, receiver)).collect();
    context.run(&mut results, &contests, context.rounds)?;
    results.claims = PATHS.iter().map(|path| claim(&results, path)).collect();
    for path in PATHS {
        print!("{}", table::of_series(&results, &format!("sendmmsg/{path} "), "balanced", &capture::COLUMNS));
    }
    Ok(results)
}

fn claim(results: &Results, path: &str) -> Claim {
    let name = |wait: &str| format!("sendmmsg/{path} {wait}");
    let (balanced, latency, busy) = (name("balanced"), name("latency"), name("busy"));
    let keys = [(balanced.as_str(), FIGURE), (latency.as_str(), FIGURE), (busy.as_str(), FIGURE)];
    let ratios = results.paired(&keys, |cpu| {
        let cheapest = cpu[1].min(cpu[2]);
        (cheapest > 0.0).then(|| cpu[0] / cheapest)
    });
    let claim = format!("Balanced on {path}, full rate: CPU, to the cheaper of Latency and Busy");
    Claim::of_values(claim, &ratios, "x", Bound::AtMost(1.5))
}
