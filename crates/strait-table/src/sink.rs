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

mod worker;

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use strait_ledger::Report;
use strait_os::output;

use self::worker::Worker;
use crate::error::TableError;
use crate::export::{Exported, Exporter, SinkShare};
use crate::extras::Extras;
use crate::flows::FlowLimits;
use crate::headers::{Headers, Packet};
use crate::ledger::{Intervals, LedgerRow};
use crate::messages::{Assembly, Message, Missed, SelectedMessages};
use crate::options::Options;
use crate::packets::InterfaceNames;
use crate::queue;
pub use crate::recovery::Recovered;
use crate::tally::Tally;
use crate::writer::Written;

/// Packets of a block: 256 KiB of fields, which stay in the second-level cache.
const BLOCK_PACKETS: usize = 2048;
/// Bytes of frames and messages, with the headers of each message, after which a block is sent. The
/// last packet can complete 64 KiB of messages, each of at least 14 bytes.
const BLOCK_BYTES: usize = 256 << 10;
/// Blocks of the queue: half a second at a million packets a second, 64 MiB, and at most 289 MiB
/// for frames and messages.
const QUEUE_BLOCKS: usize = 256;
/// Blocks of the queue if a full queue delays the reader: few, so that they stay in the cache.
const WAITING_BLOCKS: usize = 4;
/// Maximum time for which packets wait in an incomplete block.
const BLOCK_EVERY: Duration = Duration::from_millis(500);

/// Totals of all tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Completed files of the table `packets`.
    pub packets: Written,
    /// Completed files of the table `flows`.
    pub flows: Written,
    /// Flows that went to a collector or a broker instead.
    pub exported: Exported,
    /// Flows that were evicted from the full table.
    pub flows_evicted: u64,
    /// Completed files of the tables of messages.
    pub messages: Written,
    /// Messages that are in no table.
    pub missed: Missed,
    /// Completed files of the table `ledger`.
    pub ledger: Written,
}

impl Summary {
    /// Returns the totals of all completed files.
    pub fn files(&self) -> Written {
        let mut files = Written::default();
        for table in [&self.packets, &self.flows, &self.messages, &self.ledger] {
            files.add(table);
        }
        files
    }

    /// Returns the bytes of completed files and sent messages.
    pub fn bytes(&self) -> u64 {
        self.files().bytes + self.exported.bytes
    }

    /// Adds the totals of another sink.
    pub fn add(&mut self, other: &Self) {
        self.packets.add(&other.packets);
        self.flows.add(&other.flows);
        self.exported.add(&other.exported);
        self.flows_evicted += other.flows_evicted;
        self.messages.add(&other.messages);
        self.missed.add(&other.missed);
        self.ledger.add(&other.ledger);
    }
}

/// Options of the export of flows.
#[derive(Clone)]
pub struct ExportOptions {
    /// Export, which several sinks may share.
    pub exporter: Arc<Exporter>,
    /// Limits of the table of flows.
    pub flows: FlowLimits,
    /// True if a full queue delays the capture, which then loses no packet: for files.
    pub waits: bool,
}

/// Packets that go through the queue together.
#[derive(Debug, Default)]
struct Block {
    packets: Vec<Headers>,
    extras: Extras,
    messages: Vec<Message>,
    message_bytes: usize,
}

impl Block {
    fn new() -> Self {
        Self { packets: Vec::with_capacity(BLOCK_PACKETS), ..Self::default() }
    }

    fn is_full(&self) -> bool {
        self.packets.len() >= BLOCK_PACKETS || self.extras.bytes() + self.message_bytes >= BLOCK_BYTES
    }

    /// Adds its packets to a tally.
    fn count(&self, tally: &mut Tally) {
        for run in self.packets.chunk_by(|one, next| one.lane == next.lane) {
            tally.add(run[0].lane, run.len() as u64);
        }
    }

    fn clear(&mut self) {
        self.packets.clear();
        self.extras.clear();
        self.messages.clear();
        self.message_bytes = 0;
    }
}

/// Work for the thread.
enum Task {
    Packets(Block),
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
    /// Packets that did not fit into the queue.
    dropped: Tally,
    /// Totals so far.
    summary: Summary,
}

/// Counts of a sink, which another thread reads while the capture runs.
#[derive(Clone, Debug)]
pub struct SinkCounts(Arc<Mutex<Shared>>);

impl SinkCounts {
    /// Returns the packets that are lost.
    pub fn lost(&self) -> u64 {
        let shared = lock(&self.0);
        shared.dropped.total() + shared.lost.total()
    }

    /// Returns the totals so far.
    pub fn summary(&self) -> Summary {
        lock(&self.0).summary.clone()
    }

    /// Returns true if all further packets are lost.
    pub fn has_failed(&self) -> bool {
        lock(&self.0).failure.is_some()
    }
}

/// Tables of a capture.
pub struct TableSink {
    /// None after the end.
    sender: Option<SyncSender<Task>>,
    empty: Receiver<Block>,
    block: Block,
    /// Bytes of a packet in the column `frame`, if a column needs more than headers.
    extras: Option<usize>,
    assembly: Assembly,
    /// Time of the first check that found packets in the block.
    block_since: Option<Instant>,
    waits: bool,
    intervals: Intervals,
    shared: Arc<Mutex<Shared>>,
    /// The thread's part, until it starts.
    worker: Option<(Worker, Receiver<Task>)>,
    thread: Option<JoinHandle<()>>,
    export: Option<SinkShare>,
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
        output::create_directory(directory).map_err(|source| TableError::io("create", directory, source))?;
        let recovered = crate::recovery::recover(directory, &options.sensor);
        let extras = options.columns.need_extras().then_some(options.frame_bytes as usize);
        let assembly = Assembly::new(options.selected.messages);
        let waits = options.waits;
        let worker = |shared, empty| Worker::new(Arc::new(options), names, shared, empty);
        let mut sink = Self::with(worker, waits, now_ns);
        (sink.extras, sink.assembly, sink.recovered) = (extras, assembly, recovered);
        Ok(sink)
    }

    /// Exports flows instead of writing files. Otherwise like [`TableSink::open`].
    pub fn export(options: ExportOptions, names: InterfaceNames, now_ns: u64) -> Self {
        let worker = |shared, empty| Worker::for_export(&options, names, shared, empty);
        let mut sink = Self::with(worker, options.waits, now_ns);
        sink.export = Some(SinkShare::new(options.exporter));
        sink
    }

    fn with(
        worker: impl FnOnce(Arc<Mutex<Shared>>, SyncSender<Block>) -> Worker,
        waits: bool,
        now_ns: u64,
    ) -> Self {
        let blocks = if waits { WAITING_BLOCKS } else { QUEUE_BLOCKS };
        let (sender, tasks) = sync_channel(blocks);
        let (returned, empty) = sync_channel(blocks);
        let shared = Arc::new(Mutex::new(Shared::default()));
        Self {
            sender: Some(sender),
            empty,
            block: Block::new(),
            extras: None,
            assembly: Assembly::new(SelectedMessages::default()),
            block_since: None,
            waits,
            intervals: Intervals::starting_at(now_ns),
            worker: Some((worker(Arc::clone(&shared), returned), tasks)),
            shared,
            thread: None,
            export: None,
            recovered: Recovered::default(),
        }
    }

    /// Starts the thread, which gets the capabilities and the CPUs of this one. Packets wait in the
    /// queue until then.
    ///
    /// # Errors
    /// The system has too many threads.
    pub fn start(&mut self) -> Result<(), TableError> {
        let Some((worker, tasks)) = self.worker.take() else { return Ok(()) };
        self.export.as_ref().map_or(Ok(()), SinkShare::start)?;
        let thread = std::thread::Builder::new().name("tables".into()).spawn(move || worker.run(&tasks));
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
        let Block { packets, extras, messages, message_bytes } = &mut self.block;
        let headers = packets.push_mut(Headers::default());
        let segment = headers.read(packet);
        if let Some(frame_bytes) = self.extras {
            extras.push(packet, frame_bytes, headers);
        }
        if self.assembly.is_needed() {
            let before = messages.len();
            self.assembly.take(headers, segment, messages);
            let added = messages.iter().skip(before);
            *message_bytes += added.map(Message::memory_bytes).sum::<usize>();
        }
        if self.block.is_full() { self.send_block(self.waits) } else { Ok(()) }
    }

    /// Sends an incomplete block if its packets have waited long enough. Call it when no packet is
    /// ready, and a few times a second.
    pub fn flush_due(&mut self, now: Instant) -> Result<(), TableError> {
        if self.block.packets.is_empty() {
            return self.check();
        }
        let since = *self.block_since.get_or_insert(now);
        if now.saturating_duration_since(since) < BLOCK_EVERY { Ok(()) } else { self.send_block(self.waits) }
    }

    #[cold]
    fn send_block(&mut self, waits: bool) -> Result<(), TableError> {
        self.block_since = None;
        let empty = self.empty.try_recv().unwrap_or_else(|_| Block::new());
        let block = std::mem::replace(&mut self.block, empty);
        if let Some(Task::Packets(block)) = self.send(Task::Packets(block), waits)? {
            self.drop_block(block);
        }
        self.check()
    }

    /// Counts the packets of a block as lost, and uses its memory for the next one.
    fn drop_block(&mut self, mut block: Block) {
        block.count(&mut lock(&self.shared).dropped);
        self.assembly.count_lost(block.messages.len());
        block.clear();
        self.block = block;
    }

    /// Sends work. Returns it if the queue is full.
    fn send(&self, task: Task, waits: bool) -> Result<Option<Task>, TableError> {
        queue::send(self.sender.as_ref(), task, waits)
    }

    /// Returns the failure of the thread.
    fn check(&self) -> Result<(), TableError> {
        lock(&self.shared).failure.clone().map_or(Ok(()), Err)
    }

    /// Adds rows to the table `ledger`. If the queue of a live capture is full, the next rows
    /// include these counts.
    pub fn ledger(&mut self, report: &Report, now_ns: u64) {
        let mut intervals = self.intervals.clone();
        let rows = intervals.rows(report, now_ns);
        if matches!(self.send(Task::Ledger(rows), self.waits), Ok(None)) {
            self.intervals = intervals;
        }
    }

    /// Adds the last rows of a file, whose lanes have ended, to the table `ledger`.
    pub fn ledger_of_file(&mut self, report: &Report, now_ns: u64) {
        self.ledger(report, now_ns);
        self.intervals.end(report);
    }

    /// Adds rows with the difference between two reports of a file that has ended.
    pub fn correct_ledger(&mut self, before: &Report, now: &Report, now_ns: u64) {
        self.intervals.resume(before);
        self.ledger_of_file(now, now_ns);
    }

    /// Ends all flows and messages, as the next packets are those of another file.
    ///
    /// # Errors
    /// The thread has failed.
    pub fn end_flows(&mut self) -> Result<(), TableError> {
        self.assembly.end();
        if !self.block.packets.is_empty() {
            self.send_block(true)?;
        }
        self.send(Task::EndFlows, true)?;
        self.check()
    }

    /// Ends the flows and completes the files of packets and flows, and waits for it. After this
    /// [`TableSink::lost_packets`] is final.
    ///
    /// # Errors
    /// A packet could not be stored.
    pub fn complete(&mut self) -> Result<(), TableError> {
        self.start()?;
        self.end_export();
        let sent = if self.block.packets.is_empty() { Ok(()) } else { self.send_block(true) };
        let (reply, replied) = sync_channel(1);
        self.send(Task::Complete(reply), true)?;
        replied.recv().map_err(|_| TableError::ThreadEnded)?;
        sent.and_then(|()| self.check())
    }

    fn end_export(&mut self) {
        if let Some(export) = &mut self.export {
            export.end();
        }
    }

    /// Returns the packets that are lost, by lane.
    pub fn lost_packets(&self) -> Tally {
        let shared = lock(&self.shared);
        let mut lost = shared.dropped.clone();
        lost.add_all(&shared.lost);
        lost
    }

    /// Returns the bytes of completed files and sent messages.
    pub fn written_bytes(&self) -> u64 {
        lock(&self.shared).summary.bytes()
    }

    /// Returns the counts, for another thread.
    pub fn counts(&self) -> SinkCounts {
        SinkCounts(Arc::clone(&self.shared))
    }

    /// Adds the last rows to the table `ledger`, completes all files and ends the thread.
    ///
    /// # Errors
    /// A file could not be completed. A failure that an earlier call has returned is not returned
    /// again.
    pub fn close(mut self, report: &Report, now_ns: u64) -> Result<Summary, TableError> {
        self.start()?;
        self.end_export();
        let failed_before = self.check().is_err();
        let rows = self.intervals.rows(report, now_ns);
        let sent = self.send(Task::Ledger(rows), true);
        self.sender = None;
        let joined = self.thread.take().map_or(Ok(()), JoinHandle::join);
        sent?;
        joined.map_err(|_| TableError::ThreadEnded)?;
        let checked = self.check();
        let mut summary = lock(&self.shared).summary.clone();
        summary.missed.add(self.assembly.missed());
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

/// Locks the shared state, also after a panic of the thread: its counts stay valid.
fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
