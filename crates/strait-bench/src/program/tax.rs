//! `strait bench tax`: cost of a capture to its host.

use clap::Args as ClapArgs;
use strait_bench::contestant::{Contestant, Way};
use strait_bench::tax::{self, Plan, Traffic};
use strait_capture::{Path, TapRings, Wait};
use strait_program::Error;
use strait_program::parse::NumberList;

use crate::capture::{wait, with_waits};
use crate::options::SharedOptions;
use crate::start::{cpus_of_both_sides, given_or, launcher, without_repetitions};

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait bench tax --html tax.html
  strait bench tax --paths v3,tap,libpcap --traffic frames,rejected --rounds 7
  strait bench tax --paths tap,tcpdump --traffic bridge

A point takes two to four seconds: all paths and traffic, three rounds, some fifteen minutes. It needs root, and two CPUs \
without other work.")]
pub(crate) struct Args {
    /// Ways to capture: recv, v2, v3, tap, xdp-generic, xdp-native, xdp-zc, xdp (the best of the
    /// three), libpcap, libpcap-immediate, tcpdump, netsniff-ng [default: all on this machine]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    paths: Vec<Way>,
    /// Traffic: frames (captured), rejected (by the filter), bridge (forwarded), tcp (the host's
    /// own)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = Traffic::ALL)]
    traffic: Vec<Traffic>,
    /// Wait policies of Strait's paths
    #[arg(long, value_parser = wait(), value_delimiter = ',', default_value = "balanced")]
    wait: Vec<Wait>,
    /// Rings of further taps, each FIRST:SPILL:DIVISOR, with sizes in KiB: to choose the default
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide = true)]
    tap_rings: Vec<TapRings>,
    /// CPUs of the readers [default: all but the first]
    #[arg(long, value_name = "LIST")]
    cpus: Option<NumberList>,
    /// CPU of the generator and the packet path [default: the first]
    #[arg(long, value_name = "LIST")]
    generator_cpus: Option<NumberList>,
    #[command(flatten)]
    options: SharedOptions,
}

/// Runs `strait bench tax`.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    args.options.check_files()?;
    if let Some(way) = args.paths.iter().find(|way| !way.filters()) {
        return Err(Error::usage(format!("{way} has no filter, so its tax on rejected packets is unknown")));
    }
    let terminated = strait_os::process::on_termination()?;
    let ways = if args.paths.is_empty() { tax::ways().collect() } else { without_repetitions(&args.paths) };
    let [first, others] = cpus_of_both_sides()?;
    let plan = Plan {
        contestants: contestants(args, ways),
        traffic: without_repetitions(&args.traffic),
        rounds: args.options.rounds,
        launcher: launcher()?,
        generator_cpus: given_or(args.generator_cpus.as_ref(), first),
        receiver_cpus: given_or(args.cpus.as_ref(), others),
        seconds: args.options.seconds,
        terminated,
    };
    args.options.measure(|machine, progress| tax::run(&plan, machine, progress))
}

/// Returns the contestants, those of the tap also with owners and with each of the given rings.
fn contestants(args: &Args, ways: Vec<Way>) -> Vec<Contestant> {
    let mut contestants = Vec::new();
    for contestant in ways.into_iter().flat_map(|way| with_waits(way, &args.wait, 1)) {
        contestants.push(contestant);
        if contestant.way == Way::Strait(Path::Tap) {
            contestants.push(Contestant { owners: true, ..contestant });
            let with = |&rings| Contestant { rings: Some(rings), ..contestant };
            contestants.extend(without_repetitions(&args.tap_rings).iter().map(with));
        }
    }
    contestants
}
