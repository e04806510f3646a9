//! Count of the memory that callers hold.

use std::cell::RefCell;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create};

use crate::error::Error;
use crate::paths::tap::broker::failed;

/// Time for which a closed map counts. The kernel frees its memory after programs that may still
/// use it, in a thread of its own, and does not report it.
const FREE_TIME: Duration = Duration::from_secs(1);

/// Maps that any process has as descriptors or mappings.
///
/// They are entries of an epoll instance, which is never waited for: the kernel removes an entry
/// when the last copy of its descriptor is closed and the last mapping is gone, and /proc lists the
/// others. The broker closes its copy of a map with the tap, but a caller may keep one.
pub(super) struct Held {
    epoll: OwnedFd,
    closed: RefCell<Closed>,
}

/// Maps that are closed everywhere, and perhaps not freed.
#[derive(Default)]
struct Closed {
    /// Bytes of the open maps at the last look.
    open: usize,
    /// Bytes of closed maps, with the time of the look that found them.
    found: Vec<(Instant, usize)>,
}

impl Closed {
    /// Takes the bytes of the open maps `now`. Returns those of the closed ones.
    fn look(&mut self, open: usize, now: Instant) -> usize {
        if let Some(closed) = self.open.checked_sub(open).filter(|closed| *closed > 0) {
            self.found.push((now, closed));
        }
        self.open = open;
        self.found.retain(|(found, _)| now.saturating_duration_since(*found) < FREE_TIME);
        self.found.iter().fold(0, |sum: usize, (_, bytes)| sum.saturating_add(*bytes))
    }
}

impl Held {
    pub(super) fn new() -> Result<Self, Error> {
        let epoll = create(CreateFlags::CLOEXEC).map_err(|errno| failed("count the memory of", errno))?;
        Ok(Self { epoll, closed: RefCell::default() })
    }

    /// Counts `bytes` for a map until it is closed everywhere, and a little longer.
    pub(super) fn add(&self, map: BorrowedFd<'_>, bytes: usize) -> Result<(), Error> {
        add(&self.epoll, map, EventData::new_u64(bytes as u64), EventFlags::empty())
            .map_err(|errno| failed("count the memory of", errno))?;
        let mut closed = self.closed.borrow_mut();
        closed.open = closed.open.saturating_add(bytes);
        Ok(())
    }

    /// Returns the bytes of all maps that are not closed everywhere, or may not be freed `now`.
    pub(super) fn bytes(&self, now: Instant) -> Result<usize, Error> {
        let path = format!("/proc/self/fdinfo/{}", self.epoll.as_raw_fd());
        let entries = std::fs::read_to_string(&path)
            .map_err(|error| strait_sys::Error::from_io("read", path, &error))?;
        let entries = entries.lines().filter_map(|line| line.strip_prefix("tfd:"));
        // An entry of a format that is not known counts for everything.
        let open = entries.map(|entry| bytes_of(entry).unwrap_or(usize::MAX)).fold(0, usize::saturating_add);
        Ok(open.saturating_add(self.closed.borrow_mut().look(open, now)))
    }
}

/// Returns the bytes of an entry (`ep_show_fdinfo` in fs/eventpoll.c).
fn bytes_of(entry: &str) -> Option<usize> {
    let (_, rest) = entry.split_once("data:")?;
    usize::from_str_radix(rest.split_whitespace().next()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn bytes_count_until_the_last_copy_is_closed_and_freed() {
        let held = Held::new().unwrap();
        let [first, second] = [0, 1].map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        held.add(first.as_fd(), 0x1000).unwrap();
        held.add(second.as_fd(), 5).unwrap();
        let copy = first.try_clone().unwrap();
        drop(first);
        let now = Instant::now();
        assert_eq!(held.bytes(now).unwrap(), 0x1005);
        drop(copy);
        assert_eq!(held.bytes(now).unwrap(), 0x1005);
        assert_eq!(held.bytes(now + FREE_TIME / 2).unwrap(), 0x1005);
        assert_eq!(held.bytes(now + FREE_TIME).unwrap(), 5);
    }
}
