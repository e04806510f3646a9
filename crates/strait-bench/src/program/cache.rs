//! `strait bench cache`: hit ratio of the store's eviction policy.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use strait_bench::cache::{self, CONTESTANTS, Contestant, Plan, TRACES};
use strait_bench::proxy::Rig;
use strait_program::Error;

use crate::options::SharedOptions;
use crate::start::{cpus_of_both_sides, launcher, without_repetitions};

/// Limit of the time of a trace that is requested from a proxy.
const REPLAY_MAX: Duration = Duration::from_hours(1);

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait bench cache --rounds 1
  strait bench cache --only belady,strait-simulated --trace zipf-0.9 --rounds 1
  strait bench cache --rounds 1 --save cache.json
  strait bench cache --only strait-proxy,haproxy --capacity 64 --requests 400000 --rounds 1

A policy takes some seconds for a trace, a proxy some minutes. Stores write several times their size to --dir.")]
pub(crate) struct Args {
    #[arg(long, value_name = "LIST", value_delimiter = ',', help = help_of_only())]
    only: Vec<Contestant>,
    #[arg(long, value_name = "LIST", value_delimiter = ',', help = help_of_trace())]
    trace: Vec<String>,
    /// Size of the caches, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(64..=1 << 14))]
    capacity: u64,
    /// Requests of a trace
    #[arg(long, value_name = "N", default_value_t = 1_500_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    requests: u32,
    /// Directory for the store [default: the one for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    options: SharedOptions,
}

fn help_of_only() -> String {
    format!("Contestants: {} [default: all]", CONTESTANTS.map(|(name, _)| name).join(", "))
}

fn help_of_trace() -> String {
    format!("Traces: {} [default: all]", TRACES.map(|(name, _)| name).join(", "))
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    args.options.check_files()?;
    let terminated = strait_os::process::on_termination()?;
    let contestants = match &*args.only {
        [] => CONTESTANTS.map(|(_, contestant)| contestant).to_vec(),
        only => without_repetitions(only),
    };
    let traces: Result<Vec<u32>, Error> = args.trace.iter().map(|name| index_of(name)).collect();
    let traces = match traces? {
        none if none.is_empty() => (0..TRACES.len() as u32).collect(),
        some => without_repetitions(&some),
    };
    let plan = Plan {
        contestants,
        traces,
        capacity_bytes: args.capacity << 20,
        requests: args.requests as usize,
        rounds: args.options.rounds,
        dir: args.dir.clone().unwrap_or_else(std::env::temp_dir),
    };
    let rig = plan.has_proxies().then(|| -> Result<_, Error> {
        let cpus = cpus_of_both_sides()?;
        Ok(Rig::create(launcher()?, cpus.into(), &plan.dir, REPLAY_MAX.as_secs_f64(), terminated)?)
    });
    let rig = rig.transpose()?;
    args.options.measure(|machine, progress| cache::run(&plan, rig.as_ref(), machine, progress, terminated))
}

fn index_of(name: &str) -> Result<u32, Error> {
    let index = TRACES.iter().position(|(of_it, _)| *of_it == name);
    index.map(|index| index as u32).ok_or_else(|| {
        Error::usage(format!("there is no trace {name}: give {}", TRACES.map(|(name, _)| name).join(", ")))
    })
}
