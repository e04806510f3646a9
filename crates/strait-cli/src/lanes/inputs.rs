//! Open sessions of a capture, one for each interface or one for a file, with their lanes.
//!
//! Sessions end on their own: after a failure of one interface the others go on. The ledger joins
//! those of all sessions.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use strait_capture::{Lane, LinkStatus, Session};
use strait_filter::cbpf::Program;
use strait_ledger::{LaneCounts, Report};

use super::lock;
use crate::Error;

/// Open sessions, at least one.
pub(crate) struct Inputs {
    all: Vec<Input>,
}

/// Lanes of all sessions in order, each with the position of its session.
pub(crate) type Lanes = Vec<(usize, Lane)>;

/// Open session, and the place of its lanes in the ledger.
struct Input {
    name: String,
    session: Mutex<Session>,
    /// Number of its first lane in the whole capture.
    first_lane: u32,
    /// Number of its lanes.
    lanes: usize,
    has_failed: AtomicBool,
    /// True if its failure was reported while others went on.
    is_noted: AtomicBool,
}

impl Input {
    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }
}

/// Restores the earlier filters after `error`. Returns it, with the interfaces that keep the new
/// filter because the kernel refuses the earlier one.
fn restore(replaced: Vec<(&Input, Program)>, error: Error) -> Error {
    let mut kept = Vec::new();
    for (input, earlier) in replaced {
        if lock(&input.session).replace_filter(&earlier).is_err() && !input.has_failed() {
            kept.push(input.name.as_str());
        }
    }
    if kept.is_empty() {
        return error;
    }
    let names = kept.join(", ");
    Error::Failed(format!("{error}; but {names} has the new filter: restart the capture"))
}

impl Inputs {
    /// Takes the lanes of the sessions. Their numbers in the whole capture follow each other.
    pub(crate) fn new(sessions: Vec<Session>) -> (Self, Lanes) {
        let (mut all, mut lanes, mut first_lane) = (Vec::with_capacity(sessions.len()), Vec::new(), 0_u32);
        for (at, mut session) in sessions.into_iter().enumerate() {
            let own = session.take_lanes();
            all.push(Input {
                name: session.interface().to_owned(),
                session: Mutex::new(session),
                first_lane,
                lanes: own.len(),
                has_failed: AtomicBool::new(false),
                is_noted: AtomicBool::new(false),
            });
            // The queues of a session can have any numbers.
            let most = own.iter().map(Lane::queue).max().unwrap_or(0);
            first_lane = first_lane.saturating_add(most).saturating_add(1);
            lanes.extend(own.into_iter().map(|lane| (at, lane)));
        }
        (Self { all }, lanes)
    }

    /// Calls `read` with each session, in order.
    pub(crate) fn each_session<R>(&self, read: impl Fn(&Session) -> R) -> Vec<R> {
        self.all.iter().map(|input| read(&lock(&input.session))).collect()
    }

    /// Returns the number of the first lane of each session.
    pub(crate) fn first_lanes(&self) -> Vec<u32> {
        self.all.iter().map(|input| input.first_lane).collect()
    }

    /// Replaces the filters of all sessions, in order. After a failure all have their earlier ones,
    /// except interfaces that the error names.
    pub(super) fn replace_filters(&self, programs: &[Program]) -> Result<(), Error> {
        let mut replaced: Vec<(&Input, Program)> = Vec::with_capacity(self.all.len());
        for (input, program) in self.all.iter().zip(programs) {
            // An interface that has failed has no frames. It can also fail meanwhile.
            if input.has_failed() {
                continue;
            }
            let earlier = lock(&input.session).replace_filter(program);
            match earlier {
                Ok(earlier) => replaced.push((input, earlier)),
                Err(_) if input.has_failed() => {}
                Err(error) => return Err(restore(replaced, error.into())),
            }
        }
        Ok(())
    }

    /// Stops the session at a position.
    pub(super) fn stop(&self, at: usize) -> Result<(), Error> {
        Ok(lock(&self.all[at].session).stop()?)
    }

    /// Stops all sessions. Returns the first failure.
    pub(super) fn stop_all(&self) -> Result<(), Error> {
        let mut result = Ok(());
        for at in 0..self.all.len() {
            result = result.and(self.stop(at));
        }
        result
    }

    /// Notes the failure of an interface. Returns true for its first failure while others go on:
    /// report it.
    pub(super) fn fail(&self, at: usize) -> bool {
        let input = &self.all[at];
        if input.has_failed.swap(true, Ordering::AcqRel) {
            return false;
        }
        let others = self.all.iter().enumerate().filter(|(other, _)| *other != at);
        let goes_on = others.into_iter().any(|(_, other)| !other.has_failed());
        input.is_noted.store(goes_on, Ordering::Release);
        goes_on
    }

    /// Returns true if the failure of the interface was reported while others went on.
    pub(super) fn is_noted(&self, at: usize) -> bool {
        self.all[at].is_noted.load(Ordering::Acquire)
    }

    /// Returns name and link state of each session.
    pub(super) fn links(&self) -> Vec<(&str, LinkStatus)> {
        self.all.iter().map(|input| (input.name.as_str(), lock(&input.session).link())).collect()
    }

    /// Returns the ledger of all sessions from the counts of all lanes, in order.
    pub(super) fn report(&self, counts: Vec<LaneCounts>) -> Report {
        let mut counts = counts.into_iter();
        let report = |input: &Input| {
            let own = counts.by_ref().take(input.lanes).collect();
            (input.first_lane, lock(&input.session).report(own))
        };
        Report::join(self.all.iter().map(report).collect())
    }
}
