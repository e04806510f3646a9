//! A live handle: what the program set on it, the session behind it, and what it may ask at any time.
//!
//! All that is safe is here; [`crate::ffi`] turns C's arguments into these calls and back. A handle is locked while
//! packets are handed to the program's callback; what a callback may call on its own handle, `pcap_breakloop` and
//! `pcap_stats`, goes by [`Shared`], which is never locked.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strait_capture::{Directions, Error, Frame, InjectPath, Injector, Lane, Session, Wait};
use strait_filter::cbpf::Program;
use strait_ledger::Capture;

use crate::choice::Choice;
use crate::waker::Waker;

/// libpcap's MAXIMUM_SNAPLEN, taken where a program asks for none or for more.
const SNAPLEN_MAX: i32 = 262_144;
/// How long a wait lasts before the handle looks whether its loop was broken.
const TICK: Duration = Duration::from_millis(100);

/// What a program sets before it activates a handle.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) snaplen: i32,
    pub(crate) promiscuous: bool,
    /// How long `pcap_dispatch` waits for a first packet; 0 or less: until one comes.
    pub(crate) timeout_ms: i32,
    pub(crate) buffer_bytes: i32,
    pub(crate) nanoseconds: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { snaplen: SNAPLEN_MAX, promiscuous: false, timeout_ms: 0, buffer_bytes: 0, nanoseconds: false }
    }
}

/// `struct pcap_stat`, 64 bits wide.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) received: u64,
    pub(crate) dropped: u64,
    pub(crate) missed: u64,
}

/// What needs no lock.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    received: AtomicU64,
    dropped: AtomicU64,
    missed: AtomicU64,
}

impl Shared {
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            received: self.received.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            missed: self.missed.load(Ordering::Relaxed),
        }
    }

    fn set(&self, account: &Capture) {
        self.received.store(account.received - account.filtered, Ordering::Relaxed);
        self.dropped.store(account.lost.ring_full + account.lost.fill_empty, Ordering::Relaxed);
        self.missed.store(account.lost.nic_missed, Ordering::Relaxed);
    }
}

/// Why packets stopped to come.
#[derive(Debug)]
pub(crate) enum Ended {
    /// So many packets were handed over.
    Count(usize),
    /// `pcap_breakloop` was called, and is taken back by this.
    Broken,
}

/// A handle of `pcap_create`.
pub(crate) struct Handle {
    choice: Choice,
    pub(crate) options: Options,
    pub(crate) nonblocking: bool,
    filter: Program,
    directions: Directions,
    active: Option<Active>,
    /// Made when the program asks for a descriptor.
    waker: Option<Waker>,
    injector: Option<Injector>,
}

struct Active {
    session: Session,
    lane: Lane,
}

impl Handle {
    pub(crate) fn new(choice: Choice) -> Self {
        Self {
            choice,
            options: Options::default(),
            nonblocking: false,
            filter: Program::accept_all(SNAPLEN_MAX as u32),
            directions: Directions::Both,
            active: None,
            waker: None,
            injector: None,
        }
    }

    pub(crate) fn choice(&self) -> &Choice {
        &self.choice
    }

    /// `LINKTYPE_*` of its packets.
    pub(crate) fn link_type(&self) -> u32 {
        self.active.as_ref().map_or(1, |active| active.session.link_type())
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Bytes that are kept of a packet.
    pub(crate) fn snaplen(&self) -> i32 {
        match self.options.snaplen {
            1..=SNAPLEN_MAX => self.options.snaplen,
            _ => SNAPLEN_MAX,
        }
    }

    /// Opens the capture; packets come from here on.
    pub(crate) fn activate(&mut self) -> Result<(), Error> {
        let builder = Session::builder(self.choice.device.clone())
            .path(self.choice.path)
            .wait(self.choice.wait)
            .program(self.filter.clone())
            .snaplen(self.snaplen() as u32)
            .directions(self.directions)
            .promiscuous(self.options.promiscuous);
        let builder = match usize::try_from(self.options.buffer_bytes) {
            Ok(bytes) if bytes > RING_BYTES => builder.ring(bytes.min(RING_BYTES_MAX)),
            _ => builder,
        };
        let mut session = builder.open()?;
        let lane = session.take_lanes().remove(0);
        if let Some(waker) = &self.waker {
            watch(waker, &lane)?;
        }
        self.active = Some(Active { session, lane });
        Ok(())
    }

    /// Puts another filter in place: no packet that it rejects is handed over after this.
    pub(crate) fn set_filter(&mut self, filter: Program) -> Result<(), Error> {
        self.filter = filter;
        let Some(Active { session, lane }) = &mut self.active else { return Ok(()) };
        session.set_filter(std::slice::from_mut(lane), &self.filter)
    }

    pub(crate) fn set_directions(&mut self, directions: Directions) -> Result<(), Error> {
        self.directions = directions;
        let Some(Active { session, lane }) = &mut self.active else { return Ok(()) };
        session.set_directions(std::slice::from_mut(lane), directions)
    }

    /// Hands packets to `take`: what is there, `max` at most. If there is nothing it waits as long as the program said,
    /// for ever in a loop.
    pub(crate) fn dispatch(
        &mut self,
        shared: &Shared,
        broken: &AtomicBool,
        max: usize,
        looping: bool,
        mut take: impl FnMut(&Frame<'_>),
    ) -> Result<Ended, Error> {
        let deadline = self.deadline(looping);
        let nonblocking = self.nonblocking;
        let Some(Active { lane, .. }) = &mut self.active else { return Ok(Ended::Count(0)) };
        let mut count = 0;
        loop {
            if broken.swap(false, Ordering::Relaxed) {
                return Ok(Ended::Broken);
            }
            let now = Instant::now();
            let until = deadline.map_or(now + TICK, |deadline| deadline.min(now + TICK));
            let until = if nonblocking { now } else { until };
            shared.set(&lane.account()?.capture);
            let Some(mut batch) = lane.next_batch_of(max - count, until)? else {
                return Ok(Ended::Count(count));
            };
            let found = !batch.is_empty();
            for frame in batch.frames() {
                take(&frame);
                count += 1;
                // What is left of the batch would be lost: a break is honoured after it.
            }
            drop(batch);
            if let Some(waker) = &self.waker {
                waker.set_ready(lane.prepare_to_wait()?).map_err(polling)?;
            }
            let over = nonblocking || deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if count >= max || (!looping && found) || (!found && over) {
                return Ok(Ended::Count(count));
            }
        }
    }

    /// A descriptor that is readable when packets are there.
    pub(crate) fn descriptor(&mut self) -> Result<RawFd, Error> {
        if let Some(waker) = &self.waker {
            return Ok(waker.descriptor());
        }
        let waker = Waker::new().map_err(polling)?;
        if let Some(Active { lane, .. }) = &mut self.active {
            watch(&waker, lane)?;
            waker.set_ready(lane.prepare_to_wait()?).map_err(polling)?;
        }
        Ok(self.waker.insert(waker).descriptor())
    }

    fn deadline(&self, looping: bool) -> Option<Instant> {
        let timeout = u64::try_from(self.options.timeout_ms).ok().filter(|ms| *ms > 0 && !looping)?;
        Some(Instant::now() + Duration::from_millis(timeout))
    }

    /// The account so far, put where it can be read without a lock.
    pub(crate) fn refresh(&mut self, shared: &Shared) -> Result<(), Error> {
        if let Some(Active { lane, .. }) = &mut self.active {
            shared.set(&lane.account()?.capture);
        }
        Ok(())
    }

    /// Sends one frame.
    pub(crate) fn inject(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let injector = match &mut self.injector {
            Some(injector) => injector,
            none => none.insert(Injector::open(&self.choice.device, InjectPath::Sendmmsg)?),
        };
        let buffer = injector.buffer()?;
        let Some(room) = buffer.get_mut(..bytes.len()) else {
            return Err(Error::Usage(format!("a frame of {} bytes is too long", bytes.len())));
        };
        room.copy_from_slice(bytes);
        injector.push(bytes.len());
        injector.flush()
    }

    /// Ends the capture and says what became of it, if the user asked for that.
    pub(crate) fn close(self) -> Option<String> {
        let Active { mut session, mut lane } = self.active?;
        let report = self.choice.report;
        session.stop().ok()?;
        while let Ok(Some(batch)) = lane.next_batch(Instant::now() + TICK) {
            drop(batch);
        }
        let account = lane.finish().ok()?;
        let wait = match self.choice.wait {
            Wait::Latency => "latency",
            Wait::Balanced => "balanced",
            Wait::Busy => "busy",
        };
        report.then(|| format!("wait {wait}; {}", session.report(vec![account])))
    }
}

fn watch(waker: &Waker, lane: &Lane) -> Result<(), Error> {
    lane.descriptors().into_iter().try_for_each(|descriptor| waker.watch(descriptor)).map_err(polling)
}

fn polling(errno: rustix::io::Errno) -> Error {
    Error::Usage(format!("make a descriptor to poll: {errno}"))
}

/// The engine's own ring; a program's smaller wish is no reason for a smaller one.
const RING_BYTES: usize = 8 << 20;
const RING_BYTES_MAX: usize = 2 << 30;
