//! Counters of a lane, readable while the lane is in use: by another thread or a signal handler.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;

/// Reader of the counters of a [`crate::Lane`]. It works while the lane is in use and in a signal
/// handler: it takes no lock and allocates nothing.
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

    /// Returns the number of dropped frames alone.
    fn dropped(&self) -> Result<u64, Error> {
        Ok(self.reading()?.dropped)
    }
}

/// Frames since the capture was opened, as [`LiveCounters`] reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Frames that the filter matched, including dropped ones. It never decreases: a frame that was
    /// reported is still counted after a new filter removes it from the ring.
    pub received: u64,
    /// Matched frames that were dropped because the ring was full.
    pub dropped: u64,
}

/// Part of a lane's count that the kernel does not keep.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Received frames that are not delivered: an earlier filter matched them, or the userspace
    /// filter rejects them.
    pub(crate) discarded: AtomicU64,
    /// Discarded frames that are still counted, because they had been reported before a new filter
    /// removed them from the ring.
    still_counted: AtomicU64,
    /// Highest [`Reading::received`] that was reported.
    reported: AtomicU64,
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
        let reported = self.tally.reported.fetch_max(reading.received, Ordering::Relaxed);
        reading.received = reading.received.max(reported);
        Ok(reading)
    }

    /// Keeps discarded frames in the count if they have been reported. Otherwise the count, which
    /// never decreases, would stay the same until as many new frames have arrived.
    pub(crate) fn keep_reported(&self) -> Result<(), Error> {
        let reported = self.tally.reported.load(Ordering::Relaxed);
        // If nothing was reported, there is nothing to keep in the count.
        if reported > 0 {
            let missing = reported.saturating_sub(self.count()?.received);
            // Pairs with the load in `count`: a reader that loads this value also loads their
            // discard.
            self.tally.still_counted.fetch_add(missing, Ordering::Release);
        }
        Ok(())
    }

    /// Reads the counters. The count includes frames on which the userspace filter has not run yet.
    fn count(&self) -> Result<Reading, Error> {
        let mut reading = match &self.kernel {
            Some(kernel) => kernel.reading()?,
            None => Reading::default(),
        };
        let still_counted = self.tally.still_counted.load(Ordering::Acquire);
        reading.received = (reading.received + still_counted).saturating_sub(self.tally.discarded());
        Ok(reading)
    }
}
