//! Target that was removed from a running capture: its tables are completed by a thread of its own,
//! and its counts stay in the ledger.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use strait_ledger::{Report, TargetReport};
use strait_program::output::print_stderr;
use strait_table::Tally;
use strait_table::sink::SinkCounts;

use super::change::Ending;
use super::closed::Ended;
use super::table_output::TableOutput;
use crate::Error;

/// Removed target.
pub(super) struct Former {
    /// Ledger at the removal, then with all losses.
    ledger: TargetReport,
    end: End,
}

/// End of the tables.
enum End {
    Running { counts: SinkCounts, completed: Receiver<TargetReport>, thread: JoinHandle<Ended> },
    Ended { bytes: u64, ended: Ended },
}

impl Former {
    /// Starts a thread that completes the tables. `cut` is the ledger of the capture at the
    /// removal. The thread drops `ending` last.
    pub(super) fn start(output: TableOutput, cut: Report, ending: Ending) -> Self {
        let (ledger, counts) = (output.ledger(&cut), output.counts());
        let (sender, completed) = sync_channel(1);
        let complete = move || {
            let ended = complete(output, &cut, &sender);
            drop(ending);
            ended
        };
        let end = match thread::Builder::new().name("former".into()).spawn(complete) {
            Ok(thread) => End::Running { counts, completed, thread },
            // Its files are complete, as the tables were dropped.
            Err(error) => End::Ended {
                bytes: counts.summary().bytes(),
                ended: Ended::failed(Error::Failed(format!(
                    "start a thread that completes {}: {error}",
                    ledger.target
                ))),
            },
        };
        Self { ledger, end }
    }

    /// Returns the ledger.
    pub(super) fn ledger(&self) -> &TargetReport {
        &self.ledger
    }

    pub(super) fn written_bytes(&self) -> u64 {
        match &self.end {
            End::Running { counts, .. } => counts.summary().bytes(),
            End::Ended { bytes, .. } => *bytes,
        }
    }

    /// Takes the ledger with all losses once it is known; with `waits`, waits for it. Returns the
    /// losses that it adds.
    pub(super) fn update(&mut self, waits: bool) -> Tally {
        let End::Running { completed, .. } = &self.end else { return Tally::default() };
        let ledger = if waits { completed.recv().ok() } else { completed.try_recv().ok() };
        let Some(ledger) = ledger else { return Tally::default() };
        let earlier = lost(&std::mem::replace(&mut self.ledger, ledger));
        lost(&self.ledger).since(&earlier)
    }

    /// Waits for the end of the tables and of their upload. With `waits` false, does nothing while
    /// the thread runs. Call [`Former::update`] before.
    pub(super) fn join(&mut self, waits: bool) {
        let End::Running { counts, thread, .. } = &self.end else { return };
        if !waits && !thread.is_finished() {
            return;
        }
        let end = End::Ended { bytes: counts.summary().bytes(), ended: Ended::default() };
        if let End::Running { thread, .. } = std::mem::replace(&mut self.end, end)
            && let End::Ended { ended, .. } = &mut self.end
        {
            let panicked =
                || Ended::failed(Error::Failed(format!("complete {}: a defect", self.ledger.target)));
            *ended = thread.join().unwrap_or_else(|_| panicked());
        }
    }

    /// Adds an earlier end of the same target, if both have ended. Returns the other one otherwise.
    pub(super) fn merge(&mut self, other: Self) -> Option<Self> {
        match (&mut self.end, other) {
            (End::Ended { bytes, ended }, Self { ledger, end: End::Ended { bytes: more, ended: next } })
                if ledger.target == self.ledger.target =>
            {
                self.ledger.add(&ledger);
                *bytes += more;
                ended.add(next);
                None
            }
            (_, other) => Some(other),
        }
    }

    /// Returns the ended tables.
    pub(super) fn into_ended(mut self) -> Ended {
        self.join(true);
        match self.end {
            End::Ended { ended, .. } => ended,
            End::Running { .. } => Ended::default(),
        }
    }
}

/// The thread: completes the tables, reports their ledger, and waits for their upload.
fn complete(mut output: TableOutput, cut: &Report, sender: &SyncSender<TargetReport>) -> Ended {
    if let Err(error) = output.complete() {
        output.fail(error, false);
    }
    let ledger = output.ledger(cut);
    let (url, report) = (ledger.target.clone(), cut.of(&ledger));
    // The capture may have failed meanwhile.
    let _ = sender.send(ledger);
    let ended = output.close(&report).end();
    let result = match (&ended.failure, &ended.line) {
        (Some(error), _) => format!("failed: {error}"),
        (None, Some(line)) => format!("is complete: {line}"),
        (None, None) => "is complete".into(),
    };
    print_stderr(format_args!("strait: note: the former target {url} {result}\n"));
    ended
}

/// Returns the packets that a target has lost, by lane.
fn lost(ledger: &TargetReport) -> Tally {
    let mut lost = Tally::default();
    ledger.lanes.iter().for_each(|lane| lost.add(lane.queue, lane.capture.lost.sink));
    lost
}
