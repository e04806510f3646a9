//! The thread of the tables: it takes blocks from the queue, makes rows of them, and writes files
//! or exports flows.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{BLOCK_PACKETS, Block, ExportOptions, Shared, Summary, Task, lock};
use crate::error::TableError;
use crate::export::{Exported, Writer};
use crate::extras::Extras;
use crate::flows::{EndReason, FlowLimits, FlowRow, FlowRows, FlowTable};
use crate::headers::Headers;
use crate::ledger::LedgerRows;
use crate::messages::{Application, Message, MessageRow, MessageRows, Missed};
use crate::options::Options;
use crate::packets::{InterfaceNames, PacketRows};
use crate::rows::BATCH_ROWS;
use crate::schema::{FLOWS, LEDGER, PACKETS};
use crate::tally::Tally;
use crate::writer::{TableWriter, Written};

/// Interval at which the thread looks for files to complete.
const TICK: Duration = Duration::from_millis(500);

/// The thread of the tables.
pub(super) struct Worker {
    packets: Option<TableWriter<PacketRows>>,
    flows: Option<Flows>,
    messages: Messages,
    ledger: Option<TableWriter<LedgerRows>>,
    /// True after the first failure of any table.
    has_failed: bool,
    /// Packets since then.
    lost: Tally,
    shared: Arc<Mutex<Shared>>,
    empty: SyncSender<Block>,
}

impl Worker {
    pub(super) fn new(
        options: Arc<Options>,
        names: InterfaceNames,
        shared: Arc<Mutex<Shared>>,
        empty: SyncSender<Block>,
    ) -> Self {
        let messages = Messages::new(&options);
        let (limits, is_live) = (options.flows, !options.waits);
        let for_flows = || TableWriter::new(&FLOWS, Arc::clone(&options), new_flows(Arc::clone(&names)));
        let flows =
            options.selected.flows.then(|| Flows::new(limits, is_live, FlowTarget::Files(for_flows())));
        let columns = options.columns.clone();
        let frame_bytes = options.frame_bytes;
        let new_packets = move || PacketRows::new(&columns, Arc::clone(&names), BATCH_ROWS, frame_bytes);
        let packets = TableWriter::new(&PACKETS, Arc::clone(&options), Box::new(new_packets));
        let for_ledger = Arc::clone(&options);
        let new_ledger = move || LedgerRows::new(Arc::clone(&for_ledger));
        Self {
            packets: options.selected.packets.then_some(packets),
            flows,
            messages,
            ledger: Some(TableWriter::new(&LEDGER, options, Box::new(new_ledger))),
            has_failed: false,
            lost: Tally::default(),
            shared,
            empty,
        }
    }

    /// Creates a thread that exports flows, and writes no file.
    pub(super) fn for_export(
        options: &ExportOptions,
        names: InterfaceNames,
        shared: Arc<Mutex<Shared>>,
        empty: SyncSender<Block>,
    ) -> Self {
        let target = FlowTarget::Export(Writer::new(Arc::clone(&options.exporter), names));
        let flows = Flows::new(options.flows, !options.waits, target);
        Self {
            packets: None,
            flows: Some(flows),
            messages: Messages::default(),
            ledger: None,
            has_failed: false,
            lost: Tally::default(),
            shared,
            empty,
        }
    }

    pub(super) fn run(mut self, tasks: &Receiver<Task>) {
        let mut checked = Instant::now();
        loop {
            let task = match tasks.recv_timeout(TICK) {
                Ok(task) => Some(task),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let now = Instant::now();
            if let Some(task) = task {
                self.take(task, now);
            }
            if now.saturating_duration_since(checked) >= TICK {
                checked = now;
                let due = self.complete_due(now);
                self.publish(due);
            }
        }
        let ended = self.complete();
        let ended = ended.and(self.ledger.as_mut().map_or(Ok(()), TableWriter::complete_all));
        self.publish(ended);
    }

    fn take(&mut self, task: Task, now: Instant) {
        match task {
            Task::Packets(mut block) => {
                if self.has_failed {
                    block.count(&mut self.lost);
                    self.publish(Ok(()));
                } else if let Err(error) = self.write(&block, now) {
                    self.publish(Err(error));
                }
                block.clear();
                // The capture allocates another block if this one is dropped.
                let _ = self.empty.try_send(block);
            }
            Task::Ledger(rows) => {
                let write = |ledger: &mut TableWriter<_>| ledger.write(&rows, &Extras::default(), now);
                let result = self.ledger.as_mut().map_or(Ok(()), write);
                self.publish(result);
            }
            Task::EndFlows => {
                let result = self.flows.as_mut().map_or(Ok(()), |flows| flows.end_all(now));
                self.publish(result);
            }
            Task::Complete(reply) => {
                let result = self.complete();
                self.publish(result);
                // The capture may have given up waiting.
                let _ = reply.send(());
            }
        }
    }

    fn write(&mut self, block: &Block, now: Instant) -> Result<(), TableError> {
        let Block { packets: rows, extras, messages, .. } = block;
        let packets = self.packets.as_mut().map_or(Ok(()), |packets| packets.write(rows, extras, now));
        let flows = self.flows.as_mut().map_or(Ok(()), |flows| flows.write(rows, now));
        packets.and(flows).and(self.messages.write(messages, now))
    }

    /// Completes the files that have reached their age.
    fn complete_due(&mut self, now: Instant) -> Result<(), TableError> {
        let packets = self.packets.as_mut().map_or(Ok(()), |packets| packets.complete_due(now));
        let flows = self.flows.as_mut().map_or(Ok(()), |flows| flows.complete_due(now));
        let messages = self.messages.each(|writer| writer.complete_due(now));
        let ledger = self.ledger.as_mut().map_or(Ok(()), |ledger| ledger.complete_due(now));
        packets.and(flows).and(messages).and(ledger)
    }

    /// Ends all flows, and completes the files of packets, flows and messages.
    fn complete(&mut self) -> Result<(), TableError> {
        let packets = self.packets.as_mut().map_or(Ok(()), TableWriter::complete_all);
        let flows = self.flows.as_mut().map_or(Ok(()), Flows::complete);
        packets.and(flows).and(self.messages.each(TableWriter::complete_all))
    }

    /// Ends the tables of packets, flows and messages, as one of all tables has failed. The ledger
    /// goes on: it has the losses.
    fn fail(&mut self) {
        self.has_failed = true;
        if let Some(packets) = &mut self.packets {
            packets.fail();
        }
        if let Some(Flows { target: FlowTarget::Files(flows), .. }) = &mut self.flows {
            flows.fail();
        }
        self.messages.writers.iter_mut().for_each(|(_, writer)| writer.fail());
    }

    /// Shows the result of a step and the totals to the capture. After a failure all tables lose
    /// their rows: the target has failed as a whole.
    fn publish(&mut self, result: Result<(), TableError>) {
        if result.is_err() && !self.has_failed {
            self.fail();
        }
        let mut shared = lock(&self.shared);
        if let Err(error) = result {
            shared.failure.get_or_insert(error);
        }
        let Self { packets, flows, messages, ledger, .. } = self;
        // A packet that is in its table is not lost, even if the row of its flow is.
        let of_packets = packets.as_ref().map(|packets| packets.lost().clone());
        let lost = of_packets.or_else(|| flows.as_ref().map(|flows| flows.target.lost()));
        shared.lost = lost.unwrap_or_default();
        shared.lost.add_all(&self.lost);
        shared.summary = Summary {
            packets: packets.as_ref().map(|packets| packets.written().clone()).unwrap_or_default(),
            flows: flows.as_ref().map(|flows| flows.target.written()).unwrap_or_default(),
            exported: flows.as_ref().map(|flows| flows.target.exported()).unwrap_or_default(),
            flows_evicted: flows.as_ref().map_or(0, |flows| flows.evicted),
            messages: messages.written(),
            missed: Missed { malformed: messages.malformed, ..Missed::default() },
            ledger: ledger.as_ref().map(|ledger| ledger.written().clone()).unwrap_or_default(),
        };
    }
}

/// Files of the tables of messages.
#[derive(Default)]
struct Messages {
    writers: Vec<(Application, TableWriter<MessageRows>)>,
    malformed: u64,
}

impl Messages {
    fn new(options: &Arc<Options>) -> Self {
        let selected = options.selected.messages;
        let writer = |application: Application| {
            let new_rows = move || MessageRows::new(application);
            (application, TableWriter::new(application.table(), Arc::clone(options), Box::new(new_rows)))
        };
        let applications = Application::ALL.into_iter();
        let writers = applications.filter(|application| selected.has(*application)).map(writer).collect();
        Self { writers, malformed: 0 }
    }

    fn write(&mut self, messages: &[Message], now: Instant) -> Result<(), TableError> {
        let mut written = Ok(());
        for (application, writer) in &mut self.writers {
            let mut messages =
                messages.iter().filter(|message| message.application == *application).peekable();
            if messages.peek().is_none() {
                continue;
            }
            let parsed: Vec<Option<MessageRow>> = messages.map(Message::row).collect();
            self.malformed += parsed.iter().filter(|row| row.is_none()).count() as u64;
            let rows: Vec<MessageRow> = parsed.into_iter().flatten().collect();
            written = written.and(writer.write(&rows, &Extras::default(), now));
        }
        written
    }

    fn each(
        &mut self,
        mut act: impl FnMut(&mut TableWriter<MessageRows>) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let mut result = Ok(());
        for (_, writer) in &mut self.writers {
            result = result.and(act(writer));
        }
        result
    }

    fn written(&self) -> Written {
        let mut sum = Written::default();
        self.writers.iter().for_each(|(_, writer)| sum.add(writer.written()));
        sum
    }
}

/// Returns the function that creates rows for the file of an hour.
fn new_flows(names: InterfaceNames) -> Box<dyn Fn() -> FlowRows + Send> {
    Box::new(move || FlowRows::new(Arc::clone(&names)))
}

/// Target of flows that have ended.
enum FlowTarget {
    Files(TableWriter<FlowRows>),
    Export(Writer),
}

impl FlowTarget {
    /// Takes flows; `waits` is true if the capture can be delayed.
    fn write(&mut self, rows: &[FlowRow], now: Instant, waits: bool) -> Result<(), TableError> {
        match self {
            Self::Files(writer) => writer.write(rows, &Extras::default(), now),
            Self::Export(writer) => writer.write(rows, waits),
        }
    }

    fn complete_due(&mut self, now: Instant, waits: bool) -> Result<(), TableError> {
        match self {
            Self::Files(writer) => writer.complete_due(now),
            Self::Export(writer) => writer.flush(waits),
        }
    }

    fn complete_all(&mut self) -> Result<(), TableError> {
        match self {
            Self::Files(writer) => writer.complete_all(),
            Self::Export(writer) => writer.settle(),
        }
    }

    fn lost(&self) -> Tally {
        match self {
            Self::Files(writer) => writer.lost().clone(),
            Self::Export(writer) => writer.lost(),
        }
    }

    fn written(&self) -> Written {
        match self {
            Self::Files(writer) => writer.written().clone(),
            Self::Export(_) => Written::default(),
        }
    }

    fn exported(&self) -> Exported {
        match self {
            Self::Files(_) => Exported::default(),
            Self::Export(writer) => writer.exported(),
        }
    }
}

/// Flows and their target.
struct Flows {
    table: FlowTable,
    /// Flows that have ended and are not written yet.
    ended: Vec<FlowRow>,
    target: FlowTarget,
    evicted: u64,
    /// True if flows also end while no packet arrives: not those of a file.
    is_live: bool,
}

impl Flows {
    fn new(limits: FlowLimits, is_live: bool, target: FlowTarget) -> Self {
        Self { table: FlowTable::new(limits), ended: Vec::new(), target, evicted: 0, is_live }
    }

    fn write(&mut self, block: &[Headers], now: Instant) -> Result<(), TableError> {
        let mut written = Ok(());
        for headers in block {
            self.table.take(headers, &mut self.ended);
            // All flows may end at once, if the time jumps.
            if self.ended.len() >= BLOCK_PACKETS {
                written = written.and(self.write_ended(now, !self.is_live));
            }
        }
        written.and(self.write_ended(now, !self.is_live))
    }

    fn write_ended(&mut self, now: Instant, waits: bool) -> Result<(), TableError> {
        let evicted = self.ended.iter().filter(|row| row.reason == EndReason::LackOfResources).count();
        self.evicted += evicted as u64;
        let written = self.target.write(&self.ended, now, waits);
        self.ended.clear();
        written
    }

    fn complete_due(&mut self, now: Instant) -> Result<(), TableError> {
        let mut written = Ok(());
        if self.is_live {
            let now_ns = strait_os::clock::realtime_ns();
            while self.table.expire(now_ns, BLOCK_PACKETS, &mut self.ended) {
                written = written.and(self.write_ended(now, false));
            }
        }
        let waits = !self.is_live;
        written.and(self.write_ended(now, waits)).and_then(|()| self.target.complete_due(now, waits))
    }

    /// Ends all flows. The capture is over, or can be delayed.
    fn end_all(&mut self, now: Instant) -> Result<(), TableError> {
        let mut written = Ok(());
        while self.table.drain(BLOCK_PACKETS, &mut self.ended) || !self.ended.is_empty() {
            let result = self.write_ended(now, true);
            written = written.and(result);
        }
        written
    }

    fn complete(&mut self) -> Result<(), TableError> {
        let ended = self.end_all(Instant::now());
        ended.and(self.target.complete_all())
    }
}
