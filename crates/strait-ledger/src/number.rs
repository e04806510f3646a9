//! Formats of numbers in texts: digits in groups of three, rates and times with a unit.
//!
//! Texts use them, JSON and metrics do not.

use std::fmt;

/// Formats a count with a comma between groups of three digits: `1,234,567`.
pub struct Grouped(pub u64);

/// Digits and commas of the longest `u64`: 20 digits, 6 commas.
const GROUPED_LEN_MAX: usize = 26;

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0u8; GROUPED_LEN_MAX];
        let (mut start, mut rest) = (GROUPED_LEN_MAX, self.0);
        for digit in 0.. {
            if digit > 0 && digit % 3 == 0 {
                start -= 1;
                text[start] = b',';
            }
            start -= 1;
            text[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        f.pad(std::str::from_utf8(&text[start..]).unwrap_or_default())
    }
}

/// Formats `bytes` in `seconds` as a bit rate: `812.4 Mbit/s`, or `no rate` if no time has passed.
pub(crate) fn bits_per_second(bytes: u64, seconds: f64) -> String {
    if seconds <= 0.0 {
        return "no rate".to_owned();
    }
    let bits = bytes as f64 * 8.0 / seconds;
    let (scaled, unit) = match bits {
        b if b >= 1e9 => (b / 1e9, "Gbit/s"),
        b if b >= 1e6 => (b / 1e6, "Mbit/s"),
        b if b >= 1e3 => (b / 1e3, "kbit/s"),
        b => (b, "bit/s"),
    };
    format!("{scaled:.1} {unit}")
}

/// Formats nanoseconds with a unit that leaves three or four digits: `950 ns`, `12.3 us`,
/// `4.20 ms`, `1.50 s`.
pub(crate) fn duration_ns(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_from_the_right() {
        let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (12_345_678, "12,345,678")];
        for (number, text) in cases {
            assert_eq!(Grouped(number).to_string(), text);
        }
        assert_eq!(Grouped(u64::MAX).to_string(), "18,446,744,073,709,551,615");
        assert_eq!(format!("{:>7}", Grouped(1000)), "  1,000");
    }

    #[test]
    fn rates_and_times_carry_their_unit() {
        assert_eq!(bits_per_second(125_000_000, 1.0), "1.0 Gbit/s");
        assert_eq!(bits_per_second(1, 0.0), "no rate");
        assert_eq!(duration_ns(999), "999 ns");
        assert_eq!(duration_ns(12_340), "12.3 us");
        assert_eq!(duration_ns(4_200_000), "4.20 ms");
    }
}
