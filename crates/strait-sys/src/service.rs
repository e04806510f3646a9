//! Interface to the service manager: inherited listening sockets (sd_listen_fds(3)), state
//! notifications (sd_notify(3)), and the user to run as.
//!
//! `strait proxy` calls it once, before it starts threads.

use std::ffi::{CString, OsStr};
use std::io;
use std::net::TcpListener;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::net::{SocketType, sockopt};

use crate::error::{Error, Kind, Result, check};

/// Descriptor of the first socket (`SD_LISTEN_FDS_START`).
const FIRST: i32 = 3;
/// Maximum number of sockets.
const SOCKETS_MAX: i32 = 256;

/// Takes the TCP sockets that the environment variables `LISTEN_PID` and `LISTEN_FDS` announce.
/// Empty if they are meant for another process.
///
/// # Errors
/// If a descriptor is not a listening TCP socket.
///
/// # Panics
/// If it is called twice: the first call took ownership of the sockets.
pub fn inherited_sockets() -> Result<Vec<TcpListener>> {
    use std::sync::atomic::{AtomicBool, Ordering};
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<i32>().ok());
    let is_for_this = number("LISTEN_PID") == Some(std::process::id() as i32);
    let count = number("LISTEN_FDS").filter(|_| is_for_this).unwrap_or(0).clamp(0, SOCKETS_MAX);
    assert!(!TAKEN.swap(true, Ordering::SeqCst), "the inherited sockets were taken before");
    (FIRST..FIRST + count).map(take).collect()
}

fn take(number: i32) -> Result<TcpListener> {
    let subject = || format!("descriptor {number}");
    // SAFETY: fcntl(2) fails on a number that is not a descriptor.
    let returned = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    check(returned, "take over", subject())?;
    // SAFETY: the descriptor is open, and the service manager opened it for this process: it has no
    // other owner here and is taken once.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    let is_listening = sockopt::socket_type(&socket) == Ok(SocketType::STREAM)
        && sockopt::socket_acceptconn(&socket) == Ok(true);
    if !is_listening {
        return Err(Error::new(Kind::Usage, "take over", subject(), "not a listening TCP socket"));
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

/// Entry of the user database.
struct User {
    name: CString,
    uid: libc::uid_t,
    gid: libc::gid_t,
}

/// Checks that there is a user of this name (getpwnam(3)).
///
/// # Errors
/// If there is no such user.
pub fn check_user(name: &str) -> Result<()> {
    find_user(name).map(drop)
}

fn find_user(name: &str) -> Result<User> {
    let unknown = || Error::new(Kind::Usage, "become user", name, "there is no such user");
    let c_name = CString::new(name).map_err(|_| unknown())?;
    // SAFETY: the name ends with NUL. The returned entry is read at once, in a process of one
    // thread.
    let (uid, gid) = unsafe {
        let entry = libc::getpwnam(c_name.as_ptr());
        if entry.is_null() {
            return Err(unknown());
        }
        ((*entry).pw_uid, (*entry).pw_gid)
    };
    Ok(User { name: c_name, uid, gid })
}

/// Becomes another user permanently, with that user's groups: setgroups(2), setgid(2), setuid(2),
/// of all threads.
///
/// # Errors
/// If there is no such user, or this process may not become it.
pub fn become_user(name: &str) -> Result<()> {
    let User { name: c_name, uid, gid } = find_user(name)?;
    // SAFETY: the name ends with NUL.
    check(unsafe { libc::initgroups(c_name.as_ptr(), gid) }, "become user", name)?;
    // SAFETY: both take numbers.
    check(unsafe { libc::setgid(gid) }, "become user", name)?;
    // SAFETY: as above.
    check(unsafe { libc::setuid(uid) }, "become user", name)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

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
        let number = rustix::io::dup(&file).unwrap();
        let raw = number.as_raw_fd();
        std::mem::forget(number);
        assert!(take(raw).is_err());
        assert!(become_user("no such user").is_err());
    }
}
