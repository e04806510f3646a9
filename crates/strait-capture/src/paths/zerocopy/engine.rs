//! `PF_ZEROCOPY` socket with its ring, as a lane drives it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use strait_filter::cbpf::Program;
use strait_ledger::Capture;
use strait_os::interface::Interface;
use strait_sys::LinkState;
use strait_sys::pf_zerocopy::{self, Receiver, SLOT_BYTES, SLOTS_MAX, SLOTS_MIN, Socket};

use super::batch::Batch;
use crate::booking::Copies;
use crate::error::Error;
use crate::filter;
use crate::live_counters::{KernelCounters, Reading};
use crate::paths::engine::{self, Engine as _, Lend};
use crate::sender::Sender;
use crate::wait::{LINK_CHECK_SPINS, Step, Wait, Wakers};
use crate::zerocopy;

/// Maximum number of frames in a batch: enough to make the cost per batch negligible, few enough to
/// stay in the cache.
const BATCH_MAX: usize = 256;

/// Open socket.
pub(super) struct Opened {
    pub(super) engine: Engine,
    /// Sender on the same socket, if one was requested.
    pub(super) sender: Option<Result<Sender, Error>>,
}

/// Socket with its ring.
pub(crate) struct Engine {
    // Fields drop in this order: the ring unmaps before its socket closes.
    receiver: Receiver,
    socket: Arc<Socket>,
    interface: u32,
    /// Number of polls of an empty ring.
    spins: u32,
}

impl Engine {
    /// Opens a socket for `interface` with a ring of about `ring_bytes`. Interrupts are moderated,
    /// unless each frame is to wake the lane. If it `sends`, adds a ring for sending; an error of
    /// that ring is returned in [`Opened::sender`].
    ///
    /// # Errors
    /// The module is not loaded, no privilege, too little memory.
    pub(super) fn open(
        interface: &Interface,
        ring_bytes: usize,
        wait: Wait,
        sends: bool,
    ) -> Result<Opened, Error> {
        let socket = Arc::new(Socket::open(&interface.name)?);
        if wait != Wait::Latency {
            socket.moderate_interrupts()?;
        }
        let slots = (ring_bytes / SLOT_BYTES).clamp(SLOTS_MIN as usize, SLOTS_MAX as usize);
        let receiver = socket.receiver(1 << slots.ilog2())?;
        let sender = sends.then(|| Sender::of_capture(&socket, interface));
        let interface = interface.index;
        Ok(Opened { engine: Self { receiver, socket, interface, spins: 0 }, sender })
    }

    /// Binds the socket to a queue: its frames arrive from here on.
    ///
    /// # Errors
    /// Another driver has the interface, or another socket has the queue.
    pub(super) fn bind(&self, interface: &Interface, queue: u32) -> Result<(), Error> {
        zerocopy::bind(&self.socket, interface, queue)
    }

    /// Returns the kernel's counters, with which reception can also be stopped.
    pub(super) fn counts(&self) -> Counts {
        Counts { socket: Arc::clone(&self.socket) }
    }

    /// Returns a description of the ring's geometry, for the user.
    pub(super) fn describe(&self) -> String {
        format!("{} slots of {} bytes", self.receiver.slots(), SLOT_BYTES)
    }

    /// Pauses for a moment. Every [`LINK_CHECK_SPINS`] calls it calls poll(2), which returns slots
    /// to the NIC and reports that the interface was removed; the ring does neither.
    fn spin(&mut self) -> Result<(), Error> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(LINK_CHECK_SPINS) {
            self.wait_for_frame(Duration::ZERO, [None; 2])?;
        }
        std::hint::spin_loop();
        Ok(())
    }

    /// Sleeps in poll(2), which first passes the returned slots to the NIC.
    fn wait_for_frame(&self, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        let [interrupt, link] = wakers;
        let fds = [Some(self.socket.as_fd()), interrupt, link];
        let [socket, ..] = strait_os::wait::readable(fds, timeout)?;
        if socket.failed { self.check_link() } else { Ok(()) }
    }
}

impl Lend for Engine {
    type Batch<'a> = Batch<'a>;

    #[inline]
    fn ready(&mut self, _stopping: &AtomicBool) -> Result<bool, Error> {
        Ok(self.receiver.ready())
    }

    #[inline]
    fn take(&mut self, limit: usize) -> Batch<'_> {
        Batch { raw: self.receiver.take(limit.min(BATCH_MAX)), interface: self.interface }
    }
}

impl engine::Engine for Engine {
    fn capacity(&self) -> usize {
        self.receiver.slots() as usize
    }

    /// Returns the number of slots: each holds the longest frame.
    fn capacity_min(&self) -> usize {
        self.receiver.slots() as usize
    }

    fn copies(&self) -> Copies {
        Copies::Nothing
    }

    fn counters(&self) -> Option<Arc<dyn KernelCounters>> {
        Some(Arc::new(self.counts()))
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.socket.as_fd()]
    }

    fn wait(&mut self, step: Step, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        match step {
            Step::Spin => self.spin(),
            Step::Gather(pause) => {
                strait_os::wait::sleep(pause.min(timeout));
                Ok(())
            }
            Step::Wake => self.wait_for_frame(timeout, wakers),
        }
    }

    fn account(&mut self, account: &mut Capture, discarded: u64) -> Result<(), Error> {
        let statistics = self.socket.statistics()?;
        account.received = received(&statistics);
        account.lost.ring_full = statistics.rx_no_buffer;
        account.lost.other = statistics.rx_errors;
        account.filtered = statistics.rx_filtered + discarded;
        let lent = account.delivered + account.lost.sink + discarded;
        account.lost.unread = statistics.rx_frames.saturating_sub(lent);
        Ok(())
    }

    /// Returns the state of the link. The socket stays bound while the link is set down: the module
    /// stops the NIC, and starts it again at the ring's position.
    fn link_state(&self) -> Result<Option<LinkState>, Error> {
        Ok(Some(self.socket.link_state()?))
    }

    fn check_link(&self) -> Result<(), Error> {
        Ok(self.socket.take_error()?)
    }

    fn reject_all(&self) -> Result<(), Error> {
        Ok(self.socket.reject_all()?)
    }

    fn accept_matching(&self, program: &Program) -> Result<(), Error> {
        attach(program, &self.socket)
    }

    fn discard_waiting(
        &mut self,
        _program: &Program,
        _account: &mut Capture,
        discarded: &AtomicU64,
    ) -> Result<(), Error> {
        engine::discard(self.receiver.waiting() as usize, BATCH_MAX, discarded, |limit| {
            self.receiver.ready().then(|| self.receiver.take(limit).len())
        });
        Ok(())
    }
}

/// Returns the number of frames that arrived at the NIC for this socket.
fn received(statistics: &pf_zerocopy::Statistics) -> u64 {
    statistics.rx_frames + statistics.rx_filtered + statistics.rx_no_buffer + statistics.rx_errors
}

/// Replaces the filter of `socket`. A program that matches every frame is left out, because the
/// kernel would ask for its verdict on each frame.
fn attach(program: &Program, socket: &Socket) -> Result<(), Error> {
    match program.constant() {
        Some(1..) => Ok(socket.detach_filter()?),
        _ => Ok(socket.attach_filter(&filter::instructions(program))?),
    }
}

/// Counters of a socket.
#[derive(Debug)]
pub(super) struct Counts {
    socket: Arc<Socket>,
}

impl Counts {
    /// Stops reception: the NIC releases the ring, and its frames can still be read.
    pub(super) fn stop(&self) -> Result<(), Error> {
        Ok(self.socket.shut_down()?)
    }
}

impl KernelCounters for Counts {
    fn reading(&self) -> Result<Reading, Error> {
        let statistics = self.socket.statistics()?;
        let dropped = statistics.rx_no_buffer + statistics.rx_errors;
        Ok(Reading { received: received(&statistics) - statistics.rx_filtered, dropped })
    }
}
