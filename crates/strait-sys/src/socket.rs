//! Code common to sockets of several families: options, state of the link, and remedies for its
//! errors.
//!
//! Packet sockets, `PF_ZEROCOPY` and the netlink sockets of strait-os use it; AF_XDP has its own
//! errors.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Error, Kind, Result, check};
use crate::packet::Instruction;

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

/// Enables an option of a netlink socket (`setsockopt(fd, SOL_NETLINK, option, 1)`).
pub fn enable_netlink_option(fd: BorrowedFd<'_>, option: libc::c_int) -> Result<()> {
    let one: libc::c_int = 1;
    set(fd, (libc::SOL_NETLINK, option), &one, ("setsockopt", "netlink route socket"))
}

/// Returns the number of the socket's network namespace (`SO_NETNS_COOKIE`, Linux 5.14).
pub fn namespace_cookie(fd: BorrowedFd<'_>) -> Result<u64> {
    let mut cookie = 0;
    let option = (libc::SOL_SOCKET, libc::SO_NETNS_COOKIE);
    get(fd, option, &mut cookie, ("read the network namespace of", "a socket"))?;
    Ok(cookie)
}

/// Attaches a classic BPF program (`SO_ATTACH_FILTER`), and replaces an earlier one; errors name
/// `doing` and `subject`.
pub fn attach_filter(
    fd: BorrowedFd<'_>,
    program: &[Instruction],
    (doing, subject): (&'static str, &str),
) -> Result<()> {
    let mut filter: Vec<libc::sock_filter> =
        program.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
    let len = u16::try_from(filter.len())
        .map_err(|_| Error::new(Kind::Usage, doing, subject, "more than 65535 instructions"))?;
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    set(fd, (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER), &program, (doing, subject))
}

/// Removes the filter (`SO_DETACH_FILTER`): every frame is received from now on. Does nothing on a
/// socket without a filter.
pub(crate) fn detach_filter(fd: BorrowedFd<'_>, interface: &str) -> Result<()> {
    let option = (libc::SOL_SOCKET, libc::SO_DETACH_FILTER);
    let detached = set(fd, option, &0_i32, ("detach the filter from", interface));
    detached.or_else(|error| if error.errno() == Some(libc::ENOENT) { Ok(()) } else { Err(error) })
}

/// Attaches a filter that rejects every frame.
pub(crate) fn reject_all(fd: BorrowedFd<'_>, interface: &str) -> Result<()> {
    const RET_ZERO: Instruction = (0x06, 0, 0, 0);
    attach_filter(fd, &[RET_ZERO], ("attach a filter to", interface))
}

/// Returns true if the socket's filter can no longer be changed (`SO_LOCK_FILTER`).
pub fn is_filter_locked(fd: BorrowedFd<'_>) -> Result<bool> {
    let mut is_locked: libc::c_int = 0;
    let option = (libc::SOL_SOCKET, libc::SO_LOCK_FILTER);
    get(fd, option, &mut is_locked, ("read an option of", "a socket"))?;
    Ok(is_locked != 0)
}

/// `getsockopt(2)` into plain integers; errors name `doing` and `interface`. Returns the number of
/// bytes that the kernel wrote.
pub(crate) fn get<T: Copy>(
    fd: BorrowedFd<'_>,
    (level, option): (libc::c_int, libc::c_int),
    value: &mut T,
    (doing, interface): (&'static str, &str),
) -> Result<usize> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: value points at len writable bytes; every T used is plain integers, valid for any
    // bytes.
    let returned =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut *value).cast(), &raw mut len) };
    check(returned, doing, interface).map(|_| len as usize)
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
    Removed,
}

/// Cause or remedy of an error if the interface was deleted or moved to another network namespace.
pub(crate) const INTERFACE_REMOVED: &str = "the interface was removed";

/// Returns the error of a capture on an interface that was deleted or moved to another network
/// namespace.
pub fn interface_removed(interface: &str) -> Error {
    Error::new(Kind::Failed, "capture on", interface, INTERFACE_REMOVED)
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
            Err(error) if error.errno() == Some(libc::ENODEV) => return Ok(LinkState::Removed),
            checked => checked?,
        };
    }
    // SAFETY: SIOCGIFFLAGS has filled in the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(if i32::from(flags) & libc::IFF_UP == 0 { LinkState::Down } else { LinkState::Up })
}

/// Adds a remedy for an interface that is down. `is_removed` checks if it was removed: packet
/// sockets then report ENETDOWN too.
pub(crate) fn explain(error: Error, interface: &str, is_removed: impl FnOnce() -> bool) -> Error {
    match error.errno() {
        Some(libc::ENODEV) => error.remedy(INTERFACE_REMOVED),
        Some(libc::ENETDOWN) if is_removed() => error.remedy(INTERFACE_REMOVED),
        Some(libc::ENETDOWN) => error.remedy(format!("bring it up: ip link set {interface} up")),
        _ => error,
    }
}
