//! Flows for a broker of messages: one line of JSON for each flow, with the columns of the table.
//!
//! [`lines`] makes the lines. The caller gives a [`Publisher`], which speaks the protocol of the
//! broker and waits for its acknowledgments. Each line has a number, under which the publisher can
//! send it again without a second copy at the broker.

mod lines;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use self::lines::Lines;
use crate::export::{Carrier, Counts, Exporter, Limits, Message, Plan, Shared};

/// Maximum length of a message, some 350 flows.
pub const LINES_BYTES_MAX: usize = 256 << 10;
/// Messages of the queue: 8 MiB. An incomplete message is sent twice a second.
const QUEUE: usize = 32;

/// Way to a broker.
pub trait Publisher: Send {
    /// Sends lines, numbered from `first` on, and waits until the broker has acknowledged them.
    /// Ends early if `is_over`.
    ///
    /// # Errors
    /// All lines are lost.
    fn publish(&mut self, first: u64, lines: &[u8], is_over: &dyn Fn() -> bool) -> Result<Outcome, String>;
}

/// Outcome of sending lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Positions of the lines that are lost.
    pub lost: BTreeSet<usize>,
    /// Cause, if there are any.
    pub cause: Option<String>,
    /// Lines that were sent again although the broker may have stored them.
    pub repeated: u64,
}

/// Opens the export to a broker, of which `name` is the name for messages to the user. Each line
/// has the name of the sensor.
pub fn open(name: String, sensor: &str, publisher: Box<dyn Publisher>) -> Exporter {
    open_with(name, sensor, publisher, Limits::default())
}

fn open_with(name: String, sensor: &str, publisher: Box<dyn Publisher>, limits: Limits) -> Exporter {
    let shared = Shared::new(limits, LINES_BYTES_MAX);
    let sensor = sensor.to_owned();
    Exporter::new(Plan {
        name,
        queue: QUEUE,
        new_builder: Box::new(move || Box::new(Lines::new(&sensor))),
        carrier: Box::new(Thread { publisher, shared: Arc::clone(&shared), next: 0 }),
        shared,
    })
}

/// The thread of the export.
struct Thread {
    publisher: Box<dyn Publisher>,
    shared: Arc<Shared>,
    /// Number of the next line.
    next: u64,
}

impl Carrier for Thread {
    fn deliver(&mut self, message: Message, counts: &Counts) {
        if self.shared.is_over() {
            return counts.lose(&message, Some(self.shared.late()));
        }
        let first = self.next;
        self.next += message.flows.len() as u64;
        match self.publisher.publish(first, &message.bytes, &|| self.shared.is_over()) {
            Ok(outcome) => {
                counts.add_lines(&message, &outcome);
                self.shared.set_failure(outcome.cause);
            }
            Err(cause) => {
                counts.lose(&message, Some(cause.clone()));
                self.shared.set_failure(Some(cause));
            }
        }
    }
}
