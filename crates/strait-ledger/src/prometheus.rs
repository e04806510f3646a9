//! Prometheus text exposition (format 0.0.4): the writer, and the metrics of the ledger.
//!
//! `strait capture --metrics`, `strait relay --metrics` and the proxy serve it. Counts of each lane
//! carry the label `queue`; other counts have `queue=""`, so that a sum over the label is the
//! session's total. There is no state between two calls.

mod targets;

use std::fmt::{self, Display, Write as _};

pub use self::targets::{ExportMetrics, SpoolMetrics, TargetMetrics, write_targets};

use crate::capture::Capture;
use crate::report::Report;

/// Text of an exposition under construction.
#[derive(Debug, Default)]
pub struct Text {
    text: String,
    /// Name of the current family.
    name: String,
}

impl Text {
    /// Begins a family: its name, its kind (`counter`, `gauge`, `histogram`) and its help text.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        name.clone_into(&mut self.name);
        // Writing to a String does not fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds a sample of the current family. Values of labels are escaped.
    pub fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        for (index, (name, value)) in labels.iter().enumerate() {
            let begin = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{begin}{name}=\"{}\"", Escaped(value));
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// Adds families with one sample each: name, kind, help text and value.
    pub fn single(&mut self, prefix: &str, labels: &[(&str, &str)], numbers: &[(&str, &str, &str, u64)]) {
        for (name, kind, help, value) in numbers {
            self.family(&format!("{prefix}_{name}"), kind, help);
            self.sample("", labels, value);
        }
    }

    /// Returns the text.
    pub fn into_string(self) -> String {
        self.text
    }
}

/// Metric of one count: its name, its help text, and its field in the ledger.
type Plain = (&'static str, &'static str, fn(&Capture) -> u64);

const PLAIN: [Plain; 6] = [
    ("strait_capture_received_total", "Packets that reached the capture path.", |c| c.received),
    ("strait_capture_delivered_total", "Packets delivered to the program.", |c| c.delivered),
    ("strait_capture_filtered_total", "Packets that the filter did not match.", |c| c.filtered),
    ("strait_capture_bytes_total", "Captured bytes delivered.", |c| c.bytes),
    ("strait_capture_wire_bytes_total", "Bytes that delivered packets had on the wire.", |c| c.wire_bytes),
    ("strait_capture_copied_bytes_total", "Bytes of delivered packets that were copied.", |c| c.copied_bytes),
];

/// Writes every metric of a capture session to `out`.
pub fn write_capture(out: &mut Text, report: &Report) {
    let reports = report.interfaces();
    let series: Vec<_> = reports.iter().flat_map(series).collect();
    for (name, help, value) in PLAIN {
        out.family(name, "counter", help);
        for (report, queue, capture) in &series {
            out.sample("", &labels(report, queue), value(capture));
        }
    }
    out.family("strait_capture_lost_total", "counter", "Packets lost, by place.");
    for (report, queue, capture) in &series {
        for (cause, count) in capture.lost.named() {
            out.sample("", &with(labels(report, queue), ("cause", cause)), count);
        }
    }
    out.family("strait_capture_events_total", "counter", "Events other than packets.");
    for (report, queue, capture) in &series {
        for (event, count) in capture.events.named() {
            out.sample("", &with(labels(report, queue), ("event", event)), count);
        }
    }
    for (name, kind, help, value) in SECONDS {
        out.family(&format!("strait_capture_{name}"), kind, help);
        for report in &reports {
            out.sample("", &labels(report, "")[..2], value(report));
        }
    }
}

/// Metric of one time: its name, its kind, its help text, and its field in the ledger.
type Seconds = (&'static str, &'static str, &'static str, fn(&Report) -> f64);

const SECONDS: [Seconds; 3] = [
    ("link_down_seconds_total", "counter", "Time with the interface down.", |r| r.link_down_seconds),
    ("no_carrier_seconds_total", "counter", "Time with the interface up and without a carrier.", |r| {
        r.no_carrier_seconds
    }),
    ("seconds", "gauge", "Time since the session was opened.", |r| r.seconds),
];

/// Returns the labels of a session and one of its queues.
fn labels<'a>(report: &'a Report, queue: &'a str) -> [(&'a str, &'a str); 3] {
    [("interface", &report.interface), ("path", &report.path), ("queue", queue)]
}

fn with<'a>([a, b, c]: [(&'a str, &'a str); 3], last: (&'a str, &'a str)) -> [(&'a str, &'a str); 4] {
    [a, b, c, last]
}

/// Returns the counts of each lane of an interface, and those of the rest of its total, each with
/// its queue.
fn series(report: &Report) -> Vec<(&Report, String, Capture)> {
    let mut rest = report.capture;
    let mut series = Vec::with_capacity(report.lanes.len() + 1);
    for lane in &report.lanes {
        rest.subtract(&lane.capture);
        series.push((report, lane.queue.to_string(), lane.capture));
    }
    series.push((report, String::new(), rest));
    series
}

/// Formats a label value, with escapes for the three reserved characters of the exposition format.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            other => f.write_char(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{LaneCounts, Losses};

    fn sample() -> Report {
        let capture = Capture { received: 10, delivered: 10, ..Capture::default() };
        let lanes = [0, 1].map(|queue| LaneCounts { queue, cpu: None, capture }).to_vec();
        let nic = Capture {
            received: 4,
            lost: Losses { nic_missed: 4, ..Losses::default() },
            ..Capture::default()
        };
        Report {
            interface: "we\"ird".into(),
            path: "v3".into(),
            seconds: 1.5,
            link_down_seconds: 0.25,
            no_carrier_seconds: 0.75,
            ..Report::from_lanes(lanes, &nic)
        }
    }

    fn sum(text: &str, name: &str) -> u64 {
        let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    #[test]
    fn sums_over_the_queue_label_are_the_total() {
        let mut text = Text::default();
        write_capture(&mut text, &sample());
        let text = text.into_string();
        assert_eq!(sum(&text, "strait_capture_received_total"), 24);
        assert_eq!(sum(&text, "strait_capture_delivered_total"), 20);
        assert_eq!(sum(&text, "strait_capture_lost_total"), 4);
        let down = "strait_capture_link_down_seconds_total{interface=\"we\\\"ird\",path=\"v3\"} 0.25\n";
        assert!(text.contains(down), "{text}");
        let carrier = "strait_capture_no_carrier_seconds_total{interface=\"we\\\"ird\",path=\"v3\"} 0.75\n";
        assert!(text.contains(carrier), "{text}");
        assert!(text.contains("strait_capture_seconds{interface=\"we\\\"ird\",path=\"v3\"} 1.5\n"), "{text}");
    }

    #[test]
    fn each_interface_has_series_of_its_own() {
        let other = Report { interface: "eth1".into(), ..sample() };
        let mut text = Text::default();
        write_capture(&mut text, &Report::join(vec![(0, sample()), (2, other)]));
        let text = text.into_string();
        assert_eq!(sum(&text, "strait_capture_received_total"), 48);
        let last = "strait_capture_received_total{interface=\"eth1\",path=\"v3\",queue=\"1\"} 10\n";
        assert!(text.contains(last), "{text}");
        assert!(text.contains("strait_capture_seconds{interface=\"eth1\",path=\"v3\"} 1.5\n"), "{text}");
        assert_eq!(text.matches("# TYPE strait_capture_seconds ").count(), 1, "{text}");
    }

    #[test]
    fn each_metric_is_declared_once_before_its_samples() {
        let mut text = Text::default();
        write_capture(&mut text, &sample());
        let text = text.into_string();
        let mut declared = std::collections::HashSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                assert!(declared.insert(rest.split(' ').next().unwrap().to_owned()), "{line} comes twice");
            } else if !line.starts_with('#') {
                assert!(declared.contains(line.split('{').next().unwrap()), "{line} is not declared");
            }
        }
    }
}
