//! Metrics of the targets of a capture: written rows, losses, exports and spools.
//!
//! Each sample has the label `target`, the URL. A target that is no export has no sample of an
//! export, and one without a spool none of a spool.

use super::Text;
use crate::report::Report;

/// Counts of one target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetMetrics {
    /// URL of the target.
    pub target: String,
    /// Packets that the target has lost.
    pub lost: u64,
    /// True if the target has failed, or the export fails at present.
    pub is_failing: bool,
    /// Rows of completed files.
    pub rows: u64,
    /// Completed files.
    pub files: u64,
    /// Bytes of completed files, or of sent messages.
    pub bytes: u64,
    /// Counts of an export.
    pub export: Option<ExportMetrics>,
    /// Files that wait for their upload.
    pub spool: Option<SpoolMetrics>,
}

/// Counts of the flows of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExportMetrics {
    /// Flows that were sent, also those that the network refused later.
    pub sent: u64,
    /// Flows that were sent again, as a broker has not acknowledged them.
    pub retried: u64,
    /// Flows that could not be sent, or that the receiver refused.
    pub lost: u64,
}

/// State of a spool, and counts of its upload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SpoolMetrics {
    /// Bytes of all files.
    pub bytes: u64,
    /// Limit of the bytes.
    pub bytes_max: u64,
    /// Complete files.
    pub files: u64,
    /// Seconds since the oldest complete file was written.
    pub oldest_seconds: f64,
    /// Files that were sent.
    pub sent_files: u64,
    /// Bytes of these files.
    pub sent_bytes: u64,
    /// Attempts to send that failed, after which the files were sent again.
    pub retried: u64,
    /// Rows that were lost as the spool was full.
    pub lost_rows: u64,
}

/// Metric of targets: its name, its kind, its help text, and its value if a target has one.
type TargetMetric = (&'static str, &'static str, &'static str, fn(&TargetMetrics) -> Option<f64>);

/// Metric of exports.
type ExportMetric = (&'static str, &'static str, fn(&ExportMetrics) -> u64);

const METRICS: [TargetMetric; 5] = [
    ("target_lost_total", "counter", "Packets that a target has lost.", |t| Some(t.lost as f64)),
    ("target_failing", "gauge", "1 if a target has failed, or its export fails, else 0.", |t| {
        Some(f64::from(u8::from(t.is_failing)))
    }),
    ("target_rows_total", "counter", "Rows of completed files.", |t| of_files(t, t.rows)),
    ("target_files_total", "counter", "Completed files.", |t| of_files(t, t.files)),
    ("target_bytes_total", "counter", "Bytes of completed files, or of sent messages.", |t| {
        Some(t.bytes as f64)
    }),
];

const EXPORTS: [ExportMetric; 3] = [
    ("export_sent_flows_total", "Flows that an export has sent.", |e| e.sent),
    ("export_retried_flows_total", "Flows that were sent again, as no acknowledgment came.", |e| e.retried),
    ("export_lost_flows_total", "Flows that an export has lost.", |e| e.lost),
];

/// Metric of spools.
type SpoolMetric = (&'static str, &'static str, &'static str, fn(&SpoolMetrics) -> f64);

const SPOOLS: [SpoolMetric; 8] = [
    ("spool_bytes", "gauge", "Bytes of the files in a spool.", |s| s.bytes as f64),
    ("spool_bytes_max", "gauge", "Limit of the bytes in a spool.", |s| s.bytes_max as f64),
    ("spool_files", "gauge", "Complete files in a spool.", |s| s.files as f64),
    ("spool_oldest_seconds", "gauge", "Age of the oldest complete file in a spool.", |s| s.oldest_seconds),
    ("spool_sent_files_total", "counter", "Files that were uploaded.", |s| s.sent_files as f64),
    ("spool_sent_bytes_total", "counter", "Bytes that were uploaded.", |s| s.sent_bytes as f64),
    ("spool_retried_total", "counter", "Uploads that failed and were tried again.", |s| s.retried as f64),
    ("spool_lost_rows_total", "counter", "Rows that were lost as a spool was full.", |s| s.lost_rows as f64),
];

/// Returns the value if the target has files.
fn of_files(target: &TargetMetrics, value: u64) -> Option<f64> {
    target.export.is_none().then_some(value as f64)
}

/// Writes the metrics of the targets of a session to `out`.
pub fn write_targets(out: &mut Text, report: &Report, targets: &[TargetMetrics]) {
    let mut write = |(name, kind, help): (&str, &str, &str),
                     value: &dyn Fn(&TargetMetrics) -> Option<f64>| {
        let samples = targets.iter().filter_map(|target| Some((&target.target, value(target)?)));
        let samples: Vec<(&String, f64)> = samples.collect();
        if samples.is_empty() {
            return;
        }
        out.family(&format!("strait_{name}"), kind, help);
        for (target, value) in samples {
            let labels = [("interface", &*report.interface), ("path", &report.path), ("target", target)];
            out.sample("", &labels, value);
        }
    };
    for (name, kind, help, value) in METRICS {
        write((name, kind, help), &value);
    }
    for (name, help, value) in EXPORTS {
        write((name, "counter", help), &|target| target.export.as_ref().map(|export| value(export) as f64));
    }
    for (name, kind, help, value) in SPOOLS {
        write((name, kind, help), &|target| target.spool.as_ref().map(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_only_the_metrics_of_their_kind() {
        let report = Report { interface: "eth0".into(), path: "v3".into(), ..Report::default() };
        let spool = SpoolMetrics { bytes: 7, oldest_seconds: 1.5, sent_files: 9, ..SpoolMetrics::default() };
        let export = ExportMetrics { sent: 4, retried: 1, lost: 2 };
        let target =
            |target: &str| TargetMetrics { target: target.into(), lost: 3, ..TargetMetrics::default() };
        let targets = [
            TargetMetrics { rows: 1 << 53, is_failing: true, ..target("file:/a") },
            TargetMetrics { spool: Some(spool), ..target("s3://lake") },
            TargetMetrics { export: Some(export), bytes: 8, ..target("kafka://a:1/\"f") },
        ];
        let mut text = Text::default();
        write_targets(&mut text, &report, &targets);
        let text = text.into_string();
        let sample = |name: &str, target: &str, value: &str| {
            format!("strait_{name}{{interface=\"eth0\",path=\"v3\",target=\"{target}\"}} {value}\n")
        };
        for line in [
            sample("target_rows_total", "file:/a", "9007199254740992"),
            sample("target_failing", "file:/a", "1"),
            sample("target_failing", "s3://lake", "0"),
            sample("target_lost_total", "kafka://a:1/\\\"f", "3"),
            sample("target_bytes_total", "kafka://a:1/\\\"f", "8"),
            sample("export_lost_flows_total", "kafka://a:1/\\\"f", "2"),
            sample("spool_bytes", "s3://lake", "7"),
            sample("spool_oldest_seconds", "s3://lake", "1.5"),
            sample("spool_sent_files_total", "s3://lake", "9"),
        ] {
            assert!(text.contains(&line), "{line} in {text}");
        }
        for (name, samples) in [("target_rows_total", 2), ("export_sent_flows_total", 1), ("spool_bytes", 1)]
        {
            assert_eq!(text.matches(&format!("strait_{name}{{")).count(), samples, "{name}");
            assert_eq!(text.matches(&format!("# TYPE strait_{name} ")).count(), 1, "{name}");
        }
        let mut none = Text::default();
        write_targets(&mut none, &report, &targets[..1]);
        assert!(!none.into_string().contains("spool"));
    }
}
