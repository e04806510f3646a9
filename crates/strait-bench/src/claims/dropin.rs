//! An unmodified libpcap program on stock libpcap and on Strait's drop-in: effect of its read
//! timeout.
//!
//! The program is `peers/pcap_count.c`, with the read timeout of tcpdump; `strait run` starts it.
//! Stock libpcap delivers its packets after the timeout or, in immediate mode, one by one.

use super::capture::SIZE;
use super::context::{Context, Reporter, Subject, of_figure, of_ratio, point};
use super::measure::{self, plain_wire};
use super::programs::{self, PATHS, Receiver, STOCK_IMMEDIATE, WAITS};
use crate::claim::{Bound, Claim};
use crate::error::Result;
use crate::results::{Key, Results};

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
/// Places of the loads on the axis.
const IDLE: f64 = 0.0;
const BURSTS: f64 = 1.0;
const LOAD: f64 = 2.0;

/// Measures and claims.
pub(super) fn run(context: &Context<'_>, reporter: &mut Reporter<'_>) -> Result<()> {
    let subject = Subject {
        benchmark: "claims dropin",
        about: ABOUT,
        axis: "load",
        labels: &["idle", "bursts", "load"],
    };
    let wire = plain_wire()?;
    let quiet_seconds = context.seconds.max(QUIET_SECONDS_MIN);
    let quiet = |batch| programs::send_at_times(context, batch, PAUSE_MS_MAX, quiet_seconds);
    let full = programs::generate(context, "sendmmsg", RATE, SIZE, context.seconds);
    let loads = [
        (IDLE, quiet(1), quiet_seconds, &WAITS[..]),
        (BURSTS, quiet(BURST), quiet_seconds, &["balanced"]),
        (LOAD, full, context.seconds, &WAITS[..]),
    ];
    let mut points = Vec::new();
    for (load, generator, seconds, waits) in &loads {
        let (launcher, wire) = (&context.launcher, &wire);
        points.extend(receivers(context, waits).into_iter().map(|receiver| {
            point(receiver.name.clone(), *load, move || {
                measure::point(launcher, wire, &receiver, generator, *seconds)
            })
        }));
    }
    context.run(&subject, context.rounds, points, claims, reporter)
}

/// Returns the program on libpcap, and on each path of Strait with each wait policy.
fn receivers(context: &Context<'_>, waits: &[&str]) -> Vec<Receiver> {
    let (patient, immediate) =
        (programs::timed_out(context, TIMEOUT_MS), programs::stock_delays(context, true));
    let mut receivers = vec![patient.clone()];
    receivers.extend([100, 1].map(|timeout_ms| programs::timed_out(context, timeout_ms)));
    receivers.push(immediate.clone());
    for path in ["auto"].iter().chain(&PATHS) {
        receivers.extend(waits.iter().map(|wait| programs::dropin(context, path, wait, &patient)));
    }
    let mut immediate_requested = programs::dropin(context, "auto", "balanced", &immediate);
    immediate_requested.name += ", immediate";
    receivers.push(immediate_requested);
    receivers
}

fn claims(results: &Results) -> Vec<Claim> {
    vec![
        prompt(results, IDLE, "one packet every 1 to 20 ms"),
        prompt(results, BURSTS, "32 packets every 1 to 20 ms"),
        of_ratio(
            "libpcap program on stock libpcap, timeout 1000 ms, one packet every 1 to 20 ms: median delay, to strait run",
            results,
            "p50_us",
            ((STOCK_TIMEOUT, IDLE), (DEFAULT, IDLE)),
            Bound::AtLeast(1000.0),
        ),
        of_ratio(
            "libpcap program under strait run, 300,000 packets/s: CPU, to stock immediate mode",
            results,
            "cpu_s_per_million",
            ((DEFAULT, LOAD), (STOCK_IMMEDIATE, LOAD)),
            Bound::AtMost(0.25),
        ),
        of_figure(
            "libpcap program under strait run, 300,000 packets/s: packets lost",
            results,
            ((DEFAULT, LOAD), "lost_packets"),
            (1.0, "packets"),
            Bound::AtMost(0.0),
        )
        .worst(),
    ]
}

/// Claims that a program without immediate mode gets packets as early as a program in immediate
/// mode.
fn prompt(results: &Results, load: f64, described: &str) -> Claim {
    let text = format!("libpcap program under strait run, {described}: p99 delay, to stock immediate mode");
    let keys: (Key<'_>, Key<'_>) = ((DEFAULT, load), (STOCK_IMMEDIATE, load));
    of_ratio(text, results, "p99_us", keys, Bound::AtMost(1.2))
}
