//! Messages, and the counts of those that are in no table.

use crate::headers::Headers;
use crate::schema::{DNS, HTTP, TLS, Table};

/// Maximum bytes of a message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// Protocol of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Application {
    /// Queries and responses of DNS.
    Dns,
    /// Hellos of TLS.
    Tls,
    /// Heads of HTTP/1.
    Http,
}

impl Application {
    /// Every protocol.
    pub const ALL: [Self; 3] = [Self::Dns, Self::Tls, Self::Http];

    /// Returns the table of its messages.
    pub fn table(self) -> &'static Table {
        match self {
            Self::Dns => &DNS,
            Self::Tls => &TLS,
            Self::Http => &HTTP,
        }
    }
}

/// Selection of tables of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelectedMessages {
    /// Write the table `dns`.
    pub dns: bool,
    /// Write the table `tls`.
    pub tls: bool,
    /// Write the table `http`.
    pub http: bool,
}

impl SelectedMessages {
    /// Returns the selection of one table.
    pub(crate) fn only(application: Application) -> Self {
        let is = |other| application == other;
        Self { dns: is(Application::Dns), tls: is(Application::Tls), http: is(Application::Http) }
    }

    pub(crate) fn has(self, application: Application) -> bool {
        match application {
            Application::Dns => self.dns,
            Application::Tls => self.tls,
            Application::Http => self.http,
        }
    }

    pub(crate) fn is_empty(self) -> bool {
        !(self.dns || self.tls || self.http)
    }
}

/// Complete message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) application: Application,
    /// Headers of its first packet.
    pub(crate) headers: Headers,
    pub(crate) bytes: Vec<u8>,
}

impl Message {
    /// Returns the bytes of memory that it takes: more for its headers than for a short message.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }
}

/// Counts of messages that are in no table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// A segment was lost, out of order, or not in the file.
    pub gaps: u64,
    /// Too many messages were incomplete.
    pub evicted: u64,
    /// The message was too long.
    pub too_long: u64,
    /// The snaplen has cut a packet.
    pub cut: u64,
    /// The parser has refused the message.
    pub malformed: u64,
    /// The queue was full, as for the packets of the message.
    pub queue_full: u64,
}

impl Missed {
    /// Adds the counts of another capture.
    pub fn add(&mut self, other: &Self) {
        self.gaps += other.gaps;
        self.evicted += other.evicted;
        self.too_long += other.too_long;
        self.cut += other.cut;
        self.malformed += other.malformed;
        self.queue_full += other.queue_full;
    }

    /// Returns the counts with their names.
    pub fn named(&self) -> [(&'static str, u64); 6] {
        let Self { gaps, evicted, too_long, cut, malformed, queue_full } = *self;
        [
            ("gaps", gaps),
            ("evicted", evicted),
            ("too long", too_long),
            ("cut", cut),
            ("malformed", malformed),
            ("queue full", queue_full),
        ]
    }
}
