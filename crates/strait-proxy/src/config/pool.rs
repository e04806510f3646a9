//! Pools of servers that answer the same requests, with the state of each server, which all workers
//! share.
//!
//! `sites` makes them, [`crate::upstream`] chooses servers and notes their failures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::config::balance::{Candidate, choose};
use crate::config::edge::{self, Balance, Check};
use crate::config::health::{Checked, EjectionRules, Health};
use crate::config::server::Server;

/// Pool of servers.
#[derive(Debug)]
pub(crate) struct ServerPool {
    /// `None` for the origin of the one-line form.
    pub(crate) name: Option<Box<str>>,
    pub(crate) members: Vec<Member>,
    balance: Balance,
    rules: EjectionRules,
    /// Servers that a request is sent to, if the ones before fail.
    pub(crate) attempts: usize,
    pub(crate) check: Option<Check>,
    /// Number of choices.
    turn: AtomicU64,
}

/// Server of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) server: Server,
    weight: u32,
    /// Hash of its address.
    id: u64,
    pub(crate) state: Arc<MemberState>,
}

/// State of a server. A reload keeps it.
#[derive(Debug, Default)]
pub(crate) struct MemberState {
    /// Requests in progress.
    pub(crate) load: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) ejections: AtomicU64,
    health: Mutex<Health>,
    checked: Mutex<Checked>,
}

/// Request in progress at a server, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Load(Arc<MemberState>);

impl Load {
    pub(crate) fn on(member: &Member) -> Self {
        member.state.load.fetch_add(1, Ordering::Relaxed);
        member.state.requests.fetch_add(1, Ordering::Relaxed);
        Self(member.state.clone())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.load.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Member {
    pub(crate) fn new(server: Server, weight: u32) -> Self {
        let id = strait_store::hash_of(server.to_string().as_bytes());
        Self { server, weight, id, state: Arc::default() }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.state.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true while it fails active checks.
    pub(crate) fn is_down(&self) -> bool {
        self.state.checked.lock().unwrap_or_else(PoisonError::into_inner).is_down
    }

    /// Returns true while it gets no requests after failures.
    pub(crate) fn is_ejected(&self, now: u64) -> bool {
        self.health().is_ejected(now)
    }

    fn note_check(&self, has_passed: bool, rise: u32, fall: u32) {
        let mut checked = self.state.checked.lock().unwrap_or_else(PoisonError::into_inner);
        checked.note(has_passed, rise, fall);
    }

    fn candidate(&self, index: usize) -> Candidate {
        let load = self.state.load.load(Ordering::Relaxed);
        Candidate { index, weight: self.weight, load, id: self.id }
    }
}

impl ServerPool {
    /// Returns the pool of one server that has no name.
    pub(crate) fn of_origin(server: Server) -> Self {
        Self::new(None, &edge::Pool::default(), vec![Member::new(server, 1)])
    }

    pub(crate) fn new(name: Option<&str>, config: &edge::Pool, members: Vec<Member>) -> Self {
        Self {
            name: name.map(Into::into),
            attempts: members.len().min(config.retries as usize + 1),
            members,
            balance: config.balance,
            rules: EjectionRules { failures: config.failures, seconds: config.eject },
            check: config.check.clone(),
            turn: AtomicU64::default(),
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

    /// Chooses a server that is not in `tried`, and neither ejected nor down if there is one;
    /// returns its position. `hash` is that of the URI.
    pub(crate) fn choose(&self, now: u64, hash: u64, tried: &[usize]) -> Option<usize> {
        if let ([_], []) = (&*self.members, tried) {
            return Some(0);
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let candidates = |is_wanted: &dyn Fn(&Member) -> bool| -> SmallVec<[Candidate; 16]> {
            let all = self.members.iter().enumerate();
            let wanted = all.filter(|(index, member)| !tried.contains(index) && is_wanted(member));
            wanted.map(|(index, member)| member.candidate(index)).collect()
        };
        let of = |candidates: &[Candidate]| choose(self.balance, turn, hash, candidates);
        of(&candidates(&|member| !member.is_down() && !member.is_ejected(now)))
            .or_else(|| of(&candidates(&|member| !member.is_down())))
            .or_else(|| of(&candidates(&|_| true)))
    }

    /// Returns true if the choice depends on the URI.
    pub(crate) fn is_by_uri(&self) -> bool {
        self.balance == Balance::Uri
    }

    /// Notes the result of an active check.
    pub(crate) fn note_check(&self, index: usize, has_passed: bool) {
        if let (Some(member), Some(check)) = (self.members.get(index), &self.check) {
            member.note_check(has_passed, check.rise, check.fall);
        }
    }

    pub(crate) fn note_success(&self, index: usize) {
        if let Some(member) = self.members.get(index) {
            member.health().note_success();
        }
    }

    /// Counts a failure of a server, which may eject it.
    pub(crate) fn note_failure(&self, index: usize, now: u64) {
        let Some(member) = self.members.get(index) else { return };
        member.state.failures.fetch_add(1, Ordering::Relaxed);
        let mut others = self.members.iter().enumerate().filter(|(other, _)| *other != index);
        let is_last = others.all(|(_, other)| other.is_down() || other.is_ejected(now));
        if member.health().note_failure(self.rules, now, is_last) {
            member.state.ejections.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(servers: u16) -> ServerPool {
        let member = |port| Member::new(Server::Tcp { host: "a".into(), port, is_tls: false }, 1);
        ServerPool::new(Some("p"), &edge::Pool::default(), (1..=servers).map(member).collect())
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
