//! Passive health of a server: consecutive failures, and slow responses, eject it for a while.
//! Without I/O and without a clock; times are seconds.

/// Longest ejection, as a multiple of the first one.
const LONGEST: u64 = 30;

/// Rules of ejection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EjectionRules {
    /// Consecutive failures that eject a server; 0: never.
    pub(crate) failures: u32,
    /// Seconds of the first ejection.
    pub(crate) seconds: u64,
}

/// Failures and ejections of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Health {
    /// Failures since the last success.
    failures: u32,
    /// Ejections since the last success.
    by_failures: Ejections,
    /// Ejections since its times were usual. A response does not end them: it was slow.
    by_latency: Ejections,
}

/// Series of ejections.
#[derive(Clone, Copy, Debug, Default)]
struct Ejections {
    count: u32,
    /// End of the last one.
    until: u64,
}

impl Ejections {
    /// Begins another one, twice as long as the last.
    fn begin(&mut self, seconds: u64, now: u64) {
        let doubled = seconds.saturating_mul(1 << self.count.min(32));
        self.until = now.saturating_add(doubled.min(seconds.saturating_mul(LONGEST)));
        self.count = self.count.saturating_add(1);
    }
}

impl Health {
    /// Returns true while the server gets no requests. After that the next failure ejects it again,
    /// for twice as long.
    pub(crate) fn is_ejected(&self, now: u64) -> bool {
        now < self.end()
    }

    /// Returns the failures since the last success.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the end of the last ejection.
    pub(crate) fn end(&self) -> u64 {
        self.by_failures.until.max(self.by_latency.until)
    }

    /// Notes a response. Returns true if it ends an ejection.
    pub(crate) fn note_success(&mut self, now: u64) -> bool {
        let was_ejected = self.is_ejected(now);
        *self = Self { by_latency: self.by_latency, ..Self::default() };
        was_ejected && !self.is_ejected(now)
    }

    /// Notes that the times of responses are usual.
    pub(crate) fn note_usual_times(&mut self) {
        self.by_latency = Ejections::default();
    }

    /// Notes that the server is an outlier. Returns true if that ejects it; with `are_few_left`, it
    /// does not.
    pub(crate) fn note_outlier(&mut self, rules: EjectionRules, now: u64, are_few_left: bool) -> bool {
        if are_few_left || self.is_ejected(now) {
            return false;
        }
        self.by_latency.begin(rules.seconds, now);
        true
    }

    /// Notes a failure. Returns true if it ejects the server; with `is_last`, it does not: no other
    /// server is left.
    pub(crate) fn note_failure(&mut self, rules: EjectionRules, now: u64, is_last: bool) -> bool {
        self.failures = self.failures.saturating_add(1);
        let is_due = rules.failures > 0 && self.failures >= rules.failures;
        // Requests that were in progress at the ejection fail as well, and do not extend it.
        if !is_due || is_last || self.is_ejected(now) {
            return false;
        }
        self.by_failures.begin(rules.seconds, now);
        true
    }
}

/// Returns the percentage of its weight, from 1 to 100, that a server has at `now`, if it has
/// returned at `returned` and has its whole weight after `seconds`.
pub(crate) fn slow_start_percent(returned: u64, now: u64, seconds: u64) -> u32 {
    let elapsed = now.saturating_sub(returned);
    let percent = elapsed.saturating_mul(100).checked_div(seconds).unwrap_or(100);
    percent.clamp(1, 100) as u32
}

/// Results of active checks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checked {
    pub(crate) is_down: bool,
    /// Consecutive checks with the other result than the present state.
    contrary: u32,
}

impl Checked {
    /// Notes a check. A server that is up goes down after `fall` failed checks, and comes up after
    /// `rise` passed ones. Returns true if it does.
    pub(crate) fn note(&mut self, has_passed: bool, rise: u32, fall: u32) -> bool {
        if has_passed != self.is_down {
            self.contrary = 0;
            return false;
        }
        self.contrary = self.contrary.saturating_add(1);
        let needed = if self.is_down { rise } else { fall };
        let has_changed = self.contrary >= needed;
        if has_changed {
            *self = Self { is_down: !self.is_down, contrary: 0 };
        }
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_change_the_state_after_consecutive_results() {
        let mut checked = Checked::default();
        let states: Vec<_> = "fpffpfffpfpppf"
            .chars()
            .map(|result| {
                checked.note(result == 'p', 2, 3);
                if checked.is_down { 'd' } else { 'u' }
            })
            .collect();
        assert_eq!(states.iter().collect::<String>(), "uuuuuuudddduuu");
    }

    const RULES: EjectionRules = EjectionRules { failures: 3, seconds: 10 };

    #[test]
    fn consecutive_failures_eject_for_twice_as_long_each_time() {
        let mut health = Health::default();
        assert!(!health.note_failure(RULES, 100, false) && !health.note_failure(RULES, 100, false));
        assert!(!health.note_success(100));
        for _ in 0..2 {
            assert!(!health.note_failure(RULES, 100, false));
        }
        let mut now = 100;
        for seconds in [10, 20, 40, 80, 160, 300, 300] {
            assert!(health.note_failure(RULES, now, false), "{seconds}");
            assert!(!health.note_failure(RULES, now, false) && health.is_ejected(now + seconds - 1));
            now += seconds;
            assert!(!health.is_ejected(now));
        }
        assert!(!health.note_success(now));
        assert!(!health.note_failure(RULES, now, false));
    }

    #[test]
    fn responses_end_an_ejection_by_failures_and_none_by_latency() {
        let mut health = Health::default();
        (0..3).for_each(|_| _ = health.note_failure(RULES, 100, false));
        assert!(health.is_ejected(100) && health.note_success(100) && !health.is_ejected(100));
        let mut now = 100;
        for seconds in [10, 20, 40] {
            assert!(!health.note_outlier(RULES, now, true) && !health.is_ejected(now));
            assert!(health.note_outlier(RULES, now, false) && !health.note_outlier(RULES, now, false));
            // Requests that were in progress are answered, or fail.
            assert!(!health.note_success(now) && !health.note_failure(RULES, now, false));
            assert!(health.is_ejected(now + seconds - 1) && !health.is_ejected(now + seconds));
            now += seconds;
        }
        health.note_usual_times();
        assert!(health.note_outlier(RULES, now, false) && !health.is_ejected(now + 10));
    }

    #[test]
    fn last_server_is_not_ejected() {
        let mut health = Health::default();
        for now in 0..100 {
            assert!(!health.note_failure(RULES, now, true) && !health.is_ejected(now));
        }
        assert!(health.note_failure(RULES, 100, false));
    }

    #[test]
    fn no_failure_ejects_without_a_limit() {
        let mut health = Health::default();
        let rules = EjectionRules { failures: 0, seconds: 10 };
        assert!((0..100).all(|now| !health.note_failure(rules, now, false)));
    }
}
