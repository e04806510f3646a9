//! Clock for freshness calculations: the system's, or one that a test sets.

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

    /// Clock that stands still until [`Clock::advance`]; its clones show the same time.
    pub fn fixed(seconds: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(seconds))))
    }

    /// Advances a fixed clock.
    pub fn advance(&self, seconds: u64) {
        if let Some(now) = &self.0 {
            now.fetch_add(seconds, Ordering::SeqCst);
        }
    }

    /// Returns the time in seconds since 1970; 0 for earlier times.
    pub fn now(&self) -> u64 {
        match &self.0 {
            Some(now) => now.load(Ordering::SeqCst),
            // The coarse clock is some milliseconds late and costs a fifth; only seconds matter
            // here.
            None => clock_gettime(ClockId::RealtimeCoarse).tv_sec.try_into().unwrap_or(0),
        }
    }
}
