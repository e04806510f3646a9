//! Writes the rows of a table to its files: one file for each hour and sensor at a time, completed
//! by size and by age.
//!
//! Rows are gathered to record batches, batches to row groups. Rows are durable once their row
//! group is in a file that got its final name; all others are lost if a write fails, and counted by
//! lane.

use std::sync::Arc;
use std::time::Instant;

use arrow_schema::SchemaRef;

use crate::error::TableError;
use crate::extras::Extras;
use crate::file::{ParquetFile, Part};
use crate::options::Options;
use crate::partition::Hour;
pub use crate::rows::{BATCH_ROWS, Rows};
use crate::schema::{LEDGER, TABLE_KEY, Table, VERSION_KEY};
use crate::tally::Tally;

/// Rows of a row group, 16 MB. Each group has its own dictionaries of addresses and ports, which
/// cost half a byte for each packet. A killed capture loses at most the rows of one group and of
/// the queue.
pub const GROUP_ROWS: usize = 1 << 20;
/// Encoded bytes in memory after which a row group ends, as rows with frames are long.
const GROUP_BYTES: usize = 64 << 20;
/// Maximum number of hours with an unfinished file. Packets of a file may be of any hour: the file
/// of the hour that was written to least recently is completed first.
const HOURS_MAX: usize = 4;
/// Maximum number of files that are completed with less than a record batch because their hour had
/// to make room: those of a year. Times that jump must not make a file for each packet. Rows of
/// further hours go to a file without an hour.
const SMALL_FILES_MAX: u64 = 366 * 24;

/// Totals of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Rows in completed files.
    pub rows: u64,
    /// Bytes of completed files.
    pub bytes: u64,
    /// Completed files.
    pub files: u64,
    /// Rows in files without an hour.
    pub without_hour: u64,
    /// Rows that were lost because the spool was full.
    pub refused: u64,
}

impl Written {
    /// Adds the totals of another writer.
    pub fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.bytes += other.bytes;
        self.files += other.files;
        self.without_hour += other.without_hour;
        self.refused += other.refused;
    }
}

/// Writer of one table.
pub struct TableWriter<R: Rows> {
    table: &'static Table,
    options: Arc<Options>,
    /// Creates rows for the file of another hour.
    new_rows: Box<dyn Fn() -> R + Send>,
    /// Most recently used last.
    hours: Vec<OpenHour<R>>,
    /// Remaining number of small files.
    small_files_left: u64,
    written: Written,
    lost: Tally,
    has_failed: bool,
}

/// Rows and file of one hour.
struct OpenHour<R> {
    hour: Hour,
    rows: R,
    /// None until the first batch is complete.
    file: Option<ParquetFile>,
    opened: Instant,
    /// Packets of rows that are in no row group of the file yet.
    pending: Tally,
    /// Packets of rows in row groups of the file.
    stored: Tally,
}

impl<R: Rows> TableWriter<R> {
    /// Creates a writer of `table` without a file.
    pub fn new(table: &'static Table, options: Arc<Options>, new_rows: Box<dyn Fn() -> R + Send>) -> Self {
        Self {
            table,
            options,
            new_rows,
            hours: Vec::new(),
            small_files_left: SMALL_FILES_MAX,
            written: Written::default(),
            lost: Tally::default(),
            has_failed: false,
        }
    }

    /// Takes rows; `extras` are values of their packets that some columns need. After a failure all
    /// rows are lost.
    pub fn write(&mut self, rows: &[R::Row], extras: &Extras, now: Instant) -> Result<(), TableError> {
        if !self.has_failed && !rows.is_empty() && !self.has_room()? {
            self.written.refused += rows.len() as u64;
            count::<R>(&mut self.lost, rows);
            return Ok(());
        }
        let mut failure = Ok(());
        for rows in rows.chunk_by(|one, next| Hour::of(R::time_ns(one)) == Hour::of(R::time_ns(next))) {
            if self.has_failed {
                count::<R>(&mut self.lost, rows);
                continue;
            }
            let result = self.write_hour(rows, extras, now);
            failure = failure.and(result);
        }
        failure
    }

    /// Returns true if the spool has room. If it has none, completes the files, so that they can be
    /// sent. The ledger has rows of no packets and always room: it tells which ones are lost.
    fn has_room(&mut self) -> Result<bool, TableError> {
        let Some(spool) = self.options.spool.clone().filter(|_| self.table.name != LEDGER.name) else {
            return Ok(true);
        };
        if spool.has_room(false) {
            return Ok(true);
        }
        self.complete_all()?;
        Ok(spool.has_room(self.options.waits))
    }

    /// Takes rows of one hour.
    fn write_hour(&mut self, mut rows: &[R::Row], extras: &Extras, now: Instant) -> Result<(), TableError> {
        while let Some(first) = rows.first() {
            // Again for each batch, as a full file is completed.
            self.select(Hour::of(R::time_ns(first)), now)
                .inspect_err(|_| count::<R>(&mut self.lost, rows))?;
            let Some(open) = self.hours.last_mut() else { return Ok(()) };
            let space = BATCH_ROWS.saturating_sub(open.rows.len()).max(1);
            let (now_rows, later) = rows.split_at(space.min(rows.len()));
            open.rows.append(now_rows, extras);
            count::<R>(&mut open.pending, now_rows);
            rows = later;
            if open.rows.is_full() {
                self.end_batch().inspect_err(|_| count::<R>(&mut self.lost, rows))?;
            }
        }
        Ok(())
    }

    /// Makes the hour the last one in the list.
    fn select(&mut self, hour: Hour, now: Instant) -> Result<(), TableError> {
        if self.hours.last().is_some_and(|open| open.hour == hour) {
            return Ok(());
        }
        let hour = self.make_room(hour)?;
        let open = match self.position(hour) {
            Some(at) => self.hours.remove(at),
            None => OpenHour {
                hour,
                rows: (self.new_rows)(),
                file: None,
                opened: now,
                pending: Tally::default(),
                stored: Tally::default(),
            },
        };
        self.hours.push(open);
        Ok(())
    }

    fn position(&self, hour: Hour) -> Option<usize> {
        self.hours.iter().position(|open| open.hour == hour)
    }

    /// Completes the file of another hour if too many are open. Returns the hour to use.
    fn make_room(&mut self, hour: Hour) -> Result<Hour, TableError> {
        if self.hours.len() < HOURS_MAX || self.position(hour).is_some() {
            return Ok(hour);
        }
        let is_small = self.hours.first().is_some_and(|oldest| oldest.file.is_none());
        if is_small && self.small_files_left == 0 {
            return Ok(Hour::NONE);
        }
        self.small_files_left -= u64::from(is_small);
        self.complete(0).map(|()| hour)
    }

    /// Encodes the complete batch of the last hour, and ends the row group and the file at their
    /// limits.
    fn end_batch(&mut self) -> Result<(), TableError> {
        let at = self.hours.len().saturating_sub(1);
        let result = self.encode(at).and_then(|is_full| if is_full { self.complete(at) } else { Ok(()) });
        result.inspect_err(|_| self.fail())
    }

    /// Encodes the rows of an hour. Returns true if its file has reached its size.
    fn encode(&mut self, at: usize) -> Result<bool, TableError> {
        let Some(open) = self.hours.get_mut(at).filter(|open| !open.rows.is_empty()) else {
            return Ok(false);
        };
        let batch = open.rows.finish().map_err(|error| TableError::encode(self.table.name, error.into()))?;
        let file = match &mut open.file {
            Some(file) => file,
            empty => empty.insert(create(self.table, &self.options, open.hour, open.rows.schema())?),
        };
        file.write(&batch)?;
        let is_full = file.bytes() >= self.options.rotate_bytes;
        if is_full || file.rows_in_memory() >= GROUP_ROWS || file.bytes_in_memory() >= GROUP_BYTES {
            open.end_group()?;
        }
        Ok(is_full)
    }

    /// Completes the files whose age has reached the limit. Call it a few times a second.
    pub fn complete_due(&mut self, now: Instant) -> Result<(), TableError> {
        let every = self.options.rotate_every;
        while let Some(at) =
            self.hours.iter().position(|open| now.saturating_duration_since(open.opened) >= every)
        {
            self.complete(at)?;
        }
        Ok(())
    }

    /// Completes all files.
    pub fn complete_all(&mut self) -> Result<(), TableError> {
        while !self.hours.is_empty() {
            self.complete(0)?;
        }
        Ok(())
    }

    /// Encodes the remaining rows of an hour and completes its file.
    fn complete(&mut self, at: usize) -> Result<(), TableError> {
        let encoded = self.encode(at).map(drop);
        if at >= self.hours.len() {
            return encoded;
        }
        let mut open = self.hours.remove(at);
        let ended = encoded.and_then(|()| open.end_group());
        let closed = self.close(open);
        let result = ended.and(closed);
        result.inspect_err(|_| self.fail())
    }

    /// Gives a file its name, and counts its rows as written. Other rows are lost.
    fn close(&mut self, open: OpenHour<R>) -> Result<(), TableError> {
        self.lost.add_all(&open.pending);
        let Some(file) = open.file else { return Ok(()) };
        if file.durable_rows() == 0 {
            return file.remove();
        }
        let rows = file.durable_rows();
        match file.complete() {
            Ok(bytes) => {
                self.written.rows += rows;
                self.written.bytes += bytes;
                self.written.files += 1;
                self.written.without_hour += if open.hour == Hour::NONE { rows } else { 0 };
                Ok(())
            }
            Err(error) => {
                self.lost.add_all(&open.stored);
                Err(error)
            }
        }
    }

    /// Completes all files with the row groups that they have, and loses all further rows. The
    /// first failure is reported by the caller, so that those of further files are not.
    pub(crate) fn fail(&mut self) {
        self.has_failed = true;
        for open in std::mem::take(&mut self.hours) {
            let _ = self.close(open);
        }
    }

    /// Returns the totals of completed files.
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// Returns the packets lost so far.
    pub fn lost(&self) -> &Tally {
        &self.lost
    }
}

impl<R> OpenHour<R> {
    fn end_group(&mut self) -> Result<(), TableError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.end_group()?;
        self.stored.add_all(&std::mem::take(&mut self.pending));
        Ok(())
    }
}

/// Counts the packets of rows by lane. Rows of one lane often follow one another.
fn count<R: Rows>(tally: &mut Tally, rows: &[R::Row]) {
    for run in rows.chunk_by(|one, next| R::lane(one) == R::lane(next)) {
        tally.add(R::lane(&run[0]), run.iter().map(R::packets).sum());
    }
}

/// Starts a file of an hour.
fn create(
    table: &'static Table,
    options: &Options,
    hour: Hour,
    schema: SchemaRef,
) -> Result<ParquetFile, TableError> {
    let directory = hour.directory(&options.directory, table.name, &options.sensor);
    let number = options.numbers.next();
    let name = format!("{}-{}-{number:06}.parquet", table.name, options.capture);
    let version = table.version.to_string();
    let metadata = [
        (TABLE_KEY, table.name),
        (VERSION_KEY, &version),
        ("strait.sensor", &options.sensor),
        ("strait.capture", &options.capture),
    ];
    ParquetFile::create(table, schema, &metadata, Part::create(&directory, &name)?)
}

#[cfg(test)]
mod tests;
