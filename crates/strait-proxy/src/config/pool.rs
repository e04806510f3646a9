//! Pools of servers that answer the same requests, with the state of each server, which all workers
//! share.
//!
//! `sites` makes them, [`crate::upstream`] chooses servers and notes their failures.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use crate::config::balance::{Candidate, choose};
use crate::config::edge::{self, Balance, Check};
use crate::config::health::{Checked, EjectionRules, Health, slow_start_percent};
use crate::config::server::Server;
use crate::config::sticky::Sticky;
use crate::config::suspects::{Charge, Suspects};

/// Pool of servers.
#[derive(Debug)]
pub(crate) struct ServerPool {
    /// `None` for the origin of the one-line form.
    pub(crate) name: Option<Box<str>>,
    pub(crate) members: Vec<Member>,
    balance: Balance,
    rules: EjectionRules,
    queue: Queue,
    /// Seconds until a server that returns has its whole weight; 0: at once.
    slow_start: u64,
    /// Servers that a request is sent to, if the ones before fail.
    pub(crate) attempts: usize,
    pub(crate) check: Option<Check>,
    /// Cookie that names the server of a client.
    pub(crate) sticky: Option<Sticky>,
    /// Number of choices.
    turn: AtomicU64,
    suspects: Mutex<Suspects>,
}

/// Queue of the requests that wait for a connection to a server with a maximum of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    /// Maximum of waiting requests.
    pub(crate) waiters: usize,
    /// Time that each of them waits.
    pub(crate) patience: Duration,
}

/// Server of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) server: Server,
    pub(crate) options: MemberOptions,
    /// Hash of its address.
    id: u64,
    pub(crate) state: Arc<MemberState>,
}

/// Options of a server, which follow its address in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberOptions {
    /// Share of the requests, at least 1.
    pub(crate) weight: u32,
    /// True if it gets requests only while no other server can answer.
    pub(crate) is_backup: bool,
    /// Maximum of its connections in use.
    pub(crate) connections: Option<u32>,
}

impl Default for MemberOptions {
    fn default() -> Self {
        Self { weight: 1, is_backup: false, connections: None }
    }
}

/// Order in which servers are chosen: one with the least rank. The first difference counts, so an
/// available backup server comes before an ejected server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_out: bool,
    is_ejected: bool,
    is_backup: bool,
    pressure: Pressure,
}

/// Requests at a server in comparison with its maximum of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pressure {
    HasConnections,
    HasQueue,
    IsFull,
}

/// State of a server. A reload keeps it.
#[derive(Debug, Default)]
pub(crate) struct MemberState {
    /// Requests in progress, which may wait for a connection.
    pub(crate) load: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) ejections: AtomicU64,
    /// Requests that got no connection within its limits.
    pub(crate) refused: AtomicU64,
    /// True if the operator has taken it out.
    is_drained: AtomicBool,
    /// Time in seconds at which it last became available again; 0: it was always.
    returned: AtomicU64,
    health: Mutex<Health>,
    checked: Mutex<Checked>,
}

/// Request in progress at a server, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Load(Arc<MemberState>);

impl Load {
    pub(crate) fn on(member: &Member) -> Self {
        member.state.requests.fetch_add(1, Ordering::Relaxed);
        Self::waiting(member)
    }

    /// Load of a request that waits for its client's share, before it is sent.
    pub(crate) fn waiting(member: &Member) -> Self {
        member.state.load.fetch_add(1, Ordering::Relaxed);
        Self(member.state.clone())
    }
}

impl Load {
    /// Returns true if the server gets no further requests from the operator's point of view: its
    /// connection is not kept.
    pub(crate) fn is_drained(&self) -> bool {
        self.0.is_drained.load(Ordering::Relaxed)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.load.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Member {
    pub(crate) fn new(server: Server, options: MemberOptions) -> Self {
        let id = strait_store::hash_of(server.to_string().as_bytes());
        Self { server, options, id, state: Arc::default() }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.state.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true while it fails active checks.
    pub(crate) fn is_down(&self) -> bool {
        self.state.checked.lock().unwrap_or_else(PoisonError::into_inner).is_down
    }

    /// Returns true while the operator has taken it out.
    pub(crate) fn is_drained(&self) -> bool {
        self.state.is_drained.load(Ordering::Relaxed)
    }

    /// Takes it out, or back in from `now` on.
    pub(crate) fn drain(&self, is_drained: bool, now: u64) {
        if self.state.is_drained.swap(is_drained, Ordering::Relaxed) && !is_drained {
            self.return_at(now);
        }
    }

    /// Returns true while it gets no requests, even if there is no other server.
    pub(crate) fn is_out(&self) -> bool {
        self.is_down() || self.is_drained()
    }

    /// Returns true while it gets no requests after failures.
    pub(crate) fn is_ejected(&self, now: u64) -> bool {
        self.health().is_ejected(now)
    }

    /// Returns true if it comes up.
    fn note_check(&self, has_passed: bool, rise: u32, fall: u32) -> bool {
        let mut checked = self.state.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let was_down = checked.is_down;
        checked.note(has_passed, rise, fall);
        was_down && !checked.is_down
    }

    /// Notes that it is available again from a time on.
    fn return_at(&self, time: u64) {
        self.state.returned.store(time, Ordering::Relaxed);
    }

    /// Counts a request that got no connection within its limits.
    pub(crate) fn note_refused(&self) {
        self.state.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Compares its requests, which include the waiting ones, with its maximum of connections.
    fn pressure(&self, queue: Queue) -> Pressure {
        let load = self.state.load.load(Ordering::Relaxed);
        match self.options.connections.map(u64::from) {
            Some(connections) if load >= connections.saturating_add(queue.waiters as u64) => Pressure::IsFull,
            Some(connections) if load >= connections => Pressure::HasQueue,
            Some(_) | None => Pressure::HasConnections,
        }
    }

    fn rank(&self, now: u64, queue: Queue) -> Rank {
        Rank {
            is_out: self.is_out(),
            is_ejected: self.is_ejected(now),
            is_backup: self.options.is_backup,
            pressure: self.pressure(queue),
        }
    }

    /// Returns the percentage of its weight that applies.
    fn percent(&self, now: u64, slow_start: u64) -> u32 {
        slow_start_percent(self.state.returned.load(Ordering::Relaxed), now, slow_start)
    }

    fn candidate(&self, index: usize, percent: u32) -> Candidate {
        let load = self.state.load.load(Ordering::Relaxed);
        Candidate { index, weight: self.options.weight * percent, load, id: self.id }
    }
}

impl ServerPool {
    /// Returns the pool of one server that has no name.
    pub(crate) fn of_origin(server: Server) -> Self {
        Self::new(None, &edge::Pool::default(), vec![Member::new(server, MemberOptions::default())])
    }

    pub(crate) fn new(name: Option<&str>, config: &edge::Pool, members: Vec<Member>) -> Self {
        Self {
            name: name.map(Into::into),
            sticky: Sticky::new(name.unwrap_or_default(), config, &members),
            attempts: members.len().min(config.retries as usize + 1),
            members,
            balance: config.balance,
            rules: EjectionRules { failures: config.failures, seconds: config.eject },
            queue: Queue {
                waiters: config.queue as usize,
                patience: Duration::from_secs(config.queue_timeout),
            },
            slow_start: config.slow_start,
            check: config.check.clone(),
            turn: AtomicU64::default(),
            suspects: Mutex::default(),
        }
    }

    /// Takes over the state of the servers that `before` has as well.
    pub(crate) fn take_over(&mut self, before: &Self) {
        for member in &mut self.members {
            if let Some(same) = before.members.iter().find(|other| other.server == member.server) {
                member.state = same.state.clone();
                if self.check.is_none() {
                    member.note_check(true, 1, 1);
                }
            }
        }
    }

    /// Chooses a server of the least rank that is not in `tried`, and returns its position. `hash`
    /// is that of the URI.
    pub(crate) fn choose(&self, now: u64, hash: u64, tried: &[usize]) -> Option<usize> {
        if let ([_], []) = (&*self.members, tried) {
            return Some(0);
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let untried = self.members.iter().enumerate().filter(|(index, _)| !tried.contains(index));
        let ranked: SmallVec<[_; 16]> =
            untried.map(|(index, member)| (member.rank(now, self.queue), index, member)).collect();
        let least = ranked.iter().map(|(rank, ..)| *rank).min()?;
        let best = ranked.iter().filter(|(rank, ..)| *rank == least);
        let percents = best.map(|(_, index, member)| (member.percent(now, self.slow_start), *index, member));
        let percents: SmallVec<[_; 16]> = percents.collect();
        // Equal percentages leave the weights as they are, so that servers keep their turns.
        let whole = percents.iter().map(|(percent, ..)| *percent).max()?;
        let are_equal = percents.iter().all(|(percent, ..)| *percent == whole);
        let candidate = |(percent, index, member): &(u32, usize, &&Member)| {
            member.candidate(*index, if are_equal { 1 } else { *percent })
        };
        let candidates: SmallVec<[_; 16]> = percents.iter().map(candidate).collect();
        choose(self.balance, turn, hash, &candidates)
    }

    /// Returns true if the requests of a client with a cookie for the server at a position go
    /// there: no server is better for a reason other than its load, and its queue is not full.
    pub(crate) fn may_stick(&self, at: usize, now: u64) -> bool {
        let availability = |member: &Member| {
            let Rank { is_out, is_ejected, is_backup, .. } = member.rank(now, self.queue);
            (is_out, is_ejected, is_backup)
        };
        self.members.get(at).is_some_and(|own| {
            let best = self.members.iter().map(availability).min();
            Some(availability(own)) == best && own.pressure(self.queue) != Pressure::IsFull
        })
    }

    /// Returns the servers that have a maximum of connections, with the queue of each.
    pub(crate) fn limited(&self) -> impl Iterator<Item = (&Server, u32, Queue)> {
        self.members
            .iter()
            .filter_map(|member| Some((&member.server, member.options.connections?, self.queue)))
    }

    /// Returns true if the choice depends on the URI.
    pub(crate) fn is_by_uri(&self) -> bool {
        self.balance == Balance::Uri
    }

    /// Notes the result of an active check.
    pub(crate) fn note_check(&self, index: usize, now: u64, has_passed: bool) {
        if let (Some(member), Some(check)) = (self.members.get(index), &self.check)
            && member.note_check(has_passed, check.rise, check.fall)
        {
            member.return_at(now);
        }
    }

    pub(crate) fn note_success(&self, index: usize, now: u64) {
        let Some(member) = self.members.get(index) else { return };
        let mut health = member.health();
        if health.is_ejected(now) {
            // A request that was in progress, or one that no other server could answer.
            member.return_at(now);
        }
        health.note_success();
    }

    /// Counts the failure of a request that could not be repeated at another server, unless its
    /// client is the likely reason.
    pub(crate) fn note_unrepeated_failure(&self, index: usize, client: IpAddr, now: u64) {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        match suspects.note(client, index, now) {
            Charge::Server => self.note_failure(index, now),
            // The series of failures at the other server ends, and an ejection by it.
            Charge::Client(Some(other)) => self.note_success(other, now),
            Charge::Client(None) => {}
        }
    }

    /// Counts a failure of a server, which may eject it.
    pub(crate) fn note_failure(&self, index: usize, now: u64) {
        let Some(member) = self.members.get(index) else { return };
        member.state.failures.fetch_add(1, Ordering::Relaxed);
        let mut others = self.members.iter().enumerate().filter(|(other, _)| *other != index);
        let is_last = others.all(|(_, other)| other.is_out() || other.is_ejected(now));
        let mut health = member.health();
        if health.note_failure(self.rules, now, is_last) {
            member.state.ejections.fetch_add(1, Ordering::Relaxed);
            member.return_at(health.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(servers: u16) -> ServerPool {
        pool_of(&(1..=servers).map(|_| MemberOptions::default()).collect::<Vec<_>>(), 0)
    }

    fn pool_of(servers: &[MemberOptions], slow_start: u64) -> ServerPool {
        let member = |(port, options): (u16, &MemberOptions)| {
            Member::new(Server::Tcp { host: "a".into(), port, is_tls: false }, *options)
        };
        let check = Some(Check { rise: 1, fall: 1, ..Check::default() });
        let config = edge::Pool { slow_start, check, ..edge::Pool::default() };
        ServerPool::new(Some("p"), &config, (1..).zip(servers).map(member).collect())
    }

    /// Returns the numbers of choices of each server, of a hundred for each.
    fn shares(pool: &ServerPool, now: u64) -> Vec<usize> {
        let mut counts = vec![0; pool.members.len()];
        for _ in 0..100 * counts.len() {
            counts[pool.choose(now, 0, &[]).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn backup_is_chosen_while_no_other_server_is_available() {
        let (main, backup) =
            (MemberOptions::default(), MemberOptions { is_backup: true, ..MemberOptions::default() });
        let pool = pool_of(&[main, backup, main, backup], 0);
        assert_eq!(shares(&pool, 100), [200, 0, 200, 0]);
        assert_eq!(pool.choose(100, 0, &[0]), Some(2));
        assert!(matches!(pool.choose(100, 0, &[0, 2]), Some(1 | 3)));
        (0..3).for_each(|_| pool.note_failure(0, 100));
        pool.note_check(2, 100, false);
        assert_eq!(shares(&pool, 100), [0, 200, 0, 200]);
        // An ejected server comes before one that is down, and after the available ones.
        (0..3).for_each(|_| pool.note_failure(1, 100));
        pool.note_check(3, 100, false);
        assert_eq!(shares(&pool, 100), [400, 0, 0, 0]);
        pool.note_check(2, 100, true);
        assert_eq!(shares(&pool, 100), [0, 0, 400, 0]);
        assert_eq!(shares(&pool, 110), [200, 0, 200, 0]);
    }

    #[test]
    fn server_with_free_connections_is_chosen_before_a_queue_and_a_queue_before_a_backup() {
        let limited = MemberOptions { connections: Some(1), ..MemberOptions::default() };
        let backup = MemberOptions { is_backup: true, ..MemberOptions::default() };
        let mut pool = pool_of(&[limited, limited, backup], 0);
        pool.queue.waiters = 1;
        let mut loads = Vec::new();
        for expected in [[1, 1], [2, 1], [2, 2], [3, 2]] {
            let chosen = pool.choose(100, 0, &[]).unwrap();
            assert!(chosen < 2, "{expected:?}");
            loads.push(Load::on(&pool.members[chosen]));
            if loads.len() == 1 {
                assert_eq!(pool.choose(100, 0, &[]), Some(1 - chosen));
                loads.push(Load::on(&pool.members[1 - chosen]));
            }
            let mut now = [0, 1].map(|at| pool.members[at].state.load.load(Ordering::Relaxed));
            now.sort_unstable_by(|one, other| other.cmp(one));
            assert_eq!(now, expected);
        }
    }

    #[test]
    fn weight_of_a_server_that_returns_grows_with_time() {
        let main = MemberOptions { weight: 2, ..MemberOptions::default() };
        let grows = |pool: &ServerPool, from: u64| {
            // 1 %, 25 %, 50 % and all of the weight of the other server.
            for (after, expected) in [(0, 2), (10, 40), (20, 66), (40, 100), (1000, 100)] {
                let counts = shares(pool, from + after);
                assert!(counts[1].abs_diff(expected) <= 2, "after {after}: {counts:?}");
            }
        };
        let pool = pool_of(&[main, main], 40);
        assert_eq!(shares(&pool, 100), [100, 100], "no slow start at the start");
        pool.note_check(1, 100, false);
        pool.note_check(1, 200, true);
        grows(&pool, 200);
        (0..3).for_each(|_| pool.note_failure(1, 2000));
        assert_eq!(shares(&pool, 2009), [200, 0]);
        grows(&pool, 2010);
        (0..3).for_each(|_| pool.note_failure(1, 4000));
        pool.note_success(1, 4005);
        grows(&pool, 4005);
    }

    #[test]
    fn ejected_server_is_not_chosen_and_the_last_one_stays() {
        let pool = pool(3);
        for index in [0, 1, 2] {
            for _ in 0..10 {
                pool.note_failure(index, 100);
            }
        }
        let chosen = |now| (0..9).map(|_| pool.choose(now, 0, &[]).unwrap()).collect::<Vec<_>>();
        assert_eq!(chosen(100), [2; 9]);
        // A retry goes to an ejected one if there is no other.
        assert!(pool.choose(100, 0, &[2]).is_some_and(|index| index < 2));
        let mut later = chosen(110);
        later.sort_unstable();
        assert_eq!(later, [0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(pool.choose(100, 0, &[0, 1, 2]), None);
    }

    #[test]
    fn state_of_a_server_survives_a_reload() {
        let before = pool(2);
        let load = Load::on(&before.members[1]);
        (0..3).for_each(|_| before.note_failure(1, 100));
        let mut after = pool(3);
        after.take_over(&before);
        assert!(after.members[1].is_ejected(101) && !after.members[0].is_ejected(101));
        assert_eq!(after.members[1].state.load.load(Ordering::Relaxed), 1);
        drop(load);
        assert_eq!(after.members[1].state.load.load(Ordering::Relaxed), 0);
    }
}
