//! A burst that fits into the ring of neither tcpdump nor `strait capture`, and their reports of
//! the lost packets.

use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::child::{Child, strait};
use super::part::{Outcome, PartResult, Topic};
use super::rig::Rig;
use crate::Error;

pub(super) const TOPIC: Topic = Topic {
    key: "burst",
    title: "A burst while the reader pauses: each lost packet has a cause",
    next: "sudo {strait} capture -i any -w all.pcapng",
};

/// Packets of the burst: several times the capacity of either program's ring.
const PACKETS: u64 = 200_000;
/// Time for the programs to empty their rings.
const DRAIN: Duration = Duration::from_millis(1500);

/// Runs the part.
pub(super) fn run(rig: &Rig, terminated: &AtomicBool) -> Result<Outcome, Error> {
    let capture = capture(rig)?;
    let tcpdump = tcpdump(rig);
    let before = rig.received()?;
    let both = || [Some(&capture), tcpdump.as_ref().ok()].into_iter().flatten();
    both().for_each(|child| child.signal(Signal::STOP));
    let sent = rig.send_burst(PACKETS, terminated);
    both().for_each(|child| child.signal(Signal::CONT));
    let sent = sent?;
    strait_os::wait::sleep(DRAIN);
    let arrived = rig.received()? - before;
    both().for_each(|child| child.signal(Signal::INT));
    let report = capture.end()?.json("strait capture")?;
    let tcpdump = tcpdump.and_then(|child| Ok(counts(&child.end()?.stderr)));
    Ok(Outcome::Complete(show(sent, arrived, &report, tcpdump.as_ref())))
}

fn capture(rig: &Rig) -> Result<Child, Error> {
    let file = rig.file("burst.pcapng");
    let options =
        ["capture", "-i", rig.interface(), "--direction", "in", "--json", "-w", &*file.to_string_lossy()];
    let command = strait(&options)?;
    let part = rig.file("burst.pcapng.part");
    rig.start(command, |_| part.exists())
}

fn tcpdump(rig: &Rig) -> Result<Child, Error> {
    let mut command = Command::new("tcpdump");
    // -Z root: in a user namespace tcpdump cannot change the owner of its file to its own user.
    let file = rig.file("tcpdump.pcap");
    command.args(["-n", "-Q", "in", "-Z", "root", "-i", rig.interface(), "-w"]).arg(file);
    rig.start(command, |child| child.line_after("listening on").is_some())
}

/// Returns tcpdump's final counts: packets captured, received by filter, dropped by kernel.
fn counts(stderr: &str) -> Option<[u64; 3]> {
    let count = |words: &str| {
        let line = stderr.lines().find(|line| line.contains(words))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some([count("captured")?, count("received by filter")?, count("dropped by kernel")?])
}

fn show(sent: u64, arrived: u64, report: &Value, tcpdump: Result<&Option<[u64; 3]>, &Error>) -> PartResult {
    let count = |name: &str| report[name].as_u64().unwrap_or_default();
    let losses = report["lost"].as_object().into_iter().flatten();
    let lost: Vec<(String, u64)> = losses
        .filter_map(|(place, count)| Some((place.replace('_', " "), count.as_u64()?)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let total: u64 = lost.iter().map(|(_, count)| count).sum();
    let places: Vec<String> = lost.iter().map(|(place, count)| format!("{place} {count}")).collect();
    let mut lines = vec![format!("sent {sent}, of which the interface counted {arrived}")];
    let mut has_tcpdump_failed = false;
    let tcpdump = match tcpdump {
        Ok(Some([captured, received, dropped])) => {
            lines.push(format!(
                "tcpdump         captured {captured}, received by filter {received}, dropped by kernel {dropped}"
            ));
            json!({ "captured": captured, "received": received, "dropped": dropped })
        }
        Err(error) if is_missing(error) => without_tcpdump(&mut lines, "SKIP", &missing(error)),
        failed => {
            has_tcpdump_failed = true;
            let reason = failed.map_or_else(ToString::to_string, |_| "it printed no counts".into());
            without_tcpdump(&mut lines, "FAILED", &reason)
        }
    };
    lines.push(format!(
        "strait capture  received {} = delivered {} + filtered {} + lost {total}{}",
        count("received"),
        count("delivered"),
        count("filtered"),
        if places.is_empty() { String::new() } else { format!(" ({})", places.join(", ")) },
    ));
    let closes = count("received") == count("delivered") + count("filtered") + total;
    let is_failed = has_tcpdump_failed || !closes || count("received") != arrived;
    let sentence = match (total, closes && count("received") == arrived) {
        (_, true) if is_failed => "tcpdump failed, so there is nothing to compare with.".into(),
        (_, false) => format!("Strait's ledger does not account for the {arrived} packets that arrived."),
        (0, true) => "Nothing was lost on this machine; the ledger still accounts for every packet.".into(),
        (_, true) => "Strait's ledger accounts for every packet that the interface counted, and names the cause of each loss.".into(),
    };
    let figures = json!({ "sent": sent, "arrived": arrived, "tcpdump": tcpdump, "ledger": report });
    PartResult { lines, sentence, is_failed, figures }
}

/// Returns true if tcpdump is not installed, or is not allowed to capture here.
fn is_missing(error: &Error) -> bool {
    const REFUSALS: [&str; 3] = ["permission", "Permission denied", "Operation not permitted"];
    let message = error.to_string();
    matches!(error, Error::NoProgram(_)) || REFUSALS.iter().any(|words| message.contains(words))
}

/// Returns the reason for a missing tcpdump. Where a user namespace forbids setgroups(2), tcpdump
/// fails to keep its own user, and its message names the wrong remedy.
fn missing(error: &Error) -> String {
    let message = error.to_string();
    if message.contains("change to 'root'") {
        return "tcpdump cannot keep its user in a user namespace; it takes part if root runs the demo"
            .into();
    }
    message
}

fn without_tcpdump(lines: &mut Vec<String>, mark: &str, reason: &str) -> Value {
    let reason = reason.lines().next_back().unwrap_or_default();
    lines.push(format!("tcpdump         {mark}: {reason}"));
    let key = if mark == "SKIP" { "skipped" } else { "failed" };
    json!({ key: reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_ledger_is_a_failure() {
        let report = |delivered: u64| json!({ "received": 10, "delivered": delivered, "filtered": 0, "lost": { "ring_full": 4 } });
        let missing = Error::NoProgram("tcpdump".into());
        let result = |arrived, delivered| show(10, arrived, &report(delivered), Err(&missing)).is_failed;
        assert!(!result(10, 6));
        assert!(result(10, 5), "the ledger does not balance");
        assert!(result(11, 6), "the ledger lacks an arrived packet");
    }

    #[test]
    fn failure_of_tcpdump_is_not_skipped() {
        let report = json!({ "received": 1, "delivered": 1, "filtered": 0, "lost": {} });
        let failed = |error: &Error| show(1, 1, &report, Err(error)).is_failed;
        assert!(failed(&Error::Failed("tcpdump: syntax error".into())));
        assert!(!failed(&Error::Failed("tcpdump: eth0: You don't have permission to capture".into())));
        assert!(show(1, 1, &report, Ok(&None)).is_failed);
    }
}
