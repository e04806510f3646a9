//! Injects frames into an interface, in batches and at a given pace.
//!
//! [`Injector::buffer`] lends the next free buffer and [`Injector::push`] queues it. A full batch
//! is sent without a further call. If the device's queue is full the injector waits, at most for
//! five seconds; it queues no more than one batch or one ring.
//!
//! The paths are not in the table of `paths/mod.rs`: it generates the types that a capture lends,
//! and opens sessions with their filters, directions and lanes, of which injection has none. Only
//! AF_XDP and `PF_ZEROCOPY` are paths of both, and have one name.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use strait_ledger as ledger;
use strait_os::interface::Interface;
use strait_os::{clock, wait};
use strait_sys::packet::tx_ring::TxRing;
use strait_sys::packet::{Socket, send};

use self::limits::{FRAME_BYTES_MAX, STALL_MAX, STALL_PAUSE, is_tagged, stalled};

use crate::error::Error;
use crate::paths::Path;

pub(crate) mod limits;
mod live;
mod xdp;
pub(crate) mod zerocopy;

pub use live::LiveGenerator;

/// Kernel path of injected frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InjectPath {
    /// `sendmmsg`, bypassing the queueing discipline.
    #[default]
    Sendmmsg,
    /// `PACKET_TX_RING`, bypassing the queueing discipline.
    Ring,
    /// AF_XDP TX on queue 0.
    Xdp,
    /// `PF_ZEROCOPY`, on a NIC bound to the driver pf_zerocopy.
    ZeroCopy,
}

impl InjectPath {
    /// Every path.
    pub const ALL: &'static [Self] = &[Self::Sendmmsg, Self::Ring, Self::Xdp, Self::ZeroCopy];

    /// Returns the name as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sendmmsg => "sendmmsg",
            Self::Ring => "ring",
            Self::Xdp => Path::Xdp.name(),
            Self::ZeroCopy => Path::ZeroCopy.name(),
        }
    }

    /// Returns the description in one line, without a full stop.
    pub fn description(self) -> &'static str {
        match self {
            Self::Sendmmsg => "sendmmsg on AF_PACKET, bypassing the queueing discipline",
            Self::Ring => "PACKET_TX_RING, bypassing the queueing discipline",
            Self::Xdp => "AF_XDP",
            Self::ZeroCopy => "PF_ZEROCOPY: a NIC bound to the kernel module of that name",
        }
    }
}

/// Frames per `sendmmsg`, or per system call for a ring.
const BATCH: usize = 128;
/// Slots of a transmit ring.
const RING_SLOTS: usize = 1024;
/// Maximum wait that spins instead of sleeping: a sleep ends some 50 us late.
const SPIN_BELOW_NS: u64 = 60_000;
/// Size in bytes of an Ethernet header: the kernel refuses shorter frames.
const HEADER_BYTES: usize = 14;
/// Bytes of a frame beyond the MTU: Ethernet header and two VLAN tags.
const LINK_OVERHEAD: usize = HEADER_BYTES + 8;

/// Sender of many frames on an interface.
pub struct Injector {
    engine: Engine,
    interface: Interface,
    /// Number of frames since the last flush.
    queued: usize,
    /// Account. It counts each queued frame as sent, until the kernel refuses the frame.
    account: ledger::Send,
    recent: Recent,
    started: Option<Instant>,
}

enum Engine {
    Sendmmsg { batch: send::Batch, socket: Socket },
    Ring { ring: TxRing, socket: Socket },
    Xdp(Box<xdp::Transmitter>),
    ZeroCopy(zerocopy::Transmitter),
}

impl Injector {
    /// Opens `interface` for sending.
    ///
    /// # Errors
    /// An unknown interface, no privilege, or a path that the interface does not have.
    pub fn open(interface: &str, path: InjectPath) -> Result<Self, Error> {
        let interface = Interface::find(interface)?;
        let engine = match path {
            InjectPath::Sendmmsg => {
                let socket = Self::socket(&interface)?;
                socket.bind_for_sending(interface.index)?;
                Engine::Sendmmsg { batch: send::Batch::new(BATCH, FRAME_BYTES_MAX), socket }
            }
            InjectPath::Ring => {
                let socket = Self::socket(&interface)?;
                let frame_bytes = (interface.mtu as usize + LINK_OVERHEAD).min(FRAME_BYTES_MAX);
                let ring = TxRing::new(&socket, RING_SLOTS, frame_bytes)?;
                socket.bind_for_sending(interface.index)?;
                Engine::Ring { ring, socket }
            }
            InjectPath::Xdp => Engine::Xdp(Box::new(xdp::Transmitter::open(&interface)?)),
            InjectPath::ZeroCopy => Engine::ZeroCopy(zerocopy::Transmitter::open(&interface)?),
        };
        let account = ledger::Send::default();
        Ok(Self { engine, interface, queued: 0, account, recent: Recent::default(), started: None })
    }

    /// Opens a socket that bypasses the queueing discipline and receives nothing.
    fn socket(interface: &Interface) -> Result<Socket, Error> {
        let socket = Socket::open(&interface.name)?;
        socket.bypass_qdisc()?;
        Ok(socket)
    }

    /// Returns a note for the user: on AF_XDP, the reason for copies by the kernel if zero-copy is
    /// not available.
    pub fn note(&self) -> Option<&str> {
        match &self.engine {
            Engine::Xdp(transmitter) => transmitter.copy_reason(),
            _ => None,
        }
    }

    /// Returns the next free buffer, for one frame. If there is none it sends the queued frames and
    /// waits.
    ///
    /// # Errors
    /// The interface went down, or its queue stayed full for five seconds.
    pub fn buffer(&mut self) -> Result<&mut [u8], Error> {
        self.started.get_or_insert_with(Instant::now);
        if self.queued >= BATCH || !self.engine.has_room() {
            self.flush()?;
        }
        self.wait_for_room()?;
        self.engine.buffer().ok_or_else(stalled)
    }

    /// Queues the frame of `len` bytes in the buffer, or counts it as refused.
    pub fn push(&mut self, len: usize) {
        if !self.accepts(len) {
            self.account.refused += 1;
            return;
        }
        self.engine.push(len);
        self.queued += 1;
        self.account.frames += 1;
        self.account.bytes += len as u64;
        self.recent.push(len);
    }

    /// Sends the queued frames. After an error the unsent frames stay queued for the next attempt.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.queued == 0 {
            return Ok(());
        }
        self.engine.flush(&mut self.account)?;
        self.queued = 0;
        Ok(())
    }

    /// Sends the queued frames, then waits until `due_ns` of `CLOCK_MONOTONIC`. Returns at once if
    /// that time is past.
    pub fn wait_until(&mut self, due_ns: u64) -> Result<(), Error> {
        if clock::monotonic_ns() >= due_ns {
            return Ok(());
        }
        self.flush()?;
        loop {
            let left = due_ns.saturating_sub(clock::monotonic_ns());
            match left {
                0 => return Ok(()),
                1..SPIN_BELOW_NS => std::hint::spin_loop(),
                _ => wait::sleep(Duration::from_nanos(left - SPIN_BELOW_NS / 2)),
            }
        }
    }

    /// Sends the queued frames, waits until the kernel has taken them, and returns the account.
    pub fn finish(&mut self) -> Result<ledger::Send, Error> {
        self.flush()?;
        let deadline = Instant::now() + STALL_MAX;
        while self.engine.pending() > 0 && Instant::now() < deadline {
            self.engine.kick()?;
            wait::sleep(STALL_PAUSE);
        }
        self.engine.check()?;
        Ok(self.account())
    }

    /// Returns the account so far. Queued frames, and frames that the kernel has not reported as
    /// sent, count as unfinished.
    pub fn account(&mut self) -> ledger::Send {
        let mut account = self.account.clone();
        let (mut parts, mut dropped) = (self.engine.pending(), self.engine.dropped());
        for len in self.recent.backwards() {
            if parts > 0 {
                parts = parts.saturating_sub(self.engine.parts(len));
                account.unfinished += 1;
            } else if dropped > 0 {
                dropped -= 1;
                account.dropped += 1;
            } else {
                break;
            }
            account.frames -= 1;
            account.bytes -= len as u64;
        }
        if let Some(started) = self.started {
            account.set_elapsed(started.elapsed());
        }
        account
    }

    /// Returns true if the frame fits a buffer and the link's limits. `sendmmsg` returns an error
    /// for a frame that is too long or too short for the link. From a ring the kernel drops such a
    /// frame silently, so it is checked here.
    fn accepts(&mut self, len: usize) -> bool {
        if len > FRAME_BYTES_MAX || matches!(self.engine, Engine::Sendmmsg { .. }) {
            return len <= FRAME_BYTES_MAX;
        }
        if len <= self.interface.frame_bytes_max(false) {
            return len >= HEADER_BYTES;
        }
        len <= self.interface.frame_bytes_max(true)
            && self.engine.buffer().is_some_and(|frame| is_tagged(frame))
    }

    fn wait_for_room(&mut self) -> Result<(), Error> {
        let mut deadline = None;
        while !self.engine.has_room() {
            self.account.waits += 1;
            if Instant::now() > *deadline.get_or_insert_with(|| Instant::now() + STALL_MAX) {
                return Err(stalled());
            }
            self.engine.kick()?;
            wait::sleep(STALL_PAUSE);
        }
        Ok(())
    }
}

impl Engine {
    fn has_room(&mut self) -> bool {
        match self {
            Self::Sendmmsg { batch, .. } => !batch.is_full(),
            Self::Ring { ring, .. } => ring.buffer().is_some(),
            Self::Xdp(transmitter) => transmitter.has_room(),
            Self::ZeroCopy(transmitter) => transmitter.has_room(),
        }
    }

    fn buffer(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Sendmmsg { batch, .. } => batch.buffer(),
            Self::Ring { ring, .. } => ring.buffer(),
            Self::Xdp(transmitter) => transmitter.buffer(),
            Self::ZeroCopy(transmitter) => transmitter.buffer(),
        }
    }

    fn push(&mut self, len: usize) {
        match self {
            Self::Sendmmsg { batch, .. } => batch.push(len),
            Self::Ring { ring, .. } => ring.push(len),
            Self::Xdp(transmitter) => transmitter.push(len),
            Self::ZeroCopy(transmitter) => transmitter.push(len),
        }
    }

    /// Passes the queued frames to the kernel.
    fn flush(&mut self, account: &mut ledger::Send) -> Result<(), Error> {
        match self {
            Self::Sendmmsg { batch, socket } => send_all(batch, socket, account),
            Self::Ring { .. } | Self::Xdp(_) | Self::ZeroCopy(_) => self.kick(),
        }
    }

    fn kick(&mut self) -> Result<(), Error> {
        match self {
            Self::Sendmmsg { .. } => Ok(()),
            Self::Ring { ring, socket } => Ok(ring.send(socket)?),
            Self::Xdp(transmitter) => transmitter.flush(),
            Self::ZeroCopy(transmitter) => transmitter.flush(),
        }
    }

    /// Returns the number of frames that the kernel has not sent, or of their parts, see
    /// [`Engine::parts`].
    fn pending(&mut self) -> usize {
        match self {
            Self::Sendmmsg { batch, .. } => batch.len(),
            Self::Ring { ring, .. } => ring.pending(),
            Self::Xdp(transmitter) => transmitter.pending(),
            Self::ZeroCopy(transmitter) => transmitter.pending(),
        }
    }

    /// Returns the number of frames that the kernel accepted and dropped when its interface was
    /// removed.
    fn dropped(&self) -> u64 {
        match self {
            Self::ZeroCopy(transmitter) => transmitter.dropped(),
            Self::Sendmmsg { .. } | Self::Ring { .. } | Self::Xdp(_) => 0,
        }
    }

    /// Returns an error that came after the kernel had taken all frames.
    fn check(&self) -> Result<(), Error> {
        match self {
            Self::ZeroCopy(transmitter) => transmitter.check(),
            Self::Sendmmsg { .. } | Self::Ring { .. } | Self::Xdp(_) => Ok(()),
        }
    }

    /// Returns the number of parts of a frame of `len` bytes.
    fn parts(&self, len: usize) -> usize {
        match self {
            Self::Sendmmsg { .. } | Self::Ring { .. } | Self::ZeroCopy(_) => 1,
            Self::Xdp(transmitter) => transmitter.chunks(len),
        }
    }
}

/// Lengths of the last queued frames. The kernel sends frames in order, so the frames that it has
/// not reported as sent are the last ones.
struct Recent {
    lengths: Box<[u16; Self::FRAMES]>,
    pushed: usize,
}

impl Recent {
    /// Maximum number of frames that an engine has in progress: the slots of AF_XDP.
    const FRAMES: usize = xdp::SLOTS as usize;

    fn push(&mut self, len: usize) {
        self.lengths[self.pushed % Self::FRAMES] = len as u16;
        self.pushed += 1;
    }

    /// Iterates over the lengths, the last frame first.
    fn backwards(&self) -> impl Iterator<Item = usize> {
        let oldest = self.pushed.saturating_sub(Self::FRAMES);
        (oldest..self.pushed).rev().map(|i| usize::from(self.lengths[i % Self::FRAMES]))
    }
}

impl Default for Recent {
    fn default() -> Self {
        Self { lengths: Box::new([0; Self::FRAMES]), pushed: 0 }
    }
}

/// Sends a whole batch. It waits while the device's queue is full.
fn send_all(batch: &mut send::Batch, socket: &Socket, account: &mut ledger::Send) -> Result<(), Error> {
    let mut deadline = None;
    while !batch.is_empty() {
        match batch.send(socket) {
            Ok(0) if Instant::now() > *deadline.get_or_insert_with(|| Instant::now() + STALL_MAX) => {
                return Err(stalled());
            }
            Ok(0) => {
                account.waits += 1;
                wait::sleep(STALL_PAUSE);
            }
            Ok(_) => deadline = None,
            Err(error) if error.is_one_of(&[Errno::MSGSIZE]) => {
                account.refused += 1;
                account.frames -= 1;
                account.bytes -= batch.skip() as u64;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
