//! Packet socket with its ring and its doorbell, as a lane drives it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use strait_filter::cbpf::Program;
use strait_ledger::Capture;
use strait_sys::LinkState;
use strait_sys::interface::Interface;
use strait_sys::packet::{Cooked, Socket};

use super::counts::Counts;
use super::doorbell::{Armed, Doorbell};
use super::frames::Batch;
use super::ring::{self, RawBatch, Ring};
use super::shape::Shape;
use crate::booking::Copies;
use crate::error::Error;
use crate::filter;
use crate::live_counters::KernelCounters;
use crate::paths::engine::{self, Lend};
use crate::wait::{LINK_CHECK_SPINS, RING_SHARE, Step, Wakers};

/// Time for which a reader that was rung looks for the frame: the kernel may still be writing it.
const SETTLE: Duration = Duration::from_micros(50);
/// Time that a frame may take into the ring after its ring of the doorbell was discarded: the
/// kernel serves the two sockets one after the other.
const CROSSING: Duration = Duration::from_micros(2);
/// Time for which a reader relies on its doorbell alone: the kernel may lack the memory for the
/// frame that would ring.
const TRUST: Duration = Duration::from_secs(1);
/// Longest pause of a burst; longer ones are those of a load that lasts (`wait.rs`).
const BURST: Duration = Duration::from_millis(1);
/// Interval between two looks of a reader with an absent doorbell.
const ABSENCE: Duration = Duration::from_millis(1);
/// Maximum time to wait for the last frames after the intake has ended.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Packet socket with its ring.
pub(crate) struct Engine<R> {
    // Fields drop in this order: the ring unmaps before its socket closes.
    ring: R,
    doorbell: Option<Doorbell>,
    socket: Socket,
    counts: Arc<Counts>,
    /// A frame rang and is invisible until its block is retired.
    unseen: bool,
    /// Frames that left the ring, read or unread.
    taken: u64,
    /// Looks at an empty ring by a reader that never sleeps.
    spins: u32,
    /// Member of a fanout group.
    grouped: bool,
    /// Leaves out frames that this host sends.
    ignores_outgoing: bool,
    /// 0 for all interfaces.
    ifindex: u32,
}

impl<R: Ring> Engine<R> {
    /// Opens and binds a socket with its ring. It rejects every frame until
    /// [`engine::Engine::admit`].
    ///
    /// # Errors
    /// The kernel refuses `program`, the ring, or the interface.
    pub(super) fn open(interface: &Interface, program: &Program, shape: &Shape) -> Result<Self, Error> {
        let socket = shape.socket(&interface.name)?;
        // Attached before anything is bound, so that the kernel's objections show here.
        filter::attach(program, &socket)?;
        socket.reject_all()?;
        socket.ignore_outgoing(shape.ignore_outgoing)?;
        let doorbell = if shape.doorbell { Some(Doorbell::open(interface, program, shape)?) } else { None };
        let ring = ring::open(&socket, shape)?;
        socket.bind(interface.index)?;
        socket.take_error()?;
        if shape.promiscuous && interface.index != 0 {
            socket.set_promiscuous(interface.index)?;
        }
        let counts = Arc::new(Counts::new(socket.try_clone()?));
        Ok(Self {
            ring,
            doorbell,
            socket,
            counts,
            unseen: false,
            taken: 0,
            spins: 0,
            grouped: false,
            ignores_outgoing: shape.ignore_outgoing,
            ifindex: interface.index,
        })
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn doorbell(&self) -> Option<&Doorbell> {
        self.doorbell.as_ref()
    }

    /// Notes that the sockets become members of fanout groups.
    pub(super) fn set_grouped(&mut self) {
        self.grouped = true;
        self.doorbell.iter_mut().for_each(Doorbell::set_grouped);
    }

    /// Returns the size of the ring's memory in bytes.
    pub(super) fn ring_bytes(&self) -> usize {
        self.ring.bytes()
    }

    /// Returns the ring's geometry in words.
    pub(super) fn describe(&self) -> String {
        self.ring.describe()
    }

    /// Pauses for a moment. No ring reports that its interface is gone, so the socket is asked now
    /// and then.
    fn spin(&mut self) -> Result<(), Error> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(LINK_CHECK_SPINS) {
            self.socket.take_error()?;
        }
        std::hint::spin_loop();
        Ok(())
    }

    /// Waits while a block gathers frames. The kernel wakes the reader when the block is full or
    /// its timer ends.
    fn gather(&mut self, pause: Duration, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        if let Some(bell) = &mut self.doorbell {
            bell.rest()?;
        }
        let lasts = pause > BURST;
        let limit = match (self.ring.reads_early(), lasts) {
            // Under a load that lasts it is cheaper to read a block when it is full.
            (true, true) => 2 * pause,
            (true, false) => pause,
            (false, false) => timeout,
            // At a high rate several blocks fill up in one sleep, so one wake-up serves all of
            // them. The ring holds fewer large frames than the pause was computed for.
            (false, true) => {
                let pause = pause.min(self.ring.fill_time() / RING_SHARE);
                strait_sys::wait::sleep(pause.min(timeout));
                if self.is_ready()? {
                    return Ok(());
                }
                timeout.saturating_sub(pause)
            }
        };
        self.wait_for_ring(limit.min(timeout), wakers)
    }

    fn wait_for_ring(&self, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        let [interrupt, link] = wakers;
        let fds = [Some(self.socket.as_fd()), interrupt, link];
        let [ring, ..] = strait_sys::wait::readable(fds, timeout)?;
        if ring.failed {
            self.socket.take_error()?;
        }
        Ok(())
    }

    /// Sleeps until a block is retired or a frame rings, then until that frame is whole.
    fn wait_for_bell(&mut self, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        let Some(bell) = &mut self.doorbell else { return Ok(()) };
        let Armed::Yes { rang } = bell.arm()? else {
            return self.wait_for_ring(timeout.min(ABSENCE), wakers);
        };
        // A frame that came before the bell was armed does not ring any more.
        if self.look_for(if rang { CROSSING } else { Duration::ZERO })? {
            return Ok(());
        }
        self.unseen |= rang;
        let Some(bell) = &self.doorbell else { return Ok(()) };
        // The end of a block's timer is no news to a reader that reads the block early.
        let trusted = self.ring.reads_early() && !self.unseen;
        let ring = (!trusted).then(|| self.socket.as_fd());
        let timeout = if trusted { timeout.min(TRUST) } else { timeout };
        let [interrupt, link] = wakers;
        let fds = [ring, Some(bell.socket().as_fd()), interrupt, link];
        let [ring, rung, ..] = strait_sys::wait::readable(fds, timeout)?;
        if ring.failed || rung.failed {
            self.socket.take_error()?;
        }
        if rung.readable {
            self.unseen |= !self.look_for(SETTLE)?;
        }
        Ok(())
    }

    /// Looks for a frame once; a ring that is read early is looked at again for `time`.
    fn look_for(&mut self, time: Duration) -> Result<bool, Error> {
        let deadline = Instant::now() + time;
        loop {
            if self.is_ready()? {
                return Ok(true);
            }
            if !self.ring.reads_early() || Instant::now() >= deadline {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    fn is_ready(&mut self) -> Result<bool, Error> {
        self.ring.ready(&self.socket)
    }
}

impl<R: Ring> Lend for Engine<R> {
    type Batch<'a> = Batch<R::Batch<'a>>;

    #[inline]
    fn ready(&mut self, _stopping: &AtomicBool) -> Result<bool, Error> {
        self.is_ready()
    }

    #[inline]
    fn take(&mut self, limit: usize) -> Batch<R::Batch<'_>> {
        self.unseen = false;
        let batch = self.ring.take(limit);
        self.taken += batch.len() as u64;
        Batch(batch)
    }
}

impl<R: Ring> engine::Engine for Engine<R> {
    fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    fn holds_at_least(&self) -> usize {
        self.ring.holds_at_least()
    }

    fn copies(&self) -> Copies {
        Copies::Captured
    }

    fn counters(&self) -> Option<Arc<dyn KernelCounters>> {
        let counts: Arc<Counts> = Arc::clone(&self.counts);
        Some(counts)
    }

    /// The ring's socket and the doorbell's.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let bell = self.doorbell.as_ref().map(|bell| bell.socket().as_fd());
        [self.socket.as_fd()].into_iter().chain(bell).collect()
    }

    /// Arms the doorbell. A frame that rang meanwhile gets the time to enter the ring.
    fn prepare_to_wait(&mut self) -> Result<(), Error> {
        let Some(bell) = &mut self.doorbell else { return Ok(()) };
        if let Armed::Yes { rang: true } = bell.arm()? {
            self.look_for(CROSSING)?;
        }
        Ok(())
    }

    fn wait(&mut self, step: Step, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        match step {
            Step::Spin => self.spin()?,
            Step::Gather(pause) if R::HAS_BLOCKS => self.gather(pause, timeout, wakers)?,
            Step::Gather(pause) => strait_sys::wait::sleep(pause.min(timeout)),
            Step::Wake if self.doorbell.is_some() => self.wait_for_bell(timeout, wakers)?,
            Step::Wake => self.wait_for_ring(timeout, wakers)?,
        }
        Ok(())
    }

    fn account(&mut self, account: &mut Capture, discarded: u64) -> Result<(), Error> {
        self.counts.read()?;
        account.received = self.counts.packets.load(Ordering::Relaxed);
        account.lost.ring_full = self.counts.drops.load(Ordering::Relaxed);
        account.events.queue_freezes = self.counts.freezes.load(Ordering::Relaxed);
        account.filtered = discarded;
        let lent = account.delivered + account.lost.sink + account.filtered;
        account.lost.unread = account.received.saturating_sub(account.lost.ring_full).saturating_sub(lent);
        Ok(())
    }

    fn drain(&mut self, account: &mut Capture, discarded: u64, since: Instant) -> Result<bool, Error> {
        self.account(account, discarded)?;
        // Not `unread`: frames of a batch that was dropped before its end are unread, and do not
        // come again.
        let left = account.received.saturating_sub(account.lost.ring_full);
        if left <= self.taken || since.elapsed() > DRAIN_MAX {
            return Ok(false);
        }
        self.wait_for_ring(Duration::from_millis(10), [None; 2])?;
        Ok(true)
    }

    /// Returns the state of the link and clears the errors of both sockets: one flap must not count
    /// once for each.
    fn link_state(&self) -> Result<Option<LinkState>, Error> {
        let bell = self.doorbell.iter().map(Doorbell::socket);
        for socket in bell.chain([&self.socket]) {
            match socket.take_error() {
                Err(error) if !error.is_one_of(&[Errno::NETDOWN]) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(Some(self.socket.link_state(self.ifindex)?))
    }

    fn check_link(&self) -> Result<(), Error> {
        self.doorbell.iter().try_for_each(|bell| bell.socket().take_error())?;
        Ok(self.socket.take_error()?)
    }

    /// Rejects every frame. A frame on its way may still enter the ring until the kernel's receive
    /// path has finished with it (`strait_sys::process::wait_for_readers`).
    fn reject_all(&self) -> Result<(), Error> {
        Ok(self.socket.reject_all()?)
    }

    fn admit(&self, program: &Program) -> Result<(), Error> {
        if !(self.grouped && self.ignores_outgoing) {
            return filter::attach(program, &self.socket);
        }
        // Frames of a group come by the group's hook, which ignores PACKET_IGNORE_OUTGOING of its
        // members.
        let received = program.without_pkttype_outgoing();
        filter::attach(&received.map_err(|error| Error::Filter(error.to_string()))?, &self.socket)
    }

    /// The intake must have ended by [`engine::Engine::reject_all`].
    fn discard_waiting(
        &mut self,
        program: &Program,
        account: &mut Capture,
        discarded: &AtomicU64,
    ) -> Result<(), Error> {
        if let Some(bell) = &mut self.doorbell {
            bell.set_filter(program)?;
        }
        let since = Instant::now();
        loop {
            while self.is_ready()? {
                discarded.fetch_add(self.take(usize::MAX).0.len() as u64, Ordering::Relaxed);
            }
            if !self.drain(account, discarded.load(Ordering::Relaxed), since)? {
                return Ok(());
            }
        }
    }

    fn ignore_outgoing(&mut self, ignore: bool) -> Result<(), Error> {
        self.ignores_outgoing = ignore;
        self.socket.ignore_outgoing(ignore)?;
        self.doorbell.iter().try_for_each(|bell| bell.socket().ignore_outgoing(ignore))?;
        Ok(())
    }

    fn set_cooked(&mut self, cooked: Cooked) {
        self.ring.set_cooked(Some(cooked));
    }
}
