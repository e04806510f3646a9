//! What TCP knows of a connection and rustix does not ask (tcp(7)).

use std::os::fd::{AsFd, AsRawFd as _};

use crate::error::{Result, check};

/// Bytes that were sent on a socket and that its peer has not acknowledged (`SIOCOUTQ`).
///
/// # Errors
/// EINVAL where it is no connection.
pub fn unacknowledged(socket: impl AsFd) -> Result<usize> {
    let mut bytes: libc::c_int = 0;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: bytes is written only.
    let returned = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) };
    check(returned, "ask what is unacknowledged on", "a socket")?;
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
    fn what_the_peer_has_is_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let sent = stream.write(&vec![0; 8 << 20]).unwrap();
        assert!(unacknowledged(&stream).unwrap() > 0, "{sent} bytes do not fit its peer");
        peer.read_exact(&mut vec![0; sent]).unwrap();
        let began = Instant::now();
        while unacknowledged(&stream).unwrap() > 0 {
            assert!(began.elapsed() < LIMIT, "the peer has read all");
            std::thread::yield_now();
        }
    }
}
