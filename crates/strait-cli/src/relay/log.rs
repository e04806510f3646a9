//! Log of `strait relay`: one JSON line per connection, or one line per failed connection.
//!
//! A separate thread writes it. A stalled reader loses lines, which are counted, and delays no
//! connection. Above a rate limit failures are summed up in one line.

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
use crate::limit::Limit;
use crate::output::print_stderr;

/// Default maximum of queued lines. Further lines are dropped and counted.
pub(super) const LINES: u32 = 4096;
/// Failures reported individually in a period. The rest is counted.
const FAILURES_MAX: u64 = 10;
const PERIOD: Duration = Duration::from_secs(1);
/// Time limit for a slow reader at the end.
const END_MAX: Duration = Duration::from_secs(2);

/// The log, to which any thread may write.
pub(super) struct Log {
    lines: SyncSender<String>,
    is_json: bool,
    counts: Arc<Counts>,
    ended: Receiver<()>,
}

/// Numbers of reported lines, and of those written to the output.
#[derive(Debug, Default)]
struct Counts {
    reported: AtomicU64,
    written: AtomicU64,
}

/// A worker's handle of the log.
#[derive(Clone)]
pub(super) struct Writer {
    lines: SyncSender<String>,
    is_json: bool,
    counts: Arc<Counts>,
}

impl Log {
    /// Starts the thread with a queue of `lines_max` lines.
    pub(super) fn start(is_json: bool, lines_max: usize) -> Result<Self, Error> {
        let (lines, queued) = sync_channel::<String>(lines_max);
        let (done, ended) = sync_channel(1);
        let counts = Arc::new(Counts::default());
        let written = Arc::clone(&counts);
        let output = File::from(std::io::stdout().as_fd().try_clone_to_owned().map_err(Error::Output)?);
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || {
            if is_json {
                write_json(&queued, output, &written.written);
            } else {
                write_failures(&queued, &written.written);
            }
            // Fails if `end` has stopped waiting.
            let _ = done.send(());
        });
        thread.map_err(|error| Error::Failed(format!("start to log: {error}")))?;
        Ok(Self { lines, is_json, counts, ended })
    }

    pub(super) fn writer(&self) -> Writer {
        Writer { lines: self.lines.clone(), is_json: self.is_json, counts: Arc::clone(&self.counts) }
    }

    /// Waits until all lines are written, for at most [`END_MAX`]. Returns the number of lost
    /// lines, and true if the reader is stalled.
    pub(super) fn end(self) -> (u64, bool) {
        let Self { lines, counts, ended, .. } = self;
        drop(lines);
        let is_stalled = ended.recv_timeout(END_MAX) == Err(RecvTimeoutError::Timeout);
        // Queued lines are lost, as the program ends.
        let written = counts.written.load(Ordering::Acquire);
        (counts.reported.load(Ordering::Relaxed).saturating_sub(written), is_stalled)
    }
}

impl Writer {
    /// Reports the end of a connection. Without JSON only failures are reported.
    pub(super) fn report(&self, ended: &ClosedConnection) {
        let Some(line) = (if self.is_json { Some(as_json(ended)) } else { as_failure(ended) }) else {
            return;
        };
        self.counts.reported.fetch_add(1, Ordering::Relaxed);
        // A full queue drops the line, which then counts as reported but not as written.
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
        // A failed write of the log does not affect connections.
        if output.write_all(line.as_bytes()).is_ok() {
            written.fetch_add(1, Ordering::Release);
        }
    }
}

/// Writes failures, up to the limit. Hidden lines count as written, as their number is reported.
fn write_failures(lines: &Receiver<String>, written: &AtomicU64) {
    let mut limit = Limit::new(FAILURES_MAX, PERIOD, Instant::now());
    loop {
        let line = lines.recv_timeout(PERIOD);
        let now = Instant::now();
        if let Some(hidden) = limit.renew(now, matches!(line, Err(RecvTimeoutError::Disconnected))) {
            print_stderr(format_args!("strait: {hidden} more connections failed; --json-log names each\n"));
        }
        written.fetch_add(u64::from(line.is_ok()), Ordering::Release);
        match line {
            Ok(line) if limit.permits() => print_stderr(format_args!("{line}")),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
