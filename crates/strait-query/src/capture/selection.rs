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
use strait_capture::index::Part;
use strait_program::Error;
use strait_table::Packet;
use strait_table::flows::{community_id_of, flow_id};

/// Maximum number of rows: up to 250 bytes of memory each.
const ROWS_MAX: usize = 5_000_000;

/// Latest time of a row. Tables have it for later packets, too.
const TIME_MAX: u64 = i64::MAX as u64;

/// Maximum number of flows that are looked for in a part of a file. A part with more is read.
const CANDIDATES_MAX: usize = 100_000;

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
    /// The times, in order.
    sorted_times: Vec<u64>,
    /// The intervals, by their start.
    ranges: Vec<Range>,
}

/// Interval of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    start: u64,
    end: u64,
    /// Latest end of this interval and those before it.
    latest: u64,
    /// Identifier of the flow in an index.
    flow: u64,
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
        self.sorted_times = self.times.iter().copied().collect();
        self.sorted_times.sort_unstable();
        // No packet has an identifier that is not valid.
        let known = self.flows.iter().filter_map(|(id, intervals)| Some((flow_id(id)?, intervals)));
        let ranges = known.flat_map(|(flow, intervals)| {
            intervals.iter().map(move |&(start, end)| Range { start, end, latest: end, flow })
        });
        self.ranges = ranges.collect();
        self.ranges.sort_unstable();
        let mut latest = 0;
        for range in &mut self.ranges {
            latest = latest.max(range.end);
            range.latest = latest;
        }
    }

    /// Returns true if a part of a file may have selected packets; false only if it has none.
    pub(crate) fn may_be_in(&self, part: &Part<'_>) -> bool {
        let (first, last) = (part.first_ns.min(TIME_MAX), part.last_ns.min(TIME_MAX));
        if part.packets == 0 || self.whole.is_none_or(|(start, end)| last < start || first > end) {
            return false;
        }
        let time = self.sorted_times.partition_point(|time| *time < first);
        if self.sorted_times.get(time).is_some_and(|time| *time <= last) {
            return true;
        }
        let started = self.ranges.partition_point(|range| range.start <= last);
        let open = self.ranges[..started].iter().rev().take_while(|range| range.latest >= first);
        for (number, range) in open.enumerate() {
            if number == CANDIDATES_MAX || range.end >= first && part.may_have(range.flow) {
                return true;
            }
        }
        false
    }

    /// Returns true if a packet is selected.
    pub(crate) fn has(&self, packet: &Packet<'_>) -> bool {
        let time = packet.time_ns.min(TIME_MAX);
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
