//! Counters of the programs, summed over the rings of a lane.

use std::sync::Arc;

use strait_filter::tap::layout;
use strait_sys::bpf::Rings;

use crate::error::Error;
use crate::live_counters::{KernelCounters, Reading};

/// Counters in the rings, read without a system call.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) rings: Arc<Rings>,
    /// Number of the lane, which has every `lanes`th ring from this one on.
    pub(super) lane: usize,
    pub(super) lanes: usize,
}

impl Counts {
    /// Returns the number of frames that were copied into the rings.
    pub(super) fn frames(&self) -> u64 {
        self.sum(layout::FRAMES)
    }

    /// Returns the number of matched frames for which a ring had no room.
    pub(super) fn drops(&self) -> u64 {
        self.sum(layout::DROPS)
    }

    fn sum(&self, field: usize) -> u64 {
        (self.lane..self.rings.count()).step_by(self.lanes).map(|ring| self.rings.counter(ring, field)).sum()
    }
}

impl KernelCounters for Counts {
    fn reading(&self) -> Result<Reading, Error> {
        let dropped = self.drops();
        Ok(Reading { received: self.frames() + dropped, dropped })
    }

    /// Does not load the numbers of frames, which the programs' CPUs write for each one.
    fn dropped(&self) -> Result<u64, Error> {
        Ok(self.drops())
    }
}
