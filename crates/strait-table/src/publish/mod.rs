//! Flows for a broker of messages, with the columns of the table, in a [`Format`].
//!
//! [`lines`], [`batches`] and [`protobuf`] make batches of flows. The caller gives a [`Publisher`],
//! which speaks the protocol of the broker, makes messages of a batch, and waits for their
//! acknowledgments. Each flow has a number, under which the publisher can send it again without a
//! second copy at the broker.

mod batches;
mod lines;
mod protobuf;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeSet;
use std::sync::Arc;

use self::batches::Batches;
use self::lines::Lines;
use self::protobuf::Delimited;
pub use self::protobuf::definition;
use crate::export::{Build, Carrier, Counts, Exporter, Limits, Message, Plan, Shared};

/// Maximum length of a batch: some 350 flows of JSON, or more than 1000 of the other formats.
pub const BATCH_BYTES_MAX: usize = 256 << 10;
/// Batches of the queue: 8 MiB. An incomplete batch is sent twice a second.
const QUEUE: usize = 32;

/// Format of the flows in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line with an object of JSON for each flow.
    Json,
    /// A stream of Arrow IPC: schema and one record batch.
    Arrow,
    /// For each flow its length as a varint, and a message of Protocol Buffers ([`definition`]).
    Protobuf,
}

impl Format {
    fn new_builder(self, sensor: &str) -> Box<dyn Build> {
        match self {
            Self::Json => Box::new(Lines::new(sensor)),
            Self::Arrow => Box::new(Batches::new(sensor)),
            Self::Protobuf => Box::new(Delimited::new(sensor)),
        }
    }
}

/// Way to a broker.
pub trait Publisher: Send {
    /// Sends the flows of a batch, numbered from `first` on, and waits until the broker has
    /// acknowledged them. Ends early if `is_over`.
    ///
    /// # Errors
    /// All flows are lost.
    fn publish(&mut self, first: u64, batch: &[u8], is_over: &dyn Fn() -> bool) -> Result<Outcome, String>;
}

/// Outcome of sending a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Positions of the flows that are lost.
    pub lost: BTreeSet<usize>,
    /// Cause, if there are any.
    pub cause: Option<String>,
    /// Flows that were sent again although the broker may have stored them.
    pub repeated: u64,
    /// Messages that the broker has acknowledged.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
}

/// Opens the export to a broker, of which `name` is the name for messages to the user. Each flow
/// has the name of the sensor.
pub fn open(name: String, sensor: &str, format: Format, publisher: Box<dyn Publisher>) -> Exporter {
    open_with(name, sensor, format, publisher, Limits::default())
}

fn open_with(
    name: String,
    sensor: &str,
    format: Format,
    publisher: Box<dyn Publisher>,
    limits: Limits,
) -> Exporter {
    let shared = Shared::new(limits, BATCH_BYTES_MAX);
    let sensor = sensor.to_owned();
    Exporter::new(Plan {
        name,
        queue: QUEUE,
        new_builder: Box::new(move || format.new_builder(&sensor)),
        carrier: Box::new(Thread { publisher, shared: Arc::clone(&shared), next: 0 }),
        shared,
    })
}

/// The thread of the export.
struct Thread {
    publisher: Box<dyn Publisher>,
    shared: Arc<Shared>,
    /// Number of the next flow.
    next: u64,
}

impl Carrier for Thread {
    fn deliver(&mut self, message: Message, counts: &Counts) {
        if self.shared.is_over() {
            return counts.lose(&message, Some(self.shared.late()));
        }
        if message.bytes.is_empty() {
            return counts.lose(&message, Some("they cannot be encoded".into()));
        }
        let first = self.next;
        self.next += message.flows.len() as u64;
        match self.publisher.publish(first, &message.bytes, &|| self.shared.is_over()) {
            Ok(outcome) => {
                counts.add_published(&message, &outcome);
                self.shared.set_failure(outcome.cause);
            }
            Err(cause) => {
                counts.lose(&message, Some(cause.clone()));
                self.shared.set_failure(Some(cause));
            }
        }
    }
}
