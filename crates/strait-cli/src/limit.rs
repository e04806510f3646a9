//! Rate limit of reported failures: a peer that fails again and again must not fill the log.
//!
//! `strait relay` and `strait receive` use it. It prints nothing.

use std::time::{Duration, Instant};

/// Rate limit of lines. It counts the hidden ones.
#[derive(Debug)]
pub(crate) struct Limit {
    /// Lines shown in a period.
    shown_max: u64,
    period: Duration,
    began: Instant,
    shown: u64,
    hidden: u64,
}

impl Limit {
    pub(crate) fn new(shown_max: u64, period: Duration, now: Instant) -> Self {
        Self { shown_max, period, began: now, shown: 0, hidden: 0 }
    }

    /// Starts a new period if the last one is over or at the end. Returns the number of lines that
    /// the last one hid, if any.
    pub(crate) fn renew(&mut self, now: Instant, is_end: bool) -> Option<u64> {
        if now.saturating_duration_since(self.began) < self.period && !is_end {
            return None;
        }
        let hidden = self.hidden;
        *self = Self::new(self.shown_max, self.period, now);
        (hidden > 0).then_some(hidden)
    }

    pub(crate) fn permits(&mut self) -> bool {
        let permits = self.shown < self.shown_max;
        (self.shown, self.hidden) = (self.shown + u64::from(permits), self.hidden + u64::from(!permits));
        permits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_failures_become_a_few_lines_and_a_count() {
        const PERIOD: Duration = Duration::from_secs(1);
        let began = Instant::now();
        let mut limit = Limit::new(10, PERIOD, began);
        assert_eq!((0..5000).filter(|_| limit.permits()).count(), 10);
        assert_eq!(limit.renew(began + PERIOD / 2, false), None);
        assert_eq!(limit.renew(began + PERIOD, false), Some(4990));
        assert!(limit.permits());
        assert_eq!(limit.renew(began + PERIOD * 3, false), None);
    }
}
