//! Record batches of flows.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use super::{FlowLimits, FlowRow, FlowRows, FlowTable};
use crate::batches::Batches;
use crate::error::TableError;
use crate::extras::Extras;
use crate::headers::{Headers, Packet};
use crate::packets::InterfaceNames;
use crate::rows::{BATCH_ROWS, Rows as _};
use crate::schema::FLOWS;

/// Packets that become record batches of their flows.
pub struct FlowBatches {
    table: FlowTable,
    ended: Vec<FlowRow>,
    rows: FlowRows,
}

impl FlowBatches {
    /// Creates an empty table and an empty batch.
    pub fn new(limits: FlowLimits, names: InterfaceNames) -> Self {
        Self { table: FlowTable::new(limits), ended: Vec::new(), rows: FlowRows::new(names) }
    }

    fn append(&mut self) {
        if !self.ended.is_empty() {
            self.rows.append(&self.ended, &Extras::default());
            self.ended.clear();
        }
    }
}

impl Batches for FlowBatches {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }

    fn push(&mut self, packet: &Packet<'_>) {
        self.table.take(&Headers::of(packet), &mut self.ended);
        self.append();
    }

    fn is_full(&self) -> bool {
        self.rows.is_full()
    }

    /// Ends all flows, as far as the batch has space for their rows.
    fn end(&mut self) {
        let count = BATCH_ROWS.saturating_sub(self.rows.len());
        self.table.drain(count, &mut self.ended);
        self.append();
    }

    fn pass(&mut self, time_ns: u64) {
        // Later calls end the flows that do not fit into the batch.
        let count = BATCH_ROWS.saturating_sub(self.rows.len());
        self.table.expire(time_ns, count, &mut self.ended);
        self.append();
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn finish(&mut self) -> Result<RecordBatch, TableError> {
        self.rows.finish().map_err(|error| TableError::encode(FLOWS.name, error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface_names::no_names;

    /// Pushes a UDP packet between 10.0.0.1 and 10.0.0.2.
    fn push(batches: &mut FlowBatches, time_ns: u64, port: u16) {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 53, 0, 8, 0, 0]);
        batches.push(&Packet {
            bytes: &frame,
            link_type: 1,
            wire_len: frame.len() as u32,
            time_ns,
            interface: 0,
            lane: 0,
            direction: None,
            owner: None,
        });
    }

    #[test]
    fn flows_are_rows_once_they_end() {
        let mut batches = FlowBatches::new(FlowLimits::default(), no_names());
        push(&mut batches, 0, 1000);
        push(&mut batches, 1, 1000);
        push(&mut batches, 2, 1001);
        assert!(batches.is_empty());
        // The first flows have been idle for a minute.
        push(&mut batches, 60_000_000_000, 1002);
        assert_eq!(batches.len(), 2);
        batches.end();
        let batch = batches.finish().unwrap();
        assert_eq!((batch.num_rows(), batch.schema()), (3, batches.schema()));
        batches.end();
        assert!(batches.is_empty());
    }
}
