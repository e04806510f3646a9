//! Code common to sockets of several families: options, state of the link, and remedies for its
//! errors.
//!
//! Packet sockets and `PF_ZEROCOPY` call it; AF_XDP has its own errors.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Error, Kind, Result, check};

/// `setsockopt(2)`; errors name `doing` and `interface`.
pub(crate) fn set<T>(
    fd: BorrowedFd<'_>,
    (level, option): (libc::c_int, libc::c_int),
    value: &T,
    (doing, interface): (&'static str, &str),
) -> Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: value points at size_of::<T>() readable bytes for the length of the call.
    let returned =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const *value).cast(), len) };
    check(returned, doing, interface).map(drop)
}

/// `getsockopt(2)` into plain integers; errors name `doing` and `interface`.
pub(crate) fn get<T: Copy>(
    fd: BorrowedFd<'_>,
    (level, option): (libc::c_int, libc::c_int),
    value: &mut T,
    (doing, interface): (&'static str, &str),
) -> Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: value points at len writable bytes; every T used is plain integers, valid for any
    // bytes.
    let returned =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut *value).cast(), &raw mut len) };
    check(returned, doing, interface).map(drop)
}

/// Returns and clears the pending error of a socket that captures on `interface` (`SO_ERROR`).
pub(crate) fn take_error(fd: BorrowedFd<'_>, interface: &str) -> Result<()> {
    let mut errno: libc::c_int = 0;
    get(fd, (libc::SOL_SOCKET, libc::SO_ERROR), &mut errno, ("read the pending error of", interface))?;
    if errno == 0 { Ok(()) } else { Err(Error::os("capture on", interface, errno)) }
}

/// State of the interface that a socket captures on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Set up (`IFF_UP`).
    Up,
    /// Set down: frames arrive again when it is up.
    Down,
    /// Deleted, or moved to another network namespace.
    Gone,
}

/// Returns the error of a capture with an interface that was deleted or moved to another network
/// namespace.
pub fn gone(interface: &str) -> Error {
    Error::new(Kind::Failed, "capture on", interface, "the interface is gone")
}

/// Returns the state of the interface `ifindex` in the socket's namespace, for a socket family
/// without device ioctls of its own (netdevice(7)). The calling thread may be in another namespace.
pub(crate) fn link_state(fd: BorrowedFd<'_>, ifindex: u32, interface: &str) -> Result<LinkState> {
    // SAFETY: ifreq is plain data, for which zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = ifindex as libc::c_int;
    for operation in [libc::SIOCGIFNAME, libc::SIOCGIFFLAGS] {
        // SAFETY: both operations read and write one ifreq.
        let returned = unsafe { libc::ioctl(fd.as_raw_fd(), operation as _, &raw mut request) };
        match check(returned, "read the state of", interface) {
            Err(error) if error.errno() == Some(libc::ENODEV) => return Ok(LinkState::Gone),
            checked => checked?,
        };
    }
    // SAFETY: SIOCGIFFLAGS has filled in the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(if i32::from(flags) & libc::IFF_UP == 0 { LinkState::Down } else { LinkState::Up })
}

/// Adds a remedy for an interface that is down. `is_gone` checks if the socket has lost it
/// altogether.
pub(crate) fn explain(error: Error, interface: &str, is_gone: impl FnOnce() -> bool) -> Error {
    match error.errno() {
        Some(libc::ENODEV) => error.remedy("the interface is gone"),
        Some(libc::ENETDOWN) if is_gone() => error.remedy("the interface is gone"),
        Some(libc::ENETDOWN) => error.remedy(format!("bring it up: ip link set {interface} up")),
        _ => error,
    }
}
