//! Lane of a session: one queue's ring, its wait policy and its account. It moves to the thread
//! that reads it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use strait_filter::cbpf::Program;
use strait_ledger::{self as ledger, Capture};
use strait_sys::LinkState;
use strait_sys::clock;
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
const LINK_PERIOD: Duration = Duration::from_millis(100);

/// State shared by a session and its lanes.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Set by the session once the intake has ended.
    pub(crate) stopping: AtomicBool,
    pub(crate) link: LinkWatch,
    /// Number of frames that the kernel counted after the program had stopped reading.
    pub(crate) beyond: AtomicU64,
}

impl Shared {
    /// Returns the state of a session that watches the link by `link`.
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
    /// Error that came while frames were still in the ring. It is returned after them.
    failure: Option<Error>,
    /// Filter that runs in this process.
    userspace: Option<UserspaceFilter>,
    tally: Arc<Tally>,
    /// Ends the lane's waits.
    interrupter: Option<Interrupter>,
    /// Time of the last check of a link that the socket reported as down; none while it is up.
    link_looked: Option<Instant>,
    /// Number of looks at an empty ring by a lane that never sleeps.
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
            link_looked: None,
            spins: 0,
        }
    }

    /// Returns the number of the receive queue or of the fanout member.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Prepares the calling thread to read this lane: pins it to the lane's CPU, if there is one,
    /// and makes its sleeps precise.
    pub fn enter_thread(&self) -> Result<(), Error> {
        if let Some(cpu) = self.cpu {
            strait_sys::process::pin_thread(cpu)?;
        }
        Ok(strait_sys::process::end_sleeps_on_time()?)
    }

    /// Lends the next frames as soon as there are some, or an empty batch at `deadline` or after a
    /// signal. Returns `None` at the end: the session has stopped and the ring is drained, or the
    /// file has ended. A file is not read further after the session has stopped. A capture goes on
    /// while its interface is set down, see [`crate::Session::link`].
    ///
    /// # Errors
    /// The interface is gone, or the file is damaged. Frames captured earlier are lent first.
    pub fn next_batch(&mut self, deadline: Instant) -> Result<Option<Batch<'_>>, Error> {
        self.next_batch_of(usize::MAX, deadline)
    }

    /// Like [`Lane::next_batch`], but lends at most `limit` frames, which must not be 0. The others
    /// stay in the ring.
    pub fn next_batch_of(&mut self, limit: usize, deadline: Instant) -> Result<Option<Batch<'_>>, Error> {
        match self.wait_until_ready(deadline)? {
            Outcome::Ended => Ok(None),
            Outcome::Nothing => Ok(Some(self.lend(None))),
            Outcome::Ready => Ok(Some(self.lend(Some(limit)))),
        }
    }

    /// Returns the descriptors that become readable when a frame arrives, for a program with its
    /// own poll loop. They report frames that arrive after [`Lane::prepare_to_wait`], and some
    /// earlier ones.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.engine.descriptors()
    }

    /// Arranges that the next frame makes a descriptor readable. Returns true if frames are ready
    /// already: the descriptors need not report those.
    pub fn prepare_to_wait(&mut self) -> Result<bool, Error> {
        self.engine.prepare_to_wait().or_else(|error| self.note_trouble(error))?;
        self.look()
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
    pub(crate) fn start_with(&mut self, userspace: Option<UserspaceFilter>) {
        self.userspace = userspace;
    }

    /// Rejects every frame until [`Lane::set_filter`], if the kernel filters for this path.
    pub(crate) fn reject_all(&self) -> Result<(), Error> {
        self.engine.reject_all()
    }

    /// Lets the kernel run `program` from now on, on packet sockets, and `userspace` run in this
    /// process. Frames in the ring are discarded, because an earlier filter matched them. The
    /// intake must have ended by [`Lane::reject_all`].
    pub(crate) fn set_filter(
        &mut self,
        program: &Program,
        userspace: Option<UserspaceFilter>,
    ) -> Result<(), Error> {
        self.discard_waiting(program)?;
        self.engine.admit(program)?;
        self.userspace = userspace;
        Ok(())
    }

    /// Discards the frames in the ring: an earlier filter matched them, the next ones come by
    /// `program`.
    pub(crate) fn discard_waiting(&mut self, program: &Program) -> Result<(), Error> {
        // A socket reports once that its link went down, before the frames that it had queued.
        match self.discard_frames(program) {
            Err(error) if is_of_link(&error) => {
                self.note_trouble(error)?;
                self.discard_frames(program)?;
            }
            discarded => discarded?,
        }
        self.live_counters().keep_shown()
    }

    fn discard_frames(&mut self, program: &Program) -> Result<(), Error> {
        let Self { engine, account, tally, .. } = self;
        engine.discard_waiting(program, account, &tally.discarded)
    }

    /// Takes back `frames` lent frames that a later filter rejects. They count as filtered.
    pub fn discard(&mut self, frames: u64) {
        self.return_unread(frames);
        self.tally.discarded.fetch_add(frames, Ordering::Relaxed);
    }

    /// Takes back `frames` lent frames that the program did not read. They count as unread; their
    /// bytes stay counted.
    pub fn return_unread(&mut self, frames: u64) {
        self.account.delivered -= frames.min(self.account.delivered);
    }

    /// Checks the link, for programs that do not wait by [`Lane::next_batch`].
    ///
    /// # Errors
    /// The interface is gone.
    pub fn check_link(&mut self) -> Result<(), Error> {
        self.engine.check_link().or_else(|error| self.note_trouble(error))?;
        self.look_at_link()?;
        self.shared.link.look(Instant::now());
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Keeps an error of the socket until the ring is empty. A link that went down is no error.
    fn note_trouble(&mut self, error: Error) -> Result<(), Error> {
        if !is_of_link(&error) {
            return self.fail(error);
        }
        match self.engine.link_state() {
            Ok(Some(state)) => self.note_link(state),
            Ok(None) => self.fail(error),
            Err(other) => self.fail(other),
        }
    }

    /// Checks a link that is down, at most once per [`LINK_PERIOD`].
    fn look_at_link(&mut self) -> Result<(), Error> {
        // A stopped socket does not report the link any more. While an error waits for the ring to
        // be empty there must be no second one: `fail` would end the lane at once.
        let is_over = self.shared.stopping.load(Ordering::Acquire) || self.failure.is_some();
        if is_over || self.link_looked.is_none_or(|looked| looked.elapsed() < LINK_PERIOD) {
            return Ok(());
        }
        self.link_looked = Some(Instant::now());
        match self.engine.link_state()? {
            Some(LinkState::Up) => {
                self.link_looked = None;
                Ok(())
            }
            Some(state) => self.note_link(state),
            None => Ok(()),
        }
    }

    /// Notes the state of a link that an error reported as down.
    fn note_link(&mut self, state: LinkState) -> Result<(), Error> {
        if state == LinkState::Gone {
            return self.fail(Error::System(strait_sys::gone(&self.interface)));
        }
        self.link_looked.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Leaves out frames that this host sends, or no longer, from the next [`Lane::set_filter`] on.
    /// Paths other than packet sockets never see them.
    pub(crate) fn ignore_outgoing(&mut self, ignore: bool) -> Result<(), Error> {
        self.engine.ignore_outgoing(ignore)
    }

    /// Sets the header of cooked packets.
    pub(crate) fn set_cooked(&mut self, cooked: Cooked) {
        self.engine.set_cooked(cooked);
    }

    /// Returns the account so far, with the kernel's counters.
    pub fn account(&mut self) -> Result<ledger::Lane, Error> {
        self.engine.account(&mut self.account, self.tally.discarded())?;
        Ok(ledger::Lane { queue: self.queue, cpu: self.cpu, capture: self.account })
    }

    /// Books `frames` lent frames that the program could not keep. Their bytes stay counted,
    /// because they were copied.
    pub fn book_sink_loss(&mut self, frames: u64) {
        self.account.delivered -= frames.min(self.account.delivered);
        self.account.lost.sink += frames;
    }

    /// Ends the lane and returns its account. Frames that are still in the ring count as unread.
    pub fn finish(mut self) -> Result<ledger::Lane, Error> {
        self.account()
    }

    /// Ends the lane with the last frame that it lent, because the program has all frames that it
    /// asked for. Later frames do not belong to the capture: the account has neither those in the
    /// ring nor those that found it full.
    pub fn finish_here(mut self) -> Result<ledger::Lane, Error> {
        let mut lane = self.account()?;
        let capture = &mut lane.capture;
        let taken = capture.delivered + capture.lost.sink + self.tally.discarded();
        let mut beyond = std::mem::take(&mut capture.lost.unread);
        // A frame can only find the ring full behind as many frames as the ring holds.
        if taken <= self.engine.holds_at_least() as u64 {
            beyond += std::mem::take(&mut capture.lost.ring_full);
            beyond += std::mem::take(&mut capture.lost.fill_empty);
        }
        capture.received -= beyond.min(capture.received);
        self.shared.beyond.fetch_add(beyond, Ordering::Relaxed);
        Ok(lane)
    }

    fn wait_until_ready(&mut self, deadline: Instant) -> Result<Outcome, Error> {
        loop {
            self.look_at_link()?;
            if self.look()? {
                return Ok(Outcome::Ready);
            }
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if self.engine.ended() || (self.shared.stopping.load(Ordering::Acquire) && !self.drain()?) {
                return Ok(Outcome::Ended);
            }
            if self.draining_since.is_some() {
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Outcome::Nothing);
            }
            let step = self.pacer.empty(clock::monotonic_ns());
            let left = if self.link_looked.is_some() { left.min(LINK_PERIOD) } else { left };
            let wakers = [self.interrupter.as_ref().map(Interrupter::as_fd), self.shared.link.descriptor()];
            self.engine.wait(step, left, wakers).or_else(|error| self.note_trouble(error))?;
            if step == Step::Spin {
                self.look_at_news_sometimes();
            }
            // A signal may have ended the wait: return, so that the caller can check its flag.
            if step == Step::Wake && !self.look()? && !self.shared.link.look(Instant::now()) {
                self.interrupter.iter().for_each(Interrupter::clear);
                return Ok(Outcome::Nothing);
            }
        }
    }

    /// Reads changes of the link now and then, on a lane that never sleeps.
    fn look_at_news_sometimes(&mut self) {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(LINK_CHECK_SPINS) {
            self.shared.link.look(Instant::now());
        }
    }

    fn look(&mut self) -> Result<bool, Error> {
        match self.engine.ready(&self.shared.stopping) {
            Ok(ready) => Ok(ready),
            Err(error) => {
                self.note_trouble(error)?;
                // The kernel reports an error once, before the frames that it had queued.
                self.engine.ready(&self.shared.stopping)
            }
        }
    }

    /// Keeps an error until the ring is empty.
    fn fail(&mut self, error: Error) -> Result<(), Error> {
        match self.failure.replace(error) {
            None => Ok(()),
            Some(earlier) => Err(earlier),
        }
    }

    /// Returns true if more frames are expected although the intake has ended.
    fn drain(&mut self) -> Result<bool, Error> {
        let since = *self.draining_since.get_or_insert_with(Instant::now);
        let drained = self.engine.drain(&mut self.account, self.tally.discarded(), since);
        drained.or_else(|error| self.note_trouble(error).map(|()| true))
    }

    /// Lends frames that are ready, at most `limit`; none without a limit.
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

/// Returns true if `error` is a socket's report that its interface is down or gone.
fn is_of_link(error: &Error) -> bool {
    let errno = error.errno().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NETDOWN | Errno::NXIO | Errno::NODEV))
}

enum Outcome {
    Ready,
    Nothing,
    Ended,
}
