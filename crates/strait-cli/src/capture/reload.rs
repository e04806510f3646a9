//! Files of a running capture that SIGHUP reads again.
//!
//! The thread that watches the lanes polls them.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::filter_file::{Compiled, FilterFile};
use crate::Error;
use crate::output::WatchedTargets;
use crate::sink::Changed;

/// Time after the loss of a terminal in which SIGHUP means its hang-up. The kernel sends it at the
/// loss; a shell passes it on to its background jobs.
const HANGUP_DELAY_MAX: Duration = Duration::from_secs(2);

/// Result of a SIGHUP.
pub(crate) enum Reload {
    /// The terminal was closed: the capture ends.
    HungUp,
    /// The file of the filter was read.
    Filter(Compiled),
    /// The file of the targets was read, and new ones were opened: the sink has them.
    Targets(Result<(), Error>),
}

/// Files that SIGHUP reads again.
pub(crate) struct Reloading {
    signal: Reloads,
    filter: Option<FilterFile>,
    targets: Option<WatchedTargets>,
}

impl Reloading {
    pub(super) fn new(signal: Reloads, filter: Option<FilterFile>, targets: Option<WatchedTargets>) -> Self {
        Self { signal, filter, targets }
    }

    /// After SIGHUP, starts to read the files. Returns each result once, some time later.
    pub(crate) fn poll(&self, now: Instant) -> Option<Reload> {
        match self.signal.poll(now) {
            Some(Hangup::End) => return Some(Reload::HungUp),
            Some(Hangup::Reload) => {
                self.filter.iter().for_each(FilterFile::request);
                self.targets.iter().for_each(WatchedTargets::request);
            }
            None => {}
        }
        let filter = self.filter.as_ref().and_then(FilterFile::poll).map(Reload::Filter);
        let targets = || self.targets.as_ref()?.poll().map(Reload::Targets);
        filter.or_else(targets)
    }

    /// Returns the note for the user about targets that the end of the capture has left as they
    /// were, after a SIGHUP.
    pub(crate) fn end_note(&self, now: Instant) -> Option<&'static str> {
        let targets = self.targets.as_ref()?;
        let is_requested = matches!(self.signal.poll(now), Some(Hangup::Reload));
        let is_late = is_requested || targets.is_pending();
        is_late.then_some("the capture ended before the targets were changed")
    }

    /// Returns the note for the user about a replaced filter.
    pub(crate) fn filter_note(&self, replaced: &Result<(), Error>) -> String {
        self.filter.as_ref().map(|filter| filter.note(replaced)).unwrap_or_default()
    }

    /// Returns the note for the user about changed targets.
    pub(crate) fn targets_note(&self, changed: &Result<Changed, Error>) -> String {
        self.targets.as_ref().map(|targets| targets.note(changed)).unwrap_or_default()
    }
}

/// Meaning of a SIGHUP.
enum Hangup {
    /// The terminal was closed.
    End,
    /// Files are to be read again.
    Reload,
}

/// SIGHUP of a capture that reads files again.
pub(super) struct Reloads {
    /// Set by each SIGHUP.
    flag: &'static AtomicBool,
    terminal: Mutex<Terminal>,
}

impl Reloads {
    /// Handles SIGHUP from now on.
    pub(super) fn on_hangup() -> Result<Self, Error> {
        // Under nohup(1) a capture outlives its terminal.
        let ends_with_terminal = !strait_os::process::ignores_hangup()? && has_terminal();
        let terminal = Terminal { ends: ends_with_terminal, lost: None };
        Ok(Self { flag: strait_os::process::on_reload()?, terminal: Mutex::new(terminal) })
    }

    /// Returns the meaning of a signal once.
    fn poll(&self, now: Instant) -> Option<Hangup> {
        let mut terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner);
        if terminal.ends {
            // The kernel takes the terminal away before it sends the signal.
            let has_signal = self.flag.load(Ordering::Acquire);
            if terminal.is_hung_up(has_terminal(), has_signal, now) {
                return Some(Hangup::End);
            }
        }
        self.flag.swap(false, Ordering::AcqRel).then_some(Hangup::Reload)
    }
}

/// Terminal at which the program was started.
struct Terminal {
    /// True if its hang-up ends the capture.
    ends: bool,
    /// Time at which its loss was seen, while a SIGHUP can still be that of the hang-up.
    lost: Option<Instant>,
}

impl Terminal {
    /// Returns true if SIGHUP means a hang-up. A terminal can also be lost without a signal, as by
    /// the end of a login shell; a later SIGHUP is then a request.
    fn is_hung_up(&mut self, is_present: bool, has_signal: bool, now: Instant) -> bool {
        if !self.ends || is_present {
            return false;
        }
        let lost = *self.lost.get_or_insert(now);
        self.ends = now.saturating_duration_since(lost) < HANGUP_DELAY_MAX;
        self.ends && has_signal
    }
}

/// Returns true if the process has a controlling terminal.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signal_soon_after_the_loss_of_the_terminal_is_its_hangup() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let terminal = || Terminal { ends: true, lost: None };
        assert!(!terminal().is_hung_up(true, true, start), "a request at a terminal");
        assert!(terminal().is_hung_up(false, true, start));

        let mut late = terminal();
        assert!(!late.is_hung_up(false, false, at(0)));
        assert!(late.is_hung_up(false, true, at(1)));

        let mut without_signal = terminal();
        assert!(!without_signal.is_hung_up(false, false, at(0)));
        assert!(!without_signal.is_hung_up(false, false, at(2)));
        assert!(!without_signal.is_hung_up(false, true, at(2)));
    }
}
