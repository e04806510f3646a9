//! ENOSPC backoff. When the file system is full before the store reaches its limit, the store
//! evicts as many bytes as were refused, oldest first. If that does not help, because others take
//! the space or hold the blocks, it retries at growing intervals, so that the stored objects
//! remain. A request that exceeds the store's and the free space together evicts nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::file::lock;
use crate::lane::Lane;
use crate::shared::Shared;

/// Limit of files evicted at a time for one shortage.
const FILES_MAX: usize = 8;
/// Divisor of the used bytes: limit of the eviction for one shortage.
const EVICTED_PARTS: u64 = 2;
/// First and longest pause between two evictions for shortages. The pause doubles while eviction
/// does not help.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// Refused bytes of the file system, and the time of the next eviction for them.
#[derive(Debug)]
pub(crate) struct EnospcBackoff {
    /// Largest refused request for which nothing was evicted yet, in bytes.
    lacking_bytes: AtomicU64,
    /// Refused request of the last such eviction, in bytes; 0 once an allocation of that size
    /// succeeded.
    short_bytes: AtomicU64,
    pace: Mutex<Pace>,
}

#[derive(Debug)]
struct Pace {
    due: Instant,
    pause: Duration,
}

impl EnospcBackoff {
    pub(crate) fn new() -> Self {
        let pace = Mutex::new(Pace::first());
        Self { lacking_bytes: AtomicU64::new(0), short_bytes: AtomicU64::new(0), pace }
    }

    /// Notes that `bytes` were allocated. Resets the pause if they are as many as were refused: the
    /// eviction has helped.
    fn note_allocated(&self, bytes: u64) {
        let short_bytes = self.short_bytes.load(Ordering::Relaxed);
        if short_bytes > 0 && bytes >= short_bytes {
            self.short_bytes.store(0, Ordering::Relaxed);
            *lock(&self.pace) = Pace::first();
        }
    }

    /// Time until the next eviction for a shortage; `None` if there is no shortage.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        let is_lacking = self.lacking_bytes.load(Ordering::Acquire) > 0;
        is_lacking.then(|| lock(&self.pace).due.saturating_duration_since(Instant::now()))
    }
}

impl Pace {
    fn first() -> Self {
        Self { due: Instant::now(), pause: PAUSE_MIN }
    }

    /// Returns true if the time has come, and schedules the next one.
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
    /// Notes the result of an allocation of `bytes`, and returns it.
    pub(crate) fn allocated<T>(&self, result: Result<T>, bytes: u64) -> Result<T> {
        match &result {
            Ok(_) => self.enospc.note_allocated(bytes),
            Err(error) => self.note_shortage(error, bytes),
        }
        result
    }

    /// Returns true if the file system had no space for `bytes`, but can have it after eviction.
    pub(crate) fn is_short_of(&self, error: &Error, bytes: u64) -> bool {
        let Error::System(error) = error else { return false };
        let no_space = [Errno::NOSPC, Errno::DQUOT].map(Errno::raw_os_error);
        error.errno().is_some_and(|errno| no_space.contains(&errno)) && bytes <= self.within_reach_bytes()
    }

    /// Bytes that the store uses on its file system and that are free there.
    fn within_reach_bytes(&self) -> u64 {
        let free_bytes = self.disk.free_bytes(&self.dir).unwrap_or(u64::MAX);
        self.budget.used_bytes().saturating_add(free_bytes)
    }

    /// Requests eviction if `error` is a shortage of `bytes` that eviction can cure.
    pub(crate) fn note_shortage(&self, error: &Error, bytes: u64) {
        if self.is_short_of(error, bytes) {
            self.enospc.lacking_bytes.fetch_max(bytes, Ordering::AcqRel);
            self.wake();
        }
    }

    /// Seals a segment after a failed write.
    pub(crate) fn seal_failed(&self, lane: &mut Lane, error: &Error) {
        self.seal(lane);
        self.note_shortage(error, self.segment_bytes);
    }

    /// Evicts for a shortage, if there is one and its time has come. Returns true if a file was
    /// evicted. The newest file stays.
    pub(crate) fn evict_for_shortage(&self) -> bool {
        let is_due = self.enospc.lacking_bytes.load(Ordering::Acquire) > 0 && lock(&self.enospc.pace).step();
        if !is_due {
            return false;
        }
        let lacking_bytes = self.enospc.lacking_bytes.swap(0, Ordering::AcqRel);
        self.enospc.short_bytes.store(lacking_bytes, Ordering::Relaxed);
        let wanted_bytes = lacking_bytes.min(self.budget.used_bytes() / EVICTED_PARTS);
        let newest = lock(&self.queue).last_key_value().map(|(position, _)| *position);
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
