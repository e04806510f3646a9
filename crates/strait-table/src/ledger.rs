//! Rows of the table `ledger`: what the counters of a capture have advanced in each interval.
//!
//! Counters are cumulative, and a row has the difference to the previous row of its lane. So the
//! sum over all rows of a capture is its last ledger, whatever the intervals are.

use std::sync::Arc;

use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt32Type};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use strait_ledger::{Capture, Report};

use crate::column::{Numbers, Texts};
use crate::extras::Extras;
use crate::options::Options;
use crate::rows::Rows;
use crate::schema::{Column, LEDGER};

/// Number of columns with a count.
const COUNTS: usize = 11;

/// Row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRow {
    /// Name of the interface or file.
    pub interface: Arc<str>,
    /// Path of the capture.
    pub path: Arc<str>,
    /// End of the interval.
    pub time_ns: u64,
    /// Start of the interval.
    pub start_ns: u64,
    /// Lane; none for counts of the interface as a whole.
    pub lane: Option<u32>,
    /// Counts in the order of the columns.
    pub counts: [i64; COUNTS],
}

/// Counts that the rows so far contain.
#[derive(Clone, Debug)]
pub struct Intervals {
    last_ns: u64,
    lanes: Vec<(Key, [i64; COUNTS])>,
}

/// Position of an interface in the capture, and the number of one of its lanes; none for counts of
/// the interface as a whole.
type Key = (usize, Option<u32>);

impl Intervals {
    /// Starts the first interval.
    pub fn starting_at(now_ns: u64) -> Self {
        Self { last_ns: now_ns, lanes: Vec::new() }
    }

    /// Returns the rows of the interval that ends now, for each interface: one for each lane, and
    /// one for the counts of the interface if they changed.
    pub fn rows(&mut self, report: &Report, now_ns: u64) -> Vec<LedgerRow> {
        let start_ns = std::mem::replace(&mut self.last_ns, now_ns);
        let mut rows = Vec::with_capacity(report.lanes.len() + report.parts.len().max(1));
        for (at, interface) in report.interfaces().iter().enumerate() {
            let first_lane = report.parts.get(at).map_or(0, |part| part.first_lane);
            let start = rows.len();
            add_rows(&mut rows, interface, first_lane, (start_ns, now_ns));
            for row in &mut rows[start..] {
                row.counts = self.advance((at, row.lane), row.counts);
            }
        }
        rows.retain(|row| row.lane.is_some() || row.counts != [0; COUNTS]);
        rows
    }

    /// Forgets the lanes of a report, which have ended.
    pub fn end(&mut self, report: &Report) {
        let is_ended = |lane: Option<u32>| report.lanes.iter().any(|ended| Some(ended.queue) == lane);
        self.lanes.retain(|((_, lane), _)| !is_ended(*lane));
    }

    /// Continues the lanes of a report, the last one before they ended.
    pub fn resume(&mut self, report: &Report) {
        for lane in &report.lanes {
            self.advance((0, Some(lane.queue)), counts(&lane.capture));
        }
    }

    /// Stores the counts of a lane, and returns the difference to the last ones.
    fn advance(&mut self, lane: Key, now: [i64; COUNTS]) -> [i64; COUNTS] {
        if let Some((_, last)) = self.lanes.iter_mut().find(|(known, _)| *known == lane) {
            return difference(&now, &std::mem::replace(last, now));
        }
        self.lanes.push((lane, now));
        now
    }
}

/// Adds the rows of an interface with its counts so far, from the first to the second of `times`.
fn add_rows(rows: &mut Vec<LedgerRow>, report: &Report, first_lane: u32, times: (u64, u64)) {
    let (start_ns, time_ns) = times;
    let mut whole = counts(&report.capture);
    let (interface, path): (Arc<str>, Arc<str>) =
        (report.interface.as_str().into(), report.path.as_str().into());
    let row = |lane, counts| LedgerRow {
        interface: Arc::clone(&interface),
        path: Arc::clone(&path),
        time_ns,
        start_ns,
        lane,
        counts,
    };
    for lane in &report.lanes {
        let now = counts(&lane.capture);
        whole = difference(&whole, &now);
        rows.push(row(Some(first_lane.saturating_add(lane.queue)), now));
    }
    rows.push(row(None, whole));
}

fn difference(now: &[i64; COUNTS], last: &[i64; COUNTS]) -> [i64; COUNTS] {
    std::array::from_fn(|i| now[i].wrapping_sub(last[i]))
}

/// Returns the counts in the order of the columns.
fn counts(capture: &Capture) -> [i64; COUNTS] {
    let lost = &capture.lost;
    [
        capture.received,
        capture.delivered,
        capture.filtered,
        lost.nic_missed,
        lost.ring_full,
        lost.fill_empty,
        lost.sink,
        lost.unread,
        lost.other,
        capture.bytes,
        capture.wire_bytes,
    ]
    .map(u64::cast_signed)
}

/// Rows of the ledger, until they are a record batch.
pub struct LedgerRows {
    options: Arc<Options>,
    schema: SchemaRef,
    times: [Numbers<TimestampNanosecondType>; 2],
    /// Identifier of the capture, interface and path.
    texts: [Texts; 3],
    lanes: Numbers<UInt32Type>,
    counts: [Numbers<Int64Type>; COUNTS],
}

impl LedgerRows {
    /// Creates an empty batch.
    pub fn new(options: Arc<Options>) -> Self {
        let schema = Schema::new(LEDGER.columns.iter().map(Column::field).collect::<Vec<_>>());
        Self {
            options,
            schema: Arc::new(schema),
            times: std::array::from_fn(|_| Numbers::new(0)),
            texts: std::array::from_fn(|_| Texts::new(0)),
            lanes: Numbers::<UInt32Type>::new(0),
            counts: std::array::from_fn(|_| Numbers::new(0)),
        }
    }
}

impl Rows for LedgerRows {
    type Row = LedgerRow;

    fn time_ns(row: &LedgerRow) -> u64 {
        row.time_ns
    }

    fn lane(row: &LedgerRow) -> u32 {
        row.lane.unwrap_or(u32::MAX)
    }

    fn packets(_row: &LedgerRow) -> u64 {
        0
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn len(&self) -> usize {
        self.lanes.len()
    }

    fn append(&mut self, rows: &[LedgerRow], _extras: &Extras) {
        let nanoseconds = |time: u64| i64::try_from(time).unwrap_or(i64::MAX);
        let [ends, starts] = &mut self.times;
        ends.extend(rows, |row| nanoseconds(row.time_ns));
        starts.extend(rows, |row| nanoseconds(row.start_ns));
        let [captures, interfaces, paths] = &mut self.texts;
        for row in rows {
            captures.push(Some(&self.options.capture));
            interfaces.push(Some(&row.interface));
            paths.push(Some(&row.path));
        }
        self.lanes.extend_optional(rows, |row| row.lane);
        for (i, counts) in self.counts.iter_mut().enumerate() {
            counts.extend(rows, |row| row.counts[i]);
        }
    }

    fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let [captures, interfaces, paths] = self.texts.each_mut().map(Texts::finish);
        let [ends, starts] = self.times.each_mut().map(|times| times.finish().with_timezone("UTC"));
        let mut arrays: Vec<ArrayRef> = vec![
            Arc::new(ends),
            Arc::new(starts),
            captures?,
            interfaces?,
            paths?,
            Arc::new(self.lanes.finish()),
        ];
        arrays.extend(self.counts.iter_mut().map(|counts| Arc::new(counts.finish()) as ArrayRef));
        RecordBatch::try_new(Arc::clone(&self.schema), arrays)
    }
}

#[cfg(test)]
mod tests {
    use strait_ledger::{LaneCounts, Losses};

    use super::*;

    fn report(delivered: [u64; 2], nic_missed: u64) -> Report {
        let lane = |(queue, delivered): (usize, u64)| LaneCounts {
            queue: queue as u32,
            cpu: None,
            capture: Capture { received: delivered, delivered, ..Capture::default() },
        };
        let lost = Losses { nic_missed, ..Losses::default() };
        let whole = Capture { received: nic_missed, lost, ..Capture::default() };
        Report::from_lanes(delivered.into_iter().enumerate().map(lane).collect(), &whole)
    }

    #[test]
    fn rows_of_all_intervals_add_up_to_the_last_ledger() {
        let mut intervals = Intervals::starting_at(100);
        let reports = [report([10, 0], 0), report([10, 5], 3), report([25, 5], 4)];
        let mut rows = Vec::new();
        for (i, report) in reports.iter().enumerate() {
            rows.push(intervals.rows(report, 200 + i as u64));
        }
        assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3, 3]);
        assert_eq!((rows[0][0].start_ns, rows[0][0].time_ns, rows[1][0].start_ns), (100, 200, 200));
        assert_eq!(rows[2][2].counts[..4], [1, 0, 0, 1], "the NIC has missed one more");
        let sum = |column: usize| rows.iter().flatten().map(|row| row.counts[column]).sum::<i64>();
        let last = counts(&reports[2].capture);
        assert_eq!(std::array::from_fn(sum), last);
    }

    #[test]
    fn each_interface_has_rows_with_its_name_and_lanes_of_the_whole() {
        let named = |name: &str, delivered, missed| Report {
            interface: name.into(),
            path: "v3".into(),
            ..report(delivered, missed)
        };
        let whole = |first: u64| {
            let (one, two) = (named("eth0", [first, 1], 2), named("eth1", [3, 4], 5));
            Report::join(vec![(0, one), (2, two)])
        };
        let mut intervals = Intervals::starting_at(100);
        let shown = |rows: Vec<LedgerRow>| -> Vec<(String, Option<u32>, i64)> {
            rows.iter().map(|row| (row.interface.to_string(), row.lane, row.counts[0])).collect()
        };
        let row = |name: &str, lane, received| (name.to_owned(), lane, received);
        let expected = [
            row("eth0", Some(0), 10),
            row("eth0", Some(1), 1),
            row("eth0", None, 2),
            row("eth1", Some(2), 3),
            row("eth1", Some(3), 4),
            row("eth1", None, 5),
        ];
        assert_eq!(shown(intervals.rows(&whole(10), 200)), expected);
        let later: Vec<i64> = shown(intervals.rows(&whole(17), 300)).into_iter().map(|row| row.2).collect();
        assert_eq!(later, [7, 0, 0, 0]);
    }

    #[test]
    fn ended_lanes_are_forgotten_and_can_be_corrected() {
        let mut intervals = Intervals::starting_at(100);
        let file = |queue, delivered| {
            let capture = Capture { received: 10, delivered, ..Capture::default() };
            Report::from_lanes(vec![LaneCounts { queue, cpu: None, capture }], &Capture::default())
        };
        let mut rows = Vec::new();
        for queue in 0..100 {
            rows.extend(intervals.rows(&file(queue, 10), 200));
            intervals.end(&file(queue, 10));
            assert!(intervals.lanes.len() <= 1, "{:?}", intervals.lanes);
        }
        intervals.resume(&file(7, 10));
        rows.extend(intervals.rows(&file(7, 4), 300));
        let of_lane = rows.iter().filter(|row| row.lane == Some(7)).map(|row| row.counts[..2].to_vec());
        assert_eq!(of_lane.collect::<Vec<_>>(), [[10, 10], [0, -6]]);
        assert_eq!(rows.len(), 101);
    }
}
