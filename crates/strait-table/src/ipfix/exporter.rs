//! The connection to a collector, and the thread that sends messages on it.
//!
//! Over TCP a message waits while the connection fails, for at most [`Limits::retry_for`]; the
//! thread connects again with growing pauses. Over UDP a failed message is lost at once. A datagram
//! that the collector's machine refuses is reported with the next one: the last datagram is then
//! counted as lost. After the end of the capture all messages together have [`Limits::end`].

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use strait_os::clock;

use super::message::{Message, Session};
use super::transport::{Collector, Connection, TCP_BYTES_MAX, Transport};
use super::writer::Counts;
use crate::error::TableError;
use crate::queue;

/// Messages of the queue: 6 MiB over UDP, 8 MiB over TCP.
const UDP_QUEUE: usize = 4096;
const TCP_QUEUE: usize = 512;
/// Interval at which templates are sent again over UDP.
const TEMPLATES_EVERY: Duration = Duration::from_mins(1);
/// Datagrams that are sent without a pause, and the pause: collectors often have buffers for a
/// hundred only.
const BURST: u32 = 16;
const PAUSE: Duration = Duration::from_millis(1);
/// First and longest pause between two attempts to connect.
const BACKOFF: Duration = Duration::from_millis(250);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Time for which messages wait while the connection fails.
    pub(super) retry_for: Duration,
    /// Time after which a write fails of which the collector takes nothing.
    pub(super) write: Duration,
    /// Time after the end of the capture from which messages are lost.
    pub(super) end: Duration,
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

/// Work for the thread.
pub(super) enum Task {
    Message(Message, Counts),
    /// Looks for reported losses, and then replies.
    Settle(SyncSender<()>),
}

/// State that the thread shows to the writers.
#[derive(Debug)]
struct Shared {
    message_bytes_max: AtomicUsize,
    /// Error of the last message; none if it was sent.
    failure: Mutex<Option<String>>,
    /// End of the capture.
    ended: OnceLock<Instant>,
}

impl Shared {
    fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_failure(&self, failure: Option<String>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }
}

/// Export to one collector. Several sinks may share it.
pub struct Exporter {
    collector: Collector,
    shared: Arc<Shared>,
    /// None after the end.
    sender: Option<SyncSender<Task>>,
    state: Mutex<State>,
}

/// State of the thread.
enum State {
    /// It has not started.
    Waiting(Box<Thread>, Receiver<Task>),
    Started(JoinHandle<()>),
    /// It could not be started, or has ended.
    Ended,
}

impl Exporter {
    /// Opens the export. Over TCP the thread connects; the collector may be down until then.
    ///
    /// # Errors
    /// Over UDP, if there is no route to the collector.
    pub fn open(collector: Collector) -> Result<Self, TableError> {
        Self::with(collector, Limits::default())
    }

    pub(super) fn with(collector: Collector, limits: Limits) -> Result<Self, TableError> {
        let connection = match collector.transport {
            Transport::Udp => Some(Connection::open(&collector, limits.write).map_err(|source| {
                TableError::Connect { collector: collector.name.clone(), source: Arc::new(source) }
            })?),
            Transport::Tcp => None,
        };
        let bytes_max = connection.as_ref().map(Connection::message_bytes_max);
        let shared = Arc::new(Shared {
            message_bytes_max: AtomicUsize::new(bytes_max.unwrap_or(TCP_BYTES_MAX)),
            failure: Mutex::new(None),
            ended: OnceLock::new(),
        });
        let queue = if connection.is_some() { UDP_QUEUE } else { TCP_QUEUE };
        let (sender, tasks) = sync_channel(queue);
        let thread = Thread {
            session: new_session(&collector),
            collector: collector.clone(),
            limits,
            shared: Arc::clone(&shared),
            connection,
            unconfirmed: None,
            stall: None,
            burst: 0,
        };
        let state = Mutex::new(State::Waiting(Box::new(thread), tasks));
        Ok(Self { collector, shared, sender: Some(sender), state })
    }

    /// Starts the thread, which gets the capabilities and the CPUs of this one.
    ///
    /// # Errors
    /// The system has too many threads.
    pub(crate) fn start(&self) -> Result<(), TableError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = match std::mem::replace(&mut *state, State::Ended) {
            State::Waiting(thread, tasks) => {
                let spawned =
                    std::thread::Builder::new().name("export".into()).spawn(move || thread.run(&tasks));
                let failed = |source| TableError::io("start a thread for", "the export", source);
                State::Started(spawned.map_err(failed)?)
            }
            other => other,
        };
        Ok(())
    }

    /// Begins the end of the export, for which there is a time limit. The first call counts.
    pub(crate) fn begin_end(&self) {
        self.shared.ended.get_or_init(Instant::now);
    }

    /// Returns the collector.
    pub fn collector(&self) -> &Collector {
        &self.collector
    }

    /// Returns the error of the last message; none if it was sent.
    pub fn failure(&self) -> Option<String> {
        self.shared.failure()
    }

    /// Returns the maximum length of the next message.
    pub(super) fn message_bytes_max(&self) -> usize {
        self.shared.message_bytes_max.load(Ordering::Relaxed)
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

fn new_session(collector: &Collector) -> Session {
    let again_every = (collector.transport == Transport::Udp).then_some(TEMPLATES_EVERY);
    Session::new(collector.domain, again_every, Instant::now())
}

/// Time since which the connection fails.
#[derive(Clone, Copy)]
struct Stall {
    since: Instant,
    /// Time of the next attempt, and the pause before it.
    next: Instant,
    pause: Duration,
}

/// The thread.
struct Thread {
    collector: Collector,
    limits: Limits,
    shared: Arc<Shared>,
    connection: Option<Connection>,
    session: Session,
    /// Last datagram: the network may still report that it was refused.
    unconfirmed: Option<(Message, Counts)>,
    stall: Option<Stall>,
    /// Datagrams since the last pause.
    burst: u32,
}

impl Thread {
    fn run(mut self, tasks: &Receiver<Task>) {
        while let Ok(task) = tasks.recv() {
            match task {
                Task::Message(message, counts) => self.deliver(message, &counts),
                Task::Settle(reply) => {
                    self.settle();
                    // The writer may have given up waiting.
                    let _ = reply.send(());
                }
            }
        }
    }

    /// Sends a message, or counts its flows as lost.
    fn deliver(&mut self, mut message: Message, counts: &Counts) {
        loop {
            if is_over(&self.shared, self.limits) {
                let late =
                    || format!("it has not taken all flows {} s after the end", self.limits.end.as_secs());
                return counts.lose(&message, Some(self.shared.failure().unwrap_or_else(late)));
            }
            if self.wait_to_retry() {
                return counts.lose(&message, self.shared.failure());
            }
            let Err(error) = self.connect().and_then(|()| self.send(&mut message)) else {
                self.stall = None;
                counts.add(&message);
                self.unconfirmed = Some((message, counts.clone()));
                return;
            };
            self.fail(&error);
            if self.collector.transport == Transport::Udp {
                return counts.lose(&message, self.shared.failure());
            }
        }
    }

    /// Waits until the next attempt. Returns true if messages have waited long enough.
    fn wait_to_retry(&self) -> bool {
        let Some(stall) = self.stall else { return false };
        loop {
            let now = Instant::now();
            let until_next = stall.next.saturating_duration_since(now);
            if until_next.is_zero() {
                return false;
            }
            let left = self.limits.retry_for.saturating_sub(now.saturating_duration_since(stall.since));
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(until_next.min(left));
        }
    }

    fn connect(&mut self) -> io::Result<()> {
        if self.connection.is_none() {
            let connection = Connection::open(&self.collector, self.limits.write)?;
            self.shared.message_bytes_max.store(connection.message_bytes_max(), Ordering::Relaxed);
            self.session = new_session(&self.collector);
            self.connection = Some(connection);
        }
        Ok(())
    }

    /// Sends the templates that the collector needs, and the message.
    fn send(&mut self, message: &mut Message) -> io::Result<()> {
        let unix = (clock::realtime_ns() / 1_000_000_000) as u32;
        let bytes_max = self.shared.message_bytes_max.load(Ordering::Relaxed);
        let mut is_refused = false;
        for templates in self.session.announce(message, bytes_max, (Instant::now(), unix)) {
            is_refused |= self.put(&templates)?;
        }
        let bytes = self.session.bytes(message, unix);
        is_refused |= self.put(bytes)?;
        self.session.sent(message);
        if !is_refused {
            self.shared.set_failure(None);
        }
        Ok(())
    }

    /// Sends the bytes of a message. Returns true if the network has refused an earlier one.
    fn put(&mut self, bytes: &[u8]) -> io::Result<bool> {
        self.pace();
        let Some(connection) = &mut self.connection else { return Err(ErrorKind::NotConnected.into()) };
        let (shared, limits) = (&self.shared, self.limits);
        let is_over = || is_over(shared, limits);
        let is_refused = match connection.send(bytes, is_over) {
            Ok(()) => false,
            Err(error) if is_refusal(&error, self.collector.transport) => {
                // The kernel has reported the earlier datagram instead of sending this one.
                connection.send(bytes, is_over)?;
                self.refuse(&error);
                true
            }
            Err(error) => return Err(error),
        };
        self.unconfirmed = None;
        Ok(is_refused)
    }

    /// Pauses after a burst of datagrams.
    fn pace(&mut self) {
        if self.collector.transport == Transport::Udp {
            self.burst += 1;
            if self.burst > BURST {
                self.burst = 1;
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Counts the last datagram as lost. Its collector needs the templates when it is up again.
    fn refuse(&mut self, error: &io::Error) {
        self.shared.set_failure(Some(error.to_string()));
        self.session.forget_templates();
        if let Some((message, counts)) = self.unconfirmed.take() {
            counts.refuse(&message, self.shared.failure());
        }
    }

    /// Closes the connection after an error, and plans the next attempt.
    fn fail(&mut self, error: &io::Error) {
        self.shared.set_failure(Some(error.to_string()));
        self.connection = None;
        if self.collector.transport == Transport::Tcp {
            let now = Instant::now();
            let pause = self.stall.map_or(BACKOFF, |stall| (stall.pause * 2).min(BACKOFF_MAX));
            let since = self.stall.map_or(now, |stall| stall.since);
            self.stall = Some(Stall { since, next: now + pause, pause });
        }
    }

    /// Counts the last datagram as lost if the network has refused it.
    fn settle(&mut self) {
        if let Some(Err(error)) = self.connection.as_ref().map(Connection::take_error)
            && is_refusal(&error, self.collector.transport)
        {
            self.refuse(&error);
        }
    }
}

/// Returns true if the end of the capture is too long ago to send further messages.
fn is_over(shared: &Shared, limits: Limits) -> bool {
    shared.ended.get().is_some_and(|ended| ended.elapsed() >= limits.end)
}

/// Returns true if the error is that of an earlier datagram.
fn is_refusal(error: &io::Error, transport: Transport) -> bool {
    transport == Transport::Udp && error.kind() == ErrorKind::ConnectionRefused
}
