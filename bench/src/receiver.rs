//! A program on Strait's engine that reads the probes of generated packets and measures their
//! delay.
//!
//! The latency benchmark starts it as a child on each path with each wait policy. It works like
//! `peers/pcap_count.c -l` with libpcap: take the packet, read the clock, record the difference.

use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::{Args as ClapArgs, ValueEnum};
use serde::Serialize;
use strait_capture::{Batch, Lane, Path, Session, Wait};
use strait_ledger::Histogram;
use strait_packet::probe;
use strait_sys::clock;

use crate::error::{Error, Result};

/// Interval between two checks of the end flag.
const TICK: Duration = Duration::from_millis(100);

/// Options of the receiver.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Interface to capture on
    #[arg(short, long)]
    interface: String,
    /// Kernel path
    #[arg(long, value_enum)]
    path: PathArg,
    /// Wait policy
    #[arg(long, value_enum)]
    wait: WaitArg,
}

#[derive(Clone, Copy, ValueEnum)]
enum PathArg {
    Recv,
    V2,
    V3,
    Xdp,
}

#[derive(Clone, Copy, ValueEnum)]
enum WaitArg {
    Latency,
    Balanced,
    Busy,
}

/// Output of the receiver.
#[derive(Serialize)]
struct Account {
    delivered: u64,
    received: u64,
    lost: u64,
    path: &'static str,
    mode: String,
    delay: Histogram,
}

/// Captures until SIGINT and prints the account as one JSON object.
pub(crate) fn run(args: &Args) -> Result<()> {
    let terminated = strait_sys::process::on_termination()?;
    let mut session = args.open()?;
    let mut lane = session.take_lanes().remove(0);
    lane.enter_thread()?;
    let mut delays = Histogram::new();
    eprintln!("ready");
    while !terminated.load(Ordering::Relaxed) {
        if !take(&mut lane, &mut delays)? {
            break;
        }
    }
    session.stop()?;
    while take(&mut lane, &mut delays)? {}
    let report = session.report(vec![lane.finish()?]);
    print(&Account {
        delivered: report.capture.delivered,
        received: report.capture.received,
        lost: report.capture.lost.total(),
        path: session.path(),
        mode: session.mode().to_owned(),
        delay: delays,
    })
}

/// Reads one batch; returns false after the last.
fn take(lane: &mut Lane, delays: &mut Histogram) -> Result<bool> {
    let Some(mut batch) = lane.next_batch(Instant::now() + TICK)? else { return Ok(false) };
    record(&mut batch, delays);
    Ok(true)
}

fn record(batch: &mut Batch<'_>, delays: &mut Histogram) {
    for frame in batch.frames() {
        if let Some(probe) = probe::read(frame.bytes) {
            delays.record(clock::realtime_ns().saturating_sub(probe.sent_ns));
        }
    }
}

fn print(account: &Account) -> Result<()> {
    let failed = |source| Error::file("write to standard output", source);
    let text = serde_json::to_string(account).map_err(|error| failed(error.into()))?;
    writeln!(std::io::stdout(), "{text}").map_err(failed)
}

impl Args {
    fn open(&self) -> Result<Session> {
        let path = match self.path {
            PathArg::Recv => Path::Recv,
            PathArg::V2 => Path::V2,
            PathArg::V3 => Path::V3,
            PathArg::Xdp => Path::Xdp,
        };
        let wait = match self.wait {
            WaitArg::Latency => Wait::Latency,
            WaitArg::Balanced => Wait::Balanced,
            WaitArg::Busy => Wait::Busy,
        };
        Ok(Session::builder(self.interface.clone()).path(path).wait(wait).open()?)
    }
}
