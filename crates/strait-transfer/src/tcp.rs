//! Progress of a TCP connection as its peer acknowledges it: what has really arrived, where a write
//! returns what the kernel has taken. For senders that judge the pace of a peer. It moves no bytes.

use std::os::fd::AsFd;

/// Returns the bytes that the peer has acknowledged since the connection began; `None` where the
/// kernel does not count them, or where it is no TCP connection.
pub fn acknowledged(socket: impl AsFd) -> Option<u64> {
    strait_sys::tcp::acknowledged(socket).ok()
}
