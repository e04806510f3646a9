//! `strait bench`: what each way to capture or to send, and each caching proxy, can do on this
//! machine.

mod kept;
mod measured;
mod proxy;
mod send;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use clap::{Args as ClapArgs, Subcommand};
use strait_bench::capture::{self, SIZES};
use strait_bench::child::Launcher;
use strait_bench::contestant::{Contestant, Way};
use strait_bench::machine::{self, Machine};
use strait_bench::measure::{Generator, Rig};
use strait_bench::results::{Results, write_file};
use strait_bench::search::Limits;
use strait_bench::wire::{Reception, Wires};
use strait_bench::{Progress, compare, latency, report};

use crate::Error;
use crate::capture::WaitArg;
use crate::output::{print_text, tell};
use crate::parse::NumberList;
use kept::{Kept, is_svg};

/// Options of `strait bench`.
#[derive(ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The highest rate without loss of each path, against the size of packets
    Capture(CaptureArgs),
    /// How late packets reach the program, for each path and wait policy, against the rate
    Latency(LatencyArgs),
    /// What a send costs with and without a copy, over loopback, veth and a route that copies
    /// nothing
    Send(send::Args),
    /// Caching proxies beside each other: response time, throughput and CPU time by Web Polygraph's
    /// axes
    Proxy(proxy::Args),
    /// Ratios of two results, with their spread
    Compare(CompareArgs),
    /// The report of results that were kept
    Report(ReportArgs),
    /// Receive as a measured program does; the benchmarks start it
    #[command(hide = true)]
    Receive(measured::ReceiveArgs),
    /// Send as a measured program does; the benchmarks start it
    #[command(hide = true)]
    Transmit(measured::TransmitArgs),
    /// Pass on as the plainest relay does; the benchmarks start it
    #[command(hide = true)]
    Pass(measured::PassArgs),
    /// Serve as the origin of proxies; the benchmarks start it
    #[command(hide = true)]
    Origin(measured::OriginArgs),
    /// Ask a proxy and check its answers; the benchmarks start it
    #[command(hide = true)]
    Load(measured::LoadArgs),
    /// Become a measured program; the benchmarks start it
    #[command(hide = true)]
    Exec(measured::ExecArgs),
}

/// What the benchmarks of capture are told.
#[derive(ClapArgs)]
struct Common {
    /// Interface to capture on, cabled to --send-on [default: a private veth pair]
    #[arg(short = 'i', long, value_name = "RX", requires = "send_on")]
    interface: Option<String>,
    /// Interface to send on
    #[arg(short = 'o', long, value_name = "TX", requires = "interface")]
    send_on: Option<String>,
    /// Ways to capture: recv, v2, v3, xdp-generic, xdp-native, xdp-zc, xdp (the best of the three),
    /// libpcap, libpcap-immediate, netsniff-ng, testpmd-af-packet, testpmd-af-xdp [default: all
    /// that this machine has]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    paths: Vec<Way>,
    /// CPUs of the receivers [default: all but the first]
    #[arg(long, value_name = "LIST")]
    cpus: Option<NumberList>,
    /// CPUs of the generator [default: the first]
    #[arg(long, value_name = "LIST")]
    generator_cpus: Option<NumberList>,
    /// Path of the generator: live, sendmmsg, ring, xdp [default: sendmmsg, or live where a private
    /// pair needs it]
    #[arg(long, value_name = "PATH", value_parser = ["live", "sendmmsg", "ring", "xdp"])]
    generator: Option<String>,
    #[command(flatten)]
    kept: Kept,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait bench capture --html report.html
  strait bench capture --paths v3,libpcap --sizes 64,1518 --rounds 5 --save before.json
  strait bench capture -i eth1 -o eth2 --lanes 1,4

A point takes some 10 seconds: all paths and sizes, three rounds, half an hour. Ctrl-C ends it with what was measured.")]
struct CaptureArgs {
    #[command(flatten)]
    common: Common,
    /// Frame sizes in bytes, with the frame check sequence
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = SIZES, value_parser = clap::value_parser!(u32).range(64..=9018))]
    sizes: Vec<u32>,
    /// Queues or fanout members of Strait's paths
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=256))]
    lanes: Vec<u32>,
    /// Wait policies of Strait's paths
    #[arg(long, value_enum, value_delimiter = ',', default_value = "balanced")]
    wait: Vec<WaitArg>,
    /// Measure Strait's AF_XDP paths without timestamps too
    #[arg(long)]
    unstamped: bool,
    /// Do not copy each packet into a staging ring
    #[arg(long)]
    no_stage: bool,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait bench latency
  strait bench latency --paths v3,libpcap,libpcap-immediate --rates 1000 --wait balanced --html report.html

A try lasts until 1000 packets have come, 10 s at most, and --seconds at least.")]
struct LatencyArgs {
    #[command(flatten)]
    common: Common,
    /// Rates in packets a second
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = latency::RATES, value_parser = crate::parse::rate_pps)]
    rates: Vec<u32>,
    /// Wait policies of Strait's paths
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["latency", "balanced", "busy"])]
    wait: Vec<WaitArg>,
}

#[derive(ClapArgs)]
#[command(after_help = "Example:
  strait bench compare before.json after.json

Where no round of the one reaches into the rounds of the other it is better or worse, else within the spread. Rates that the
generator limited are not compared.")]
struct CompareArgs {
    /// Results to compare with
    first: PathBuf,
    /// Results to compare
    second: PathBuf,
    /// Print the ratios as a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(ClapArgs)]
struct ReportArgs {
    /// Results, as --save and --json write them
    results: PathBuf,
    /// The page to write, - for standard output; the first plot alone where its name ends with .svg
    page: PathBuf,
}

/// The longest frame, its check sequence included, of an MTU of 1500.
const PRIVATE_FRAME_BYTES_MAX: u32 = 1518;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    match &args.command {
        Command::Capture(args) => run_capture(args),
        Command::Latency(args) => run_latency(args),
        Command::Send(args) => send::run(args),
        Command::Compare(args) => run_compare(args),
        Command::Report(args) => run_report(args),
        Command::Receive(args) => measured::receive(args),
        Command::Transmit(args) => measured::transmit(args),
        Command::Proxy(args) => proxy::run(args),
        Command::Origin(args) => measured::origin(args),
        Command::Load(args) => measured::load(args),
        Command::Pass(args) => measured::pass(args),
        Command::Exec(args) => Err(measured::exec(args)),
    }
}

fn run_capture(args: &CaptureArgs) -> Result<(), Error> {
    if args.common.interface.is_none() && args.sizes.iter().any(|size| *size > PRIVATE_FRAME_BYTES_MAX) {
        return Err(Error::Usage(format!(
            "the private pair takes frames of up to {PRIVATE_FRAME_BYTES_MAX} bytes: give -i and -o for longer ones"
        )));
    }
    let pair = (Reception::Batched, &args.lanes[..], Generator::ByRate);
    args.common.measure(pair, !args.no_stage, |rig, machine, progress| {
        let limits = Limits::default();
        let (sizes, rounds) = (each_once(&args.sizes), args.common.kept.rounds);
        let plan = capture::Plan { contestants: args.contestants(), sizes, rounds, limits };
        capture::run(rig, &plan, machine, progress)
    })
}

fn run_latency(args: &LatencyArgs) -> Result<(), Error> {
    let pair = (Reception::Direct, &[1][..], Generator::Path("sendmmsg".into()));
    args.common.measure(pair, false, |rig, machine, progress| {
        let ways = args.common.ways().into_iter().filter(|way| way.measures_delays());
        let contestants: Vec<_> = ways.flat_map(|way| with_waits(way, &args.wait, 1)).collect();
        if contestants.is_empty() {
            return Err(strait_bench::Error::Usage(
                "netsniff-ng and testpmd measure no delays: give other --paths".into(),
            ));
        }
        let plan =
            latency::Plan { contestants, rates: each_once(&args.rates), rounds: args.common.kept.rounds };
        latency::run(rig, &plan, machine, progress)
    })
}

fn run_compare(args: &CompareArgs) -> Result<(), Error> {
    let (first, second) = (Results::read(&args.first)?, Results::read(&args.second)?);
    let ratios = compare::ratios(&first, &second)?;
    let remarks = compare::remarks(&first, &second);
    if args.json {
        tell(format_args!("{remarks}"));
        return Ok(print_text(&format!("{}\n", compare::json(&ratios)))?);
    }
    Ok(print_text(&(compare::text(&ratios, &first.axis) + &remarks))?)
}

fn run_report(args: &ReportArgs) -> Result<(), Error> {
    let results = Results::read(&args.results)?;
    let page = if is_svg(&args.page) { report::image(&results)? } else { report::html(&results) };
    if args.page.as_os_str() == "-" {
        return Ok(print_text(&page)?);
    }
    Ok(write_file(&args.page, &page)?)
}

impl CaptureArgs {
    fn contestants(&self) -> Vec<Contestant> {
        let mut contestants = Vec::new();
        for way in self.common.ways() {
            let lanes = if way.is_straits() { &self.lanes[..] } else { &[1] };
            for contestant in lanes.iter().flat_map(|&lanes| with_waits(way, &self.wait, lanes)) {
                contestants.push(contestant);
                if self.unstamped && way.is_xdp() {
                    contestants.push(Contestant { timestamps: false, ..contestant });
                }
            }
        }
        contestants
    }
}

/// The same without repetitions, in order.
fn each_once<T: Copy + PartialEq>(list: &[T]) -> Vec<T> {
    let mut once = Vec::new();
    for &item in list {
        if !once.contains(&item) {
            once.push(item);
        }
    }
    once
}

/// A contestant for each wait policy, where those mean anything.
fn with_waits(way: Way, waits: &[WaitArg], lanes: u32) -> Vec<Contestant> {
    let waits = if way.is_straits() { waits } else { &[WaitArg::Balanced] };
    waits.iter().map(|&wait| Contestant { way, wait: wait.into(), lanes, timestamps: true }).collect()
}

impl Common {
    fn ways(&self) -> Vec<Way> {
        if self.paths.is_empty() { Way::all().collect() } else { each_once(&self.paths) }
    }

    /// Lays the wire, measures, and hands the results out; those so far after an interruption.
    fn measure(
        &self,
        (reception, lanes, generator): (Reception, &[u32], Generator),
        stage: bool,
        measure: impl FnOnce(
            &Rig<'_>,
            Machine,
            &mut dyn FnMut(&Progress<'_>) -> strait_bench::Result<()>,
        ) -> strait_bench::Result<Results>,
    ) -> Result<(), Error> {
        self.kept.check_files()?;
        let terminated = strait_sys::process::on_termination()?;
        let wires = match (&self.send_on, &self.interface) {
            (Some(sender), Some(receiver)) => Wires::cabled(sender, receiver)?,
            _ => Wires::private(lanes, reception)?,
        };
        let generator = match &self.generator {
            Some(path) => Generator::Path(path.clone()),
            None if wires.are_private() => generator,
            None => Generator::Path("sendmmsg".into()),
        };
        let rig = self.rig(&wires, generator, stage, terminated)?;
        self.kept.measure(|machine, progress| measure(&rig, machine, progress))
    }

    fn rig<'a>(
        &self,
        wires: &'a Wires,
        generator: Generator,
        stage: bool,
        terminated: &'a AtomicBool,
    ) -> Result<Rig<'a>, Error> {
        let [first, others] = sides()?;
        Ok(Rig {
            launcher: launcher()?,
            wires,
            generator,
            generator_cpus: given_or(self.generator_cpus.as_ref(), first),
            receiver_cpus: given_or(self.cpus.as_ref(), others),
            seconds: self.kept.seconds,
            stage,
            terminated,
        })
    }
}

/// This program, to start what is measured.
fn launcher() -> Result<Launcher, Error> {
    let strait =
        std::env::current_exe().map_err(|error| Error::Failed(format!("find this program: {error}")))?;
    Ok(Launcher { strait })
}

fn given_or(given: Option<&NumberList>, otherwise: Vec<u32>) -> Vec<u32> {
    given.map_or(otherwise, |list| list.0.clone())
}

/// The first CPU, and the others, which stand for both where there is one.
fn sides() -> Result<[Vec<u32>; 2], Error> {
    let usable = machine::usable_cpus()?;
    let (first, others) = usable.split_at(1.min(usable.len()));
    Ok([first, if others.is_empty() { first } else { others }].map(<[u32]>::to_vec))
}
