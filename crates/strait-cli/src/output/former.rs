//! Target that was removed from a running capture: its tables are completed by a thread of its own,
//! and its counts stay in the ledger.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
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
    /// None once the completed ledger was taken. Its sender lives as long as the thread.
    completed: Option<Receiver<Completed>>,
    /// Number of the window at the end of which it was removed.
    window: u64,
    end: End,
}

/// Completed tables.
struct Completed {
    /// Ledger with all losses.
    ledger: TargetReport,
    /// Losses since the removal.
    late: Tally,
}

/// End of the tables.
enum End {
    Running { counts: SinkCounts, thread: JoinHandle<Ended> },
    Ended { bytes: u64, ended: Ended },
}

impl Former {
    /// Starts a thread that completes the tables. `cut` is the ledger of the capture at the
    /// removal, which ended a window. The thread drops `ending` last.
    pub(super) fn start(output: TableOutput, cut: Report, window: u64, ending: Ending) -> Self {
        let (ledger, counts) = (output.ledger(&cut), output.counts());
        let (sender, completed) = sync_channel(1);
        let complete = move || {
            let ended = complete(output, &cut, &sender);
            drop(ending);
            ended
        };
        let end = match thread::Builder::new().name("former".into()).spawn(complete) {
            Ok(thread) => End::Running { counts, thread },
            // Its files are complete, as the tables were dropped.
            Err(error) => End::Ended {
                bytes: counts.summary().bytes(),
                ended: Ended::failed(Error::Failed(format!(
                    "start a thread that completes {}: {error}",
                    ledger.target
                ))),
            },
        };
        Self { ledger, completed: Some(completed), window, end }
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

    /// Returns the number of the window at the end of which it was removed.
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// Takes the results of the thread that are known; with `waits`, waits for the ledger with all
    /// losses. Returns the losses since the removal once, when they are known.
    pub(super) fn update(&mut self, waits: bool) -> Option<Tally> {
        // The thread sends before it ends, so the ledger of one that has ended is there.
        let has_ended = matches!(&self.end, End::Running { thread, .. } if thread.is_finished());
        let late = self.take_completed(waits);
        if has_ended {
            self.join();
        }
        late
    }

    /// Takes the completed ledger once.
    fn take_completed(&mut self, waits: bool) -> Option<Tally> {
        let completed = self.completed.as_ref()?;
        let received = if waits {
            completed.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            completed.try_recv()
        };
        let late = match received {
            Ok(Completed { ledger, late }) => {
                self.ledger = ledger;
                late
            }
            // The thread could not be started, or panicked.
            Err(TryRecvError::Disconnected) => Tally::default(),
            Err(TryRecvError::Empty) => return None,
        };
        self.completed = None;
        Some(late)
    }

    /// Waits for the end of the tables and of their upload.
    fn join(&mut self) {
        let End::Running { counts, .. } = &self.end else { return };
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
            (
                End::Ended { bytes, ended },
                Self { ledger, end: End::Ended { bytes: more, ended: next }, .. },
            ) if ledger.target == self.ledger.target => {
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
        self.join();
        match self.end {
            End::Ended { ended, .. } => ended,
            End::Running { .. } => Ended::default(),
        }
    }
}

/// The thread: completes the tables, reports their ledger, and waits for their upload.
fn complete(mut output: TableOutput, cut: &Report, sender: &SyncSender<Completed>) -> Ended {
    if let Err(error) = output.complete() {
        output.fail(error, false);
    }
    let ledger = output.ledger(cut);
    let (url, report) = (ledger.target.clone(), cut.of(&ledger));
    // The capture may have failed meanwhile.
    let _ = sender.send(Completed { ledger, late: output.lost() });
    let ended = output.close(&report).end();
    let result = match (&ended.failure, &ended.line) {
        (Some(error), _) => format!("failed: {error}"),
        (None, Some(line)) => format!("is complete: {line}"),
        (None, None) => "is complete".into(),
    };
    print_stderr(format_args!("strait: note: the former target {url} {result}\n"));
    ended
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use strait_table::flows::FlowLimits;
    use strait_table::packets::Columns;
    use strait_table::{FileNumbers, Options, ROTATE_BYTES, ROTATE_EVERY, Selected, no_names};

    use super::super::change::Shared;
    use super::super::place::Place;
    use super::*;

    fn start(directory: &Path) -> Former {
        let options = Options {
            directory: directory.to_owned(),
            spool: None,
            sensor: "s1".into(),
            capture: "c1".into(),
            numbers: FileNumbers::default(),
            selected: Selected::default(),
            flows: FlowLimits { flows_max: 8, idle_ns: 1, active_ns: 1 },
            columns: Columns::default(),
            frame_bytes: 0,
            rotate_bytes: ROTATE_BYTES,
            rotate_every: ROTATE_EVERY,
            waits: true,
        };
        let place = Place::Directory(directory.to_owned());
        let output = TableOutput::files("file:a".into(), options, place, no_names()).unwrap();
        Former::start(output, Report::default(), 0, Shared::default().end("file:a"))
    }

    #[test]
    fn ledger_of_an_ended_thread_is_taken_with_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let mut former = start(directory.path());
        while matches!(&former.end, End::Running { thread, .. } if !thread.is_finished()) {
            thread::yield_now();
        }
        former.ledger.target.clear();
        assert!(former.update(false).is_some());
        assert_eq!(former.ledger.target, "file:a", "that of the thread");
        assert!(matches!(&former.end, End::Ended { ended, .. } if ended.failure.is_none()));
    }

    #[test]
    fn taken_ledger_is_not_waited_for_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut former = start(directory.path());
        assert!(former.update(true).is_some());
        assert!(former.update(true).is_none());
        assert!(former.into_ended().failure.is_none());
    }
}
