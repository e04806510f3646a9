//! The `AF_XDP` path: one socket a queue on one shared UMEM, fed by an XDP program that filters.
//!
//! [`open`] tries the fastest way that the interface has. A lane then calls [`Engine::ready`],
//! waits by [`Engine::wait`], borrows frames by [`Engine::take`] and reads the kernel's counters by
//! [`Engine::account`]. `docs/internals/af-xdp.md` draws the rings, `docs/internals/xdp-program.md`
//! the program. Frames that match the filter are taken away from the host; all others go on to it
//! untouched.

mod account;
mod batch;
mod intake;
mod join;
mod open;
pub(crate) mod ring_size;
mod stamp;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strait_filter::cbpf::Program;
use strait_ledger::Capture;
use strait_sys::LinkState;
use strait_sys::bpf::MappedArray;
use strait_sys::interface::Interface;
use strait_sys::packet::VlanTag;
use strait_sys::xdp::{Receiver, RxBatch, Socket};

use self::account::{Known, Seen};
use self::batch::monotonic_ns;
pub(crate) use self::batch::{Batch, Frames};
pub(crate) use self::intake::Intake;
use self::join::{Joiner, parse};
pub(crate) use self::open::{bind, is_for_want_of_ability, open};
use self::stamp::Clock;
use crate::batch::Copies;
use crate::error::Error;
use crate::lane::Wakers;
use crate::live_counters::Reading;
use crate::wait::{Step, Wait};

/// Descriptors lent at once: enough to make the batch's own cost vanish, few enough that what was
/// prefetched is still in the first-level cache when it is read. It is what the kernel handles at a
/// time, too (`NAPI_POLL_WEIGHT`).
const BATCH_MAX: usize = 64;
/// How long a sleeping lane may miss that its interface is gone: poll(2) does not tell.
const LINK_CHECK: Duration = Duration::from_millis(200);
/// The same for a spinning lane: some milliseconds.
const LINK_CHECK_SPINS: u32 = 1 << 16;
/// What a lane waits for its last frames at most, once the intake has ended.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The way that was asked for; there is no other then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Insist {
    /// Whichever is fastest.
    Nothing,
    ZeroCopy,
    NativeCopy,
    Generic,
}

/// What an `AF_XDP` session is to be like.
pub(crate) struct Options<'a> {
    pub(crate) interface: &'a Interface,
    /// The filter, as a packet socket would see the frames; its return value is the snaplen.
    pub(crate) program: &'a Program,
    /// Receive queues, one engine each.
    pub(crate) queues: &'a [u32],
    /// UMEM bytes for each queue.
    pub(crate) ring_bytes: usize,
    pub(crate) insist: Insist,
    /// Stamp each frame as it comes.
    pub(crate) timestamps: bool,
    pub(crate) huge_pages: bool,
    pub(crate) wait: Wait,
    pub(crate) promiscuous: bool,
    /// Ask the driver for the flow hash.
    pub(crate) rx_hash: bool,
    /// Ask the driver for its time.
    pub(crate) hardware_time: bool,
}

/// What [`open`] made.
pub(crate) struct Opened {
    /// One for each of the queues asked for, in their order.
    pub(crate) engines: Vec<Engine>,
    pub(crate) intake: Intake,
    /// `zero-copy`, `native copy` or `generic`.
    pub(crate) mode: &'static str,
    /// Each queue's part of the UMEM, in words.
    pub(crate) ring: String,
    /// What the user should know: each fallback and its reason.
    pub(crate) notes: Vec<String>,
}

/// What an open socket and its program can do.
#[derive(Clone, Copy, Debug)]
struct Abilities {
    /// Frames longer than a chunk come in fragments.
    multi_buffer: bool,
    /// The program leaves something with each frame.
    metadata: bool,
    /// The program asks the driver for tags that it took out.
    reads_tags: bool,
    /// The driver runs in this lane's own calls.
    busy_poll: bool,
    /// The device writes into the UMEM itself.
    zero_copy: bool,
}

/// One AF_XDP socket with its rings.
pub(crate) struct Engine {
    receiver: Receiver,
    socket: Arc<Socket>,
    joiner: Joiner,
    clock: Clock,
    counts: Arc<Counts>,
    interface: u32,
    rx_slots: u32,
    abilities: Abilities,
    /// Slower ways taken than asked for, at opening.
    fallbacks: u64,
    /// Looks at an empty ring.
    spins: u32,
    /// Whole frames taken from the RX ring.
    taken: u64,
    /// No frame can enter the ring any more.
    ended: bool,
}

impl Engine {
    /// What the kernel counts.
    pub(crate) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// State of the link.
    pub(crate) fn link_state(&self) -> Result<LinkState, Error> {
        Ok(self.socket.link_state()?)
    }

    /// Asks the socket for its interface.
    pub(crate) fn check_link(&self) -> Result<(), Error> {
        Ok(self.socket.wake_rx()?)
    }

    /// Gives the frames in the ring back unseen, and counts them.
    pub(crate) fn discard_waiting(&mut self, discarded: &AtomicU64) {
        // As many as were there: those that come meanwhile came by the new filter.
        let mut left = self.receiver.waiting() as usize;
        while left > 0 && self.receiver.is_ready() {
            let count = self.take(left.min(BATCH_MAX)).len();
            discarded.fetch_add(count as u64, Ordering::Relaxed);
            left -= count.max(1);
        }
    }

    /// Frames that the ring holds.
    pub(crate) fn capacity(&self) -> usize {
        self.rx_slots as usize
    }

    /// Frames that the ring holds, however long they are.
    pub(crate) fn holds_at_least(&self) -> usize {
        /// Chunks of the longest frame that receive offload makes.
        const FRAGMENTS_MAX: u32 = 64;
        (if self.abilities.multi_buffer { self.rx_slots / FRAGMENTS_MAX } else { self.rx_slots }) as usize
    }

    #[inline]
    #[allow(clippy::unnecessary_wraps, reason = "as the other engines do")]
    pub(crate) fn ready(&mut self) -> Result<bool, Error> {
        Ok(self.receiver.is_ready())
    }

    #[inline]
    pub(crate) fn take(&mut self, limit: usize) -> Batch<'_> {
        let Self { receiver, joiner, clock, interface, abilities, .. } = self;
        let mut raw = receiver.take(limit.min(BATCH_MAX));
        if abilities.reads_tags {
            restore_tags(&mut raw, joiner.is_open());
        }
        if abilities.metadata {
            refresh(clock, &raw);
        }
        joiner.arrange(&raw);
        let batch = Batch { raw, joiner, clock, interface: *interface, metadata: abilities.metadata };
        self.taken += batch.len() as u64;
        batch
    }

    /// The socket, which poll(2) wakes.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What the kernel copies into the UMEM.
    pub(crate) fn copies(&self) -> Copies {
        if self.abilities.zero_copy { Copies::Nothing } else { Copies::Whole }
    }

    /// Waits as `step` says, `timeout` at most or until one of `wakers` is readable. Frames may or
    /// may not be ready then.
    ///
    /// # Errors
    /// The interface went down or vanished.
    pub(crate) fn wait(&mut self, step: Step, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        match step {
            Step::Spin => self.spin()?,
            Step::Gather(pause) => {
                if self.receiver.needs_wakeup() {
                    self.socket.wake_rx()?;
                }
                strait_sys::wait::sleep(pause.min(timeout));
            }
            Step::Wake => self.wait_for_frame(timeout, wakers)?,
        }
        Ok(())
    }

    /// Runs the driver, or just passes a moment; looks now and then whether the interface is still
    /// there.
    fn spin(&mut self) -> Result<(), Error> {
        self.spins = self.spins.wrapping_add(1);
        if self.abilities.busy_poll
            || self.receiver.needs_wakeup()
            || self.spins.is_multiple_of(LINK_CHECK_SPINS)
        {
            self.socket.wake_rx()?;
        }
        std::hint::spin_loop();
        Ok(())
    }

    /// Sleeps in poll(2), which tells the driver of new chunks where it waits for them.
    fn wait_for_frame(&self, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        let (start, [interrupt, link]) = (Instant::now(), wakers);
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let slice = left.min(LINK_CHECK);
            let began = Instant::now();
            let fds = [Some(self.socket.as_fd()), interrupt, link];
            let [socket, ..] = strait_sys::wait::readable(fds, slice)?;
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

    /// Reads the kernel's counters; sets received, filtered, lost and events (not delivered,
    /// bytes).
    pub(crate) fn account(&mut self, account: &mut Capture, discarded: u64) -> Result<(), Error> {
        self.book(account, discarded).map(drop)
    }

    /// After the intake has ended: whether frames are still to come. Ends by itself within a few
    /// seconds.
    pub(crate) fn drain(
        &mut self,
        account: &mut Capture,
        discarded: u64,
        since: Instant,
    ) -> Result<bool, Error> {
        let on_ring = self.book(account, discarded)?;
        if on_ring == 0 || since.elapsed() > DRAIN_MAX {
            self.ended = true;
            return Ok(false);
        }
        strait_sys::wait::readable([Some(self.socket.as_fd())], Duration::from_millis(1))?;
        Ok(true)
    }

    /// Frames that were redirected to this socket and have neither been dropped nor taken.
    fn book(&mut self, account: &mut Capture, discarded: u64) -> Result<u64, Error> {
        let seen = self.counts.seen();
        let statistics = self.socket.statistics()?;
        let known = Known {
            taken: self.taken,
            discarded,
            waiting: u64::from(self.receiver.waiting()),
            invalid: self.receiver.invalid_descriptors(),
            ended: self.ended,
            multi_buffer: self.abilities.multi_buffer,
            zero_copy: self.abilities.zero_copy,
        };
        account.events.fallbacks = self.fallbacks;
        account.copied_bytes += self.joiner.take_copied();
        Ok(account::book(seen, &statistics, known, account))
    }
}

/// What the program and the socket count of one queue.
#[derive(Debug)]
pub(crate) struct Counts {
    socket: Arc<Socket>,
    /// The program's counters, one entry a queue.
    counters: Arc<MappedArray>,
    queue: u32,
}

impl Counts {
    fn seen(&self) -> Seen {
        Seen::read(&self.counters, self.queue)
    }

    /// What passed the filter, and what of it was dropped.
    pub(crate) fn reading(&self) -> Result<Reading, Error> {
        let statistics = self.socket.statistics()?;
        let dropped = statistics.rx_dropped + statistics.rx_ring_full;
        Ok(Reading { received: self.seen().redirected, dropped })
    }
}

/// Keeps the clock up with the newest frame.
#[inline]
fn refresh(clock: &mut Clock, batch: &RxBatch<'_>) {
    let newest = batch.len().checked_sub(1).and_then(|last| batch.get(last));
    if let Some(newest_ns) = newest.and_then(|frame| monotonic_ns(&parse(frame.metadata)?)) {
        clock.refresh(newest_ns);
    }
}

/// Puts tags that the device took out back into their frames; `goes_on` says that the first
/// descriptor continues a frame.
fn restore_tags(batch: &mut RxBatch<'_>, mut goes_on: bool) {
    for index in 0..batch.len() {
        let Some(part) = batch.get(index) else { break };
        let metadata = if goes_on { None } else { parse(part.metadata) };
        goes_on = part.continues;
        if let Some(metadata) = metadata.filter(|metadata| metadata.vlan_tpid != 0) {
            let tag = VlanTag { tci: metadata.vlan_tci, tpid: metadata.vlan_tpid };
            batch.restore_vlan(index, tag);
        }
    }
}

#[cfg(test)]
mod tests;
