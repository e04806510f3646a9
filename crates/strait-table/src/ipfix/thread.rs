//! The connection to a collector, and the thread that sends messages on it.
//!
//! Over TCP a message waits while the connection fails, for at most [`Limits::retry_for`]; the
//! thread connects again with growing pauses. Over UDP a failed message is lost at once. A datagram
//! that the collector's machine refuses is reported with the next one: the last datagram is then
//! counted as lost. After the end of the capture all messages together have [`Limits::end`].

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strait_os::clock;
use strait_os::retry::{Attempts, Step};

use super::message::{Builder, Session};
use super::transport::{Collector, Connection, TCP_BYTES_MAX, Transport};
use crate::error::TableError;
use crate::export::{Carrier, Counts, Exporter, Limits, Message, Plan, Shared};

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

/// Opens the export. Over TCP the thread connects when it starts, and again while messages wait:
/// the collector may be down until then.
///
/// # Errors
/// Over UDP, if there is no route to the collector.
pub fn open(collector: Collector) -> Result<Exporter, TableError> {
    open_with(collector, Limits::default())
}

pub(super) fn open_with(collector: Collector, limits: Limits) -> Result<Exporter, TableError> {
    let connection = match collector.transport {
        Transport::Udp => Some(Connection::open(&collector, limits.write).map_err(|source| {
            TableError::Connect { collector: collector.name.clone(), source: Arc::new(source) }
        })?),
        Transport::Tcp => None,
    };
    let bytes_max = connection.as_ref().map(Connection::message_bytes_max);
    let shared = Shared::new(limits, bytes_max.unwrap_or(TCP_BYTES_MAX));
    let name = collector.to_string();
    let queue = if collector.transport == Transport::Udp { UDP_QUEUE } else { TCP_QUEUE };
    let thread = Thread {
        session: new_session(&collector),
        collector,
        shared: Arc::clone(&shared),
        connection,
        unconfirmed: None,
        attempts: Attempts::new(BACKOFF, BACKOFF_MAX),
        burst: 0,
    };
    Ok(Exporter::new(Plan {
        name,
        queue,
        new_builder: Box::new(|| Box::new(Builder::new())),
        carrier: Box::new(thread),
        shared,
    }))
}

fn new_session(collector: &Collector) -> Session {
    let again_every = (collector.transport == Transport::Udp).then_some(TEMPLATES_EVERY);
    Session::new(collector.domain, again_every, Instant::now())
}

/// The thread.
struct Thread {
    collector: Collector,
    shared: Arc<Shared>,
    connection: Option<Connection>,
    session: Session,
    /// Last datagram: the network may still report that it was refused.
    unconfirmed: Option<(Message, Counts)>,
    attempts: Attempts,
    /// Datagrams since the last pause.
    burst: u32,
}

impl Carrier for Thread {
    /// Connects. The first message attempts it again at once after a failure, and may wait for its
    /// full time.
    fn open(&mut self) {
        if let Err(error) = self.connect() {
            self.shared.set_failure(Some(error.to_string()));
        }
    }

    fn deliver(&mut self, mut message: Message, counts: &Counts) {
        loop {
            if self.shared.is_over() {
                return counts.lose(&message, Some(self.shared.late()));
            }
            if self.wait_to_retry() {
                return counts.lose(&message, self.shared.failure());
            }
            let Err(error) = self.connect().and_then(|()| self.send(&mut message)) else {
                self.attempts.succeed();
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

    /// Counts the last datagram as lost if the network has refused it.
    fn settle(&mut self) {
        if let Some(Err(error)) = self.connection.as_ref().map(Connection::take_error)
            && is_refusal(&error, self.collector.transport)
        {
            self.refuse(&error);
        }
    }
}

impl Thread {
    /// Waits until the next attempt. Returns true if messages have waited long enough.
    fn wait_to_retry(&self) -> bool {
        loop {
            match self.attempts.step(Instant::now(), self.shared.limits().retry_for) {
                Step::Attempt => return false,
                Step::Wait(pause) => std::thread::sleep(pause),
                Step::GiveUp => return true,
            }
        }
    }

    fn connect(&mut self) -> io::Result<()> {
        if self.connection.is_none() {
            let connection = Connection::open(&self.collector, self.shared.limits().write)?;
            self.shared.set_message_bytes_max(connection.message_bytes_max());
            self.session = new_session(&self.collector);
            self.connection = Some(connection);
        }
        Ok(())
    }

    /// Sends the templates that the collector needs, and the message.
    fn send(&mut self, message: &mut Message) -> io::Result<()> {
        let unix = (clock::realtime_ns() / 1_000_000_000) as u32;
        let bytes_max = self.shared.message_bytes_max();
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
        let shared = &self.shared;
        let is_over = || shared.is_over();
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
            self.attempts.fail(Instant::now());
        }
    }
}

/// Returns true if the error is that of an earlier datagram.
fn is_refusal(error: &io::Error, transport: Transport) -> bool {
    transport == Transport::Udp && error.kind() == ErrorKind::ConnectionRefused
}
