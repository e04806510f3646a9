//! io_uring that sends, with and without a copy (io_uring_enter(2), `IORING_OP_SEND`, `SEND_ZC`,
//! `SENDMSG_ZC`).
//!
//! One thread drives many sockets. An operation owns the socket until the result, and the views of
//! the bytes until the kernel no longer reads them: for a zero-copy send, until the *notification*,
//! which for TCP comes after the peer's acknowledgement. The code relies on this behaviour of Linux
//! 6.18, which the tests check:
//!
//! - EPIPE, EBADF, EFAULT and EMSGSIZE come with MORE, and a notification follows;
//! - a zero-copy operation of a cancelled link has ECANCELED without MORE, and a notification
//!   follows nevertheless;
//! - notifications of one socket come in any order;
//! - closing the ring stops no transmission: the kernel reads pages until the last packet is
//!   acknowledged.
//!
//! The callers decide about plans, routes and thresholds.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};

use super::slots::{Key, ResultEffect, Slots};
use crate::buffer::{Frozen, Pool};
use crate::error::{Error, Kind, Result};

/// `IORING_SEND_ZC_REPORT_USAGE` and `IORING_NOTIF_USAGE_ZC_COPIED` (linux/io_uring.h; Linux 6.2).
const REPORT_USAGE: u16 = 1 << 3;
const USAGE_COPIED: u32 = 1 << 31;
/// `IORING_RECVSEND_FIXED_BUF` (linux/io_uring.h): the memory is registered, here as buffer 0.
const FIXED_BUFFER: u16 = 1 << 2;

/// Pause before the next attempt if the kernel has no memory for a request.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// Maximum number of views of an operation (`UIO_MAXIOV`, linux/uio.h).
pub const VIEWS_MAX: usize = 1024;

/// Options of a send operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent flag of the kernel")]
pub struct SendOptions {
    /// Send from the pages without a copy if the kernel can.
    pub zero_copy: bool,
    /// More data follows at once: do not send a short packet yet (`MSG_MORE`).
    pub more: bool,
    /// Send all bytes or fail (`MSG_WAITALL`).
    pub wait_all: bool,
    /// Send as much as the socket buffer takes, or fail with EAGAIN; the result comes with the next
    /// [`Ring::enter`] (`MSG_DONTWAIT`; `O_NONBLOCK` on the socket is not enough).
    pub dont_wait: bool,
    /// Start the next pushed operation when this one has completed (`IOSQE_IO_LINK`). Implies
    /// `wait_all`: after a partial send, the next operation's bytes would be in the wrong position.
    pub linked: bool,
}

/// Completion of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The kernel accepted bytes or failed with an errno.
    Sent {
        /// Token passed to [`Ring::push`].
        token: u64,
        /// Number of bytes, or the errno.
        result: std::result::Result<usize, i32>,
        /// True if the kernel still reads the bytes; [`Event::Returned`] follows.
        borrowed: bool,
    },
    /// The kernel no longer reads the bytes.
    Returned {
        /// Token passed to [`Ring::push`].
        token: u64,
        /// True if some bytes were copied after all. Meaningless if the result was an error.
        copied: bool,
    },
}

/// Error of [`Ring::push`]: no free slot, or the submission queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Resources that the kernel uses while an operation runs.
#[derive(Debug)]
struct Operation {
    token: u64,
    /// Open until the result. From then on the packets hold the pages, and the socket may close.
    socket: Option<Arc<OwnedFd>>,
    views: Views,
}

#[derive(Debug)]
enum Views {
    One(Frozen),
    /// Boxed, because the kernel needs an address that does not change.
    Many(Box<Message>),
}

/// A message header with the vectors and views that it points to.
struct Message {
    header: libc::msghdr,
    vectors: Vec<libc::iovec>,
    views: Vec<Frozen>,
}

// SAFETY: the pointers point at data that the message itself owns.
unsafe impl Send for Message {}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Message").field(&self.views).finish()
    }
}

impl Message {
    fn boxed(views: &[Frozen]) -> Box<Self> {
        let views = views.to_vec();
        let vectors = views
            .iter()
            .map(|view| libc::iovec { iov_base: view.as_ptr().cast_mut().cast(), iov_len: view.len() })
            .collect();
        // SAFETY: msghdr is plain data, for which zeroes are valid.
        let header = unsafe { std::mem::zeroed() };
        let mut message = Box::new(Self { header, vectors, views });
        message.header.msg_iov = message.vectors.as_mut_ptr();
        message.header.msg_iovlen = message.vectors.len() as _;
        message
    }
}

impl Views {
    fn as_slice(&self) -> &[Frozen] {
        match self {
            Self::One(view) => std::slice::from_ref(view),
            Self::Many(message) => &message.views,
        }
    }
}

/// An io_uring for sends. Only the thread that made it may enter it (`IORING_SETUP_SINGLE_ISSUER`).
pub struct Ring {
    uring: IoUring,
    signal: OwnedFd,
    slots: Slots<Operation>,
    registered: Option<Pool>,
    /// True if messages of several views may use registered memory (Linux 6.15).
    registered_messages: bool,
    stale: u64,
    /// Fault injection for a test: release the memory with the result, before the notification.
    #[cfg(test)]
    returns_early: bool,
    _one_thread: PhantomData<*const ()>,
}

impl Ring {
    /// Sets up a ring of `entries` submissions, with at most `slots` operations in progress.
    ///
    /// # Errors
    /// [`Kind::Refused`] if io_uring is missing or forbidden, or does not report usage (before
    /// Linux 6.2); see the remedy.
    pub fn new(entries: u32, slots: usize) -> Result<Self> {
        let mut uring =
            set_up(entries).map_err(|error| super::explain(Error::from_io("set up", "io_uring", &error)))?;
        let failed = |error: rustix::io::Errno| Error::from_io("make", "an eventfd", &error.into());
        let signal = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(failed)?;
        let registered = uring.submitter().register_eventfd(signal.as_raw_fd());
        registered.map_err(|error| Error::from_io("register an eventfd with", "io_uring", &error))?;
        uring.completion().disable_eventfd();
        let mut ring = Self {
            uring,
            signal,
            slots: Slots::new(slots),
            registered: None,
            registered_messages: false,
            stale: 0,
            #[cfg(test)]
            returns_early: false,
            _one_thread: PhantomData,
        };
        if ring.reports_usage()? {
            return Ok(ring);
        }
        let error = Error::new(
            Kind::Refused,
            "send without a copy with",
            "io_uring",
            "this kernel does not report if it copied",
        );
        Err(error.remedy("needs Linux 6.2 or newer"))
    }

    /// Registers the memory of `pool`, so that sends from it find their pages pinned. A ring
    /// registers one pool at most.
    ///
    /// # Errors
    /// ENOMEM beyond the locked-memory limit; without CAP_IPC_LOCK that is `ulimit -l`.
    pub fn register(&mut self, pool: &Pool) -> Result<()> {
        let (start, len) = pool.extent();
        let extent = libc::iovec { iov_base: start.cast(), iov_len: len };
        // SAFETY: the ring holds the pool, and so the mapping, for as long as it lives.
        unsafe { self.uring.submitter().register_buffers(&[extent]) }.map_err(|error| {
            let error = Error::from_io("register", format!("{len} bytes of buffers"), &error);
            if error.errno() == Some(libc::ENOMEM) { error.remedy("raise ulimit -l") } else { error }
        })?;
        self.registered = Some(pool.clone());
        self.registered_messages = self.accepts_registered_messages()?;
        Ok(())
    }

    /// Returns true if the kernel accepts a message of registered memory. The kernel checks the
    /// flag before it reads the message, so the probe passes a null message.
    fn accepts_registered_messages(&mut self) -> Result<bool> {
        let send = opcode::SendMsgZc::new(Fd(-1), std::ptr::null()).ioprio(FIXED_BUFFER);
        Ok(matches!(self.probe(send.build())?, libc::EFAULT | libc::EBADF))
    }

    /// Returns true if the kernel reports copies (Linux 6.2). The kernel checks the flag before it
    /// checks the socket, so the probe passes an invalid descriptor.
    fn reports_usage(&mut self) -> Result<bool> {
        let send = opcode::SendZc::new(Fd(-1), std::ptr::null(), 0).zc_flags(REPORT_USAGE);
        Ok(self.probe(send.build())? == libc::EBADF)
    }

    /// Submits an operation that must fail and returns its errno.
    fn probe(&mut self, entry: squeue::Entry) -> Result<i32> {
        const NO_SLOT: u64 = u64::MAX;
        let failed = |error: std::io::Error| Error::from_io("probe a send with", "io_uring", &error);
        // SAFETY: the operation has neither socket nor memory.
        let pushed = unsafe { self.uring.submission().push(&entry.user_data(NO_SLOT)) };
        pushed.map_err(|_| failed(rustix::io::Errno::BUSY.into()))?;
        self.uring.submit_and_wait(1).map_err(failed)?;
        let results = self.uring.completion().filter(|entry| !cqueue::notif(entry.flags()));
        Ok(results.last().map_or(0, |entry| -entry.result()))
    }

    fn is_registered(&self, views: &[Frozen]) -> bool {
        self.registered.as_ref().is_some_and(|pool| views.iter().all(|view| view.is_in(pool)))
    }

    /// Makes the descriptor readable on completions from now on, until [`Ring::disable_signal`].
    /// Call it only before a wait: a signal for each completion costs as much as a small send.
    /// Earlier completions do not signal: enter the ring and take them before waiting for the
    /// descriptor.
    pub fn enable_signal(&mut self) {
        self.uring.completion().enable_eventfd();
        // Pairs with the kernel's read of the flag: a completion written before that read is seen
        // by the next check of the queue.
        fence(Ordering::SeqCst);
    }

    /// Disables the signals of [`Ring::enable_signal`]. Call it before taking the completions, so
    /// that none is missed.
    pub fn disable_signal(&mut self) {
        self.uring.completion().disable_eventfd();
        let mut count = [0; size_of::<u64>()];
        // The descriptor does not block: without a signal the read fails at once.
        let _ = rustix::io::read(&self.signal, &mut count);
    }

    /// Returns the number of operations with a result or a notification outstanding.
    pub fn in_progress(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of operations that have a result, but memory that the kernel still reads.
    pub fn borrowed(&self) -> usize {
        self.slots.borrowed()
    }

    /// Returns the number of notifications for finished operations (cancelled links).
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// Queues one operation that sends all `views` in order. The kernel sees it with the next
    /// [`Ring::enter`].
    ///
    /// # Errors
    /// [`Full`] if no slot is free or the submission queue is full: enter, take events, try again.
    ///
    /// # Panics
    /// If `views` is empty or has more than [`VIEWS_MAX`] elements.
    pub fn push(
        &mut self,
        socket: &Arc<OwnedFd>,
        views: &[Frozen],
        options: SendOptions,
        token: u64,
    ) -> Result<(), Full> {
        assert!((1..=VIEWS_MAX).contains(&views.len()), "an operation carries 1 to {VIEWS_MAX} views");
        if self.uring.submission().is_full() {
            return Err(Full);
        }
        let views = match views {
            [view] => Views::One(view.clone()),
            views => Views::Many(Message::boxed(views)),
        };
        let operation = Operation { token, socket: Some(socket.clone()), views };
        let key = self.slots.insert(operation).map_err(|_| Full)?;
        let entry = self.entry(socket, key, options).user_data(key.user_data());
        let flags = if options.linked { squeue::Flags::IO_LINK } else { squeue::Flags::empty() };
        // SAFETY: the slot owns the socket, the bytes and the header until the kernel has finished
        // with them. If the ring is dropped before that, it marks the bytes as never writable
        // again.
        let pushed = unsafe { self.uring.submission().push(&entry.flags(flags)) };
        pushed.expect("the queue had room, and only this thread fills it");
        Ok(())
    }

    fn entry(&self, socket: &OwnedFd, key: Key, options: SendOptions) -> squeue::Entry {
        let fd = Fd(socket.as_raw_fd());
        let flags = libc::MSG_NOSIGNAL
            | if options.more { libc::MSG_MORE } else { 0 }
            | if options.wait_all || options.linked { libc::MSG_WAITALL } else { 0 }
            | if options.dont_wait { libc::MSG_DONTWAIT } else { 0 };
        match &self.slots.get(key).expect("the operation was just inserted").views {
            Views::One(view) if options.zero_copy => {
                let fixed = self.is_registered(std::slice::from_ref(view)).then_some(0);
                let send = opcode::SendZc::new(fd, view.as_ptr(), len_of(view));
                send.buf_index(fixed).flags(flags).zc_flags(REPORT_USAGE).build()
            }
            Views::One(view) => opcode::Send::new(fd, view.as_ptr(), len_of(view)).flags(flags).build(),
            Views::Many(message) if options.zero_copy => {
                let registered = self.registered_messages && self.is_registered(&message.views);
                let options = REPORT_USAGE | if registered { FIXED_BUFFER } else { 0 };
                let send = opcode::SendMsgZc::new(fd, &raw const message.header);
                send.flags(flags as u32).ioprio(options).build()
            }
            Views::Many(message) => {
                opcode::SendMsg::new(fd, &raw const message.header).flags(flags as u32).build()
            }
        }
    }

    /// Submits the queued operations and waits for `want` completions, a signal or the timeout.
    /// With 0 it does not wait, but runs the completion work that the kernel deferred.
    pub fn enter(&mut self, want: usize, timeout: Duration) -> Result<()> {
        let entered = if want == 0 {
            self.uring.submit()
        } else {
            let time = Timespec::from(timeout);
            self.uring.submitter().submit_with_args(want, &SubmitArgs::new().timespec(&time))
        };
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The timeout expired, a signal came, or the completion queue must be emptied
                // first.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY) => Ok(()),
                // No memory for a request: it stays in the queue until the next call.
                Some(libc::EAGAIN) => {
                    crate::wait::sleep(NO_MEMORY_PAUSE);
                    Ok(())
                }
                _ => Err(Error::from_io("enter", "io_uring", &error)),
            },
        }
    }

    /// Returns true if completions have come, or the ring must be entered to get them. Makes no
    /// system call.
    pub fn has_completions(&mut self) -> bool {
        if self.in_progress() == 0 {
            return false;
        }
        let queue = self.uring.submission();
        let must_enter = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        must_enter || !self.uring.completion().is_empty()
    }

    /// Takes the next completion from the queue.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            let entry = self.uring.completion().next()?;
            if let Some(event) = self.event(&entry) {
                return Some(event);
            }
        }
    }

    fn event(&mut self, entry: &cqueue::Entry) -> Option<Event> {
        let key = Key::from_user_data(entry.user_data());
        if cqueue::notif(entry.flags()) {
            let copied = entry.result() as u32 & USAGE_COPIED != 0;
            let known = self.slots.get(key).is_some();
            self.stale += u64::from(!known);
            let operation = self.slots.record_notification(key)?;
            return Some(Event::Returned { token: operation.token, copied });
        }
        let operation = self.slots.get_mut(key)?;
        operation.socket = None;
        let token = operation.token;
        let result = usize::try_from(entry.result()).map_err(|_| -entry.result());
        let more = cqueue::more(entry.flags());
        #[cfg(test)]
        let more = more && !self.returns_early;
        let borrowed = match self.slots.record_result(key, more)? {
            ResultEffect::InUse => true,
            ResultEffect::Released(_) => false,
        };
        Some(Event::Sent { token, result, borrowed })
    }
}

/// Readable when completions have come between [`Ring::enable_signal`] and
/// [`Ring::disable_signal`], for poll(2). The descriptor is an eventfd(2): polling the ring's own
/// descriptor does not return for work that the kernel defers until the ring is entered.
impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

impl Drop for Ring {
    /// Marks the memory in use as never writable again: the kernel may still read it after the ring
    /// is closed, and no notification reports the end.
    fn drop(&mut self) {
        for operation in self.slots.values() {
            operation.views.as_slice().iter().for_each(Frozen::retire);
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("in_progress", &self.in_progress())
            .field("borrowed", &self.borrowed())
            .finish()
    }
}

/// Returns the number of bytes of a view that one operation sends; the kernel has this limit too
/// (`MAX_RW_COUNT`).
fn len_of(view: &Frozen) -> u32 {
    view.len().min(i32::MAX as usize) as u32
}

/// Sets up the ring, with completion work deferred until it is entered where the kernel can (Linux
/// 6.1).
fn set_up(entries: u32) -> std::io::Result<IoUring> {
    let mut modern = IoUring::builder();
    modern.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_clamp();
    match modern.build(entries) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().setup_clamp().build(entries)
        }
        built => built,
    }
}

#[cfg(test)]
mod tests;
