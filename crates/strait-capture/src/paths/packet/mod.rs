//! The `AF_PACKET` paths: `recv`, `v2` and `v3` behind one [`Engine`].
//!
//! A lane calls [`Engine::ready`] until something is, waits by [`Engine::wait`] where nothing is,
//! and borrows the frames by [`Engine::take`]. The ring modules of `strait-sys` own the memory;
//! this one knows when to wait and what the kernel's counters mean.

mod doorbell;
mod ring;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strait_filter::cbpf::Program;
use strait_ledger::Capture;
use strait_sys::LinkState;
use strait_sys::interface::Interface;
use strait_sys::packet::{Cooked, Fanout, Frame as RawFrame, Socket, VlanTag, receive, v2, v3};
use strait_sys::process::wait_for_readers;

use self::doorbell::{Armed, Doorbell};
use self::ring::Ring;
pub(crate) use self::ring::{Kind, Shape};
use crate::batch::Booking;
use crate::error::Error;
use crate::filter;
use crate::frame::{Direction, Frame, Vlan};
use crate::lane::Wakers;
use crate::live_counters::Reading;
use crate::wait::{RING_SHARE, Step};

/// How long a reader that was rung looks for the frame that the kernel is still writing.
const SETTLE: Duration = Duration::from_micros(50);
/// How long a frame may take into the ring after its doorbell was heard and thrown away: the two
/// sockets are served one after the other.
const CROSSING: Duration = Duration::from_micros(2);
/// How long a reader relies on its doorbell alone: the kernel may have no memory for the frame that
/// would ring.
const TRUST: Duration = Duration::from_secs(1);
/// Longer pauses are those of a load that lasts (`wait.rs`).
const BURST: Duration = Duration::from_millis(1);
/// How often a reader looks while its doorbell is on its way back.
const ABSENCE: Duration = Duration::from_millis(1);
/// How often a spinning reader asks whether its interface is there: every few milliseconds.
const LINK_CHECK_SPINS: u32 = 1 << 16;
/// What a lane waits for its last frames at most, once the intake has ended.
const DRAIN_MAX: Duration = Duration::from_secs(2);

const ENETDOWN: i32 = 100;

/// One packet socket with its ring.
pub(crate) struct Engine {
    // Fields drop in this order: the ring unmaps before its socket closes.
    ring: Ring,
    doorbell: Option<Doorbell>,
    socket: Socket,
    counts: Arc<Counts>,
    /// A frame rang and cannot be seen before its block is retired.
    unseen: bool,
    /// Frames that left the ring, whether the program looked at them or not.
    taken: u64,
    /// Looks at an empty ring by a reader that never sleeps.
    spins: u32,
    /// A member of a fanout group.
    grouped: bool,
    /// Leaves out frames that this host sends.
    ignores_outgoing: bool,
    /// 0 for all interfaces.
    ifindex: u32,
}

impl Engine {
    /// A bound socket with its ring, which takes `program` and rejects every frame until
    /// [`Engine::admit`].
    pub(crate) fn open(interface: &Interface, program: &Program, shape: &Shape) -> Result<Self, Error> {
        let socket = shape.socket(&interface.name)?;
        // What the kernel has against the filter shows here, before anything is bound.
        filter::attach(program, &socket)?;
        socket.reject_all()?;
        socket.ignore_outgoing(shape.ignore_outgoing)?;
        let doorbell = if shape.doorbell { Some(Doorbell::open(interface, program, shape)?) } else { None };
        let ring = Ring::open(&socket, shape)?;
        socket.bind(interface.index)?;
        socket.take_error()?;
        if shape.promiscuous && interface.index != 0 {
            socket.set_promiscuous(interface.index)?;
        }
        let counts = Arc::new(Counts::new(socket.try_clone()?));
        let ignores_outgoing = shape.ignore_outgoing;
        Ok(Self {
            ring,
            doorbell,
            socket,
            counts,
            unseen: false,
            taken: 0,
            spins: 0,
            grouped: false,
            ignores_outgoing,
            ifindex: interface.index,
        })
    }

    /// Receives what `program` matches from here on.
    pub(crate) fn admit(&self, program: &Program) -> Result<(), Error> {
        if !(self.grouped && self.ignores_outgoing) {
            return filter::attach(program, &self.socket);
        }
        // Frames of a group come by the group's hook, which knows nothing of its members'
        // PACKET_IGNORE_OUTGOING.
        let received = program.without_pkttype_outgoing();
        filter::attach(&received.map_err(|error| Error::Filter(error.to_string()))?, &self.socket)
    }

    /// Rejects every frame. One that is on its way may still enter the ring until the kernel's
    /// receive path has left what it was doing (`strait_sys::process::wait_for_readers`).
    pub(crate) fn reject_all(&self) -> Result<(), Error> {
        Ok(self.socket.reject_all()?)
    }

    /// The kernel's counters.
    pub(crate) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Bytes that the ring maps.
    pub(crate) fn ring_bytes(&self) -> usize {
        self.ring.bytes()
    }

    /// The ring's geometry in words.
    pub(crate) fn describe(&self) -> String {
        self.ring.describe()
    }

    /// About how many minimum-size frames the ring holds.
    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Frames that the ring holds, however long they are.
    pub(crate) fn holds_at_least(&self) -> usize {
        self.ring.holds_at_least()
    }

    pub(crate) fn ready(&mut self) -> Result<bool, Error> {
        match &mut self.ring {
            Ring::Recv(receiver, _) => Ok(receiver.fill(&self.socket)? > 0),
            Ring::V2(ring) => Ok(ring.ready()),
            Ring::V3(ring) => Ok(ring.ready()),
        }
    }

    /// Lends frames that are ready, `limit` at most.
    pub(crate) fn take(&mut self, limit: usize) -> Batch<'_> {
        self.unseen = false;
        let batch = match &mut self.ring {
            Ring::Recv(receiver, _) => Batch::Recv(receiver.take(limit)),
            Ring::V2(ring) => Batch::V2(ring.take(limit.min(V2_BATCH_MAX))),
            Ring::V3(ring) => Batch::V3(ring.take(limit)),
        };
        self.taken += batch.len() as u64;
        batch
    }

    /// Waits as `step` says, `timeout` at most or until one of `wakers` is readable. Frames may or
    /// may not be ready then.
    ///
    /// # Errors
    /// The interface went down or vanished.
    pub(crate) fn wait(&mut self, step: Step, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        match step {
            Step::Spin => self.spin()?,
            Step::Gather(pause) if matches!(self.ring, Ring::V3(_)) => {
                self.gather(pause, timeout, wakers)?;
            }
            Step::Gather(pause) => strait_sys::wait::sleep(pause.min(timeout)),
            Step::Wake if self.doorbell.is_some() => self.wait_for_bell(timeout, wakers)?,
            Step::Wake => self.wait_for_ring(timeout, wakers)?,
        }
        Ok(())
    }

    /// Passes a moment; looks now and then whether the interface is still there, which no ring
    /// tells.
    fn spin(&mut self) -> Result<(), Error> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(LINK_CHECK_SPINS) {
            self.socket.take_error()?;
        }
        std::hint::spin_loop();
        Ok(())
    }

    /// A block gathers frames by itself; the kernel wakes us when it is full or its time is over.
    fn gather(&mut self, pause: Duration, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error> {
        if let Some(bell) = &mut self.doorbell {
            bell.rest()?;
        }
        let lasts = pause > BURST;
        let limit = match (self.reads_early(), lasts) {
            // Under a load that lasts it is cheaper to read a block when it is full.
            (true, true) => 2 * pause,
            (true, false) => pause,
            (false, false) => timeout,
            // At a high rate several blocks fill up in one sleep; one wake-up does for all. Of large frames
            // the ring holds fewer than the pause was made for.
            (false, true) => {
                let pause = pause.min(self.fill_time() / RING_SHARE);
                strait_sys::wait::sleep(pause.min(timeout));
                if self.ready()? {
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
        // A block that is read early tells nothing new when its time is over.
        let trusted = self.reads_early() && !self.unseen;
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

    /// The ring's socket and the doorbell's.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let bell = self.doorbell.as_ref().map(|bell| bell.socket().as_fd());
        [self.socket.as_fd()].into_iter().chain(bell).collect()
    }

    /// Lets the next frame ring, and gives one that is just coming the time to arrive.
    pub(crate) fn prepare_to_wait(&mut self) -> Result<(), Error> {
        let Some(bell) = &mut self.doorbell else { return Ok(()) };
        if let Armed::Yes { rang: true } = bell.arm()? {
            self.look_for(CROSSING)?;
        }
        Ok(())
    }

    /// Looks once, and where frames can be seen before their block is retired, again for `time`.
    fn look_for(&mut self, time: Duration) -> Result<bool, Error> {
        let deadline = Instant::now() + time;
        loop {
            if self.ready()? {
                return Ok(true);
            }
            if !self.reads_early() || Instant::now() >= deadline {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// How long the kernel takes to fill the ring of blocks.
    fn fill_time(&self) -> Duration {
        if let Ring::V3(ring) = &self.ring { ring.fill_time() } else { Duration::MAX }
    }

    fn reads_early(&self) -> bool {
        matches!(&self.ring, Ring::V3(ring) if ring.reads_early())
    }

    /// Reads the kernel's counters into `account`; `discarded` frames came and were lent to nobody.
    pub(crate) fn account(&mut self, account: &mut Capture, discarded: u64) -> Result<(), Error> {
        self.counts.read()?;
        account.received = self.counts.packets.load(Ordering::Relaxed);
        account.lost.ring_full = self.counts.drops.load(Ordering::Relaxed);
        account.events.queue_freezes = self.counts.freezes.load(Ordering::Relaxed);
        account.filtered = discarded;
        let lent = account.delivered + account.lost.sink + account.filtered;
        account.lost.unread = account.received.saturating_sub(account.lost.ring_full).saturating_sub(lent);
        Ok(())
    }

    /// Gives frames that came by an earlier filter back unseen and counts them in `discarded`:
    /// `program`, which [`Engine::admit`] is to put in place after this, may reject them. The
    /// intake must have ended by [`Engine::reject_all`].
    pub(crate) fn discard_waiting(
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
            while self.ready()? {
                discarded.fetch_add(self.take(usize::MAX).len() as u64, Ordering::Relaxed);
            }
            if !self.drain(account, discarded.load(Ordering::Relaxed), since)? {
                return Ok(());
            }
        }
    }

    /// State of the link. What the sockets have to say of it is taken with it, or one flap would
    /// count for each socket.
    pub(crate) fn link_state(&self) -> Result<LinkState, Error> {
        let bell = self.doorbell.iter().map(Doorbell::socket);
        for socket in bell.chain([&self.socket]) {
            match socket.take_error() {
                Err(error) if error.errno() != Some(ENETDOWN) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(self.socket.link_state(self.ifindex)?)
    }

    /// Reports an error of the socket, once.
    pub(crate) fn check_link(&self) -> Result<(), Error> {
        self.doorbell.iter().try_for_each(|bell| bell.socket().take_error())?;
        Ok(self.socket.take_error()?)
    }

    /// Leaves out frames that this host sends, or no longer; in a fanout group from the next filter
    /// on.
    pub(crate) fn ignore_outgoing(&mut self, ignore: bool) -> Result<(), Error> {
        self.ignores_outgoing = ignore;
        self.socket.ignore_outgoing(ignore)?;
        self.doorbell.iter().try_for_each(|bell| bell.socket().ignore_outgoing(ignore))?;
        Ok(())
    }

    /// Which header stands before packets from now on.
    pub(crate) fn set_cooked(&mut self, cooked: Cooked) {
        self.ring.set_cooked(Some(cooked));
    }

    /// Waits for the frames that the kernel counted and has not handed over yet, the intake having
    /// ended. False when there are none, or when they did not come in time.
    pub(crate) fn drain(
        &mut self,
        account: &mut Capture,
        discarded: u64,
        since: Instant,
    ) -> Result<bool, Error> {
        self.account(account, discarded)?;
        // Not `unread`: frames of a batch that was dropped before its end are unread, and do not come
        // again.
        let left = account.received.saturating_sub(account.lost.ring_full);
        if left <= self.taken || since.elapsed() > DRAIN_MAX {
            return Ok(false);
        }
        self.wait_for_ring(Duration::from_millis(10), [None; 2])?;
        Ok(true)
    }
}

/// The kernel's counters of a socket, which reading sets to zero: whoever reads adds what was
/// there. Nothing is locked, so that a signal handler may read.
#[derive(Debug)]
pub(crate) struct Counts {
    socket: Socket,
    packets: AtomicU64,
    drops: AtomicU64,
    freezes: AtomicU64,
}

impl Counts {
    fn new(socket: Socket) -> Self {
        Self { socket, packets: AtomicU64::new(0), drops: AtomicU64::new(0), freezes: AtomicU64::new(0) }
    }

    fn read(&self) -> Result<(), Error> {
        let new = self.socket.statistics()?;
        self.packets.fetch_add(new.packets.into(), Ordering::Relaxed);
        self.drops.fetch_add(new.drops.into(), Ordering::Relaxed);
        self.freezes.fetch_add(new.freezes.into(), Ordering::Relaxed);
        Ok(())
    }

    /// What passed the filter, and what of it was dropped.
    pub(crate) fn reading(&self) -> Result<Reading, Error> {
        self.read()?;
        let (received, dropped) = (&self.packets, &self.drops);
        Ok(Reading { received: received.load(Ordering::Relaxed), dropped: dropped.load(Ordering::Relaxed) })
    }
}

/// Makes the engines' sockets one fanout group, so that each frame goes to one of them; their
/// doorbells another, so that each rings for its own lane. Members are numbered in the order in
/// which they join.
///
/// A socket has to be bound before it can join, so that it receives every frame meanwhile: the
/// engines must not admit any before this returns. Returns when no frame is on its way to a socket
/// by its own hook any more.
pub(crate) fn join_fanout(engines: &mut [Engine], fanout: Fanout) -> Result<(), Error> {
    if engines.len() < 2 {
        return Ok(());
    }
    for engine in engines.iter_mut() {
        engine.grouped = true;
        engine.doorbell.iter_mut().for_each(Doorbell::set_grouped);
    }
    let sockets: Vec<&Socket> = engines.iter().map(|engine| &engine.socket).collect();
    let bells: Vec<&Socket> =
        engines.iter().filter_map(|engine| Some(engine.doorbell.as_ref()?.socket())).collect();
    // The kernel serves the hook that was added last first: a frame is in its ring before the bell
    // rings.
    for group in [bells, sockets] {
        if let Some((founder, others)) = group.split_first() {
            let id = founder.found_fanout(fanout)?;
            others.iter().try_for_each(|socket| socket.join_fanout(id, fanout))?;
        }
    }
    wait_for_readers();
    Ok(())
}

/// Frames of a V2 ring lent at once: enough to make the batch's own cost vanish, few enough to stay
/// in the cache.
const V2_BATCH_MAX: usize = 256;

/// Frames lent by a packet socket.
pub(crate) enum Batch<'a> {
    Recv(receive::Batch<'a>),
    V2(v2::Batch<'a>),
    V3(v3::Batch<'a>),
}

impl Batch<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Recv(batch) => batch.len(),
            Self::V2(batch) => batch.len(),
            Self::V3(batch) => batch.len(),
        }
    }

    /// Books the frames, `limit` at most, and hands them to `take`.
    #[inline]
    pub(crate) fn try_each<E>(
        &mut self,
        limit: usize,
        booking: &mut Booking<'_>,
        take: &mut impl FnMut(&Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Recv(batch) => {
                batch.frames().take(limit).try_for_each(|raw| booking.hand(&mut frame(raw), take))
            }
            Self::V2(batch) => {
                batch.frames().take(limit).try_for_each(|raw| booking.hand(&mut frame(raw), take))
            }
            Self::V3(batch) => {
                batch.frames().take(limit).try_for_each(|raw| booking.hand(&mut frame(raw), take))
            }
        }
    }

    pub(crate) fn frames(&mut self) -> Frames<'_> {
        match self {
            Self::Recv(batch) => Frames::Recv(batch.frames()),
            Self::V2(batch) => Frames::V2(batch.frames()),
            Self::V3(batch) => Frames::V3(batch.frames()),
        }
    }
}

/// Iterates over the frames of a [`Batch`].
pub(crate) enum Frames<'a> {
    Recv(receive::Frames<'a>),
    V2(v2::Frames<'a>),
    V3(v3::Frames<'a>),
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        let raw = match self {
            Self::Recv(frames) => frames.next(),
            Self::V2(frames) => frames.next(),
            Self::V3(frames) => frames.next(),
        };
        raw.map(frame)
    }
}

#[inline]
fn frame(raw: RawFrame<'_>) -> Frame<'_> {
    let sent = raw.packet_type == strait_sys::packet::PACKET_OUTGOING;
    Frame {
        bytes: raw.bytes,
        wire_len: raw.wire_len,
        timestamp_ns: raw.timestamp_ns,
        interface: raw.ifindex,
        queue: 0,
        vlan: raw.vlan.map(|VlanTag { tci, tpid }| Vlan { tci, tpid }),
        direction: if sent { Direction::Out } else { Direction::In },
        rx_hash: raw.rx_hash,
        hardware_ns: 0,
    }
}
