//! Rings and doorbell of a tap, as a lane drives them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strait_filter::cbpf::Program;
use strait_filter::tap::layout::{Record, Sizes};
use strait_ledger::Capture;
use strait_os::clock;
use strait_sys::bpf::Doorbell;
use strait_sys::{LinkState, interface_removed, packet};

use super::batch::Batch;
use super::counts::Counts;
use super::merge::{Cursor, Merge};
use crate::booking::Copies;
use crate::error::Error;
use crate::live_counters::KernelCounters;
use crate::paths::engine::{self, Lend};
use crate::paths::stamp::Clock;
use crate::wait::{LINK_CHECK_SPINS, Step, Wakers};

/// Maximum number of frames in a batch: enough to make the cost per batch negligible, few enough
/// that the headers read to order them are still in the first-level cache when the frames are read.
pub(super) const BATCH_MAX: usize = 256;
/// Bytes of a frame of minimum size.
const FRAME_BYTES_MIN: u32 = 60;

/// A pause may fill one part in this many of a CPU's first ring. Frames that do not fit are not
/// lost, but leave the cache.
pub(super) const PAUSE_DIVISOR: u32 = 2;

/// Rings of a lane's CPUs.
pub(crate) struct Engine {
    /// The spill rings, then the first rings, both in the order of their CPUs.
    pub(super) cursors: Vec<Cursor>,
    pub(super) merge: Merge,
    pub(super) doorbell: Arc<Doorbell>,
    pub(super) counts: Arc<Counts>,
    pub(super) clock: Clock,
    /// Socket in the interface's namespace, to read the state of the link.
    pub(super) socket: packet::Socket,
    pub(super) name: String,
    pub(super) interface: u32,
    /// The programs record owners and not flow hashes.
    pub(super) owners: bool,
    pub(super) sizes: Sizes,
    pub(super) rate: Rate,
    /// See [`PAUSE_DIVISOR`].
    pub(super) pause_divisor: u32,
    /// Number of polls of empty rings.
    pub(super) spins: u32,
}

impl Engine {
    #[inline]
    fn is_ready(&mut self) -> bool {
        self.cursors.iter_mut().any(Cursor::is_ready)
    }

    /// Pauses for a moment. Rings do not report that their interface was removed, so its state is
    /// read every [`LINK_CHECK_SPINS`] calls.
    fn spin(&mut self) -> Result<(), Error> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(LINK_CHECK_SPINS) {
            self.check_interface()?;
        }
        std::hint::spin_loop();
        Ok(())
    }

    /// Sleeps while frames gather. A first ring must not fill up meanwhile, so the pause is a part
    /// of the time in which it would, at the rate since the last pause.
    fn gather(&mut self, pause: Duration) {
        let (spill, first) = self.cursors.split_at(self.cursors.len() / 2);
        let consumed =
            spill.iter().zip(first).map(|(spill, first)| spill.reader.consumed() + first.reader.consumed());
        let fill_time = self.rate.fill_time(consumed, self.sizes.ring_bytes as usize, Instant::now());
        strait_os::wait::sleep(pause.min(fill_time / self.pause_divisor));
    }

    /// Returns the first rings, one for each CPU.
    fn first_rings(&self) -> impl Iterator<Item = &Cursor> {
        self.cursors.iter().skip(self.cursors.len() / 2)
    }

    /// Sleeps until a frame rings the doorbell.
    fn wait_for_doorbell(&mut self, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        self.request_wakeup();
        if !self.is_ready() {
            let [interrupt, link] = wakers;
            let fds = [Some(self.doorbell.as_fd()), interrupt, link];
            let [doorbell, ..] = strait_os::wait::readable(fds, timeout)?;
            if !doorbell.readable {
                self.check_interface()?;
            }
        }
        self.first_rings().for_each(|cursor| cursor.reader.request_wakeup(false));
        Ok(())
    }

    /// Makes the next frame ring the doorbell. Frames published earlier do not ring.
    fn request_wakeup(&self) {
        self.doorbell.silence();
        // Both rings of a CPU have one request.
        self.first_rings().for_each(|cursor| cursor.reader.request_wakeup(true));
    }

    /// Returns an error if the interface was removed. The kernel detaches the programs without a
    /// notice.
    fn check_interface(&self) -> Result<(), Error> {
        match self.socket.link_state(self.interface)? {
            LinkState::Removed => Err(interface_removed(&self.name).into()),
            LinkState::Up | LinkState::Down => Ok(()),
        }
    }

    /// Returns the number of records of `frame_bytes` that the rings of a CPU hold.
    fn records(&self, frame_bytes: u32) -> usize {
        let stride = Record { captured: frame_bytes, ..Record::default() }.stride();
        [self.sizes.ring_bytes, self.sizes.spill_bytes].iter().map(|bytes| *bytes as usize / stride).sum()
    }
}

impl Lend for Engine {
    type Batch<'a> = Batch<'a>;

    #[inline]
    fn ready(&mut self, _stopping: &AtomicBool) -> Result<bool, Error> {
        Ok(self.is_ready())
    }

    #[inline]
    fn take(&mut self, limit: usize) -> Batch<'_> {
        let newest_ns = self.merge.take(&mut self.cursors, clock::monotonic_ns(), limit);
        self.clock.refresh(newest_ns);
        Batch {
            cursors: &mut self.cursors,
            items: self.merge.items(),
            clock: &self.clock,
            interface: self.interface,
            owners: self.owners,
        }
    }
}

impl engine::Engine for Engine {
    fn capacity(&self) -> usize {
        self.records(FRAME_BYTES_MIN)
    }

    fn capacity_min(&self) -> usize {
        self.records(self.sizes.frame_bytes_max)
    }

    fn copies(&self) -> Copies {
        Copies::Captured
    }

    fn counters(&self) -> Option<Arc<dyn KernelCounters>> {
        let counts: Arc<Counts> = Arc::clone(&self.counts);
        Some(counts)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.doorbell.as_fd()]
    }

    fn prepare_to_wait(&mut self) -> Result<(), Error> {
        self.request_wakeup();
        Ok(())
    }

    fn wait(&mut self, step: Step, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        match step {
            Step::Spin => self.spin(),
            Step::Gather(pause) => {
                self.gather(pause.min(timeout));
                Ok(())
            }
            Step::Wake => self.wait_for_doorbell(timeout, wakers),
        }
    }

    fn account(&mut self, account: &mut Capture, discarded: u64) -> Result<(), Error> {
        let drops = self.counts.drops();
        let frames = self.counts.frames();
        account.received = frames + drops;
        account.lost.ring_full = drops;
        account.filtered = discarded;
        let lent = account.delivered + account.lost.sink + account.filtered;
        account.lost.unread = frames.saturating_sub(lent);
        Ok(())
    }

    /// Returns true if frames are left: the programs have been detached, so they are in the rings.
    fn drain(&mut self, _account: &mut Capture, _discarded: u64, _since: Instant) -> Result<bool, Error> {
        Ok(self.is_ready())
    }

    fn link_state(&self) -> Result<Option<LinkState>, Error> {
        Ok(Some(self.socket.link_state(self.interface)?))
    }

    fn check_link(&self) -> Result<(), Error> {
        self.check_interface()
    }

    fn discard_waiting(
        &mut self,
        _program: &Program,
        _account: &mut Capture,
        discarded: &AtomicU64,
    ) -> Result<(), Error> {
        // Frames up to here: the new filter has matched those that arrive later.
        let until_ns = clock::monotonic_ns();
        loop {
            self.merge.take(&mut self.cursors, until_ns, BATCH_MAX);
            self.cursors.iter_mut().for_each(Cursor::release);
            match self.merge.items().len() {
                0 => return Ok(()),
                count => discarded.fetch_add(count as u64, Ordering::Relaxed),
            };
        }
    }
}

/// Rate at which the frames of the busiest CPU come.
pub(super) struct Rate {
    since: Instant,
    /// Number of bytes of each CPU up to that time.
    positions: Vec<u64>,
}

impl Rate {
    pub(super) fn new(cpus: usize) -> Self {
        Self { since: Instant::now(), positions: vec![0; cpus] }
    }

    /// Returns the time in which a ring of the busiest CPU fills at the rate since the last call.
    fn fill_time(
        &mut self,
        positions: impl Iterator<Item = u64>,
        ring_bytes: usize,
        now: Instant,
    ) -> Duration {
        let elapsed = now.saturating_duration_since(self.since);
        self.since = now;
        let mut bytes = 1;
        for (last, position) in self.positions.iter_mut().zip(positions) {
            bytes = bytes.max(position - *last);
            *last = position;
        }
        let ns = elapsed.as_nanos().saturating_mul(ring_bytes as u128) / u128::from(bytes);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_time_is_that_of_the_busiest_ring() {
        let mut rate = Rate::new(2);
        let start = rate.since;
        let at = |ms| start + Duration::from_millis(ms);
        let quarter = (1 << 20) / 4;
        let fill_time = rate.fill_time([quarter, 100].into_iter(), 1 << 20, at(2));
        assert_eq!(fill_time, Duration::from_millis(8));
        let idle = rate.fill_time([quarter, 100].into_iter(), 1 << 20, at(3));
        assert!(idle > Duration::from_secs(100), "{idle:?}");
    }
}
