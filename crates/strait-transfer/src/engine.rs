//! What all senders of a thread share: the io_uring, the memory that it may send from, what is lent
//! to the kernel, and what is known of each route.
//!
//! Where io_uring is forbidden everything is copied, and the accounts say so. Nothing here waits
//! but [`Engine::wait`].

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slab::Slab;
use strait_ledger::Transfer;
use strait_sys::buffer::{BufMut, Frozen, Pool};
use strait_sys::clock::{monotonic_coarse as now, thread_cpu_time};
use strait_sys::egress::Egress;
use strait_sys::uring::{Event, Ring, SendOptions};

use crate::error::{Error, Result};
use crate::plan::{Mixed, Policy, Segment};
use crate::route::{Advice, Reason, THRESHOLD_MIN};
use crate::routes::{RouteEntry, RouteTable};

/// Submissions at a time: each is handed over at once.
const ENTRIES: u32 = 8;

/// Whether buffers are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Where the kernel does not copy them and it costs less.
    Adaptive,
    /// All from this size on, whatever it costs.
    From(usize),
    /// None.
    Never,
}

/// SendOptions an engine works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether buffers are lent.
    pub zero_copy: ZeroCopy,
    /// What becomes of small buffers beside a lent one.
    pub mixed: Mixed,
    /// Bytes that may be lent to the kernel at a time, all senders together; the rest is copied.
    pub borrowed_bytes_max: usize,
    /// Sends that may be lent at a time.
    pub borrowed_max: usize,
    /// Bytes of a buffer of [`Engine::buffer`].
    pub buffer_bytes: usize,
    /// SendOptions many there are.
    pub buffers: u32,
    /// Whether their memory is registered with the kernel: it counts as locked, and sends from it
    /// cost less.
    pub register: bool,
}

impl Default for Options {
    /// For some hundred connections that send files or messages: 6 MiB of buffers, which an
    /// ordinary user's limit of locked memory (8 MiB) has room for, and 256 MiB lent at most: 4
    /// MiB, the kernel's largest send buffer by default, for each of 64 peers.
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

/// From and to whom: what a route is known by. The port is 0.
pub(crate) type Ends = (IpAddr, SocketAddr);

/// What the senders on a route share.
pub(crate) type SharedRoute = Rc<RefCell<RouteEntry>>;

/// What a sender counts, also when a report comes after it is gone.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) account: Transfer,
    /// Sends whose memory the kernel still has.
    pub(crate) borrowed: usize,
}

/// A send whose notification is to come.
#[derive(Debug)]
struct PendingSend {
    tally: Rc<RefCell<Tally>>,
    route: SharedRoute,
    bytes: usize,
    probe: bool,
    /// It is copied, whatever the notification says.
    is_copied: bool,
}

/// What became of a send that was to go without a copy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ZeroCopySend {
    /// The kernel took so many bytes.
    Taken(usize),
    /// The socket has no room.
    NoRoom,
    /// It is to be copied; the reason is counted.
    Copy,
    /// It failed with this errno.
    Failed(i32),
}

/// The engine of a thread.
#[derive(Debug)]
pub struct Engine {
    ring: Option<Ring>,
    no_ring: Option<strait_sys::Error>,
    pool: Pool,
    /// What is left of the buffer in which small pieces are gathered.
    gathering: Option<BufMut>,
    options: Options,
    routes: RouteTable,
    /// By the token of the send.
    pending: Slab<PendingSend>,
    borrowed_bytes: usize,
}

impl Engine {
    /// An engine; without io_uring it copies, and [`Engine::no_zero_copy`] says why.
    ///
    /// # Errors
    /// No memory for the buffers.
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

    /// Memory that is not registered is lent all the same, for a little more: that it cannot be is
    /// no failure.
    fn register(&mut self) {
        if let Some(ring) = self.ring.as_mut().filter(|_| self.options.register) {
            self.no_ring = ring.register(&self.pool).err();
        }
    }

    /// Why nothing can be lent, or only memory that is not registered; `None` where all is well or
    /// nothing was asked for.
    pub fn no_zero_copy(&self) -> Option<&strait_sys::Error> {
        self.no_ring.as_ref()
    }

    /// A buffer to fill, from the memory that costs least to send; `None` while all are in use.
    pub fn buffer(&self) -> Option<BufMut> {
        self.pool.take()
    }

    /// Copies small pieces together, so that they can go as one, and be lent where that pays:
    /// headers, chunks' sizes, many short records. While no buffer has room for them they stand
    /// on the heap.
    pub fn gather<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>) -> Segment {
        let pieces = pieces.into_iter();
        let bytes = pieces.clone().map(<[u8]>::len).sum();
        match self.gather_in_buffer(pieces.clone(), bytes) {
            Some(view) => Segment::Shared(view),
            None => Segment::Bytes(pieces.collect::<Vec<_>>().concat().into()),
        }
    }

    /// The same of `bytes` bytes; none while no buffer has room.
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

    /// Bytes that are lent to the kernel now.
    pub fn borrowed_bytes(&self) -> usize {
        self.borrowed_bytes
    }

    /// What is known of the way between `ends`.
    pub(crate) fn route(&mut self, ends: Ends) -> SharedRoute {
        self.routes.find(ends)
    }

    /// Whether a buffer of `bytes` bytes is worth a closer look. What is short is never lent,
    /// whatever is known of the route.
    pub(crate) fn may_zero_copy(&self, bytes: usize, route: &SharedRoute) -> bool {
        let is_long = match self.options.zero_copy {
            ZeroCopy::From(least) => bytes >= least,
            ZeroCopy::Adaptive => bytes >= THRESHOLD_MIN,
            ZeroCopy::Never => false,
        };
        is_long && self.policy(route).is_zero_copy(bytes)
    }

    /// By what rule a plan for this route is cut into runs.
    pub(crate) fn policy(&self, route: &SharedRoute) -> Policy {
        let threshold = match self.options.zero_copy {
            _ if self.ring.is_none() => None,
            ZeroCopy::Never => None,
            ZeroCopy::From(bytes) => Some(bytes.max(1)),
            ZeroCopy::Adaptive => route.borrow_mut().threshold(now()),
        };
        Policy { threshold, mixed: self.options.mixed }
    }

    /// Whether a send of `bytes` is to be lent, and as a probe.
    fn advise(&self, bytes: usize, route: &SharedRoute, tally: &Rc<RefCell<Tally>>) -> Advice {
        match self.options.zero_copy {
            ZeroCopy::From(_) => Advice::ZeroCopy,
            ZeroCopy::Adaptive => route.borrow_mut().advise(bytes, now(), tally.borrow().borrowed == 0),
            ZeroCopy::Never => Advice::Copy,
        }
    }

    /// Sends `views` without a copy, if that is what the route is for; what happens to the bytes is
    /// the kernel's to say.
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
        // The report may be there that decides. Of a route that is decided the send itself takes the news.
        if !route.borrow().chooses_by_cost() {
            self.collect()?;
        }
        let advice = self.advise(bytes, route, tally);
        if advice == Advice::Copy || self.ring.is_none() {
            return Ok(ZeroCopySend::Copy);
        }
        let fits = self.borrowed_bytes + bytes <= self.options.borrowed_bytes_max;
        let Some(ring) = self.ring.as_mut().filter(|_| fits) else {
            return Ok(not_lent("as much is lent as may be", route, tally));
        };
        let began = route.borrow().wants_cost(bytes).then(thread_cpu_time);
        let probe = advice == Advice::Probe;
        // It stands here before the kernel knows of it: while its result is fetched, others come back.
        let is_copied = route.borrow().copies_silently();
        let (owner, known) = (tally.clone(), route.clone());
        let send =
            self.pending.insert(PendingSend { tally: owner, route: known, bytes: 0, probe, is_copied });
        tally.borrow_mut().borrowed += 1;
        let how = SendOptions { zero_copy: true, more, at_once: true, ..SendOptions::default() };
        if ring.push(socket, views, how, send as u64).is_err() {
            self.withdraw(send);
            return Ok(not_lent("as many sends are lent as may be", route, tally));
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

    /// Has the route know the device that it leaves by, where that is to be looked at. One that
    /// cannot be found is left to the probe.
    fn look_at_device(&self, (own, peer): Ends, route: &SharedRoute, tally: &RefCell<Tally>) {
        let now = now();
        let mut route = route.borrow_mut();
        if self.ring.is_none() || !route.needs_device_check(now) {
            return;
        }
        let egress = Egress::find(Some(own), peer).ok();
        let gathers = egress.as_ref().and_then(|egress| egress.gathers().ok()).unwrap_or(true);
        let mut may_be_loopback = true;
        if let Some(Egress { interface, is_local, .. }) = egress {
            route.set_interface(interface.index);
            may_be_loopback = is_local || interface.is_loopback();
        }
        route.set_device(gathers, may_be_loopback, now);
        if !gathers && self.options.zero_copy == ZeroCopy::Adaptive {
            tally.borrow_mut().account.fall_back(Reason::NoScatterGather.text());
        }
    }

    /// Takes back what the kernel did not take.
    fn withdraw(&mut self, send: usize) {
        self.pending.remove(send).tally.borrow_mut().borrowed -= 1;
    }

    /// Hands over what was pushed and returns the result of `token`, and whether a notification
    /// follows.
    fn submit(&mut self, token: u64) -> Result<(std::result::Result<usize, i32>, bool)> {
        // The socket does not block, so that the result is there at once; a full queue may hold it back.
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

    /// Enters the ring. One that the kernel does not serve any more is let go: what it still has in
    /// its queue would stand in the stream twice. All is copied from then on.
    fn enter(&mut self, want: usize, timeout: Duration) -> Result<()> {
        let Some(ring) = &mut self.ring else { unreachable!("whoever enters it has seen it") };
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
            // It was refused or found no room: the report says nothing.
            (true, 0) => route.abandon(),
            (true, _) => route.probed(copied, now()),
            (false, 0) => {}
            (false, _) => route.reported(copied),
        }
    }

    /// Takes the notifications that have come: memory is returned, routes learn. It costs next to
    /// nothing where none has.
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

    /// Wait until `socket` is as the flags say or, without one, until notifications have come or
    /// none is to come. Takes those that have. Returns whether what was waited for came before
    /// the timeout.
    ///
    /// # Errors
    /// poll(2)'s and io_uring_enter(2)'s.
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

    /// The descriptor that tells of notifications between [`Engine::listen`] and [`Engine::quiet`],
    /// for whoever waits with a reactor and not with [`Engine::wait`]; `None` where nothing can
    /// be lent. It is to be polled, not read.
    ///
    /// Level-triggered (poll(2)) it is readable until `quiet`: listen, wait, be quiet, collect.
    /// Edge-triggered (`EPOLLET`) there is an edge for what comes after each `listen`, which
    /// takes what came before: listen after each edge, and be quiet when nobody waits any more.
    /// Where several wait on one descriptor, `quiet` takes an edge from those who have not seen
    /// it.
    pub fn notifications(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().map(AsFd::as_fd)
    }

    /// Takes the notifications that have come, and has [`Engine::notifications`] tell of those to
    /// come until [`Engine::quiet`] or the end of a [`Engine::wait`]. Returns whether any are
    /// to come.
    ///
    /// # Errors
    /// io_uring_enter(2)'s.
    pub fn listen(&mut self) -> Result<bool> {
        let Some(ring) = self.ring.as_mut().filter(|ring| ring.borrowed() > 0) else { return Ok(false) };
        ring.listen();
        // What came before is not told of.
        self.collect()?;
        Ok(!self.pending.is_empty())
    }

    /// Ends what [`Engine::listen`] began, and has the descriptor not be readable. While it listens
    /// every send that is lent costs a signal more. Notifications that were told of are still
    /// to be collected.
    pub fn quiet(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.quiet();
        }
    }
}

/// Wait for one descriptor; true unless the time was over first.
fn poll_one(fd: PollFd<'_>, timeout: Duration) -> Result<bool> {
    match poll(&mut [fd], Timespec::try_from(timeout).ok().as_ref()) {
        Ok(ready) => Ok(ready > 0),
        // A signal: whoever waits looks at what it changed.
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(Error::os("wait for", "a socket", error)),
    }
}

/// What the result of a lent send of `bytes` says of its route; `lost` says that a probe will have
/// no report, `began` that its cost is wanted.
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

/// A send for which there is no room beside those that are lent; a probe that did not take place
/// tells nothing.
fn not_lent(reason: &'static str, route: &SharedRoute, tally: &RefCell<Tally>) -> ZeroCopySend {
    route.borrow_mut().abandon();
    tally.borrow_mut().account.fall_back(reason);
    ZeroCopySend::Copy
}

/// What a sender is to do after a result.
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

/// errno(3) by the kernel's own numbers, which io_uring returns.
mod errno {
    use rustix::io::Errno;

    pub(super) const AGAIN: i32 = Errno::AGAIN.raw_os_error();
    pub(super) const INVAL: i32 = Errno::INVAL.raw_os_error();
    pub(super) const NOBUFS: i32 = Errno::NOBUFS.raw_os_error();
    pub(super) const NOMEM: i32 = Errno::NOMEM.raw_os_error();
    pub(super) const OPNOTSUPP: i32 = Errno::OPNOTSUPP.raw_os_error();
}
