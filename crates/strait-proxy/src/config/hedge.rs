//! Hedging of a pool: the time after which a request is also sent to another server, and the budget
//! for such requests. [`crate::upstream::hedge`] sends them.
//!
//! Each request adds a share to the budget, which has a maximum. So a pool with many slow servers
//! gets only a few more requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::config::edge;

/// Hundredths of a request, in which the budget is counted.
const ONE: u64 = 100;
/// Maximum of the budget: ten requests.
const BUDGET_MAX: u64 = 10 * ONE;

/// Hedging of a pool.
#[derive(Debug)]
pub(crate) struct Hedge {
    /// Time without a response head.
    pub(crate) after: Duration,
    /// Share that each request adds to the budget, in hundredths.
    percent: u64,
    budget: AtomicU64,
}

impl Hedge {
    pub(crate) fn new(config: &edge::Hedge) -> Self {
        Self {
            after: Duration::from_millis(config.after_ms),
            percent: config.percent,
            budget: AtomicU64::new(BUDGET_MAX),
        }
    }

    /// Adds the share of a request to the budget.
    pub(crate) fn earn(&self) {
        let more = |budget: u64| Some(budget.saturating_add(self.percent).min(BUDGET_MAX));
        let _ = self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Takes a request from the budget. Returns false if it is used up.
    pub(crate) fn spend(&self) -> bool {
        let less = |budget: u64| budget.checked_sub(ONE);
        self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_the_requests_is_hedged_after_a_burst() {
        let hedge = Hedge::new(&edge::Hedge { after_ms: 1, percent: 5 });
        (0..1000).for_each(|_| hedge.earn());
        assert_eq!((0..100).filter(|_| hedge.spend()).count(), 10);
        let hedged = (0..1000).filter(|_| {
            hedge.earn();
            hedge.spend()
        });
        assert_eq!(hedged.count(), 50);
    }
}
