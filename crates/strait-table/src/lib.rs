//! Packets, flows and capture ledgers as tables: Arrow record batches, and Parquet files of them.
//!
//! `strait capture --to` uses it. The tables are pure: packets and times go in, record batches come
//! out. [`Headers`] has the fields of a packet that tables need, [`packets`] makes rows of them,
//! [`flows`] counts them by flow, [`messages`] finds those of DNS, TLS and HTTP, [`ledger`] makes
//! rows of the counters of a capture. The other half does the files: [`mod@file`] writes a file
//! that is valid after each row group, [`writer`] selects the file of a row and completes files by
//! size and time, [`sink`] runs the writers on a thread of its own behind a bounded queue, so that
//! a slow disk never delays the capture. [`export`] sends flows to another machine instead: by
//! [`ipfix`] to a collector, or as JSON, Arrow IPC or Protobuf to a broker ([`mod@publish`]).
//!
//! It never prints.

mod address;
mod batches;
mod column;
mod community_id;
mod error;
pub mod export;
mod extras;
pub mod file;
pub mod flows;
mod headers;
mod interface_names;
pub mod ipfix;
pub mod ledger;
pub mod messages;
mod options;
pub mod packets;
mod partition;
pub mod publish;
mod queue;
mod recovery;
mod rows;
pub mod schema;
pub mod sink;
mod spool;
mod tally;
pub mod writer;

pub use batches::Batches;
pub use error::TableError;
pub use extras::{Extras, Owner};
pub use headers::{Direction, Headers, Internet, Packet, Tcp};
pub use interface_names::{interface_names, listed_names, looked_up_names, no_names};
pub use options::{FileNumbers, Options, ROTATE_BYTES, ROTATE_EVERY, Selected, sensor_name};
pub use spool::{Spool, SpoolUsage};
pub use tally::Tally;
