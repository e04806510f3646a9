//! The program `strait-bench`, which `strait bench` executes: it measures ways to capture
//! and to send, and caching proxies, on this machine.

mod cache;
mod capture;
mod certificates;
mod claims;
mod measured;
mod options;
mod proxy;
mod report;
mod restart;
mod send;
mod start;
mod tax;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use mimalloc::MiMalloc;
use strait_program::{Error, Streams, pages};

/// Allocator of the measured programs, as of `strait-proxy`: a comparison must not measure the C
/// library's allocator.
#[global_allocator]
static MEMORY: MiMalloc = MiMalloc;

/// Measures ways to capture and to send, and caching proxies, on this machine.
#[derive(Parser)]
#[command(name = "strait-bench", version)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Highest rate of each path without loss, by packet size
    Capture(capture::CaptureArgs),
    /// Delay of packets for each path and wait policy, by rate
    Latency(capture::LatencyArgs),
    /// Cost of a capture to its host, compared with no capture
    Tax(tax::Args),
    /// Cost of sends with and without a copy, over loopback, veth and a route that copies nothing
    Send(send::Args),
    /// Response time, throughput and CPU time of caching proxies by Web Polygraph's axes
    Proxy(Box<proxy::Args>),
    /// Hit ratio of the cache's eviction policy on traces, compared with other policies
    Cache(cache::Args),
    /// Start of the proxy after kill -9: time to the first hit, hits and misses
    Restart(restart::Args),
    /// Start and reload of the proxy with many certificates: time and memory
    Certificates(certificates::Args),
    /// Check the claims about Strait's speed against libpcap, tcpdump, programs in C and other
    /// proxies
    Claims(claims::Args),
    /// Ratios of two results, with their spread
    Compare(report::CompareArgs),
    /// Report of saved results
    Report(report::ReportArgs),
    /// Print a completion script for a shell.
    Completions(pages::CompletionArgs),
    /// Write the man pages to a directory.
    Man(pages::ManArgs),
    /// Receive as a measured program does; the benchmarks start it
    #[command(hide = true)]
    Receive(measured::ReceiveArgs),
    /// Send as a measured program does; the benchmarks start it
    #[command(hide = true)]
    Transmit(measured::TransmitArgs),
    /// Relay like a minimal relay; the benchmarks start it
    #[command(hide = true)]
    Pass(measured::PassArgs),
    /// Serve as the origin of proxies; the benchmarks start it
    #[command(hide = true)]
    Origin(measured::OriginArgs),
    /// Send requests to a proxy and check its responses; the benchmarks start it
    #[command(hide = true)]
    Load(measured::LoadArgs),
    /// Execute a measured program; the benchmarks start it
    #[command(hide = true)]
    Exec(measured::ExecArgs),
}

impl Command {
    /// Standard streams that carry data of the command.
    fn streams(&self) -> Streams {
        Streams::output(!matches!(self, Self::Man(_)))
    }

    fn run(&self) -> Result<(), Error> {
        self.streams().check()?;
        match self {
            Self::Capture(args) => capture::run_capture(args),
            Self::Latency(args) => capture::run_latency(args),
            Self::Tax(args) => tax::run(args),
            Self::Send(args) => send::run(args),
            Self::Proxy(args) => proxy::run(args),
            Self::Cache(args) => cache::run(args),
            Self::Restart(args) => restart::run(args),
            Self::Certificates(args) => certificates::run(args),
            Self::Claims(args) => claims::run(args),
            Self::Compare(args) => report::run_compare(args),
            Self::Report(args) => report::run_report(args),
            Self::Completions(args) => Ok(pages::completions(args, &mut Line::command())?),
            Self::Man(args) => Ok(pages::man(&args.directory, Line::command())?),
            Self::Receive(args) => measured::receive(args),
            Self::Transmit(args) => measured::transmit(args),
            Self::Pass(args) => measured::pass(args),
            Self::Origin(args) => measured::origin(args),
            Self::Load(args) => measured::load(args),
            Self::Exec(args) => Err(measured::exec(args)),
        }
    }
}

fn main() -> ExitCode {
    strait_program::main(&Line::command(), |line: Line| line.command.run())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Line::command().debug_assert();
    }
}
