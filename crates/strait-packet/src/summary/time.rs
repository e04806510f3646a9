//! The time before a summary line, in the forms of tcpdump's `-t` options.

use std::fmt::{self, Write};

use time::OffsetDateTime;

const NS_PER_SECOND: u64 = 1_000_000_000;
const SECONDS_PER_DAY: u64 = 86_400;

/// Writes the time of day of `ns` (nanoseconds since 1970) as `HH:MM:SS.nnnnnnnnn`, in UTC: this
/// crate has no time zones. Fails only if `out` does.
pub fn write_time(out: &mut impl Write, ns: u64) -> fmt::Result {
    let second = ns / NS_PER_SECOND % SECONDS_PER_DAY;
    let (hours, minutes, seconds) = (second / 3600, second / 60 % 60, second % 60);
    write!(out, "{hours:02}:{minutes:02}:{seconds:02}.{:09}", ns % NS_PER_SECOND)
}

/// Writes `ns` (nanoseconds since 1970) as seconds: `1700000000.000000005`. Fails only if `out`
/// does.
pub fn write_epoch(out: &mut impl Write, ns: u64) -> fmt::Result {
    write!(out, "{}.{:09}", ns / NS_PER_SECOND, ns % NS_PER_SECOND)
}

/// Writes the time from `from_ns` to `to_ns`, negative if packets are out of order. Fails only
/// if `out` does.
pub fn write_elapsed(out: &mut impl Write, from_ns: u64, to_ns: u64) -> fmt::Result {
    if to_ns < from_ns {
        out.write_char('-')?;
    }
    write_time(out, to_ns.abs_diff(from_ns))
}

/// Writes `ns` as `YYYY-MM-DD HH:MM:SS.nnnnnnnnn`, in UTC as [`write_time`]. Fails only if `out`
/// does.
pub fn write_date_time(out: &mut impl Write, ns: u64) -> fmt::Result {
    // The largest number of nanoseconds is in the year 2554.
    let seconds = i64::try_from(ns / NS_PER_SECOND).unwrap_or_default();
    let (year, month, day) =
        OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH).to_calendar_date();
    let month = u8::from(month);
    write!(out, "{year:04}-{month:02}-{day:02} ")?;
    write_time(out, ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_gregorian() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00.000000005"),
            (951_782_399, "2000-02-28 23:59:59.000000005"),
            (951_782_400, "2000-02-29 00:00:00.000000005"),
            (1_735_689_599, "2024-12-31 23:59:59.000000005"),
            (4_107_542_400, "2100-03-01 00:00:00.000000005"),
        ] {
            let mut text = String::new();
            write_date_time(&mut text, seconds * NS_PER_SECOND + 5).unwrap();
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn times_between_packets_may_be_negative() {
        let mut text = String::new();
        write_elapsed(&mut text, 7, 5).unwrap();
        assert_eq!(text, "-00:00:00.000000002");
    }
}
