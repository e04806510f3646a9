//! Packets that become record batches of one table, for a program that reads the rows itself
//! instead of a file: queries, and Python.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use crate::error::TableError;
use crate::headers::Packet;
use crate::messages::Missed;

/// Rows of a table, until they are a batch.
pub trait Batches {
    /// Returns Arrow's schema.
    fn schema(&self) -> SchemaRef;

    /// Adds a packet. A full batch must be finished first.
    fn push(&mut self, packet: &Packet<'_>);

    /// Passes over packets up to this time, in nanoseconds since the epoch, which are not pushed.
    fn pass(&mut self, _time_ns: u64) {}

    /// Returns true if the batch has as many rows, or as many bytes, as it should have.
    fn is_full(&self) -> bool;

    /// Ends the packets of a file: the next ones are those of another file. If the batch has rows
    /// then, finish it and call this again.
    fn end(&mut self) {}

    /// Returns the number of rows.
    fn len(&self) -> usize;

    /// Returns true if there is no row.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the rows as a batch, and starts an empty one.
    ///
    /// # Errors
    /// The encoder refused the rows.
    fn finish(&mut self) -> Result<RecordBatch, TableError>;

    /// Returns the counts of messages that have no row.
    fn missed(&self) -> Missed {
        Missed::default()
    }
}
