//! The program `strait-upload`, which `strait capture --to s3://BUCKET` starts and `strait upload`
//! executes.
//!
//! It sends the complete files of a spool directory to an object store, and removes each one from
//! the directory after that. `strait capture --to nats://HOST/SUBJECT` and `kafka://HOST/TOPIC`
//! start it to publish flows. These clients and their hundred crates are here and not in `strait`,
//! to which users give capabilities.

mod batch;
mod client;
mod http;
mod kafka;
mod nats;
mod publish;
mod spool;
mod store;
mod upload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use strait_os::process::CAP_DAC_OVERRIDE;
use strait_program::broker::Broker;
use strait_program::bucket::Bucket;
use strait_program::{Error, Streams, pages};

use crate::spool::Spool;
use crate::store::Store;

/// Sends the tables in a spool directory to a bucket of Amazon S3 or of a compatible store.
#[derive(Parser)]
#[command(
    name = "strait-upload",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = HELP
)]
struct Line {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    upload: Upload,
}

const HELP: &str = "Environment:
  AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN   credentials
  AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, AWS_CONTAINER_CREDENTIALS_RELATIVE_URI
                                                                other credentials
  AWS_REGION                                                    region [default: us-east-1]
  AWS_ENDPOINT_URL                                              address of another store than Amazon's
  SSL_CERT_FILE                                                 certificates to trust [default: the system's]
Without credentials those of the machine (IMDS) are used.

Examples:
  strait upload /var/spool/strait/lake/raw s3://lake/raw";

#[derive(Args)]
#[group(skip)]
struct Upload {
    /// Spool directory with complete and unfinished files of tables
    #[arg(value_name = "DIR", required = true)]
    directory: Option<PathBuf>,
    /// Bucket, and prefix of the objects: s3://BUCKET/PREFIX
    #[arg(value_name = "URL", required = true)]
    url: Option<Bucket>,
    /// Wait for further files until standard input is closed
    #[arg(long, hide = true)]
    follow: bool,
}

/// Batches of flows come from standard input.
#[derive(Args)]
struct Publish {
    /// Subject or topic of a broker: nats://HOST:PORT/SUBJECT, kafka://HOST:PORT/TOPIC
    #[arg(value_name = "URL")]
    url: Broker,
    /// Identifier of the capture, with which the identifiers of messages start
    #[arg(value_name = "CAPTURE")]
    capture: String,
}

#[derive(Subcommand)]
enum Command {
    /// Publish the flows of a capture, which starts this command.
    #[command(hide = true)]
    Publish(Publish),
    /// Print a completion script for a shell.
    Completions(pages::CompletionArgs),
    /// Write the man pages to a directory.
    Man(pages::ManArgs),
}

impl Line {
    fn run(&self) -> Result<(), Error> {
        match &self.command {
            None => self.upload.run(),
            Some(Command::Publish(args)) => args.run(),
            Some(Command::Completions(args)) => {
                Streams::output(true).check()?;
                Ok(pages::completions(args, &mut Self::command())?)
            }
            Some(Command::Man(args)) => Ok(pages::man(&args.directory, Self::command())?),
        }
    }
}

impl Upload {
    fn run(&self) -> Result<(), Error> {
        let (Some(directory), Some(url)) = (&self.directory, &self.url) else {
            return Err(Error::usage("give a spool directory and a URL"));
        };
        Streams { input: self.follow, output: self.follow }.check()?;
        // The files may belong to another user.
        strait_os::process::drop_capabilities_except(&[CAP_DAC_OVERRIDE])?;
        let terminated = strait_os::process::on_termination()?;
        let store = Store::open(url)?;
        upload::run(&Spool::new(directory), &store, self.follow, terminated)
    }
}

impl Publish {
    fn run(&self) -> Result<(), Error> {
        Streams { input: true, output: true }.check()?;
        strait_os::process::drop_capabilities_except(&[])?;
        // The end of standard input ends the program: Ctrl-C at a terminal is for the capture.
        strait_os::process::on_termination()?;
        publish::run(&self.url, &self.capture)
    }
}

fn main() -> ExitCode {
    // The clients of both commands use the default provider. It can be set once, here.
    let _ = rustls::crypto::ring::default_provider().install_default();
    strait_program::main(&Line::command(), |line: Line| line.run())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_does_not_contradict_itself() {
        Line::command().debug_assert();
    }
}
