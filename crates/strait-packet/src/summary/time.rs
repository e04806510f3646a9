//! The time before a summary line, in the forms of tcpdump's `-t` options.

use std::fmt::{self, Write};

const NS_PER_SECOND: u64 = 1_000_000_000;
const SECONDS_PER_DAY: u64 = 86_400;

/// Writes the time of day of `ns` (nanoseconds since 1970) as `HH:MM:SS.nnnnnnnnn`, in UTC: this
/// crate knows no time zone. Fails only if `out` does.
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

/// Writes the time from `from_ns` to `to_ns`, negative where packets are out of order. Fails only
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
    let (year, month, day) = date(ns / NS_PER_SECOND / SECONDS_PER_DAY);
    write!(out, "{year:04}-{month:02}-{day:02} ")?;
    write_time(out, ns)
}

/// Year, month and day of `day`, counted from 1970-01-01, in the Gregorian calendar.
pub fn date(day: u64) -> (u64, u64, u64) {
    const DAYS_FROM_YEAR_ZERO: u64 = 719_468;
    const DAYS_IN_400_YEARS: u64 = 146_097;
    // Years begin in March, so that the leap day is the last.
    let day = day + DAYS_FROM_YEAR_ZERO;
    let (era, of_era) = (day / DAYS_IN_400_YEARS, day % DAYS_IN_400_YEARS);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March on have 153 days in five.
    let from_march = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (400 * era + year_of_era + u64::from(month < 3), month, day_of_month)
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
