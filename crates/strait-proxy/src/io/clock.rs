//! The time by which freshness is told: the system's, or one that a test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// Seconds since 1970.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<AtomicU64>>);

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self(None)
    }

    /// A clock that stands until it is told to go on; its clones stand with it.
    pub fn fixed(seconds: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(seconds))))
    }

    /// Goes on by so many seconds, if it is one that stands.
    pub fn advance(&self, seconds: u64) {
        if let Some(now) = &self.0 {
            now.fetch_add(seconds, Ordering::SeqCst);
        }
    }

    /// What it shows. A system whose clock is before 1970 is in 1970.
    pub fn now(&self) -> u64 {
        match &self.0 {
            Some(now) => now.load(Ordering::SeqCst),
            // Some milliseconds late, and a fifth of the cost: seconds are all that counts.
            None => clock_gettime(ClockId::RealtimeCoarse).tv_sec.try_into().unwrap_or(0),
        }
    }
}
