//! Sends plans on one connection in order, each part by the cheapest mechanism.
//!
//! Only [`Sender::send`] and [`Sender::finish`] wait. [`Sender::advance`] moves bytes without
//! waiting and returns the event to wait for, so that one thread serves many senders. The kernel
//! keeps the buffers of zero-copy sends until their notifications, even if the sender is dropped
//! before.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use strait_ledger::Transfer;

use crate::engine::{Engine, Tally};
use crate::error::{Error, Result};
use crate::pipe::Pipes;
use crate::plan::{Plan, Run};
use crate::routes::{Ends, SharedRoute};
use crate::run::{Current, Destination, Step};

/// Limit of calls in one [`Sender::advance`], so that one connection does not starve the others.
const STEPS_MAX: usize = 64;

/// Event that a sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing: the kernel has accepted all plans.
    Idle,
    /// Nothing, but other senders should run first.
    Yield,
    /// Space in the socket buffer.
    Room,
    /// Bytes from the source of the current run.
    Input,
}

/// Connection for sending plans.
#[derive(Debug)]
pub struct Sender {
    link: Link,
    runs: VecDeque<Run>,
    current: Option<Current>,
    pipes: Pipes,
    began: Option<Instant>,
}

/// Connection of a sender, with its route and its counters.
#[derive(Debug)]
struct Link {
    socket: Arc<OwnedFd>,
    peer: String,
    /// Key of its route, and the route.
    ends: Ends,
    route: Option<SharedRoute>,
    tally: Rc<RefCell<Tally>>,
}

impl Link {
    /// Returns the route, which is looked up once.
    fn route(&mut self, engine: &mut Engine) -> &SharedRoute {
        self.route.get_or_insert_with(|| engine.route(self.ends))
    }

    /// Returns the destination of a call; `more` means that another run follows at once.
    fn destination(&mut self, engine: &mut Engine, more: bool) -> Destination<'_> {
        let route = self.route.get_or_insert_with(|| engine.route(self.ends));
        Destination {
            socket: &self.socket,
            peer: &self.peer,
            ends: self.ends,
            route,
            tally: &self.tally,
            more,
        }
    }
}

impl Sender {
    /// Creates a sender on a connected stream, and makes the stream non-blocking.
    ///
    /// # Errors
    /// If the socket is not connected.
    pub fn new(stream: TcpStream) -> Result<Self> {
        let failed = |error: std::io::Error| Error::os("send on", "a socket", error);
        stream.set_nonblocking(true).map_err(failed)?;
        let peer = stream.peer_addr().map_err(failed)?;
        let mut host = peer;
        host.set_port(0);
        let ends = (stream.local_addr().map_err(failed)?.ip(), host);
        let socket = Arc::new(stream.into());
        let link = Link { socket, peer: peer.to_string(), ends, route: None, tally: Rc::default() };
        Ok(Self { link, runs: VecDeque::new(), current: None, pipes: Pipes::default(), began: None })
    }

    /// Appends a plan to the unsent ones.
    pub fn push(&mut self, engine: &mut Engine, plan: Plan) {
        self.began.get_or_insert_with(Instant::now);
        let route = self.link.route(engine);
        let policy = engine.policy(route);
        plan.append_runs(&policy, &mut self.runs);
    }

    /// Moves bytes as far as possible without waiting.
    ///
    /// # Errors
    /// If the connection is closed, or a file or socket ends early. The unsent rest stays queued; a
    /// stream that breaks off in the middle is useless.
    pub fn advance(&mut self, engine: &mut Engine) -> Result<Progress> {
        for _ in 0..STEPS_MAX {
            let Some(current) = &mut self.current else {
                let Some(run) = self.runs.pop_front() else { return Ok(Progress::Idle) };
                let (current, rest) = Current::begin(run, engine, &self.link.tally);
                self.current = Some(current);
                if let Some(rest) = rest {
                    self.runs.push_front(rest);
                }
                continue;
            };
            // A zero-copy send collects notifications itself.
            if !current.is_zero_copy() {
                engine.collect()?;
            }
            // It is unknown when a stream will have bytes, so it must not hold a short packet back.
            let more = self.runs.front().is_some_and(|next| !matches!(next, Run::Socket(_)));
            let to = self.link.destination(engine, more);
            match current.step(engine, &mut self.pipes, &to)? {
                Step::Done => self.current = None,
                Step::Moved => {}
                Step::NoRoom => return Ok(Progress::Room),
                Step::NoInput => return Ok(Progress::Input),
            }
        }
        Ok(Progress::Yield)
    }

    /// Returns the descriptor and events to wait for with poll(2) after `Room` or `Input`.
    pub fn waits_for(&self, progress: Progress) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match progress {
            Progress::Idle | Progress::Yield => None,
            Progress::Room => Some((self.link.socket.as_fd(), PollFlags::OUT)),
            Progress::Input => self.current.as_ref().and_then(Current::input),
        }
    }

    /// Sends a plan and waits until the kernel has accepted all of it. It may still use the buffers
    /// then.
    ///
    /// # Errors
    /// Those of [`Sender::advance`]; [`Error::Timeout`] if the peer accepts no bytes for `timeout`.
    pub fn send(&mut self, engine: &mut Engine, plan: Plan, timeout: Duration) -> Result<()> {
        self.begin(engine, plan)?;
        let mut stalled: Option<(u64, Instant)> = None;
        loop {
            let progress = self.advance(engine)?;
            match progress {
                Progress::Idle => return Ok(()),
                Progress::Yield => {}
                Progress::Room | Progress::Input => {
                    let bytes = self.link.tally.borrow().account.bytes();
                    let since = match stalled {
                        Some((at, since)) if at == bytes => since,
                        _ => Instant::now(),
                    };
                    stalled = Some((bytes, since));
                    let left = timeout.saturating_sub(since.elapsed());
                    if left.is_zero() {
                        return Err(Error::Timeout { operation: "send", limit: timeout });
                    }
                    engine.wait(self.waits_for(progress), left)?;
                }
            }
        }
    }

    /// Appends a plan or, if it has one segment and nothing is queued, sends it directly. Most
    /// plans have one segment: for a short one the runs and their queue would cost a tenth of the
    /// send.
    fn begin(&mut self, engine: &mut Engine, plan: Plan) -> Result<()> {
        let is_idle = self.current.is_none() && self.runs.is_empty();
        let Some(segment) = plan.only().filter(|_| is_idle) else {
            self.push(engine, plan);
            return Ok(());
        };
        self.began.get_or_insert_with(Instant::now);
        let to = self.link.destination(engine, false);
        if let Some(rest) = Current::begin_at_once(segment, engine, &to)? {
            self.current = Some(rest);
        }
        Ok(())
    }

    /// Returns the number of zero-copy sends with buffers that the kernel still uses.
    pub fn borrowed(&self) -> usize {
        self.link.tally.borrow().borrowed
    }

    /// Waits until the kernel has released every buffer, which is when the peer has acknowledged
    /// the bytes, or until `timeout` is over. Returns the number of sends that are still
    /// outstanding.
    ///
    /// # Errors
    /// Those of poll(2) and io_uring_enter(2).
    pub fn finish(&mut self, engine: &mut Engine, timeout: Duration) -> Result<usize> {
        let began = Instant::now();
        engine.collect()?;
        while self.borrowed() > 0 && began.elapsed() < timeout {
            engine.wait(None, timeout.saturating_sub(began.elapsed()))?;
        }
        Ok(self.borrowed())
    }

    /// Returns the sent bytes by mechanism. Reports change the account until none is outstanding.
    pub fn account(&self) -> Transfer {
        let mut account = self.link.tally.borrow().account.clone();
        if let Some(began) = self.began {
            account.set_elapsed(began.elapsed());
        }
        account
    }

    /// Returns the address of the peer.
    pub fn peer(&self) -> &str {
        &self.link.peer
    }

    /// Returns the socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.link.socket.as_fd()
    }
}
