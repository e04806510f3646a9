//! The system's libpcap as other programs use it, for comparisons with this crate's captures.
//!
//! `strait doctor` reports its version and its ring, `strait demo` measures its delay. The captures
//! of this crate use libpcap only to compile filters.

use strait_os::Result;
use strait_os::netlink::{PacketSocket, packet_socket};
pub use strait_sys::libpcap::{Counts, Options, Packet, Reader, version};

/// Opens a capture with libpcap, and returns its packet socket and ring as the kernel reports them.
///
/// # Errors
/// Those of [`Reader::open`]; the kernel does not report packet sockets (`CONFIG_PACKET_DIAG`).
pub fn socket(interface: &str, options: Options) -> Result<PacketSocket> {
    packet_socket(Reader::open(interface, options)?.socket())
}
