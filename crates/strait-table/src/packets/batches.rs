//! Record batches of packets.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use super::{Columns, InterfaceNames, PacketRows};
use crate::batches::Batches;
use crate::error::TableError;
use crate::extras::Extras;
use crate::headers::{Headers, Packet};
use crate::rows::{BATCH_ROWS, Rows as _};
use crate::schema::PACKETS;

/// Packets whose headers wait for their columns; they stay in the second-level cache.
const BLOCK_PACKETS: usize = 512;
/// Bytes of frames after which a block ends.
const BLOCK_BYTES: usize = 256 << 10;

/// Packets that become record batches.
pub struct PacketBatches {
    rows: PacketRows,
    rows_max: usize,
    block: Vec<Headers>,
    extras: Extras,
    /// Bytes of a packet in the column `frame`, if a column needs more than headers.
    extra_bytes: Option<usize>,
}

impl PacketBatches {
    /// Maximum rows of a batch.
    pub const ROWS_MAX: usize = BATCH_ROWS;

    /// Creates an empty batch of at most `rows_max` rows, 1 to [`PacketBatches::ROWS_MAX`], with at
    /// most `frame_bytes` bytes of each packet in the column `frame`.
    pub fn new(columns: &Columns, names: InterfaceNames, rows_max: usize, frame_bytes: u32) -> Self {
        let rows_max = rows_max.clamp(1, Self::ROWS_MAX);
        Self {
            rows: PacketRows::new(columns, names, rows_max, frame_bytes),
            rows_max,
            block: Vec::with_capacity(BLOCK_PACKETS),
            extras: Extras::default(),
            extra_bytes: columns.need_extras().then_some(frame_bytes as usize),
        }
    }

    fn flush(&mut self) {
        self.rows.append(&self.block, &self.extras);
        self.block.clear();
        self.extras.clear();
    }

    /// Returns the number of rows that the batch has space for; 0 also if its frames have many
    /// bytes.
    pub fn space(&self) -> usize {
        if self.rows.is_full() { 0 } else { self.rows_max.saturating_sub(self.len()) }
    }
}

impl Batches for PacketBatches {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }

    fn push(&mut self, packet: &Packet<'_>) {
        let mut headers = Headers::of(packet);
        if let Some(bytes) = self.extra_bytes {
            self.extras.push(packet, bytes, &mut headers);
        }
        self.block.push(headers);
        if self.block.len() >= BLOCK_PACKETS || self.extras.bytes() >= BLOCK_BYTES {
            self.flush();
        }
    }

    fn is_full(&self) -> bool {
        self.space() == 0
    }

    fn len(&self) -> usize {
        self.rows.len() + self.block.len()
    }

    fn finish(&mut self) -> Result<RecordBatch, TableError> {
        self.flush();
        self.rows.finish().map_err(|error| TableError::encode(PACKETS.name, error.into()))
    }
}
