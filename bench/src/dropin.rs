//! An unmodified libpcap program on stock libpcap and on Strait's drop-in: what its read timeout decides, and what not.
//!
//! The program is `peers/pcap_count.c`. It asks for the timeout that tcpdump asks for and knows nothing of Strait;
//! `strait run` starts it. Stock libpcap gives it its packets when the timeout is over, or, in immediate mode, each by
//! itself.

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
    generator's stamp to the program's callback, and from the time in the packet's header (captured_*; on xdp that \
    time is the reader's own clock). idle: one frame every 1 to 20 ms; bursts: 32 of them; load: 300,000 packets/s. \
    Generator on CPU 0, program on CPU 1.";

/// The timeout of a program that leaves it at what tcpdump takes.
const TIMEOUT_MS: u32 = 1000;
/// Longest pause of a quiet line.
const PAUSE_MS_MAX: u32 = 20;
/// Frames of a burst.
const BURST: u32 = 32;
/// Packets a second under load.
const RATE: &str = "300000";
/// The default of `strait run`.
const DEFAULT: &str = "auto balanced";
/// The program on stock libpcap with [`TIMEOUT_MS`].
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
    let (wire, tools, seconds) = (measure::plain_wire()?, &context.tools, context.seconds);
    let loads = [
        ("idle", contestants::send_at_times(tools, 1, PAUSE_MS_MAX, seconds)),
        ("bursts", contestants::send_at_times(tools, BURST, PAUSE_MS_MAX, seconds)),
        ("load", contestants::generate(tools, "sendmmsg", RATE, SIZE, seconds)),
    ];
    let mut contests = Vec::new();
    for (load, generator) in &loads {
        contests.extend(receivers(tools).into_iter().map(|to| contest(context, load, &wire, to, generator)));
    }
    context.run(&mut results, &contests, context.rounds)?;
    results.claims = claims(&results);
    for (load, _) in &loads {
        print!("{}", table::of_series(&results, &format!("{load}/"), STOCK_IMMEDIATE, &COLUMNS));
    }
    Ok(results)
}

/// The program on libpcap, then on each path of Strait with each wait policy.
fn receivers(tools: &Tools) -> Vec<Receiver> {
    let (patient, immediate) =
        (contestants::timed_out(tools, TIMEOUT_MS), contestants::stock_delays(tools, true));
    let mut receivers = vec![patient.clone()];
    receivers.extend([100, 1].map(|timeout_ms| contestants::timed_out(tools, timeout_ms)));
    receivers.push(immediate.clone());
    for path in ["auto"].iter().chain(&PATHS) {
        receivers.extend(WAITS.map(|wait| contestants::dropin(tools, path, wait, &patient)));
    }
    let mut asked = contestants::dropin(tools, "auto", "balanced", &immediate);
    asked.name += ", immediate";
    receivers.push(asked);
    receivers
}

fn contest<'a>(
    context: &'a Context,
    load: &str,
    wire: &'a Wire,
    receiver: Receiver,
    generator: &'a Generator,
) -> Contest<'a> {
    Contest::new(format!("{load}/{}", receiver.name), move || {
        measure::point(&context.tools, wire, &receiver, generator, context.seconds)
    })
}

fn claims(results: &Results) -> Vec<Claim> {
    let at = |load: &str, receiver: &str| format!("{load}/{receiver}");
    let (idle, loaded) = (at("idle", DEFAULT), at("load", DEFAULT));
    let lost = results.paired(&[(&loaded, "lost_packets")], |lost| Some(lost[0]));
    vec![
        Claim::of_ratio(
            "A libpcap program under strait run, one packet every 1 to 20 ms: p99 delay, to stock immediate mode",
            results,
            "p99_us",
            (&idle, &at("idle", STOCK_IMMEDIATE)),
            Bound::AtMost(1.2),
        ),
        Claim::of_ratio(
            "The same program on stock libpcap with its timeout of 1000 ms: median delay, to that under strait run",
            results,
            "p50_us",
            (&at("idle", STOCK_TIMEOUT), &idle),
            Bound::AtLeast(1000.0),
        ),
        Claim::of_ratio(
            "A libpcap program under strait run, 300,000 packets/s: CPU, to stock immediate mode",
            results,
            "cpu_s_per_million",
            (&loaded, &at("load", STOCK_IMMEDIATE)),
            Bound::AtMost(0.25),
        ),
        Claim::of_values(
            "A libpcap program under strait run, 300,000 packets/s: packets lost",
            &lost,
            "packets",
            Bound::AtMost(0.0),
        )
        .worst(),
    ]
}
