//! Packets that the rows of a query select: by their time, and by their flow.
//!
//! | columns of the rows | selected packets |
//! |---|---|
//! | start, end and `communityId` of `flows` | those of the flow from its start to its end |
//! | `time`, `community_id` | those of the flow at this time |
//! | `time` | those at this time |

use std::collections::{HashMap, HashSet};

use datafusion::arrow::array::{ArrayRef, AsArray as _, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, TimeUnit, TimestampNanosecondType};
use strait_program::Error;
use strait_table::Packet;
use strait_table::flows::community_id_of;

/// Maximum number of rows: a hundred bytes of memory each.
const ROWS_MAX: usize = 10_000_000;

/// First and last time in nanoseconds since the epoch.
type Interval = (u64, u64);

/// Selected times and flows.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    times: HashSet<u64>,
    /// Intervals of each flow by its community ID.
    flows: HashMap<Box<str>, Vec<Interval>>,
    rows: usize,
    /// All times are in it.
    whole: Option<Interval>,
}

impl Selection {
    /// Adds the packets of rows.
    ///
    /// # Errors
    /// The rows have no column of times; there are too many.
    pub(crate) fn add(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        self.rows += batch.num_rows();
        if self.rows > ROWS_MAX {
            return Err(Error::failed(format!("--pcap: the query selects more than {ROWS_MAX} rows")));
        }
        let times = |name| column(batch, name, &DataType::Timestamp(TimeUnit::Nanosecond, None));
        let texts = |name| column(batch, name, &DataType::Utf8);
        let starts_and_ends = times("flowStartNanoseconds")?.zip(times("flowEndNanoseconds")?);
        if let Some(((starts, ends), ids)) = starts_and_ends.zip(texts("communityId")?) {
            self.add_flows([&starts, &ends], &ids);
            return Ok(());
        }
        let Some(times) = times("time")? else {
            return Err(Error::usage(
                "--pcap: select the column time, with community_id if there is one; or of flows the columns \
                 flowStartNanoseconds, flowEndNanoseconds and communityId",
            ));
        };
        match texts("community_id")? {
            Some(ids) => self.add_flows([&times, &times], &ids),
            None => times_of(&times).flatten().for_each(|time| {
                self.extend((time, time));
                self.times.insert(time);
            }),
        }
        Ok(())
    }

    fn add_flows(&mut self, [starts, ends]: [&ArrayRef; 2], ids: &ArrayRef) {
        let ids = ids.as_string::<i32>().iter();
        for ((start, end), id) in times_of(starts).zip(times_of(ends)).zip(ids) {
            let (Some(start), Some(end), Some(id)) = (start, end, id) else { continue };
            self.extend((start, end));
            self.flows.entry(id.into()).or_default().push((start, end));
        }
    }

    fn extend(&mut self, (start, end): Interval) {
        let (first, last) = self.whole.unwrap_or((start, end));
        self.whole = Some((first.min(start), last.max(end)));
    }

    /// Merges the intervals of each flow. Call it after the last rows.
    pub(crate) fn close(&mut self) {
        self.flows.values_mut().for_each(merge);
    }

    /// Returns true if a packet is selected.
    pub(crate) fn has(&self, packet: &Packet<'_>) -> bool {
        let time = packet.time_ns;
        if self.whole.is_none_or(|(first, last)| time < first || time > last) {
            return false;
        }
        if self.times.contains(&time) {
            return true;
        }
        if self.flows.is_empty() {
            return false;
        }
        let intervals = community_id_of(packet).and_then(|id| self.flows.get(id.as_str()));
        intervals.is_some_and(|intervals| {
            let after = intervals.partition_point(|interval| interval.0 <= time);
            after > 0 && intervals[after - 1].1 >= time
        })
    }
}

/// Sorts intervals, and joins those that overlap.
fn merge(intervals: &mut Vec<Interval>) {
    intervals.sort_unstable();
    intervals.dedup_by(|next, last| {
        let overlaps = next.0 <= last.1;
        if overlaps {
            last.1 = last.1.max(next.1);
        }
        overlaps
    });
    intervals.shrink_to_fit();
}

/// Returns a column as this type, if the rows have it.
fn column(batch: &RecordBatch, name: &str, kind: &DataType) -> Result<Option<ArrayRef>, Error> {
    let Some(column) = batch.column_by_name(name) else { return Ok(None) };
    let failed = |error| Error::usage(format!("--pcap: the column {name} is not that of a table: {error}"));
    cast(column, kind).map(Some).map_err(failed)
}

fn times_of(times: &ArrayRef) -> impl Iterator<Item = Option<u64>> + '_ {
    let times = times.as_primitive::<TimestampNanosecondType>();
    times.iter().map(|time| time.and_then(|time| u64::try_from(time).ok()))
}
