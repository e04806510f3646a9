//! `strait demo`: the same traffic on every path, a burst compared with tcpdump, the delay of a
//! libpcap program, a miss and a hit of the proxy, a resumed transfer. Each sentence that it prints
//! follows from the figures just measured.
//!
//! Apart from Strait's programs it runs only tcpdump, for comparison. Its two network namespaces
//! are anonymous: the kernel removes them with the process. Without root it works in a user
//! namespace, in which BPF is not allowed: the tap and AF_XDP are then reported as skipped.

mod args;
mod burst;
mod child;
mod delay;
mod http;
mod part;
mod resume;
mod rig;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value, json};
use strait_capture::Path;
use strait_os::netlink::Netlink;
use strait_program::Failure as _;

pub(crate) use self::args::Args;
use self::part::{Outcome, PartResult, Progress, Topic};
use self::rig::{Captured, Rig, interrupted};
use self::table::Row;
use crate::Error;
use crate::output::print_line;

const PATHS: [Path; 5] = [Path::Recv, Path::V2, Path::V3, Path::Tap, Path::Xdp];

const PATHS_TOPIC: Topic = Topic {
    key: "paths",
    title: "The same packets on every kernel path",
    next: "{strait} doctor     # the paths of this machine, and improvements",
};
/// A part of the demo: its topic and its function.
type Part = (Topic, fn(&Rig, &AtomicBool) -> Result<Outcome, Error>);
/// The parts after the first.
const PARTS: [Part; 4] = [
    (burst::TOPIC, burst::run),
    (delay::TOPIC, delay::run),
    (http::TOPIC, |rig, _| http::run(rig)),
    (resume::TOPIC, |rig, _| resume::run(rig)),
];
/// Interface number of the loopback.
const LOOPBACK: u32 = 1;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    if let Some(interface) = &args.libpcap_program {
        return delay::read(interface);
    }
    let terminated = strait_os::process::on_termination()?;
    let privileged = strait_os::process::is_root();
    if !privileged {
        strait_os::netns::unshare_user()?;
        Netlink::open()?.set_up(LOOPBACK, true)?;
    }
    let rig = Rig::new()?;
    let mut progress = Progress::new(1 + PARTS.len());
    let mut figures = Map::new();
    progress.next(PATHS_TOPIC.title);
    let rows = captures(&rig, args, privileged, terminated, &progress);
    progress.clear();
    let rows = rows?;
    let mut first_failure = rows.iter().find_map(Row::failure);
    finish(args, 1, &PATHS_TOPIC, &paths(&rows, args, first_failure.as_ref())?, &mut figures)?;
    for (number, (topic, part)) in (2..).zip(&PARTS) {
        progress.next(topic.title);
        let outcome = part(&rig, terminated);
        progress.clear();
        if terminated.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        // The other parts still run; the exit code reports the failure at the end.
        let outcome = outcome.unwrap_or_else(|error| Outcome::of(&error));
        let failure = outcome.failure().map(|reason| format!("part {number} failed: {reason}"));
        first_failure = first_failure.or(failure);
        finish(args, number, topic, &outcome, &mut figures)?;
    }
    if args.json {
        print_line(&Value::Object(figures).to_string())?;
    } else if first_failure.is_none() {
        print_line(
            "Strait moves network bytes without copying them where the kernel can, and accounts for each one.",
        )?;
        print_line("More: README.md, strait --help")?;
    }
    first_failure.map_or(Ok(()), |first_failure| Err(Error::Failed(first_failure)))
}

/// Captures the same traffic on every path.
fn captures(
    rig: &Rig,
    args: &Args,
    privileged: bool,
    terminated: &AtomicBool,
    progress: &Progress,
) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    let mut reference: Option<Captured> = None;
    for path in PATHS {
        let name = path.name();
        if terminated.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        if matches!(path, Path::Tap | Path::Xdp) && !privileged {
            rows.push(Row::skipped(name, "needs root (CAP_BPF, CAP_NET_ADMIN)".into()));
            continue;
        }
        progress.step(&format!("{}: {name}", PATHS_TOPIC.title));
        let captured = match rig.capture(path, args, terminated) {
            // Older kernels have no hooks for it.
            Err(error) if path == Path::Tap && error.exit_code() == part::REFUSED => {
                rows.push(Row::skipped(name, error.to_string()));
                continue;
            }
            captured => captured?,
        };
        rows.push(Row::of(name, &captured, reference.as_ref().unwrap_or(&captured)));
        reference.get_or_insert(captured);
    }
    Ok(rows)
}

fn paths(rows: &[Row], args: &Args, first_failure: Option<&String>) -> Result<Outcome, Error> {
    let sentence = match first_failure {
        None => "Each path delivered the same packets, byte for byte, and each ledger balances: received = delivered + filtered + lost.".into(),
        Some(first_failure) => format!("{first_failure}."),
    };
    let figures = serde_json::to_value(rows).map_err(|error| Error::Failed(error.to_string()))?;
    Ok(Outcome::Complete(PartResult {
        lines: table::lines(rows, args.filter_line()),
        sentence,
        is_failed: first_failure.is_some(),
        figures,
    }))
}

/// Prints a part, or adds it to the JSON object.
fn finish(
    args: &Args,
    number: usize,
    topic: &Topic,
    outcome: &Outcome,
    figures: &mut Map<String, Value>,
) -> Result<(), Error> {
    if args.json {
        figures.insert(topic.key.to_owned(), json!(part::value(outcome)));
        return Ok(());
    }
    part::print(number, topic, outcome)
}
