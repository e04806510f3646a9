//! The delay of packets to a libpcap program, alone and under `strait run`. The program is strait
//! itself: it opens libpcap like other programs, with tcpdump's read timeout.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use strait_capture::libpcap::{Options, Reader};
use strait_os::clock;

use super::child::strait;
use super::part::{Outcome, PartResult, Topic};
use super::rig::Rig;
use crate::Error;
use crate::output::{print_line, print_stderr};

pub(super) const TOPIC: Topic = Topic {
    key: "delay",
    title: "The delay of packets to an unmodified libpcap program",
    next: "sudo {strait} run -- tcpdump -ni any port 53",
};

/// Number of sent packets, and the time between two of them.
const PACKETS: u64 = 100;
const PAUSE: Duration = Duration::from_millis(20);
/// tcpdump's read timeout.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit of the program for all packets.
const READ_MAX: Duration = Duration::from_secs(15);
const LISTENING: &str = "demo reader: listening";

/// Runs the part.
pub(super) fn run(rig: &Rig, terminated: &AtomicBool) -> Result<Outcome, Error> {
    let reader = strait(&["demo", "--libpcap-program", rig.interface()])?;
    let own = reader.get_program().to_string_lossy().into_owned();
    let report = rig.file("delay.txt");
    let under = ["run", "--strict", &format!("--report={}", report.display()), "--", &*own];
    let under = strait(&[&under[..], &["demo", "--libpcap-program", rig.interface()]].concat())?;
    let alone = measure(rig, reader, terminated)?;
    let under = measure(rig, under, terminated)?;
    if !report.exists() {
        return Err(Error::Failed("strait run did not replace libpcap".into()));
    }
    Ok(Outcome::Complete(show(&alone, &under)))
}

fn measure(rig: &Rig, command: std::process::Command, terminated: &AtomicBool) -> Result<Value, Error> {
    let child = rig.start(command, |child| child.line_after(LISTENING).is_some())?;
    rig.send_slowly(PACKETS, PAUSE, terminated)?;
    child.end()?.json("the libpcap program")
}

fn show(alone: &Value, under: &Value) -> PartResult {
    let of = |figures: &Value, name: &str| figures[name].as_u64().unwrap_or_default();
    let line = |name: &str, figures: &Value| {
        format!(
            "{name:<17} {} packets, median delay {}, longest {}",
            of(figures, "packets"),
            micros(of(figures, "median_us")),
            micros(of(figures, "max_us"))
        )
    };
    let (before, after) = (of(alone, "median_us"), of(under, "median_us"));
    let is_failed = [alone, under].iter().any(|figures| of(figures, "packets") != PACKETS);
    let sentence = if is_failed {
        format!("Not all of the {PACKETS} packets reached the program.")
    } else if after < before {
        format!(
            "libpcap delays packets by up to its read timeout ({} s here); under strait run the same program gets them on arrival.",
            TIMEOUT.as_secs()
        )
    } else {
        "On this machine strait run made no difference to the delay.".into()
    };
    PartResult {
        lines: vec![line("alone", alone), line("under strait run", under)],
        sentence,
        is_failed,
        figures: json!({ "alone": alone, "under_strait_run": under }),
    }
}

fn micros(us: u64) -> String {
    if us < 10_000 { format!("{us} us") } else { format!("{} ms", us / 1000) }
}

/// Runs the libpcap program: reads [`PACKETS`] packets and prints their delays.
pub(super) fn read(interface: &str) -> Result<(), Error> {
    let options = Options { snaplen: 262_144, timeout: TIMEOUT, immediate: false, promiscuous: true };
    let mut reader = Reader::open(interface, options)?;
    print_stderr(format_args!("{LISTENING}\n"));
    let mut delays_us = Vec::new();
    let deadline = Instant::now() + READ_MAX;
    while (delays_us.len() as u64) < PACKETS && Instant::now() < deadline {
        reader.dispatch(&mut |packet| {
            delays_us.push(clock::realtime_ns().saturating_sub(packet.timestamp_ns) / 1000);
        })?;
    }
    delays_us.sort_unstable();
    let at = |index: usize| delays_us.get(index).copied().unwrap_or_default();
    let (median, max) = (at(delays_us.len() / 2), at(delays_us.len().saturating_sub(1)));
    Ok(print_line(&json!({ "packets": delays_us.len(), "median_us": median, "max_us": max }).to_string())?)
}
