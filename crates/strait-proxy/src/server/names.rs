//! Names of the servers of pools: looked up again when their records expire, on the thread of the
//! checks.
//!
//! A task for each name finds its addresses, or its SRV records and the addresses of their targets,
//! and sets the servers of the pool. The workers choose among these and look nothing up. The last
//! addresses stay in use while no DNS server answers (RFC 8767), and for a while after one has
//! answered that there are none: a zone can be empty for a moment.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::config::entry::{Entry, Located, Target, of_addresses, of_targets};
use crate::config::pool::{SERVERS_MAX, ServerPool};
use crate::config::server::{Server, Service};
use crate::config::settings::Settings;
use crate::io::clock::Clock;
use crate::io::gate::Gates;
use crate::upstream::dns::resolver::{Answer, Family, LookupError, Resolver, Srv};

/// Time for which the last addresses stay in use after an answer without any.
const NONE_AFTER: Duration = Duration::from_secs(30);
/// Time after a failed lookup until the next one; doubled for each further one, up to the maximum.
const FAILED_FOR: Duration = Duration::from_secs(1);
const FAILED_FOR_MAX: Duration = Duration::from_secs(30);
/// Minimum time between lookups because servers cannot be reached.
const DOUBTED_AFTER: Duration = Duration::from_secs(1);
/// Maximum of concurrent lookups of names.
const LOOKUPS_MAX: usize = 32;

/// Resolver with the state that all names share.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) settings: Arc<Settings>,
    pub(super) gates: Arc<Gates>,
    pub(super) clock: Clock,
    resolver: Rc<Resolver>,
    lookups: Rc<Semaphore>,
}

impl Names {
    pub(super) fn new(
        settings: &Arc<Settings>,
        gates: &Arc<Gates>,
        clock: &Clock,
        resolver: Rc<Resolver>,
    ) -> Self {
        let (settings, gates, clock) = (settings.clone(), gates.clone(), clock.clone());
        Self { settings, gates, clock, resolver, lookups: Rc::new(Semaphore::new(LOOKUPS_MAX)) }
    }

    /// Begins a task for each name.
    pub(super) fn follow_all(&self, tasks: &mut JoinSet<()>) {
        for pool in self.settings.sites.iter().flat_map(|sites| &sites.pools) {
            for at in (0..pool.entries.len()).filter(|at| pool.entries[*at].is_followed()) {
                let (names, pool) = (self.clone(), pool.clone());
                tasks.spawn_local(async move { names.follow(&pool, at).await });
            }
        }
    }

    /// Follows the name of the entry at a position.
    async fn follow(&self, pool: &ServerPool, at: usize) {
        let Some(entry) = pool.entries.get(at) else { return };
        let mut memory = Memory::of(entry);
        loop {
            let found = self.look_up(&entry.server, &mut memory).await;
            let error = found.as_ref().err().map(ToString::to_string);
            let (located, next) = memory.judge(found, Instant::now());
            if located.is_some_and(|located| pool.locate(at, located, self.clock.now())) {
                // Servers may have a maximum of connections. The few requests before this count
                // among it as well.
                self.gates.limit_located(self.settings.server_limits());
            }
            entry.state.note_lookup(error, memory.failed > 0);
            sleep(DOUBTED_AFTER.min(next)).await;
            let _ = timeout(next.saturating_sub(DOUBTED_AFTER), entry.state.doubted()).await;
        }
    }

    async fn look_up(&self, server: &Server, memory: &mut Memory) -> Result<Found, LookupError> {
        if let Server::Service(service) = server {
            return self.targets(service, memory).await;
        }
        let Some((host, port)) = server.name() else {
            return Err(LookupError::Failed("it has no name".into()));
        };
        let answer = {
            let _permit = self.lookups.acquire().await;
            self.resolver.addresses(host).await
        };
        let ttl = memory.note(host, answer)?;
        let addresses = memory.addresses.get(&**host).map_or(&[][..], |addresses| addresses);
        Ok(Found { located: of_addresses(addresses, port, SERVERS_MAX), ttl })
    }

    /// Looks up the servers of a service.
    async fn targets(&self, service: &Service, memory: &mut Memory) -> Result<Found, LookupError> {
        let Answer { records, mut ttl, .. } = {
            let _permit = self.lookups.acquire().await;
            self.resolver.services(&service.name).await?
        };
        let answers = self.answers(records.iter().map(|srv| &*srv.target)).await;
        memory.addresses.retain(|target, _| answers.contains_key(target));
        let mut failure = None;
        for (target, answer) in answers {
            match memory.note(&target, answer) {
                Ok(of_target) | Err(LookupError::None { ttl: of_target }) => ttl = ttl.min(of_target),
                Err(error) => failure = Some(error),
            }
        }
        let target = |srv: &Srv| {
            let addresses = memory.addresses.get(&*srv.target).cloned().unwrap_or_default();
            Target { priority: srv.priority, weight: srv.weight, port: srv.port, addresses }
        };
        let targets: Vec<_> = records.iter().map(target).collect();
        let located = of_targets(&targets, SERVERS_MAX);
        match (located.is_empty(), failure) {
            (true, Some(failure)) => Err(failure),
            (true, None) => Err(LookupError::None { ttl }),
            (false, _) => Ok(Found { located, ttl }),
        }
    }

    /// Looks up the addresses of hosts.
    async fn answers(&self, hosts: impl Iterator<Item = &str>) -> HashMap<Box<str>, Addresses> {
        let hosts: BTreeSet<Box<str>> = hosts.map(Into::into).collect();
        let mut tasks = JoinSet::new();
        for host in hosts {
            let (resolver, lookups) = (self.resolver.clone(), self.lookups.clone());
            tasks.spawn_local(async move {
                let _permit = lookups.acquire().await;
                let answer = resolver.addresses(&host).await;
                (host, answer)
            });
        }
        tasks.join_all().await.into_iter().collect()
    }
}

/// Result of a lookup of addresses.
type Addresses = Result<Answer<IpAddr>, LookupError>;

/// Servers that a lookup found, and the time for which they are used.
#[derive(Debug)]
struct Found {
    located: Vec<Located>,
    ttl: Duration,
}

/// Earlier lookups of a name.
#[derive(Debug, Default)]
struct Memory {
    /// Latest addresses by host: of the name, or of the targets of its SRV records.
    addresses: HashMap<Box<str>, Vec<IpAddr>>,
    /// True if servers of the name are in use.
    has_servers: bool,
    /// Begin of the answers without servers.
    none_since: Option<Instant>,
    /// Successive lookups without an answer.
    failed: u32,
}

impl Memory {
    /// Returns the memory of an entry, which can have servers since before a reload.
    fn of(entry: &Entry) -> Self {
        let addresses = entry.state.addresses();
        let has_servers = !addresses.is_empty();
        let of_name = entry.server.name().map(|(host, _)| ((**host).into(), addresses));
        Self { has_servers, addresses: of_name.into_iter().collect(), ..Self::default() }
    }

    /// Notes the addresses of a host, and returns their lifetime. A host that is not answered, and
    /// a family of addresses that is not, keeps the ones that it had.
    fn note(&mut self, host: &str, answer: Addresses) -> Result<Duration, LookupError> {
        if let Err(LookupError::None { .. }) = &answer {
            self.addresses.remove(host);
        }
        let Answer { mut records, ttl, missing } = answer?;
        let before = self.addresses.get(host).into_iter().flatten();
        records.extend(before.filter(|address| missing == Some(Family::of(**address))));
        self.addresses.insert(host.into(), records);
        Ok(ttl)
    }

    /// Decides about the result of a lookup at `now`. Returns the servers to use from now on if
    /// they may be others, and the time until the next lookup.
    fn judge(&mut self, found: Result<Found, LookupError>, now: Instant) -> (Option<Vec<Located>>, Duration) {
        self.failed =
            if matches!(found, Err(LookupError::Failed(_))) { self.failed.saturating_add(1) } else { 0 };
        match found {
            Ok(Found { located, ttl }) => {
                self.none_since = None;
                self.has_servers = true;
                (Some(located), ttl)
            }
            Err(LookupError::None { ttl }) => {
                let since = *self.none_since.get_or_insert(now);
                let is_over = !self.has_servers || now.duration_since(since) >= NONE_AFTER;
                self.has_servers &= !is_over;
                (is_over.then(Vec::new), ttl)
            }
            Err(LookupError::Failed(_)) => {
                let doubled = FAILED_FOR.saturating_mul(1 << (self.failed - 1).min(16));
                (None, doubled.min(FAILED_FOR_MAX))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(last: u8) -> Found {
        let located = of_addresses(&[[192, 0, 2, last].into()], 80, SERVERS_MAX);
        Found { located, ttl: Duration::from_secs(5) }
    }

    fn none() -> LookupError {
        LookupError::None { ttl: Duration::from_secs(7) }
    }

    fn failed() -> LookupError {
        LookupError::Failed("no answer".into())
    }

    /// Returns the number of servers to use, if they may be others, and the seconds until the next
    /// lookup.
    fn judge(memory: &mut Memory, found: Result<Found, LookupError>, at: Instant) -> (Option<usize>, u64) {
        let (located, next) = memory.judge(found, at);
        (located.map(|located| located.len()), next.as_secs())
    }

    #[test]
    fn host_and_family_without_an_answer_keep_their_addresses() {
        let mut memory = Memory::default();
        let [v4, other, v6]: [IpAddr; 3] =
            ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|it| it.parse().unwrap());
        let mut note = |records: &[IpAddr], missing| {
            let answer = Answer { records: records.to_vec(), ttl: Duration::from_secs(5), missing };
            assert!(memory.note("a", Ok(answer)).is_ok());
            memory.addresses["a"].clone()
        };
        assert_eq!(note(&[v6, v4], None), [v6, v4]);
        assert_eq!(note(&[other], Some(Family::V6)), [other, v6]);
        assert_eq!(note(&[v6], Some(Family::V4)), [v6, other]);
        assert_eq!(note(&[v4], None), [v4]);
        assert!(memory.note("a", Err(LookupError::Failed("no answer".into()))).is_err());
        assert_eq!(memory.addresses["a"], [v4]);
        assert!(memory.note("a", Err(LookupError::None { ttl: Duration::ZERO })).is_err());
        assert!(memory.addresses.is_empty());
    }

    #[test]
    fn servers_stay_while_no_dns_server_answers() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        assert_eq!(judge(&mut memory, Ok(found(1)), now), (Some(1), 5));
        for next in [1, 2, 4, 8, 16, 30, 30] {
            assert_eq!(judge(&mut memory, Err(failed()), now + NONE_AFTER * 100), (None, next));
        }
        assert_eq!(judge(&mut memory, Ok(found(1)), now), (Some(1), 5));
        assert_eq!(judge(&mut memory, Err(failed()), now), (None, 1));
    }

    #[test]
    fn servers_stay_for_a_while_after_an_answer_without_any() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        assert_eq!(judge(&mut memory, Err(none()), now), (Some(0), 7), "there were none");
        assert_eq!(judge(&mut memory, Ok(found(1)), now), (Some(1), 5));
        assert_eq!(judge(&mut memory, Err(none()), now), (None, 7));
        assert_eq!(judge(&mut memory, Err(failed()), now + NONE_AFTER), (None, 1));
        assert_eq!(judge(&mut memory, Err(none()), now + NONE_AFTER / 2), (None, 7));
        assert_eq!(judge(&mut memory, Ok(found(1)), now), (Some(1), 5), "the answers were wrong");
        assert_eq!(judge(&mut memory, Err(none()), now + NONE_AFTER), (None, 7));
        assert_eq!(judge(&mut memory, Err(none()), now + NONE_AFTER * 2), (Some(0), 7));
    }
}
