//! Benchmarks on this machine: capture paths (D3), capture delay (D2), cost of a capture to its
//! host, sends (D5) and proxies (D4), and checks of claims about speed.
//!
//! [`capture`], [`latency`], [`tax`], [`send`], [`proxy`], [`cache`], [`restart`] and
//! [`certificates`] are the benchmarks;
//! [`claims`] adds comparisons with other programs. They create a [`wire`] and run receivers and
//! generators as separate programs ([`measure`], [`child`]). [`results`] holds the figures;
//! [`table`], [`report`] and [`mod@compare`] show them. The program `strait-bench` is the entry
//! point. Only the measured programs ([`receiver`] and others) print.

pub mod cache;
pub mod capture;
pub mod certificates;
pub mod child;
pub mod claim;
pub mod claims;
pub mod compare;
pub mod contestant;
mod error;
pub mod latency;
pub mod machine;
pub mod measure;
mod memory_file;
mod peer;
mod plot;
pub mod proxy;
pub mod receiver;
pub mod report;
pub mod restart;
pub mod results;
mod rounds;
pub mod search;
pub mod send;
mod stage;
mod stats;
pub mod table;
pub mod tax;
pub mod wire;

pub use error::{Error, Result};
pub use rounds::Progress;
pub use stats::Summary;
