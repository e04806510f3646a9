//! Tables behind a bounded queue: the capture copies header fields into blocks, and a thread of its
//! own encodes and writes them.
//!
//! ```text
//! lanes ─ push ─▶ block ─ full or due ─▶ queue ─▶ thread: tables ─▶ files
//!                   ▲                                │
//!                   └──────── empty blocks ──────────┘
//! ```
//!
//! When the queue is full, a live capture drops the block and counts its packets by lane; a capture
//! from a file waits. After a failed write the thread drops and counts all further packets, and
//! the next call reports the failure.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use strait_ledger::Report;

use crate::error::TableError;
use crate::flows::{EndReason, FlowRow, FlowRows, FlowTable};
use crate::headers::{Headers, Packet};
use crate::ledger::{Intervals, LedgerRow, LedgerRows};
use crate::options::Options;
use crate::packets::{InterfaceNames, PacketRows};
pub use crate::recovery::Recovered;
use crate::schema::{FLOWS, LEDGER, PACKETS};
use crate::tally::Tally;
use crate::writer::{BATCH_ROWS, TableWriter, Written};

/// Packets of a block: 256 KiB of fields, which stay in the second-level cache.
const BLOCK_PACKETS: usize = 2048;
/// Blocks of the queue: half a second at a million packets a second, 64 MiB.
const QUEUE_BLOCKS: usize = 256;
/// Maximum time for which packets wait in an incomplete block.
const BLOCK_EVERY: Duration = Duration::from_millis(500);
/// Interval at which the thread looks for files to complete.
const TICK: Duration = Duration::from_millis(500);

/// Totals of all tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Completed files of the table `packets`.
    pub packets: Written,
    /// Completed files of the table `flows`.
    pub flows: Written,
    /// Flows that were evicted from the full table.
    pub flows_evicted: u64,
    /// Completed files of the table `ledger`.
    pub ledger: Written,
}

impl Summary {
    /// Adds the totals of another sink.
    pub fn add(&mut self, other: &Self) {
        self.packets.add(&other.packets);
        self.flows.add(&other.flows);
        self.flows_evicted += other.flows_evicted;
        self.ledger.add(&other.ledger);
    }
}

enum Message {
    Packets(Vec<Headers>),
    Ledger(Vec<LedgerRow>),
    /// Ends the flows: the next packets are those of another file.
    EndFlows,
    /// Ends the flows, completes the files of packets and flows, and then replies.
    Complete(SyncSender<()>),
}

/// State that the thread shows to the capture.
#[derive(Debug, Default)]
struct Shared {
    /// First failure of the thread.
    failure: Option<TableError>,
    /// Packets that the thread has lost.
    lost: Tally,
    /// Totals so far.
    summary: Summary,
}

/// Tables of a capture.
pub struct TableSink {
    /// None after the end.
    sender: Option<SyncSender<Message>>,
    empty: Receiver<Vec<Headers>>,
    block: Vec<Headers>,
    /// Time of the first check that found packets in the block.
    block_since: Option<Instant>,
    waits: bool,
    dropped: Tally,
    intervals: Intervals,
    shared: Arc<Mutex<Shared>>,
    /// The thread's part, until it starts.
    worker: Option<(Worker, Receiver<Message>)>,
    thread: Option<JoinHandle<()>>,
    recovered: Recovered,
}

impl TableSink {
    /// Recovers the files of killed captures. Packets are written after [`TableSink::start`].
    /// `now_ns` starts the first interval of the ledger; `names` returns the name of an interface.
    ///
    /// # Errors
    /// An option is out of range; the directory cannot be written to.
    pub fn open(options: Options, names: InterfaceNames, now_ns: u64) -> Result<Self, TableError> {
        options.check()?;
        let directory = &options.directory;
        std::fs::create_dir_all(directory).map_err(|source| TableError::io("create", directory, source))?;
        let recovered = crate::recovery::recover(directory, &options.sensor);
        let waits = options.waits;
        let (sender, messages) = sync_channel(QUEUE_BLOCKS);
        let (returned, empty) = sync_channel(QUEUE_BLOCKS);
        let shared = Arc::new(Mutex::new(Shared::default()));
        let worker = Worker::new(Arc::new(options), names, Arc::clone(&shared), returned);
        Ok(Self {
            sender: Some(sender),
            empty,
            block: Vec::with_capacity(BLOCK_PACKETS),
            block_since: None,
            waits,
            dropped: Tally::default(),
            intervals: Intervals::starting_at(now_ns),
            shared,
            worker: Some((worker, messages)),
            thread: None,
            recovered,
        })
    }

    /// Starts the thread, which gets the capabilities and the CPUs of this one. Packets wait in the
    /// queue until then.
    ///
    /// # Errors
    /// The system has too many threads.
    pub fn start(&mut self) -> Result<(), TableError> {
        let Some((worker, messages)) = self.worker.take() else { return Ok(()) };
        let thread = std::thread::Builder::new().name("tables".into()).spawn(move || worker.run(&messages));
        let failed = |source| TableError::io("start a thread for", "tables", source);
        self.thread = Some(thread.map_err(failed)?);
        Ok(())
    }

    /// Returns the files of killed captures.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// Takes the headers of a packet.
    ///
    /// # Errors
    /// The thread has failed, which is checked once a block.
    #[inline]
    pub fn push(&mut self, packet: &Packet<'_>) -> Result<(), TableError> {
        self.block.push(Headers::of(packet));
        if self.block.len() < BLOCK_PACKETS { Ok(()) } else { self.send_block(self.waits) }
    }

    /// Sends an incomplete block if its packets have waited long enough. Call it when no packet is
    /// ready, and a few times a second.
    pub fn flush_due(&mut self, now: Instant) -> Result<(), TableError> {
        if self.block.is_empty() {
            return self.check();
        }
        let since = *self.block_since.get_or_insert(now);
        if now.saturating_duration_since(since) < BLOCK_EVERY { Ok(()) } else { self.send_block(self.waits) }
    }

    #[cold]
    fn send_block(&mut self, waits: bool) -> Result<(), TableError> {
        self.block_since = None;
        let empty = self.empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(BLOCK_PACKETS));
        let block = std::mem::replace(&mut self.block, empty);
        if let Some(Message::Packets(block)) = self.send(Message::Packets(block), waits)? {
            self.drop_block(block);
        }
        self.check()
    }

    /// Counts the packets of a block as lost, and uses its memory for the next one.
    fn drop_block(&mut self, mut block: Vec<Headers>) {
        for run in block.chunk_by(|one, next| one.lane == next.lane) {
            self.dropped.add(run[0].lane, run.len() as u64);
        }
        block.clear();
        self.block = block;
    }

    /// Sends a message. Returns it if the queue is full.
    fn send(&self, message: Message, waits: bool) -> Result<Option<Message>, TableError> {
        let Some(sender) = &self.sender else { return Err(TableError::ThreadEnded) };
        if waits {
            return sender.send(message).map(|()| None).map_err(|_| TableError::ThreadEnded);
        }
        match sender.try_send(message) {
            Ok(()) => Ok(None),
            Err(TrySendError::Full(message)) => Ok(Some(message)),
            Err(TrySendError::Disconnected(_)) => Err(TableError::ThreadEnded),
        }
    }

    /// Returns the failure of the thread.
    fn check(&self) -> Result<(), TableError> {
        lock(&self.shared).failure.clone().map_or(Ok(()), Err)
    }

    /// Adds rows to the table `ledger`. If the queue of a live capture is full, the next rows include
    /// these counts.
    pub fn ledger(&mut self, report: &Report, now_ns: u64) {
        let mut intervals = self.intervals.clone();
        let rows = intervals.rows(report, now_ns);
        if matches!(self.send(Message::Ledger(rows), self.waits), Ok(None)) {
            self.intervals = intervals;
        }
    }

    /// Ends all flows, as the next packets are those of another file.
    ///
    /// # Errors
    /// The thread has failed.
    pub fn end_flows(&mut self) -> Result<(), TableError> {
        if !self.block.is_empty() {
            self.send_block(true)?;
        }
        self.send(Message::EndFlows, true)?;
        self.check()
    }

    /// Ends the flows and completes the files of packets and flows, and waits for it. After this
    /// [`TableSink::lost`] is final.
    ///
    /// # Errors
    /// A packet could not be stored.
    pub fn complete(&mut self) -> Result<(), TableError> {
        self.start()?;
        let sent = if self.block.is_empty() { Ok(()) } else { self.send_block(true) };
        let (reply, replied) = sync_channel(1);
        self.send(Message::Complete(reply), true)?;
        replied.recv().map_err(|_| TableError::ThreadEnded)?;
        sent.and_then(|()| self.check())
    }

    /// Returns the packets of a lane that are lost.
    pub fn lost_in(&self, lane: u32) -> u64 {
        self.dropped.of(lane) + lock(&self.shared).lost.of(lane)
    }

    /// Returns the packets that are lost.
    pub fn lost(&self) -> u64 {
        self.dropped.total() + lock(&self.shared).lost.total()
    }

    /// Returns the bytes of completed files.
    pub fn written_bytes(&self) -> u64 {
        let shared = lock(&self.shared);
        let Summary { packets, flows, ledger, .. } = &shared.summary;
        packets.bytes + flows.bytes + ledger.bytes
    }

    /// Adds the last rows to the table `ledger`, completes all files and ends the thread.
    ///
    /// # Errors
    /// A file could not be completed. A failure that an earlier call has returned is not returned
    /// again.
    pub fn close(mut self, report: &Report, now_ns: u64) -> Result<Summary, TableError> {
        self.start()?;
        let failed_before = self.check().is_err();
        let rows = self.intervals.rows(report, now_ns);
        let sent = self.send(Message::Ledger(rows), true);
        self.sender = None;
        let joined = self.thread.take().map_or(Ok(()), JoinHandle::join);
        sent?;
        joined.map_err(|_| TableError::ThreadEnded)?;
        let checked = self.check();
        let summary = lock(&self.shared).summary.clone();
        if failed_before { Ok(summary) } else { checked.map(|()| summary) }
    }
}

impl Drop for TableSink {
    /// Completes all files of a sink that was not closed.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is reported by its own message.
            let _ = thread.join();
        }
    }
}

/// The thread of the tables.
struct Worker {
    packets: Option<TableWriter<PacketRows>>,
    flows: Option<Flows>,
    ledger: TableWriter<LedgerRows>,
    shared: Arc<Mutex<Shared>>,
    empty: SyncSender<Vec<Headers>>,
}

impl Worker {
    fn new(
        options: Arc<Options>,
        names: InterfaceNames,
        shared: Arc<Mutex<Shared>>,
        empty: SyncSender<Vec<Headers>>,
    ) -> Self {
        let flows = options.selected.flows.then(|| Flows::new(Arc::clone(&options), Arc::clone(&names)));
        let columns = options.columns.clone();
        let new_packets = move || PacketRows::new(&columns, Arc::clone(&names), BATCH_ROWS);
        let packets = TableWriter::new(&PACKETS, Arc::clone(&options), Box::new(new_packets));
        let for_ledger = Arc::clone(&options);
        let new_ledger = move || LedgerRows::new(Arc::clone(&for_ledger));
        Self {
            packets: options.selected.packets.then_some(packets),
            flows,
            ledger: TableWriter::new(&LEDGER, options, Box::new(new_ledger)),
            shared,
            empty,
        }
    }

    fn run(mut self, messages: &Receiver<Message>) {
        let mut checked = Instant::now();
        loop {
            let message = match messages.recv_timeout(TICK) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let now = Instant::now();
            if let Some(message) = message {
                self.take(message, now);
            }
            if now.saturating_duration_since(checked) >= TICK {
                checked = now;
                let due = self.complete_due(now);
                self.publish(due);
            }
        }
        let ended = self.complete().and(self.ledger.complete_all());
        self.publish(ended);
    }

    fn take(&mut self, message: Message, now: Instant) {
        match message {
            Message::Packets(mut block) => {
                if let Err(error) = self.write(&block, now) {
                    self.publish(Err(error));
                }
                block.clear();
                // The capture allocates another block if this one is dropped.
                let _ = self.empty.try_send(block);
            }
            Message::Ledger(rows) => {
                let result = self.ledger.write(&rows, now);
                self.publish(result);
            }
            Message::EndFlows => {
                let result = self.flows.as_mut().map_or(Ok(()), |flows| flows.end_all(now));
                self.publish(result);
            }
            Message::Complete(reply) => {
                let result = self.complete();
                self.publish(result);
                // The capture may have given up waiting.
                let _ = reply.send(());
            }
        }
    }

    fn write(&mut self, block: &[Headers], now: Instant) -> Result<(), TableError> {
        let packets = self.packets.as_mut().map_or(Ok(()), |packets| packets.write(block, now));
        let flows = self.flows.as_mut().map_or(Ok(()), |flows| flows.write(block, now));
        packets.and(flows)
    }

    /// Completes the files that have reached their age.
    fn complete_due(&mut self, now: Instant) -> Result<(), TableError> {
        let packets = self.packets.as_mut().map_or(Ok(()), |packets| packets.complete_due(now));
        let flows = self.flows.as_mut().map_or(Ok(()), |flows| flows.complete_due(now));
        packets.and(flows).and(self.ledger.complete_due(now))
    }

    /// Ends all flows, and completes the files of packets and flows.
    fn complete(&mut self) -> Result<(), TableError> {
        let packets = self.packets.as_mut().map_or(Ok(()), TableWriter::complete_all);
        let flows = self.flows.as_mut().map_or(Ok(()), Flows::complete);
        packets.and(flows)
    }

    /// Shows the result of a step and the totals to the capture.
    fn publish(&self, result: Result<(), TableError>) {
        let mut shared = lock(&self.shared);
        if let Err(error) = result {
            shared.failure.get_or_insert(error);
        }
        let Self { packets, flows, ledger, .. } = self;
        // A packet that is in its table is not lost, even if the row of its flow is.
        let lost =
            packets.as_ref().map(TableWriter::lost).or(flows.as_ref().map(|flows| flows.writer.lost()));
        shared.lost = lost.cloned().unwrap_or_default();
        shared.summary = Summary {
            packets: packets.as_ref().map(|packets| packets.written().clone()).unwrap_or_default(),
            flows: flows.as_ref().map(|flows| flows.writer.written().clone()).unwrap_or_default(),
            flows_evicted: flows.as_ref().map_or(0, |flows| flows.evicted),
            ledger: ledger.written().clone(),
        };
    }
}

/// Flows and their files.
struct Flows {
    table: FlowTable,
    /// Flows that have ended and are not written yet.
    ended: Vec<FlowRow>,
    writer: TableWriter<FlowRows>,
    evicted: u64,
    /// True if flows also end while no packet arrives: not those of a file.
    is_live: bool,
}

impl Flows {
    fn new(options: Arc<Options>, names: InterfaceNames) -> Self {
        Self {
            table: FlowTable::new(options.flows),
            ended: Vec::new(),
            evicted: 0,
            is_live: !options.waits,
            writer: TableWriter::new(&FLOWS, options, Box::new(move || FlowRows::new(Arc::clone(&names)))),
        }
    }

    fn write(&mut self, block: &[Headers], now: Instant) -> Result<(), TableError> {
        let mut written = Ok(());
        for headers in block {
            self.table.take(headers, &mut self.ended);
            // All flows may end at once, if the time jumps.
            if self.ended.len() >= BLOCK_PACKETS {
                written = written.and(self.write_ended(now));
            }
        }
        written.and(self.write_ended(now))
    }

    fn write_ended(&mut self, now: Instant) -> Result<(), TableError> {
        let evicted = self.ended.iter().filter(|row| row.reason == EndReason::LackOfResources).count();
        self.evicted += evicted as u64;
        let written = self.writer.write(&self.ended, now);
        self.ended.clear();
        written
    }

    fn complete_due(&mut self, now: Instant) -> Result<(), TableError> {
        let mut written = Ok(());
        if self.is_live {
            let now_ns = strait_os::clock::realtime_ns();
            while self.table.expire(now_ns, BLOCK_PACKETS, &mut self.ended) {
                written = written.and(self.write_ended(now));
            }
        }
        written.and(self.write_ended(now)).and_then(|()| self.writer.complete_due(now))
    }

    fn end_all(&mut self, now: Instant) -> Result<(), TableError> {
        let mut written = Ok(());
        while self.table.drain(BLOCK_PACKETS, &mut self.ended) || !self.ended.is_empty() {
            let result = self.write_ended(now);
            written = written.and(result);
        }
        written
    }

    fn complete(&mut self) -> Result<(), TableError> {
        let ended = self.end_all(Instant::now());
        ended.and(self.writer.complete_all())
    }
}

/// Locks the shared state, also after a panic of the thread: its counts stay valid.
fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
