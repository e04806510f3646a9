//! Server of a pool with its state, which all workers share.
//!
//! [`crate::config::pool`] makes members and chooses among them. A name of the configuration has a
//! member for each of its addresses. Members are equal if they have the same state: a reload, and
//! another weight, make a new member with the state of the old one.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::config::balance::Candidate;
use crate::config::changes::{Change, Changes};
use crate::config::entry::EntryState;
use crate::config::health::{Checked, Health, slow_start_percent};
use crate::config::outlier::Latency;
use crate::config::server::Server;

/// Server of a pool.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) server: Server,
    pub(crate) options: MemberOptions,
    /// Servers of a higher tier get requests only while none of a lower one can answer.
    pub(crate) tier: u32,
    /// Hash of its address.
    pub(crate) id: u64,
    /// Value of the cookie that names it, if the pool sets one.
    pub(crate) cookie: Option<Box<str>>,
    pub(crate) state: Arc<MemberState>,
    /// State of the line of the configuration that it comes from.
    pub(crate) entry: Arc<EntryState>,
}

/// Options of a server, which follow its address in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Queue of the requests that wait for a connection to a server with a maximum of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    /// Maximum of waiting requests.
    pub(crate) waiters: usize,
    /// Time that each of them waits.
    pub(crate) patience: Duration,
}

/// Order in which servers are chosen: one with the least rank. The first difference counts, so an
/// available backup server comes before an ejected server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) availability: Availability,
    pressure: Pressure,
}

/// Part of a rank that does not depend on the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Availability {
    is_out: bool,
    is_ejected: bool,
    tier: u32,
}

/// Requests at a server in comparison with its maximum of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pressure {
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
    /// Ejections after failures.
    pub(crate) ejections: AtomicU64,
    /// Ejections because its responses were far slower than those of the others.
    pub(crate) slow_ejections: AtomicU64,
    /// Requests that were also sent to it because another server was slow.
    pub(crate) hedged: AtomicU64,
    /// Number of these requests that it answered first.
    pub(crate) hedges_won: AtomicU64,
    /// Requests that waited for it, and were sent to no other server because of the budget.
    pub(crate) hedges_refused: AtomicU64,
    /// Requests that got no connection within its limits.
    pub(crate) refused: AtomicU64,
    /// True if the operator has taken it out.
    is_drained: AtomicBool,
    /// True once its name no longer has its address.
    is_gone: AtomicBool,
    /// Time in seconds at which it last became available again; 0: it was always.
    returned: AtomicU64,
    health: Mutex<Health>,
    latency: Mutex<Latency>,
    checked: Mutex<Checked>,
    changes: Mutex<Changes>,
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

    /// Returns true if the server gets no further requests, by the operator or by its name: its
    /// connection is not kept.
    pub(crate) fn is_last(&self) -> bool {
        self.0.is_drained.load(Ordering::Relaxed) || self.0.is_gone.load(Ordering::Relaxed)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.load.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Member {
    /// Returns true if both are the same server of a pool.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    pub(super) fn health(&self) -> MutexGuard<'_, Health> {
        self.state.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn latency(&self) -> MutexGuard<'_, Latency> {
        self.state.latency.lock().unwrap_or_else(PoisonError::into_inner)
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
        let was_drained = self.state.is_drained.swap(is_drained, Ordering::Relaxed);
        if was_drained && !is_drained {
            self.return_at(now);
        }
        if was_drained != is_drained {
            let text = if is_drained { "is drained" } else { "is no longer drained" };
            self.changes().note(now, text.to_owned());
        }
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.state.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last change of its state.
    pub(crate) fn last_change(&self, now: u64) -> Option<Change> {
        self.changes().last(now)
    }

    /// Returns the last change of its state unless it was taken before, with the number of untaken
    /// ones before it.
    pub(crate) fn take_change(&self, now: u64) -> Option<(Change, u64)> {
        self.changes().take(now)
    }

    /// Notes if its name has its address.
    pub(super) fn set_gone(&self, is_gone: bool) {
        self.state.is_gone.store(is_gone, Ordering::Relaxed);
    }

    /// Returns true if its name no longer has its address.
    pub(crate) fn is_gone(&self) -> bool {
        self.state.is_gone.load(Ordering::Relaxed)
    }

    /// Returns true while it gets no requests, even if there is no other server.
    pub(crate) fn is_out(&self) -> bool {
        self.is_down() || self.is_drained()
    }

    /// Returns true while it gets no requests after failures or slow responses.
    pub(crate) fn is_ejected(&self, now: u64) -> bool {
        self.health().is_ejected(now)
    }

    /// Notes the result of a check, or the reason why it failed.
    pub(super) fn note_check(&self, result: Result<(), &str>, now: u64, (rise, fall): (u32, u32)) {
        let mut checked = self.state.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if !checked.note(result.is_ok(), rise, fall) {
            return;
        }
        if result.is_ok() {
            self.return_at(now);
        }
        let text = result.map_or_else(|why| format!("is down: check: {why}"), |()| "is up again".to_owned());
        self.changes().note(now, text);
    }

    /// Notes that it is ejected until the end that `health` has.
    pub(super) fn eject(&self, health: &Health, now: u64, why: &dyn Display) {
        self.state.ejections.fetch_add(1, Ordering::Relaxed);
        self.eject_until(health.end(), now, &format!("{} failures, the last: {why}", health.failures()));
    }

    /// Notes that it is ejected, until the end that `health` has, because it is slow.
    pub(super) fn eject_slow(&self, health: &Health, now: u64) {
        self.state.slow_ejections.fetch_add(1, Ordering::Relaxed);
        self.eject_until(health.end(), now, "its responses begin far later than those of the others");
    }

    fn eject_until(&self, end: u64, now: u64, why: &str) {
        self.return_at(end);
        // A server that is out gets no requests when its ejection ends either.
        if !self.is_out() {
            let text = format!("is ejected for {} s: {why}", end.saturating_sub(now));
            self.changes().eject(now, end, text);
        }
    }

    /// Notes that it is available again from a time on.
    pub(super) fn return_at(&self, time: u64) {
        self.state.returned.store(time, Ordering::Relaxed);
    }

    /// Notes a response.
    pub(crate) fn note_success(&self, now: u64) {
        // A request that was in progress, or one that no other server could answer.
        if self.health().note_success(now) {
            self.return_at(now);
            self.changes().note(now, "returns: a request has succeeded".to_owned());
        }
    }

    /// Counts a request that got no connection within its limits.
    pub(crate) fn note_refused(&self) {
        self.state.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Compares its requests, which include the waiting ones, with its maximum of connections.
    pub(super) fn pressure(&self, queue: Queue) -> Pressure {
        let load = self.state.load.load(Ordering::Relaxed);
        match self.options.connections.map(u64::from) {
            Some(connections) if load >= connections.saturating_add(queue.waiters as u64) => Pressure::IsFull,
            Some(connections) if load >= connections => Pressure::HasQueue,
            Some(_) | None => Pressure::HasConnections,
        }
    }

    pub(super) fn availability(&self, now: u64) -> Availability {
        Availability { is_out: self.is_out(), is_ejected: self.is_ejected(now), tier: self.tier }
    }

    pub(super) fn rank(&self, now: u64, queue: Queue) -> Rank {
        Rank { availability: self.availability(now), pressure: self.pressure(queue) }
    }

    /// Returns the percentage of its weight that applies.
    pub(super) fn percent(&self, now: u64, slow_start: u64) -> u32 {
        slow_start_percent(self.state.returned.load(Ordering::Relaxed), now, slow_start)
    }

    pub(super) fn candidate(&self, index: usize, percent: u32) -> Candidate {
        let load = self.state.load.load(Ordering::Relaxed);
        let weight = self.options.weight.saturating_mul(percent);
        Candidate { index, weight, load, id: self.id }
    }
}
