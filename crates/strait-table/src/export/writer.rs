//! Flows of one sink on their way to the receiver, and their counts.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::exporter::{Exporter, Task};
use super::message::{Build, Message, Record};
use crate::error::TableError;
use crate::flows::FlowRow;
use crate::packets::{InterfaceNames, Interfaces};
use crate::publish::Outcome;
use crate::tally::Tally;

/// Time for which a live capture waits for the full queue of a receiver that takes messages. The
/// queue before the tables takes the packets meanwhile.
const WAIT_MAX: Duration = Duration::from_millis(250);
/// Interval at which the full queue is tried again.
const WAIT_STEP: Duration = Duration::from_millis(1);

/// Totals of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Flows that were sent. Over UDP they may be lost on their way; a broker has acknowledged
    /// them.
    pub flows: u64,
    /// Messages with these flows.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Flows that were sent over UDP and refused later, which the counts before exclude.
    pub refused_flows: u64,
    /// Bytes of their messages.
    pub refused_bytes: u64,
    /// Flows that could not be sent, or that the receiver refused.
    pub lost: u64,
    /// Flows that were sent again although the broker may have stored them: it may have them twice.
    pub repeated: u64,
    /// Reason for the last loss.
    pub failure: Option<String>,
}

impl Exported {
    /// Returns the flows that were sent, also those that were refused later: it never decreases.
    pub fn sent_flows(&self) -> u64 {
        self.flows + self.refused_flows
    }

    /// Returns the bytes of all sent messages, also of those that were refused later.
    pub fn sent_bytes(&self) -> u64 {
        self.bytes + self.refused_bytes
    }

    /// Adds the totals of another sink.
    pub fn add(&mut self, other: &Self) {
        self.flows += other.flows;
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.refused_flows += other.refused_flows;
        self.refused_bytes += other.refused_bytes;
        self.lost += other.lost;
        self.repeated += other.repeated;
        if other.failure.is_some() {
            self.failure.clone_from(&other.failure);
        }
    }
}

/// Totals of a sink, and its lost packets. The thread of the export counts too.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(Arc<Mutex<(Exported, Tally)>>);

impl Counts {
    fn lock(&self) -> MutexGuard<'_, (Exported, Tally)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a message that was sent.
    pub(crate) fn add(&self, message: &Message) {
        let (exported, _) = &mut *self.lock();
        exported.flows += message.flows.len() as u64;
        exported.messages += 1;
        exported.bytes += message.bytes.len() as u64;
    }

    /// Counts a message that was not sent.
    pub(crate) fn lose(&self, message: &Message, failure: Option<String>) {
        let (exported, lost) = &mut *self.lock();
        exported.lost += message.flows.len() as u64;
        exported.failure = failure.or(exported.failure.take());
        message.flows.iter().for_each(|&(lane, packets)| lost.add(lane, packets));
    }

    /// Counts a message that was sent and refused.
    pub(crate) fn refuse(&self, message: &Message, failure: Option<String>) {
        self.lose(message, failure);
        let (exported, _) = &mut *self.lock();
        let (flows, bytes) = (message.flows.len() as u64, message.bytes.len() as u64);
        exported.flows -= flows;
        exported.messages -= 1;
        exported.bytes -= bytes;
        exported.refused_flows += flows;
        exported.refused_bytes += bytes;
    }

    /// Counts the flows of a batch that was published, and the messages that a broker has stored.
    pub(crate) fn add_published(&self, batch: &Message, outcome: &Outcome) {
        let (exported, lost_packets) = &mut *self.lock();
        for (at, &(lane, packets)) in batch.flows.iter().enumerate() {
            if outcome.lost.contains(&at) {
                exported.lost += 1;
                lost_packets.add(lane, packets);
            } else {
                exported.flows += 1;
            }
        }
        exported.messages += outcome.messages;
        exported.bytes += outcome.bytes;
        exported.repeated += outcome.repeated;
        exported.failure = outcome.cause.clone().or(exported.failure.take());
    }
}

/// Writer of the flows of one sink.
pub(crate) struct Writer {
    exporter: Arc<Exporter>,
    builder: Box<dyn Build>,
    interfaces: Interfaces,
    counts: Counts,
}

impl Writer {
    pub(crate) fn new(exporter: Arc<Exporter>, names: InterfaceNames) -> Self {
        let (builder, interfaces) = (exporter.new_builder(), Interfaces::new(names));
        Self { exporter, builder, interfaces, counts: Counts::default() }
    }

    /// Takes flows. With `waits`, waits for the full queue; otherwise they are lost then.
    pub(crate) fn write(&mut self, rows: &[FlowRow], waits: bool) -> Result<(), TableError> {
        let mut sent = Ok(());
        for row in rows {
            let interface = self.interfaces.name(row.interface);
            let bytes_max = self.exporter.message_bytes_max();
            if let Some(message) = self.builder.push(&Record { row, interface }, bytes_max) {
                sent = sent.and(self.send(message, waits));
            }
        }
        sent
    }

    /// Sends the flows that wait for a full message.
    pub(crate) fn flush(&mut self, waits: bool) -> Result<(), TableError> {
        self.builder.finish().map_or(Ok(()), |message| self.send(message, waits))
    }

    /// Waits until all flows are sent or lost.
    pub(crate) fn settle(&mut self) -> Result<(), TableError> {
        self.flush(true)?;
        let (reply, replied) = sync_channel(1);
        self.exporter.send(Task::Settle(reply), true)?;
        replied.recv().map_err(|_| TableError::ThreadEnded)
    }

    fn send(&self, message: Message, waits: bool) -> Result<(), TableError> {
        let end = Instant::now() + WAIT_MAX;
        let mut task = Task::Message(message, self.counts.clone());
        while let Some(Task::Message(message, counts)) = self.exporter.send(task, waits)? {
            let failure = self.exporter.failure();
            if failure.is_some() || Instant::now() >= end {
                counts.lose(&message, failure.or_else(|| Some("it takes them too slowly".into())));
                break;
            }
            std::thread::sleep(WAIT_STEP);
            task = Task::Message(message, counts);
        }
        Ok(())
    }

    /// Returns the totals.
    pub(crate) fn exported(&self) -> Exported {
        self.counts.lock().0.clone()
    }

    /// Returns the packets of lost flows.
    pub(crate) fn lost(&self) -> Tally {
        self.counts.lock().1.clone()
    }
}
