//! Export: flows go to another machine instead of into files.
//!
//! ```text
//! flows ─▶ Writer: message ─ full or due ─▶ queue ─▶ thread: carrier ─▶ collector or broker
//! ```
//!
//! One [`exporter::Exporter`] has the queue and a thread of its own, and a [`writer::Writer`] for
//! each sink, so that a slow receiver never delays a sink. Flows that do not fit into the queue, or
//! that the receiver does not take, are lost and counted by lane. [`mod@crate::ipfix`] and
//! [`mod@crate::publish`] have the formats of messages and the carriers.

mod exporter;
mod message;
mod writer;

pub use self::exporter::Exporter;
pub(crate) use self::exporter::{Carrier, Limits, Plan, Shared, SinkShare};
pub(crate) use self::message::{Build, Message, Record};
pub use self::writer::Exported;
pub(crate) use self::writer::{Counts, Writer};
