//! The kernel's narrow counters made 64 bits wide.
//!
//! `PACKET_STATISTICS` gives 32-bit counts that are reset by reading them (packet(7)); interface counters run since
//! boot. The capture engine feeds what it reads through these helpers, so that the ledger only ever sees 64-bit counts
//! since the session opened.

/// A 64-bit count fed by a 32-bit counter of the kernel's that reading resets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Widening {
    total: u64,
}

impl Widening {
    /// A count that starts at 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a reading (`tp_packets`, `tp_drops`, `tp_freeze_q_cnt`); returns the total. Read it at least once every 2^32 events.
    pub fn add_reset(&mut self, since_last: u32) -> u64 {
        self.total += u64::from(since_last);
        self.total
    }
}

/// A 64-bit counter that was already running when the session opened (interface and NIC statistics).
/// A driver that resets its counters on reconfiguration starts a new stretch; nothing is counted twice.
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

    /// Takes a reading; returns how far the counter has moved since the session opened. A reading below
    /// the last one means that the counter was reset, and counts from 0.
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
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_counter_reset_by_reading_sums_its_readings(readings in prop::collection::vec(any::<u32>(), 0..50)) {
            let mut widening = Widening::new();
            let total = readings.iter().map(|reading| widening.add_reset(*reading)).last();
            prop_assert_eq!(total.unwrap_or(0), readings.iter().map(|r| u64::from(*r)).sum::<u64>());
        }
    }

    #[test]
    fn since_survives_a_reset_of_the_driver() {
        let mut since = Since::starting_at(1_000);
        assert_eq!(since.advance(1_500), 500);
        assert_eq!(since.advance(20), 520);
        assert_eq!(since.advance(25), 525);
        assert_eq!(since.total(), 525);
    }
}
