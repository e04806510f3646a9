//! Counters that must add up: the capture ledger, the sender's counts, histograms, their names,
//! and quantities as text.
//!
//! Every engine keeps its counts in these types, so that one equation holds on every path:
//! `received = delivered + filtered + each named loss`, in 64 bits, exactly. The engines fill them
//! in, and the programs print them as text and JSON. [`prometheus`] writes them as metrics.
//! This crate never reads a clock, a socket or a file: numbers are arguments.

pub mod buckets;
mod capture;
mod counter;
mod histogram;
mod number;
pub mod prometheus;
pub mod quantity;
mod report;
mod send;
mod since;
mod transfer;

pub use capture::{Capture, Events, Imbalance, LaneCounts, Losses};
pub use counter::SingleWriterCounter;
pub use histogram::{Histogram, RANGE_NS_MAX};
pub use number::Grouped;
pub use report::{Delivered, Part, Report, TargetReport};
pub use send::Send;
pub use since::Since;
pub use transfer::Transfer;
