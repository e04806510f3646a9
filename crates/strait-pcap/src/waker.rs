//! Descriptor for programs to poll. It stays the same while the sockets behind it change.
//!
//! It is an epoll instance with the lanes' descriptors and an eventfd, which signals packets that
//! are already waiting.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io;

/// A descriptor to poll.
#[derive(Debug)]
pub(crate) struct Waker {
    epoll: OwnedFd,
    nudge: OwnedFd,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let nudge = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let waker = Self { epoll, nudge };
        waker.watch(waker.nudge.as_fd())?;
        Ok(waker)
    }

    /// Adds `descriptor` to the epoll instance, until it is closed.
    pub(crate) fn watch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
    }

    /// Sets whether packets are waiting that no other descriptor signals.
    pub(crate) fn set_ready(&self, ready: bool) -> io::Result<()> {
        let result = if ready {
            io::write(&self.nudge, &1_u64.to_ne_bytes())
        } else {
            io::read(&self.nudge, &mut [0_u8; 8])
        };
        match result {
            Ok(_) | Err(io::Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Waits until this descriptor or `other` is readable, a signal arrives, or `timeout` has
    /// passed.
    pub(crate) fn wait(&self, other: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN), PollFd::new(&other, PollFlags::IN)];
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the descriptor for the program's poll, select or epoll.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(waker: &Waker) -> bool {
        let mut fds = [PollFd::new(&waker.epoll, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn waker_is_readable_if_set_ready_or_a_descriptor_is() {
        let waker = Waker::new().unwrap();
        assert!(!is_readable(&waker));
        waker.set_ready(true).unwrap();
        waker.set_ready(true).unwrap();
        assert!(is_readable(&waker));
        waker.set_ready(false).unwrap();
        waker.set_ready(false).unwrap();
        assert!(!is_readable(&waker));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        waker.watch(ours.as_fd()).unwrap();
        drop(theirs);
        assert!(is_readable(&waker));
        drop(ours);
        assert!(!is_readable(&waker));
    }
}
