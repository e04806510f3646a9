//! Live line of a capture on a terminal: rates, and losses by cause. A capture for Wireshark shows
//! its ledger in the toolbar instead.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use strait_ledger::{Grouped, Report};

use crate::toolbar::Toolbar;

/// Interval at which the line is drawn.
pub(crate) const PERIOD: Duration = Duration::from_millis(500);

/// The live line on stderr, or a toolbar.
pub(crate) struct LiveLine {
    surface: Surface,
    last: Option<(Instant, u64, u64)>,
    drawn: bool,
}

/// Place of the line.
enum Surface {
    Terminal(Box<dyn Write>),
    Toolbar(Toolbar),
}

impl LiveLine {
    /// Returns a live line if stderr is a terminal.
    pub(crate) fn on_terminal() -> Option<Self> {
        std::io::stderr().is_terminal().then(|| Self::on(std::io::stderr()))
    }

    pub(crate) fn on(terminal: impl Write + 'static) -> Self {
        Self { surface: Surface::Terminal(Box::new(terminal)), last: None, drawn: false }
    }

    /// Shows the ledger in a toolbar.
    pub(crate) fn on_toolbar(toolbar: Toolbar) -> Self {
        Self { surface: Surface::Toolbar(toolbar), last: None, drawn: false }
    }

    /// Draws the current account, and `written_bytes` if packets go to a file.
    pub(crate) fn draw(&mut self, report: &Report, written_bytes: Option<u64>) {
        if let Surface::Toolbar(toolbar) = &mut self.surface {
            return toolbar.show(report);
        }
        let now = Instant::now();
        let capture = &report.capture;
        let (packets, bytes) = (capture.delivered, capture.wire_bytes);
        let (since, packets_before, bytes_before) =
            self.last.replace((now, packets, bytes)).unwrap_or((now, 0, 0));
        let seconds = (now - since).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let packet_rate = packets.saturating_sub(packets_before) as f64 / seconds;
        let megabits = bytes.saturating_sub(bytes_before) as f64 * 8.0 / seconds / 1e6;
        self.show(&line(report, packet_rate, megabits, written_bytes));
    }

    fn show(&mut self, line: &str) {
        if let Surface::Terminal(terminal) = &mut self.surface {
            // A failed write to the terminal loses the line; the capture goes on.
            let _ = write!(terminal, "\r{line}\x1b[K");
            self.drawn = true;
        }
    }

    /// Clears the line on the terminal, for a notice. A toolbar has the notice in its log.
    pub(crate) fn clear_for(&mut self, notice: &str) {
        match &mut self.surface {
            Surface::Terminal(_) => self.clear(),
            Surface::Toolbar(toolbar) => toolbar.log(notice),
        }
    }

    /// Clears the line on the terminal.
    pub(crate) fn clear(&mut self) {
        if let Surface::Terminal(terminal) = &mut self.surface
            && std::mem::take(&mut self.drawn)
        {
            let _ = write!(terminal, "\r\x1b[K");
        }
    }

    /// Ends the line. A toolbar shows the last account.
    pub(crate) fn end(&mut self, report: impl FnOnce() -> Report) {
        match &mut self.surface {
            Surface::Terminal(_) => self.clear(),
            Surface::Toolbar(toolbar) => toolbar.show(&report()),
        }
    }
}

/// `12 s  1,234 packets  100/s  0.8 Mbit/s  lost 3 (ring full 3)  1.2 MB written`
fn line(report: &Report, packet_rate: f64, megabits: f64, written_bytes: Option<u64>) -> String {
    let lost = &report.capture.lost;
    let (packets, all) = (Grouped(report.capture.delivered), Grouped(lost.total()));
    let mut line = format!(
        "{:.0} s  {packets} packets  {packet_rate:.0}/s  {megabits:.1} Mbit/s  lost {all}",
        report.seconds
    );
    let causes = lost.named().into_iter().filter(|(_, count)| *count > 0);
    let causes: Vec<String> =
        causes.map(|(cause, count)| format!("{} {}", cause.replace('_', " "), Grouped(count))).collect();
    // Writing to a String cannot fail.
    if !causes.is_empty() {
        let _ = write!(line, " ({})", causes.join(", "));
    }
    if let Some(bytes) = written_bytes {
        let _ = write!(line, "  {:.1} MB written", bytes as f64 / 1e6);
    }
    line
}

#[cfg(test)]
mod tests {
    use strait_ledger::{Capture, Losses};

    use super::*;

    #[test]
    fn line_shows_time_losses_and_file_size() {
        let lost = Losses { ring_full: 1200, ..Losses::default() };
        let capture = Capture { delivered: 5000, lost, ..Capture::default() };
        let report = Report { seconds: 12.4, ..Report::from_lanes(Vec::new(), &capture) };
        assert_eq!(
            line(&report, 100.0, 0.84, Some(2_345_678)),
            "12 s  5,000 packets  100/s  0.8 Mbit/s  lost 1,200 (ring full 1,200)  2.3 MB written"
        );
        let quiet = Report::from_lanes(Vec::new(), &Capture::default());
        assert_eq!(line(&quiet, 0.0, 0.0, None), "0 s  0 packets  0/s  0.0 Mbit/s  lost 0");
    }
}
