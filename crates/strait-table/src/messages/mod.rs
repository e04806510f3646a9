//! Messages of applications: DNS, the hellos of TLS, and the heads of HTTP/1, for the tables `dns`,
//! `tls` and `http`.
//!
//! ```text
//! packet ─ assembly ─ bounded bytes of a message ─▶ queue ─▶ parser ─▶ row
//! ```
//!
//! [`assembly`] runs in the capture, which cannot keep payloads: it copies only messages. A message
//! of TCP begins with a segment that looks like one, and continues with the segments that follow in
//! order. A message whose segment is sent again has one row, unless another stream took its place.
//! The parsers are those of `strait-packet` and `strait-http`. [`quic`] decrypts the first packets
//! of QUIC, which have hellos of TLS.
//!
//! | limit | value | beyond it |
//! |---|---|---|
//! | bytes of a message | 16 KiB | missed: too long |
//! | messages that are incomplete at a time | 4096, so 64 MiB | missed: evicted by another one |
//! | streams with a known last message | the same 4096, in a file | a second row |
//! | segments out of order or lost in a message | 0 | missed: a gap |
//! | packets cut by the snaplen in a message | 0 | missed: cut |
//! | segments out of order, lost or cut in a stream of DNS | 0 | one missed, until a SYN |
//! | bytes of a segment of DNS over TCP | 64 KiB | missed: too long, until a SYN |
//! | connections of QUIC with a state | 1024, so 64 MiB | missed: evicted by another one |
//! | CRYPTO frames in a packet of QUIC | 128 | missed: too long |
//! | ranges of a hello with gaps between them | 64 | missed: too long |
//! | hellos of QUIC of each side | 2 | ignored |
//! | packets of QUIC in a datagram | 16 | ignored |
//! | packets of QUIC in a second for which keys are derived in vain | 10,000 | missed: a gap |
//! | bytes of a text | 1024 | the text is cut, answers of DNS are left out |
//! | answers of DNS in a row | 64 | left out |
//! | bytes of texts in a batch of rows | 16 MiB | the batch is encoded |
//! | bytes of messages in a block of the queue | 256 KiB | the block is sent |
//!
//! Every missed message is counted, and so is a message that its parser refuses. Exceptions: a
//! message that comes after a later one of its stream is taken for one that is sent again, and
//! messages with unknown starts in a stream of DNS count as one. So do all of one direction of a
//! connection of QUIC whose first packet is unknown.

mod assembly;
mod batches;
mod dns;
mod http;
mod message;
mod quic;
mod rows;
#[cfg(test)]
mod tests;
mod tls;

pub(crate) use self::assembly::Assembly;
pub use self::batches::MessageBatches;
pub use self::message::{Application, Missed, SelectedMessages};
pub(crate) use self::message::{MESSAGE_BYTES_MAX, Message};
pub use self::rows::{MessageRow, MessageRows};
use crate::headers::Headers;

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

/// Parses bytes as a message of each protocol, as a datagram of QUIC and as the frames in one, as
/// the tables do: for a fuzzer.
pub fn parse_all(headers: &Headers, bytes: &[u8]) -> usize {
    let bytes = &bytes[..bytes.len().min(MESSAGE_BYTES_MAX)];
    let message = |application| Message { application, headers: *headers, bytes: bytes.to_vec() };
    let whole = Application::ALL.into_iter().map(message);
    let messages: Vec<Message> = whole.chain(quic::parse_all(headers, bytes)).collect();
    messages.iter().filter_map(Message::row).count()
}
