//! `strait bench restart`: start of the proxy after kill -9, with many stored objects.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use strait_bench::proxy::Rig;
use strait_bench::restart::{self, Plan};
use strait_program::Error;

use crate::options::SharedOptions;
use crate::start::{cpus_of_both_sides, launcher};

/// Limit of the time in which the objects are stored.
const STORE_MAX: Duration = Duration::from_hours(1);

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait bench restart
  strait bench restart --objects 10000,500000 --rounds 1

Storing 500,000 objects takes a minute, and 2 GiB of --dir.")]
pub(crate) struct Args {
    /// Numbers of stored objects
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "500000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    objects: Vec<u32>,
    /// Bytes of an object
    #[arg(long, value_name = "BYTES", default_value_t = 2048, value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    bytes: u64,
    /// Directory for the cache [default: the one for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    options: SharedOptions,
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    args.options.check_files()?;
    let terminated = strait_os::process::on_termination()?;
    let plan = Plan {
        objects: args.objects.clone(),
        object_bytes: args.bytes,
        rounds: args.options.rounds,
        seconds: args.options.seconds,
    };
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let cpus = cpus_of_both_sides()?;
    let rig = Rig::create(launcher()?, cpus.into(), &dir, STORE_MAX.as_secs_f64(), terminated)?;
    args.options.measure(|machine, progress| restart::run(&rig, &plan, machine, progress, terminated))
}
