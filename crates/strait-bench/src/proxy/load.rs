//! Client of the proxy benchmark: many connections on one thread, closed loop or open loop, with
//! every response checked.
//!
//! Requests each repeated object once, runs for the warm-up time, and then measures: response
//! times, its own and the origin's counters, and the CPU time of the watched process, all over the
//! same interval. It is started through `strait bench load`.

mod exchange;
mod h2load;

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use serde::{Deserialize, Serialize};
use strait_ledger::Histogram;

use super::origin::Count;
use super::workload::{Http2, Workload};
use super::{fetch, tree};
use crate::child;
use crate::error::{Error, Result};
use exchange::{Exchange, Outcome, Pending, Tools};

/// One long body in this many is compared with the expected bytes.
const SAMPLE: u64 = 16;
/// Limit of wrong responses; one more ends the run.
const ERRORS_MAX: u64 = 1000;
/// Time without any response after which the run ends.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Time that an open loop waits at its end for outstanding responses.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Events taken in one call.
const EVENTS: usize = 256;
/// Interval between two checks of the termination flag.
const TICK: Duration = Duration::from_millis(100);
/// Key of the timer; connections use their index.
const TIMER: u64 = u64::MAX;

/// Options of the client.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of the measured program.
    pub to: SocketAddr,
    /// Address of the origin, for its counters.
    pub origin: SocketAddr,
    /// Requests to make.
    pub workload: Workload,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub time: Duration,
    /// Measured process, with all its descendants.
    pub watch: u32,
    /// Compare every body with the expected bytes, not only small ones and a sample of the others.
    pub verify_all: bool,
    /// Open a tunnel to the origin by CONNECT on each connection.
    pub connects: bool,
    /// Measure HTTP/2 at this address. The repeated objects are requested over HTTP/1.1.
    pub http2: Option<(SocketAddr, Http2)>,
}

/// Figures of the client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Account {
    /// Measured time.
    pub seconds: f64,
    /// Requests that were answered in that time.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Requests with a compared body; of all others only the length is checked.
    pub verified: u64,
    /// The origin's counters over that time.
    pub origin: Count,
    /// Response times in nanoseconds: median, 90th and 99th percentile, maximum. In an open loop
    /// they start when the request was due.
    pub response_ns: [u64; 4],
    /// Requests of an open loop that were due and not answered at its end.
    pub unanswered: u64,
    /// Wrong responses and broken connections, including those before the measurement.
    pub errors: u64,
    /// Message of the first error.
    pub first_error: String,
    /// CPU time of the watched processes.
    pub cpu_s: f64,
    /// Sum of the peak memory of the watched processes, in bytes.
    pub memory_bytes: u64,
}

/// Runs the load and prints the [`Account`].
///
/// # Errors
/// No response comes, or too many are wrong.
pub fn run(options: &Options, terminated: &AtomicBool) -> Result<()> {
    let mut load = Load::new(options, terminated)?;
    load.fill()?;
    let account = match options.http2 {
        Some(http2) => h2load::measure(options, http2)?,
        None => load.measure()?,
    };
    child::print(&account)
}

/// Source of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// Each repeated object once.
    Repeated,
    /// The workload.
    Workload,
}

struct Load<'a> {
    options: &'a Options,
    terminated: &'a AtomicBool,
    epoll: OwnedFd,
    timer: OwnedFd,
    connections: Vec<Exchange>,
    /// Indices of connections without a request.
    idle: Vec<usize>,
    tools: Tools,
    events: Vec<epoll::Event>,
    /// Time of the last complete response.
    heard_ns: u64,
    began: Instant,
    source: Source,
    /// Numbers of the next request, and of the first that is not made any more.
    next: u64,
    end: u64,
    /// Time at which request 0 of the source is due.
    start_ns: u64,
    tally: Tally,
    errors: u64,
    first_error: String,
}

#[derive(Default)]
struct Tally {
    requests: u64,
    bytes: u64,
    verified: u64,
    times: Histogram,
    /// Requests that were due earlier are not in `times`.
    since_ns: u64,
}

/// Counters at the start or the end of the measured time.
struct Counters {
    ns: u64,
    cpu: Duration,
    count: Count,
}

impl<'a> Load<'a> {
    fn new(options: &'a Options, terminated: &'a AtomicBool) -> Result<Self> {
        let failed = |error: rustix::io::Errno| Error::file("watch connections", error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(failed)?;
        // The timer is never read: setting it for the next wait makes a new edge.
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), flags).map_err(failed)?;
        let mut load = Self {
            options,
            terminated,
            epoll,
            timer,
            connections: Vec::new(),
            idle: Vec::new(),
            tools: Tools::new(options.origin, options.workload.is_tunnel),
            events: Vec::with_capacity(EVENTS),
            heard_ns: 0,
            began: Instant::now(),
            source: Source::Repeated,
            next: 0,
            end: u64::MAX,
            start_ns: 0,
            tally: Tally::default(),
            errors: 0,
            first_error: String::new(),
        };
        for index in 0..options.workload.connections as usize {
            let exchange = load.connect(index)?;
            load.connections.push(exchange);
            load.idle.push(index);
        }
        Ok(load)
    }

    fn connect(&self, index: usize) -> Result<Exchange> {
        let Options { to, origin, .. } = *self.options;
        let failed = |error| Error::file(format!("connect to {to}"), error);
        let socket = if self.options.connects {
            fetch::tunnel(to, origin)?
        } else {
            TcpStream::connect_timeout(&to, SILENCE_MAX).map_err(failed)?
        };
        socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)).map_err(failed)?;
        // Edge-triggered, so that one registration lasts as long as the connection.
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let added = epoll::add(&self.epoll, &socket, EventData::new_u64(index as u64), flags);
        added.map_err(|error| Error::file("watch a connection", error))?;
        Ok(Exchange::new(socket))
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Requests each repeated object once, so that a cache stores it.
    fn fill(&mut self) -> Result<()> {
        let workload = &self.options.workload;
        (self.source, self.next) = (Source::Repeated, 0);
        self.end = if workload.hits > 0.0 { workload.objects.into() } else { 0 };
        while self.next < self.end || self.idle.len() < self.connections.len() {
            self.run_once(u64::MAX)?;
        }
        // Finish pending writes to disk now, also those of other proxies before: they must not
        // count as a cost of this one.
        rustix::fs::sync();
        Ok(())
    }

    /// Runs the workload and measures it.
    fn measure(&mut self) -> Result<Account> {
        let ns = |duration: Duration| duration.as_nanos() as u64;
        (self.source, self.next, self.end) = (Source::Workload, 0, u64::MAX);
        self.start_ns = self.now_ns();
        self.run_until(self.start_ns + ns(self.options.warm_up))?;
        let before = self.counters()?;
        self.tally = Tally { since_ns: before.ns, ..Tally::default() };
        self.run_until(before.ns + ns(self.options.time))?;
        let after = self.counters()?;
        let Tally { requests, bytes, verified, .. } = self.tally;
        let unanswered = self.drain(after.ns)?;
        let times = &self.tally.times;
        Ok(Account {
            seconds: (after.ns - before.ns) as f64 / 1e9,
            requests,
            bytes,
            verified,
            origin: Count {
                requests: after.count.requests - before.count.requests,
                bytes: after.count.bytes - before.count.bytes,
            },
            response_ns: [times.p50_ns(), times.p90_ns(), times.p99_ns(), times.max_ns()],
            unanswered,
            errors: self.errors,
            first_error: self.first_error.clone(),
            cpu_s: after.cpu.saturating_sub(before.cpu).as_secs_f64(),
            memory_bytes: tree::memory(self.options.watch),
        })
    }

    fn counters(&self) -> Result<Counters> {
        let count = fetch::count(self.options.origin)?;
        Ok(Counters { count, cpu: tree::cpu(self.options.watch)?, ns: self.now_ns() })
    }

    /// Waits for the responses to all requests that an open loop had due before `until_ns`.
    /// Requests still open after that are counted with their time so far. A closed loop has no end
    /// to wait for: every response is followed by a request.
    fn drain(&mut self, until_ns: u64) -> Result<u64> {
        let workload = &self.options.workload;
        let Some(rate) = workload.rate else { return Ok(0) };
        self.end = ((until_ns - self.start_ns) as f64 / 1e9 * rate) as u64;
        let deadline_ns = until_ns + DRAIN_MAX.as_nanos() as u64;
        while self.now_ns() < deadline_ns
            && (self.next < self.end || self.idle.len() < self.connections.len())
        {
            self.run_once(deadline_ns)?;
        }
        let now_ns = self.now_ns();
        let unsent = (self.next..self.end).map(|number| self.start_ns + workload.due_ns(number));
        let sent = self.connections.iter().filter_map(|exchange| Some(exchange.pending.as_ref()?.due_ns));
        let open: Vec<u64> = unsent.chain(sent).filter(|&due| due >= self.tally.since_ns).collect();
        for due_ns in &open {
            self.tally.times.record(now_ns - due_ns);
        }
        Ok(open.len() as u64)
    }

    fn run_until(&mut self, until_ns: u64) -> Result<()> {
        while self.now_ns() < until_ns {
            self.run_once(until_ns)?;
        }
        Ok(())
    }

    /// Sends requests that are due, waits until `until_ns` at most, and reads responses.
    fn run_once(&mut self, until_ns: u64) -> Result<()> {
        if let Some(due_ns) = self.send_due_requests()? {
            self.set_timer(due_ns.min(until_ns))?;
        }
        let mut events = std::mem::take(&mut self.events);
        let tick = Timespec::try_from(TICK).ok();
        match epoll::wait(&self.epoll, spare_capacity(&mut events), tick.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            waited => drop(waited.map_err(|error| Error::file("wait for answers", error))?),
        }
        if self.terminated.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        if events.is_empty() && self.now_ns() > self.heard_ns + SILENCE_MAX.as_nanos() as u64 {
            return Err(Error::Invalid(format!("nothing came for {SILENCE_MAX:?}")));
        }
        for event in events.drain(..) {
            if event.data.u64() != TIMER {
                self.receive(event.data.u64() as usize)?;
            }
        }
        self.events = events;
        Ok(())
    }

    /// Sends due requests on idle connections. Returns the time of the next one, or None if no
    /// connection is idle or no request is left.
    fn send_due_requests(&mut self) -> Result<Option<u64>> {
        while self.next < self.end {
            let Some(&index) = self.idle.last() else { return Ok(None) };
            let now_ns = self.now_ns();
            let due_ns = self.due_ns(now_ns);
            if due_ns > now_ns {
                return Ok(Some(due_ns));
            }
            self.idle.pop();
            self.send_request(index, due_ns)?;
        }
        Ok(None)
    }

    /// Returns the due time of the next request: now in a closed loop.
    fn due_ns(&self, now_ns: u64) -> u64 {
        match (self.source, self.options.workload.rate) {
            (Source::Workload, Some(_)) => self.start_ns + self.options.workload.due_ns(self.next),
            _ => now_ns,
        }
    }

    fn send_request(&mut self, index: usize, due_ns: u64) -> Result<()> {
        let number = self.next;
        self.next += 1;
        let workload = &self.options.workload;
        let (object, is_sampled) = match self.source {
            Source::Repeated => (workload.repeated(number), true),
            Source::Workload => (workload.request(number), number.is_multiple_of(SAMPLE)),
        };
        let is_verified = self.options.verify_all || is_sampled;
        match self.connections[index].request(object, due_ns, is_verified, &mut self.tools) {
            Ok(()) => Ok(()),
            Err(cause) => self.fail(index, &cause),
        }
    }

    fn receive(&mut self, index: usize) -> Result<()> {
        let exchange = &mut self.connections[index];
        match exchange.receive(&mut self.tools) {
            Ok(Outcome::Waits) => Ok(()),
            Ok(Outcome::Done) => {
                let now_ns = self.now_ns();
                self.finish(index, now_ns)
            }
            // Servers close idle connections: not an error without a pending request.
            Err(_) if exchange.pending.is_none() => self.reconnect(index),
            Err(cause) => self.fail(index, &cause),
        }
    }

    fn finish(&mut self, index: usize, now_ns: u64) -> Result<()> {
        let exchange = &mut self.connections[index];
        let Some(pending) = exchange.pending.take() else { return Ok(()) };
        self.tally.count(&pending, now_ns);
        self.heard_ns = now_ns;
        if pending.closes() {
            self.reconnect(index)?;
        }
        if self.next < self.end && self.due_ns(now_ns) <= now_ns {
            let due_ns = self.due_ns(now_ns);
            return self.send_request(index, due_ns);
        }
        self.idle.push(index);
        Ok(())
    }

    /// Counts a failed request and replaces the connection.
    fn fail(&mut self, index: usize, cause: &str) -> Result<()> {
        if self.errors == 0 {
            cause.clone_into(&mut self.first_error);
        }
        self.errors += 1;
        if self.errors > ERRORS_MAX {
            return Err(Error::Invalid(format!("{ERRORS_MAX} requests failed, the last: {cause}")));
        }
        self.reconnect(index)?;
        self.idle.push(index);
        Ok(())
    }

    fn reconnect(&mut self, index: usize) -> Result<()> {
        self.connections[index] = self.connect(index)?;
        Ok(())
    }

    fn set_timer(&self, at_ns: u64) -> Result<()> {
        let left = Duration::from_nanos(at_ns.saturating_sub(self.now_ns()).max(1));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: zero, it_value: value },
        )
        .map_err(|error| Error::file("set a timer", error))?;
        Ok(())
    }
}

impl Tally {
    fn count(&mut self, pending: &Pending, now_ns: u64) {
        self.requests += 1;
        self.bytes += pending.size();
        self.verified += u64::from(pending.is_verified);
        if pending.due_ns >= self.since_ns {
            self.times.record(now_ns - pending.due_ns);
        }
    }
}
