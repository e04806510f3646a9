//! The words of `strait relay` about its connections: a JSON line for each, or a line for each that
//! failed.
//!
//! A thread of its own writes them. A reader that is stalled loses lines, which are counted, and
//! holds up no connection; many failures at once become one line.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde_json::json;
use strait_transfer::relay::ClosedConnection;

use crate::Error;
use crate::output::tell;

/// Lines that wait to be written, unless the user gives another number; further lines are dropped
/// and counted.
pub(super) const LINES: u32 = 4096;
/// Failures that are reported one by one in a period; the rest is counted.
const FAILURES_MAX: u64 = 10;
const PERIOD: Duration = Duration::from_secs(1);
/// How long a slow reader is waited for at the end.
const END_MAX: Duration = Duration::from_secs(2);

/// Takes the ends of connections; any thread may write to it.
pub(super) struct Log {
    lines: SyncSender<String>,
    is_json: bool,
    counts: Arc<Counts>,
    ended: Receiver<()>,
}

/// Lines that were reported, and of these the ones that reached the output.
#[derive(Debug, Default)]
struct Counts {
    reported: AtomicU64,
    written: AtomicU64,
}

/// A handle for a worker.
#[derive(Clone)]
pub(super) struct Writer {
    lines: SyncSender<String>,
    is_json: bool,
    counts: Arc<Counts>,
}

impl Log {
    /// Starts the thread, for which at most `lines_max` lines wait.
    pub(super) fn start(is_json: bool, lines_max: usize) -> Result<Self, Error> {
        let (lines, taken) = sync_channel::<String>(lines_max);
        let (done, ended) = sync_channel(1);
        let counts = Arc::new(Counts::default());
        let written = Arc::clone(&counts);
        let output = File::from(std::io::stdout().as_fd().try_clone_to_owned().map_err(Error::Output)?);
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || {
            if is_json {
                write_json(&taken, output, &written.written);
            } else {
                write_failures(&taken, &written.written);
            }
            // The program may have ended meanwhile.
            let _ = done.send(());
        });
        thread.map_err(|error| Error::Failed(format!("start to log: {error}")))?;
        Ok(Self { lines, is_json, counts, ended })
    }

    pub(super) fn writer(&self) -> Writer {
        Writer { lines: self.lines.clone(), is_json: self.is_json, counts: Arc::clone(&self.counts) }
    }

    /// Waits a little until all is written. Returns the number of lines that were not, and true if
    /// the reader takes none any more.
    pub(super) fn end(self) -> (u64, bool) {
        let Self { lines, counts, ended, .. } = self;
        drop(lines);
        let is_stalled = ended.recv_timeout(END_MAX) == Err(RecvTimeoutError::Timeout);
        // A line that is still queued never reaches the output: the program ends.
        let written = counts.written.load(Ordering::Acquire);
        (counts.reported.load(Ordering::Relaxed).saturating_sub(written), is_stalled)
    }
}

impl Writer {
    /// Reports the end of a connection: of each in JSON, else of those that failed.
    pub(super) fn report(&self, record: &ClosedConnection) {
        let Some(line) = (if self.is_json { Some(as_json(record)) } else { as_failure(record) }) else {
            return;
        };
        self.counts.reported.fetch_add(1, Ordering::Relaxed);
        // A full queue drops the line; it counts as reported and not written.
        let _ = self.lines.try_send(line);
    }
}

fn as_json(record: &ClosedConnection) -> String {
    let line = json!({
        "number": record.number, "client": record.client.to_string(), "seconds": record.lasted.as_secs_f64(),
        "up": record.up, "down": record.down, "copied": record.copied, "teed": record.teed, "end": record.cause.name(),
        "failure": record.failure, "tee_failure": record.tee_failure,
    });
    format!("{line}\n")
}

fn as_failure(record: &ClosedConnection) -> Option<String> {
    let tee = record.tee_failure.as_ref().map(|failure| format!("the copy ended early: {failure}"));
    let failure = record.failure.as_ref().or(tee.as_ref())?;
    Some(format!("strait: connection {} of {}: {failure}\n", record.number, record.client))
}

fn write_json(lines: &Receiver<String>, mut output: File, written: &AtomicU64) {
    for line in lines {
        // A log without a reader ends no connection.
        if output.write_all(line.as_bytes()).is_ok() {
            written.fetch_add(1, Ordering::Release);
        }
    }
}

/// Lines that the limit hides count as written: their number is.
fn write_failures(lines: &Receiver<String>, written: &AtomicU64) {
    let mut limit = Limit::new(Instant::now());
    loop {
        let line = lines.recv_timeout(PERIOD);
        let now = Instant::now();
        if let Some(hidden) = limit.renew(now, matches!(line, Err(RecvTimeoutError::Disconnected))) {
            tell(format_args!("strait: {hidden} more connections failed; --json-log names each\n"));
        }
        written.fetch_add(u64::from(line.is_ok()), Ordering::Release);
        match line {
            Ok(line) if limit.shows() => tell(format_args!("{line}")),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Lets some lines of each period pass and counts the others.
#[derive(Debug)]
struct Limit {
    began: Instant,
    shown: u64,
    hidden: u64,
}

impl Limit {
    fn new(now: Instant) -> Self {
        Self { began: now, shown: 0, hidden: 0 }
    }

    /// Begins a period where one is over; the lines that the last one hid.
    fn renew(&mut self, now: Instant, is_end: bool) -> Option<u64> {
        if now.saturating_duration_since(self.began) < PERIOD && !is_end {
            return None;
        }
        let hidden = self.hidden;
        *self = Self::new(now);
        (hidden > 0).then_some(hidden)
    }

    fn shows(&mut self) -> bool {
        let shows = self.shown < FAILURES_MAX;
        (self.shown, self.hidden) = (self.shown + u64::from(shows), self.hidden + u64::from(!shows));
        shows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_failures_at_once_become_a_few_lines_and_a_number() {
        let began = Instant::now();
        let mut limit = Limit::new(began);
        assert_eq!((0..5000).filter(|_| limit.shows()).count() as u64, FAILURES_MAX);
        assert_eq!(limit.renew(began + PERIOD / 2, false), None);
        assert_eq!(limit.renew(began + PERIOD, false), Some(5000 - FAILURES_MAX));
        assert!(limit.shows());
        assert_eq!(limit.renew(began + PERIOD * 3, false), None);
    }
}
