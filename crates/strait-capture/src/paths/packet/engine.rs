//! Packet socket with its ring and its doorbell, as a lane drives it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use strait_filter::cbpf::Program;
use strait_ledger::Capture;
use strait_os::interface::Interface;
use strait_sys::LinkState;
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
use crate::wait::{LINK_CHECK_SPINS, RING_DIVISOR, Step, Wakers};

/// Maximum time for which a reader polls the open block after the doorbell rang: the kernel may
/// still be writing the frame.
const FRAME_WRITE_MAX: Duration = Duration::from_micros(50);
/// Maximum time between the delivery of a frame to the doorbell and to the ring, in this order: the
/// kernel serves the two sockets one after the other. A reader that has just emptied the doorbell
/// waits for this time before it decides that the ring is empty.
const DELIVERY_GAP_MAX: Duration = Duration::from_micros(2);
/// Maximum sleep of a reader that polls only its doorbell: the kernel may lack the memory for the
/// doorbell's copy of a frame, so that the frame is in the ring and does not ring.
const DOORBELL_ONLY_MAX: Duration = Duration::from_secs(1);
/// Maximum pause in a burst. `wait.rs` returns longer pauses only under a sustained load.
const BURST_PAUSE_MAX: Duration = Duration::from_millis(1);
/// Interval at which a reader polls its ring while the doorbell is not bound.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum time to wait for the last frames after reception has stopped.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Packet socket with its ring.
pub(crate) struct Engine<R> {
    // Fields drop in this order: the ring unmaps before its socket closes.
    ring: R,
    doorbell: Option<Doorbell>,
    socket: Socket,
    counts: Arc<Counts>,
    /// True if a frame rang the doorbell and cannot be read before its block is retired, because
    /// the block was not zeroed.
    awaits_retirement: bool,
    /// Number of frames taken from the ring, read or unread.
    taken: u64,
    /// Number of polls of an empty ring by a reader that never sleeps.
    spins: u32,
    /// True for a member of a fanout group.
    grouped: bool,
    /// True if frames that this host sends are left out.
    ignores_outgoing: bool,
    /// 0 for all interfaces.
    ifindex: u32,
}

impl<R: Ring> Engine<R> {
    /// Opens and binds a socket with its ring. It rejects every frame until
    /// [`engine::Engine::accept_matching`].
    ///
    /// # Errors
    /// The kernel refuses `program`, the ring, or the interface.
    pub(super) fn open(interface: &Interface, program: &Program, shape: &Shape) -> Result<Self, Error> {
        let socket = shape.socket(&interface.name)?;
        // The kernel checks the filter here. Frames pass only after `accept_matching`: until all
        // members of a fanout group have joined it, each would receive every frame.
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
            awaits_retirement: false,
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

    /// Returns the size of the longest frame that a slot holds; `None` without slots.
    pub(super) fn frame_bytes_max(&self) -> Option<usize> {
        self.ring.frame_bytes_max()
    }

    /// Returns a description of the ring's geometry, for the user.
    pub(super) fn describe(&self) -> String {
        self.ring.describe()
    }

    /// Pauses for a moment. A ring does not report that its interface was removed, so the socket's
    /// error is read every [`LINK_CHECK_SPINS`] calls.
    fn spin(&mut self) -> Result<(), Error> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(LINK_CHECK_SPINS) {
            self.socket.take_error()?;
        }
        std::hint::spin_loop();
        Ok(())
    }

    /// Waits while a block gathers frames. The kernel wakes the reader when the block is full or
    /// its retire timer expires.
    fn gather(&mut self, pause: Duration, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        if let Some(doorbell) = &mut self.doorbell {
            doorbell.reader_is_awake()?;
        }
        let sustained = pause > BURST_PAUSE_MAX;
        let limit = match (self.ring.reads_early(), sustained) {
            // Under a sustained load it is cheaper to read a block when it is full.
            (true, true) => 2 * pause,
            (true, false) => pause,
            (false, false) => timeout,
            // At a high rate several blocks fill up in one sleep, so one wake-up serves all of
            // them. The ring holds fewer large frames than the pause was computed for.
            (false, true) => {
                let pause = pause.min(self.ring.fill_time() / RING_DIVISOR);
                strait_os::wait::sleep(pause.min(timeout));
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
        let [ring, ..] = strait_os::wait::readable(fds, timeout)?;
        if ring.failed {
            self.socket.take_error()?;
        }
        Ok(())
    }

    /// Sleeps until a block is retired or a frame rings the doorbell, then waits until that frame
    /// is complete.
    fn wait_for_doorbell(&mut self, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        let Some(doorbell) = &mut self.doorbell else { return Ok(()) };
        let Armed::Yes { rang } = doorbell.arm()? else {
            return self.wait_for_ring(timeout.min(POLL_INTERVAL), wakers);
        };
        // A frame that arrived before the doorbell was armed does not ring, so poll the ring once
        // more.
        if self.poll_ring_for(if rang { DELIVERY_GAP_MAX } else { Duration::ZERO })? {
            return Ok(());
        }
        self.awaits_retirement |= rang;
        let Some(doorbell) = &self.doorbell else { return Ok(()) };
        // A reader that sees the frames of the open block does not need the wake-up at the end of
        // the block's timer. It would be a second wake-up for each packet on a quiet link.
        let doorbell_only = self.ring.reads_early() && !self.awaits_retirement;
        let ring = (!doorbell_only).then(|| self.socket.as_fd());
        let timeout = if doorbell_only { timeout.min(DOORBELL_ONLY_MAX) } else { timeout };
        let [interrupt, link] = wakers;
        let fds = [ring, Some(doorbell.socket().as_fd()), interrupt, link];
        let [ring, rung, ..] = strait_os::wait::readable(fds, timeout)?;
        if ring.failed || rung.failed {
            self.socket.take_error()?;
        }
        if rung.readable {
            self.awaits_retirement |= !self.poll_ring_for(FRAME_WRITE_MAX)?;
        }
        Ok(())
    }

    /// Polls the ring once, or for up to `time` if the open block can be read.
    fn poll_ring_for(&mut self, time: Duration) -> Result<bool, Error> {
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

/// Replaces the filter of a ring's socket. `rejects_sent` is true for a member of a fanout group
/// that leaves out sent frames: the group receives frames through a protocol hook of its own, to
/// which `PACKET_IGNORE_OUTGOING` of its members does not apply.
pub(super) fn attach(program: &Program, socket: &Socket, rejects_sent: bool) -> Result<(), Error> {
    if !rejects_sent {
        return filter::attach(program, socket);
    }
    let received = program.without_pkttype_outgoing();
    filter::attach(&received.map_err(|error| Error::Filter(error.to_string()))?, socket)
}

impl<R: Ring> Lend for Engine<R> {
    type Batch<'a> = Batch<R::Batch<'a>>;

    #[inline]
    fn ready(&mut self, _stopping: &AtomicBool) -> Result<bool, Error> {
        self.is_ready()
    }

    #[inline]
    fn take(&mut self, limit: usize) -> Batch<R::Batch<'_>> {
        self.awaits_retirement = false;
        let batch = self.ring.take(limit);
        self.taken += batch.len() as u64;
        Batch(batch)
    }
}

impl<R: Ring> engine::Engine for Engine<R> {
    fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    fn capacity_min(&self) -> usize {
        self.ring.capacity_min()
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
        let doorbell = self.doorbell.as_ref().map(|doorbell| doorbell.socket().as_fd());
        [self.socket.as_fd()].into_iter().chain(doorbell).collect()
    }

    /// Arms the doorbell. If a frame has rung, polls the ring until the frame is in it.
    fn prepare_to_wait(&mut self) -> Result<(), Error> {
        let Some(doorbell) = &mut self.doorbell else { return Ok(()) };
        if let Armed::Yes { rang: true } = doorbell.arm()? {
            self.poll_ring_for(DELIVERY_GAP_MAX)?;
        }
        Ok(())
    }

    fn wait(&mut self, step: Step, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        match step {
            Step::Spin => self.spin()?,
            Step::Gather(pause) if R::HAS_BLOCKS => self.gather(pause, timeout, wakers)?,
            Step::Gather(pause) => strait_os::wait::sleep(pause.min(timeout)),
            Step::Wake if self.doorbell.is_some() => self.wait_for_doorbell(timeout, wakers)?,
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
        // `unread` cannot be used: it includes frames of batches that were dropped before their
        // end, and those do not come again.
        let left = account.received.saturating_sub(account.lost.ring_full);
        if left <= self.taken || since.elapsed() > DRAIN_MAX {
            return Ok(false);
        }
        self.wait_for_ring(Duration::from_millis(10), [None; 2])?;
        Ok(true)
    }

    /// Returns the state of the link. Clears the errors of both sockets, so that one flap does not
    /// count twice.
    fn link_state(&self) -> Result<Option<LinkState>, Error> {
        let doorbell = self.doorbell.iter().map(Doorbell::socket);
        for socket in doorbell.chain([&self.socket]) {
            match socket.take_error() {
                Err(error) if !error.is_one_of(&[Errno::NETDOWN]) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(Some(self.socket.link_state(self.ifindex)?))
    }

    fn check_link(&self) -> Result<(), Error> {
        self.doorbell.iter().try_for_each(|doorbell| doorbell.socket().take_error())?;
        Ok(self.socket.take_error()?)
    }

    /// Rejects every frame. A frame on its way may still enter the ring until the kernel's receive
    /// path has finished with it (`strait_os::process::wait_for_receive_paths`).
    fn reject_all(&self) -> Result<(), Error> {
        Ok(self.socket.reject_all()?)
    }

    fn accept_matching(&self, program: &Program) -> Result<(), Error> {
        attach(program, &self.socket, self.grouped && self.ignores_outgoing)
    }

    /// Call [`engine::Engine::reject_all`] first.
    fn discard_waiting(
        &mut self,
        program: &Program,
        account: &mut Capture,
        discarded: &AtomicU64,
    ) -> Result<(), Error> {
        if let Some(doorbell) = &mut self.doorbell {
            doorbell.set_filter(program)?;
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
        self.doorbell.iter().try_for_each(|doorbell| doorbell.socket().ignore_outgoing(ignore))?;
        Ok(())
    }

    fn set_cooked(&mut self, cooked: Cooked) {
        self.ring.set_cooked(Some(cooked));
    }
}
