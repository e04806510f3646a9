//! `strait bench proxy`: Strait's caching proxy compared with the installed ones.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use strait_bench::proxy::peer::{CONTESTANTS, Contestant};
use strait_bench::proxy::work::{self, Experiment, FIGURES, Figure, Work};
use strait_bench::proxy::workload::{Sizes, Workload};
use strait_bench::proxy::{self, DISK_MIB, MEMORY_MIB, Plan, Rig};

use strait_program::parse::NumberList;

use crate::options::SharedOptions;
use crate::start::{cpus_of_both_sides, given_or, launcher, without_repetitions};
use strait_program::Error;

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait bench proxy --html report.html
  strait bench proxy --only strait,nginx --work hit-4k,miss-13k
  strait bench proxy --figures --save proxy.json --html proxy.html    keeps proxy-6.json, proxy-8.json ...
  strait bench proxy --http2 --work h2-1m,h2-tls-1m
  strait bench proxy --sizes polymix --hits 0.5 --cacheable 0.8 --rate 2000

A point takes some 5 seconds. A private pair of interfaces needs root; otherwise the loopback is measured.")]
pub(crate) struct Args {
    #[arg(long, value_name = "LIST", value_delimiter = ',', help = help_of_only())]
    only: Vec<Contestant>,
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with_all = ["figures", "axes"], help = help_of_work())]
    work: Vec<String>,
    /// Repeat D4's experiments, by their figures: 6 (hits), 8 (uncacheable), 10 (stored), 12
    /// (mixed) [default: all four]
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, value_parser = figure, conflicts_with = "axes")]
    figures: Option<Vec<Figure>>,
    /// Measure hits over HTTP/2, without and with TLS; the client is h2load
    #[arg(long, conflicts_with_all = ["figures", "axes"])]
    http2: bool,
    #[command(flatten)]
    own: Option<Axes>,
    /// Compare the bytes of every body, not only of small ones and of a sample of long ones
    #[arg(long)]
    verify_all: bool,
    /// Limit of a cache on disk, in MiB
    #[arg(long, value_name = "MIB", default_value_t = DISK_MIB, value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    disk: u64,
    /// Limit of a cache in memory, in MiB
    #[arg(long, value_name = "MIB", default_value_t = MEMORY_MIB, value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    memory: u64,
    /// Directory for the caches [default: the one for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// CPUs of the proxy [default: the first]
    #[arg(long, value_name = "LIST")]
    cpus: Option<NumberList>,
    /// CPUs of origin and client [default: all but the first]
    #[arg(long, value_name = "LIST")]
    load_cpus: Option<NumberList>,
    #[command(flatten)]
    options: SharedOptions,
}

/// Workload by its axes.
#[derive(ClapArgs)]
#[group(id = "axes", multiple = true)]
pub(crate) struct Axes {
    /// Sizes of objects: bytes, as in 13k or 1m, or polymix
    #[arg(long, value_name = "BYTES", default_value = "13k")]
    sizes: Sizes,
    /// Connections of the client
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4000))]
    connections: u32,
    /// Share of requests with a stored response, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    hits: f64,
    /// Share of requests for cacheable objects, 0 to 1 [default: the share of hits]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    cacheable: Option<f64>,
    /// Number of objects that get hits
    #[arg(long, value_name = "N", default_value_t = 1024)]
    objects: u32,
    /// Requests a second, independent of the responses [default: a closed loop]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<f64>,
}

impl Axes {
    pub(crate) fn workload(&self) -> Workload {
        Workload {
            sizes: self.sizes,
            connections: self.connections,
            hits: self.hits,
            cacheable: self.cacheable.unwrap_or(self.hits).max(self.hits),
            objects: self.objects,
            rate: self.rate,
            is_tunnel: false,
            http2: None,
        }
    }
}

fn help_of_only() -> String {
    let names = CONTESTANTS.map(|(name, _)| name).join(", ");
    format!("Proxies: {names} [default: all that are installed; of --figures Strait's and Squid]")
}

fn help_of_work() -> String {
    format!("Works: {} [default: all]", names_of(&work::works()))
}

fn names_of(works: &[Work]) -> String {
    works.iter().map(|work| work.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn figure(text: &str) -> Result<Figure, String> {
    let found = FIGURES.into_iter().find(|figure| figure.number().to_string() == text);
    found.ok_or_else(|| "give 6, 8, 10 or 12".into())
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("give 0 to 1".into()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.1..=10e6).contains(&rate) => Ok(rate),
        _ => Err("give 0.1 to 10000000 requests a second".into()),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = strait_os::process::on_termination()?;
    let experiments = args.experiments()?;
    let [first, others] = cpus_of_both_sides()?;
    let cpus = (given_or(args.cpus.as_ref(), first), given_or(args.load_cpus.as_ref(), others));
    for &cpu in cpus.0.iter().chain(&cpus.1) {
        strait_os::process::check_cpu(cpu)?;
    }
    let directory = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let rig = Rig::create(launcher()?, cpus, &directory, args.options.seconds, terminated)?;
    for (_, options) in &experiments {
        options.check_files()?;
    }
    for (experiment, options) in experiments {
        let plan = args.plan(experiment);
        options.measure(|machine, progress| proxy::run(&rig, &plan, machine, progress))?;
    }
    Ok(())
}

impl Args {
    fn plan(&self, experiment: Experiment) -> Plan {
        let all = CONTESTANTS.into_iter().map(|(_, contestant)| contestant);
        let contestants = match &self.only[..] {
            [] if self.http2 => all.filter(Contestant::serves_http2).collect(),
            [] => all.filter(|contestant| self.figures.is_none() || contestant.is_of_d4()).collect(),
            only => without_repetitions(only),
        };
        Plan {
            contestants,
            experiment,
            rounds: self.options.rounds,
            disk_bytes: self.disk << 20,
            memory_bytes: self.memory << 20,
            verify_all: self.verify_all,
        }
    }

    /// Returns the experiments, each with the options for its results.
    fn experiments(&self) -> Result<Vec<(Experiment, SharedOptions)>, Error> {
        let Some(figures) = &self.figures else {
            let of = if self.http2 { Experiment::of_http2 } else { Experiment::of };
            return Ok(vec![(of(self.works()?), self.options.clone())]);
        };
        let figures = if figures.is_empty() { &FIGURES[..] } else { figures };
        let options =
            |figure: &Figure| (figure.experiment(), self.options.with_suffix(&figure.number().to_string()));
        Ok(figures.iter().map(options).collect())
    }

    fn works(&self) -> Result<Vec<Work>, Error> {
        if let Some(axes) = &self.own {
            return Ok(vec![Work { name: "own".into(), workload: axes.workload() }]);
        }
        let all = if self.http2 { work::http2_works() } else { work::works() };
        let by_name = |name: &String| {
            let found = all.iter().find(|work| work.name == *name).cloned();
            found.ok_or_else(|| {
                Error::usage(format!("'{name}' is not a workload: give some of {}", names_of(&all)))
            })
        };
        if self.work.is_empty() { Ok(all.clone()) } else { self.work.iter().map(by_name).collect() }
    }
}
