//! Capture of a live handle: its options, its session, and the delivery of its packets.
//!
//! The safe code is here and in [`crate::entry`]. [`crate::ffi`] converts between C's arguments and
//! these calls.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use strait_capture::{Batch, Directions, Error, Frame, Lane, LiveCounters, Session, UserspaceFilter, Wait};
use strait_filter::cbpf::Program;
use strait_packet::summary::link_type;

use crate::choice::Choice;
use crate::entry::{Deferred, Entry};
use crate::notice::Notices;
use crate::waker::Waker;

/// libpcap's MAXIMUM_SNAPLEN, used if a program sets none or a larger one.
const SNAPLEN_MAX: i32 = 262_144;
/// Size of the engine's default ring. Smaller sizes from programs are ignored.
const RING_BYTES: usize = 8 << 20;
const RING_BYTES_MAX: usize = 2 << 30;
/// Maximum time of one wait in a loop; an interrupt ends it earlier.
const TICK: Duration = Duration::from_secs(10);
/// Maximum time of one wait with `Wait::Busy`, which never sleeps and so cannot be interrupted.
const BUSY_TICK: Duration = Duration::from_millis(1);
/// Interval between checks of the link during a wait on several lanes.
const LINK_CHECK: Duration = Duration::from_millis(200);
/// Maximum age of the NIC's count of missed frames.
const REFRESH: Duration = Duration::from_secs(1);
/// Maximum wait for the last packets of a capture.
const DRAIN: Duration = Duration::from_millis(100);

/// Options that a program sets before it activates a handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// Snapshot length in bytes. Values out of range mean the maximum.
    pub(crate) snaplen: i32,
    pub(crate) promiscuous: bool,
    /// Time that `pcap_dispatch` waits for a first packet; without limit if 0 or less.
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
    /// Returns the effective snapshot length in bytes.
    pub(crate) fn snaplen(&self) -> i32 {
        match self.snaplen {
            1..=SNAPLEN_MAX => self.snaplen,
            _ => SNAPLEN_MAX,
        }
    }

    /// Refuses options that only libpcap supports.
    fn check(&self) -> Result<(), Error> {
        let option = match self {
            Self { monitor: true, .. } => "monitor mode",
            Self { timestamp_type: 1.., .. } => "timestamps other than the kernel's",
            Self { protocol: 1.., .. } => "a single protocol",
            _ => return Ok(()),
        };
        Err(Error::Usage(format!("the program requests {option}, which only libpcap supports")))
    }
}

/// Parameters of a reading call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) looping: bool,
    /// Time at which it stops waiting for a first packet.
    deadline: Option<Instant>,
}

/// Reason for the end of a delivery.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The call is complete.
    Done,
    /// `pcap_breakloop` was called. The state is reset.
    BreakLoop,
    /// Another thread requests the lock.
    LockRequested,
}

/// A packet in the form that the program receives.
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

/// Packets for one reading call of the program.
pub(crate) struct Delivery<'a, F> {
    pub(crate) entry: &'a Entry,
    /// Maximum number of packets.
    pub(crate) max: usize,
    /// Number of packets that were delivered.
    pub(crate) count: usize,
    /// Receiver of each packet.
    pub(crate) take: F,
}

impl<F: FnMut(Packet<'_>)> Delivery<'_, F> {
    /// Passes a packet to the program.
    #[inline]
    fn deliver(&mut self, packet: Packet<'_>) {
        self.count += 1;
        (self.take)(packet);
    }
}

/// Undelivered packet of a batch: the program stopped the delivery. The next call delivers it
/// first.
struct SavedPacket {
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
    /// Index of the current lane; reading continues with the next one.
    current_lane: usize,
    waker: Waker,
    /// Remaining packets of a batch of the current lane after the program broke its loop.
    saved: VecDeque<SavedPacket>,
    /// Time of the last query of the NIC's missed frames.
    refreshed: Instant,
}

impl Handle {
    pub(crate) fn new(choice: Choice) -> Self {
        Self { choice, options: Options::default(), active: None }
    }

    /// Opens the capture, which receives packets from then on. Returns its live counters.
    pub(crate) fn activate(&mut self, entry: &Entry) -> Result<Vec<LiveCounters>, Error> {
        self.options.check()?;
        let builder = Session::builder(self.choice.device.clone())
            .path(self.choice.path)
            .wait(self.choice.wait)
            .queues(self.choice.queues.clone())
            .program(Program::accept_all(SNAPLEN_MAX as u32))
            .snaplen(self.options.snaplen() as u32)
            .promiscuous(self.options.promiscuous)
            .broker(self.choice.broker.clone())
            .sends(true);
        let builder = match usize::try_from(self.options.buffer_bytes) {
            Ok(bytes) if bytes > RING_BYTES => builder.ring(bytes.min(RING_BYTES_MAX)),
            _ => builder,
        };
        let mut session = builder.open()?;
        let mut lanes = session.take_lanes();
        if session.link_type() == u32::from(link_type::LINUX_SLL2) {
            // libpcap's default; a program may set SLL2 later.
            session.set_link_type(&mut lanes, link_type::LINUX_SLL.into())?;
        }
        let waker = Waker::new().map_err(polling)?;
        for lane in &mut lanes {
            lane.set_interrupter(entry.interrupter.clone());
            lane.descriptors().into_iter().try_for_each(|fd| waker.watch(fd)).map_err(polling)?;
        }
        let (snaplen, nanoseconds) = (self.options.snaplen(), self.options.nanoseconds);
        entry.properties.set(session.link_type(), snaplen, nanoseconds, waker.descriptor());
        // Open the sender now, because the program may drop its privileges before it sends.
        entry.sender.get_or_init(|| session.take_sender());
        let live_counters = lanes.iter().map(Lane::live_counters).collect();
        self.active = Some(Active {
            session,
            lanes,
            current_lane: 0,
            waker,
            saved: VecDeque::new(),
            refreshed: Instant::now(),
        });
        Ok(live_counters)
    }

    /// Replaces the filter. No packet that the new filter rejects is delivered afterwards.
    pub(crate) fn set_filter(&mut self, filter: &Program) -> Result<(), Error> {
        let Some(active) = &mut self.active else { return Ok(()) };
        active.discard_saved();
        active.set_filter(filter, &self.choice.notices)
    }

    /// Restricts the capture to these directions.
    pub(crate) fn set_directions(&mut self, directions: Directions) -> Result<(), Error> {
        let Some(active) = &mut self.active else { return Ok(()) };
        active.discard_saved();
        active.session.set_directions(&mut active.lanes, directions)
    }

    /// Sets the header format of cooked packets.
    pub(crate) fn set_link_type(&mut self, entry: &Entry, link_type: u32) -> Result<(), Error> {
        let Some(active) = &mut self.active else { return Ok(()) };
        active.discard_saved();
        active.session.set_link_type(&mut active.lanes, link_type)?;
        entry.properties.set_link_type(link_type);
        Ok(())
    }

    /// Prepares the descriptor to signal packets: it is readable now if packets are waiting,
    /// otherwise when the next packet arrives.
    pub(crate) fn prepare_to_poll(&mut self) -> Result<(), Error> {
        let Some(active) = &mut self.active else { return Ok(()) };
        active.prepare_to_poll()
    }

    /// Delivers waiting packets. If there are none it waits: up to the handle's timeout, or in a
    /// loop without limit. Packets count as delivered even if an error follows.
    pub(crate) fn dispatch<F: FnMut(Packet<'_>)>(
        &mut self,
        reading: &Reading,
        delivery: &mut Delivery<'_, F>,
    ) -> Result<Ended, Error> {
        let (entry, start) = (delivery.entry, delivery.count);
        let &Reading { looping, deadline } = reading;
        let tick = if self.choice.wait == Wait::Busy { BUSY_TICK } else { TICK };
        let Some(active) = &mut self.active else { return Ok(Ended::Done) };
        // A loop waits even in nonblocking mode; libpcap's loop would only spin.
        let nonblocking = entry.properties.nonblocking() && !looping;
        loop {
            if entry.take_break_requested() {
                return Ok(Ended::BreakLoop);
            }
            if entry.is_lock_requested() {
                return Ok(Ended::LockRequested);
            }
            let now = Instant::now();
            let until = deadline.map_or(now + tick, |deadline| deadline.min(now + tick));
            let until = if nonblocking { now } else { until };
            let before = delivery.count;
            let more = match active.deliver(until, delivery) {
                // As in libpcap, an interface that is down delivers packets again when it is up.
                Err(error) if error.is_one_of(&[Errno::NETDOWN]) && entry.device_exists() => true,
                delivered => delivered?,
            };
            if let Some(deferred) = entry.take_deferred() {
                active.apply(deferred, &self.choice.notices)?;
            }
            if entry.properties.is_polled() {
                active.prepare_to_poll()?;
            }
            active.refresh(entry);
            if entry.take_break_requested() {
                return Ok(Ended::BreakLoop);
            }
            let Delivery { count, max, .. } = *delivery;
            let found = count > before;
            let over = nonblocking || deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if !more || count >= max || (!looping && count > start) || (!found && over) {
                return Ok(Ended::Done);
            }
        }
    }

    /// Returns the parameters of a reading call that begins now.
    pub(crate) fn reading(&self, looping: bool) -> Reading {
        let timeout = u64::try_from(self.options.timeout_ms).ok().filter(|ms| *ms > 0 && !looping);
        let deadline = timeout.map(|timeout| Instant::now() + Duration::from_millis(timeout));
        Reading { looping, deadline }
    }

    /// Ends the capture without a report, because the report belongs to another process.
    pub(crate) fn abandon(&mut self) {
        self.active = None;
    }

    /// Ends the capture, and prints its report if the user requested one. Without a report it only
    /// closes the descriptors. If the process has `forked`, another process may continue the
    /// capture, so the report has the current counts.
    pub(crate) fn close(&mut self, forked: bool) {
        let Some(active) = self.active.take().filter(|_| self.choice.report) else { return };
        let notices = &self.choice.notices;
        match self.report(active, forked) {
            Ok(report) => notices.print(&format!("strait: {report}")),
            Err(error) => notices.print(&format!("strait: no report: {error}\n")),
        }
    }

    fn report(&self, active: Active, forked: bool) -> Result<String, Error> {
        let Active { mut session, lanes, saved, current_lane, .. } = active;
        if !forked {
            session.stop()?;
        }
        let mut accounts = Vec::with_capacity(lanes.len());
        for (at, mut lane) in lanes.into_iter().enumerate() {
            let read = lane.account()?.capture;
            // Examine the remaining frames, so that the lane counts them and waits only for those
            // still missing.
            let mut unread = if forked { 0 } else { read_rest(&mut lane) };
            if at == current_lane {
                unread += saved.len() as u64;
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
        let wait = if forked {
            format!("counts so far, because the program has forked; wait {wait}")
        } else {
            wait.into()
        };
        Ok(format!("{notes}wait {wait}; ring {ring}; {}", session.report(accounts)))
    }
}

impl Active {
    /// Delivers the saved packets or, if there are none, packets from the ring of one lane, and
    /// waits for them until `until`. Returns false after the last packet of the capture.
    fn deliver<F: FnMut(Packet<'_>)>(
        &mut self,
        until: Instant,
        delivery: &mut Delivery<'_, F>,
    ) -> Result<bool, Error> {
        if !self.saved.is_empty() {
            self.deliver_saved(delivery);
            return Ok(true);
        }
        let limit = delivery.max - delivery.count;
        if let [lane] = &mut self.lanes[..] {
            let Some(batch) = lane.next_batch_of(limit, until)? else { return Ok(false) };
            let rejected = deliver_batch(&self.session, batch, &mut self.saved, delivery);
            lane.discard(rejected);
            return Ok(true);
        }
        for _ in 0..self.lanes.len() {
            self.current_lane = (self.current_lane + 1) % self.lanes.len();
            let now = Instant::now();
            let lane = &mut self.lanes[self.current_lane];
            let Some(batch) = lane.next_batch_of(limit, now)? else { return Ok(false) };
            if !batch.is_empty() {
                let rejected = deliver_batch(&self.session, batch, &mut self.saved, delivery);
                lane.discard(rejected);
                return Ok(true);
            }
        }
        self.wait_for_any_lane(delivery.entry, until)?;
        Ok(true)
    }

    fn deliver_saved<F: FnMut(Packet<'_>)>(&mut self, delivery: &mut Delivery<'_, F>) {
        while delivery.count < delivery.max && !delivery.entry.needs_frame_check() {
            let Some(SavedPacket { timestamp_ns, wire_len, bytes }) = self.saved.pop_front() else { break };
            delivery.deliver(Packet { timestamp_ns, wire_len, bytes: &bytes });
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
        let mut ready = !self.saved.is_empty();
        for lane in &mut self.lanes {
            ready |= lane.prepare_to_wait()?;
        }
        self.waker.set_ready(ready).map_err(polling)
    }

    /// Applies the changes that a callback has requested.
    fn apply(&mut self, Deferred { filter, directions }: Deferred, notices: &Notices) -> Result<(), Error> {
        self.discard_saved();
        if let Some(directions) = directions {
            self.session.set_directions(&mut self.lanes, directions)?;
        }
        filter.iter().try_for_each(|filter| self.set_filter(filter, notices))
    }

    /// Sets the filter. Like libpcap, notifies the user if the filter runs in user space.
    fn set_filter(&mut self, filter: &Program, notices: &Notices) -> Result<(), Error> {
        let before = self.session.notes().to_vec();
        self.session.set_filter(&mut self.lanes, filter)?;
        let new = self.session.notes().iter().filter(|note| !before.contains(note));
        new.for_each(|note| notices.print(&format!("strait: {note}\n")));
        Ok(())
    }

    /// Discards saved packets: packets from before a change must not be delivered after it.
    fn discard_saved(&mut self) {
        self.lanes[self.current_lane].discard(self.saved.len() as u64);
        self.saved.clear();
    }

    /// Updates the count of frames that the NIC missed, at most once per [`REFRESH`]: the system
    /// call would cost more than a packet.
    fn refresh(&mut self, entry: &Entry) {
        if self.refreshed.elapsed() >= REFRESH {
            self.refreshed = Instant::now();
            entry.properties.set_missed(self.session.missed());
        }
    }
}

/// Reads the remaining frames in the ring of a stopped session, and returns their number.
fn read_rest(lane: &mut Lane) -> u64 {
    let mut frames = 0;
    while let Ok(Some(mut batch)) = lane.next_batch(Instant::now() + DRAIN) {
        frames += batch.frames().count() as u64;
    }
    frames
}

/// Delivers a batch. If the callback breaks the loop, the remaining packets are copied, because the
/// frames of the batch return to the ring. Returns the number of frames that a new filter, set by
/// the callback, has rejected.
fn deliver_batch<F: FnMut(Packet<'_>)>(
    session: &Session,
    mut batch: Batch<'_>,
    saved: &mut VecDeque<SavedPacket>,
    delivery: &mut Delivery<'_, F>,
) -> u64 {
    let entry = delivery.entry;
    let mut check = FrameCheck { entry, session, saved, request_number: 0, filter: None, rejected: 0 };
    let Ok(()) = batch.try_each(usize::MAX, |frame| -> Result<(), Infallible> {
        if !entry.needs_frame_check() || check.must_deliver(frame) {
            delivery.deliver(frame.into());
        }
        Ok(())
    });
    check.rejected
}

/// Check of the remaining frames of a batch after a callback has requested the end of the loop or a
/// change.
struct FrameCheck<'a> {
    entry: &'a Entry,
    session: &'a Session,
    saved: &'a mut VecDeque<SavedPacket>,
    /// Value of [`Entry::request_number`] that the filter belongs to.
    request_number: usize,
    /// The requested filter.
    filter: Option<UserspaceFilter>,
    /// Number of frames that it rejected.
    rejected: u64,
}

impl FrameCheck<'_> {
    /// Returns true if a frame must be delivered now. Otherwise the frame is rejected or saved.
    #[cold]
    fn must_deliver(&mut self, frame: &Frame<'_>) -> bool {
        if self.entry.request_number() != self.request_number {
            self.request_number = self.entry.request_number();
            self.filter = self.entry.pending_filter().map(|filter| self.session.userspace_filter(&filter));
        }
        if self.filter.as_ref().is_some_and(|filter| filter.matched_bytes(frame) == 0) {
            self.rejected += 1;
            return false;
        }
        let break_requested = self.entry.is_break_requested();
        if break_requested {
            let Packet { timestamp_ns, wire_len, bytes } = frame.into();
            self.saved.push_back(SavedPacket { timestamp_ns, wire_len, bytes: bytes.into() });
        }
        !break_requested
    }
}

fn polling(errno: rustix::io::Errno) -> Error {
    Error::Usage(format!("create a descriptor to poll: {errno}"))
}
