//! `strait bench claims`: checks of the claims about Strait's speed.

use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use strait_bench::claim::Claim;
use strait_bench::claims::peers::Peers;
use strait_bench::claims::{BENCHMARKS, Benchmark, Context, Reporter, file_name};
use strait_bench::machine::Machine;
use strait_bench::results::{Results, write_file};
use strait_bench::table;
use strait_os::process;
use strait_program::Error;
use strait_program::output::{print_stderr, print_text, warn};

use crate::options::{clear_progress, command_line, measurement_seconds, program, progress_line};
use crate::start::launcher;

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait bench claims --out results
  strait bench claims capture --only live
  strait bench claims latency --rounds 3 --seconds 1

All benchmarks take about two hours. They need root, two CPUs, a C compiler and libpcap's headers; the figures of a busy machine
mean little. Peers that are not installed are left out.")]
pub(crate) struct Args {
    #[arg(value_name = "BENCHMARK", value_parser = benchmark, help = help_of_benchmarks())]
    benchmarks: Vec<(&'static str, Benchmark)>,
    /// Rounds; each measures every point once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of each point
    #[arg(long, default_value_t = 3.0, value_parser = measurement_seconds)]
    seconds: f64,
    /// Measure only points of captures with this in their name, such as capture/live/xdp
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,
    /// Directory for the results
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    /// Directory for captured files and caches, on a disk [default: the one for temporary files]
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Note the commit of the measured programs in the results
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    commit: String,
}

fn help_of_benchmarks() -> String {
    format!("Benchmarks: {} [default: all]", BENCHMARKS.map(|(name, _)| name).join(", "))
}

fn benchmark(text: &str) -> Result<(&'static str, Benchmark), String> {
    let found = BENCHMARKS.into_iter().find(|(name, _)| *name == text);
    found.ok_or_else(|| format!("'{text}': give one of {}", BENCHMARKS.map(|(name, _)| name).join(", ")))
}

/// Runs the benchmarks. One that cannot run is reported, and the others run all the same.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = process::on_termination()?;
    let context = args.prepare(terminated)?;
    let benchmarks = if args.benchmarks.is_empty() { &BENCHMARKS[..] } else { &args.benchmarks };
    let (mut claims, mut failed) = (Vec::new(), Vec::new());
    for (name, benchmark) in benchmarks {
        if terminated.load(std::sync::atomic::Ordering::Relaxed) {
            break;
        }
        if let Err(error) = one(*benchmark, &context, &args.out, &mut claims) {
            warn(format_args!("{name}: {error}\n"));
            failed.push(*name);
        }
    }
    print_text(&table::of_claims(&claims))?;
    match &failed[..] {
        _ if terminated.load(std::sync::atomic::Ordering::Relaxed) => Err(Error::failed("interrupted")),
        [] => Ok(()),
        failed => Err(Error::failed(format!("not measured: {}", failed.join(", ")))),
    }
}

/// Runs one benchmark: saves its results after each measurement, prints them, and collects its
/// claims.
fn one(
    benchmark: Benchmark,
    context: &Context<'_>,
    out: &Path,
    claims: &mut Vec<Claim>,
) -> strait_bench::Result<()> {
    let mut finished = |results: Results| {
        clear_progress();
        save(out, &results)?;
        // The claims of all benchmarks are printed at the end.
        let text = table::text(&Results { claims: Vec::new(), ..results.clone() });
        claims.extend(results.claims);
        print_text(&text).map_err(|error| strait_bench::Error::Invalid(error.to_string()))
    };
    let mut progress = |progress: &strait_bench::Progress<'_>| {
        progress_line(progress);
        if progress.results.series.is_empty() { Ok(()) } else { save(out, progress.results) }
    };
    let reporter = &mut Reporter { progress: &mut progress, finished: &mut finished };
    benchmark(context, reporter)
}

fn save(out: &Path, results: &Results) -> strait_bench::Result<()> {
    write_file(&out.join(file_name(results)), &(results.to_json()? + "\n"))
}

impl Args {
    /// Checks the machine and compiles the peers.
    fn prepare<'a>(&self, terminated: &'a std::sync::atomic::AtomicBool) -> Result<Context<'a>, Error> {
        if process::cpus() < 2 {
            return Err(Error::failed("needs two CPUs: one for the generator, one for the receiver"));
        }
        if cfg!(debug_assertions) {
            print_stderr(format_args!("debug build: the figures are meaningless\n"));
        }
        std::fs::create_dir_all(&self.out)
            .map_err(|error| Error::failed(format!("make {}: {error}", self.out.display())))?;
        let mut machine = Machine::detect(command_line(), self.commit.clone(), program());
        machine.tcpdump = versions_of_tcpdump();
        Ok(Context {
            launcher: launcher()?,
            peers: Peers::compile()?,
            machine,
            rounds: self.rounds,
            seconds: self.seconds,
            only: self.only.clone(),
            disk: self.disk.clone().unwrap_or_else(std::env::temp_dir),
            terminated,
        })
    }
}

/// Returns the versions of tcpdump and its libraries; empty if it is not installed.
fn versions_of_tcpdump() -> String {
    let output = std::process::Command::new("tcpdump").arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_default().replace('\n', ", ")
}
