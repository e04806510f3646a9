//! Tests of what this machine allows a send without copies: io_uring, and the route to an address.
//!
//! `strait doctor` calls them; [`crate::tls::probe`] tests kTLS. [`crate::Engine`] needs none of
//! them: it adapts to what it meets.

use std::net::SocketAddr;

use strait_os::Result;
pub use strait_sys::uring::Operations;
pub use strait_sys::zerocopy::Sent;

/// Sets up a small ring of io_uring and returns the operations that the kernel has.
///
/// # Errors
/// The kernel has no io_uring or forbids it; the remedy names the setting.
pub fn io_uring() -> Result<Operations> {
    strait_sys::uring::operations()
}

/// Sends one datagram of zeroes to `to` with `MSG_ZEROCOPY`, and returns whether the kernel copied
/// it.
///
/// # Errors
/// There is no route, or the kernel has no `MSG_ZEROCOPY` for datagrams (before Linux 5.0).
pub fn route(to: SocketAddr) -> Result<Sent> {
    strait_sys::zerocopy::probe(to)
}
