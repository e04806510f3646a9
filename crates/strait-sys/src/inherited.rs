//! Descriptors that another process opened for this one: those of the service manager
//! (sd_listen_fds(3)), and single ones.
//!
//! `service` of strait-os takes the service manager's once and checks that they are sockets. The
//! tap of the capture engine duplicates the socket of its broker, which takes its standard input.

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result, check};
use crate::syscall::close_range;

/// First descriptor (`SD_LISTEN_FDS_START`).
pub(crate) const FIRST: i32 = 3;
/// Maximum number of descriptors.
pub(crate) const DESCRIPTORS_MAX: i32 = 4096;
/// Name of a descriptor without one (sd_listen_fds_with_names(3)).
const UNNAMED: &str = "unknown";

/// Takes the descriptors that the environment variables `LISTEN_PID`, `LISTEN_FDS` and
/// `LISTEN_FDNAMES` announce, with their names, and closes them on execve(2). Empty if they are
/// meant for another process.
///
/// # Errors
/// EBADF if one of them is not open.
///
/// # Panics
/// If it is called twice: the first call took ownership of the descriptors.
pub fn descriptors() -> Result<Vec<(String, OwnedFd)>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<i32>().ok());
    let is_for_this = number("LISTEN_PID") == Some(std::process::id() as i32);
    let count = number("LISTEN_FDS").filter(|_| is_for_this).unwrap_or(0).clamp(0, DESCRIPTORS_MAX);
    assert!(!TAKEN.swap(true, Ordering::SeqCst), "the inherited sockets were taken before");
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').filter(|name| !name.is_empty()).chain(std::iter::repeat(UNNAMED));
    (FIRST..FIRST + count).zip(names).map(|(number, name)| Ok((name.to_owned(), take(number)?))).collect()
}

fn take(number: i32) -> Result<OwnedFd> {
    // SAFETY: fcntl(2) fails on a number that is not a descriptor.
    let returned = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    check(returned, "take over", format!("descriptor {number}"))?;
    // SAFETY: the descriptor is open, and the service manager opened it for this process: it has no
    // other owner here and is taken once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Duplicates the descriptor with this number. The duplicate is closed on execve(2).
///
/// # Errors
/// EBADF if it is not open.
pub fn duplicate(number: i32) -> Result<OwnedFd> {
    // SAFETY: fcntl(2) fails on a number that is not a descriptor.
    let returned = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, FIRST) };
    let duplicate = check(returned, "duplicate", format!("descriptor {number}"))?;
    // SAFETY: the kernel has just made this descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(duplicate) })
}

/// Closes all descriptors but the standard streams on execve(2). For a program that gets
/// descriptors for which it has no use.
pub fn close_on_exec() -> Result<()> {
    // SAFETY: no descriptor is closed before the program is replaced.
    let is_done = unsafe { close_range(FIRST as u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if is_done { Ok(()) } else { Err(Error::last_os("close on exec", "the inherited descriptors")) }
}

/// Takes the standard input, and opens /dev/null in its place.
pub fn take_standard_input() -> Result<OwnedFd> {
    const NULL: &str = "/dev/null";
    let taken = duplicate(libc::STDIN_FILENO)?;
    let null = File::open(NULL).map_err(|error| Error::from_io("open", NULL, &error))?;
    // SAFETY: dup2(2) takes integers. The standard input stays open, which is all that its other
    // users in this process rely on.
    let returned = unsafe { libc::dup2(null.as_raw_fd(), libc::STDIN_FILENO) };
    check(returned, "replace", "the standard input")?;
    Ok(taken)
}
