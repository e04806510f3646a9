//! Plan of the attempts to reach a receiver that fails: growing pauses, and an end.
//!
//! It is pure: times are arguments, and the caller waits, in a thread or in a task.

use std::time::{Duration, Instant};

/// Attempts, which follow one another without a pause until one fails.
#[derive(Clone, Copy, Debug)]
pub struct Attempts {
    first_pause: Duration,
    pause_max: Duration,
    stall: Option<Stall>,
}

/// Time since which all attempts have failed.
#[derive(Clone, Copy, Debug)]
struct Stall {
    since: Instant,
    /// Time of the next attempt, and the pause before it.
    next: Instant,
    pause: Duration,
}

/// Next step of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The attempt is due.
    Attempt,
    /// The attempt is not due: wait, and ask again.
    Wait(Duration),
    /// All attempts have failed for long enough.
    GiveUp,
}

impl Attempts {
    /// Plans a pause after each failure: `first_pause`, then twice the last one, up to `pause_max`.
    pub const fn new(first_pause: Duration, pause_max: Duration) -> Self {
        Self { first_pause, pause_max, stall: None }
    }

    /// Notes that an attempt has succeeded.
    pub fn succeed(&mut self) {
        self.stall = None;
    }

    /// Notes that an attempt has failed.
    pub fn fail(&mut self, now: Instant) {
        let pause = self.stall.map_or(self.first_pause, |stall| (stall.pause * 2).min(self.pause_max));
        let since = self.stall.map_or(now, |stall| stall.since);
        self.stall = Some(Stall { since, next: now + pause, pause });
    }

    /// Returns the time until the next attempt, which is zero if it is due.
    pub fn until_next(&self, now: Instant) -> Duration {
        self.stall.map_or(Duration::ZERO, |stall| stall.next.saturating_duration_since(now))
    }

    /// Returns the next step of a caller that gives up when all attempts have failed for `limit`.
    /// An attempt that is due comes before the end.
    pub fn step(&self, now: Instant, limit: Duration) -> Step {
        let until_next = self.until_next(now);
        if until_next.is_zero() {
            return Step::Attempt;
        }
        let stalled = self.stall.map_or(Duration::ZERO, |stall| now.saturating_duration_since(stall.since));
        match limit.saturating_sub(stalled) {
            Duration::ZERO => Step::GiveUp,
            left => Step::Wait(until_next.min(left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_an_attempt_succeeds() {
        let mut now = Instant::now();
        let mut attempts = Attempts::new(Duration::from_secs(1), Duration::from_secs(5));
        let mut pauses = || {
            attempts.fail(now);
            let pause = attempts.until_next(now);
            now += pause;
            assert_eq!(attempts.until_next(now), Duration::ZERO);
            pause.as_secs()
        };
        assert_eq!([(); 5].map(|()| pauses()), [1, 2, 4, 5, 5]);
        attempts.succeed();
        attempts.fail(now);
        assert_eq!(attempts.until_next(now), Duration::from_secs(1));
    }

    #[test]
    fn caller_gives_up_between_two_attempts() {
        const LIMIT: Duration = Duration::from_secs(5);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut attempts = Attempts::new(Duration::from_secs(2), Duration::from_mins(1));
        assert_eq!(attempts.step(start, Duration::ZERO), Step::Attempt);
        attempts.fail(start);
        assert_eq!(attempts.step(after(1), LIMIT), Step::Wait(Duration::from_secs(1)));
        assert_eq!(attempts.step(after(2), LIMIT), Step::Attempt);
        attempts.fail(after(2));
        assert_eq!(attempts.step(after(3), LIMIT), Step::Wait(Duration::from_secs(2)), "the end is nearer");
        assert_eq!(attempts.step(after(5), LIMIT), Step::GiveUp);
        assert_eq!(attempts.step(after(6), LIMIT), Step::Attempt, "it is due");
    }
}
