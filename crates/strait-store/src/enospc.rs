//! ENOSPC backoff. When the file system is full before the store reaches its limit, the store
//! evicts as many bytes as were refused, oldest first. If that does not help, because other
//! programs use the space or readers hold the blocks, it retries at growing intervals, so that the
//! stored objects remain. A request that exceeds the store's and the free space together evicts
//! nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::Error;
use crate::file::lock;

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

impl Default for EnospcBackoff {
    fn default() -> Self {
        let pace = Mutex::new(Pace::first());
        Self { lacking_bytes: AtomicU64::new(0), short_bytes: AtomicU64::new(0), pace }
    }
}

impl EnospcBackoff {
    /// Notes that `bytes` were refused.
    pub(crate) fn note_shortage(&self, bytes: u64) {
        self.lacking_bytes.fetch_max(bytes, Ordering::AcqRel);
    }

    /// Takes the refused bytes if there is a shortage and the time to evict for it has come.
    pub(crate) fn take_due(&self) -> Option<u64> {
        let is_due = self.lacking_bytes.load(Ordering::Acquire) > 0 && lock(&self.pace).step();
        if !is_due {
            return None;
        }
        let lacking_bytes = self.lacking_bytes.swap(0, Ordering::AcqRel);
        self.short_bytes.store(lacking_bytes, Ordering::Relaxed);
        Some(lacking_bytes)
    }

    /// Notes that `bytes` were allocated. Resets the pause if they are as many as were refused: the
    /// eviction has helped.
    pub(crate) fn note_allocated(&self, bytes: u64) {
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

    /// Returns true if an eviction is due, and schedules the next one.
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

/// Returns true if a call failed because the file system has no space left.
pub(crate) fn is_no_space(error: &Error) -> bool {
    let Error::System(error) = error else { return false };
    let no_space = [Errno::NOSPC, Errno::DQUOT].map(Errno::raw_os_error);
    error.errno().is_some_and(|errno| no_space.contains(&errno))
}
