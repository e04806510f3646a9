//! The Linux boundary: every unsafe line of the workspace.
//!
//! Modules are named after the kernel's own nouns. Each wraps one kernel interface in owned
//! descriptors, checked lengths and borrowed frames, and returns [`Error`] with the call, its
//! subject, the errno and a remedy. The engines for capture and transfer use them, and `strait-os`
//! uses the small ones that need no ring: [`signal`], [`syscall`], [`netdevice`] and others.
//! Sessions, files and the meaning of filters are unknown here. Nothing here prints, exits or
//! decides: policy belongs to the callers.

pub mod bpf;
pub mod buffer;
pub mod cache;
mod error;
pub mod fork;
mod index;
pub mod inherited;
pub mod libpcap;
pub mod link_type;
pub mod local_time;
pub mod mmap;
pub mod netdevice;
pub mod packet;
pub mod perf;
pub mod pf_zerocopy;
pub mod signal;
pub mod socket;
pub mod spawn;
pub mod stdio;
pub mod syscall;
pub mod tcp;
pub mod tls;
pub mod uring;
pub mod user;
pub mod wait;
pub mod xdp;
pub mod zerocopy;

pub use error::{Error, Kind, Result};
pub use socket::{LinkState, interface_removed};
