//! Measures Strait and its peers on this machine: `make bench`.
//!
//! Each benchmark creates a private veth pair, runs Strait and its peers on it in turn, round after
//! round, writes every figure to `bench/results/<name>.json` and prints a table. The last table
//! compares Strait's claims with the measurement. It touches no interface of the machine and leaves
//! only the results behind.

mod balanced;
mod capture;
mod child;
mod claim;
mod contestants;
mod disk;
mod dropin;
mod error;
mod generate;
mod latency;
mod lossfree;
mod machine;
mod measure;
mod proxy;
mod receiver;
mod results;
mod run;
mod send;
mod table;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use clap::{Parser, Subcommand};

use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::results::Results;
use crate::run::Context;
use crate::tools::Tools;

/// Default directory of the results.
const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results");

/// Measure Strait and its peers
#[derive(Parser)]
#[command(name = "bench")]
struct Bench {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

/// Options of all benchmarks.
#[derive(clap::Args)]
struct Options {
    /// Rounds; each measures every point once
    #[arg(long, global = true, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Seconds of each point
    #[arg(long, global = true, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
    /// Measure only points with this in their name, such as capture/live/xdp
    #[arg(long, global = true, value_name = "PATTERN")]
    only: Option<String>,
    /// Directory for the results
    #[arg(long, global = true, value_name = "DIR", default_value = RESULTS, hide_default_value = true)]
    out: PathBuf,
    /// Directory for the files of the disk benchmark [default: the target directory]
    #[arg(long, global = true, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Program to measure instead of the strait built here
    #[arg(long, global = true, value_name = "PROGRAM")]
    strait: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// All of the following; the default
    All,
    /// Rate, loss and CPU of each capture path at full rate
    Capture,
    /// The highest rate without loss
    Lossfree,
    /// The delay at 1,000 packets/s
    Latency,
    /// CPU of the default wait policy and of the cheapest
    Balanced,
    /// Rate of packet generators
    Generate,
    /// Capture to a file
    Disk,
    /// A libpcap program on libpcap and on the drop-in
    Dropin,
    /// Sends and relays, by `strait bench send`
    Send,
    /// Caching proxies, by `strait bench proxy`
    Proxy,
    /// Measure delays; started by the latency benchmark
    #[command(hide = true)]
    Receiver(receiver::Args),
}

/// Benchmark: prints its table and returns its results.
type Benchmark = fn(&Context) -> Result<Results>;

const ALL: [(&str, Benchmark); 9] = [
    ("capture", capture::run),
    ("lossfree", lossfree::run),
    ("latency", latency::run),
    ("balanced", balanced::run),
    ("generate", generate::run),
    ("disk", disk::run),
    ("dropin", dropin::run),
    ("send", send::run),
    ("proxy", proxy::run),
];

fn main() -> ExitCode {
    let bench = Bench::parse();
    let done = match bench.command.unwrap_or(Command::All) {
        Command::Receiver(args) => receiver::run(&args).map(|()| true),
        Command::All => benchmarks(&bench.options, &ALL),
        Command::Capture => benchmarks(&bench.options, &ALL[..1]),
        Command::Lossfree => benchmarks(&bench.options, &ALL[1..2]),
        Command::Latency => benchmarks(&bench.options, &ALL[2..3]),
        Command::Balanced => benchmarks(&bench.options, &ALL[3..4]),
        Command::Generate => benchmarks(&bench.options, &ALL[4..5]),
        Command::Disk => benchmarks(&bench.options, &ALL[5..6]),
        Command::Dropin => benchmarks(&bench.options, &ALL[6..7]),
        Command::Send => benchmarks(&bench.options, &ALL[7..8]),
        Command::Proxy => benchmarks(&bench.options, &ALL[8..]),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the benchmarks; returns false if one of them could not run at all.
fn benchmarks(options: &Options, benchmarks: &[(&str, Benchmark)]) -> Result<bool> {
    let context = options.prepare()?;
    let (mut claims, mut whole): (Vec<Claim>, bool) = (Vec::new(), true);
    for (name, benchmark) in benchmarks {
        if context.terminated.load(Ordering::Relaxed) {
            break;
        }
        match benchmark(&context) {
            Ok(results) => {
                results.save(&context.out)?;
                claims.extend(results.claims);
            }
            Err(error) => {
                eprintln!("bench: {name}: {error}");
                whole = false;
            }
        }
    }
    if options.only.is_some() {
        claims.retain(|claim| claim.measured.is_some());
    }
    print!("{}", table::of_claims(&claims));
    if benchmarks.len() == ALL.len() {
        results::save_json(&context.out, "claims", &claims)?;
    }
    Ok(whole)
}

impl Options {
    /// Builds the programs, then pins this process to the generator's CPU.
    fn prepare(&self) -> Result<Context> {
        if strait_sys::process::cpus() < 2 {
            return Err(Error::Void("needs two CPUs: one for the generator, one for the receiver".into()));
        }
        drop(measure::plain_wire()?);
        let tools = Tools::build(self.strait.as_deref())?;
        if cfg!(debug_assertions) {
            eprintln!("bench: built for debugging: the figures mean nothing; use cargo run --release");
        }
        let terminated = strait_sys::process::on_termination()?;
        strait_sys::process::pin_thread(measure::GENERATOR_CPU)?;
        Ok(Context {
            machine: Machine::look(&tools.strait),
            rounds: self.rounds.into(),
            seconds: self.seconds,
            only: self.only.clone(),
            out: self.out.clone(),
            disk: self.disk.clone().unwrap_or_else(|| tools.directory().to_owned()),
            terminated,
            tools,
        })
    }
}

/// Parses the duration of a point.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("'{text}': give 0.1 to 3600 seconds")),
    }
}
