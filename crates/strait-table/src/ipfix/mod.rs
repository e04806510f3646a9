//! Export of flows by IPFIX (RFC 7011), with both directions in a record (RFC 5103).
//!
//! ```text
//! flows ─▶ Writer: records ─▶ message ─ full or due ─▶ queue ─▶ thread: header, templates
//!                                                                  └─▶ collector
//! ```
//!
//! [`record`] makes records and templates, [`message`] puts them into messages; both are pure. One
//! [`exporter::Exporter`] has the connection and a thread of its own, and a [`writer::Writer`] for
//! each sink, so that a slow collector never delays a sink. Flows that do not fit into the queue,
//! or that the collector does not take, are lost and counted by lane.

mod exporter;
mod message;
mod record;
mod transport;
mod writer;

pub use self::exporter::Exporter;
pub use self::transport::{Collector, Transport};
pub use self::writer::Exported;
pub(crate) use self::writer::Writer;

#[cfg(test)]
mod tests;
