//! The Linux boundary: every unsafe line of the workspace.
//!
//! Modules are named after the kernel's own nouns. Each wraps one kernel interface in owned
//! descriptors, checked lengths and borrowed frames, and returns [`Error`] with the call, its
//! subject, the errno and a remedy. The engines (floor 2) call them. Sessions, files and the
//! meaning of filters are unknown here. Nothing here prints, exits or decides: policy lives above.

pub mod bpf;
pub mod buffer;
pub mod clock;
pub mod egress;
mod error;
pub mod ethtool;
pub mod interface;
pub mod libpcap;
pub mod link_type;
pub mod mmap;
mod name;
pub mod netlink;
pub mod netns;
pub mod output;
pub mod packet;
pub mod perf;
pub mod pf_zerocopy;
pub mod process;
pub mod service;
mod socket;
pub mod stdio;
pub mod tcp;
pub mod tls;
pub mod uring;
pub mod wait;
pub mod wire;
pub mod xdp;
pub mod zerocopy;

pub use error::{Error, Kind, Result};
pub use socket::{LinkState, gone};
