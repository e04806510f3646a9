//! Table of the captures of the same traffic, with one row per path.

use serde::Serialize;
use strait_ledger::Report;

use super::rig::Captured;

/// Result of one path.
#[derive(Serialize)]
pub(super) struct Row {
    path: &'static str,
    /// Reason for which the path did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
    /// True if the file has the same packets as the file of the first path.
    same_packets: bool,
    /// Packets in the file.
    packets: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger: Option<Report>,
}

impl Row {
    pub(super) fn of(path: &'static str, captured: &Captured, reference: &Captured) -> Self {
        Self {
            path,
            skipped: None,
            same_packets: captured.packets == reference.packets,
            packets: captured.packets.len(),
            ledger: Some(captured.report.clone()),
        }
    }

    pub(super) fn skipped(path: &'static str, reason: String) -> Self {
        Self { path, skipped: Some(reason), same_packets: false, packets: 0, ledger: None }
    }

    /// Returns the failure of this path, if it failed.
    pub(super) fn failure(&self) -> Option<String> {
        let capture = &self.ledger.as_ref()?.capture;
        if let Err(imbalance) = capture.check_balance() {
            return Some(format!("path {}: the ledger does not balance: {imbalance}", self.path));
        }
        if self.same_packets {
            return None;
        }
        let reason = match capture.lost.total() {
            0 => "its file differs though nothing was lost".to_owned(),
            lost => format!("it lost {lost} packets, see the ledger; try a lower --rate"),
        };
        Some(format!("path {}: {reason}", self.path))
    }

    fn line(&self) -> String {
        let Some(report) = &self.ledger else {
            return format!("{:<6} SKIP: {}", self.path, self.skipped.as_deref().unwrap_or_default());
        };
        let capture = &report.capture;
        format!(
            "{:<6} {:<12} {:>9} {:>9} {:>9} {:>6}   {:<4}   {}",
            self.path,
            report.mode,
            capture.received,
            capture.delivered,
            capture.filtered,
            capture.lost.total(),
            if self.same_packets { "yes" } else { "NO" },
            if capture.check_balance().is_ok() { "balances" } else { "DOES NOT BALANCE" },
        )
    }
}

/// Formats the rows as lines below the line about the filter.
pub(super) fn lines(rows: &[Row], filter: String) -> Vec<String> {
    let mut lines =
        vec![filter, "path   mode          received delivered  filtered   lost   same   ledger".to_owned()];
    lines.extend(rows.iter().map(Row::line));
    lines
}
