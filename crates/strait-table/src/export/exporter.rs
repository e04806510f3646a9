//! The queue of an export, and the thread that takes messages from it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::message::{Build, Message};
use super::writer::Counts;
use crate::error::TableError;
use crate::queue;

/// Time limits of an export.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Time for which messages wait while the connection fails.
    pub(crate) retry_for: Duration,
    /// Time after which a write fails of which the receiver takes nothing.
    pub(crate) write: Duration,
    /// Time after the end of the capture from which messages are lost.
    pub(crate) end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            retry_for: Duration::from_secs(10),
            write: Duration::from_secs(10),
            end: Duration::from_mins(1),
        }
    }
}

/// Sends messages. The thread of an export has one.
pub(crate) trait Carrier: Send {
    /// Connects before the first message, so that a failure is known early.
    fn open(&mut self) {}
    /// Sends a message, or counts its flows as lost.
    fn deliver(&mut self, message: Message, counts: &Counts);
    /// Looks for losses that are reported late.
    fn settle(&mut self) {}
}

/// Work for the thread.
pub(super) enum Task {
    Message(Message, Counts),
    /// Looks for reported losses, and then replies.
    Settle(SyncSender<()>),
}

/// State that the thread shows to the writers.
#[derive(Debug)]
pub(crate) struct Shared {
    limits: Limits,
    message_bytes_max: AtomicUsize,
    /// Error of the last message; none if it was sent.
    failure: Mutex<Option<String>>,
    /// End of the capture.
    ended: OnceLock<Instant>,
}

impl Shared {
    pub(crate) fn new(limits: Limits, message_bytes_max: usize) -> Arc<Self> {
        let message_bytes_max = AtomicUsize::new(message_bytes_max);
        Arc::new(Self { limits, message_bytes_max, failure: Mutex::new(None), ended: OnceLock::new() })
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_failure(&self, failure: Option<String>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// Returns the maximum length of the next message.
    pub(crate) fn message_bytes_max(&self) -> usize {
        self.message_bytes_max.load(Ordering::Relaxed)
    }

    pub(crate) fn set_message_bytes_max(&self, bytes_max: usize) {
        self.message_bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Returns true if the end of the capture is too long ago to send further messages.
    pub(crate) fn is_over(&self) -> bool {
        self.ended.get().is_some_and(|ended| ended.elapsed() >= self.limits.end)
    }

    /// Returns the failure of messages that are lost because the time after the end is over.
    pub(crate) fn late(&self) -> String {
        let seconds = self.limits.end.as_secs();
        self.failure().unwrap_or_else(|| format!("it has not taken all flows {seconds} s after the end"))
    }
}

/// Parts of an export, which differ by its format.
pub(crate) struct Plan {
    /// Receiver, for messages to the user.
    pub(crate) name: String,
    /// Messages of the queue.
    pub(crate) queue: usize,
    /// Creates the builder of a sink.
    pub(crate) new_builder: Box<dyn Fn() -> Box<dyn Build> + Send + Sync>,
    pub(crate) carrier: Box<dyn Carrier>,
    pub(crate) shared: Arc<Shared>,
}

/// Export to one receiver. Several sinks may share it.
pub struct Exporter {
    name: String,
    new_builder: Box<dyn Fn() -> Box<dyn Build> + Send + Sync>,
    shared: Arc<Shared>,
    /// None after the end.
    sender: Option<SyncSender<Task>>,
    state: Mutex<State>,
    /// Sinks that have not ended.
    sinks: AtomicUsize,
}

/// A sink's share of an export. The time limit of the export begins when all of its sinks have
/// ended.
pub(crate) struct SinkShare {
    exporter: Arc<Exporter>,
    has_ended: bool,
}

impl SinkShare {
    /// Must be called for all sinks before the first of them ends.
    pub(crate) fn new(exporter: Arc<Exporter>) -> Self {
        exporter.sinks.fetch_add(1, Ordering::Relaxed);
        Self { exporter, has_ended: false }
    }

    pub(crate) fn start(&self) -> Result<(), TableError> {
        self.exporter.start()
    }

    /// Notes that the sink will get no further flows.
    pub(crate) fn end(&mut self) {
        let had_ended = std::mem::replace(&mut self.has_ended, true);
        if !had_ended && self.exporter.sinks.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.exporter.shared.ended.get_or_init(Instant::now);
        }
    }
}

impl Drop for SinkShare {
    fn drop(&mut self) {
        self.end();
    }
}

/// State of the thread.
enum State {
    /// It has not started.
    Waiting(Box<dyn Carrier>, Receiver<Task>),
    Started(JoinHandle<()>),
    /// It could not be started, or has ended.
    Ended,
}

impl Exporter {
    pub(crate) fn new(plan: Plan) -> Self {
        let Plan { name, queue, new_builder, carrier, shared } = plan;
        let (sender, tasks) = sync_channel(queue);
        let state = Mutex::new(State::Waiting(carrier, tasks));
        let (sender, sinks) = (Some(sender), AtomicUsize::new(0));
        Self { name, new_builder, shared, sender, state, sinks }
    }

    /// Starts the thread, which gets the capabilities and the CPUs of this one.
    ///
    /// # Errors
    /// The system has too many threads.
    pub(crate) fn start(&self) -> Result<(), TableError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = match std::mem::replace(&mut *state, State::Ended) {
            State::Waiting(carrier, tasks) => {
                let thread = std::thread::Builder::new().name("export".into());
                let failed = |source| TableError::io("start a thread for", "the export", source);
                State::Started(thread.spawn(move || run(carrier, &tasks)).map_err(failed)?)
            }
            other => other,
        };
        Ok(())
    }

    /// Returns the name of the receiver.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the error of the last message; none if it was sent.
    pub fn failure(&self) -> Option<String> {
        self.shared.failure()
    }

    /// Returns the builder of a sink.
    pub(super) fn new_builder(&self) -> Box<dyn Build> {
        (self.new_builder)()
    }

    /// Returns the maximum length of the next message.
    pub(super) fn message_bytes_max(&self) -> usize {
        self.shared.message_bytes_max()
    }

    /// Adds work to the queue. Returns it if the queue is full; with `waits`, waits instead.
    pub(super) fn send(&self, task: Task, waits: bool) -> Result<Option<Task>, TableError> {
        queue::send(self.sender.as_ref(), task, waits)
    }
}

impl Drop for Exporter {
    /// Waits until the thread has sent or lost all messages.
    fn drop(&mut self) {
        self.sender = None;
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::Started(thread) = std::mem::replace(state, State::Ended) {
            // A panic of the thread is reported by its own message.
            let _ = thread.join();
        }
    }
}

/// The thread.
fn run(mut carrier: Box<dyn Carrier>, tasks: &Receiver<Task>) {
    carrier.open();
    while let Ok(task) = tasks.recv() {
        match task {
            Task::Message(message, counts) => carrier.deliver(message, &counts),
            Task::Settle(reply) => {
                carrier.settle();
                // The writer may have given up waiting.
                let _ = reply.send(());
            }
        }
    }
}
