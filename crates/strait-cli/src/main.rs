//! The program `strait`: its commands, their exit codes and what they print.
//!
//! Each command is a module with an `Args` and a `run`. This file parses the line, calls the
//! command and turns its error into one line on stderr and an exit code: 0 done, 1 failed, 2 usage,
//! 3 refused.

mod bench;
mod bulk;
mod cache;
mod capture;
mod demo;
mod doctor;
mod error;
mod generate;
mod input;
mod lanes;
mod live;
mod output;
mod parse;
mod proxy;
mod receive;
mod relay;
mod replay;
mod run;
mod send;
mod shell;
mod standard;
mod top;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use mimalloc::MiMalloc;

pub(crate) use error::Error;
use standard::Streams;

/// A response on its way takes some twenty pieces of memory, a few of them of kilobytes: the C
/// library keeps only smaller ones ready.
#[global_allocator]
static MEMORY: MiMalloc = MiMalloc;

/// Moves network bytes on Linux without copying them, and counts every byte that had to be copied.
#[derive(Parser)]
#[command(name = "strait", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Strait {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed, also where a file cannot be opened; 2 a mistake on the command line or in a configuration;
3 a privilege, a kernel feature or a library is missing.";

#[derive(Subcommand)]
enum Command {
    /// Capture packets on any kernel path, with one filter language and a ledger that closes.
    Capture(Box<capture::Args>),
    /// Send numbered, time-stamped traffic.
    Generate(Box<generate::Args>),
    /// Send the packets of a capture file.
    Replay(replay::Args),
    /// Run a libpcap program, unmodified, on this engine.
    Run(run::Args),
    /// Send a file or standard input to strait receive, without a copy where that is possible.
    Send(send::Args),
    /// Receive what strait send sends.
    Receive(receive::Args),
    /// Relay TCP connections inside the kernel.
    Relay(relay::Args),
    /// Cache HTTP between clients and servers, with bodies that stay in the kernel.
    Proxy(Box<proxy::Args>),
    /// See, forget and check what strait proxy has stored.
    Cache(cache::Args),
    /// Watch an interface: rates, losses by cause, top flows, delays.
    Top(top::Args),
    /// Measure what each way to capture and to send, and each caching proxy, can do on this
    /// machine.
    Bench(Box<bench::Args>),
    /// Say what this machine and an interface allow, why, and what would improve it.
    Doctor(doctor::Args),
    /// See what it is for: five short parts on traffic of its own, in network namespaces of its
    /// own.
    Demo(demo::Args),
    /// Print a completion script for a shell.
    Completions(shell::CompletionArgs),
    /// Write the man pages to a directory.
    Man(shell::ManArgs),
}

impl Command {
    /// The standard streams that carry data of this command. An account in words is a notice.
    fn streams(&self) -> Streams {
        match self {
            Self::Capture(args) => args.streams(),
            Self::Receive(args) => args.streams(),
            Self::Send(args) => args.streams(),
            Self::Replay(args) => args.streams(),
            Self::Generate(args) => args.streams(),
            Self::Relay(args) => args.streams(),
            Self::Proxy(args) => args.streams(),
            // The program that is run knows what it prints.
            Self::Run(_) | Self::Man(_) => Streams::default(),
            Self::Cache(_)
            | Self::Top(_)
            | Self::Bench(_)
            | Self::Doctor(_)
            | Self::Demo(_)
            | Self::Completions(_) => Streams::output(true),
        }
    }

    fn run(self) -> Result<(), Error> {
        self.streams().check()?;
        match self {
            Self::Capture(args) => capture::run(&args),
            Self::Generate(args) => generate::run(&args),
            Self::Replay(args) => replay::run(&args),
            Self::Run(args) => run::run(&args),
            Self::Send(args) => send::run(&args),
            Self::Receive(args) => receive::run(&args),
            Self::Relay(args) => relay::run(&args),
            Self::Proxy(args) => proxy::run(&args),
            Self::Cache(args) => cache::run(&args),
            Self::Bench(args) => bench::run(&args),
            Self::Doctor(args) => doctor::run(&args),
            Self::Top(args) => top::run(&args),
            Self::Demo(args) => demo::run(&args),
            Self::Completions(args) => shell::completions(&args, &mut Strait::command()),
            Self::Man(args) => shell::man(&args, Strait::command()),
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let done = match Strait::try_parse_from(&words) {
        Ok(strait) => strait.command.run(),
        Err(mistake) => match usage::print(&mistake, &Strait::command(), &words) {
            Ok(false) => return ExitCode::from(USAGE),
            printed => printed.map(drop),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_reader_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::tell(format_args!("strait: {error}\n"));
            ExitCode::from(error.exit_code())
        }
    }
}

/// The exit code of a command line with a mistake.
const USAGE: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_does_not_contradict_itself() {
        Strait::command().debug_assert();
    }
}
