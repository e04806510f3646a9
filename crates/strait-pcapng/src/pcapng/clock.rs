//! Converts an interface's timestamp units to nanoseconds since the epoch (`if_tsresol`,
//! `if_tsoffset`, s4.2).
//!
//! The block decoder has one clock for each interface. A time before 1970 becomes 0 and a time
//! after 2554 becomes `u64::MAX`, because a packet with an invalid time is still useful.

const NS_PER_S: u64 = 1_000_000_000;

/// Timestamp unit and offset of an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    scale: Scale,
    offset_s: i64,
}

#[derive(Clone, Copy, Debug)]
enum Scale {
    /// Nanoseconds in a unit.
    Coarse(u64),
    /// Units in a second, if a unit is not a whole number of nanoseconds.
    Fine(u64),
}

impl Default for Clock {
    /// Returns a clock of microseconds, the default without `if_tsresol`.
    fn default() -> Self {
        Self { scale: Scale::Coarse(1000), offset_s: 0 }
    }
}

impl Clock {
    /// Sets the value of `if_tsresol`: an exponent of 10, or of 2 if the top bit is set. Returns
    /// `None` if a second has more units than 64 bits can hold.
    #[must_use]
    pub(super) fn resolution(self, value: u8) -> Option<Self> {
        let exponent = u32::from(value & 0x7f);
        let scale = if value & 0x80 != 0 {
            Scale::Fine(1u64.checked_shl(exponent)?)
        } else if exponent <= 9 {
            Scale::Coarse(10u64.pow(9 - exponent))
        } else {
            Scale::Fine(10u64.checked_pow(exponent)?)
        };
        Some(Self { scale, ..self })
    }

    /// Sets the value of `if_tsoffset`: seconds to add to every timestamp.
    #[must_use]
    pub(super) fn offset(self, offset_s: i64) -> Self {
        Self { offset_s, ..self }
    }

    /// Converts `units` to nanoseconds since the epoch.
    pub(super) fn ns(self, units: u64) -> u64 {
        let ns = match self.scale {
            Scale::Coarse(1) if self.offset_s == 0 => return units,
            Scale::Coarse(unit_ns) => u128::from(units) * u128::from(unit_ns),
            Scale::Fine(per_s) => u128::from(units) * u128::from(NS_PER_S) / u128::from(per_s),
        };
        // Both terms are below 2^97.
        let shifted = ns as i128 + i128::from(self.offset_s) * i128::from(NS_PER_S);
        u64::try_from(shifted.max(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;

    fn clock(resolution: u8) -> Clock {
        Clock::default().resolution(resolution).expect("a resolution in range")
    }

    #[test]
    fn decimal_resolutions_become_nanoseconds() {
        assert_eq!(Clock::default().ns(5), 5_000);
        assert_eq!(clock(0).ns(3), 3_000_000_000);
        assert_eq!(clock(3).ns(7), 7_000_000);
        assert_eq!(clock(9).ns(u64::MAX), u64::MAX);
        assert_eq!(clock(12).ns(1_999), 1);
        assert_eq!(clock(19).ns(10_000_000_000), 1);
    }

    #[test]
    fn binary_resolutions_become_nanoseconds() {
        assert_eq!(clock(0x80).ns(2), 2_000_000_000);
        assert_eq!(clock(0x8a).ns(512), 500_000_000);
        assert_eq!(clock(0xbf).ns(1 << 62), 500_000_000);
    }

    #[test]
    fn resolutions_past_64_bits_are_refused() {
        assert!(Clock::default().resolution(20).is_none());
        assert!(Clock::default().resolution(0x7f).is_none());
        assert!(Clock::default().resolution(0xc0).is_none());
    }

    #[test]
    fn times_outside_the_range_are_clamped() {
        assert_eq!(clock(0).ns(u64::MAX), u64::MAX);
        assert_eq!(clock(9).offset(-1).ns(1), 0);
        assert_eq!(clock(9).offset(2).ns(1), 2_000_000_001);
        assert_eq!(clock(0).offset(i64::MAX).ns(u64::MAX), u64::MAX);
        assert_eq!(clock(0).offset(i64::MIN).ns(0), 0);
    }
}
