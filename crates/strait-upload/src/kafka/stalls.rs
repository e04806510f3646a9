//! Parts of a cluster that fail: brokers, and partitions at their leader. Each has attempts of its
//! own, so a part that is down for long does not delay the flows of the others.
//!
//! It is pure: times are arguments.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use strait_os::retry::{Attempts, Step};

use crate::client::{BACKOFF, BACKOFF_MAX, RETRY_FOR};

/// Part of a cluster, which can fail alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Broker, which cannot be reached or does not answer.
    Broker(i32),
    /// Partition with its leader, if it has one. The leader does not take its records, or there is
    /// none. With another leader it is another part, which has not failed.
    Partition(usize, Option<i32>),
}

/// State of parts that are all needed, the better ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State<'a> {
    /// None has failed.
    Works,
    /// The next attempt is due.
    Due,
    /// The next attempt is due, but the cluster was not asked for since the failure.
    Stale,
    /// The next attempt is due after this time.
    Pauses(Duration),
    /// One has failed for so long that no flow waits for its next attempt. The text is the cause.
    GivenUp(&'a str),
}

/// Parts that have failed. [`Self::retain`] limits their number.
pub(super) struct Stalls {
    /// Plan of the attempts of each part.
    attempts: Attempts,
    /// Time for which flows wait for a part.
    limit: Duration,
    parts: BTreeMap<Part, Stall>,
}

struct Stall {
    attempts: Attempts,
    cause: String,
    /// True if the cluster was not asked for since the failure.
    is_stale: bool,
}

impl Default for Stalls {
    fn default() -> Self {
        Self::new(Attempts::new(BACKOFF, BACKOFF_MAX), RETRY_FOR)
    }
}

impl Stalls {
    pub(super) const fn new(attempts: Attempts, limit: Duration) -> Self {
        Self { attempts, limit, parts: BTreeMap::new() }
    }

    /// Notes that an attempt of a part has failed.
    pub(super) fn fail(&mut self, part: Part, cause: String, now: Instant) {
        let mut attempts = self.parts.get(&part).map_or(self.attempts, |stall| stall.attempts);
        attempts.fail(now);
        self.parts.insert(part, Stall { attempts, cause, is_stale: true });
    }

    /// Notes that a part works.
    pub(super) fn end(&mut self, part: Part) {
        self.parts.remove(&part);
    }

    /// Notes that the cluster was asked for. Forgets parts that it does not have any more.
    pub(super) fn retain(&mut self, exists: impl Fn(Part) -> bool) {
        self.parts.retain(|part, _| exists(*part));
        self.parts.values_mut().for_each(|stall| stall.is_stale = false);
    }

    /// Returns the state of parts that are all needed: that of the worst one.
    pub(super) fn state(&self, parts: &[Part], now: Instant) -> State<'_> {
        let stalls = parts.iter().filter_map(|part| self.parts.get(part));
        let states = stalls.map(|stall| match stall.attempts.step(now, self.limit) {
            Step::Attempt if stall.is_stale => State::Stale,
            Step::Attempt => State::Due,
            Step::Wait(pause) => State::Pauses(pause),
            Step::GiveUp => State::GivenUp(&stall.cause),
        });
        states.max().unwrap_or(State::Works)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_needed_together_have_the_state_of_the_worst_one() {
        const BROKER: Part = Part::Broker(1);
        const PARTITION: Part = Part::Partition(0, Some(1));
        const SECOND: Duration = Duration::from_secs(1);
        let start = Instant::now();
        let mut stalls = Stalls::new(Attempts::new(SECOND, 9 * SECOND), 3 * SECOND);
        let state = |stalls: &Stalls, seconds| {
            format!("{:?}", stalls.state(&[BROKER, PARTITION], start + seconds * SECOND))
        };
        assert_eq!(state(&stalls, 0), "Works");
        stalls.fail(PARTITION, "too few replicas".into(), start);
        assert_eq!([0, 1].map(|seconds| state(&stalls, seconds)), ["Pauses(1s)", "Stale"]);
        stalls.retain(|_| true);
        assert_eq!([0, 1].map(|seconds| state(&stalls, seconds)), ["Pauses(1s)", "Due"]);
        stalls.fail(BROKER, "refused".into(), start + SECOND);
        assert_eq!([1, 2].map(|seconds| state(&stalls, seconds)), ["Pauses(1s)", "Stale"]);
        stalls.fail(PARTITION, "too few replicas".into(), start + 2 * SECOND);
        assert_eq!(state(&stalls, 2), "Pauses(1s)", "the end is nearer than the attempt");
        assert_eq!(state(&stalls, 3), "GivenUp(\"too few replicas\")");
        let with_another_leader = [BROKER, Part::Partition(0, Some(2))];
        assert_eq!(stalls.state(&with_another_leader, start + 3 * SECOND), State::Stale);
        stalls.end(PARTITION);
        assert_eq!(state(&stalls, 3), "Stale");
        stalls.retain(|part| part != BROKER);
        assert_eq!(state(&stalls, 3), "Works");
    }
}
