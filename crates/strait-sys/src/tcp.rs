//! Counters and options of TCP connections for which rustix has no call (tcp(7)).

use std::os::fd::{AsFd, AsRawFd as _};

use crate::error::{Error, Result, check};
use crate::socket;

/// Returns the bytes sent on a socket that its peer has not acknowledged (`SIOCOUTQ`).
///
/// # Errors
/// EINVAL if the socket is not connected.
pub fn unacknowledged(socket: impl AsFd) -> Result<usize> {
    let mut bytes: libc::c_int = 0;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: bytes is written only.
    let returned = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) };
    check(returned, "read the unacknowledged bytes of", "a socket")?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Offset of `tcpi_bytes_acked` in `struct tcp_info` (include/uapi/linux/tcp.h), a u64.
const BYTES_ACKED_OFFSET: usize = 120;
/// Length of the fields up to it.
const INFO_BYTES: usize = BYTES_ACKED_OFFSET + 8;

/// Returns the bytes that the peer of a connection has acknowledged since its start (`TCP_INFO`),
/// including the SYN.
///
/// # Errors
/// EOPNOTSUPP if the kernel does not count them (before Linux 4.1), or if this is not a TCP
/// connection.
pub fn acknowledged(socket: impl AsFd) -> Result<u64> {
    let mut info = [0_u8; INFO_BYTES];
    let mut len = INFO_BYTES as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes to `info`, which is as long, and the count to
    // `len`.
    let returned = unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
    };
    check(returned, "read the acknowledged bytes of", "a socket")?;
    let (_, acked) = info.split_at(BYTES_ACKED_OFFSET);
    match acked.try_into() {
        Ok(bytes) if len as usize == INFO_BYTES => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(Error::os("read the acknowledged bytes of", "a socket", libc::EOPNOTSUPP)),
    }
}

/// Lets a connection become readable only with that many bytes, at the end, or when the receive
/// window is nearly full (`SO_RCVLOWAT`, socket(7)). A lower mark than before reports bytes that
/// are there already.
///
/// # Errors
/// EBADF and the like alone.
pub fn set_low_water(socket: impl AsFd, bytes: i32) -> Result<()> {
    let option = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    socket::set(socket.as_fd(), option, &bytes, ("set the low-water mark of", "a socket"))
}

/// Returns the bytes written to a socket that TCP has not sent yet (`SIOCOUTQNSD`).
///
/// # Errors
/// EINVAL if the socket is not connected.
pub fn unsent(socket: impl AsFd) -> Result<usize> {
    /// `SIOCOUTQNSD` (linux/sockios.h), which libc does not name.
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    let mut bytes: libc::c_int = 0;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: bytes is written only.
    let returned = unsafe { libc::ioctl(fd, SIOCOUTQNSD, &raw mut bytes) };
    check(returned, "read the unsent bytes of", "a socket")?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn received_bytes_are_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let sent = stream.write(&vec![0; 8 << 20]).unwrap();
        assert!(acknowledged(&stream).unwrap() <= sent as u64);
        assert!(unacknowledged(&stream).unwrap() > 0, "{sent} bytes do not fit its peer");
        assert!(unsent(&stream).unwrap() > 0, "nor the window");
        peer.read_exact(&mut vec![0; sent]).unwrap();
        let began = Instant::now();
        while unacknowledged(&stream).unwrap() > 0 {
            assert!(began.elapsed() < LIMIT, "the peer has read all");
            std::thread::yield_now();
        }
        let acked = acknowledged(&stream).unwrap();
        assert!((sent as u64..=sent as u64 + 1).contains(&acked), "{acked} of {sent} and the SYN");
        assert_eq!(unsent(&stream).unwrap(), 0);
    }
}
