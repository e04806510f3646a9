//! Conversion of the timestamps of XDP and tap programs (`CLOCK_MONOTONIC`) to those of captures
//! (`CLOCK_REALTIME`).
//!
//! The offset between the clocks changes when the wall clock is set or slewed, so it is measured
//! again once a second of the frames' own time. No clock is read for a frame or for a batch.

use strait_os::clock;

/// Time for which a measured offset is used.
const REFRESH_NS: u64 = 1_000_000_000;

/// Offset between the clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    offset_ns: i64,
    measured_ns: u64,
}

impl Clock {
    /// Measures the offset.
    pub(crate) fn new() -> Self {
        Self { offset_ns: clock::realtime_offset_ns(), measured_ns: clock::monotonic_ns() }
    }

    /// Measures the offset again if a second has passed at `monotonic_ns`.
    #[inline]
    pub(crate) fn refresh(&mut self, monotonic_ns: u64) {
        if monotonic_ns.saturating_sub(self.measured_ns) >= REFRESH_NS {
            *self = Self { offset_ns: clock::realtime_offset_ns(), measured_ns: monotonic_ns };
        }
    }

    /// Converts a time to nanoseconds since the epoch.
    #[inline]
    pub(crate) fn realtime_ns(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.wrapping_add_signed(self.offset_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_is_converted_to_real_time() {
        let clock = Clock::new();
        let (monotonic, real) = (clock::monotonic_ns(), clock::realtime_ns());
        assert!(clock.realtime_ns(monotonic).abs_diff(real) < 100_000_000);
    }

    #[test]
    fn offset_is_measured_once_a_second() {
        let mut clock = Clock { offset_ns: 5, measured_ns: 1_000 };
        clock.refresh(1_000 + REFRESH_NS - 1);
        clock.refresh(0);
        assert_eq!((clock.offset_ns, clock.measured_ns), (5, 1_000));
        clock.refresh(1_000 + REFRESH_NS);
        assert_eq!(clock.measured_ns, 1_000 + REFRESH_NS);
        assert_ne!(clock.offset_ns, 5);
    }
}
