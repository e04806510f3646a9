//! The kernel's narrow counters made 64 bits wide.
//!
//! `PACKET_STATISTICS` gives 32-bit counts that are reset by reading them (packet(7)); some drivers give
//! 32-bit counters that wrap; interface counters run since boot. The capture engine feeds what it reads
//! through these helpers, so that the ledger only ever sees 64-bit counts since the session opened.

/// A 64-bit count fed by a 32-bit counter of the kernel's. One value serves one counter, in one of its
/// two manners: [`Widening::add_reset`] or [`Widening::advance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Widening {
    total: u64,
    last: u32,
}

impl Widening {
    /// A count that starts at 0, for a counter that starts at 0 or is reset by reading it.
    pub fn new() -> Self {
        Self::default()
    }

    /// A count that starts at 0, for a running counter that stands at `now`.
    pub fn starting_at(now: u32) -> Self {
        Self { total: 0, last: now }
    }

    /// Adds a reading of a counter that reading resets to 0 (`tp_packets`, `tp_drops`,
    /// `tp_freeze_q_cnt`); returns the total. Read it at least once every 2^32 events.
    pub fn add_reset(&mut self, since_last: u32) -> u64 {
        self.total += u64::from(since_last);
        self.total
    }

    /// Takes a reading of a counter that runs modulo 2^32; returns the total. Exact as long as fewer
    /// than 2^32 events pass between two readings.
    pub fn advance(&mut self, now: u32) -> u64 {
        self.total += u64::from(now.wrapping_sub(self.last));
        self.last = now;
        self.total
    }

    /// The total so far.
    pub fn total(&self) -> u64 {
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
        fn a_wrapping_counter_widens_to_the_true_count(start: u32, steps in prop::collection::vec(any::<u32>(), 0..50)) {
            let mut widening = Widening::starting_at(start);
            let mut truth = 0u64;
            for step in steps {
                truth += u64::from(step);
                let raw = (u64::from(start) + truth) as u32;
                prop_assert_eq!(widening.advance(raw), truth);
            }
            prop_assert_eq!(widening.total(), truth);
        }

        #[test]
        fn a_counter_reset_by_reading_sums_its_readings(readings in prop::collection::vec(any::<u32>(), 0..50)) {
            let mut widening = Widening::new();
            for reading in &readings {
                widening.add_reset(*reading);
            }
            prop_assert_eq!(widening.total(), readings.iter().map(|r| u64::from(*r)).sum::<u64>());
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
