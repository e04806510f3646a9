//! Low-water mark for long bodies that arrive in small pieces.
//!
//! Each piece costs a wake-up and some system calls. If pieces arrive so fast that many of them
//! come within [`GATHER`], the socket reports bytes only when that many have arrived
//! (`SO_RCVLOWAT`). The mark is never higher than the bytes that are due, so the end of a body
//! needs no further bytes, and the connection has no mark when its next message is read. If the
//! peer becomes slower, the mark is removed after [`LATE`]. The end of the connection is reported
//! whatever the mark.
//!
//! [`crate::io::socket`] sets the mark that is returned here.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Time in which the bytes of a mark arrive at the measured rate: the delay of the first of them.
const GATHER: Duration = Duration::from_millis(2);
/// Longest wait for the bytes of a mark.
const LATE: Duration = Duration::from_millis(5);
/// Reads by which the rate is measured, and maximum after marks that were not reached in time.
const READS: u32 = 8;
const READS_MAX: u32 = 1024;
/// Lowest and highest mark. A higher one would hold more of the receive buffer.
const MARK_MIN: u64 = 16 << 10;
const MARK_MAX: u64 = 64 << 10;

/// Low-water mark of a connection.
#[derive(Debug)]
pub(crate) struct LowWater {
    /// Mark of the socket in bytes; 0 without one.
    mark: u32,
    /// Reads that are measured before a mark is set.
    needed: u32,
    /// Start, reads and bytes of the measurement.
    begun: Option<Instant>,
    reads: u32,
    bytes: u64,
    /// Limit of a wait for the bytes of the mark, and true while it runs.
    timer: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl Default for LowWater {
    fn default() -> Self {
        let (timer, is_waiting) = (None, false);
        Self { mark: 0, needed: READS, begun: None, reads: 0, bytes: 0, timer, is_waiting }
    }
}

impl LowWater {
    /// Notes a read of `bytes` bytes, of which `due` more follow in the body. Returns the mark to
    /// set, if it changes.
    pub(crate) fn note(&mut self, bytes: u64, due: u64, now: impl FnOnce() -> Instant) -> Option<u32> {
        self.is_waiting = false;
        if self.mark > 0 {
            if bytes >= u64::from(self.mark) {
                self.needed = READS;
            }
            return if u64::from(self.mark) > due { self.remove() } else { None };
        }
        let Some(begun) = self.begun else {
            self.begun = Some(now());
            return None;
        };
        self.reads += 1;
        self.bytes += bytes;
        if self.reads < self.needed {
            return None;
        }
        let elapsed_us = now().duration_since(begun).as_micros().max(1) as u64;
        let mark = (self.bytes.saturating_mul(GATHER.as_micros() as u64) / elapsed_us).min(MARK_MAX);
        let has_gain = mark >= MARK_MIN && mark >= 2 * self.bytes / u64::from(self.reads);
        (self.begun, self.reads, self.bytes) = (None, 0, 0);
        if !has_gain || due < 2 * mark {
            return None;
        }
        self.mark = mark as u32;
        Some(self.mark)
    }

    /// Polls the limit of a wait for the bytes of the mark. Returns true if the mark is to be
    /// removed: the peer has become slower.
    pub(crate) fn poll_late(&mut self, context: &mut Context<'_>) -> bool {
        if self.mark == 0 {
            return false;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(LATE)));
        if !std::mem::replace(&mut self.is_waiting, true) {
            timer.as_mut().reset(Instant::now() + LATE);
        }
        if timer.as_mut().poll(context).is_pending() {
            return false;
        }
        self.needed = (2 * self.needed).min(READS_MAX);
        self.remove().is_some()
    }

    /// Removes the mark. Returns the one to set, if it changes.
    pub(crate) fn remove(&mut self) -> Option<u32> {
        (self.begun, self.reads, self.bytes, self.is_waiting) = (None, 0, 0, false);
        (std::mem::take(&mut self.mark) > 0).then_some(NONE)
    }
}

/// Mark of a socket without one: any byte is reported.
const NONE: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes `reads` reads of `bytes` bytes, each after `every`; returns the last answer.
    fn note(low_water: &mut LowWater, reads: u32, bytes: u64, every: Duration, due: u64) -> Option<u32> {
        let begin = Instant::now();
        (0..reads).map(|read| low_water.note(bytes, due, || begin + every * read)).last().flatten()
    }

    #[test]
    fn small_pieces_at_a_high_rate_get_a_mark_that_never_exceeds_the_due_bytes() {
        let every = Duration::from_micros(200);
        let mut low_water = LowWater::default();
        assert_eq!(note(&mut low_water, READS, 8192, every, 1 << 20), None, "too few reads");
        let mut low_water = LowWater::default();
        assert_eq!(note(&mut low_water, READS + 1, 8192, every, 1 << 20), Some(MARK_MAX as u32));
        assert_eq!(note(&mut low_water, 1, 65_536, every, 65_536), None);
        assert_eq!(note(&mut low_water, 1, 8192, every, 65_535), Some(NONE));
        assert_eq!(note(&mut low_water, READS, 8192, every, 1 << 20), None, "measured anew");
        let mut low_water = LowWater::default();
        assert_eq!(note(&mut low_water, READS + 1, 8192, every, 2 * MARK_MAX - 1), None, "a short rest");
        assert_eq!(note(&mut low_water, READS + 1, 8192, every, 0), None);
    }

    #[test]
    fn slow_or_large_pieces_get_no_mark() {
        for (bytes, every_us) in [(1000, 1000), (8192, 1100), (40_000, 100), (65_536, 1)] {
            let mut low_water = LowWater::default();
            let every = Duration::from_micros(every_us);
            assert_eq!(note(&mut low_water, 10 * READS, bytes, every, 1 << 30), None, "{bytes} {every_us}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn mark_is_removed_when_its_bytes_are_late() {
        let mut low_water = LowWater::default();
        let every = Duration::from_micros(100);
        assert!(note(&mut low_water, READS + 1, 4096, every, 1 << 20).is_some());
        let begin = Instant::now();
        let late = std::future::poll_fn(|context| {
            if low_water.poll_late(context) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        });
        late.await;
        assert_eq!(begin.elapsed(), LATE);
        assert_eq!((low_water.remove(), low_water.needed), (None, 2 * READS));
        assert_eq!(note(&mut low_water, READS + 1, 4096, every, 1 << 20), None, "more reads are needed");
    }
}
