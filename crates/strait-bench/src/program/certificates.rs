//! `strait bench certificates`: start and reload of the proxy with many certificates.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use strait_bench::certificates::{self, Plan};
use strait_program::Error;

use crate::options::SharedOptions;
use crate::start::launcher;

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait bench certificates
  strait bench certificates --certificates 1000,10000 --rounds 5 --save certificates.json

RSA keys are made by openssl. 10,000 certificates take 80 MB of --dir in each round.")]
pub(crate) struct Args {
    /// Numbers of certificates
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "10000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    certificates: Vec<u32>,
    /// Directory for the files [default: the one for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    options: SharedOptions,
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    args.options.check_files()?;
    let terminated = strait_os::process::on_termination()?;
    let plan = Plan { certificates: args.certificates.clone(), rounds: args.options.rounds };
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let launcher = launcher()?;
    args.options
        .measure(|machine, progress| certificates::run(&launcher, &dir, &plan, machine, progress, terminated))
}
