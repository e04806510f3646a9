//! The time by which freshness is told: the system's, or one that a test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

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
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        }
    }
}
