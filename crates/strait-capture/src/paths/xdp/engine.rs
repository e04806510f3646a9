//! `AF_XDP` socket with its rings, as a lane drives it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use strait_filter::cbpf::Program;
use strait_filter::xdp::Counter;
use strait_ledger::Capture;
use strait_sys::LinkState;
use strait_sys::bpf::MappedArray;
use strait_sys::packet::VlanTag;
use strait_sys::xdp::{Receiver, RxBatch, RxCount, Socket};

use super::account::{self, Known};
use super::batch::{Batch, monotonic_ns};
use super::join::{Joiner, parse};
use crate::booking::Copies;
use crate::error::Error;
use crate::live_counters::{KernelCounters, Reading};
use crate::paths::engine::{self, Lend, Lent as _};
use crate::paths::stamp::Clock;
use crate::wait::{LINK_CHECK_SPINS, Step, Wakers};

/// Maximum number of descriptors in a batch: enough to make the cost per batch small (900
/// instructions), few enough that prefetched bytes are still in the first-level cache when they are
/// read: two lines a frame are 16 KiB, half of a small one.
pub(super) const BATCH_MAX: usize = 128;
/// Interval between checks of the interface by a sleeping lane: poll(2) does not report that the
/// interface was removed.
const LINK_CHECK: Duration = Duration::from_millis(200);

/// Features of an open socket and its program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    /// Frames longer than a chunk arrive in fragments.
    pub(super) multi_buffer: bool,
    /// The program provides metadata with each frame.
    pub(super) metadata: bool,
    /// The program reads VLAN tags that the driver removed.
    pub(super) reads_tags: bool,
    /// The driver polls in this lane's own system calls.
    pub(super) busy_poll: bool,
    /// The device writes into the UMEM.
    pub(super) zero_copy: bool,
}

/// AF_XDP socket with its rings.
pub(crate) struct Engine {
    pub(super) receiver: Receiver,
    pub(super) socket: Arc<Socket>,
    pub(super) joiner: Joiner,
    pub(super) clock: Clock,
    pub(super) counts: Arc<Counts>,
    pub(super) interface: u32,
    pub(super) rx_slots: u32,
    pub(super) features: Features,
    /// Number of fallbacks to a slower way when the socket was opened.
    pub(super) fallbacks: u64,
    /// Number of polls of an empty ring.
    pub(super) spins: u32,
    /// Number of whole frames taken from the RX ring.
    pub(super) taken: u64,
}

impl Engine {
    /// Runs the driver if it polls in this thread, and pauses for a moment. A ring does not report
    /// that its interface was removed, so the socket is called every [`LINK_CHECK_SPINS`] calls,
    /// too.
    fn spin(&mut self) -> Result<(), Error> {
        self.spins = self.spins.wrapping_add(1);
        if self.features.busy_poll
            || self.receiver.needs_wakeup()
            || self.spins.is_multiple_of(LINK_CHECK_SPINS)
        {
            self.socket.wake_rx()?;
        }
        std::hint::spin_loop();
        Ok(())
    }

    /// Sleeps in poll(2), which also passes new chunks to a driver that waits for them.
    fn wait_for_frame(&self, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        let (start, [interrupt, link]) = (Instant::now(), wakers);
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let slice = left.min(LINK_CHECK);
            let began = Instant::now();
            let fds = [Some(self.socket.as_fd()), interrupt, link];
            let [socket, ..] = strait_os::wait::readable(fds, slice)?;
            if socket.readable {
                return Ok(());
            }
            self.socket.wake_rx()?;
            let interrupted = began.elapsed() < slice;
            if interrupted || left == slice {
                return Ok(());
            }
        }
    }
}

impl Lend for Engine {
    type Batch<'a> = Batch<'a>;

    #[inline]
    fn ready(&mut self, _stopping: &AtomicBool) -> Result<bool, Error> {
        Ok(self.receiver.is_ready())
    }

    #[inline]
    fn take(&mut self, limit: usize) -> Batch<'_> {
        let Self { receiver, joiner, clock, interface, features, .. } = self;
        let mut raw = receiver.take(limit.min(BATCH_MAX));
        if features.reads_tags {
            restore_tags(&mut raw, joiner.is_open());
        }
        if features.metadata {
            refresh(clock, &raw);
        }
        joiner.arrange(&raw);
        let batch = Batch { raw, joiner, clock, interface: *interface, metadata: features.metadata };
        self.taken += batch.len() as u64;
        batch
    }
}

impl engine::Engine for Engine {
    fn capacity(&self) -> usize {
        self.rx_slots as usize
    }

    fn capacity_min(&self) -> usize {
        /// Limit of the chunks of a frame: receive offload makes frames of 64 KiB at most, and a
        /// chunk holds at least 1 KiB of a frame.
        const FRAGMENTS_MAX: u32 = 64;
        (if self.features.multi_buffer { self.rx_slots / FRAGMENTS_MAX } else { self.rx_slots }) as usize
    }

    /// The kernel copies frames into the UMEM whole, whatever the snaplen is.
    fn copies(&self) -> Copies {
        if self.features.zero_copy { Copies::Nothing } else { Copies::Whole }
    }

    fn counters(&self) -> Option<Arc<dyn KernelCounters>> {
        let counts: Arc<Counts> = Arc::clone(&self.counts);
        Some(counts)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.socket.as_fd()]
    }

    fn wait(&mut self, step: Step, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        match step {
            Step::Spin => self.spin()?,
            Step::Gather(pause) => {
                if self.receiver.needs_wakeup() {
                    self.socket.wake_rx()?;
                }
                strait_os::wait::sleep(pause.min(timeout));
            }
            Step::Wake => self.wait_for_frame(timeout, wakers)?,
        }
        Ok(())
    }

    fn account(&mut self, account: &mut Capture, discarded: u64) -> Result<(), Error> {
        let statistics = self.socket.statistics()?;
        let waiting = if self.features.multi_buffer {
            self.receiver.waiting_frames()
        } else {
            self.receiver.waiting().into()
        };
        let known = Known {
            passed: self.counts.counters.load(0, Counter::Passed.slot(self.counts.queue)),
            taken: self.taken,
            discarded,
            waiting,
            invalid: self.receiver.invalid_descriptors(),
            multi_buffer: self.features.multi_buffer,
            zero_copy: self.features.zero_copy,
        };
        account.events.fallbacks = self.fallbacks;
        account.copied_bytes += self.joiner.take_copied();
        account::update_account(&statistics, known, account);
        Ok(())
    }

    /// All frames are in the ring when the attachment has stopped. They may have come after the
    /// lane's last look.
    fn drain(&mut self, _account: &mut Capture, _discarded: u64, _since: Instant) -> Result<bool, Error> {
        Ok(self.receiver.is_ready())
    }

    fn link_state(&self) -> Result<Option<LinkState>, Error> {
        Ok(Some(self.socket.link_state()?))
    }

    fn check_link(&self) -> Result<(), Error> {
        Ok(self.socket.wake_rx()?)
    }

    fn discard_waiting(
        &mut self,
        _program: &Program,
        _account: &mut Capture,
        discarded: &AtomicU64,
    ) -> Result<(), Error> {
        engine::discard(self.receiver.waiting() as usize, BATCH_MAX, discarded, |limit| {
            self.receiver.is_ready().then(|| self.take(limit).len())
        });
        Ok(())
    }
}

/// Counters of the XDP program and of the socket, for one queue.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) socket: Arc<Socket>,
    /// Frames that reached the RX ring.
    pub(super) received: Arc<RxCount>,
    /// The program's counters, one entry a queue.
    pub(super) counters: Arc<MappedArray>,
    pub(super) queue: u32,
}

impl KernelCounters for Counts {
    fn reading(&self) -> Result<Reading, Error> {
        let statistics = self.socket.statistics()?;
        let dropped = statistics.rx_dropped + statistics.rx_ring_full;
        Ok(Reading { received: self.received.frames() + dropped, dropped })
    }
}

/// Updates the clock by the newest frame.
#[inline]
fn refresh(clock: &mut Clock, batch: &RxBatch<'_>) {
    let newest = batch.len().checked_sub(1).and_then(|last| batch.get(last));
    if let Some(newest_ns) = newest.and_then(|frame| monotonic_ns(&parse(frame.metadata)?)) {
        clock.refresh(newest_ns);
    }
}

/// Inserts VLAN tags that the device removed into their frames. If `continues`, the first
/// descriptor continues a frame of the last batch.
fn restore_tags(batch: &mut RxBatch<'_>, mut continues: bool) {
    for index in 0..batch.len() {
        let Some(part) = batch.get(index) else { break };
        let metadata = if continues { None } else { parse(part.metadata) };
        continues = part.continues;
        if let Some(metadata) = metadata.filter(|metadata| metadata.vlan_tpid != 0) {
            let tag = VlanTag { tci: metadata.vlan_tci, tpid: metadata.vlan_tpid };
            batch.restore_vlan(index, tag);
        }
    }
}
