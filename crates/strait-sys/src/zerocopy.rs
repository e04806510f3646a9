//! `MSG_ZEROCOPY`: whether a send over a route really goes without a copy, or the kernel copies after all
//! (Documentation/networking/msg_zerocopy.rst).
//!
//! The kernel tells so with the completion, which comes by the socket's error queue. The doctor asks with one datagram.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result, check};
use crate::wait;

/// Bytes of the datagram: large enough for the kernel to take pages, small enough for any MTU.
const PROBE_BYTES: usize = 1200;
/// What it carries. The pages may go out to the wire after the socket is closed, when nobody here knows any more: so
/// they belong to nobody, hold nothing but zeroes and are there as long as the program.
static DATAGRAM: [u8; PROBE_BYTES] = [0; PROBE_BYTES];
/// How long the completion may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` (linux/errqueue.h).
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_ZEROCOPY_COPIED: u8 = 1;

/// How a datagram went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// From the pages of this process.
    WithoutCopy,
    /// The kernel copied it: on the loopback, or where the device has no scatter-gather or no checksum offload.
    Copied,
}

/// Sends one datagram of zeroes to `to` and says how it went.
///
/// # Errors
/// There is no route, or the kernel has no `MSG_ZEROCOPY` for datagrams (Linux 5.0).
pub fn probe(to: SocketAddr) -> Result<Sent> {
    let failed = |error: std::io::Error| Error::from_io("send without a copy to", to.to_string(), &error);
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).map_err(failed)?;
    socket.connect(to).map_err(failed)?;
    let one: libc::c_int = 1;
    // SAFETY: the option's value is a live int, and the length says so.
    let returned = unsafe {
        let (value, len) = ((&raw const one).cast(), size_of::<libc::c_int>() as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, len)
    };
    check(returned, "ask for sends without a copy to", to.to_string())?;
    // SAFETY: the kernel reads the bytes during the call and, by their pages, until the datagram has left, which may be
    // after the socket is closed; they are a static that nothing writes to.
    let sent =
        unsafe { libc::send(socket.as_raw_fd(), DATAGRAM.as_ptr().cast(), PROBE_BYTES, libc::MSG_ZEROCOPY) };
    check(sent as libc::c_int, "send without a copy to", to.to_string())?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        let [_] = wait::readable([Some(socket.as_fd())], left)?;
        if let Some(how) = completion(&socket) {
            return Ok(how);
        }
    }
    Err(Error::said(Kind::Failed, "send without a copy to", to.to_string(), "no completion came"))
}

/// The completion, if it is in the error queue.
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
    // SAFETY: a non-null result points at a whole cmsghdr, and the buffer has room for the error behind it.
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
