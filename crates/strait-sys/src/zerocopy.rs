//! `MSG_ZEROCOPY` probe: finds out if a send over a route avoids the copy, or if the kernel copies
//! after all (Documentation/networking/msg_zerocopy.rst).
//!
//! The kernel reports a copy with the completion, in the socket's error queue. The doctor probes
//! with one datagram.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result, check};
use crate::wait;

/// Bytes of the datagram: large enough for the kernel to use pages, small enough for any MTU.
const PROBE_BYTES: usize = 1200;
/// Content of the datagram. The NIC may read the pages after the socket is closed, at an unknown
/// time. They are therefore a static, which is never written and never freed.
static DATAGRAM: [u8; PROBE_BYTES] = [0; PROBE_BYTES];
/// Maximum wait for the completion.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(1);

/// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` (linux/errqueue.h).
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_ZEROCOPY_COPIED: u8 = 1;

/// Result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Sent from the pages of this process.
    WithoutCopy,
    /// Copied by the kernel: on the loopback, or because the device has no scatter-gather or no
    /// checksum offload.
    Copied,
}

/// Sends one datagram of zeroes to `to` and returns whether the kernel copied it.
///
/// # Errors
/// If there is no route, or the kernel has no `MSG_ZEROCOPY` for datagrams (before Linux 5.0).
pub fn probe(to: SocketAddr) -> Result<Sent> {
    let failed = |error: std::io::Error| Error::from_io("send without a copy to", to.to_string(), &error);
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).map_err(failed)?;
    socket.connect(to).map_err(failed)?;
    let one: libc::c_int = 1;
    // SAFETY: the option's value is a live int, and the length matches.
    let returned = unsafe {
        let (value, len) = ((&raw const one).cast(), size_of::<libc::c_int>() as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, len)
    };
    check(returned, "enable sends without a copy to", to.to_string())?;
    // SAFETY: the kernel reads the bytes during the call and, through their pages, until the
    // datagram has left, possibly after the socket is closed. They are a static without writers.
    let sent =
        unsafe { libc::send(socket.as_raw_fd(), DATAGRAM.as_ptr().cast(), PROBE_BYTES, libc::MSG_ZEROCOPY) };
    check(sent as libc::c_int, "send without a copy to", to.to_string())?;
    let deadline = Instant::now() + COMPLETION_TIMEOUT;
    while Instant::now() < deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        let [_] = wait::readable([Some(socket.as_fd())], left)?;
        if let Some(sent) = completion(&socket) {
            return Ok(sent);
        }
    }
    Err(Error::new(Kind::Failed, "send without a copy to", to.to_string(), "no completion came"))
}

/// Returns the completion, if it is in the error queue.
fn completion(socket: &UdpSocket) -> Option<Sent> {
    let mut control = [0_u64; 16];
    // SAFETY: msghdr is plain data, for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the message has no data, and its control buffer is live.
    if unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) } < 0 {
        return None;
    }
    // SAFETY: the kernel filled the control buffer and its length; CMSG_FIRSTHDR stays within it.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: a non-null result points at a complete cmsghdr, and the buffer has room for the error
    // after it.
    let error = unsafe {
        let header = header.as_ref()?;
        let len = libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32) as usize;
        let filled: usize = header.cmsg_len as _;
        (filled >= len).then(|| libc::CMSG_DATA(header).cast::<libc::sock_extended_err>().read_unaligned())?
    };
    if error.ee_origin != ORIGIN_ZEROCOPY {
        return None;
    }
    let copied = error.ee_code & CODE_ZEROCOPY_COPIED != 0;
    Some(if copied { Sent::Copied } else { Sent::WithoutCopy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_copies() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(probe(receiver.local_addr().unwrap()).unwrap(), Sent::Copied);
    }
}
