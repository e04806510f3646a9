//! Measures on this machine: capture paths, by D3's comparison and D2's delay, sends, by D5's, and proxies, by D4's.
//!
//! [`capture`] and [`latency`] are the benchmarks; they lay a [`wire`], run receivers and generators on it as programs
//! of their own ([`measure`], [`child`]), and return [`results`], which [`table`], [`report`] and [`mod@compare`] show.
//! [`receiver`] is the program that is measured. `strait bench` is the door. Nothing here prints but that program.

pub mod capture;
pub mod child;
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
pub mod results;
mod rounds;
pub mod search;
pub mod send;
mod stage;
mod stats;
pub mod table;
pub mod wire;

pub use error::{Error, Result};
pub use rounds::Progress;
pub use stats::Summary;
