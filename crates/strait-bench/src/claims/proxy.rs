//! Claims on Strait's proxy, made on the results of [`crate::proxy`].

use super::context::{Context, GENERATOR_CPU, RECEIVER_CPU, Reporter};
use crate::claim::{Bound, Claim};
use crate::error::Result;
use crate::proxy::peer::CONTESTANTS;
use crate::proxy::work::{self, Experiment, FIGURES, Figure};
use crate::proxy::{self, DISK_MIB, MEMORY_MIB, Plan, Rig};
use crate::results::Results;

/// Seconds of a measurement. Starting the proxy and filling its cache takes longer.
const SECONDS: f64 = 1.0;
/// Limit of rounds.
const ROUNDS_MAX: u32 = 3;

const SQUID: [&str; 2] = ["squid", "squid-aufs"];
const ON_DISK: [&str; 4] = ["nginx", "squid-aufs", "varnish-file", "trafficserver"];
const PEERS: [&str; 8] =
    ["nginx", "squid", "squid-aufs", "varnish", "varnish-file", "haproxy", "haproxy-splice", "trafficserver"];

/// Figures, each with true if more is better.
const RATE: (&str, bool) = ("requests_per_s", true);
const CPU: (&str, bool) = ("cpu_s_per_gb", false);
const RESPONSE: (&str, bool) = ("p50_us", false);

/// Claim on one workload: name, peers, figure and bound.
type Row = (&'static str, &'static [&'static str], (&'static str, bool), Bound);

const CLAIMS: [Row; 14] = [
    ("hit-4k", &PEERS, RATE, Bound::AtLeast(1.2)),
    ("hit-16k", &PEERS, RATE, Bound::AtLeast(1.2)),
    ("hit-64k", &PEERS, RATE, Bound::AtLeast(1.05)),
    ("hit-1m", &PEERS, CPU, Bound::AtMost(1.0)),
    ("hit-10m", &PEERS, CPU, Bound::AtMost(1.0)),
    ("hit-700x1m", &PEERS, CPU, Bound::AtMost(0.9)),
    ("miss-13k", &PEERS, RATE, Bound::AtLeast(1.1)),
    ("miss-1m", &PEERS, CPU, Bound::AtMost(1.0)),
    ("store-13k", &ON_DISK, RATE, Bound::AtLeast(1.2)),
    ("store-1m", &ON_DISK, CPU, Bound::AtMost(0.5)),
    ("hit-64k", &SQUID, RATE, Bound::AtLeast(5.0)),
    ("miss-13k", &SQUID, RATE, Bound::AtLeast(5.0)),
    ("store-13k", &SQUID, RATE, Bound::AtLeast(5.0)),
    ("mix-13k", &SQUID, RATE, Bound::AtLeast(5.0)),
];

/// Measures all works, then D4's experiments, and claims.
pub(super) fn run(context: &Context<'_>, reporter: &mut Reporter<'_>) -> Result<()> {
    let cpus = (vec![GENERATOR_CPU], vec![RECEIVER_CPU]);
    let rig = Rig::create(context.launcher.clone(), cpus, &context.disk, SECONDS, context.terminated)?;
    let works = (Experiment::of(work::works()), None);
    let figures = FIGURES.map(|figure| (figure.experiment(), Some(figure)));
    for (experiment, figure) in [works].into_iter().chain(figures) {
        let all = CONTESTANTS.into_iter().map(|(_, contestant)| contestant);
        let plan = Plan {
            contestants: all.filter(|contestant| figure.is_none() || contestant.is_of_d4()).collect(),
            experiment,
            rounds: context.rounds.min(ROUNDS_MAX),
            disk_bytes: DISK_MIB << 20,
            memory_bytes: MEMORY_MIB << 20,
            verify_all: false,
        };
        let mut results = proxy::run(&rig, &plan, context.machine.clone(), reporter.progress)?;
        results.claims = match figure {
            None => CLAIMS.iter().map(|row| claim(&results, row)).collect(),
            Some(Figure::Mixed) => response_times(&results),
            Some(_) => Vec::new(),
        };
        let complete = results.complete;
        (reporter.finished)(results)?;
        if !complete {
            break;
        }
    }
    Ok(())
}

fn claim(works: &Results, (work, others, figure, bound): &Row) -> Claim {
    let place = works.labels.iter().position(|label| label == work);
    let found = place.and_then(|place| works.ratio_to_best("strait", others, *figure, place as f64));
    let to = match &others[..] {
        others if *others == SQUID => "Squid's",
        others if *others == ON_DISK => "that of the best peer that stores on disk",
        _ => "that of the best peer",
    };
    let what = if *figure == RATE { "requests/s" } else { "CPU per GB" };
    Claim::of_summary(format!("Proxy, {work}: {what}, to {to}"), found.map(|(ratio, _)| ratio), *bound)
}

/// Claims on Figure 12's mix, at every rate.
fn response_times(mix: &Results) -> Vec<Claim> {
    let claim = |rate: f64| {
        let found = mix.ratio_to_best("strait", &SQUID, RESPONSE, rate);
        let text = format!("Proxy, Figure 12's mix at {rate} requests/s: median response time, to Squid's");
        Claim::of_summary(text, found.map(|(ratio, _)| ratio), Bound::AtMost(0.2))
    };
    mix.places().into_iter().map(claim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Verdict;
    use crate::results::figures;

    fn works(rates: &[(&str, f64)]) -> Results {
        let labels = vec!["hit-4k".into(), "miss-13k".into()];
        let mut works = Results { benchmark: "proxy".into(), labels, rounds: 1, ..Results::default() };
        for &(contestant, rate) in rates {
            works.record(contestant, 1.0, Ok((figures([(RATE.0, rate)]), String::new())));
        }
        works
    }

    #[test]
    fn claim_is_judged_by_the_best_peer_of_its_workload() {
        let row = ("miss-13k", &PEERS[..], RATE, Bound::AtLeast(1.1));
        let measured = works(&[("direct", 9000.0), ("strait", 1200.0), ("nginx", 1000.0), ("squid", 300.0)]);
        let claim = claim(&measured, &row);
        assert_eq!(claim.verdict, Verdict::Holds);
        assert_eq!(claim.measured.map(|ratio| ratio.median), Some(1.2));
        assert_eq!(claim.text, "Proxy, miss-13k: requests/s, to that of the best peer");
        let hits = ("hit-4k", &PEERS[..], RATE, Bound::AtLeast(1.2));
        assert_eq!(super::claim(&measured, &hits).verdict, Verdict::NotMeasured);
        let squid = ("miss-13k", &SQUID[..], RATE, Bound::AtLeast(5.0));
        let claim = super::claim(&measured, &squid);
        assert_eq!((claim.verdict, claim.measured.map(|ratio| ratio.median)), (Verdict::Short, Some(4.0)));
    }
}
