//! Packets as bytes: header views, flow keys, checksums, generated traffic, one-line summaries.
//!
//! The capture engine, its sinks and the program read frames through the views here; the generator
//! builds its frames here. Every parser takes a slice that may be cut at any byte or have any
//! content, and returns a typed error instead of a panic. This crate is pure: no I/O, no clock, no
//! threads, and no allocation per packet.

pub mod arp;
pub mod checksum;
pub mod dns;
mod error;
pub mod ethernet;
mod flow;
pub mod http;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
mod link;
pub mod probe;
pub mod protocol;
pub mod quic;
mod reader;
pub mod summary;
pub mod tcp;
pub mod tls;
pub mod traffic;
pub mod udp;
pub mod vlan;

pub use error::{Error, Header, Result};
pub use flow::{Endpoint, FlowKey};
pub use link::{Network, network, network_on};
