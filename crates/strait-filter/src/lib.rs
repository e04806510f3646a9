//! Classic BPF programs: check, interpret, translate to eBPF and XDP.
//!
//! One filter must give one answer on every capture path. The kernel runs classic BPF on packet sockets; an
//! AF_XDP path has no such hook, so this crate assembles an XDP program that gives the same answer. Three
//! executions of a [`cbpf::Program`] therefore have to agree: the kernel's, [`cbpf::Program::run`] here, and
//! the eBPF of [`translate`] and [`xdp`].
//!
//! **What a filter sees.** On every live path it sees the frame as a packet socket's filter does: the outermost
//! VLAN tag is taken out and visible through the `SKF_AD_VLAN_*` loads alone, lengths and offsets do not count
//! it, and the protocol is the one after it.
//!
//! libpcap also writes programs that the kernel does not take (loops, more than 4,096 instructions). Those are
//! interpreted only; [`cbpf::Program::refusal`] tells them apart.
//!
//! The capture engine and the benches call it. It does no I/O and loads nothing into the kernel.

pub mod acknowledger;
pub mod cbpf;
pub mod ebpf;
mod error;
mod interpret;
pub mod translate;
pub mod xdp;

pub use error::Error;
pub use interpret::{Metadata, STEPS_MAX, Vlan, ethernet_pkttype};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
