//! Sends plans on one connection, each part by the mechanism that costs least, in order.
//!
//! A sender does not wait unless it is asked to ([`Sender::send`], [`Sender::finish`]):
//! [`Sender::advance`] moves what can be moved and says what to wait for, so that one thread serves
//! many. Buffers that are lent stay the kernel's until their notification, also when the sender is
//! dropped before.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use strait_ledger::Transfer;

use crate::engine::{Ends, Engine, SharedRoute, Tally};
use crate::error::{Error, Result};
use crate::pipe::Pipes;
use crate::plan::{Plan, Run};
use crate::run::{Current, Destination, Step};

/// Calls that one [`Sender::advance`] makes at most, so that one connection does not starve the
/// others.
const STEPS_MAX: usize = 64;

/// What a sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing: all plans are handed over to the kernel.
    Idle,
    /// Nothing, but it is another's turn.
    Yield,
    /// Room in its socket.
    Room,
    /// Bytes from the socket that it reads from.
    Input,
}

/// A connection that plans are sent on.
#[derive(Debug)]
pub struct Sender {
    socket: Arc<OwnedFd>,
    peer: String,
    /// What its route is known by, and then the route.
    ends: Ends,
    route: Option<SharedRoute>,
    runs: VecDeque<Run>,
    current: Option<Current>,
    pipes: Pipes,
    tally: Rc<RefCell<Tally>>,
    began: Option<Instant>,
}

impl Sender {
    /// A sender on a connected stream, which does not block from now on.
    ///
    /// # Errors
    /// The socket is not connected.
    pub fn new(stream: TcpStream) -> Result<Self> {
        let failed = |error: std::io::Error| Error::os("send on", "a socket", error);
        stream.set_nonblocking(true).map_err(failed)?;
        let peer = stream.peer_addr().map_err(failed)?;
        let mut host = peer;
        host.set_port(0);
        let ends = (stream.local_addr().map_err(failed)?.ip(), host);
        Ok(Self {
            socket: Arc::new(stream.into()),
            peer: peer.to_string(),
            ends,
            route: None,
            runs: VecDeque::new(),
            current: None,
            pipes: Pipes::default(),
            tally: Rc::default(),
            began: None,
        })
    }

    /// Puts a plan behind those that are not yet sent.
    pub fn push(&mut self, engine: &mut Engine, plan: Plan) {
        self.began.get_or_insert_with(Instant::now);
        let route = self.route.get_or_insert_with(|| engine.route(self.ends));
        let policy = engine.policy(route);
        plan.append_runs(&policy, &mut self.runs);
    }

    /// Moves what can be moved without waiting.
    ///
    /// # Errors
    /// The connection is closed, or a file or socket ended early. What was planned and not sent
    /// stays so; a stream that broke off in the middle is of no use.
    pub fn advance(&mut self, engine: &mut Engine) -> Result<Progress> {
        for _ in 0..STEPS_MAX {
            let Some(current) = &mut self.current else {
                let Some(run) = self.runs.pop_front() else { return Ok(Progress::Idle) };
                let (current, rest) = Current::begin(run, engine, &self.tally);
                self.current = Some(current);
                if let Some(rest) = rest {
                    self.runs.push_front(rest);
                }
                continue;
            };
            // What is lent takes the news by itself.
            if !current.is_zero_copy() {
                engine.collect()?;
            }
            // Of a stream nobody knows when it goes on.
            let more = self.runs.front().is_some_and(|next| !matches!(next, Run::Socket(_)));
            let route = self.route.get_or_insert_with(|| engine.route(self.ends));
            let to = Destination {
                socket: &self.socket,
                peer: &self.peer,
                ends: self.ends,
                route,
                tally: &self.tally,
                more,
            };
            match current.step(engine, &mut self.pipes, &to)? {
                Step::Done => self.current = None,
                Step::Moved => {}
                Step::NoRoom => return Ok(Progress::Room),
                Step::NoInput => return Ok(Progress::Input),
            }
        }
        Ok(Progress::Yield)
    }

    /// What to wait for with poll(2), where [`Sender::advance`] said `Room` or `Input`.
    pub fn waits_for(&self, progress: Progress) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match progress {
            Progress::Idle | Progress::Yield => None,
            Progress::Room => Some((self.socket.as_fd(), PollFlags::OUT)),
            Progress::Input => self.current.as_ref().and_then(Current::input),
        }
    }

    /// Sends a plan and waits until the kernel has taken all of it. Buffers may still be lent then.
    ///
    /// # Errors
    /// Those of [`Sender::advance`]; late if the peer takes nothing for `patience`.
    pub fn send(&mut self, engine: &mut Engine, plan: Plan, patience: Duration) -> Result<()> {
        self.begin(engine, plan)?;
        let mut stalled: Option<(u64, Instant)> = None;
        loop {
            let progress = self.advance(engine)?;
            match progress {
                Progress::Idle => return Ok(()),
                Progress::Yield => {}
                Progress::Room | Progress::Input => {
                    let bytes = self.tally.borrow().account.bytes();
                    let since = match stalled {
                        Some((at, since)) if at == bytes => since,
                        _ => Instant::now(),
                    };
                    stalled = Some((bytes, since));
                    let left = patience.saturating_sub(since.elapsed());
                    if left.is_zero() {
                        return Err(Error::Timeout { operation: "send", limit: patience });
                    }
                    engine.wait(self.waits_for(progress), left)?;
                }
            }
        }
    }

    /// Puts a plan behind the others or, where it is one segment and nothing is before it, sends
    /// what the kernel takes at once. Most plans are: of a short one the runs and their queue
    /// would cost a tenth of the send.
    fn begin(&mut self, engine: &mut Engine, plan: Plan) -> Result<()> {
        let is_idle = self.current.is_none() && self.runs.is_empty();
        let Some(segment) = plan.only().filter(|_| is_idle) else {
            self.push(engine, plan);
            return Ok(());
        };
        self.began.get_or_insert_with(Instant::now);
        let route = self.route.get_or_insert_with(|| engine.route(self.ends));
        let to = Destination {
            socket: &self.socket,
            peer: &self.peer,
            ends: self.ends,
            route,
            tally: &self.tally,
            more: false,
        };
        if let Some(rest) = Current::begin_at_once(segment, engine, &to)? {
            self.current = Some(rest);
        }
        Ok(())
    }

    /// Buffers that the kernel has not given back.
    pub fn borrowed(&self) -> usize {
        self.tally.borrow().borrowed
    }

    /// Wait until every lent buffer is back, which is when the peer has acknowledged, or
    /// `patience` is over. Returns how many are not.
    ///
    /// # Errors
    /// poll(2)'s and io_uring_enter(2)'s.
    pub fn finish(&mut self, engine: &mut Engine, patience: Duration) -> Result<usize> {
        let began = Instant::now();
        engine.collect()?;
        while self.borrowed() > 0 && began.elapsed() < patience {
            engine.wait(None, patience.saturating_sub(began.elapsed()))?;
        }
        Ok(self.borrowed())
    }

    /// What was sent so far, by which mechanism. Reports change it until nothing is lent.
    pub fn account(&self) -> Transfer {
        let mut account = self.tally.borrow().account.clone();
        if let Some(began) = self.began {
            account.set_elapsed(began.elapsed());
        }
        account
    }

    /// Who is sent to.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
