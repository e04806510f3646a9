//! An unmodified libpcap program on stock libpcap and on Strait's drop-in: effect of its read
//! timeout.
//!
//! The program is `peers/pcap_count.c`, with the read timeout of tcpdump; `strait run` starts it.
//! Stock libpcap delivers its packets after the timeout or, in immediate mode, one by one.

use lab::Wire;

use crate::capture::SIZE;
use crate::claim::{Bound, Claim};
use crate::contestants::{self, Generator, PATHS, Receiver, STOCK_IMMEDIATE, WAITS};
use crate::error::Result;
use crate::measure;
use crate::results::Results;
use crate::run::{Contest, Context};
use crate::table::{self, Column};
use crate::tools::Tools;

const ABOUT: &str = "A program of libpcap's C API, on stock libpcap with timeouts of 1000, 100 and 1 ms and in immediate \
    mode, and unchanged, with 1000 ms and no immediate mode, under strait run. Delays of 60-byte frames from the \
    generator's stamp to the program's callback, and from the time in the packet's header (captured_*; on xdp \
    Strait's XDP program takes that time). idle: one frame every 1 to 20 ms; bursts: 32 of them; \
    both for 5 seconds at least; load: 300,000 packets/s. \
    Generator on CPU 0, program on CPU 1.";

/// Read timeout, as in tcpdump.
const TIMEOUT_MS: u32 = 1000;
/// Longest pause of a quiet line.
const PAUSE_MS_MAX: u32 = 20;
/// A quiet line sends 95 times a second: in a shorter time the 99th percentile would be the one or
/// two slowest packets.
const QUIET_SECONDS_MIN: f64 = 5.0;
/// Frames of a burst.
const BURST: u32 = 32;
/// Rate under load, in packets/s.
const RATE: &str = "300000";
/// Default path and wait policy of `strait run`.
const DEFAULT: &str = "auto balanced";
/// Name of the program on stock libpcap with [`TIMEOUT_MS`].
const STOCK_TIMEOUT: &str = "libpcap 1000 ms";

const COLUMNS: [Column; 8] = [
    Column { title: "offered k/s", figure: "offered_pps", scale: 1e-3, decimals: 1, ratio: false },
    Column { title: "p50 us", figure: "p50_us", scale: 1.0, decimals: 1, ratio: false },
    Column { title: "p99 us", figure: "p99_us", scale: 1.0, decimals: 1, ratio: true },
    Column { title: "max us", figure: "max_us", scale: 1.0, decimals: 0, ratio: false },
    Column { title: "captured p50 us", figure: "captured_p50_us", scale: 1.0, decimals: 1, ratio: false },
    Column { title: "captured p99 us", figure: "captured_p99_us", scale: 1.0, decimals: 1, ratio: false },
    Column { title: "CPU us/packet", figure: "cpu_s_per_million", scale: 1.0, decimals: 3, ratio: true },
    Column { title: "lost", figure: "lost_packets", scale: 1.0, decimals: 0, ratio: false },
];

/// Measures, prints the tables and returns the results with their claims.
pub(crate) fn run(context: &Context) -> Result<Results> {
    let mut results = context.results("dropin", ABOUT);
    let (wire, tools) = (measure::plain_wire()?, &context.tools);
    let quiet_seconds = context.seconds.max(QUIET_SECONDS_MIN);
    let quiet =
        |batch| (contestants::send_at_times(tools, batch, PAUSE_MS_MAX, quiet_seconds), quiet_seconds);
    let full = contestants::generate(tools, "sendmmsg", RATE, SIZE, context.seconds);
    let loads = [
        ("idle", quiet(1), &WAITS[..]),
        ("bursts", quiet(BURST), &["balanced"]),
        ("load", (full, context.seconds), &WAITS[..]),
    ];
    let mut contests = Vec::new();
    for (load, generator, waits) in &loads {
        let receivers = receivers(tools, waits).into_iter();
        contests.extend(receivers.map(|receiver| contest(tools, load, &wire, receiver, generator)));
    }
    context.run(&mut results, &contests, context.rounds)?;
    results.claims = claims(&results);
    for (load, ..) in &loads {
        print!("{}", table::of_series(&results, &format!("{load}/"), STOCK_IMMEDIATE, &COLUMNS));
    }
    Ok(results)
}

/// Returns the program on libpcap, and on each path of Strait with each wait policy.
fn receivers(tools: &Tools, waits: &[&str]) -> Vec<Receiver> {
    let (patient, immediate) =
        (contestants::timed_out(tools, TIMEOUT_MS), contestants::stock_delays(tools, true));
    let mut receivers = vec![patient.clone()];
    receivers.extend([100, 1].map(|timeout_ms| contestants::timed_out(tools, timeout_ms)));
    receivers.push(immediate.clone());
    for path in ["auto"].iter().chain(&PATHS) {
        receivers.extend(waits.iter().map(|wait| contestants::dropin(tools, path, wait, &patient)));
    }
    let mut asked = contestants::dropin(tools, "auto", "balanced", &immediate);
    asked.name += ", immediate";
    receivers.push(asked);
    receivers
}

fn contest<'a>(
    tools: &'a Tools,
    load: &str,
    wire: &'a Wire,
    receiver: Receiver,
    (generator, seconds): &'a (Generator, f64),
) -> Contest<'a> {
    Contest::new(format!("{load}/{}", receiver.name), move || {
        measure::point(tools, wire, &receiver, generator, *seconds)
    })
}

fn claims(results: &Results) -> Vec<Claim> {
    vec![
        prompt(results, "idle", "one packet every 1 to 20 ms"),
        prompt(results, "bursts", "32 packets every 1 to 20 ms"),
        Claim::of_ratio(
            "The same on stock libpcap, timeout 1000 ms, one packet every 1 to 20 ms: median delay, to strait run",
            results,
            "p50_us",
            (&at("idle", STOCK_TIMEOUT), &at("idle", DEFAULT)),
            Bound::AtLeast(1000.0),
        ),
        Claim::of_ratio(
            "libpcap program under strait run, 300,000 packets/s: CPU, to stock immediate mode",
            results,
            "cpu_s_per_million",
            (&at("load", DEFAULT), &at("load", STOCK_IMMEDIATE)),
            Bound::AtMost(0.25),
        ),
        Claim::of_figure(
            "libpcap program under strait run, 300,000 packets/s: packets lost",
            results,
            (&at("load", DEFAULT), "lost_packets"),
            (1.0, "packets"),
            Bound::AtMost(0.0),
        )
        .worst(),
    ]
}

/// Claims that without requesting immediate mode, a program gets packets as soon as one in that
/// mode.
fn prompt(results: &Results, load: &str, described: &str) -> Claim {
    let text = format!("libpcap program under strait run, {described}: p99 delay, to stock immediate mode");
    let series = (at(load, DEFAULT), at(load, STOCK_IMMEDIATE));
    Claim::of_ratio(text, results, "p99_us", (&series.0, &series.1), Bound::AtMost(1.2))
}

/// Returns the name of the series of `receiver` under `load`.
fn at(load: &str, receiver: &str) -> String {
    format!("{load}/{receiver}")
}
