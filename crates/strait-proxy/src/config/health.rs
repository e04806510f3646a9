//! Passive health of a server: consecutive failures eject it for a while. Without I/O and without a
//! clock; times are seconds.

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
    ejections: u32,
    /// End of the last ejection.
    until: u64,
}

impl Health {
    /// Returns true while the server gets no requests. After that the next failure ejects it again,
    /// for twice as long.
    pub(crate) fn is_ejected(&self, now: u64) -> bool {
        now < self.until
    }

    /// Returns the failures since the last success.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the end of the last ejection.
    pub(crate) fn end(&self) -> u64 {
        self.until
    }

    pub(crate) fn note_success(&mut self) {
        *self = Self::default();
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
        let doubled = rules.seconds.saturating_mul(1 << self.ejections.min(32));
        self.until = now.saturating_add(doubled.min(rules.seconds.saturating_mul(LONGEST)));
        self.ejections = self.ejections.saturating_add(1);
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
        health.note_success();
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
        health.note_success();
        assert!(!health.note_failure(RULES, now, false));
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
