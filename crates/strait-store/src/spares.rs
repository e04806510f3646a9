//! Spare segments: made ahead by the eviction thread, taken by lanes, so that no writing thread
//! waits for the file system. Their wanted number follows the demand. It doubles when a lane takes
//! the last one, and shrinks by one when many were taken and half of them were never needed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::file::{SegmentFile, lock};

/// Least and greatest number of wanted spare segments.
pub(crate) const SPARES_MIN: usize = 2;
const SPARES_MAX: usize = 16;
/// The spares above [`SPARES_MIN`] are at most this part of the capacity.
const CAPACITY_DIVISOR: u64 = 20;
/// Number of taken spares after which the wanted number may shrink. After a failure it does not
/// grow before so many were taken.
const PERIOD: u32 = 16;

/// Spare segments.
#[derive(Debug)]
pub(crate) struct Spares(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Oldest first.
    ready: VecDeque<Arc<SegmentFile>>,
    wanted: Wanted,
}

impl Spares {
    /// Makes the list of a store with `capacity_bytes` in segments of `segment_bytes`.
    pub(crate) fn new(capacity_bytes: u64, segment_bytes: u64) -> Self {
        let wanted = Wanted::new(capacity_bytes / CAPACITY_DIVISOR / segment_bytes.max(1));
        Self(Mutex::new(State { ready: VecDeque::new(), wanted }))
    }

    /// Takes the oldest spare: a start takes the order of the numbers for that of use.
    pub(crate) fn take(&self) -> Option<Arc<SegmentFile>> {
        let mut state = lock(&self.0);
        let taken = state.ready.pop_front()?;
        let left = state.ready.len();
        state.wanted.note_taken(left);
        Some(taken)
    }

    /// Takes the oldest spare for a lane that has found none before, which was noted then.
    pub(crate) fn take_late(&self) -> Option<Arc<SegmentFile>> {
        lock(&self.0).ready.pop_front()
    }

    /// Notes that a lane has found no spare.
    pub(crate) fn note_missed(&self) {
        lock(&self.0).wanted.note_taken(0);
    }

    /// Takes all spares.
    pub(crate) fn take_all(&self) -> VecDeque<Arc<SegmentFile>> {
        std::mem::take(&mut lock(&self.0).ready)
    }

    /// Adds a spare.
    pub(crate) fn add(&self, segment: Arc<SegmentFile>) {
        lock(&self.0).ready.push_back(segment);
    }

    /// Notes that the file system did not make a segment: more spares would only evict objects.
    pub(crate) fn note_failed(&self) {
        lock(&self.0).wanted.note_failed();
    }

    /// Number of spares to make.
    pub(crate) fn lacking(&self) -> usize {
        let state = lock(&self.0);
        state.wanted.count.saturating_sub(state.ready.len())
    }

    /// Number of spares.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        lock(&self.0).ready.len()
    }

    /// Wanted number of spares.
    #[cfg(test)]
    pub(crate) fn wanted(&self) -> usize {
        lock(&self.0).wanted.count
    }

    /// Greatest number of spares.
    #[cfg(test)]
    pub(crate) fn count_max(&self) -> usize {
        lock(&self.0).wanted.count_max
    }
}

/// Wanted number of spares.
#[derive(Debug)]
struct Wanted {
    count: usize,
    count_max: usize,
    /// Spares taken in this period.
    taken: u32,
    /// Least number of spares that a taken one has left in this period.
    left_min: usize,
    /// Number of spares to be taken before the count may grow.
    pause: u32,
}

impl Wanted {
    fn new(count_max: u64) -> Self {
        let count_max = usize::try_from(count_max).unwrap_or(SPARES_MAX).clamp(SPARES_MIN, SPARES_MAX);
        Self { count: SPARES_MIN, count_max, taken: 0, left_min: usize::MAX, pause: 0 }
    }

    /// Notes that a lane needed a spare, and that `left` are left.
    fn note_taken(&mut self, left: usize) {
        self.pause = self.pause.saturating_sub(1);
        self.left_min = self.left_min.min(left);
        self.taken += 1;
        if left == 0 && self.pause == 0 {
            self.count = (2 * self.count).min(self.count_max);
            self.begin_period();
        } else if self.taken >= PERIOD {
            if self.left_min > self.count / 2 {
                self.count = (self.count - 1).max(SPARES_MIN);
            }
            self.begin_period();
        }
    }

    fn note_failed(&mut self) {
        self.count = SPARES_MIN;
        self.pause = PERIOD;
        self.begin_period();
    }

    fn begin_period(&mut self) {
        (self.taken, self.left_min) = (0, usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `taken` spares, of which the last leaves `left`, and returns the wanted number.
    fn take(wanted: &mut Wanted, taken: u32, left: usize) -> usize {
        (0..taken).for_each(|_| wanted.note_taken(left));
        wanted.count
    }

    #[test]
    fn wanted_number_doubles_with_the_last_spare_up_to_its_limit() {
        let mut wanted = Wanted::new(6);
        assert_eq!(take(&mut wanted, 1, 1), SPARES_MIN);
        let counts: Vec<_> = (0..3).map(|_| take(&mut wanted, 1, 0)).collect();
        assert_eq!(counts, [4, 6, 6]);
        for (most, count_max) in [(0, SPARES_MIN), (9, 9), (u64::MAX, SPARES_MAX)] {
            assert_eq!(take(&mut Wanted::new(most), 9, 0), count_max);
        }
    }

    #[test]
    fn wanted_number_shrinks_while_half_of_the_spares_are_not_needed() {
        let mut wanted = Wanted::new(8);
        assert_eq!(take(&mut wanted, 2, 0), 8);
        assert_eq!(take(&mut wanted, PERIOD, 5), 7);
        assert_eq!(take(&mut wanted, PERIOD, 4), 6);
        assert_eq!(take(&mut wanted, 4 * PERIOD, 3), 6);
        assert_eq!(take(&mut wanted, 9 * PERIOD, 6), SPARES_MIN);
    }

    #[test]
    fn wanted_number_does_not_grow_while_the_file_system_fails() {
        let mut wanted = Wanted::new(8);
        assert_eq!(take(&mut wanted, 2, 0), 8);
        wanted.note_failed();
        assert_eq!(take(&mut wanted, PERIOD - 1, 0), SPARES_MIN);
        assert_eq!(take(&mut wanted, 1, 0), 2 * SPARES_MIN);
    }
}
