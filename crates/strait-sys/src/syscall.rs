//! Calls on processes and threads that neither the standard library nor rustix makes safe: one
//! function a call, without policy.
//!
//! `process` and `netns` of strait-os use them.

use std::time::Duration;

use rustix::thread::UnshareFlags;

use crate::error::{Error, Result, check};

/// `membarrier(MEMBARRIER_CMD_GLOBAL)`, which is `synchronize_rcu`. Returns false if the kernel
/// refuses it: with nohz_full, and in some sandboxes.
pub fn membarrier_global() -> bool {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: membarrier(2) takes integers.
    let returned = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    returned == 0
}

/// Returns the CPU time of the process `pid`: user and system, of all its threads
/// (clock_getcpuclockid(3)).
pub fn cpu_time_of(pid: u32) -> Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: clock is written only.
    let errno = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) };
    if errno != 0 {
        return Err(Error::os("read the CPU time of", format!("process {pid}"), errno));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is written only.
    let returned = unsafe { libc::clock_gettime(clock, &raw mut time) };
    check(returned, "read the CPU time of", format!("process {pid}"))?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// `wait4(pid, WNOHANG)`: returns the status and the resources of the child `pid` if it has ended,
/// and None while it runs.
pub fn wait4_no_hang(pid: u32) -> Result<Option<(libc::c_int, libc::rusage)>> {
    let (mut status, pid) = (0, pid as libc::pid_t);
    // SAFETY: rusage is plain data, for which zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: status and usage are written only.
    let returned = unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) };
    let is_ended = check(returned, "wait for", format!("process {pid}"))? == pid;
    Ok(is_ended.then_some((status, usage)))
}

/// `alarm(seconds)`: SIGALRM after `seconds`.
pub fn alarm(seconds: u32) {
    // SAFETY: alarm takes one integer and cannot fail.
    unsafe { libc::alarm(seconds) };
}

/// `unshare(CLONE_NEWNET)`: moves the calling thread to a new network namespace.
pub fn unshare_network() -> rustix::io::Result<()> {
    unshare(UnshareFlags::NEWNET)
}

/// `unshare(CLONE_NEWUSER|CLONE_NEWNET)`: moves the calling process, which must have one thread, to
/// new namespaces.
pub fn unshare_user_and_network() -> rustix::io::Result<()> {
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET)
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: the descriptor table stays shared (no CLONE_FILES), so no thread loses a descriptor.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// `close_range(first, last, flags)`, Linux 5.9. Returns false if the kernel refuses it.
///
/// # Safety
/// Without `CLOSE_RANGE_CLOEXEC` no code may use these descriptors after the call.
pub(crate) unsafe fn close_range(first: u32, last: u32, flags: libc::c_uint) -> bool {
    // SAFETY: close_range(2) takes integers; the caller answers for the descriptors.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
}
