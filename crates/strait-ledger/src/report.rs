//! Ledger of a capture session: the JSON object and the table that commands print.
//!
//! A command builds it when a session ends, or while it runs. The table ends with the result of
//! [`Capture::check_balance`].

mod part;
mod window;

use std::fmt;

use serde::Serialize;

pub use self::part::Part;
pub use self::window::Delivered;
use crate::capture::{Capture, LaneCounts};
use crate::number::{Grouped, bits_per_second};

/// Ledger of a capture session. Fields are in the order of the JSON object.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Path of the capture: `recv`, `v2`, `v3`, `xdp`, `file`.
    pub path: String,
    /// Mode of the path: `copy`, `zero-copy`, `native copy`, `generic`, `read`.
    pub mode: String,
    /// Interface name, or the file's path.
    pub interface: String,
    /// Seconds since the session was opened.
    pub seconds: f64,
    /// Seconds of this time with the interface down.
    pub link_down_seconds: f64,
    /// Seconds of this time with the interface up and without a carrier.
    pub no_carrier_seconds: f64,
    /// Sum of all lanes, and of the counts that belong to no lane.
    #[serde(flatten)]
    pub capture: Capture,
    /// Counts of each lane.
    pub lanes: Vec<LaneCounts>,
    /// Ledger of each target, if packets go to targets. The session is charged with the losses of
    /// the target that lost most.
    #[serde(skip)]
    pub targets: Vec<TargetReport>,
    /// Parts of a capture on several interfaces, in the order of the lanes; else empty.
    #[serde(skip)]
    pub parts: Vec<Part>,
}

/// Ledger of one target: that of the session while it had the target, with the losses of this
/// target alone in `sink`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TargetReport {
    /// URL of the target.
    pub target: String,
    /// Sum of all lanes, and of the counts that belong to no lane.
    #[serde(flatten)]
    pub capture: Capture,
    /// Counts of each lane.
    #[serde(skip)]
    pub lanes: Vec<LaneCounts>,
    /// Parts of a capture on several interfaces.
    #[serde(skip)]
    pub parts: Vec<Part>,
}

impl TargetReport {
    /// Adds the ledger of a later time. Both have the same lanes and interfaces.
    pub fn add(&mut self, later: &Self) {
        self.capture.add(&later.capture);
        for (lane, other) in self.lanes.iter_mut().zip(&later.lanes) {
            lane.capture.add(&other.capture);
        }
        for (part, other) in self.parts.iter_mut().zip(&later.parts) {
            part.alone.capture.add(&other.alone.capture);
        }
    }
}

impl Report {
    /// Returns the ledger of a target alone.
    #[must_use]
    pub fn of(&self, target: &TargetReport) -> Self {
        let TargetReport { capture, lanes, parts, .. } = target.clone();
        Self { capture, lanes, parts, targets: Vec::new(), ..self.clone() }
    }

    /// Sets the ledgers of all targets, and takes the counts of the one that lost most, the first
    /// of several. Without a target nothing changes.
    pub fn set_targets(&mut self, targets: Vec<TargetReport>) {
        let worst = targets.iter().rev().max_by_key(|target| target.capture.lost.total());
        if let Some(TargetReport { capture, lanes, .. }) = worst {
            (self.capture, self.lanes) = (*capture, lanes.clone());
        }
        self.targets = targets;
    }

    /// Moves `lost` delivered packets to the losses in the sink: first up to `lost_in(queue)` of
    /// each lane, then the rest of any lane. No lane is charged with more than it delivered.
    pub fn charge_sink(&mut self, mut lost: u64, lost_in: impl Fn(u32) -> u64) {
        let whole = &mut self.capture;
        let mut charge = |capture: &mut Capture, most: u64| {
            let share = most.min(lost).min(capture.delivered);
            capture.lose_in_sink(share);
            whole.lose_in_sink(share);
            lost -= share;
        };
        for lane in &mut self.lanes {
            charge(&mut lane.capture, lost_in(lane.queue));
        }
        for lane in &mut self.lanes {
            charge(&mut lane.capture, u64::MAX);
        }
    }

    /// Moves up to `lost` delivered packets of the lanes with numbers in `lanes` to the losses in
    /// the sink. Returns the number of moved packets.
    pub fn charge_lanes(&mut self, lost: u64, lanes: std::ops::Range<u32>) -> u64 {
        let mut left = lost;
        for lane in self.lanes.iter_mut().filter(|lane| lanes.contains(&lane.queue)) {
            let share = left.min(lane.capture.delivered);
            lane.capture.lose_in_sink(share);
            self.capture.lose_in_sink(share);
            left -= share;
        }
        lost - left
    }

    /// Builds a report; its total is the sum of `lanes` and of `unattributed`: counts that belong
    /// to the interface as a whole, such as packets that the NIC missed.
    pub fn from_lanes(lanes: Vec<LaneCounts>, unattributed: &Capture) -> Self {
        let mut capture = *unattributed;
        for lane in &lanes {
            capture.add(&lane.capture);
        }
        Self { capture, lanes, ..Self::default() }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (interface, path, mode) = (&self.interface, &self.path, &self.mode);
        write!(f, "{interface}: path {path}")?;
        if !mode.is_empty() {
            write!(f, " ({mode})")?;
        }
        writeln!(f, ", {:.3} s", self.seconds)?;
        write_packets(f, &self.capture)?;
        write_bytes(f, &self.capture, self.seconds)?;
        write_events(f, self)?;
        let interfaces = self.interfaces();
        if self.parts.is_empty() {
            write_lanes(f, &self.lanes)?;
        } else {
            interfaces.iter().try_for_each(|interface| write_interface(f, interface))?;
        }
        if self.targets.len() > 1 {
            self.targets.iter().try_for_each(|target| write_target(f, target))?;
        }
        for interface in interfaces.iter().filter(|_| !self.parts.is_empty()) {
            if let Err(imbalance) = interface.capture.check_balance() {
                writeln!(f, "the ledger of {} does not balance: {imbalance}", interface.interface)?;
            }
        }
        write_verdict(f, &self.capture)
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, count: u64) -> fmt::Result {
    write!(f, "  {name:<22}{:>20}", Grouped(count))
}

fn share(count: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { count as f64 * 100.0 / of as f64 }
}

fn write_packets(f: &mut fmt::Formatter<'_>, capture: &Capture) -> fmt::Result {
    row(f, "received", capture.received)?;
    writeln!(f)?;
    let lost = capture.lost.total();
    for (name, count) in [("delivered", capture.delivered), ("filtered", capture.filtered), ("lost", lost)] {
        row(f, name, count)?;
        writeln!(f, "  {:7.3} %", share(count, capture.received))?;
    }
    for (cause, count) in capture.lost.named().into_iter().filter(|(_, count)| *count > 0) {
        let name = format!("  {}", cause.replace('_', " "));
        row(f, &name, count)?;
        writeln!(f)?;
    }
    Ok(())
}

fn write_bytes(f: &mut fmt::Formatter<'_>, capture: &Capture, seconds: f64) -> fmt::Result {
    row(f, "bytes", capture.bytes)?;
    writeln!(f, "  {}", bits_per_second(capture.bytes, seconds))?;
    if capture.wire_bytes != capture.bytes {
        row(f, "bytes on the wire", capture.wire_bytes)?;
        writeln!(f)?;
    }
    row(f, "bytes copied", capture.copied_bytes)?;
    writeln!(f)
}

fn write_events(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    for (event, count) in report.capture.events.named() {
        let time = match event {
            "link_downs" => Some(("down for", report.link_down_seconds)),
            "carrier_losses" => Some(("no carrier for", report.no_carrier_seconds)),
            _ => None,
        };
        // A link can have no carrier from the start.
        if count == 0 && time.is_none_or(|(_, seconds)| seconds <= 0.0) {
            continue;
        }
        row(f, &event.replace('_', " "), count)?;
        if let Some((words, seconds)) = time {
            write!(f, "  {words} {seconds:.3} s")?;
        }
        writeln!(f)?;
    }
    Ok(())
}

/// Writes the row of one of several interfaces, and of its lanes.
fn write_interface(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    write_counts(f, &report.interface, &report.capture)?;
    write_lanes(f, &report.lanes)
}

/// Writes the rows of several lanes; those of a single lane are the whole.
fn write_lanes(f: &mut fmt::Formatter<'_>, lanes: &[LaneCounts]) -> fmt::Result {
    lanes.iter().filter(|_| lanes.len() > 1).try_for_each(|lane| write_lane(f, lane))
}

fn write_lane(f: &mut fmt::Formatter<'_>, lane: &LaneCounts) -> fmt::Result {
    let name = match lane.cpu {
        Some(cpu) => format!("lane {} (cpu {cpu})", lane.queue),
        None => format!("lane {}", lane.queue),
    };
    write_counts(f, &name, &lane.capture)
}

fn write_counts(f: &mut fmt::Formatter<'_>, name: &str, capture: &Capture) -> fmt::Result {
    let (delivered, lost) = (capture.delivered, capture.lost.total());
    row(f, name, capture.received)?;
    writeln!(f, "  delivered {}, lost {}", Grouped(delivered), Grouped(lost))
}

fn write_target(
    f: &mut fmt::Formatter<'_>,
    TargetReport { target, capture, .. }: &TargetReport,
) -> fmt::Result {
    let (delivered, lost) = (Grouped(capture.delivered), Grouped(capture.lost.total()));
    let sink = Grouped(capture.lost.sink);
    writeln!(f, "  to {target}: delivered {delivered}, lost {lost}, of these in the sink {sink}")?;
    match capture.check_balance() {
        Ok(()) => Ok(()),
        Err(imbalance) => writeln!(f, "the ledger of this target does not balance: {imbalance}"),
    }
}

fn write_verdict(f: &mut fmt::Formatter<'_>, capture: &Capture) -> fmt::Result {
    match capture.check_balance() {
        Ok(()) => writeln!(f, "the ledger balances: received = delivered + filtered + lost"),
        Err(imbalance) => writeln!(f, "the ledger does not balance: {imbalance}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Losses;

    fn sample() -> Report {
        let lost = Losses { ring_full: 5, ..Losses::default() };
        let one = Capture { received: 1005, delivered: 900, filtered: 100, lost, ..Capture::default() };
        let two = Capture {
            received: 500,
            delivered: 500,
            bytes: 30_000,
            wire_bytes: 30_000,
            copied_bytes: 30_000,
            ..Capture::default()
        };
        let lanes = vec![
            LaneCounts { queue: 0, cpu: Some(1), capture: one },
            LaneCounts { queue: 1, cpu: None, capture: two },
        ];
        let nic = Capture {
            received: 3,
            lost: Losses { nic_missed: 3, ..Losses::default() },
            ..Capture::default()
        };
        Report {
            path: "v3".into(),
            mode: "copy".into(),
            interface: "veth0".into(),
            seconds: 2.0,
            ..Report::from_lanes(lanes, &nic)
        }
    }

    #[test]
    fn total_includes_counts_that_belong_to_no_lane() {
        let report = sample();
        assert_eq!((report.capture.received, report.capture.lost.total()), (1508, 8));
        assert_eq!(report.capture.check_balance(), Ok(()));
    }

    #[test]
    fn json_fields_have_the_documented_order() {
        let json = serde_json::to_string(&sample()).unwrap();
        let mut rest = json.as_str();
        let keys = [
            "path",
            "mode",
            "interface",
            "seconds",
            "received",
            "delivered",
            "filtered",
            "lost",
            "bytes",
            "lanes",
        ];
        for key in keys {
            let quoted = format!("\"{key}\":");
            let at = rest.find(&quoted).unwrap_or_else(|| panic!("{key} is missing or early in {json}"));
            rest = &rest[at + quoted.len()..];
        }
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["lost"]["nic_missed"], 3);
        assert_eq!(value["lanes"][0]["queue"], 0);
        assert_eq!(value["lanes"][0]["lost"]["ring_full"], 5);
        assert_eq!(value["lanes"][1]["cpu"], serde_json::Value::Null);
    }

    #[test]
    fn table_reports_whether_the_ledger_balances() {
        let mut report = sample();
        let text = report.to_string();
        assert!(text.is_ascii());
        assert!(text.starts_with("veth0: path v3 (copy), 2.000 s\n"), "{text}");
        assert!(text.ends_with("the ledger balances: received = delivered + filtered + lost\n"), "{text}");
        report.capture.received += 7;
        let text = report.to_string();
        assert!(
            text.contains("the ledger does not balance: 7 of 1515 received packets are not accounted for")
        );
    }

    #[test]
    fn table_in_the_documentation_is_current() {
        let page = include_str!("../../../docs/internals/ledger.md");
        assert!(page.contains(&sample().to_string()), "{}", sample());
    }

    #[test]
    fn table_has_number_and_time_of_link_downs() {
        let mut report = sample();
        assert!(!report.to_string().contains("link downs"), "{report}");
        report.capture.events.link_downs = 2;
        report.link_down_seconds = 1.5;
        let row = format!("  link downs            {:>20}  down for 1.500 s\n", 2);
        assert!(report.to_string().contains(&row), "{report}");
        assert!(!report.to_string().contains("carrier"), "{report}");
    }

    #[test]
    fn table_has_number_and_time_of_carrier_losses() {
        let mut report = sample();
        report.no_carrier_seconds = 0.25;
        for losses in [0, 3] {
            report.capture.events.carrier_losses = losses;
            let row = format!("  carrier losses        {losses:>20}  no carrier for 0.250 s\n");
            assert!(report.to_string().contains(&row), "{report}");
        }
        assert!(!report.to_string().contains("link downs"), "{report}");
    }

    /// Returns the ledger of a target that has lost packets in the sink.
    fn target(name: &str, lost: u64, of_second: u64) -> TargetReport {
        let mut report = sample();
        report.charge_sink(lost, |queue| if queue == 1 { of_second } else { 0 });
        let Report { capture, lanes, parts, .. } = report;
        TargetReport { target: name.into(), capture, lanes, parts }
    }

    #[test]
    fn losses_of_a_sink_are_charged_to_the_lanes_that_delivered() {
        let TargetReport { capture, lanes, .. } = target("", 450, 440);
        assert_eq!((capture.check_balance(), capture.lost.sink, capture.delivered), (Ok(()), 450, 950));
        assert_eq!([0, 1].map(|lane: usize| lanes[lane].capture.lost.sink), [10, 440]);
        let all = target("", u64::MAX, u64::MAX).capture;
        assert_eq!((all.delivered, all.lost.sink, all.check_balance()), (0, 1400, Ok(())));
    }

    #[test]
    fn session_has_the_counts_of_the_target_that_lost_most() {
        let mut report = sample();
        report.set_targets(Vec::new());
        assert_eq!(report, sample());
        let targets = vec![target("file:/a", 0, 0), target("file:/b", 450, 440), target("file:/c", 449, 0)];
        report.set_targets(targets);
        assert_eq!((report.capture.lost.sink, report.lanes[1].capture.lost.sink), (450, 440));
        assert_eq!(report.of(&report.targets[0]), sample());
        let text = report.to_string();
        for line in [
            "  to file:/a: delivered 1,400, lost 8, of these in the sink 0\n",
            "  to file:/b: delivered 950, lost 458, of these in the sink 450\n",
            "the ledger balances",
        ] {
            assert!(text.contains(line), "{text}");
        }
        report.targets[2].capture.delivered += 3;
        let text = report.to_string();
        assert!(text.contains("this target does not balance: 3 more"), "{text}");
    }

    #[test]
    fn table_omits_causes_without_a_loss() {
        let text = sample().to_string();
        assert!(text.contains("ring full") && text.contains("nic missed"), "{text}");
        assert!(!text.contains("fill empty") && !text.contains("queue freezes"), "{text}");
    }
}
