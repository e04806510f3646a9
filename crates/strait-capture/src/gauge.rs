//! What a lane's capture has come to so far, for whoever may not touch the lane: another thread, a signal handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::{packet, xdp, zerocopy};

/// Reads the counters of a [`crate::Lane`] at any time, while the lane is in use and from a signal handler too: it takes
/// no lock and allocates nothing.
#[derive(Clone, Debug)]
pub struct Gauge {
    source: Source,
    discarded: Arc<AtomicU64>,
}

#[derive(Clone, Debug)]
pub(crate) enum Source {
    Packet(Arc<packet::Counts>),
    Xdp(Arc<xdp::Counts>),
    ZeroCopy(Arc<zerocopy::Counts>),
    /// A file: the kernel counts nothing.
    None,
}

/// What a [`Gauge`] shows: frames since the capture was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Frames that the filter matched, those dropped included.
    pub received: u64,
    /// Frames of those that found no room.
    pub dropped: u64,
}

impl Gauge {
    pub(crate) fn new(source: Source, discarded: Arc<AtomicU64>) -> Self {
        Self { source, discarded }
    }

    /// The counters as they are now.
    pub fn read(&self) -> Result<Reading, Error> {
        let mut reading = match &self.source {
            Source::Packet(counts) => counts.reading()?,
            Source::Xdp(counts) => counts.reading()?,
            Source::ZeroCopy(counts) => counts.reading()?,
            Source::None => Reading::default(),
        };
        reading.received = reading.received.saturating_sub(self.discarded.load(Ordering::Relaxed));
        Ok(reading)
    }
}
