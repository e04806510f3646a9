//! Low-water mark of a TCP connection, and its progress by the peer's acknowledgements, for senders
//! that judge the pace of a peer: a write returns when the kernel has accepted the bytes, not when
//! they have arrived. Moves no bytes.

use std::os::fd::AsFd;

/// Lets a connection become readable only with that many bytes, at its end, or when its receive
/// window is nearly full (`SO_RCVLOWAT`). Returns false if the socket does not take the mark. The
/// caller lowers the mark if the bytes do not arrive.
pub fn set_low_water(socket: impl AsFd, bytes: u32) -> bool {
    strait_os::tcp::set_low_water(socket, i32::try_from(bytes).unwrap_or(i32::MAX)).is_ok()
}

/// Returns the bytes that the peer has acknowledged since the start of the connection; `None` if
/// the kernel does not count them, or if the socket is not TCP.
pub fn acknowledged(socket: impl AsFd) -> Option<u64> {
    strait_os::tcp::acknowledged(socket).ok()
}
