//! Progress of a TCP connection by the peer's acknowledgements, for senders that judge the pace of
//! a peer: a write returns when the kernel has accepted the bytes, not when they have arrived.
//! Moves no bytes.

use std::os::fd::AsFd;

/// Returns the bytes that the peer has acknowledged since the start of the connection; `None` if
/// the kernel does not count them, or if the socket is not TCP.
pub fn acknowledged(socket: impl AsFd) -> Option<u64> {
    strait_os::tcp::acknowledged(socket).ok()
}
