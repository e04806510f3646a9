//! The line that follows a capture on a terminal: rates, and losses by cause.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::{Duration, Instant};

use strait_ledger::Report;

/// How often the line is drawn.
pub(crate) const PERIOD: Duration = Duration::from_millis(500);

/// The line on stderr; nothing where stderr is not a terminal.
pub(crate) struct LiveLine {
    last: Option<(Instant, u64, u64)>,
    drawn: bool,
}

impl LiveLine {
    /// A line, if there is a terminal to draw it on.
    pub(crate) fn on_terminal() -> Option<Self> {
        std::io::stderr().is_terminal().then_some(Self { last: None, drawn: false })
    }

    /// Draws the account as it is now.
    pub(crate) fn draw(&mut self, report: &Report) {
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
        let mut line = format!("{packets} packets  {packet_rate:.0}/s  {megabits:.1} Mbit/s");
        let lost: Vec<_> = capture.lost.named().into_iter().filter(|(_, count)| *count > 0).collect();
        for (cause, count) in lost {
            // Writing to a String cannot fail.
            let _ = write!(line, "  {}: {count}", cause.replace('_', " "));
        }
        self.show(&line);
    }

    fn show(&mut self, line: &str) {
        // A terminal that cannot be written to loses the line, not the capture.
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
        self.drawn = true;
    }

    /// Leaves the line for what comes next.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
