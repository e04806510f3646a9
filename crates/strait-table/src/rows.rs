//! Rows of a table, which become record batches.

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};

use crate::extras::Extras;

/// Rows of a record batch: so few that its columns stay in a second-level cache of 8 MiB, and so
/// many that distinct addresses cost little.
pub const BATCH_ROWS: usize = 64 << 10;

/// Rows that become a record batch.
pub trait Rows {
    /// One row, or the source of one.
    type Row;

    /// Returns the time of a row in nanoseconds since the epoch. It selects the file.
    fn time_ns(row: &Self::Row) -> u64;
    /// Returns the lane to which the row is charged if it is lost.
    fn lane(row: &Self::Row) -> u32;
    /// Returns the number of packets that are lost with the row.
    fn packets(row: &Self::Row) -> u64;
    /// Returns Arrow's schema.
    fn schema(&self) -> SchemaRef;
    /// Returns the number of rows.
    fn len(&self) -> usize;
    /// Returns true if there is no row.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns true if the rows are a whole batch.
    fn is_full(&self) -> bool {
        self.len() >= BATCH_ROWS
    }
    /// Adds rows; `extras` are values of their packets that some columns need.
    fn append(&mut self, rows: &[Self::Row], extras: &Extras);
    /// Returns the rows as a batch, and starts an empty one.
    fn finish(&mut self) -> Result<RecordBatch, ArrowError>;
}
