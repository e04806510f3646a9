//! The program `strait`: its commands, their exit codes and what they print.
//!
//! Each command is a module with an `Args` and a `run`. This file parses the line, calls the command and turns its
//! error into one line on stderr and an exit code: 0 done, 1 failed, 2 usage, 3 refused.

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
mod top;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use mimalloc::MiMalloc;

pub(crate) use error::Error;

/// A response on its way takes some twenty pieces of memory, a few of them of kilobytes: the C library keeps only smaller ones ready.
#[global_allocator]
static MEMORY: MiMalloc = MiMalloc;

/// Moves network bytes on Linux without copying them, and counts every byte that had to be copied.
#[derive(Parser)]
#[command(name = "strait", version, arg_required_else_help = true)]
struct Strait {
    #[command(subcommand)]
    command: Command,
}

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
    /// Measure what each way to capture and to send, and each caching proxy, can do on this machine.
    Bench(Box<bench::Args>),
    /// Say what this machine and an interface allow, why, and what would improve it.
    Doctor(doctor::Args),
    /// See what it is for: five short parts on traffic of its own, in network namespaces of its own.
    Demo(demo::Args),
    /// Print a completion script for a shell.
    Completions(shell::CompletionArgs),
    /// Write the man pages to a directory.
    Man(shell::ManArgs),
}

fn main() -> ExitCode {
    let done = match Strait::parse().command {
        Command::Capture(args) => capture::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Send(args) => send::run(&args),
        Command::Receive(args) => receive::run(&args),
        Command::Relay(args) => relay::run(&args),
        Command::Proxy(args) => proxy::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Completions(args) => shell::completions(&args, &mut Strait::command()),
        Command::Man(args) => shell::man(&args, Strait::command()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_does_not_contradict_itself() {
        Strait::command().debug_assert();
    }
}
