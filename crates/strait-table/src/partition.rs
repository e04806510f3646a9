//! Directory of a row: `packets/date=2026-11-25/hour=16/sensor=NAME`.

use std::path::{Path, PathBuf};

use time::OffsetDateTime;

const NANOSECONDS: u64 = 3_600_000_000_000;

/// Value of `date` and `hour` of rows that have none. Query engines read it as null (Hive).
const NONE: &str = "__HIVE_DEFAULT_PARTITION__";

/// Hour since the epoch, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hour(Option<u64>);

impl Hour {
    /// Hour of rows that are not sorted by hour.
    pub(crate) const NONE: Self = Self(None);

    /// Returns the hour of a time.
    #[inline]
    pub(crate) fn of(time_ns: u64) -> Self {
        Self(Some(time_ns / NANOSECONDS))
    }

    /// Returns the directory of a table's rows of this hour.
    pub(crate) fn directory(self, root: &Path, table: &str, sensor: &str) -> PathBuf {
        let (date, hour) = self.0.map_or((NONE.to_owned(), NONE.to_owned()), date_and_hour);
        root.join(table)
            .join(format!("date={date}"))
            .join(format!("hour={hour}"))
            .join(format!("sensor={sensor}"))
    }
}

fn date_and_hour(hour: u64) -> (String, String) {
    let seconds = i64::try_from(hour * 3600).unwrap_or(i64::MAX);
    // 64 bits of nanoseconds end in the year 2554.
    let time = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = time.to_calendar_date();
    (format!("{year:04}-{:02}-{day:02}", u8::from(month)), format!("{:02}", time.hour()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_has_date_hour_and_sensor() {
        let directory = |time_ns| Hour::of(time_ns).directory(Path::new("/d"), "packets", "fr1");
        assert_eq!(directory(0), Path::new("/d/packets/date=1970-01-01/hour=00/sensor=fr1"));
        let last_ns = 1_764_089_999_999_999_999;
        assert_eq!(directory(last_ns), Path::new("/d/packets/date=2025-11-25/hour=16/sensor=fr1"));
        assert_eq!(directory(last_ns + 1), Path::new("/d/packets/date=2025-11-25/hour=17/sensor=fr1"));
        assert_eq!(directory(u64::MAX), Path::new("/d/packets/date=2554-07-21/hour=23/sensor=fr1"));
        let none = "/d/packets/date=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__/sensor=fr1";
        assert_eq!(Hour::NONE.directory(Path::new("/d"), "packets", "fr1"), Path::new(none));
    }
}
