//! The ledger as Prometheus text exposition (format 0.0.4).
//!
//! Programs that embed the engine write it to a file or serve it. Counts of each lane carry the
//! label `queue`; other counts have `queue=""`, so that a sum over the label is the session's
//! total. Nothing is kept here between two calls.

use std::fmt::{self, Write};

use crate::capture::Capture;
use crate::report::Report;
use crate::send::Send;

/// A metric of one count: its name, its help text, and its field in the account.
type Plain = (&'static str, &'static str, fn(&Capture) -> u64);

const PLAIN: [Plain; 6] = [
    ("strait_capture_received_total", "Packets that reached the capture path.", |c| c.received),
    ("strait_capture_delivered_total", "Packets lent to the program.", |c| c.delivered),
    ("strait_capture_filtered_total", "Packets that the filter did not match.", |c| c.filtered),
    ("strait_capture_bytes_total", "Captured bytes delivered.", |c| c.bytes),
    ("strait_capture_wire_bytes_total", "Bytes that delivered packets had on the wire.", |c| c.wire_bytes),
    ("strait_capture_copied_bytes_total", "Bytes of delivered packets that were copied.", |c| c.copied_bytes),
];

const LOST: &str = "strait_capture_lost_total";
const EVENTS: &str = "strait_capture_events_total";
const SECONDS: &str = "strait_capture_seconds";
const LINK_DOWN_SECONDS: &str = "strait_capture_link_down_seconds_total";
const NO_CARRIER_SECONDS: &str = "strait_capture_no_carrier_seconds_total";

/// Writes every metric of a capture session to `out`.
pub fn write_capture(out: &mut impl Write, report: &Report) -> fmt::Result {
    let series = series(report);
    for (name, help, value) in PLAIN {
        header(out, name, help, "counter")?;
        for (labels, capture) in &series {
            writeln!(out, "{name}{{{labels}}} {}", value(capture))?;
        }
    }
    header(out, LOST, "Packets lost, by place.", "counter")?;
    for (labels, capture) in &series {
        for (cause, count) in capture.lost.named() {
            writeln!(out, "{LOST}{{{labels},cause=\"{cause}\"}} {count}")?;
        }
    }
    header(out, EVENTS, "Events beside the packet counts.", "counter")?;
    for (labels, capture) in &series {
        for (event, count) in capture.events.named() {
            writeln!(out, "{EVENTS}{{{labels},event=\"{event}\"}} {count}")?;
        }
    }
    header(out, LINK_DOWN_SECONDS, "How long the interface was set down.", "counter")?;
    writeln!(out, "{LINK_DOWN_SECONDS}{{{}}} {}", session_labels(report), report.link_down_seconds)?;
    header(out, NO_CARRIER_SECONDS, "How long the interface was set up without a carrier.", "counter")?;
    writeln!(out, "{NO_CARRIER_SECONDS}{{{}}} {}", session_labels(report), report.no_carrier_seconds)?;
    header(out, SECONDS, "How long the session has been open.", "gauge")?;
    writeln!(out, "{SECONDS}{{{}}} {}", session_labels(report), report.seconds)
}

/// Writes every metric of an injector on `interface` to `out`.
pub fn write_send(out: &mut impl Write, interface: &str, send: &Send) -> fmt::Result {
    let counters = [
        ("strait_inject_frames_total", "Frames sent.", send.frames),
        ("strait_inject_bytes_total", "Bytes sent.", send.bytes),
        ("strait_inject_refused_total", "Frames that the kernel refused.", send.refused),
        ("strait_inject_dropped_total", "Frames dropped before the driver.", send.dropped),
        ("strait_inject_unfinished_total", "Frames without a completion.", send.unfinished),
        ("strait_inject_waits_total", "Waits for room in the ring.", send.waits),
    ];
    let interface = Escaped(interface);
    for (name, help, count) in counters {
        header(out, name, help, "counter")?;
        writeln!(out, "{name}{{interface=\"{interface}\"}} {count}")?;
    }
    Ok(())
}

fn header(out: &mut impl Write, name: &str, help: &str, kind: &str) -> fmt::Result {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

fn session_labels(report: &Report) -> String {
    format!("interface=\"{}\",path=\"{}\"", Escaped(&report.interface), Escaped(&report.path))
}

/// One account for each lane, and one for the rest of the total.
fn series(report: &Report) -> Vec<(String, Capture)> {
    let session = session_labels(report);
    let mut rest = report.capture;
    let mut series = Vec::with_capacity(report.lanes.len() + 1);
    for lane in &report.lanes {
        rest.subtract(&lane.capture);
        series.push((format!("{session},queue=\"{}\"", lane.queue), lane.capture));
    }
    series.push((format!("{session},queue=\"\""), rest));
    series
}

/// A label value with the three characters escaped that the exposition format reserves.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
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
    use crate::capture::{Lane, Losses};

    fn sample() -> Report {
        let capture = Capture { received: 10, delivered: 10, ..Capture::default() };
        let lanes = vec![Lane { queue: 0, cpu: None, capture }, Lane { queue: 1, cpu: None, capture }];
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
        let mut text = String::new();
        write_capture(&mut text, &sample()).unwrap();
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
    fn each_metric_is_declared_once_before_its_samples() {
        let mut text = String::new();
        write_capture(&mut text, &sample()).unwrap();
        write_send(&mut text, "veth0", &Send { frames: 3, ..Send::default() }).unwrap();
        let mut declared = std::collections::HashSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                assert!(declared.insert(rest.split(' ').next().unwrap().to_owned()), "{line} comes twice");
            } else if !line.starts_with('#') {
                assert!(declared.contains(line.split('{').next().unwrap()), "{line} is not declared");
            }
        }
        assert!(declared.contains("strait_inject_frames_total"));
    }
}
