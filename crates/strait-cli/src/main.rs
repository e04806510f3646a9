//! The program `strait`: its commands and their exit codes.
//!
//! Each command is a module with an `Args` and a `run`, or an external program (`external.rs`).
//! Exit codes: 0 done, 1 failed, 2 usage, 3 refused.

mod bulk;
mod capture;
mod demo;
mod doctor;
mod drops;
mod error;
mod extcap;
mod external;
mod generate;
mod input;
mod lanes;
mod limit;
mod live;
mod metrics;
mod namespace;
mod output;
mod parse;
mod receive;
mod relay;
mod replay;
mod requests;
mod run;
mod send;
mod sink;
mod tap_broker;
mod terminal;
mod toolbar;
mod top;
mod trust;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use strait_program::{Streams, pages};

pub(crate) use error::Error;

/// Moves network bytes on Linux without copying them, and counts every byte that had to be copied.
#[derive(Parser)]
#[command(name = "strait", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Strait {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed, also if a file cannot be opened; 2 an error on the command line or in a configuration;
3 a privilege, a kernel feature, a library or a program is missing.";

#[derive(Subcommand)]
enum Command {
    /// Capture packets on any kernel path, with one filter language and a ledger that balances.
    Capture(Box<capture::Args>),
    /// Send numbered, time-stamped traffic.
    Generate(Box<generate::Args>),
    /// Send the packets of a capture file.
    Replay(replay::Args),
    /// Run an unmodified libpcap program on Strait's engine.
    Run(run::Args),
    /// Send a file or standard input to strait receive, without a copy if possible.
    Send(send::Args),
    /// Receive a transfer of strait send.
    Receive(receive::Args),
    /// Relay TCP connections inside the kernel.
    Relay(relay::Args),
    /// Watch an interface: rates, losses by cause, top flows, delays.
    Top(top::Args),
    /// Count the packets that the kernel drops, by reason and function.
    Drops(drops::Args),
    /// Capture for Wireshark and tshark, which start this command.
    Extcap(extcap::Args),
    /// Examine this machine and an interface, and print fixes.
    Doctor(doctor::Args),
    /// Demonstrate Strait in five short parts, with generated traffic in private network
    /// namespaces.
    Demo(demo::Args),
    /// Open taps for a program under `strait run`, which starts this command.
    #[command(hide = true)]
    TapBroker(tap_broker::Args),
    /// Print a completion script for a shell.
    Completions(pages::CompletionArgs),
    /// Write the man pages to a directory.
    Man(pages::ManArgs),
}

impl Command {
    /// Returns the standard streams that carry data of this command. A textual account is not data.
    fn streams(&self) -> Streams {
        match self {
            Self::Capture(args) => args.streams(),
            Self::Receive(args) => args.streams(),
            Self::Send(args) => args.streams(),
            Self::Replay(args) => args.streams(),
            Self::Generate(args) => args.streams(),
            Self::Relay(args) => args.streams(),
            // A program under `strait run` checks its own streams.
            Self::Run(_) | Self::TapBroker(_) | Self::Man(_) => Streams::default(),
            Self::Drops(_)
            | Self::Top(_)
            | Self::Extcap(_)
            | Self::Doctor(_)
            | Self::Demo(_)
            | Self::Completions(_) => Streams::output(true),
        }
    }

    fn run(self) -> Result<(), Error> {
        self.streams().check()?;
        match self {
            Self::Capture(mut args) => capture::run(&mut args),
            Self::Generate(args) => generate::run(&args),
            Self::Replay(args) => replay::run(&args),
            Self::Run(args) => run::run(&args),
            Self::TapBroker(args) => tap_broker::run(&args),
            Self::Send(args) => send::run(&args),
            Self::Receive(args) => receive::run(&args),
            Self::Relay(args) => relay::run(&args),
            Self::Doctor(args) => doctor::run(&args),
            Self::Top(args) => top::run(&args),
            Self::Drops(args) => drops::run(&args),
            Self::Extcap(args) => extcap::run(&args),
            Self::Demo(args) => demo::run(&args),
            Self::Completions(args) => Ok(pages::completions(
                &args,
                &mut Strait::command().subcommands(external::full_definitions()),
            )?),
            Self::Man(args) => man(&args.directory),
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    match external::parse(&words) {
        Some((external, arguments)) => strait_program::end(external.exec(&arguments)),
        None => strait_program::main(&command(), |strait: Strait| strait.command.run()),
    }
}

/// Definition of the command line, with the external commands.
fn command() -> clap::Command {
    Strait::command().subcommands(external::definitions())
}

/// Writes the man pages of `strait` and of the programs that it starts.
fn man(directory: &Path) -> Result<(), Error> {
    pages::man(directory, command())?;
    external::man(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        command().debug_assert();
    }
}
