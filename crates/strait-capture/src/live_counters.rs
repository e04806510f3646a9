//! Counters of a lane, readable while the lane is in use: by another thread or a signal handler.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;

/// Reader of the counters of a [`crate::Lane`]. It works at any time, while the lane is in use and
/// in a signal handler: it takes no lock and allocates nothing.
#[derive(Clone, Debug)]
pub struct LiveCounters {
    /// None for a file: the kernel counts nothing.
    kernel: Option<Arc<dyn KernelCounters>>,
    tally: Arc<Tally>,
}

/// The kernel's counters of one queue.
pub(crate) trait KernelCounters: Debug + Send + Sync {
    /// Returns the frames that passed the kernel's filter, and how many of them were dropped.
    fn reading(&self) -> Result<Reading, Error>;
}

/// Frames since the capture was opened, as [`LiveCounters`] reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Frames that the filter matched, dropped ones included. It never falls: a frame that was
    /// reported still counts after a new filter removes it from the ring.
    pub received: u64,
    /// Matched frames that were dropped because the ring was full.
    pub dropped: u64,
}

/// Part of a lane's count that the kernel does not know.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Received frames that are not delivered: an earlier filter matched them, or the userspace
    /// filter rejects them.
    pub(crate) discarded: AtomicU64,
    /// Discarded frames that had been reported before a new filter removed them from the ring.
    kept: AtomicU64,
    /// Highest [`Reading::received`] that was reported.
    shown: AtomicU64,
}

impl Tally {
    /// Returns the number of received frames that are not delivered.
    pub(crate) fn discarded(&self) -> u64 {
        self.discarded.load(Ordering::Relaxed)
    }
}

impl LiveCounters {
    pub(crate) fn new(kernel: Option<Arc<dyn KernelCounters>>, tally: Arc<Tally>) -> Self {
        Self { kernel, tally }
    }

    /// Reads the counters.
    pub fn read(&self) -> Result<Reading, Error> {
        let mut reading = self.count()?;
        let shown = self.tally.shown.fetch_max(reading.received, Ordering::Relaxed);
        reading.received = reading.received.max(shown);
        Ok(reading)
    }

    /// Keeps discarded frames in the count as far as they have been reported. Otherwise the count
    /// would stand still until as many new frames arrive.
    pub(crate) fn keep_shown(&self) -> Result<(), Error> {
        let shown = self.tally.shown.load(Ordering::Relaxed);
        // Nothing was reported, so there is nothing to keep.
        if shown > 0 {
            let missing = shown.saturating_sub(self.count()?.received);
            // Pairs with the load in `count`: a reader that adds these has seen them discarded.
            self.tally.kept.fetch_add(missing, Ordering::Release);
        }
        Ok(())
    }

    /// Reads the counters; frames that the userspace filter has yet to judge are in the count.
    fn count(&self) -> Result<Reading, Error> {
        let mut reading = match &self.kernel {
            Some(kernel) => kernel.reading()?,
            None => Reading::default(),
        };
        let kept = self.tally.kept.load(Ordering::Acquire);
        reading.received = (reading.received + kept).saturating_sub(self.tally.discarded());
        Ok(reading)
    }
}
