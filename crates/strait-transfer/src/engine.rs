//! State that all senders of a thread share: the io_uring, the memory that it may send from, the
//! buffers that the kernel has borrowed, and the state of each route.
//!
//! Without io_uring everything is copied, and the accounts report it. Only [`Engine::wait`] waits.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slab::Slab;
use strait_ledger::Transfer;
use strait_os::clock::{monotonic_coarse as now, thread_cpu_time};
use strait_os::egress::Egress;
use strait_sys::buffer::{BufMut, Frozen, Pool};
use strait_sys::uring::{Event, Ring, SendOptions};

use crate::error::{Error, Result};
use crate::plan::{Mixed, Policy, Segment};
use crate::route::{Advice, Reason, THRESHOLD_MIN};
use crate::routes::{Ends, RouteEntry, RouteTable, SharedRoute};

/// Queue entries of the ring: each submission is passed to the kernel at once.
const ENTRIES: u32 = 8;

/// Rule that decides between zero-copy sends and copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Zero-copy where the kernel does not copy anyway and where zero-copy costs less.
    Adaptive,
    /// Zero-copy for all buffers of at least this size, whatever it costs.
    From(usize),
    /// Copies only.
    Never,
}

/// Options of an engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rule that decides between zero-copy sends and copies.
    pub zero_copy: ZeroCopy,
    /// Treatment of small buffers next to a zero-copy one.
    pub mixed: Mixed,
    /// Limit of bytes in buffers that the kernel has borrowed, for all senders together. The rest
    /// is copied.
    pub borrowed_bytes_max: usize,
    /// Limit of zero-copy sends without a notification.
    pub borrowed_max: usize,
    /// Size of the buffers of [`Engine::buffer`].
    pub buffer_bytes: usize,
    /// Number of these buffers.
    pub buffers: u32,
    /// True if their memory is registered with the kernel. It then counts as locked, and sends from
    /// it cost less.
    pub register: bool,
}

impl Default for Options {
    /// For some hundred connections that send files or messages: 6 MiB of buffers, which fit an
    /// ordinary user's limit of locked memory (8 MiB), and at most 256 MiB borrowed by the kernel:
    /// 4 MiB, the kernel's largest send buffer by default, for each of 64 peers.
    fn default() -> Self {
        Self {
            zero_copy: ZeroCopy::Adaptive,
            mixed: Mixed::Join,
            borrowed_bytes_max: 256 << 20,
            borrowed_max: 4096,
            buffer_bytes: 256 << 10,
            buffers: 24,
            register: true,
        }
    }
}

/// Counts of a sender. They outlive it, because reports may come later.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) account: Transfer,
    /// Sends with memory that the kernel still uses.
    pub(crate) borrowed: usize,
}

/// Zero-copy send without its notification.
#[derive(Debug)]
struct PendingSend {
    tally: Rc<RefCell<Tally>>,
    route: SharedRoute,
    bytes: usize,
    probe: bool,
    /// True if the kernel copies it without reporting that.
    is_copied: bool,
}

/// Outcome of a zero-copy send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ZeroCopySend {
    /// Number of bytes that the kernel accepted.
    Taken(usize),
    /// The socket buffer is full.
    NoRoom,
    /// The caller copies instead; the reason is counted.
    Copy,
    /// The send failed with this errno.
    Failed(i32),
}

/// Engine of a thread.
#[derive(Debug)]
pub struct Engine {
    ring: Option<Ring>,
    no_ring: Option<strait_sys::Error>,
    pool: Pool,
    /// Rest of the buffer in which small pieces are gathered.
    gathering: Option<BufMut>,
    options: Options,
    routes: RouteTable,
    /// Indexed by the token of the send.
    pending: Slab<PendingSend>,
    borrowed_bytes: usize,
}

impl Engine {
    /// Creates an engine. Without io_uring it copies, and [`Engine::no_zero_copy`] returns the
    /// reason.
    ///
    /// # Errors
    /// Without memory for the buffers.
    pub fn new(options: Options) -> Result<Self> {
        let pool = Pool::new(options.buffer_bytes, options.buffers)?;
        let (ring, no_ring) = match options.zero_copy {
            ZeroCopy::Never => (None, None),
            _ => match Ring::new(ENTRIES, options.borrowed_max) {
                Ok(ring) => (Some(ring), None),
                Err(error) => (None, Some(error)),
            },
        };
        let mut engine = Self {
            ring,
            no_ring,
            pool,
            gathering: None,
            options,
            routes: RouteTable::default(),
            pending: Slab::new(),
            borrowed_bytes: 0,
        };
        engine.register();
        Ok(engine)
    }

    /// Registers the buffers. A failure only makes sends from them more expensive.
    fn register(&mut self) {
        if let Some(ring) = self.ring.as_mut().filter(|_| self.options.register) {
            self.no_ring = ring.register(&self.pool).err();
        }
    }

    /// Returns the reason why there is no zero-copy, or only from memory that is not registered;
    /// `None` if both work or were not requested.
    pub fn no_zero_copy(&self) -> Option<&strait_sys::Error> {
        self.no_ring.as_ref()
    }

    /// Takes a buffer to fill, from the memory that is cheapest to send; `None` while all are in
    /// use.
    pub fn buffer(&self) -> Option<BufMut> {
        self.pool.take()
    }

    /// Copies small pieces into one buffer, so that they go in one send, by zero-copy where that is
    /// cheaper: headers, chunk sizes, many short records. Uses the heap while no buffer has space.
    pub fn gather<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>) -> Segment {
        let pieces = pieces.into_iter();
        let bytes = pieces.clone().map(<[u8]>::len).sum();
        match self.gather_in_buffer(pieces.clone(), bytes) {
            Some(view) => Segment::Shared(view),
            None => Segment::Bytes(pieces.collect::<Vec<_>>().concat().into()),
        }
    }

    /// Like [`Engine::gather`] with pieces of `bytes` bytes in total; returns `None` while no
    /// buffer has space.
    pub(crate) fn gather_in_buffer<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a [u8]>,
        bytes: usize,
    ) -> Option<Frozen> {
        if bytes > self.options.buffer_bytes {
            return None;
        }
        if self.gathering.as_ref().is_none_or(|left| left.len() < bytes) {
            self.gathering = self.pool.take();
        }
        let left = self.gathering.as_mut().filter(|left| left.len() >= bytes)?;
        let mut part = left.split_to(bytes);
        let mut rest = &mut part[..];
        for piece in pieces {
            let (head, behind) = rest.split_at_mut(piece.len());
            head.copy_from_slice(piece);
            rest = behind;
        }
        Some(part.freeze(0..bytes))
    }

    /// Returns the bytes that the kernel has borrowed.
    pub fn borrowed_bytes(&self) -> usize {
        self.borrowed_bytes
    }

    /// Returns the route between `ends`.
    pub(crate) fn route(&mut self, ends: Ends) -> SharedRoute {
        self.routes.find(ends)
    }

    /// Returns true if zero-copy is possible for a buffer of `bytes`. Short buffers never qualify,
    /// whatever the route.
    pub(crate) fn may_zero_copy(&self, bytes: usize, route: &SharedRoute) -> bool {
        let is_long = match self.options.zero_copy {
            ZeroCopy::From(least) => bytes >= least,
            ZeroCopy::Adaptive => bytes >= THRESHOLD_MIN,
            ZeroCopy::Never => false,
        };
        is_long && self.policy(route).is_zero_copy(bytes)
    }

    /// Returns the rule by which a plan for this route is cut into runs.
    pub(crate) fn policy(&self, route: &SharedRoute) -> Policy {
        let threshold = match self.options.zero_copy {
            _ if self.ring.is_none() => None,
            ZeroCopy::Never => None,
            ZeroCopy::From(bytes) => Some(bytes.max(1)),
            ZeroCopy::Adaptive => route.borrow_mut().begin_send(now()),
        };
        Policy { threshold, mixed: self.options.mixed }
    }

    /// Decides between zero-copy, probe and copy for a send of `bytes`.
    fn advise(&self, bytes: usize, route: &SharedRoute, tally: &Rc<RefCell<Tally>>) -> Advice {
        match self.options.zero_copy {
            ZeroCopy::From(_) => Advice::ZeroCopy,
            ZeroCopy::Adaptive => route.borrow_mut().advise(bytes, now(), tally.borrow().borrowed == 0),
            ZeroCopy::Never => Advice::Copy,
        }
    }

    /// Sends `views` by zero-copy if the route is suited. The kernel may still copy; its
    /// notification reports that.
    pub(crate) fn send_zero_copy(
        &mut self,
        socket: &Arc<OwnedFd>,
        views: &[Frozen],
        more: bool,
        (ends, route): (Ends, &SharedRoute),
        tally: &Rc<RefCell<Tally>>,
    ) -> Result<ZeroCopySend> {
        let bytes: usize = views.iter().map(|view| view.len()).sum();
        self.look_at_device(ends, route, tally);
        // The pending report may decide the route. Once it is decided, the send itself collects
        // reports.
        if !route.borrow().chooses_by_cost() {
            self.collect()?;
        }
        let advice = self.advise(bytes, route, tally);
        if advice == Advice::Copy || self.ring.is_none() {
            return Ok(ZeroCopySend::Copy);
        }
        let fits = self.borrowed_bytes + bytes <= self.options.borrowed_bytes_max;
        let Some(ring) = self.ring.as_mut().filter(|_| fits) else {
            return Ok(copy_at_limit("the limit of borrowed bytes is reached", route, tally));
        };
        let began = route.borrow().wants_cost(bytes).then(thread_cpu_time);
        let probe = advice == Advice::Probe;
        // Inserted before the submission, because other notifications are processed while its
        // result is fetched.
        let is_copied = route.borrow().copies_silently();
        let (owner, known) = (tally.clone(), route.clone());
        let send =
            self.pending.insert(PendingSend { tally: owner, route: known, bytes: 0, probe, is_copied });
        tally.borrow_mut().borrowed += 1;
        let how = SendOptions { zero_copy: true, more, dont_wait: true, ..SendOptions::default() };
        if ring.push(socket, views, how, send as u64).is_err() {
            self.withdraw(send);
            return Ok(copy_at_limit("the limit of zero-copy sends is reached", route, tally));
        }
        let (result, borrowed) = self.submit(send as u64)?;
        let taken = *result.as_ref().unwrap_or(&0);
        if borrowed {
            self.pending[send].bytes = taken;
            self.borrowed_bytes += taken;
        } else {
            self.withdraw(send);
        }
        learn(&mut route.borrow_mut(), bytes, result, probe && !borrowed, began);
        Ok(outcome(result, &mut tally.borrow_mut().account))
    }

    /// Looks up the egress device of the route if that is due. If none is found, the probe decides.
    fn look_at_device(&self, (own, peer): Ends, route: &SharedRoute, tally: &RefCell<Tally>) {
        let now = now();
        let mut route = route.borrow_mut();
        if self.ring.is_none() || !route.needs_device_check(now) {
            return;
        }
        let egress = Egress::find(Some(own), peer).ok();
        let has_scatter_gather = egress.as_ref().and_then(|egress| egress.gathers().ok()).unwrap_or(true);
        let mut may_be_loopback = true;
        if let Some(Egress { interface, is_local, .. }) = egress {
            route.set_interface(interface.index);
            may_be_loopback = is_local || interface.is_loopback();
        }
        route.set_device(has_scatter_gather, may_be_loopback, now);
        if !has_scatter_gather && self.options.zero_copy == ZeroCopy::Adaptive {
            tally.borrow_mut().account.fall_back(Reason::NoScatterGather.text());
        }
    }

    /// Removes a send that the kernel did not accept.
    fn withdraw(&mut self, send: usize) {
        self.pending.remove(send).tally.borrow_mut().borrowed -= 1;
    }

    /// Submits the queued send. Returns the result of `token`, and true if a notification follows.
    fn submit(&mut self, token: u64) -> Result<(std::result::Result<usize, i32>, bool)> {
        // The send does not block, so its result is normally there at once; a full completion queue
        // may delay it.
        let mut want = 0;
        loop {
            self.enter(want, Duration::from_secs(1))?;
            want = 1;
            while let Some(event) = self.ring.as_mut().and_then(Ring::next_event) {
                match event {
                    Event::Sent { token: sent, result, borrowed } if sent == token => {
                        return Ok((result, borrowed));
                    }
                    Event::Sent { .. } => {}
                    Event::Returned { token, copied } => self.returned(token, copied),
                }
            }
        }
    }

    /// Enters the ring. Drops a ring that fails: entries left in its queue could be sent later and
    /// would then be in the stream twice. From then on everything is copied.
    fn enter(&mut self, want: usize, timeout: Duration) -> Result<()> {
        let Some(ring) = &mut self.ring else { unreachable!("callers check that there is a ring") };
        let entered = ring.enter(want, timeout);
        if entered.is_err() {
            self.ring = None;
            self.borrowed_bytes = 0;
            self.pending.drain().for_each(|send| send.tally.borrow_mut().borrowed -= 1);
        }
        Ok(entered?)
    }

    fn returned(&mut self, token: u64, copied: bool) {
        let Some(send) = self.pending.try_remove(token as usize) else { return };
        let copied = copied || send.is_copied;
        self.borrowed_bytes -= send.bytes;
        {
            let mut tally = send.tally.borrow_mut();
            tally.borrowed -= 1;
            tally.account.report(send.bytes as u64, copied);
            if copied && send.probe {
                tally.account.fall_back(Reason::Copied.text());
            }
        }
        let mut route = send.route.borrow_mut();
        match (send.probe, send.bytes) {
            // The send was refused, or the socket is full: the report means nothing.
            (true, 0) => route.abandon(),
            (true, _) => route.probed(copied, now()),
            (false, 0) => {}
            (false, _) => route.reported(copied),
        }
    }

    /// Processes completed notifications: returns memory and updates routes. Costs almost nothing
    /// if there are none.
    pub fn collect(&mut self) -> Result<()> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        if !ring.has_completions() {
            return Ok(());
        }
        self.enter(0, Duration::ZERO)?;
        while let Some(event) = self.ring.as_mut().and_then(Ring::next_event) {
            if let Event::Returned { token, copied } = event {
                self.returned(token, copied);
            }
        }
        Ok(())
    }

    /// Waits until `socket` is ready as the flags say or, without a socket, until a notification
    /// has come or none is outstanding. Processes the notifications. Returns true if the event came
    /// before the timeout.
    ///
    /// # Errors
    /// Those of poll(2) and io_uring_enter(2).
    pub fn wait(&mut self, socket: Option<(BorrowedFd<'_>, PollFlags)>, timeout: Duration) -> Result<bool> {
        let ready = match socket {
            Some((socket, flags)) => poll_one(PollFd::from_borrowed_fd(socket, flags), timeout)?,
            None => self.wait_for_notifications(timeout)?,
        };
        self.collect()?;
        Ok(ready)
    }

    fn wait_for_notifications(&mut self, timeout: Duration) -> Result<bool> {
        let pending = self.pending.len();
        let to_come = self.listen()?;
        let came = self.pending.len() < pending;
        let ready = match &self.ring {
            Some(ring) if to_come && !came => poll_one(PollFd::new(ring, PollFlags::IN), timeout),
            _ => Ok(came),
        };
        self.quiet();
        ready
    }

    /// Returns the descriptor that signals notifications between [`Engine::listen`] and
    /// [`Engine::quiet`], for callers with a reactor of their own instead of [`Engine::wait`];
    /// `None` without zero-copy. Poll it; do not read it.
    ///
    /// Level-triggered (poll(2)), it is readable until `quiet`: call `listen`, wait, `quiet`,
    /// `collect`. Edge-triggered (`EPOLLET`), there is an edge for each notification after
    /// `listen`, which processes earlier ones: call `listen` after each edge, and `quiet` when no
    /// task waits any more. With several waiting tasks, `quiet` takes the edge from those that have
    /// not seen it.
    pub fn notifications(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().map(AsFd::as_fd)
    }

    /// Processes completed notifications, and lets [`Engine::notifications`] signal later ones
    /// until [`Engine::quiet`] or the end of [`Engine::wait`]. Returns true if any are outstanding.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    pub fn listen(&mut self) -> Result<bool> {
        let Some(ring) = self.ring.as_mut().filter(|ring| ring.borrowed() > 0) else { return Ok(false) };
        ring.enable_signal();
        // Earlier notifications cause no signal.
        self.collect()?;
        Ok(!self.pending.is_empty())
    }

    /// Ends the signals of [`Engine::listen`] and makes the descriptor unreadable. While signals
    /// are on, each zero-copy send costs one signal more. Signalled notifications still have to be
    /// collected.
    pub fn quiet(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.disable_signal();
        }
    }
}

/// Waits for one descriptor; returns false on a timeout.
fn poll_one(fd: PollFd<'_>, timeout: Duration) -> Result<bool> {
    match poll(&mut [fd], Timespec::try_from(timeout).ok().as_ref()) {
        Ok(ready) => Ok(ready > 0),
        // A signal: the caller checks its effect.
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(Error::os("wait for", "a socket", error)),
    }
}

/// Updates the route by the result of a zero-copy send of `bytes`. `lost` means that a probe will
/// have no report; `began` is the start of a measured send.
fn learn(
    route: &mut RouteEntry,
    bytes: usize,
    result: std::result::Result<usize, i32>,
    lost: bool,
    began: Option<Duration>,
) {
    match (result, began) {
        (Ok(taken), Some(began)) => route.cost(bytes, taken, true, thread_cpu_time().saturating_sub(began)),
        (Err(errno::NOBUFS | errno::NOMEM), _) => route.refuse(Reason::NoMemory, now()),
        (Err(errno::OPNOTSUPP | errno::INVAL), _) => route.refuse(Reason::Unsupported, now()),
        (Ok(_), None) | (Err(_), _) => {}
    }
    if lost {
        route.abandon();
    }
}

/// Falls back to a copy because a limit is reached. A probe that did not take place has no report.
fn copy_at_limit(reason: &'static str, route: &SharedRoute, tally: &RefCell<Tally>) -> ZeroCopySend {
    route.borrow_mut().abandon();
    tally.borrow_mut().account.fall_back(reason);
    ZeroCopySend::Copy
}

/// Returns the outcome for the sender.
fn outcome(result: std::result::Result<usize, i32>, account: &mut Transfer) -> ZeroCopySend {
    match result {
        Ok(bytes) => {
            account.zero_copy_unreported += bytes as u64;
            ZeroCopySend::Taken(bytes)
        }
        Err(errno::AGAIN) => ZeroCopySend::NoRoom,
        Err(errno::NOBUFS | errno::NOMEM) => {
            account.fall_back(Reason::NoMemory.text());
            ZeroCopySend::Copy
        }
        Err(errno::OPNOTSUPP | errno::INVAL) => {
            account.fall_back(Reason::Unsupported.text());
            ZeroCopySend::Copy
        }
        Err(errno) => ZeroCopySend::Failed(errno),
    }
}

/// Errno values as integers, which io_uring returns.
mod errno {
    use rustix::io::Errno;

    pub(super) const AGAIN: i32 = Errno::AGAIN.raw_os_error();
    pub(super) const INVAL: i32 = Errno::INVAL.raw_os_error();
    pub(super) const NOBUFS: i32 = Errno::NOBUFS.raw_os_error();
    pub(super) const NOMEM: i32 = Errno::NOMEM.raw_os_error();
    pub(super) const OPNOTSUPP: i32 = Errno::OPNOTSUPP.raw_os_error();
}
