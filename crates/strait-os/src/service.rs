//! Interface to the service manager: inherited listening sockets (sd_listen_fds(3)), state
//! notifications (sd_notify(3)), and the user to run as.
//!
//! `strait proxy` calls it before it starts threads; it passes its sockets to its successor.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg, sockopt};
use rustix::time::Timespec;
pub use strait_sys::user::{become_user, check_user};
use strait_sys::{inherited, spawn};

use crate::{Error, Kind, Result};

/// Takes the descriptors that the environment variables `LISTEN_PID`, `LISTEN_FDS` and
/// `LISTEN_FDNAMES` announce, with their names. Empty if they are meant for another process.
///
/// # Errors
/// If one of them is not open.
///
/// # Panics
/// If it is called twice: the first call took ownership of the descriptors.
pub fn inherited_descriptors() -> Result<Vec<(String, OwnedFd)>> {
    inherited::descriptors()
}

/// Returns an inherited descriptor as a socket that accepts connections.
///
/// # Errors
/// It is not a listening TCP socket.
pub fn listener(socket: OwnedFd) -> Result<TcpListener> {
    let is_listening = sockopt::socket_type(&socket) == Ok(SocketType::STREAM)
        && sockopt::socket_acceptconn(&socket) == Ok(true);
    if !is_listening {
        let subject = format!("descriptor {}", socket.as_raw_fd());
        return Err(Error::new(Kind::Usage, "take over", subject, "not a listening TCP socket"));
    }
    Ok(socket.into())
}

/// Starts a program with descriptors of this process, as a service manager does
/// (sd_listen_fds(3)): the counterpart of [`inherited_descriptors`]. Returns its process id; the
/// caller waits for its end. The signals that `on_service_signals` of [`crate::process`] handles,
/// except those that end a program, are ignored until the program handles them.
///
/// # Errors
/// There are too many descriptors, or a system call fails; execve(2) for one.
pub fn start_with_descriptors(
    program: &Path,
    arguments: &[OsString],
    descriptors: &[(String, OwnedFd)],
) -> Result<u32> {
    spawn::with_descriptors(program, arguments, descriptors, &crate::process::REQUESTS)
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

/// Waits until the service manager has read all notifications so far (sd_notify_barrier(3)), for at
/// most `limit`. It may not attribute them to the service once this process has ended.
///
/// # Errors
/// As of [`notify`].
pub fn await_notifications(limit: Duration) -> Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return Ok(()) };
    let failed = |error: io::Error| Error::from_io("notify", name.to_string_lossy(), &error);
    let begin = || {
        let (reader, writer) = io::pipe()?;
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address_of(&name)?)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [writer.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&socket, &[IoSlice::new(b"BARRIER=1")], &mut control, SendFlags::NOSIGNAL)?;
        Ok(reader)
    };
    let reader = begin().map_err(failed)?;
    // The manager closes the writer when it has read everything before.
    let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos().into() };
    let polled = poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&limit));
    polled.map(drop).map_err(|errno| failed(errno.into()))
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
