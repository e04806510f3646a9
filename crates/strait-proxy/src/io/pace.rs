//! Minimum rates after a grace period: of a request body, which also has a total limit, and of a
//! client that reads responses.
//!
//! Only time spent waiting for the client counts towards the rate: a slow origin is not the
//! client's fault. Pure; [`crate::io::socket`] waits and passes the times.

use std::time::Duration;

/// Pace of one body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Waiting time that is allowed in addition to the rate.
    grace: Duration,
    /// Minimum in bytes per second; 0: none.
    rate: u64,
    /// Limit of the whole body from its start.
    total: Duration,
    waited: Duration,
    received_bytes: u64,
}

impl Pace {
    pub(crate) fn new(grace: Duration, rate: u64, total: Duration) -> Self {
        Self { grace, rate, total, waited: Duration::ZERO, received_bytes: 0 }
    }

    /// Returns the time left for the next bytes, `elapsed` after the start of the body.
    pub(crate) fn left(&self, elapsed: Duration) -> Duration {
        let of_total = self.total.saturating_sub(elapsed);
        if self.rate == 0 {
            return of_total;
        }
        let earned = Duration::from_millis(self.received_bytes.saturating_mul(1000) / self.rate);
        self.grace.saturating_add(earned).saturating_sub(self.waited).min(of_total)
    }

    /// Notes `bytes` received after a wait of `waited`.
    pub(crate) fn note(&mut self, bytes: u64, waited: Duration) {
        self.received_bytes += bytes;
        self.waited += waited;
    }
}

/// Rate at which a client reads responses while it is connected.
///
/// Waits are added up, and compared with the acknowledged bytes only when the allowed time is used
/// up: a client that keeps up costs no system call. Bytes earn time up to the grace period, so that
/// a fast start does not allow a long stall.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uptake {
    grace: Duration,
    /// Minimum in bytes per second; 0: none.
    rate: u64,
    /// Waiting time that was allowed at the last comparison.
    allowed: Duration,
    /// Waiting time since then.
    waited: Duration,
    /// Acknowledged bytes at the last comparison.
    acknowledged_bytes: u64,
}

impl Uptake {
    pub(crate) fn new(grace: Duration, rate: u64) -> Self {
        Self { grace, rate, allowed: grace, waited: Duration::ZERO, acknowledged_bytes: 0 }
    }

    /// Returns the waiting time until the next comparison.
    pub(crate) fn left(&self) -> Duration {
        if self.rate == 0 { Duration::MAX } else { self.allowed.saturating_sub(self.waited) }
    }

    /// Notes a wait for the client.
    pub(crate) fn wait(&mut self, waited: Duration) {
        self.waited = self.waited.saturating_add(waited);
    }

    /// Compares the waits with the bytes acknowledged since the client connected. Returns false if
    /// they were too few.
    pub(crate) fn keeps_pace(&mut self, acknowledged_bytes: u64) -> bool {
        let taken = acknowledged_bytes.saturating_sub(self.acknowledged_bytes);
        let earned = Duration::from_millis(taken.saturating_mul(1000) / self.rate.max(1));
        let allowed = self.allowed.saturating_add(earned).saturating_sub(self.waited);
        self.allowed = allowed.min(self.grace);
        self.waited = Duration::ZERO;
        self.acknowledged_bytes = acknowledged_bytes;
        self.rate == 0 || !self.allowed.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledged_bytes_earn_time_up_to_the_grace_period() {
        let s = Duration::from_secs;
        let mut uptake = Uptake::new(s(60), 500);
        uptake.wait(s(59));
        assert_eq!(uptake.left(), s(1));
        uptake.wait(s(1));
        assert!(uptake.keeps_pace(5000));
        assert_eq!(uptake.left(), s(10));
        uptake.wait(s(10));
        assert!(uptake.keeps_pace(10_000_000));
        assert_eq!(uptake.left(), s(60), "a fast time earns no more than the grace");
        uptake.wait(s(60) + Duration::from_millis(10));
        assert!(!uptake.keeps_pace(10_000_001), "a byte a minute");
        let mut without_rate = Uptake::new(s(1), 0);
        without_rate.wait(s(50));
        assert!(without_rate.left() > s(60) && without_rate.keeps_pace(0));
    }

    #[test]
    fn body_has_its_grace_then_its_rate_and_a_total_limit() {
        let s = Duration::from_secs;
        let mut pace = Pace::new(s(20), 500, s(100));
        assert_eq!(pace.left(s(0)), s(20));
        pace.note(1000, s(19));
        assert_eq!(pace.left(s(19)), s(3));
        pace.note(1, s(3));
        assert_eq!(pace.left(s(22)), Duration::from_millis(2));
        pace.note(1_000_000, s(0));
        assert_eq!(pace.left(s(90)), s(10));
        assert_eq!(pace.left(s(101)), s(0));
        let mut without_rate = Pace::new(s(1), 0, s(100));
        without_rate.note(1, s(50));
        assert_eq!(without_rate.left(s(60)), s(40));
    }
}
