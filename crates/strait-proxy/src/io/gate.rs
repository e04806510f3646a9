//! Gates: fair semaphores that all workers share, for connections in use to each origin, for the
//! memory of request bodies, and for hashing passwords. One client gets a share of each.
//!
//! Each connection to an origin that carries a request or a tunnel holds a permit, and so does each
//! request body that is read ahead. Idle connections hold none: `limits.origin_idle` bounds those.
//!
//! ```text
//! request ──▶ gate of the client ──▶ gate of the origin ──▶ connection
//!             its share of the origin all connections        holds both permits
//! ```
//!
//! Permits are granted in the order of the requests. A client waits for its own share first, so
//! that it never has more requests than that in the origin's queue.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rapidhash::fast::RandomState;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::config::limits::{GateLimits, ServerLimits};
use crate::config::server::Server;

/// Bits of an IPv6 address that a client cannot choose (RFC 6177: a site gets at least a /64).
const SITE_BITS: u32 = 64;

/// Maximum of requests that wait for the hash of a password, and of those of one client.
const PASSWORD_WAITERS_MAX: usize = 128;
/// Maximum of passwords that are hashed with Argon2id at the same time: 256 MiB each.
const PASSWORD_MEMORY_MAX: usize = 4;

/// Client as limits count it: an IPv4 address, or an IPv6 network of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client(IpAddr);

impl Client {
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> SITE_BITS << SITE_BITS))
            }
            address @ IpAddr::V4(_) => address,
        })
    }

    /// Returns its address, or the first one of its network.
    pub(crate) fn address(self) -> IpAddr {
        self.0
    }
}

/// A gate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// Connections in use to an origin.
    Origin(Server),
    /// Connections of one client in use to an origin.
    OriginOf(Server, Client),
    /// Request bodies that are read ahead.
    Ahead,
    /// Request bodies of one client that are read ahead.
    AheadOf(Client),
    /// Passwords that are hashed.
    Passwords,
    /// Passwords that are hashed with much memory.
    PasswordMemory,
    /// Passwords of one client that are hashed.
    PasswordsOf(Client),
}

impl State {
    fn permits(&self, key: &Key) -> usize {
        let limits = &self.limits;
        let permits = match key {
            Key::Origin(server) => self.servers.get(server).map_or(limits.origin, |own| own.connections),
            Key::OriginOf(server, _) => {
                self.servers.get(server).map_or(limits.origin_of_client, |own| own.of_client)
            }
            Key::Ahead => limits.ahead,
            Key::AheadOf(_) => limits.ahead_of_client,
            Key::Passwords => limits.passwords,
            Key::PasswordMemory => PASSWORD_MEMORY_MAX.min(limits.passwords),
            Key::PasswordsOf(_) => 1,
        };
        // A limit of 0 would refuse everything: the configuration does not allow it.
        permits.max(1)
    }

    /// Returns the maximum of waiters. The limit of client connections bounds requests that wait
    /// for an origin without a queue; a request that waits for memory holds a buffer already.
    fn waiters(&self, key: &Key) -> usize {
        match key {
            Key::Origin(server) => self.servers.get(server).map_or(usize::MAX, |own| own.queue.waiters),
            Key::OriginOf(server, _) => {
                self.servers.get(server).map_or(usize::MAX, |own| own.waiters_of_client)
            }
            Key::Ahead | Key::AheadOf(_) => self.permits(key),
            // Each client has at most one in the queue of all.
            Key::Passwords | Key::PasswordMemory | Key::PasswordsOf(_) => PASSWORD_WAITERS_MAX,
        }
    }

    /// Returns true if no more requests may wait at a gate.
    fn is_queue_full(&self, key: &Key) -> bool {
        let queued = self.gates.get(key).map_or(0, |gate| gate.queue.len());
        let is_full = |server: &Server| {
            let own = self.servers.get(server);
            own.is_some_and(|own| self.waiting(server) >= own.queue.waiters)
        };
        queued >= self.waiters(key) || key.server().is_some_and(is_full)
    }

    fn waiting(&self, server: &Server) -> usize {
        self.waiting.get(server).copied().unwrap_or(0)
    }

    /// Gives free permits of a gate to its first waiters.
    fn grant(&mut self, key: &Key) {
        let permits = self.permits(key);
        let granted = self.gates.get_mut(key).map_or(0, |gate| gate.grant(permits));
        self.leave(key, granted);
    }

    /// Notes that requests have left the queue of a gate.
    fn leave(&mut self, key: &Key, requests: usize) {
        let Some(server) = key.server() else { return };
        let Some(waiting) = self.waiting.get_mut(server) else { return };
        *waiting = waiting.saturating_sub(requests);
        if *waiting == 0 {
            self.waiting.remove(server);
        }
    }

    /// Gives waiters the permits that other limits have added.
    fn grant_all(&mut self) {
        let keys: Vec<_> = self.gates.keys().cloned().collect();
        for key in keys {
            self.grant(&key);
        }
    }
}

impl Key {
    /// Returns the server that its waiters wait for.
    fn server(&self) -> Option<&Server> {
        match self {
            Self::Origin(server) | Self::OriginOf(server, _) => Some(server),
            Self::Ahead
            | Self::AheadOf(_)
            | Self::Passwords
            | Self::PasswordMemory
            | Self::PasswordsOf(_) => None,
        }
    }
}

/// Gates with permits in use. An entry exists only while a permit is in use or awaited.
#[derive(Debug)]
pub(crate) struct Gates(Mutex<State>);

#[derive(Debug)]
struct State {
    gates: HashMap<Key, Gate, RandomState>,
    limits: GateLimits,
    /// Limits of the servers with a maximum of their own.
    servers: HashMap<Server, ServerLimits>,
    /// Requests that wait for each server, at its own gate and at those of its clients.
    waiting: HashMap<Server, usize>,
}

#[derive(Debug, Default)]
struct Gate {
    used: usize,
    next_ticket: u64,
    /// Waiters by ticket: the first one gets the next permit.
    queue: BTreeMap<u64, oneshot::Sender<()>>,
}

/// Permit, in use until it is dropped, or a ticket that waits for one.
#[derive(Debug)]
pub(crate) struct Permit {
    gates: Arc<Gates>,
    key: Key,
    /// Ticket of a waiter; `None` once the waiter knows that the permit was granted.
    ticket: Option<u64>,
    /// True if it was not free at once.
    has_waited: bool,
}

impl Gates {
    pub(crate) fn new(limits: GateLimits) -> Self {
        Self(Mutex::new(State {
            gates: HashMap::default(),
            limits,
            servers: HashMap::new(),
            waiting: HashMap::new(),
        }))
    }

    /// Sets other limits. Waiters get the added permits; permits in use stay.
    pub(crate) fn limit(&self, limits: GateLimits) {
        let mut state = self.state();
        state.limits = limits;
        state.grant_all();
    }

    /// Sets the limits of the servers with a maximum of their own.
    pub(crate) fn limit_servers(&self, servers: HashMap<Server, ServerLimits>) {
        let mut state = self.state();
        state.servers = servers;
        state.grant_all();
    }

    /// Like [`Self::limit_servers`] after the addresses of a name have changed: a server that has
    /// left keeps its limits while a permit for it is in use or awaited. Without them, all requests
    /// in its queue would be sent to it at once.
    pub(crate) fn limit_located(&self, mut servers: HashMap<Server, ServerLimits>) {
        let mut state = self.state();
        for server in state.gates.keys().filter_map(Key::server) {
            if let Some(own) = state.servers.get(server) {
                servers.entry(server.clone()).or_insert(*own);
            }
        }
        state.servers = servers;
        state.grant_all();
    }

    /// Returns the time that a request waits for a server with a maximum of its own.
    pub(crate) fn patience(&self, server: &Server) -> Option<Duration> {
        self.state().servers.get(server).map(|own| own.queue.patience)
    }

    /// Returns true if one client gets only a share of the connections to a server. Otherwise a
    /// client without a permit has all connections, and requests of other clients wait as well.
    pub(crate) fn limits_client(&self, server: &Server, client: Client) -> bool {
        let state = self.state();
        let share = state.permits(&Key::OriginOf(server.clone(), client));
        share < state.permits(&Key::Origin(server.clone()))
    }

    /// Returns the number of requests that wait for a server.
    pub(crate) fn waiting(&self, server: &Server) -> usize {
        self.state().waiting(server)
    }

    /// Takes a permit if one is free and no other request waits for it.
    pub(crate) fn try_enter(self: &Arc<Self>, key: Key) -> Option<Permit> {
        self.take(&key).then(|| Permit { gates: self.clone(), key, ticket: None, has_waited: false })
    }

    fn take(&self, key: &Key) -> bool {
        let mut state = self.state();
        let permits = state.permits(key);
        let Some(gate) = state.gates.get_mut(key) else {
            // A new gate has free permits.
            state.gates.insert(key.clone(), Gate { used: 1, ..Gate::default() });
            return true;
        };
        let is_free = gate.is_free(permits);
        gate.used += usize::from(is_free);
        is_free
    }

    /// Takes a permit, or waits until `deadline`, after earlier waiters, for one. `None` if no
    /// permit became free or too many requests wait.
    pub(crate) async fn enter(self: &Arc<Self>, key: Key, deadline: Instant) -> Option<Permit> {
        self.enter_or_queue(key, deadline, false).await
    }

    /// Like [`Self::enter`], for a request that has the permit `before`. If it has waited for that,
    /// a full queue does not refuse it.
    pub(crate) async fn enter_after(
        self: &Arc<Self>,
        before: &Permit,
        key: Key,
        deadline: Instant,
    ) -> Option<Permit> {
        self.enter_or_queue(key, deadline, before.has_waited).await
    }

    /// Takes a permit, or waits for one; with `may_exceed` also in a full queue.
    async fn enter_or_queue(
        self: &Arc<Self>,
        key: Key,
        deadline: Instant,
        may_exceed: bool,
    ) -> Option<Permit> {
        if self.take(&key) {
            return Some(Permit { gates: self.clone(), key, ticket: None, has_waited: false });
        }
        let (mut permit, granted) = self.queue(key, may_exceed)?;
        // The sender sends before it is dropped, so an error means that the deadline has passed.
        let _ = Box::pin(timeout_at(deadline, granted)).await;
        permit.is_granted().then_some(permit)
    }

    fn queue(self: &Arc<Self>, key: Key, may_exceed: bool) -> Option<(Permit, oneshot::Receiver<()>)> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state();
        let permits = state.permits(&key);
        // A permit may have become free since `take`: such a request does not wait.
        let is_free = state.gates.get(&key).is_none_or(|gate| gate.is_free(permits));
        if !is_free && !may_exceed && state.is_queue_full(&key) {
            return None;
        }
        let gate = state.gates.entry(key.clone()).or_default();
        let ticket = gate.next_ticket;
        gate.next_ticket += 1;
        gate.queue.insert(ticket, sender);
        if let Some(server) = key.server() {
            *state.waiting.entry(server.clone()).or_default() += 1;
        }
        state.grant(&key);
        let permit = Permit { gates: self.clone(), key, ticket: Some(ticket), has_waited: !is_free };
        Some((permit, receiver))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    fn is_free(&self, permits: usize) -> bool {
        self.used < permits && self.queue.is_empty()
    }

    /// Gives free permits to the first waiters. Returns the number of waiters that have left.
    fn grant(&mut self, permits: usize) -> usize {
        let before = self.queue.len();
        while self.used < permits
            && let Some((_, waiter)) = self.queue.pop_first()
        {
            self.used += 1;
            // A waiter that has just given up finds that it has a permit, and releases it.
            let _ = waiter.send(());
        }
        before - self.queue.len()
    }
}

impl Permit {
    /// Returns true if it is one of a gate to a server.
    pub(crate) fn is_for(&self, server: &Server) -> bool {
        matches!(&self.key, Key::Origin(own) | Key::OriginOf(own, _) if own == server)
    }

    /// Returns true if the permit was granted.
    fn is_granted(&mut self) -> bool {
        let state = self.gates.state();
        let is_queued = |ticket| state.gates.get(&self.key).is_some_and(|it| it.queue.contains_key(&ticket));
        let is_granted = !self.ticket.is_some_and(is_queued);
        drop(state);
        if is_granted {
            self.ticket = None;
        }
        is_granted
    }
}

impl Drop for Permit {
    /// Releases the permit to the next waiter, or leaves the queue.
    fn drop(&mut self) {
        let mut state = self.gates.state();
        let Some(gate) = state.gates.get_mut(&self.key) else { return };
        let was_queued = self.ticket.is_some_and(|ticket| gate.queue.remove(&ticket).is_some());
        if was_queued {
            state.leave(&self.key, 1);
        } else {
            gate.used -= 1;
            state.grant(&self.key);
        }
        if state.gates.get(&self.key).is_some_and(|gate| gate.used == 0 && gate.queue.is_empty()) {
            state.gates.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use super::*;
    use crate::config::member::Queue;

    fn limits(origin: usize) -> GateLimits {
        GateLimits { origin, origin_of_client: 1, ahead: 1, ahead_of_client: 1, passwords: 1 }
    }

    fn gates(origin: usize) -> Arc<Gates> {
        Arc::new(Gates::new(limits(origin)))
    }

    fn origin(port: u16) -> Key {
        Key::Origin(Server::tcp("a", port, false))
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3)
    }

    /// Polls a future once.
    async fn now<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        std::future::poll_fn(|context| {
            Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
                Poll::Ready(done) => Some(done),
                Poll::Pending => None,
            })
        })
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn full_origin_is_awaited_until_the_deadline() {
        let gates = gates(1);
        let first = gates.enter(origin(1), later()).await.unwrap();
        assert!(gates.enter(origin(1), later()).await.is_none());
        assert!(gates.enter(origin(2), later()).await.is_some(), "another origin has its own");
        let (waited, ()) = tokio::join!(gates.enter(origin(1), later()), async { drop(first) });
        assert!(waited.is_some());
        drop(waited);
        assert!(gates.state().gates.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn permits_are_granted_in_the_order_of_requests() {
        let gates = gates(1);
        let first = gates.try_enter(origin(1)).unwrap();
        let mut second = pin!(gates.enter(origin(1), later()));
        let mut third = pin!(gates.enter(origin(1), later()));
        assert!(now(&mut second).await.is_none() && now(&mut third).await.is_none());
        drop(first);
        // A newcomer does not overtake waiters, although these have not run since.
        assert!(gates.try_enter(origin(1)).is_none());
        let mut fourth = pin!(gates.enter(origin(1), later()));
        assert!(now(&mut fourth).await.is_none() && now(&mut third).await.is_none());
        let second = now(&mut second).await.flatten().unwrap();
        drop(second);
        assert!(now(&mut fourth).await.is_none());
        assert!(now(&mut third).await.flatten().is_some());
        assert!(now(&mut fourth).await.flatten().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn waiter_that_gives_up_leaves_the_queue() {
        let gates = gates(1);
        let first = gates.try_enter(origin(1)).unwrap();
        {
            let mut waiter = pin!(gates.enter(origin(1), later()));
            assert!(now(&mut waiter).await.is_none());
        }
        assert!(gates.enter(origin(1), later()).await.is_none(), "the deadline");
        assert!(gates.state().gates[&origin(1)].queue.is_empty());
        // A waiter that is dropped after its permit was granted leaves the permit to the next one.
        let mut last = {
            let mut granted = Box::pin(gates.enter(origin(1), later()));
            assert!(now(&mut granted).await.is_none());
            let mut last = Box::pin(gates.enter(origin(1), later()));
            assert!(now(&mut last).await.is_none());
            drop(first);
            assert!(now(&mut last).await.is_none());
            last
        };
        assert!(now(&mut last).await.flatten().is_some());
        assert!(gates.state().gates.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn raised_limit_wakes_waiters_and_lowered_limit_applies_to_the_next() {
        let gates = gates(1);
        let first = gates.try_enter(origin(1)).unwrap();
        let mut second = pin!(gates.enter(origin(1), later()));
        let mut third = pin!(gates.enter(origin(1), later()));
        assert!(now(&mut second).await.is_none() && now(&mut third).await.is_none());
        gates.limit(limits(2));
        let second = now(&mut second).await.flatten().unwrap();
        assert!(now(&mut third).await.is_none());
        gates.limit(limits(1));
        drop(first);
        assert!(now(&mut third).await.is_none(), "two were in use, and one may be");
        drop(second);
        assert!(now(&mut third).await.flatten().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_for_memory_are_limited() {
        let gates = gates(1);
        let _first = gates.try_enter(Key::Ahead).unwrap();
        let mut second = pin!(gates.enter(Key::Ahead, later()));
        assert!(now(&mut second).await.is_none());
        let before = Instant::now();
        assert!(gates.enter(Key::Ahead, later()).await.is_none() && before == Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn server_with_a_maximum_has_a_bounded_queue() {
        let gates = gates(100);
        let Key::Origin(server) = origin(1) else { unreachable!() };
        let queue = |waiters| Queue { waiters, patience: Duration::from_secs(1) };
        let limited = |connections, waiters| {
            [(server.clone(), limits(100).of_server(connections, queue(waiters)))].into()
        };
        gates.limit_servers(limited(1, 1));
        assert_eq!(gates.patience(&server), Some(Duration::from_secs(1)));
        let first = gates.try_enter(origin(1)).unwrap();
        let mut second = pin!(gates.enter(origin(1), later()));
        assert!(now(&mut second).await.is_none());
        assert_eq!(gates.waiting(&server), 1);
        // The waiting requests of all clients count.
        let client = |last: u8| Key::OriginOf(server.clone(), Client::of([192, 0, 2, last].into()));
        let _own = gates.try_enter(client(1)).unwrap();
        assert!(gates.enter(client(1), later()).await.is_none());
        assert!(gates.try_enter(client(2)).is_some());
        let before = Instant::now();
        assert!(gates.enter(origin(1), later()).await.is_none() && before == Instant::now());
        assert!(gates.try_enter(origin(2)).is_some(), "another server has no maximum");
        // A raised maximum lets the waiting request in.
        gates.limit_servers(limited(2, 0));
        assert!(now(&mut second).await.flatten().is_some());
        let _third = gates.try_enter(origin(1)).unwrap();
        assert!(gates.enter(origin(1), later()).await.is_none() && before == Instant::now(), "no queue");
        drop(first);
        gates.limit_servers(HashMap::new());
        assert!(gates.patience(&server).is_none() && gates.waiting(&server) == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn request_that_has_waited_for_its_share_is_not_refused_by_a_full_queue() {
        let gates = gates(100);
        let Key::Origin(server) = origin(1) else { unreachable!() };
        let queue = Queue { waiters: 1, patience: Duration::from_secs(1) };
        gates.limit_servers([(server.clone(), limits(100).of_server(1, queue))].into());
        let share = |last: u8| Key::OriginOf(server.clone(), Client::of([192, 0, 2, last].into()));
        let _used = gates.try_enter(origin(1)).unwrap();
        let own = gates.try_enter(share(1)).unwrap();
        let mut waiting = pin!(gates.enter(share(1), later()));
        assert!(now(&mut waiting).await.is_none());
        drop(own);
        // Its place in the queue is free until it runs, and another request takes it.
        let free = gates.try_enter(share(2)).unwrap();
        let mut other = pin!(gates.enter_after(&free, origin(1), later()));
        assert!(now(&mut other).await.is_none());
        let own = now(&mut waiting).await.flatten().unwrap();
        let mut waiting = pin!(gates.enter_after(&own, origin(1), later()));
        assert!(now(&mut waiting).await.is_none() && gates.waiting(&server) == 2);
        let mut refused = pin!(gates.enter_after(&free, origin(1), later()));
        assert!(matches!(now(&mut refused).await, Some(None)));
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_leaves_its_name_keeps_its_maximum_while_requests_wait() {
        let gates = gates(100);
        let Key::Origin(server) = origin(1) else { unreachable!() };
        let queue = Queue { waiters: 2, patience: Duration::from_secs(1) };
        gates.limit_servers([(server.clone(), limits(100).of_server(1, queue))].into());
        let first = gates.try_enter(origin(1)).unwrap();
        let mut second = pin!(gates.enter(origin(1), later()));
        let mut third = pin!(gates.enter(origin(1), later()));
        assert!(now(&mut second).await.is_none() && now(&mut third).await.is_none());
        gates.limit_located(HashMap::new());
        assert!(now(&mut second).await.is_none() && now(&mut third).await.is_none());
        assert_eq!(gates.waiting(&server), 2);
        drop(first);
        let second = now(&mut second).await.flatten().unwrap();
        assert!(now(&mut third).await.is_none());
        drop(second);
        drop(now(&mut third).await.flatten().unwrap());
        gates.limit_located(HashMap::new());
        assert!(gates.patience(&server).is_none());
    }

    #[test]
    fn client_has_its_share_of_a_server_with_a_maximum() {
        let queue = Queue { waiters: 1, patience: Duration::from_secs(1) };
        let of_queue = limits(100).of_server(1, Queue { waiters: 0, ..queue }).waiters_of_client;
        assert_eq!((of_queue, limits(100).of_server(1, queue).waiters_of_client), (0, 1));
        let shares = |origin_of_client| {
            let limits = GateLimits { origin_of_client, ..limits(100) };
            [1, 2, 8, 50, 1000].map(|connections| {
                let own = limits.of_server(connections, queue);
                (own.connections, own.of_client)
            })
        };
        assert_eq!(shares(25), [(1, 1), (2, 1), (8, 2), (50, 13), (100, 25)]);
        assert_eq!(shares(100), [(1, 1), (2, 2), (8, 8), (50, 50), (100, 100)]);
    }

    #[test]
    fn ipv6_network_of_64_bits_is_one_client() {
        let of = |text: &str| Client::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.2"), of("192.0.2.1"));
    }
}
