//! Waits for descriptors (ppoll(2)) and for time (nanosleep(2)).
//!
//! The engines' wait policies use it and choose the duration.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::error::{Error, Result};

unsafe extern "C-unwind" {
    /// The crate `libc` declares it with another ABI. It is a cancellation point: if
    /// pthread_cancel(3) cancels the thread in it, the stack unwinds through this call.
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        signals: *const libc::sigset_t,
    ) -> libc::c_int;
}

/// Result of polling one descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read does not block: data is available, or the other end of the pipe is closed.
    pub readable: bool,
    /// The descriptor has an error; read it with `SO_ERROR`.
    pub failed: bool,
}

/// Waits until one of `fds` is readable or has failed, a signal arrives, or `timeout` expires.
/// Results have the order of `fds`; after a signal or the timeout none is set. A `None` is never
/// set.
pub fn readable<const N: usize>(
    fds: [Option<BorrowedFd<'_>>; N],
    timeout: Duration,
) -> Result<[Readiness; N]> {
    // poll(2) ignores a negative descriptor.
    let mut polled = fds.map(|fd| libc::pollfd {
        fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    });
    let timeout = libc::timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX) as _,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: N descriptors and the time are readable, the results writable, for the duration of
    // the call.
    let returned =
        unsafe { ppoll(polled.as_mut_ptr(), N as libc::nfds_t, &raw const timeout, std::ptr::null()) };
    if returned < 0 {
        let error = Error::last_os("wait for packets", "");
        return if error.errno() == Some(libc::EINTR) { Ok([Readiness::default(); N]) } else { Err(error) };
    }
    Ok(polled.map(|fd| Readiness {
        readable: fd.revents & (libc::POLLIN | libc::POLLHUP) != 0,
        failed: fd.revents & (libc::POLLERR | libc::POLLNVAL) != 0,
    }))
}

/// Sleeps for `duration`, or until a signal arrives.
pub fn sleep(duration: Duration) {
    let request = rustix::thread::Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    };
    // A signal ends the sleep early; the caller checks its deadline anyway.
    let _ = rustix::thread::nanosleep(&request);
}
