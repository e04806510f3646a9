//! Counters that must add up: the capture ledger, the sender's account, histograms, their names,
//! and quantities as text.
//!
//! Every engine keeps its counts in these types, so that one law holds on every path:
//! `received = delivered + filtered + each named loss`, in 64 bits, exactly. The capture engine and
//! the injector fill them in; the program prints them as text and JSON. [`prometheus`] writes them
//! for programs that serve metrics; no command of Strait calls it.
//! This crate never reads a clock, a socket or a file: it is given numbers and checks them.

mod capture;
mod histogram;
mod number;
pub mod prometheus;
pub mod quantity;
mod report;
mod send;
mod since;
mod transfer;

pub use capture::{Capture, Events, Imbalance, Lane, Losses};
pub use histogram::{Histogram, RANGE_NS_MAX};
pub use number::Grouped;
pub use report::Report;
pub use send::Send;
pub use since::Since;
pub use transfer::Transfer;
