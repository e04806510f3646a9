//! What a lane's capture has come to so far, for whoever may not touch the lane: another thread, a
//! signal handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::paths::{packet, xdp, zerocopy};

/// Reads the counters of a [`crate::Lane`] at any time, while the lane is in use and from a signal
/// handler too: it takes no lock and allocates nothing.
#[derive(Clone, Debug)]
pub struct LiveCounters {
    source: Source,
    tally: Arc<Tally>,
}

#[derive(Clone, Debug)]
pub(crate) enum Source {
    Packet(Arc<packet::Counts>),
    Xdp(Arc<xdp::Counts>),
    ZeroCopy(Arc<zerocopy::Counts>),
    /// A file: the kernel counts nothing.
    None,
}

/// What a [`LiveCounters`] shows: frames since the capture was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Frames that the filter matched, those dropped included. It never falls: frames that a
    /// reading counted and that another filter took out of the ring afterwards still count.
    pub received: u64,
    /// Frames of those that found no room.
    pub dropped: u64,
}

/// The part of a lane's count that the kernel does not know.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Received frames that are not lent: an earlier filter matched them, or the userspace filter
    /// rejects them.
    pub(crate) discarded: AtomicU64,
    /// Frames of those that a reading had counted before another filter took them out of the ring.
    kept: AtomicU64,
    /// [`Reading::received`] at its highest.
    shown: AtomicU64,
}

impl Tally {
    /// Received frames that are not lent.
    pub(crate) fn discarded(&self) -> u64 {
        self.discarded.load(Ordering::Relaxed)
    }
}

impl LiveCounters {
    pub(crate) fn new(source: Source, tally: Arc<Tally>) -> Self {
        Self { source, tally }
    }

    /// The counters as they are now.
    pub fn read(&self) -> Result<Reading, Error> {
        let mut reading = self.count()?;
        let shown = self.tally.shown.fetch_max(reading.received, Ordering::Relaxed);
        reading.received = reading.received.max(shown);
        Ok(reading)
    }

    /// Lets frames that were discarded count on as far as a reading has counted them: those that
    /// come later must raise the count at once, not only when they have made up for these.
    pub(crate) fn keep_shown(&self) -> Result<(), Error> {
        let shown = self.tally.shown.load(Ordering::Relaxed);
        // Without a reading so far the kernel need not be asked.
        if shown > 0 {
            let missing = shown.saturating_sub(self.count()?.received);
            // Pairs with the load in `count`: a reader that adds these has seen them discarded.
            self.tally.kept.fetch_add(missing, Ordering::Release);
        }
        Ok(())
    }

    /// The counters, in which frames that the userspace filter has yet to judge count until it rejects them.
    fn count(&self) -> Result<Reading, Error> {
        let mut reading = match &self.source {
            Source::Packet(counts) => counts.reading()?,
            Source::Xdp(counts) => counts.reading()?,
            Source::ZeroCopy(counts) => counts.reading()?,
            Source::None => Reading::default(),
        };
        let kept = self.tally.kept.load(Ordering::Acquire);
        reading.received = (reading.received + kept).saturating_sub(self.tally.discarded());
        Ok(reading)
    }
}
