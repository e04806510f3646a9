//! Waiting: for descriptors (ppoll(2)) and for time (nanosleep(2)).
//!
//! The engines' wait policies call it; it never decides how long.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// What became of one descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read does not block: there is something, or the other end of the pipe is closed.
    pub readable: bool,
    /// It has an error: ask the socket which (`SO_ERROR`).
    pub failed: bool,
}

/// Waits until one of `fds` is readable or has failed, a signal arrives, or `timeout` is over. The results stand in
/// the order of `fds`; after a signal or the timeout none is set.
pub fn readable<const N: usize>(fds: [BorrowedFd<'_>; N], timeout: Duration) -> Result<[Readiness; N]> {
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    match poll(&mut polled, Some(&timeout)) {
        Ok(0) | Err(Errno::INTR) => return Ok([Readiness::default(); N]),
        Ok(_) => {}
        Err(errno) => return Err(Error::os("wait for packets", "", errno.raw_os_error())),
    }
    Ok(polled.map(|fd| Readiness {
        readable: fd.revents().intersects(PollFlags::IN | PollFlags::HUP),
        failed: fd.revents().intersects(PollFlags::ERR | PollFlags::NVAL),
    }))
}

/// Sleeps for `duration`, or until a signal arrives.
pub fn sleep(duration: Duration) {
    let request = rustix::thread::Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    };
    // A signal ends the sleep early; the caller looks at its deadline anyway.
    let _ = rustix::thread::nanosleep(&request);
}
