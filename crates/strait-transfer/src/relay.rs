//! Relays TCP connections within the kernel, by splicing as in D4.
//!
//! One thread runs one [`Relay`] with an epoll set, a connection table of fixed size, and a shared
//! pool of pipes. Several relays may listen on one address (`SO_REUSEPORT`). Half-closed streams
//! stay half-closed, and a slow reader slows its writer down.

mod account;
mod connection;
mod copies;
mod direction;
mod live;
pub mod proxy_protocol;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, acceptfrom_with, connect, ipproto, socket_with, sockopt,
};
use strait_os::tcp;

use crate::descriptors::{Budget, Share};
use crate::error::{Error, Result};
use crate::pipe::Pipes;
pub use account::{Account, Cause, ClosedConnection};
use connection::{Connection, Side, State};
pub use copies::Copies;
use direction::Direction;
pub use live::{Live, Snapshot};
use proxy_protocol::{Version, header};

/// Limit of events per epoll_wait(2).
const EVENTS: usize = 256;
/// Limit of accepted connections per event-loop iteration.
const ACCEPTED_MAX: usize = 64;
/// Interval of checks for idle connections and for a signal.
const TICK: Duration = Duration::from_millis(500);
/// Time for the bytes relayed before a reset to arrive.
const LINGER_MAX: Duration = Duration::from_secs(5);
/// Events watched on the sockets of a connection.
const WATCHED: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);
/// Descriptors of a connection: two sockets; with copies to files also a file and a pipe each way.
const DESCRIPTORS: u64 = 2;
const DESCRIPTORS_TEED: u64 = 8;
/// Numbers that a connection tries for the files of its copies.
const NUMBERS_MAX: usize = 64;
/// Token of the listener.
const LISTENER: u64 = u64::MAX;

/// Options of a relay.
#[derive(Clone, Debug)]
pub struct Options {
    /// Addresses of the server; each connection goes to the first one that can be reached.
    pub servers: Vec<SocketAddr>,
    /// Files with copies of the relayed bytes: connection n writes `PREFIX.n.up` (from
    /// its client) and `PREFIX.n.down`.
    pub tee: Option<Copies>,
    /// Limit of simultaneous connections; more wait in the listener's queue.
    pub connections_max: usize,
    /// Descriptors for the connections and pipes of all relays that share the budget. Without
    /// descriptors for a pipe, bytes are copied.
    pub descriptors: Arc<Budget>,
    /// Time without progress after which a connection is closed.
    pub idle: Option<Duration>,
    /// Time for the server to accept.
    pub connect: Duration,
    /// Time for open connections to end after the relay was asked to stop.
    pub drain: Duration,
    /// Version of the PROXY header that names the client to the server, if any.
    pub proxy_protocol: Option<Version>,
    /// Number of the last connection of all relays that share it.
    pub numbers: Arc<AtomicU64>,
    /// Totals of all relays that share it, published at every tick.
    pub live: Arc<Live>,
}

impl Options {
    /// Returns the descriptors of a connection, without those of pipes that it uses only while they
    /// have bytes.
    pub fn descriptors_each(tees: bool) -> u64 {
        if tees { DESCRIPTORS_TEED } else { DESCRIPTORS }
    }
}

/// Slot of the connection table. The generation distinguishes events for an earlier connection in
/// the slot from events for the current one.
#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    connection: Option<Connection>,
}

/// Relay of one thread.
#[derive(Debug)]
pub struct Relay {
    listener: Option<TcpListener>,
    is_listening: bool,
    epoll: OwnedFd,
    options: Options,
    slots: Vec<Slot>,
    free: Vec<usize>,
    ready: Vec<usize>,
    pipes: Pipes,
    /// Sockets that are reset once the relayed bytes have arrived, or after [`LINGER_MAX`].
    lingering: Vec<(Instant, OwnedFd, Share)>,
    account: Account,
    /// Index in [`Options::live`].
    live: usize,
}

impl Relay {
    /// Creates a relay for the connections of `listener`.
    ///
    /// # Errors
    /// If no epoll instance can be created.
    pub fn new(listener: TcpListener, options: Options) -> Result<Self> {
        let failed = |error: Errno| Error::os("watch", "the is_listening socket", error);
        listener
            .set_nonblocking(true)
            .map_err(|error| Error::os("watch", "the is_listening socket", error))?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN).map_err(failed)?;
        let pipes = Pipes::sharing(Arc::clone(&options.descriptors));
        let live = options.live.add();
        Ok(Self {
            listener: Some(listener),
            is_listening: true,
            epoll,
            options,
            slots: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            pipes,
            lingering: Vec::new(),
            account: Account::default(),
            live,
        })
    }

    /// Returns the totals, including those of open connections.
    fn snapshot(&self) -> Snapshot {
        let mut account = self.account;
        for connection in self.slots.iter().filter_map(|slot| slot.connection.as_ref()) {
            for direction in [&connection.up, &connection.down] {
                account.bytes += direction.bytes;
                account.copied += direction.copied;
                account.teed += direction.teed;
            }
        }
        Snapshot { account, open: self.connections() as u64 }
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Relays until `terminated` is set, then until the last connection has ended or the drain time
    /// is over. Calls `ended` for each connection.
    ///
    /// # Errors
    /// Those of epoll_wait(2). An error of a connection only ends that connection.
    pub fn run(
        &mut self,
        terminated: &AtomicBool,
        ended: &mut dyn FnMut(&ClosedConnection),
    ) -> Result<Account> {
        let (mut events, mut deadline, mut checked) = (Vec::with_capacity(EVENTS), None, Instant::now());
        loop {
            let now = Instant::now();
            if terminated.load(Ordering::Relaxed) {
                // Closes the listener: new clients are refused at once and may try another server.
                self.listener = None;
                let over = *deadline.get_or_insert(now + self.options.drain) <= now;
                if over || self.connections() == 0 {
                    self.close_all(ended);
                    return Ok(self.account);
                }
            }
            self.wait(&mut events)?;
            let now = Instant::now();
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept(now, ended),
                    token => self.event(token, event.flags, now, ended),
                }
            }
            for index in std::mem::take(&mut self.ready) {
                self.resume(index, now, ended);
            }
            if now.saturating_duration_since(checked) >= TICK {
                checked = now;
                self.close_late(now, ended);
                self.options.live.publish(self.live, self.snapshot());
            }
        }
    }

    fn wait(&self, events: &mut Vec<Event>) -> Result<()> {
        let tick = if self.ready.is_empty() { TICK } else { Duration::ZERO };
        let timeout = Timespec { tv_sec: 0, tv_nsec: tick.subsec_nanos().into() };
        match epoll::wait(&self.epoll, spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Error::os("wait for", "connections", error)),
        }
    }

    /// Accepts waiting connections, up to the limits.
    fn accept(&mut self, now: Instant, ended: &mut dyn FnMut(&ClosedConnection)) {
        for _ in 0..ACCEPTED_MAX {
            if self.connections() >= self.options.connections_max {
                return self.pause();
            }
            let Some(share) = self.take_share() else { return self.pause() };
            let Some(listener) = &self.listener else { return };
            match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok((client, address)) => {
                    let peer = address.and_then(|address| SocketAddr::try_from(address).ok());
                    if let Some(peer) = peer {
                        self.begin((client, share), peer, now, ended);
                    }
                }
                Err(Errno::AGAIN) => return,
                // The connection ended before it was accepted.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => {}
                // No descriptor or memory: retried once a connection has ended.
                Err(_) => return self.pause(),
            }
        }
    }

    /// Takes the descriptors of a connection; closes unused pipes if no others are free.
    fn take_share(&mut self) -> Option<Share> {
        let descriptors = Options::descriptors_each(self.options.tee.is_some());
        let take = || self.options.descriptors.take_for_connection(descriptors);
        take().or_else(|| {
            self.pipes.clear();
            take()
        })
    }

    /// Stops accepting until a connection has ended, or until the next tick.
    fn pause(&mut self) {
        self.account.full += 1;
        self.listen(false);
    }

    fn listen(&mut self, on: bool) {
        let Some(listener) = self.listener.as_ref().filter(|_| self.is_listening != on) else { return };
        let flags = if on { EventFlags::IN } else { EventFlags::empty() };
        // It cannot fail for a descriptor in the set; if it did, the next tick would try again.
        if epoll::modify(&self.epoll, listener, EventData::new_u64(LISTENER), flags).is_ok() {
            self.is_listening = on;
        }
    }

    /// Starts a connection: begins to connect to the server.
    fn begin(
        &mut self,
        client: (OwnedFd, Share),
        peer: SocketAddr,
        now: Instant,
        ended: &mut dyn FnMut(&ClosedConnection),
    ) {
        let mut number = self.next_number();
        self.account.connections += 1;
        if let Err(error) = self.try_begin(&mut number, client, peer, now) {
            self.account.failed += 1;
            ended(&ClosedConnection {
                number,
                client: peer,
                up: 0,
                down: 0,
                copied: 0,
                teed: 0,
                tee_failure: None,
                lasted: Duration::ZERO,
                cause: Cause::Unreached,
                failure: Some(error.to_string()),
            });
        }
        self.account.connections_max = self.account.connections_max.max(self.connections() as u64);
    }

    /// Takes the number of a connection.
    fn next_number(&self) -> u64 {
        let next = |last: u64| last.checked_add(1);
        let last = self.options.numbers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        // After the last number every copy to a file fails, because the file exists.
        last.map_or(u64::MAX, |last| last + 1)
    }

    /// Starts a connection. It gets another number if files of its own one exist.
    fn try_begin(
        &mut self,
        number: &mut u64,
        (client, share): (OwnedFd, Share),
        peer: SocketAddr,
        now: Instant,
    ) -> Result<()> {
        let failed = |error: Errno| Error::os("take", "a connection", error);
        // TCP_NODELAY: bytes are relayed as they come. SO_LINGER with 0: an early end is a reset
        // for the client, even if this process dies.
        sockopt::set_tcp_nodelay(&client, true).map_err(failed)?;
        sockopt::set_socket_linger(&client, Some(Duration::ZERO)).map_err(failed)?;
        let server = self.reach(0)?;
        let header = self.options.proxy_protocol.map(|version| {
            let own = rustix::net::getsockname(&client).ok().and_then(|own| SocketAddr::try_from(own).ok());
            header(version, peer, own.unwrap_or(peer))
        });
        let directions = self.directions(number);
        let connection = Connection::new(
            *number,
            (client, peer),
            server,
            header.unwrap_or_default(),
            directions,
            share,
            now,
        );
        self.put(connection)
    }

    /// Begins to connect to the first reachable address of the server, starting at index `first`.
    fn reach(&self, first: usize) -> Result<(OwnedFd, usize)> {
        let mut last = Errno::ADDRNOTAVAIL;
        for (number, to) in self.options.servers.iter().enumerate().skip(first) {
            match reach(*to) {
                Ok(socket) => return Ok((socket, number)),
                Err(error) => last = error,
            }
        }
        Err(Error::os("connect to", self.server(), last))
    }

    /// Returns the server's addresses for messages.
    fn server(&self) -> String {
        let names: Vec<_> = self.options.servers.iter().map(ToString::to_string).collect();
        names.join(" or ")
    }

    /// Tries the server's next address for a connection that is not yet connected; returns false if
    /// there is none.
    fn reach_next(&mut self, index: usize) -> bool {
        let slot = &self.slots[index];
        let Some(connection) = slot.connection.as_ref().filter(|connection| connection.is_connecting())
        else {
            return false;
        };
        let Ok(server) = self.reach(connection.tried + 1) else { return false };
        let data = EventData::new_u64(token(index, slot.generation, Side::Server));
        let added = epoll::add(&self.epoll, &server.0, data, WATCHED).is_ok();
        if let Some(connection) = self.slots[index].connection.as_mut().filter(|_| added) {
            connection.try_server(server);
        }
        added
    }

    /// Makes both directions of a connection, with files for their copies. Another user may have
    /// planted files of the next numbers: the connection gets the first number without any.
    fn directions(&self, number: &mut u64) -> (Direction, Direction) {
        let Some(copies) = &self.options.tee else { return (Direction::default(), Direction::default()) };
        for _ in 0..NUMBERS_MAX {
            if let Some([up, down]) = copies.create_both(*number) {
                return (Direction::with_copy(up), Direction::with_copy(down));
            }
            *number = self.next_number();
        }
        let taken = || Direction::with_copy(Err(Errno::EXIST.into()));
        (taken(), taken())
    }

    /// Adds a connection to the table, and its sockets to the epoll set.
    fn put(&mut self, connection: Connection) -> Result<()> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let generation = self.slots[index].generation;
        for side in [Side::Client, Side::Server] {
            let data = EventData::new_u64(token(index, generation, side));
            if let Err(error) = epoll::add(&self.epoll, connection.socket(side), data, WATCHED) {
                self.free.push(index);
                return Err(Error::os("watch", "a connection", error));
            }
        }
        self.slots[index].connection = Some(connection);
        Ok(())
    }

    fn event(
        &mut self,
        token: u64,
        flags: EventFlags,
        now: Instant,
        ended: &mut dyn FnMut(&ClosedConnection),
    ) {
        let (index, generation, side) = parts(token);
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.generation == generation) else {
            return;
        };
        let Some(connection) = &mut slot.connection else { return };
        let outcome = connection.handle_event(side, flags, &mut self.pipes, now);
        self.after(index, outcome, now, ended);
    }

    fn resume(&mut self, index: usize, now: Instant, ended: &mut dyn FnMut(&ClosedConnection)) {
        // The slot may have a new connection by now, which must not be advanced before its server
        // is connected.
        let connection =
            self.slots[index].connection.as_mut().filter(|connection| !connection.is_connecting());
        let Some(connection) = connection else { return };
        let outcome = connection.advance(&mut self.pipes, now);
        self.after(index, outcome, now, ended);
    }

    fn after(
        &mut self,
        index: usize,
        outcome: Result<State>,
        now: Instant,
        ended: &mut dyn FnMut(&ClosedConnection),
    ) {
        match outcome {
            Ok(State::Waiting) => {}
            Ok(State::Ready) => self.ready.push(index),
            Ok(State::Over) => self.close(index, Cause::Closed, None, now, ended),
            Err(_) if self.reach_next(index) => {}
            Err(error) => {
                let connecting = self.slots[index].connection.as_ref().is_some_and(Connection::is_connecting);
                let cause = if connecting { Cause::Unreached } else { Cause::Reset };
                self.close(index, cause, Some(error.to_string()), now, ended);
            }
        }
    }

    fn close(
        &mut self,
        index: usize,
        cause: Cause,
        failure: Option<String>,
        now: Instant,
        ended: &mut dyn FnMut(&ClosedConnection),
    ) {
        let slot = &mut self.slots[index];
        let Some(connection) = slot.connection.take() else { return };
        slot.generation = slot.generation.wrapping_add(1) & GENERATION_MASK;
        self.free.push(index);
        let (up, down) = (&connection.up, &connection.down);
        let tee_failure = up.tee_failure.or(down.tee_failure);
        let record = ClosedConnection {
            number: connection.number,
            client: connection.peer,
            up: up.bytes,
            down: down.bytes,
            copied: up.copied + down.copied,
            teed: up.teed + down.teed,
            tee_failure: tee_failure.map(|errno| errno.to_string()),
            lasted: now.saturating_duration_since(connection.began),
            cause,
            failure,
        };
        self.account.bytes += record.up + record.down;
        self.account.copied += record.copied;
        self.account.teed += record.teed;
        self.account.failed += u64::from(cause != Cause::Closed);
        let (sockets, mut share) = connection.close(cause == Cause::Closed, &mut self.pipes);
        for socket in sockets {
            if cause == Cause::Reset
                && has_unacknowledged(&socket)
                && self.lingering.len() < self.options.connections_max
            {
                self.lingering.push((now, socket, share.split(1)));
            }
        }
        ended(&record);
        self.listen(true);
    }

    /// Closes connections that were idle for too long or did not reach their server in time.
    fn close_late(&mut self, now: Instant, ended: &mut dyn FnMut(&ClosedConnection)) {
        self.listen(true);
        self.lingering.retain(|(since, socket, _)| {
            now.saturating_duration_since(*since) < LINGER_MAX && has_unacknowledged(socket)
        });
        for index in 0..self.slots.len() {
            let Some(connection) = &self.slots[index].connection else { continue };
            let idle = connection.idle(now);
            if connection.is_connecting() && idle >= self.options.connect {
                let failure = Some(format!("{} does not answer", self.server()));
                self.close(index, Cause::Unreached, failure, now, ended);
            } else if self.options.idle.is_some_and(|limit| idle >= limit) {
                self.close(index, Cause::Idle, None, now, ended);
            }
        }
    }

    fn close_all(&mut self, ended: &mut dyn FnMut(&ClosedConnection)) {
        let now = Instant::now();
        for index in 0..self.slots.len() {
            self.close(index, Cause::Drained, None, now, ended);
        }
    }
}

/// Returns true if sent bytes have not been acknowledged.
fn has_unacknowledged(socket: &OwnedFd) -> bool {
    tcp::unacknowledged(socket).is_ok_and(|bytes| bytes > 0)
}

/// Begins a non-blocking connect(2).
fn reach(to: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    match connect(socket.as_fd(), &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Layout of a token, from the low bits: index, generation, side. It never equals the listener's,
/// because the table has fewer slots.
const GENERATION_MASK: u32 = (1 << 31) - 1;

fn token(index: usize, generation: u32, side: Side) -> u64 {
    index as u64 | u64::from(generation) << 32 | u64::from(side == Side::Server) << 63
}

fn parts(token: u64) -> (usize, u32, Side) {
    let side = if token >> 63 == 1 { Side::Server } else { Side::Client };
    (token as u32 as usize, (token >> 32) as u32 & GENERATION_MASK, side)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_encodes_slot_generation_and_side() {
        for (index, generation, side) in [
            (0, 0, Side::Client),
            (9_999, GENERATION_MASK, Side::Server),
            (u32::MAX as usize - 1, 7, Side::Client),
        ] {
            let token = token(index, generation, side);
            assert_eq!(parts(token), (index, generation, side));
            assert_ne!(token, LISTENER);
        }
    }
}
