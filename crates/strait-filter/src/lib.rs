//! Classic BPF programs: check, interpret, translate to eBPF for XDP and tcx.
//!
//! A filter must give the same result on every capture path. The kernel runs classic BPF on packet
//! sockets. AF_XDP and the tap have no such hook, so this crate assembles an XDP or a tcx program
//! with the same result.
//! Three executions of a [`cbpf::Program`] must therefore agree: the kernel's,
//! [`cbpf::Program::run`] here, and the eBPF of [`translate`], [`tap`] and [`xdp`].
//!
//! **The filter's view.** On every live path a filter sees the frame as a packet socket's filter
//! does: the outermost VLAN tag is removed and visible only through the `SKF_AD_VLAN_*` loads,
//! lengths and offsets do not count it, and the protocol is the one after it.
//!
//! libpcap also compiles programs that the kernel refuses (loops, more than 4,096 instructions).
//! They can only be interpreted; [`cbpf::Program::refusal`] identifies them.
//!
//! The capture engine and the benches call this crate. It does no I/O and loads nothing into the
//! kernel.

pub mod acknowledger;
pub mod cbpf;
pub mod drops;
pub mod ebpf;
mod error;
mod interpret;
mod offsets;
pub mod owner;
pub mod tap;
pub mod translate;
pub mod xdp;

pub use error::Error;
pub use interpret::{Metadata, STEPS_MAX, Vlan, ethernet_pkttype};

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
