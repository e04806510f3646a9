//! Capture and injection of packets: one API for every kernel packet path.
//!
//! [`Session::builder`] opens an interface on a [`Path`]. The session has one [`Lane`] a queue,
//! each with its own ring, and each can move to its own thread. [`Lane::next_batch`] lends a
//! [`Batch`] of [`Frame`]s from the ring; dropping the batch returns the frames to the kernel.
//! After the session has stopped and its lanes are drained, the ledger accounts for every packet.
//! [`sink`] writes frames to files, [`Injector`] sends them.
//!
//! ```no_run
//! use std::time::{Duration, Instant};
//! use strait_capture::{Path, Session};
//!
//! let mut session = Session::builder("eth0").path(Path::Auto).filter("tcp port 443").open()?;
//! let mut lane = session.take_lanes().remove(0);
//! while let Some(mut batch) = lane.next_batch(Instant::now() + Duration::from_secs(1))? {
//!     for frame in batch.frames() {
//!         println!("{} {} bytes", frame.timestamp_ns, frame.wire_len);
//!     }
//! #   break;
//! }
//! session.stop()?;
//! println!("{}", session.report(vec![lane.finish()?]));
//! # Ok::<(), strait_capture::Error>(())
//! ```
//!
//! This crate never prints, and reads a clock only for timestamps and deadlines.

mod batch;
mod booking;
mod compression;
mod counters;
mod directions;
pub mod drops;
mod error;
pub mod extra;
pub mod file;
mod filter;
mod frame;
pub mod index;
mod inject;
mod interrupt;
pub mod key_log;
mod lane;
pub mod libpcap;
mod link;
mod live_counters;
pub mod owners;
mod paths;
mod placing;
pub mod probe;
mod queues;
mod sender;
mod session;
pub mod sink;
mod userspace_filter;
mod wait;
mod watch;
mod zerocopy;

pub use batch::{Batch, Frames};
pub use compression::{Compression, Defect as CompressionDefect};
pub use directions::Directions;
pub use error::Error;
pub use filter::{FilterCompiler, check as check_filter, is_filter};
pub use frame::{Direction, Frame, Vlan};
pub use inject::{InjectPath, Injector, LiveGenerator};
pub use interrupt::Interrupter;
pub use lane::Lane;
pub use link::is_shared as is_shared_interface;
pub use live_counters::{LiveCounters, Reading};
pub use paths::Path;
pub use paths::tap::{TapRings, broker, serve_broker};
pub use queues::Queues;
pub use sender::Sender;
pub use session::{Builder, Session};
pub use strait_sys::Kind as ErrorKind;
pub use strait_sys::packet::Fanout;
pub use userspace_filter::UserspaceFilter;
pub use wait::Wait;
pub use watch::LinkStatus;
