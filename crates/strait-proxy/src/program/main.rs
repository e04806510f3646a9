//! The program `strait-proxy`, which `strait proxy` and `strait cache` execute.
//!
//! Without a command it runs the proxy; `cache` looks at stored responses. The library has the
//! proxy itself; the command line, signals and messages are here.

mod cache;
mod proxy;
mod small_pages;
mod upgrade;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use mimalloc::MiMalloc;
use strait_program::{Error, Streams, pages};

/// A response in progress has some twenty allocations, a few of them of kilobytes. The C library's
/// allocator caches only smaller ones.
#[global_allocator]
static MEMORY: MiMalloc = MiMalloc;

/// Caches HTTP between clients and servers, with bodies that stay in the kernel.
#[derive(Parser)]
#[command(name = "strait-proxy", version, args_conflicts_with_subcommands = true, after_help = proxy::examples())]
struct Line {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    proxy: proxy::Args,
}

#[derive(Subcommand)]
enum Command {
    /// List, remove and check stored responses.
    Cache(cache::Args),
    /// Print a completion script for a shell.
    Completions(pages::CompletionArgs),
    /// Write the man pages to a directory.
    Man(pages::ManArgs),
}

impl Line {
    /// Standard streams that carry data of the command.
    fn streams(&self) -> Streams {
        match &self.command {
            None => self.proxy.streams(),
            Some(Command::Cache(_) | Command::Completions(_)) => Streams::output(true),
            Some(Command::Man(_)) => Streams::default(),
        }
    }

    fn run(&self) -> Result<(), Error> {
        self.streams().check()?;
        match &self.command {
            None => proxy::run(&self.proxy),
            Some(Command::Cache(args)) => cache::run(args),
            Some(Command::Completions(args)) => Ok(pages::completions(args, &mut Self::command())?),
            Some(Command::Man(args)) => Ok(pages::man(&args.directory, Self::command())?),
        }
    }
}

fn main() -> ExitCode {
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
