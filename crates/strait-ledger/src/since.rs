//! Kernel counters that were running before a session opened.
//!
//! The capture engine feeds what it reads through this, so that the ledger only ever sees counts
//! since then.

/// A 64-bit counter that was already running when the session opened (interface and NIC
/// statistics). A driver that resets its counters on reconfiguration starts a new stretch; nothing
/// is counted twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Since {
    total: u64,
    last: u64,
}

impl Since {
    /// A count that starts at 0, for a counter that stands at `now`.
    pub fn starting_at(now: u64) -> Self {
        Self { total: 0, last: now }
    }

    /// Takes a reading; returns how far the counter has moved since the session opened. A reading
    /// below the last one means that the counter was reset, and counts from 0.
    pub fn advance(&mut self, now: u64) -> u64 {
        self.total += if now >= self.last { now - self.last } else { now };
        self.last = now;
        self.total
    }

    /// The movement so far.
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_survives_a_reset_of_the_driver() {
        let mut since = Since::starting_at(1_000);
        assert_eq!(since.advance(1_500), 500);
        assert_eq!(since.advance(20), 520);
        assert_eq!(since.advance(25), 525);
        assert_eq!(since.total(), 525);
    }
}
