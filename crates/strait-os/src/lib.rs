//! Services of Linux in safe Rust, for the engines and for the programs.
//!
//! Here are the parts of the system around the bytes: interfaces and their drivers ([`interface`],
//! [`ethtool`], [`netlink`], [`egress`]), private networks ([`netns`], [`wire`]), this process
//! ([`process`], [`service`], [`stdio`]), clocks and waits ([`clock`], [`wait`]), files that are
//! safe to write to ([`output`]), the plan of repeated attempts ([`retry`]), and text for a
//! terminal ([`text`]). Rings, sockets for packets
//! and other shared memory are in `strait-sys`, which only the engines call.
//!
//! This crate has no unsafe code. Where a system call needs some, `strait-sys` has a function for
//! that call. Both return the same [`Error`]: a failed call has an operation, a subject, an errno
//! and a remedy in either of them, and an error of its own would only wrap the other. Nothing here
//! prints or exits.

pub mod clock;
pub mod egress;
pub mod ethtool;
pub mod interface;
mod name;
pub mod netlink;
pub mod netns;
pub mod output;
pub mod process;
pub mod retry;
pub mod service;
pub mod stdio;
pub mod text;
pub mod wire;

pub use strait_sys::{Error, Kind, Result};
/// Counters of TCP connections, waits for descriptors and for time. Re-exported unchanged: their
/// calls are safe and need no policy.
pub use strait_sys::{tcp, wait};
