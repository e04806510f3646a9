//! Export of flows by IPFIX (RFC 7011), with both directions in a record (RFC 5103).
//!
//! [`record`] makes records and templates, [`message`] puts them into messages; both are pure.
//! [`thread`] has the connection to the collector.

mod message;
mod record;
mod thread;
mod transport;

pub use self::thread::open;
pub use self::transport::{Collector, Transport};

#[cfg(test)]
mod tests;
