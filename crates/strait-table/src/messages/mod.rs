//! Messages of applications: DNS, the hellos of TLS, and the heads of HTTP/1, for the tables `dns`,
//! `tls` and `http`.
//!
//! ```text
//! packet ─ assembly ─ bounded bytes of a message ─▶ queue ─▶ parser ─▶ row
//! ```
//!
//! [`assembly`] runs in the capture, which cannot keep payloads: it copies only messages. A message
//! of TCP begins with a segment that looks like one, and continues with the segments that follow in
//! order. A complete message whose segment is sent again is another one. The parsers are those of
//! `strait-packet` and `strait-http`.
//!
//! | limit | value | beyond it |
//! |---|---|---|
//! | bytes of a message | 16 KiB | missed: too long |
//! | messages that are incomplete at a time | 4096, so 64 MiB | missed: evicted by another one |
//! | segments out of order or lost in a message | 0 | missed: a gap |
//! | packets cut by the snaplen in a message | 0 | missed: cut |
//! | bytes of a text | 1024 | the text is cut |
//! | answers of DNS in a row | 64 | left out |
//! | bytes of messages in a block of the queue | 256 KiB | the block is sent |
//!
//! Every missed message is counted, and so is a message that its parser refuses.

mod assembly;
mod dns;
mod http;
mod rows;
#[cfg(test)]
mod tests;
mod tls;

pub(crate) use self::assembly::Assembly;
pub use self::rows::{MessageRow, MessageRows};
use crate::headers::Headers;
use crate::schema::{DNS, HTTP, TLS, Table};

/// Maximum bytes of a message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// Protocol of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Application {
    Dns,
    Tls,
    Http,
}

impl Application {
    pub(crate) const ALL: [Self; 3] = [Self::Dns, Self::Tls, Self::Http];

    pub(crate) fn table(self) -> &'static Table {
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
    /// Parses the message.
    pub(crate) fn row(&self) -> Option<MessageRow> {
        match self.application {
            Application::Dns => dns::row(self),
            Application::Tls => tls::row(self),
            Application::Http => http::row(self),
        }
    }
}

/// Parses bytes as a message of each protocol, as the tables do: for a fuzzer.
pub fn parse_all(headers: &Headers, bytes: &[u8]) -> usize {
    let bytes = &bytes[..bytes.len().min(MESSAGE_BYTES_MAX)];
    let message = |application| Message { application, headers: *headers, bytes: bytes.to_vec() };
    Application::ALL.into_iter().filter_map(|application| message(application).row()).count()
}

/// Counts of messages that are in no table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// A segment was lost or out of order.
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
