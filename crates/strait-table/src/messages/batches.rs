//! Record batches of messages.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use super::{Application, Assembly, Message, MessageRows, Missed, SelectedMessages};
use crate::batches::Batches;
use crate::error::TableError;
use crate::extras::Extras;
use crate::headers::{Headers, Packet};
use crate::rows::Rows as _;

/// Packets that become record batches of the messages of one protocol.
pub struct MessageBatches {
    application: Application,
    assembly: Assembly,
    /// Messages of the last packet.
    messages: Vec<Message>,
    rows: MessageRows,
    malformed: u64,
}

impl MessageBatches {
    /// Creates an empty batch of the table of `application`.
    pub fn new(application: Application) -> Self {
        Self {
            application,
            assembly: Assembly::new(SelectedMessages::only(application)),
            messages: Vec::new(),
            rows: MessageRows::new(application),
            malformed: 0,
        }
    }
}

impl Batches for MessageBatches {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }

    /// Adds the messages that a packet completes.
    fn push(&mut self, packet: &Packet<'_>) {
        let mut headers = Headers::default();
        let segment = headers.read(packet);
        self.assembly.take(&headers, segment, &mut self.messages);
        for message in self.messages.drain(..) {
            match message.row() {
                Some(row) => self.rows.append(&[row], &Extras::default()),
                None => self.malformed += 1,
            }
        }
    }

    fn is_full(&self) -> bool {
        self.rows.is_full()
    }

    /// Drops incomplete messages.
    fn end(&mut self) {
        self.assembly.end();
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn finish(&mut self) -> Result<RecordBatch, TableError> {
        let table = self.application.table().name;
        self.rows.finish().map_err(|error| TableError::encode(table, error.into()))
    }

    fn missed(&self) -> Missed {
        let mut missed = *self.assembly.missed();
        missed.malformed += self.malformed;
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes a UDP packet from port 5000 to port 53 with this payload.
    fn push(batches: &mut MessageBatches, payload: &[u8]) {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 28 + payload.len() as u8, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 19, 136, 0, 53, 0, 8 + payload.len() as u8, 0, 0]);
        frame.extend(payload);
        batches.push(&Packet {
            bytes: &frame,
            link_type: 1,
            wire_len: frame.len() as u32,
            time_ns: 0,
            interface: 0,
            lane: 0,
            direction: None,
            owner: None,
        });
    }

    #[test]
    fn messages_are_rows_and_others_are_counted() {
        const QUERY: &[u8] = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";
        let mut batches = MessageBatches::new(Application::Dns);
        push(&mut batches, QUERY);
        push(&mut batches, &QUERY[..5]);
        let batch = batches.finish().unwrap();
        assert_eq!((batch.num_rows(), batch.schema()), (1, batches.schema()));
        assert_eq!(batches.missed(), Missed { malformed: 1, ..Missed::default() });
        let mut batches = MessageBatches::new(Application::Tls);
        push(&mut batches, QUERY);
        assert!(batches.is_empty() && batches.missed() == Missed::default());
    }
}
