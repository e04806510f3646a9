//! The `PF_ZEROCOPY` path: one socket whose ring the NIC fills itself (D1).
//!
//! A lane calls [`Engine::ready`], waits by [`Engine::wait`], borrows frames by [`Engine::take`]
//! and reads the counters by [`Engine::account`]. The interface is the capture's alone: its NIC has
//! no other queue. Filters run in this process. `docs/internals/pf-zerocopy.md` draws the ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strait_ledger::Capture;
use strait_sys::LinkState;
use strait_sys::interface::Interface;
use strait_sys::packet;
use strait_sys::pf_zerocopy::{self, Receiver, SLOT_BYTES, SLOTS_MAX, SLOTS_MIN, Socket};

use crate::batch::Booking;
use crate::error::Error;
use crate::frame::Frame;
use crate::inject::Sender;
use crate::lane::Wakers;
use crate::link;
use crate::live_counters::Reading;
use crate::wait::Step;

/// Slots lent at once: enough to make the batch's own cost vanish, few enough to stay in the cache.
const BATCH_MAX: usize = 256;
/// How often a spinning lane asks whether its interface is there: every few milliseconds.
const LINK_CHECK_SPINS: u32 = 1 << 16;

/// An open capture.
pub(crate) struct Opened {
    pub(crate) engine: Engine,
    /// What sends by the same socket, if that was asked for.
    pub(crate) sender: Option<Result<Sender, Error>>,
}

/// One socket with its ring.
pub(crate) struct Engine {
    // Fields drop in this order: the ring unmaps before its socket closes.
    receiver: Receiver,
    socket: Arc<Socket>,
    interface: u32,
    /// Looks at an empty ring.
    spins: u32,
    /// Keeps the interface promiscuous while it is open.
    _promiscuous: Option<packet::Socket>,
}

impl Engine {
    /// Binds a ring of about `ring_bytes` to `interface`, which receives from here on; with one for
    /// sending, if that `sends` and as much memory may be locked.
    ///
    /// # Errors
    /// The module is not loaded, another driver or program has the interface, no privilege.
    pub(crate) fn open(
        interface: &Interface,
        ring_bytes: usize,
        promiscuous: bool,
        sends: bool,
    ) -> Result<Opened, Error> {
        let socket = Arc::new(Socket::open(&interface.name)?);
        let slots = (ring_bytes / SLOT_BYTES).clamp(SLOTS_MIN as usize, SLOTS_MAX as usize);
        let receiver = socket.receiver(1 << slots.ilog2())?;
        let sender = sends.then(|| Sender::of_capture(&socket, interface));
        let promiscuous = promiscuous.then(|| link::promiscuous(interface)).transpose()?;
        socket.bind(interface.index)?;
        let interface = interface.index;
        Ok(Opened {
            engine: Self { receiver, socket, interface, spins: 0, _promiscuous: promiscuous },
            sender,
        })
    }

    /// The kernel's counters, and what ends the intake.
    pub(crate) fn counts(&self) -> Arc<Counts> {
        Arc::new(Counts { socket: Arc::clone(&self.socket) })
    }

    /// The ring's geometry in words.
    pub(crate) fn describe(&self) -> String {
        format!("{} slots of {} bytes", self.receiver.slots(), SLOT_BYTES)
    }

    /// Frames that the ring holds.
    pub(crate) fn capacity(&self) -> usize {
        self.receiver.slots() as usize
    }

    #[inline]
    #[allow(clippy::unnecessary_wraps, reason = "as the other engines do")]
    pub(crate) fn ready(&mut self) -> Result<bool, Error> {
        Ok(self.receiver.ready())
    }

    #[inline]
    pub(crate) fn take(&mut self, limit: usize) -> Batch<'_> {
        Batch { raw: self.receiver.take(limit.min(BATCH_MAX)), interface: self.interface }
    }

    /// Gives the frames in the ring back unseen, and counts them.
    pub(crate) fn discard_waiting(&mut self, discarded: &AtomicU64) {
        // As many as were there: those that come meanwhile came by the new filter.
        let mut left = self.receiver.waiting() as usize;
        while left > 0 && self.receiver.ready() {
            let count = self.receiver.take(left.min(BATCH_MAX)).len();
            discarded.fetch_add(count as u64, Ordering::Relaxed);
            left -= count;
        }
    }

    /// The socket, which poll(2) wakes.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// State of the link. The socket outlives one that is set down: the module stops the NIC and
    /// starts it again where the ring stands.
    pub(crate) fn link_state(&self) -> Result<LinkState, Error> {
        Ok(self.socket.link_state()?)
    }

    /// Tells an error of the socket, once.
    pub(crate) fn check_link(&self) -> Result<(), Error> {
        Ok(self.socket.take_error()?)
    }

    /// Waits as `step` says, `timeout` at most or until one of `wakers` is readable. Frames may or
    /// may not be ready then.
    ///
    /// # Errors
    /// The interface went down or vanished.
    pub(crate) fn wait(&mut self, step: Step, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        match step {
            Step::Spin => self.spin(),
            Step::Gather(pause) => {
                strait_sys::wait::sleep(pause.min(timeout));
                Ok(())
            }
            Step::Wake => self.wait_for_frame(timeout, wakers),
        }
    }

    /// Passes a moment; looks now and then whether the interface is still there, which no ring
    /// tells, and gives the NIC its slots back, should all be here.
    fn spin(&mut self) -> Result<(), Error> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(LINK_CHECK_SPINS) {
            self.wait_for_frame(Duration::ZERO, [None; 2])?;
        }
        std::hint::spin_loop();
        Ok(())
    }

    /// Sleeps in poll(2), which gives the returned slots back to the NIC first.
    fn wait_for_frame(&self, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        let [interrupt, link] = wakers;
        let fds = [Some(self.socket.as_fd()), interrupt, link];
        let [socket, ..] = strait_sys::wait::readable(fds, timeout)?;
        if socket.failed { self.check_link() } else { Ok(()) }
    }

    /// Reads the kernel's counters; sets received, filtered and lost (not delivered, bytes).
    pub(crate) fn account(&mut self, account: &mut Capture, discarded: u64) -> Result<(), Error> {
        let statistics = self.socket.statistics()?;
        account.received = received(&statistics);
        account.lost.ring_full = statistics.rx_no_buffer;
        account.lost.other = statistics.rx_errors;
        account.filtered = discarded;
        let lent = account.delivered + account.lost.sink + account.filtered;
        account.lost.unread = statistics.rx_frames.saturating_sub(lent);
        Ok(())
    }
}

/// All that came to the NIC for this socket.
fn received(statistics: &pf_zerocopy::Statistics) -> u64 {
    statistics.rx_frames + statistics.rx_no_buffer + statistics.rx_errors
}

/// What the kernel counts of a socket.
#[derive(Debug)]
pub(crate) struct Counts {
    socket: Arc<Socket>,
}

impl Counts {
    /// What came, before any filter, and what of it was dropped.
    pub(crate) fn reading(&self) -> Result<Reading, Error> {
        let statistics = self.socket.statistics()?;
        let dropped = statistics.rx_no_buffer + statistics.rx_errors;
        Ok(Reading { received: received(&statistics), dropped })
    }

    /// Ends the intake: the NIC lets go of the ring, and what is in it can still be read.
    pub(crate) fn stop(&self) -> Result<(), Error> {
        Ok(self.socket.shut_down()?)
    }
}

/// Frames on loan; dropping it returns their slots.
pub(crate) struct Batch<'a> {
    raw: pf_zerocopy::Batch<'a>,
    interface: u32,
}

impl Batch<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.raw.len()
    }

    #[inline]
    pub(crate) fn frames(&mut self) -> Frames<'_> {
        Frames { batch: self, at: 0 }
    }

    /// What [`crate::Batch::try_each`] does.
    #[inline]
    pub(crate) fn try_each<E>(
        &mut self,
        limit: usize,
        booking: &mut Booking<'_>,
        take: &mut impl FnMut(&Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut frame = Frame::received(&[], 0, self.interface);
        for index in 0..limit.min(self.len()) {
            let Some(raw) = self.raw.get(index) else { break };
            frame.replace(raw.bytes);
            frame.timestamp_ns = raw.timestamp_ns;
            booking.hand(&mut frame, take)?;
        }
        Ok(())
    }
}

/// Iterates over the frames of a [`Batch`].
pub(crate) struct Frames<'a> {
    batch: &'a Batch<'a>,
    at: usize,
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        let raw = self.batch.raw.get(self.at)?;
        self.at += 1;
        Some(Frame::received(raw.bytes, raw.timestamp_ns, self.batch.interface))
    }
}
