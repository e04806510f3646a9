//! `strait bench capture` and `strait bench latency`: Strait's paths compared with other methods of
//! capturing.

use std::sync::atomic::AtomicBool;

use clap::Args as ClapArgs;
use clap::builder::TypedValueParser;
use strait_bench::capture::{self, SIZES};
use strait_bench::contestant::{Contestant, Way};
use strait_bench::machine::Machine;
use strait_bench::measure::{Generator, Rig};
use strait_bench::receiver::Captured;
use strait_bench::results::Results;
use strait_bench::search::Limits;
use strait_bench::wire::{Reception, Wires};
use strait_bench::{Progress, latency};
use strait_capture::Wait;
use strait_program::Error;
use strait_program::parse::{self, NumberList};

use crate::options::SharedOptions;
use crate::start::{cpus_of_both_sides, given_or, launcher, without_repetitions};

/// Options of both benchmarks.
#[derive(ClapArgs)]
struct Common {
    /// Interface to capture on, cabled to --send-on [default: a private veth pair]
    #[arg(short = 'i', long, value_name = "RX", requires = "send_on")]
    interface: Option<String>,
    /// Interface to send on
    #[arg(short = 'o', long, value_name = "TX", requires = "interface")]
    send_on: Option<String>,
    /// Ways to capture: recv, v2, v3, tap, xdp-generic, xdp-native, xdp-zc, xdp (the best of the
    /// three), libpcap, libpcap-immediate, tcpdump, netsniff-ng, testpmd-af-packet, testpmd-af-xdp
    /// [default: all on this machine]
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
    options: SharedOptions,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait bench capture --html report.html
  strait bench capture --paths v3,libpcap --sizes 64,1518 --rounds 5 --save before.json
  strait bench capture -i eth1 -o eth2 --lanes 1,4

A point takes some 10 seconds: all paths and sizes, three rounds, half an hour. Ctrl-C ends it with the results so far.")]
pub(crate) struct CaptureArgs {
    #[command(flatten)]
    common: Common,
    /// Frame sizes in bytes, with the frame check sequence
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = SIZES, value_parser = clap::value_parser!(u32).range(64..=9018))]
    sizes: Vec<u32>,
    /// Queues or fanout members of Strait's paths
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=256))]
    lanes: Vec<u32>,
    /// Wait policies of Strait's paths
    #[arg(long, value_parser = wait(), value_delimiter = ',', default_value = "balanced")]
    wait: Vec<Wait>,
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

A measurement lasts until 1000 packets have arrived, 10 s at most, and --seconds at least.")]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    common: Common,
    /// Rates in packets a second
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = latency::RATES, value_parser = parse::rate_pps)]
    rates: Vec<u32>,
    /// Wait policies of Strait's paths
    #[arg(long, value_parser = wait(), value_delimiter = ',', default_values = ["latency", "balanced", "busy"])]
    wait: Vec<Wait>,
}

/// Returns the parser of a wait policy's name.
pub(crate) fn wait() -> impl TypedValueParser<Value = Wait> {
    parse::one_of(Wait::ALL.iter().map(|wait| (*wait, wait.name(), wait.description())))
}

/// Longest frame of an MTU of 1500, with its check sequence.
const PRIVATE_FRAME_BYTES_MAX: u32 = 1518;

/// Runs `strait bench capture`.
pub(crate) fn run_capture(args: &CaptureArgs) -> Result<(), Error> {
    if args.common.interface.is_none() && args.sizes.iter().any(|size| *size > PRIVATE_FRAME_BYTES_MAX) {
        return Err(Error::usage(format!(
            "the private pair takes frames of up to {PRIVATE_FRAME_BYTES_MAX} bytes: give -i and -o for longer ones"
        )));
    }
    let pair = (Reception::Batched, &args.lanes[..], Generator::ByRate);
    args.common.measure(pair, !args.no_stage, |rig, machine, progress| {
        let limits = Limits::default();
        let (sizes, rounds) = (without_repetitions(&args.sizes), args.common.options.rounds);
        let plan = capture::Plan { contestants: args.contestants(), sizes, rounds, limits };
        capture::run(rig, &plan, machine, progress)
    })
}

/// Runs `strait bench latency`.
pub(crate) fn run_latency(args: &LatencyArgs) -> Result<(), Error> {
    let pair = (Reception::Direct, &[1][..], Generator::Path("sendmmsg".into()));
    args.common.measure(pair, false, |rig, machine, progress| {
        let ways = args.common.ways().into_iter().filter(|way| way.measures_delays());
        let contestants: Vec<_> = ways.flat_map(|way| with_waits(way, &args.wait, 1)).collect();
        if contestants.is_empty() {
            return Err(strait_bench::Error::Usage(
                "tcpdump, netsniff-ng and testpmd measure no delays: give other --paths".into(),
            ));
        }
        let plan = latency::Plan {
            contestants,
            rates: without_repetitions(&args.rates),
            rounds: args.common.options.rounds,
        };
        latency::run(rig, &plan, machine, progress)
    })
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

/// Returns a contestant for each wait policy, or one if wait policies do not apply.
pub(crate) fn with_waits(way: Way, waits: &[Wait], lanes: u32) -> Vec<Contestant> {
    let waits = if way.is_straits() { waits } else { &[Wait::Balanced] };
    waits
        .iter()
        .map(|&wait| Contestant { way, wait, lanes, timestamps: true, rings: None, owners: false })
        .collect()
}

impl Common {
    fn ways(&self) -> Vec<Way> {
        if self.paths.is_empty() { Way::all().collect() } else { without_repetitions(&self.paths) }
    }

    /// Creates the wire, measures, and prints and saves the results. After an interruption, these
    /// are the results so far.
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
        self.options.check_files()?;
        let terminated = strait_os::process::on_termination()?;
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
        self.options.measure(|machine, progress| measure(&rig, machine, progress))
    }

    fn rig<'a>(
        &self,
        wires: &'a Wires,
        generator: Generator,
        stage: bool,
        terminated: &'a AtomicBool,
    ) -> Result<Rig<'a>, Error> {
        let [first, others] = cpus_of_both_sides()?;
        Ok(Rig {
            launcher: launcher()?,
            wires,
            generator,
            generator_cpus: given_or(self.generator_cpus.as_ref(), first),
            receiver_cpus: given_or(self.cpus.as_ref(), others),
            seconds: self.options.seconds,
            stage,
            capture: Captured::default(),
            terminated,
        })
    }
}
