//! The capture of a live handle: what the program set on it, the session behind it, packets out of it.
//!
//! All that is safe is here and in [`crate::entry`]; [`crate::ffi`] turns C's arguments into these calls and back.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use strait_capture::{Batch, Directions, Error, Frame, Gauge, Lane, Session, Sieve, Wait};
use strait_filter::cbpf::Program;

use crate::choice::Choice;
use crate::entry::{Entry, Later};
use crate::notice::Notices;
use crate::waker::Waker;

const LINKTYPE_LINUX_SLL: u32 = 113;
const LINKTYPE_LINUX_SLL2: u32 = 276;
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
/// How long a wait on several lanes may miss that the link is gone.
const LINK_CHECK: Duration = Duration::from_millis(200);
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

/// What a reading call is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) looping: bool,
    /// When it gives up waiting for a first packet.
    deadline: Option<Instant>,
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
    /// What was left of a batch of the lane `turn` when its loop was broken.
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
            .promiscuous(self.options.promiscuous)
            .sends(true);
        let builder = match usize::try_from(self.options.buffer_bytes) {
            Ok(bytes) if bytes > RING_BYTES => builder.ring(bytes.min(RING_BYTES_MAX)),
            _ => builder,
        };
        let mut session = builder.open()?;
        let mut lanes = session.take_lanes();
        if session.link_type() == LINKTYPE_LINUX_SLL2 {
            // What libpcap begins with: a program that wants the other asks for it.
            session.set_link_type(&mut lanes, LINKTYPE_LINUX_SLL)?;
        }
        let waker = Waker::new().map_err(polling)?;
        for lane in &mut lanes {
            lane.set_interrupter(entry.interrupter.clone());
            lane.descriptors().into_iter().try_for_each(|fd| waker.watch(fd)).map_err(polling)?;
        }
        let (snaplen, nanoseconds) = (self.options.snaplen(), self.options.nanoseconds);
        entry.facts.set(session.link_type(), snaplen, nanoseconds, waker.descriptor());
        // While the program may: it can give up its privileges before it sends.
        entry.sender.get_or_init(|| session.take_sender());
        let gauges = lanes.iter().map(Lane::gauge).collect();
        self.active =
            Some(Active { session, lanes, turn: 0, waker, kept: VecDeque::new(), refreshed: Instant::now() });
        Ok(gauges)
    }

    /// Puts another filter in place: no packet that it rejects is handed over after this.
    pub(crate) fn set_filter(&mut self, filter: &Program) -> Result<(), Error> {
        let Some(active) = &mut self.active else { return Ok(()) };
        active.forget_kept();
        active.set_filter(filter, &self.choice.notices)
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

    /// Hands packets to `take`: what is there, `max` at most. If there is nothing it waits as long as the program said,
    /// for ever in a loop. `count` grows by each packet, also where an error ends it.
    pub(crate) fn dispatch(
        &mut self,
        entry: &Entry,
        max: usize,
        reading: &Reading,
        count: &mut usize,
        mut take: impl FnMut(Packet<'_>),
    ) -> Result<Ended, Error> {
        let &Reading { looping, deadline } = reading;
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
                active.change(later, &self.choice.notices)?;
            }
            if entry.facts.is_polled() {
                active.prepare_to_poll()?;
            }
            active.refresh(entry);
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

    /// What a reading call that begins now is to do.
    pub(crate) fn reading(&self, looping: bool) -> Reading {
        let timeout = u64::try_from(self.options.timeout_ms).ok().filter(|ms| *ms > 0 && !looping);
        let deadline = timeout.map(|timeout| Instant::now() + Duration::from_millis(timeout));
        Reading { looping, deadline }
    }

    /// Ends the capture without a report: it is another process's.
    pub(crate) fn forget(&mut self) {
        self.active = None;
    }

    /// Ends the capture and tells what became of it, if the user asked for that. Else nothing but the descriptors is
    /// closed. Where the process has `forked` another may go on with the capture: it is told of as it stands.
    pub(crate) fn close(&mut self, forked: bool) {
        let Some(active) = self.active.take().filter(|_| self.choice.report) else { return };
        let notices = &self.choice.notices;
        match self.report(active, forked) {
            Ok(report) => notices.tell(&format!("strait: {report}")),
            Err(error) => notices.tell(&format!("strait: no report: {error}\n")),
        }
    }

    fn report(&self, active: Active, forked: bool) -> Result<String, Error> {
        let Active { mut session, lanes, kept, turn, .. } = active;
        if !forked {
            session.stop()?;
        }
        let mut accounts = Vec::with_capacity(lanes.len());
        for (at, mut lane) in lanes.into_iter().enumerate() {
            let read = lane.account()?.capture;
            // Looked at, so that the lane knows that they have come and waits for no more than are missing.
            let mut unread = if forked { 0 } else { look_at_rest(&mut lane) };
            if at == turn {
                unread += kept.len() as u64;
            }
            let mut account = lane.finish()?;
            let capture = &mut account.capture;
            capture.delivered -= unread.min(capture.delivered);
            capture.lost.unread += unread;
            (capture.bytes, capture.wire_bytes) = (read.bytes, read.wire_bytes);
            capture.events.snaplen_cuts = read.events.snaplen_cuts;
            accounts.push(account);
        }
        let wait = self.choice.wait.name();
        let (ring, notes) = (session.ring(), session.notes().join("; "));
        let notes = if notes.is_empty() { notes } else { format!("{notes}\n") };
        let wait =
            if forked { format!("as it stood, the program having forked; wait {wait}") } else { wait.into() };
        Ok(format!("{notes}wait {wait}; ring {ring}; {}", session.report(accounts)))
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
            let Some(batch) = lane.next_batch_of(limit, until)? else { return Ok(false) };
            let rejected = hand_batch(entry, &self.session, batch, &mut self.kept, count, take);
            lane.discard(rejected);
            return Ok(true);
        }
        for _ in 0..self.lanes.len() {
            self.turn = (self.turn + 1) % self.lanes.len();
            let now = Instant::now();
            let lane = &mut self.lanes[self.turn];
            let Some(batch) = lane.next_batch_of(limit, now)? else { return Ok(false) };
            if !batch.is_empty() {
                let rejected = hand_batch(entry, &self.session, batch, &mut self.kept, count, take);
                lane.discard(rejected);
                return Ok(true);
            }
        }
        self.wait_for_any_lane(entry, until)?;
        Ok(true)
    }

    fn hand_kept(&mut self, entry: &Entry, max: usize, count: &mut usize, take: &mut impl FnMut(Packet<'_>)) {
        while *count < max && !entry.is_disturbed() {
            let Some(Kept { timestamp_ns, wire_len, bytes }) = self.kept.pop_front() else { break };
            *count += 1;
            take(Packet { timestamp_ns, wire_len, bytes: &bytes });
        }
    }

    /// Waits for the first packet on any of several lanes.
    fn wait_for_any_lane(&mut self, entry: &Entry, until: Instant) -> Result<(), Error> {
        self.prepare_to_poll()?;
        let timeout = until.saturating_duration_since(Instant::now()).min(LINK_CHECK);
        if !timeout.is_zero() {
            self.waker.wait(entry.interrupter.as_fd(), timeout).map_err(polling)?;
            entry.interrupter.clear();
        }
        self.lanes.iter_mut().try_for_each(Lane::check_link)
    }

    fn prepare_to_poll(&mut self) -> Result<(), Error> {
        let mut ready = !self.kept.is_empty();
        for lane in &mut self.lanes {
            ready |= lane.prepare_to_wait()?;
        }
        self.waker.set_ready(ready).map_err(polling)
    }

    /// Does what a callback asked for.
    fn change(&mut self, Later { filter, directions }: Later, notices: &Notices) -> Result<(), Error> {
        self.forget_kept();
        if let Some(directions) = directions {
            self.session.set_directions(&mut self.lanes, directions)?;
        }
        filter.iter().try_for_each(|filter| self.set_filter(filter, notices))
    }

    /// Sets the filter and tells the user where the kernel does not run it, as libpcap does.
    fn set_filter(&mut self, filter: &Program, notices: &Notices) -> Result<(), Error> {
        let before = self.session.notes().to_vec();
        self.session.set_filter(&mut self.lanes, filter)?;
        let new = self.session.notes().iter().filter(|note| !before.contains(note));
        new.for_each(|note| notices.tell(&format!("strait: {note}\n")));
        Ok(())
    }

    /// Packets that came before a change are not handed over after it.
    fn forget_kept(&mut self) {
        self.lanes[self.turn].discard(self.kept.len() as u64);
        self.kept.clear();
    }

    /// Asks the kernel what the NIC missed so far, now and then: a call of its own for each packet would cost more than
    /// the packet.
    fn refresh(&mut self, entry: &Entry) {
        if self.refreshed.elapsed() >= REFRESH {
            self.refreshed = Instant::now();
            entry.facts.set_missed(self.session.missed());
        }
    }
}

/// Looks at each frame that is left in the ring of a session that has stopped; returns how many there were.
fn look_at_rest(lane: &mut Lane) -> u64 {
    let mut frames = 0;
    while let Ok(Some(mut batch)) = lane.next_batch(Instant::now() + DRAIN) {
        frames += batch.frames().count() as u64;
    }
    frames
}

/// Hands a batch over. What is left when the callback breaks the loop is kept: the ring takes its frames back with the
/// batch. Returns how many frames a filter rejected that the callback has set meanwhile.
fn hand_batch(
    entry: &Entry,
    session: &Session,
    mut batch: Batch<'_>,
    kept: &mut VecDeque<Kept>,
    count: &mut usize,
    take: &mut impl FnMut(Packet<'_>),
) -> u64 {
    let mut disturbance = Disturbance { entry, session, kept, asked: 0, sieve: None, rejected: 0 };
    let Ok(()) = batch.try_each(usize::MAX, |frame| -> Result<(), Infallible> {
        if !entry.is_disturbed() || disturbance.admits(frame) {
            *count += 1;
            take(frame.into());
        }
        Ok(())
    });
    disturbance.rejected
}

/// What becomes of the rest of a batch when a callback has broken the loop or set a filter.
struct Disturbance<'a> {
    entry: &'a Entry,
    session: &'a Session,
    kept: &'a mut VecDeque<Kept>,
    /// See [`Entry::asked`].
    asked: usize,
    /// The newest filter.
    sieve: Option<Sieve>,
    /// Frames that it did not let through.
    rejected: u64,
}

impl Disturbance<'_> {
    /// Whether a frame is to be handed over now.
    #[cold]
    fn admits(&mut self, frame: &Frame<'_>) -> bool {
        if self.entry.asked() != self.asked {
            self.asked = self.entry.asked();
            self.sieve = self.entry.coming_filter().map(|filter| self.session.sieve(&filter));
        }
        if self.sieve.as_ref().is_some_and(|sieve| sieve.keeps(frame) == 0) {
            self.rejected += 1;
            return false;
        }
        let broken = self.entry.is_broken();
        if broken {
            let Packet { timestamp_ns, wire_len, bytes } = frame.into();
            self.kept.push_back(Kept { timestamp_ns, wire_len, bytes: bytes.into() });
        }
        !broken
    }
}

fn polling(errno: rustix::io::Errno) -> Error {
    Error::Usage(format!("make a descriptor to poll: {errno}"))
}
