//! The demo's result: a row a path, as a table or as JSON.

use serde::Serialize;
use strait_ledger::Report;

use super::Args;
use super::rig::Captured;
use crate::Error;
use crate::output::print_line;

/// What one path did.
#[derive(Serialize)]
pub(super) struct Row {
    path: &'static str,
    /// Why the path did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<&'static str>,
    /// Packets a second while traffic ran.
    packets_per_second: f64,
    /// CPU time of the reading thread.
    cpu_seconds_per_million: f64,
    /// Whether the file holds the same packets as the first path's.
    same_packets: bool,
    /// Packets in the file.
    packets: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger: Option<Report>,
}

impl Row {
    pub(super) fn of(path: &'static str, captured: &Captured, reference: &Captured) -> Self {
        let delivered = captured.report.capture.delivered.max(1) as f64;
        Self {
            path,
            skipped: None,
            packets_per_second: captured.report.capture.delivered as f64 / captured.sending.as_secs_f64(),
            cpu_seconds_per_million: captured.cpu.as_secs_f64() * 1e6 / delivered,
            same_packets: captured.packets == reference.packets,
            packets: captured.packets.len(),
            ledger: Some(captured.report.clone()),
        }
    }

    pub(super) fn skipped(path: &'static str, why: &'static str) -> Self {
        Self {
            path,
            skipped: Some(why),
            packets_per_second: 0.0,
            cpu_seconds_per_million: 0.0,
            same_packets: false,
            packets: 0,
            ledger: None,
        }
    }

    /// What is wrong with this path, if something is.
    pub(super) fn complaint(&self) -> Option<String> {
        let capture = &self.ledger.as_ref()?.capture;
        if let Err(imbalance) = capture.closes() {
            return Some(format!("path {}: the ledger does not close: {imbalance}", self.path));
        }
        if self.same_packets {
            return None;
        }
        let why = match capture.lost.total() {
            0 => "its file differs though nothing was lost".to_owned(),
            lost => format!("it lost {lost} packets, see the ledger; try a lower --rate"),
        };
        Some(format!("path {}: {why}", self.path))
    }

    fn line(&self) -> String {
        let Some(report) = &self.ledger else {
            return format!("{:<6} SKIP: {}", self.path, self.skipped.unwrap_or_default());
        };
        let capture = &report.capture;
        format!(
            "{:<6} {:<12} {:>9.0} {:>11.3} {:>9} {:>9} {:>6}   {:<4}   {}",
            self.path,
            report.mode,
            self.packets_per_second,
            self.cpu_seconds_per_million,
            capture.delivered,
            capture.filtered,
            capture.lost.total(),
            if self.same_packets { "yes" } else { "NO" },
            if capture.closes().is_ok() { "closes" } else { "DOES NOT CLOSE" },
        )
    }
}

/// Prints the rows.
pub(super) fn print(rows: &[Row], args: &Args) -> Result<(), Error> {
    if args.json {
        let text = serde_json::to_string(&rows).map_err(|error| Error::Failed(error.to_string()))?;
        return print_line(&text);
    }
    print_line(&format!("filter: {}", args.filter))?;
    print_line("path   mode         packets/s  CPU s/mill delivered  filtered   lost   same   ledger")?;
    rows.iter().try_for_each(|row| print_line(&row.line()))
}
