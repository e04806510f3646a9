//! The capture of a live handle: what the program set on it, the session behind it, packets out of it.
//!
//! All that is safe is here and in [`crate::entry`]; [`crate::ffi`] turns C's arguments into these calls and back.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use strait_capture::{Batch, Directions, Error, Frame, Gauge, InjectPath, Injector, Lane, Session, Wait};
use strait_filter::cbpf::Program;

use crate::choice::Choice;
use crate::entry::{Entry, Later};
use crate::late::LateFilter;
use crate::waker::Waker;

/// libpcap's MAXIMUM_SNAPLEN, taken where a program asks for none or for more.
const SNAPLEN_MAX: i32 = 262_144;
/// The engine's own ring; a program's smaller wish is no reason for a smaller one.
const RING_BYTES: usize = 8 << 20;
const RING_BYTES_MAX: usize = 2 << 30;
const ENETDOWN: i32 = 100;
/// How long a loop waits at once, where nothing interrupts it.
const TICK: Duration = Duration::from_secs(10);
/// The same for one that never sleeps, and so is interrupted by nothing.
const BUSY_TICK: Duration = Duration::from_millis(1);
/// How old the count of what the NIC missed may be.
const REFRESH: Duration = Duration::from_secs(1);
/// How long the last packets of a capture are waited for.
const DRAIN: Duration = Duration::from_millis(100);

/// What a program sets before it activates a handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// Bytes kept of each packet; 0 or less, and too many, mean all.
    pub(crate) snaplen: i32,
    pub(crate) promiscuous: bool,
    /// How long `pcap_dispatch` waits for a first packet; 0 or less: until one comes.
    pub(crate) timeout_ms: i32,
    pub(crate) buffer_bytes: i32,
    pub(crate) nanoseconds: bool,
    pub(crate) monitor: bool,
    /// `PCAP_TSTAMP_*`.
    pub(crate) timestamp_type: i32,
    /// `ETH_P_*`; 0 for all.
    pub(crate) protocol: i32,
}

impl Options {
    /// Bytes that are kept of a packet.
    pub(crate) fn snaplen(&self) -> i32 {
        match self.snaplen {
            1..=SNAPLEN_MAX => self.snaplen,
            _ => SNAPLEN_MAX,
        }
    }

    /// What is asked for that libpcap alone can do.
    fn check(&self) -> Result<(), Error> {
        let asked = match self {
            Self { monitor: true, .. } => "monitor mode",
            Self { timestamp_type: 1.., .. } => "timestamps that are not the kernel's own",
            Self { protocol: 1.., .. } => "one protocol alone",
            _ => return Ok(()),
        };
        Err(Error::Usage(format!("the program asks for {asked}")))
    }
}

/// Why packets stopped to come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// That is all for this call.
    Done,
    /// `pcap_breakloop` was called, and is taken back by this.
    Broken,
    /// Another thread wants the handle.
    Knocked,
}

/// A packet as the program gets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) timestamp_ns: u64,
    pub(crate) wire_len: u32,
    pub(crate) bytes: &'a [u8],
}

impl<'a> From<&Frame<'a>> for Packet<'a> {
    fn from(frame: &Frame<'a>) -> Self {
        Self { timestamp_ns: frame.timestamp_ns, wire_len: frame.wire_len, bytes: frame.bytes }
    }
}

/// A packet that was there when a loop was broken: the next call begins with it.
struct Kept {
    timestamp_ns: u64,
    wire_len: u32,
    bytes: Box<[u8]>,
}

/// A handle of `pcap_create`.
pub(crate) struct Handle {
    choice: Choice,
    pub(crate) options: Options,
    active: Option<Active>,
}

struct Active {
    session: Session,
    lanes: Vec<Lane>,
    /// The lane to look at next.
    turn: usize,
    waker: Waker,
    kept: VecDeque<Kept>,
    /// When the kernel was asked what the NIC missed.
    refreshed: Instant,
}

impl Handle {
    pub(crate) fn new(choice: Choice) -> Self {
        Self { choice, options: Options::default(), active: None }
    }

    /// Opens the capture; packets come from here on. What reads its counters is returned.
    pub(crate) fn activate(&mut self, entry: &Entry) -> Result<Vec<Gauge>, Error> {
        self.options.check()?;
        let builder = Session::builder(self.choice.device.clone())
            .path(self.choice.path)
            .wait(self.choice.wait)
            .queues(self.choice.queues.clone())
            .program(Program::accept_all(SNAPLEN_MAX as u32))
            .snaplen(self.options.snaplen() as u32)
            .promiscuous(self.options.promiscuous);
        let builder = match usize::try_from(self.options.buffer_bytes) {
            Ok(bytes) if bytes > RING_BYTES => builder.ring(bytes.min(RING_BYTES_MAX)),
            _ => builder,
        };
        let mut session = builder.open()?;
        let mut lanes = session.take_lanes();
        let waker = Waker::new().map_err(polling)?;
        for lane in &mut lanes {
            lane.set_interrupter(entry.interrupter.clone());
            lane.descriptors().into_iter().try_for_each(|fd| waker.watch(fd)).map_err(polling)?;
        }
        let (snaplen, nanoseconds) = (self.options.snaplen(), self.options.nanoseconds);
        entry.facts.set(session.link_type(), snaplen, nanoseconds, waker.descriptor());
        let gauges = lanes.iter().map(Lane::gauge).collect();
        self.active =
            Some(Active { session, lanes, turn: 0, waker, kept: VecDeque::new(), refreshed: Instant::now() });
        Ok(gauges)
    }

    /// Puts another filter in place: no packet that it rejects is handed over after this.
    pub(crate) fn set_filter(&mut self, filter: &Program) -> Result<(), Error> {
        let Some(active) = &mut self.active else { return Ok(()) };
        active.forget_kept();
        active.session.set_filter(&mut active.lanes, filter)
    }

    /// Captures in these directions from now on.
    pub(crate) fn set_directions(&mut self, directions: Directions) -> Result<(), Error> {
        let Some(active) = &mut self.active else { return Ok(()) };
        active.forget_kept();
        active.session.set_directions(&mut active.lanes, directions)
    }

    /// Puts another header before cooked packets.
    pub(crate) fn set_link_type(&mut self, entry: &Entry, link_type: u32) -> Result<(), Error> {
        let Some(active) = &mut self.active else { return Ok(()) };
        active.forget_kept();
        active.session.set_link_type(&mut active.lanes, link_type)?;
        entry.facts.set_link_type(link_type);
        Ok(())
    }

    /// Makes the descriptor tell of the next packet, and of those that are there.
    pub(crate) fn prepare_to_poll(&mut self) -> Result<(), Error> {
        let Some(active) = &mut self.active else { return Ok(()) };
        active.prepare_to_poll()
    }

    /// Asks the kernel what the NIC missed so far, now and then: a call of its own for each packet would cost more than
    /// the packet.
    pub(crate) fn refresh(&mut self, entry: &Entry) {
        if let Some(active) = &mut self.active
            && active.refreshed.elapsed() >= REFRESH
        {
            active.refreshed = Instant::now();
            entry.facts.set_missed(active.session.missed());
        }
    }

    /// Hands packets to `take`: what is there, `max` at most. If there is nothing it waits as long as the program said,
    /// for ever in a loop. `count` grows by each packet, also where an error ends it.
    pub(crate) fn dispatch(
        &mut self,
        entry: &Entry,
        max: usize,
        looping: bool,
        count: &mut usize,
        mut take: impl FnMut(Packet<'_>),
    ) -> Result<Ended, Error> {
        let deadline = self.deadline(looping);
        let tick = if self.choice.wait == Wait::Busy { BUSY_TICK } else { TICK };
        let Some(active) = &mut self.active else { return Ok(Ended::Done) };
        // A loop waits in any case: libpcap's would only spin.
        let (nonblocking, start) = (entry.facts.nonblocking() && !looping, *count);
        loop {
            if entry.take_broken() {
                return Ok(Ended::Broken);
            }
            if entry.is_knocked() {
                return Ok(Ended::Knocked);
            }
            let now = Instant::now();
            let until = deadline.map_or(now + tick, |deadline| deadline.min(now + tick));
            let until = if nonblocking { now } else { until };
            let before = *count;
            let more = match active.hand(entry, max, until, count, &mut take) {
                // As with libpcap: an interface that is down brings packets again when it is up.
                Err(error) if error.errno() == Some(ENETDOWN) && entry.device_exists() => true,
                handed => handed?,
            };
            if let Some(later) = entry.take_later() {
                active.change(later)?;
            }
            if entry.facts.is_polled() {
                active.prepare_to_poll()?;
            }
            if entry.take_broken() {
                return Ok(Ended::Broken);
            }
            let found = *count > before;
            let over = nonblocking || deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if !more || *count >= max || (!looping && *count > start) || (!found && over) {
                return Ok(Ended::Done);
            }
        }
    }

    fn deadline(&self, looping: bool) -> Option<Instant> {
        let timeout = u64::try_from(self.options.timeout_ms).ok().filter(|ms| *ms > 0 && !looping)?;
        Some(Instant::now() + Duration::from_millis(timeout))
    }

    /// Ends the capture and tells what became of it, if the user asked for that. Else nothing but the descriptors is
    /// closed: a child process may go on with its own.
    pub(crate) fn close(self) {
        let notices = self.choice.notices.clone();
        if self.choice.report {
            match self.report() {
                Ok(None) => {}
                Ok(Some(report)) => notices.tell(&format!("strait: {report}")),
                Err(error) => notices.tell(&format!("strait: no report: {error}\n")),
            }
        }
    }

    fn report(self) -> Result<Option<String>, Error> {
        let Some(Active { mut session, mut lanes, kept, .. }) = self.active else { return Ok(None) };
        session.stop()?;
        for lane in &mut lanes {
            while let Ok(Some(batch)) = lane.next_batch(Instant::now() + DRAIN) {
                drop(batch);
            }
        }
        lanes[0].book_sink_loss(kept.len() as u64);
        let accounts = lanes.into_iter().map(Lane::finish).collect::<Result<Vec<_>, Error>>()?;
        let wait = match self.choice.wait {
            Wait::Latency => "latency",
            Wait::Balanced => "balanced",
            Wait::Busy => "busy",
        };
        let (ring, notes) = (session.ring(), session.notes().join("; "));
        let notes = if notes.is_empty() { notes } else { format!("{notes}\n") };
        Ok(Some(format!("{notes}wait {wait}; ring {ring}; {}", session.report(accounts))))
    }
}

impl Active {
    /// Hands over what was kept, or else what is in one lane's ring, waiting for it `until` then. False when no more will
    /// come.
    fn hand(
        &mut self,
        entry: &Entry,
        max: usize,
        until: Instant,
        count: &mut usize,
        take: &mut impl FnMut(Packet<'_>),
    ) -> Result<bool, Error> {
        if !self.kept.is_empty() {
            self.hand_kept(entry, max, count, take);
            return Ok(true);
        }
        let limit = max - *count;
        if let [lane] = &mut self.lanes[..] {
            let Some(mut batch) = lane.next_batch_of(limit, until)? else { return Ok(false) };
            hand_batch(entry, &mut batch, &mut self.kept, count, take);
            return Ok(true);
        }
        for _ in 0..self.lanes.len() {
            self.turn = (self.turn + 1) % self.lanes.len();
            let now = Instant::now();
            let Some(mut batch) = self.lanes[self.turn].next_batch_of(limit, now)? else { return Ok(false) };
            if !batch.is_empty() {
                hand_batch(entry, &mut batch, &mut self.kept, count, take);
                return Ok(true);
            }
        }
        self.wait_for_any_lane(entry, until)?;
        Ok(true)
    }

    fn hand_kept(&mut self, entry: &Entry, max: usize, count: &mut usize, take: &mut impl FnMut(Packet<'_>)) {
        while *count < max && !entry.is_broken() && !entry.has_later() {
            let Some(Kept { timestamp_ns, wire_len, bytes }) = self.kept.pop_front() else { break };
            *count += 1;
            take(Packet { timestamp_ns, wire_len, bytes: &bytes });
        }
    }

    /// Waits for the first packet on any of several lanes.
    fn wait_for_any_lane(&mut self, entry: &Entry, until: Instant) -> Result<(), Error> {
        self.prepare_to_poll()?;
        let timeout = until.saturating_duration_since(Instant::now());
        if !timeout.is_zero() {
            self.waker.wait(entry.interrupter.as_fd(), timeout).map_err(polling)?;
            entry.interrupter.clear();
        }
        Ok(())
    }

    fn prepare_to_poll(&mut self) -> Result<(), Error> {
        let mut ready = !self.kept.is_empty();
        for lane in &mut self.lanes {
            ready |= lane.prepare_to_wait()?;
        }
        self.waker.set_ready(ready).map_err(polling)
    }

    /// Does what a callback asked for.
    fn change(&mut self, Later { filter, directions }: Later) -> Result<(), Error> {
        self.forget_kept();
        if let Some(directions) = directions {
            self.session.set_directions(&mut self.lanes, directions)?;
        }
        filter.iter().try_for_each(|filter| self.session.set_filter(&mut self.lanes, filter))
    }

    /// Packets that came before a change are not handed over after it.
    fn forget_kept(&mut self) {
        self.lanes[0].book_sink_loss(self.kept.len() as u64);
        self.kept.clear();
    }
}

/// Hands a batch over. What is left when the callback breaks the loop is kept: the ring takes its frames back with the
/// batch.
fn hand_batch(
    entry: &Entry,
    batch: &mut Batch<'_>,
    kept: &mut VecDeque<Kept>,
    count: &mut usize,
    take: &mut impl FnMut(Packet<'_>),
) {
    let mut late: Option<LateFilter> = None;
    for frame in batch.frames() {
        if late.as_ref().is_some_and(|late| !late.matches(&frame)) {
            continue;
        }
        if entry.is_broken() {
            let Packet { timestamp_ns, wire_len, bytes } = (&frame).into();
            kept.push_back(Kept { timestamp_ns, wire_len, bytes: bytes.into() });
            continue;
        }
        *count += 1;
        take((&frame).into());
        if entry.has_later() {
            late = LateFilter::of(entry);
        }
    }
}

/// Sends one frame; the injector is opened at the first.
pub(crate) fn inject(entry: &Entry, bytes: &[u8]) -> Result<(), Error> {
    let mut injector = entry.injector.lock().unwrap_or_else(PoisonError::into_inner);
    let injector = match &mut *injector {
        Some(injector) => injector,
        none => none.insert(Injector::open(&entry.choice.device, InjectPath::Sendmmsg)?),
    };
    let buffer = injector.buffer()?;
    let Some(room) = buffer.get_mut(..bytes.len()) else {
        return Err(Error::Usage(format!("a frame of {} bytes is too long", bytes.len())));
    };
    room.copy_from_slice(bytes);
    injector.push(bytes.len());
    injector.flush()
}

fn polling(errno: rustix::io::Errno) -> Error {
    Error::Usage(format!("make a descriptor to poll: {errno}"))
}
