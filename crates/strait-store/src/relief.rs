//! A file system that is full though the limit is not reached: as much is evicted as it lacked, the oldest first, so that the store
//! goes on in the room that there is. Where that does not help, for others take the room or the blocks do not come back, it is
//! tried ever less often, and what is stored stays. What is more than there can ever be costs nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::file::lock;
use crate::lane::Lane;
use crate::shared::Shared;

/// Files that are evicted at a time for this at most.
const FILES_MAX: usize = 8;
/// At most this part of what the store has is evicted for one refusal.
const EVICTED_PARTS: u64 = 2;
/// How long it is left at that: at first, and when it has not helped again and again.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// What the file system lacks, and when something is done about it.
#[derive(Debug)]
pub(crate) struct Relief {
    /// Bytes that it refused, and for which nothing was evicted yet.
    lacking_bytes: AtomicU64,
    /// Bytes that it had refused when something was last evicted for its sake; 0 if it has had room for as many since.
    short_bytes: AtomicU64,
    pace: Mutex<Pace>,
}

#[derive(Debug)]
struct Pace {
    due: Instant,
    pause: Duration,
}

impl Relief {
    pub(crate) fn new() -> Self {
        let pace = Mutex::new(Pace::first());
        Self { lacking_bytes: AtomicU64::new(0), short_bytes: AtomicU64::new(0), pace }
    }

    /// Notes that there was room for `bytes`: whether eviction helps is seen where as much is had as was refused.
    fn note_room(&self, bytes: u64) {
        let short_bytes = self.short_bytes.load(Ordering::Relaxed);
        if short_bytes > 0 && bytes >= short_bytes {
            self.short_bytes.store(0, Ordering::Relaxed);
            *lock(&self.pace) = Pace::first();
        }
    }

    /// How long until something is to be evicted for the file system's sake, if anything is.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        let is_lacking = self.lacking_bytes.load(Ordering::Acquire) > 0;
        is_lacking.then(|| lock(&self.pace).due.saturating_duration_since(Instant::now()))
    }
}

impl Pace {
    fn first() -> Self {
        Self { due: Instant::now(), pause: PAUSE_MIN }
    }

    /// Whether it is time; if so, the next is later.
    fn step(&mut self) -> bool {
        let now = Instant::now();
        let is_due = now >= self.due;
        if is_due {
            self.due = now + self.pause;
            self.pause = (2 * self.pause).min(PAUSE_MAX);
        }
        is_due
    }
}

impl Shared {
    /// Passes on what the file system said to a request for `bytes`, and takes note of it.
    pub(crate) fn allocated<T>(&self, said: Result<T>, bytes: u64) -> Result<T> {
        match &said {
            Ok(_) => self.relief.note_room(bytes),
            Err(error) => self.note_shortage(error, bytes),
        }
        said
    }

    /// Whether the file system had no room for `bytes`, but may have if enough of what is stored goes.
    pub(crate) fn is_short_of(&self, error: &Error, bytes: u64) -> bool {
        let Error::System(error) = error else { return false };
        let no_room = [Errno::NOSPC, Errno::DQUOT].map(Errno::raw_os_error);
        error.errno().is_some_and(|errno| no_room.contains(&errno)) && bytes <= self.within_reach_bytes()
    }

    /// What the store has on its file system, and what is free there.
    fn within_reach_bytes(&self) -> u64 {
        let free_bytes = self.disk.free_bytes(&self.dir).unwrap_or(u64::MAX);
        self.budget.used_bytes().saturating_add(free_bytes)
    }

    /// Has room made on the file system, if it had none for `bytes` and ever can.
    pub(crate) fn note_shortage(&self, error: &Error, bytes: u64) {
        if self.is_short_of(error, bytes) {
            self.relief.lacking_bytes.fetch_max(bytes, Ordering::AcqRel);
            self.wake();
        }
    }

    /// Gives up a segment that could not be written to.
    pub(crate) fn spoilt(&self, lane: &mut Lane, error: &Error) {
        self.seal(lane);
        self.note_shortage(error, self.segment_bytes);
    }

    /// Evicts what the file system lacks, if it is time for that; whether anything was evicted. The newest file stays.
    pub(crate) fn relieve(&self) -> bool {
        let is_due = self.relief.lacking_bytes.load(Ordering::Acquire) > 0 && lock(&self.relief.pace).step();
        if !is_due {
            return false;
        }
        let lacking_bytes = self.relief.lacking_bytes.swap(0, Ordering::AcqRel);
        self.relief.short_bytes.store(lacking_bytes, Ordering::Relaxed);
        let wanted_bytes = lacking_bytes.min(self.budget.used_bytes() / EVICTED_PARTS);
        let newest = lock(&self.queue).last_key_value().map(|(turn, _)| *turn);
        let (mut freed_bytes, mut files) = (0, 0);
        while freed_bytes < wanted_bytes && files < FILES_MAX {
            let Some(bytes) = newest.and_then(|newest| self.evict_before(newest)) else { break };
            self.close_unlinked();
            freed_bytes += bytes;
            files += 1;
        }
        files > 0
    }
}
