//! Interface to the service manager: inherited listening sockets (sd_listen_fds(3)), state
//! notifications (sd_notify(3)), and the user to run as.
//!
//! `strait proxy` calls it once, before it starts threads.

use std::ffi::OsStr;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::net::{SocketType, sockopt};
use strait_sys::inherited;
pub use strait_sys::user::{become_user, check_user};

use crate::{Error, Kind, Result};

/// Takes the TCP sockets that the environment variables `LISTEN_PID` and `LISTEN_FDS` announce.
/// Empty if they are meant for another process.
///
/// # Errors
/// If a descriptor is not a listening TCP socket.
///
/// # Panics
/// If it is called twice: the first call took ownership of the sockets.
pub fn inherited_sockets() -> Result<Vec<TcpListener>> {
    inherited::descriptors()?.into_iter().map(listener).collect()
}

fn listener(socket: OwnedFd) -> Result<TcpListener> {
    let is_listening = sockopt::socket_type(&socket) == Ok(SocketType::STREAM)
        && sockopt::socket_acceptconn(&socket) == Ok(true);
    if !is_listening {
        let subject = format!("descriptor {}", socket.as_raw_fd());
        return Err(Error::new(Kind::Usage, "take over", subject, "not a listening TCP socket"));
    }
    Ok(socket.into())
}

/// Reports the state of this process to the service manager (sd_notify(3)): lines like `READY=1`.
/// Does nothing if `NOTIFY_SOCKET` is not set.
///
/// # Errors
/// If the socket named by `NOTIFY_SOCKET` accepts nothing.
pub fn notify(state: &str) -> Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return Ok(()) };
    let send = || {
        let socket = UnixDatagram::unbound()?;
        socket.send_to_addr(state.as_bytes(), &address_of(&name)?)
    };
    let sent: io::Result<usize> = send();
    sent.map(drop).map_err(|error| Error::from_io("notify", name.to_string_lossy(), &error))
}

/// Parses a path, or with `@` an abstract name, which is in no file system (unix(7)).
fn address_of(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}

/// Returns the microseconds of CLOCK_MONOTONIC, which `RELOADING=1` must carry (sd_notify(3)).
pub fn monotonic_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_at_is_abstract() {
        let abstract_name = address_of(OsStr::new("@a/b")).unwrap();
        assert_eq!(abstract_name.as_abstract_name(), Some(&b"a/b"[..]));
        assert!(address_of(OsStr::new("/run/x")).unwrap().as_pathname().is_some());
    }

    #[test]
    fn other_descriptors_are_not_taken_over() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(listener(file.into()).is_err());
        assert!(become_user("no such user").is_err());
    }
}
