//! Pools of servers that answer the same requests.
//!
//! `sites` makes them, `server::names` sets the addresses of names, [`crate::upstream`] chooses
//! servers and notes their failures.

use std::collections::HashSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::config::balance::{Candidate, choose};
use crate::config::edge::{self, Balance, Check, OriginHttp2};
use crate::config::entry::{Entry, Located};
use crate::config::health::EjectionRules;
use crate::config::hedge::Hedge;
use crate::config::member::{Member, MemberOptions, Pressure, Queue};
use crate::config::outlier::{Judgement, OutlierRules};
use crate::config::server::Server;
use crate::config::sticky::Sticky;
use crate::config::suspects::{Charge, Suspects};

/// Maximum of servers in a pool: each is compared in a choice. Names with more addresses give the
/// first of them.
pub(crate) const SERVERS_MAX: usize = 256;

/// Pool of servers.
#[derive(Debug)]
pub(crate) struct ServerPool {
    /// `None` for the origin of the one-line form.
    pub(crate) name: Option<Box<str>>,
    /// Lines of the configuration.
    pub(crate) entries: Vec<Entry>,
    /// Servers of all entries. Exchanged when the addresses of a name change.
    members: RwLock<Members>,
    /// Woken after that.
    changed: Notify,
    balance: Balance,
    rules: EjectionRules,
    /// Rules for servers that are far slower than the others, if there are any.
    outlier: Option<OutlierRules>,
    queue: Queue,
    /// Seconds until a server that returns has its whole weight; 0: at once.
    slow_start: u64,
    /// Servers that a request is sent to, if the ones before fail.
    pub(crate) attempts: usize,
    pub(crate) http2: OriginHttp2,
    pub(crate) check: Option<Check>,
    pub(crate) hedge: Option<Hedge>,
    /// Cookie that names the server of a client.
    pub(crate) sticky: Option<Sticky>,
    /// Number of choices.
    turn: AtomicU64,
    suspects: Mutex<Suspects>,
}

/// Servers of a pool at one moment; never empty.
pub(crate) type Members = Arc<[Arc<Member>]>;

impl ServerPool {
    /// Returns the pool of one server that has no name.
    pub(crate) fn of_origin(server: Server) -> Self {
        Self::new(None, &edge::Pool::default(), vec![Entry::new(server, MemberOptions::default())])
    }

    pub(crate) fn new(name: Option<&str>, config: &edge::Pool, entries: Vec<Entry>) -> Self {
        let sticky = Sticky::new(name.unwrap_or_default(), config);
        let members = members(&entries, sticky.as_ref(), &[]);
        Self {
            name: name.map(Into::into),
            sticky,
            attempts: config.retries as usize + 1,
            http2: config.http2,
            entries,
            members: RwLock::new(members),
            changed: Notify::new(),
            balance: config.balance.clone(),
            rules: EjectionRules { failures: config.failures, seconds: config.eject },
            outlier: config.outlier.as_ref().map(OutlierRules::new),
            queue: Queue {
                waiters: config.queue as usize,
                patience: Duration::from_secs(config.queue_timeout),
            },
            slow_start: config.slow_start,
            check: config.check.clone(),
            hedge: config.hedge.as_ref().map(Hedge::new),
            turn: AtomicU64::default(),
            suspects: Mutex::default(),
        }
    }

    /// Returns its servers.
    pub(crate) fn members(&self) -> Members {
        self.members.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes over the addresses of names and the state of servers that `before` has as well.
    pub(crate) fn take_over(&mut self, before: &Self) {
        for entry in &mut self.entries {
            if let Some(same) = before.entries.iter().find(|other| other.server == entry.server) {
                entry.state = same.state.clone();
            }
        }
        self.members = RwLock::new(members(&self.entries, self.sticky.as_ref(), &before.members()));
    }

    /// Forgets failed checks if the pool has no check any more. Servers share their state with the
    /// pool before a reload, so this is for a configuration that is applied.
    pub(crate) fn forget_checks(&self, now: u64) {
        if self.check.is_none() {
            self.members().iter().for_each(|member| member.note_check(Ok(()), now, (1, 1)));
        }
    }

    /// Sets the servers of the entry at a position. Requests in progress stay at their servers. A
    /// new one gets its share of requests slowly from `now` on, unless the name had none before.
    /// Returns true if the servers of the pool have changed.
    pub(crate) fn locate(&self, at: usize, located: Vec<Located>, now: u64) -> bool {
        let Some(entry) = self.entries.get(at) else { return false };
        entry.state.locate(located);
        let mut own = self.members.write().unwrap_or_else(PoisonError::into_inner);
        let before = own.clone();
        let after = members(&self.entries, self.sticky.as_ref(), &before);
        let is_of_entry = |member: &Member| Arc::ptr_eq(&member.entry, &entry.state);
        let had_some = before.iter().any(|member| is_of_entry(member) && member.server.is_at_address());
        let is_in = |all: &Members, member: &Member| all.iter().any(|other| other.is_same(member));
        for member in &*after {
            // A task from before a reload may have noted that it is gone.
            member.set_gone(false);
            if had_some && !is_in(&before, member) {
                member.return_at(now);
            }
        }
        before.iter().filter(|member| !is_in(&after, member)).for_each(|member| member.set_gone(true));
        let has_changed = before.len() != after.len() || {
            let mut pairs = before.iter().zip(&*after);
            pairs.any(|(one, other)| !Arc::ptr_eq(one, other))
        };
        if has_changed {
            *own = after;
            self.changed.notify_one();
        }
        has_changed
    }

    /// Waits until the servers have changed since the last call; for one task.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Chooses a server of the least rank that is not in `tried`. `hash` is that of the part of the
    /// request by which the pool chooses, if it has that part.
    pub(crate) fn choose(&self, now: u64, hash: Option<u64>, tried: &[Arc<Member>]) -> Option<Arc<Member>> {
        let members = self.members();
        if let ([only], []) = (&*members, tried) {
            return Some(only.clone());
        }
        // A request at its next server takes no turn: with two servers, the next request would go
        // to the one that has failed.
        let turn = self.turn.fetch_add(u64::from(tried.is_empty()), Ordering::Relaxed);
        let is_untried = |member: &Member| !tried.iter().any(|other| other.is_same(member));
        let untried = members.iter().enumerate().filter(|(_, member)| is_untried(member));
        let ranked: SmallVec<[_; 16]> =
            untried.map(|(index, member)| (member.rank(now, self.queue), index, member)).collect();
        let least = ranked.iter().map(|(rank, ..)| *rank).min()?;
        let best = ranked.iter().filter(|(rank, ..)| *rank == least);
        let percents = best.map(|(_, index, member)| (member.percent(now, self.slow_start), *index, member));
        let percents: SmallVec<[_; 16]> = percents.collect();
        // Equal percentages leave the weights as they are, so that servers keep their turns.
        let whole = percents.iter().map(|(percent, ..)| *percent).max()?;
        let are_equal = percents.iter().all(|(percent, ..)| *percent == whole);
        let candidate = |(percent, index, member): &(u32, usize, &&Arc<Member>)| {
            member.candidate(*index, if are_equal { 1 } else { *percent })
        };
        let candidates: SmallVec<[Candidate; 16]> = percents.iter().map(candidate).collect();
        choose(&self.balance, turn, hash, &candidates).and_then(|index| members.get(index).cloned())
    }

    /// Returns true if the requests of a client with a cookie for a server go there: no server is
    /// better for a reason other than its load, and its queue is not full.
    pub(crate) fn may_stick(&self, own: &Member, now: u64) -> bool {
        let best = self.members().iter().map(|member| member.availability(now)).min();
        Some(own.availability(now)) == best && own.pressure(self.queue) != Pressure::IsFull
    }

    /// Takes a server, or all servers of a name, out, or back in from `now` on. Returns false if
    /// the pool has no such server or name.
    pub(crate) fn drain(&self, server: &str, is_drained: bool, now: u64) -> bool {
        let named = self.entries.iter().find(|entry| entry.server.to_string() == server);
        if let Some(entry) = named {
            entry.state.drain(is_drained);
        }
        let is_named = |member: &Member| named.is_some_and(|entry| Arc::ptr_eq(&entry.state, &member.entry));
        let members = self.members();
        let found = members.iter().filter(|it| is_named(it) || it.server.to_string() == server);
        found.map(|member| member.drain(is_drained, now)).count() > 0
    }

    /// Returns the servers that have a maximum of connections, with the queue of each.
    pub(crate) fn limited(&self) -> Vec<(Server, u32, Queue)> {
        let members = self.members();
        let limited = members
            .iter()
            .filter_map(|member| Some((member.server.clone(), member.options.connections?, self.queue)));
        limited.collect()
    }

    /// Returns how a server is chosen.
    pub(crate) fn balance(&self) -> &Balance {
        &self.balance
    }

    /// Notes the result of an active check, or the reason why it failed.
    pub(crate) fn note_check(&self, member: &Member, now: u64, result: Result<(), &str>) {
        if let Some(check) = &self.check {
            member.note_check(result, now, (check.rise, check.fall));
        }
    }

    /// Counts the failure of a request that could not be repeated at another server, unless its
    /// client is the likely reason.
    pub(crate) fn note_unrepeated_failure(
        &self,
        member: &Member,
        client: IpAddr,
        now: u64,
        why: &dyn Display,
    ) {
        let charge = {
            let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
            suspects.note(client, member.id, now)
        };
        match charge {
            Charge::Server => self.note_failure(member, now, why),
            // The series of failures at the other server ends, and an ejection by it.
            Charge::Client(Some(other)) => {
                if let Some(other) = self.members().iter().find(|it| it.id == other) {
                    other.note_success(now);
                }
            }
            Charge::Client(None) => {}
        }
    }

    /// Counts a failure of a server, which may eject it.
    pub(crate) fn note_failure(&self, member: &Member, now: u64, why: &dyn Display) {
        member.state.failures.fetch_add(1, Ordering::Relaxed);
        let is_last = self.others(member, now).next().is_none();
        let mut health = member.health();
        if health.note_failure(self.rules, now, is_last) {
            member.eject(&health, now, why);
        }
    }

    /// Returns true if the times of responses are to be noted.
    pub(crate) fn has_outliers(&self) -> bool {
        self.outlier.is_some()
    }

    /// Notes the time to the head of a response to `client`, which may eject the server. Responses
    /// of requests that were in progress at an ejection do not count.
    pub(crate) fn note_time(&self, member: &Member, client: IpAddr, time: Duration, now: u64) {
        let Some(rules) = self.outlier.filter(|_| !member.is_ejected(now)) else { return };
        let Some(own) = member.latency().add(rules, client, time) else { return };
        let members = self.members();
        let others = || members.iter().filter(|other| !other.is_same(member) && !other.is_out());
        // Ejected servers stay in the comparison: without them, the next slowest one would be
        // judged by fewer.
        let mut medians: SmallVec<[u32; 16]> =
            others().filter_map(|other| other.latency().median_us()).collect();
        let ejected = others().filter(|other| other.is_ejected(now)).count();
        // At least half of the servers stay.
        let are_few_left = (ejected + 1) * 2 > others().count() + 1;
        let judgement = member.latency().judge(rules, own, &mut medians);
        let mut health = member.health();
        match judgement {
            Judgement::Outlier if health.note_outlier(self.rules, now, are_few_left) => {
                member.eject_slow(&health, now);
                drop(health);
                member.latency().forget_times();
            }
            Judgement::Usual => health.note_usual_times(),
            Judgement::None | Judgement::Slow | Judgement::Outlier => {}
        }
    }

    /// Iterates over the other servers that get requests.
    fn others<'m>(&self, member: &'m Member, now: u64) -> impl Iterator<Item = Arc<Member>> + use<'m> {
        let members = self.members().to_vec();
        let is_in =
            move |other: &Arc<Member>| !other.is_same(member) && !other.is_out() && !other.is_ejected(now);
        members.into_iter().filter(is_in)
    }
}

/// Makes the servers of all entries, at most [`SERVERS_MAX`], with the state that they have in
/// `before`. A server that is the same in all respects stays as it is.
fn members(entries: &[Entry], sticky: Option<&Sticky>, before: &[Arc<Member>]) -> Members {
    let member = |(entry, (server, options, tier)): (&Entry, (Server, MemberOptions, u32))| {
        let same = before.iter().find(|other| other.server == server);
        let is_equal = |other: &&Arc<Member>| {
            let is_same_entry = Arc::ptr_eq(&other.entry, &entry.state);
            is_same_entry && other.options == options && other.tier == tier
        };
        let cookie = sticky.map(|sticky| sticky.value(&server));
        if let Some(same) = same.filter(is_equal).filter(|other| other.cookie == cookie) {
            return same.clone();
        }
        let state = same.map(|same| same.state.clone()).unwrap_or_default();
        let id = strait_store::hash_of(server.to_string().as_bytes());
        let member = Member { server, options, tier, id, cookie, state, entry: entry.state.clone() };
        if same.is_none() && entry.state.is_drained() {
            member.drain(true, 0);
        }
        Arc::new(member)
    };
    // A server of two entries belongs to the first.
    let mut known = HashSet::new();
    let mut is_new = |server: &Server| known.insert(server.clone());
    let wanted = entries
        .iter()
        .map(|entry| entry.servers().into_iter().filter(|(server, ..)| is_new(server)).collect::<Vec<_>>());
    let wanted: Vec<_> = wanted.collect();
    let numbers = divided(&wanted.iter().map(Vec::len).collect::<Vec<_>>(), SERVERS_MAX);
    let of_entries = entries.iter().zip(wanted).zip(numbers);
    let members = of_entries
        .flat_map(|((entry, servers), number)| servers.into_iter().take(number).map(move |it| (entry, it)));
    members.map(member).collect()
}

/// Divides at most `max` servers among entries that want a number of them: as equally as possible,
/// so that a name with many addresses removes no other server.
fn divided(wanted: &[usize], max: usize) -> Vec<usize> {
    let mut shares = vec![0; wanted.len()];
    let mut left = max.min(wanted.iter().sum());
    while left > 0 {
        for (share, wanted) in shares.iter_mut().zip(wanted) {
            let more = usize::from(*share < *wanted && left > 0);
            *share += more;
            left -= more;
        }
    }
    shares
}

#[cfg(test)]
mod tests;
