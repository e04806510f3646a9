//! Turns an interface's timestamp units into nanoseconds since the epoch (`if_tsresol`, `if_tsoffset`, s4.2).
//!
//! The block decoder keeps one clock an interface. A time before 1970 becomes 0 and one after 2554 becomes
//! `u64::MAX`: a strange clock must not cost the packet.

const NS_PER_S: u64 = 1_000_000_000;

/// How one interface counts time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    scale: Scale,
    offset_s: i64,
}

#[derive(Clone, Copy, Debug)]
enum Scale {
    /// Nanoseconds in a unit.
    Coarse(u64),
    /// Units in a second, where a unit is not a whole number of nanoseconds.
    Fine(u64),
}

impl Default for Clock {
    /// Microseconds, as where `if_tsresol` is missing.
    fn default() -> Self {
        Self { scale: Scale::Coarse(1000), offset_s: 0 }
    }
}

impl Clock {
    /// Takes the value of `if_tsresol`: an exponent of 10, or of 2 if the top bit is set. `None` if a second has
    /// more units than 64 bits hold.
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

    /// Takes the value of `if_tsoffset`: seconds to add to every timestamp.
    #[must_use]
    pub(super) fn offset(self, offset_s: i64) -> Self {
        Self { offset_s, ..self }
    }

    /// Nanoseconds since the epoch at `units`.
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
