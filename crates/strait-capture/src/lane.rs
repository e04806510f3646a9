//! Lane of a session: one queue's ring, its wait policy and its account. It moves to the thread
//! that reads it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use strait_filter::cbpf::Program;
use strait_ledger::{self as ledger, Capture};
use strait_os::clock;
use strait_sys::LinkState;
use strait_sys::packet::Cooked;

use crate::batch::Batch;
use crate::booking::{Booking, Copies};
use crate::error::Error;
use crate::interrupt::Interrupter;
use crate::live_counters::{LiveCounters, Tally};
use crate::paths::{AnyBatch, AnyEngine};
use crate::userspace_filter::UserspaceFilter;
use crate::wait::{LINK_CHECK_SPINS, Pacer, Step};
use crate::watch::LinkWatch;

/// Interval between two checks of a link that is down.
const LINK_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// State shared by a session and its lanes.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Set by the session after reception has stopped.
    pub(crate) stopping: AtomicBool,
    pub(crate) link: LinkWatch,
    /// Number of frames that the kernel counted after the program had stopped reading.
    pub(crate) late_frames: AtomicU64,
}

impl Shared {
    /// Returns the state of a session with a watch on its link.
    pub(crate) fn new(link: LinkWatch) -> Arc<Self> {
        Arc::new(Self { link, ..Self::default() })
    }
}

/// One queue of a session.
pub struct Lane {
    engine: AnyEngine,
    copies: Copies,
    pacer: Pacer,
    account: Capture,
    /// The interface's name, for errors.
    interface: String,
    snaplen: u32,
    queue: u32,
    cpu: Option<u32>,
    shared: Arc<Shared>,
    draining_since: Option<Instant>,
    /// Error that the socket reported while frames were still in the ring. The caller gets the
    /// frames first, because they were captured before the error.
    failure: Option<Error>,
    /// Filter that runs in this process.
    userspace: Option<UserspaceFilter>,
    tally: Arc<Tally>,
    /// Ends the lane's waits.
    interrupter: Option<Interrupter>,
    /// Time of the last check of a link that the socket reported as down; none while it is up.
    link_checked: Option<Instant>,
    /// Number of polls of an empty ring by a lane that never sleeps.
    spins: u32,
}

impl Lane {
    pub(crate) fn new(
        engine: AnyEngine,
        pacer: Pacer,
        interface: String,
        snaplen: u32,
        queue: u32,
        cpu: Option<u32>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            copies: engine.copies(),
            engine,
            pacer,
            account: Capture::default(),
            interface,
            snaplen,
            queue,
            cpu,
            shared,
            draining_since: None,
            failure: None,
            userspace: None,
            tally: Arc::default(),
            interrupter: None,
            link_checked: None,
            spins: 0,
        }
    }

    /// Returns the number of the receive queue or of the fanout member.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Returns the number of bytes read so far, if this is the lane of a file.
    pub fn file_offset(&self) -> Option<u64> {
        match &self.engine {
            AnyEngine::File(engine) => Some(engine.offset()),
            _ => None,
        }
    }

    /// Prepares the calling thread to read this lane: pins it to the lane's CPU, if there is one,
    /// and makes its sleeps precise.
    pub fn enter_thread(&self) -> Result<(), Error> {
        if let Some(cpu) = self.cpu {
            strait_os::process::pin_thread(cpu)?;
        }
        Ok(strait_os::process::set_precise_sleeps()?)
    }

    /// Lends the next frames as soon as there are some, or an empty batch at `deadline` or after a
    /// signal. Returns `None` after the last frame: the session has stopped and the ring is
    /// drained, or the file has ended.
    ///
    /// A capture continues while its interface is set down, see [`crate::Session::link`]. A file is
    /// not read further after the session has stopped.
    ///
    /// # Errors
    /// The interface was removed, or the file is damaged. Frames captured earlier are lent first.
    pub fn next_batch(&mut self, deadline: Instant) -> Result<Option<Batch<'_>>, Error> {
        self.next_batch_of(usize::MAX, deadline)
    }

    /// Like [`Lane::next_batch`], but lends at most `limit` frames, which must not be 0. The others
    /// stay in the ring.
    pub fn next_batch_of(&mut self, limit: usize, deadline: Instant) -> Result<Option<Batch<'_>>, Error> {
        match self.wait_until_ready(deadline)? {
            WaitOutcome::Ended => Ok(None),
            WaitOutcome::TimedOut => Ok(Some(self.lend(None))),
            WaitOutcome::Ready => Ok(Some(self.lend(Some(limit)))),
        }
    }

    /// Returns the descriptors that become readable when a frame arrives, for a program with its
    /// own poll loop. They report frames that arrive after [`Lane::prepare_to_wait`], and some
    /// earlier ones.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.engine.descriptors()
    }

    /// Makes the next frame signal a descriptor. Returns true if frames are ready already: take
    /// them before a wait, because the descriptors need not report them.
    pub fn prepare_to_wait(&mut self) -> Result<bool, Error> {
        self.engine.prepare_to_wait().or_else(|error| self.handle_socket_error(error))?;
        self.poll_ring()
    }

    /// Lets `interrupter` end this lane's waits.
    pub fn set_interrupter(&mut self, interrupter: Interrupter) {
        self.interrupter = Some(interrupter);
    }

    /// Returns a reader of this lane's counters for another thread or a signal handler.
    pub fn live_counters(&self) -> LiveCounters {
        LiveCounters::new(self.engine.counters(), Arc::clone(&self.tally))
    }

    /// Runs `userspace` from the first frame on.
    pub(crate) fn set_userspace_filter(&mut self, userspace: Option<UserspaceFilter>) {
        self.userspace = userspace;
    }

    /// Rejects every frame until [`Lane::set_filter`], if the kernel filters for this path.
    pub(crate) fn reject_all(&self) -> Result<(), Error> {
        self.engine.reject_all()
    }

    /// Sets the filters: `program` runs in the kernel, if it filters for this path, and `userspace`
    /// in this process. Frames in the ring are discarded, because an earlier filter matched them.
    /// Call [`Lane::reject_all`] first, so that no frame of the earlier filter arrives later.
    pub(crate) fn set_filter(
        &mut self,
        program: &Program,
        userspace: Option<UserspaceFilter>,
    ) -> Result<(), Error> {
        self.discard_waiting(program)?;
        self.engine.accept_matching(program)?;
        self.userspace = userspace;
        Ok(())
    }

    /// Discards the frames in the ring, which an earlier filter matched. `program` is the filter of
    /// later frames.
    pub(crate) fn discard_waiting(&mut self, program: &Program) -> Result<(), Error> {
        // A socket reports once that its link went down, and does so before it returns the frames
        // that it had queued.
        match self.discard_frames(program) {
            Err(error) if is_link_error(&error) => {
                self.handle_socket_error(error)?;
                self.discard_frames(program)?;
            }
            discarded => discarded?,
        }
        self.live_counters().keep_reported()
    }

    fn discard_frames(&mut self, program: &Program) -> Result<(), Error> {
        let Self { engine, account, tally, .. } = self;
        engine.discard_waiting(program, account, &tally.discarded)
    }

    /// Counts `frames` lent frames as filtered instead of delivered, because a later filter rejects
    /// them.
    pub fn discard(&mut self, frames: u64) {
        self.return_unread(frames);
        self.tally.discarded.fetch_add(frames, Ordering::Relaxed);
    }

    /// Counts `frames` lent frames as unread instead of delivered. Their bytes stay counted.
    pub fn return_unread(&mut self, frames: u64) {
        self.account.delivered -= frames.min(self.account.delivered);
    }

    /// Checks the link, for programs that do not wait by [`Lane::next_batch`].
    ///
    /// # Errors
    /// The interface was removed.
    pub fn check_link(&mut self) -> Result<(), Error> {
        self.engine.check_link().or_else(|error| self.handle_socket_error(error))?;
        self.check_down_link()?;
        self.shared.link.read_changes(Instant::now());
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Keeps an error of the socket until the ring is empty. An error that only reports that the
    /// link went down is not kept: the capture continues when it is up.
    fn handle_socket_error(&mut self, error: Error) -> Result<(), Error> {
        if !is_link_error(&error) {
            return self.keep_error(error);
        }
        match self.engine.link_state() {
            Ok(Some(state)) => self.note_link_state(state),
            Ok(None) => self.keep_error(error),
            Err(other) => self.keep_error(other),
        }
    }

    /// Checks a link that is down, at most once per [`LINK_CHECK_INTERVAL`].
    fn check_down_link(&mut self) -> Result<(), Error> {
        // A stopped socket does not report the link any more. While an error is kept there must be
        // no second one: `keep_error` would return it before the frames in the ring.
        let is_over = self.shared.stopping.load(Ordering::Acquire) || self.failure.is_some();
        if is_over || self.link_checked.is_none_or(|checked| checked.elapsed() < LINK_CHECK_INTERVAL) {
            return Ok(());
        }
        self.link_checked = Some(Instant::now());
        match self.engine.link_state()? {
            Some(LinkState::Up) => {
                self.link_checked = None;
                Ok(())
            }
            Some(state) => self.note_link_state(state),
            None => Ok(()),
        }
    }

    /// Notes the state of a link that an error reported as down.
    fn note_link_state(&mut self, state: LinkState) -> Result<(), Error> {
        if state == LinkState::Removed {
            return self.keep_error(Error::System(strait_sys::interface_removed(&self.interface)));
        }
        self.link_checked.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Selects whether frames sent by this host are left out, from the next [`Lane::set_filter`]
    /// on. Paths other than packet sockets never see them.
    pub(crate) fn ignore_outgoing(&mut self, ignore: bool) -> Result<(), Error> {
        self.engine.ignore_outgoing(ignore)
    }

    /// Sets the header of cooked packets.
    pub(crate) fn set_cooked(&mut self, cooked: Cooked) {
        self.engine.set_cooked(cooked);
    }

    /// Returns the account so far, with the kernel's counters.
    pub fn account(&mut self) -> Result<ledger::LaneCounts, Error> {
        self.engine.account(&mut self.account, self.tally.discarded())?;
        Ok(ledger::LaneCounts { queue: self.queue, cpu: self.cpu, capture: self.account })
    }

    /// Counts `frames` lent frames as lost in the program's sink instead of delivered. Their bytes
    /// stay counted, because they were copied.
    pub fn count_sink_loss(&mut self, frames: u64) {
        self.account.delivered -= frames.min(self.account.delivered);
        self.account.lost.sink += frames;
    }

    /// Ends the lane and returns its account. Frames that are still in the ring count as unread.
    pub fn finish(mut self) -> Result<ledger::LaneCounts, Error> {
        self.account()
    }

    /// Ends the lane after the last frame that it lent, for a program that captures a fixed number
    /// of frames. Later frames do not belong to the capture: the account leaves out those that are
    /// still in the ring, and those that the kernel dropped because the ring was full.
    pub fn finish_at_last_frame(mut self) -> Result<ledger::LaneCounts, Error> {
        let mut lane = self.account()?;
        let capture = &mut lane.capture;
        let taken = capture.delivered + capture.lost.sink + self.tally.discarded();
        let mut late = std::mem::take(&mut capture.lost.unread);
        // The ring is full only after it received as many frames as it holds. If the lane took no
        // more than that, every drop came after the last lent frame.
        if taken <= self.engine.capacity_min() as u64 {
            late += std::mem::take(&mut capture.lost.ring_full);
            late += std::mem::take(&mut capture.lost.fill_empty);
        }
        capture.received -= late.min(capture.received);
        self.shared.late_frames.fetch_add(late, Ordering::Relaxed);
        Ok(lane)
    }

    fn wait_until_ready(&mut self, deadline: Instant) -> Result<WaitOutcome, Error> {
        loop {
            self.check_down_link()?;
            if self.poll_ring()? {
                return Ok(WaitOutcome::Ready);
            }
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if self.engine.ended() || (self.shared.stopping.load(Ordering::Acquire) && !self.drain()?) {
                return Ok(WaitOutcome::Ended);
            }
            if self.draining_since.is_some() {
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(WaitOutcome::TimedOut);
            }
            let step = self.pacer.empty(clock::monotonic_ns());
            let left = if self.link_checked.is_some() { left.min(LINK_CHECK_INTERVAL) } else { left };
            let wakers = [self.interrupter.as_ref().map(Interrupter::as_fd), self.shared.link.descriptor()];
            self.engine.wait(step, left, wakers).or_else(|error| self.handle_socket_error(error))?;
            if step == Step::Spin {
                self.read_link_events();
            }
            // A signal may have ended the wait: return, so that the caller can check its flag.
            if step == Step::Wake && !self.poll_ring()? && !self.shared.link.read_changes(Instant::now()) {
                self.interrupter.iter().for_each(Interrupter::clear);
                return Ok(WaitOutcome::TimedOut);
            }
        }
    }

    /// Reads the changes of the link every [`LINK_CHECK_SPINS`] calls, on a lane that never sleeps.
    fn read_link_events(&mut self) {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(LINK_CHECK_SPINS) {
            self.shared.link.read_changes(Instant::now());
        }
    }

    /// Returns true if frames are ready.
    fn poll_ring(&mut self) -> Result<bool, Error> {
        match self.engine.ready(&self.shared.stopping) {
            Ok(ready) => Ok(ready),
            Err(error) => {
                self.handle_socket_error(error)?;
                // The kernel reports an error once, before the frames that it had queued.
                self.engine.ready(&self.shared.stopping)
            }
        }
    }

    /// Keeps an error until the ring is empty.
    fn keep_error(&mut self, error: Error) -> Result<(), Error> {
        match self.failure.replace(error) {
            None => Ok(()),
            Some(earlier) => Err(earlier),
        }
    }

    /// Returns true if more frames are expected although reception has stopped.
    fn drain(&mut self) -> Result<bool, Error> {
        let since = *self.draining_since.get_or_insert_with(Instant::now);
        let drained = self.engine.drain(&mut self.account, self.tally.discarded(), since);
        drained.or_else(|error| self.handle_socket_error(error).map(|()| true))
    }

    /// Lends the ready frames, at most `limit`. `None` lends an empty batch.
    fn lend(&mut self, limit: Option<usize>) -> Batch<'_> {
        let Self { engine, account, snaplen, queue, pacer, userspace, tally, copies, .. } = self;
        let (snaplen, queue, copies) = (*snaplen, *queue, *copies);
        let lent = limit.map_or(AnyBatch::Empty, |limit| engine.take(limit));
        let (userspace, discarded) = (userspace.as_ref(), &tally.discarded);
        let batch = Batch::new(lent, Booking { account, snaplen, queue, copies, userspace, discarded });
        pacer.found(batch.len());
        batch
    }
}

/// Returns true if `error` reports that the socket's interface is down or was removed.
fn is_link_error(error: &Error) -> bool {
    let errno = error.errno().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NETDOWN | Errno::NXIO | Errno::NODEV))
}

/// Result of [`Lane::wait_until_ready`].
enum WaitOutcome {
    Ready,
    TimedOut,
    Ended,
}
