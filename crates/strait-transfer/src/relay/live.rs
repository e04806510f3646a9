//! Totals of running relays, for metrics. Each relay publishes its own at every tick, so a reader
//! never waits for a relay.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::account::Account;

/// Totals of a relay at a tick, including its open connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Totals.
    pub account: Account,
    /// Open connections.
    pub open: u64,
}

/// Totals of running relays as of their last ticks.
#[derive(Debug, Default)]
pub struct Live {
    relays: Mutex<Vec<Snapshot>>,
}

impl Live {
    /// Adds a relay. Returns its index.
    pub(super) fn add(&self) -> usize {
        let mut relays = self.relays();
        relays.push(Snapshot::default());
        relays.len() - 1
    }

    /// Sets the totals of a relay.
    pub(super) fn publish(&self, index: usize, snapshot: Snapshot) {
        if let Some(relay) = self.relays().get_mut(index) {
            *relay = snapshot;
        }
    }

    /// Returns the sum over all relays.
    pub fn sum(&self) -> Snapshot {
        let mut sum = Snapshot::default();
        for relay in self.relays().iter() {
            sum.account.add(&relay.account);
            sum.open += relay.open;
        }
        sum
    }

    fn relays(&self) -> MutexGuard<'_, Vec<Snapshot>> {
        // Counts are usable after any panic.
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
