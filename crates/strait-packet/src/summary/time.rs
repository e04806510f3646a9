//! The time of day before a summary line.

use std::fmt::{self, Write};

const NS_PER_SECOND: u64 = 1_000_000_000;
const SECONDS_PER_DAY: u64 = 86_400;

/// Writes the time of day of `ns` (nanoseconds since 1970) as `HH:MM:SS.nnnnnnnnn`, in UTC: this crate
/// knows no time zone. Fails only if `out` does.
pub fn write_time(out: &mut impl Write, ns: u64) -> fmt::Result {
    let second = ns / NS_PER_SECOND % SECONDS_PER_DAY;
    let (hours, minutes, seconds) = (second / 3600, second / 60 % 60, second % 60);
    write!(out, "{hours:02}:{minutes:02}:{seconds:02}.{:09}", ns % NS_PER_SECOND)
}
