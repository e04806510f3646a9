//! Kernel counters that were not 0 when a session opened.
//!
//! The capture engine passes its readings of interface counters through this, because the ledger
//! has counts since the session opened.

/// Count since the session opened, from readings of a 64-bit counter of an interface or a NIC. If
/// the driver resets its counter, for example on reconfiguration, the count continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Since {
    total: u64,
    last: u64,
}

impl Since {
    /// Creates a count of 0 for a counter with the value `now`.
    pub fn starting_at(now: u64) -> Self {
        Self { total: 0, last: now }
    }

    /// Takes a reading and returns the count since the session opened. A reading below the last one
    /// means that the counter was reset to 0.
    pub fn advance(&mut self, now: u64) -> u64 {
        self.total += if now >= self.last { now - self.last } else { now };
        self.last = now;
        self.total
    }

    /// Returns the count since the session opened.
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_continues_after_a_reset_by_the_driver() {
        let mut since = Since::starting_at(1_000);
        assert_eq!(since.advance(1_500), 500);
        assert_eq!(since.advance(20), 520);
        assert_eq!(since.advance(25), 525);
        assert_eq!(since.total(), 525);
    }
}
