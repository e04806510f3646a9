//! Claims on Strait's proxy, checked by `strait bench proxy`.
//!
//! The command keeps its own results: `proxy.json` and, for D4's experiments,
//! `proxy-<figure>.json`. Only the claims are here.

use std::process::{Command, Stdio};

use strait_bench::results::Results as Measured;

use crate::claim::{Bound, Claim};
use crate::error::{Error, Result};
use crate::measure;
use crate::results::Results;
use crate::run::Context;

const ABOUT: &str = "Claims of what strait bench proxy measured: every figure stands in proxy.json, and those of D4's experiments in \
    proxy-6.json, proxy-8.json, proxy-10.json and proxy-12.json, with the command and the machine.";

/// Seconds of a try. Starting the proxy and filling its cache takes longer.
const SECONDS: &str = "1";
/// Limit of rounds.
const ROUNDS_MAX: usize = 3;

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

/// Measures, and returns the claims.
pub(crate) fn run(context: &Context) -> Result<Results> {
    let mut results = context.results("proxy", ABOUT);
    results.rounds = context.rounds.min(ROUNDS_MAX);
    keep(context, results.rounds, &[])?;
    keep(context, results.rounds, &["--figures"])?;
    let works = read(context, "proxy.json")?;
    results.claims = CLAIMS.iter().map(|row| claim(&works, row)).collect();
    results.claims.extend(response_times(&read(context, "proxy-12.json")?));
    Ok(results)
}

fn keep(context: &Context, rounds: usize, more: &[&str]) -> Result<()> {
    std::fs::create_dir_all(&context.out)
        .map_err(|source| Error::file(format!("make {}", context.out.display()), source))?;
    let cpus = [measure::GENERATOR_CPU, measure::RECEIVER_CPU].map(|cpu| cpu.to_string());
    // This process is pinned to one CPU, which the child would inherit.
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &cpus.join(",")]).arg(&context.tools.strait);
    // The results record the command: use a relative path, so that they contain no directory of
    // this machine.
    command.current_dir(&context.out).args(["bench", "proxy"]).args(more);
    command.args(["--cpus", &cpus[0], "--load-cpus", &cpus[1]]);
    command.args(["--seconds", SECONDS, "--rounds", &rounds.to_string()]);
    command.args(["--save", "proxy.json", "--html", "proxy.html"]);
    command.args(["--commit", &context.machine.commit]).stdout(Stdio::null());
    let program = format!("{command:?}");
    let status = command.status().map_err(|source| Error::file(format!("start {program}"), source))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Program { program, code: status.to_string(), said: String::new() })
}

fn read(context: &Context, name: &str) -> Result<Measured> {
    let path = context.out.join(name);
    Measured::read(&path).map_err(|error| Error::Void(format!("{}: {error}", path.display())))
}

fn claim(works: &Measured, (work, others, figure, bound): &Row) -> Claim {
    let place = works.labels.iter().position(|label| label == work);
    let found = place.and_then(|place| works.beside_the_best("strait", others, *figure, place as f64));
    let to = match &others[..] {
        others if *others == SQUID => "Squid's",
        others if *others == ON_DISK => "that of the best peer that stores on disk",
        _ => "that of the best peer",
    };
    let what = if *figure == RATE { "requests/s" } else { "CPU per GB" };
    Claim::of_summary(format!("Proxy, {work}: {what}, to {to}"), found.map(|(ratio, _)| ratio), *bound)
}

/// Claims on Figure 12's mix, at every rate.
fn response_times(mix: &Measured) -> Vec<Claim> {
    let claim = |rate: f64| {
        let found = mix.beside_the_best("strait", &SQUID, RESPONSE, rate);
        let text = format!("Proxy, Figure 12's mix at {rate} requests/s: median response time, to Squid's");
        Claim::of_summary(text, found.map(|(ratio, _)| ratio), Bound::AtMost(0.2))
    };
    mix.places().into_iter().map(claim).collect()
}

#[cfg(test)]
mod tests {
    use strait_bench::machine::Machine;
    use strait_bench::results::Figures;

    use super::*;
    use crate::claim::Verdict;

    fn works(rates: &[(&str, f64)]) -> Measured {
        let mut works = Measured {
            benchmark: "proxy".into(),
            about: String::new(),
            axis: "work".into(),
            labels: vec!["hit-4k".into(), "miss-13k".into()],
            machine: Machine::default(),
            complete: true,
            rounds: 1,
            seconds: 1.0,
            series: Vec::new(),
            skipped: Vec::new(),
        };
        for &(contestant, rate) in rates {
            let figures = Figures::from([(RATE.0.to_owned(), rate)]);
            works.record(contestant, 1.0, Ok((figures, String::new())));
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
