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
use crate::config::member::{Member, MemberOptions, Pressure, Queue};
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
    queue: Queue,
    /// Seconds until a server that returns has its whole weight; 0: at once.
    slow_start: u64,
    /// Servers that a request is sent to, if the ones before fail.
    pub(crate) attempts: usize,
    pub(crate) http2: OriginHttp2,
    pub(crate) check: Option<Check>,
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

    /// Chooses a server of the least rank that is not in `tried`. `hash` is that of the URI.
    pub(crate) fn choose(&self, now: u64, hash: u64, tried: &[Arc<Member>]) -> Option<Arc<Member>> {
        let members = self.members();
        if let ([only], []) = (&*members, tried) {
            return Some(only.clone());
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
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
        choose(self.balance, turn, hash, &candidates).and_then(|index| members.get(index).cloned())
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

    /// Returns true if the choice depends on the URI.
    pub(crate) fn is_by_uri(&self) -> bool {
        self.balance == Balance::Uri
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
        let members = self.members();
        let mut others = members.iter().filter(|other| !other.is_same(member));
        let is_last = others.all(|other| other.is_out() || other.is_ejected(now));
        let mut health = member.health();
        if health.note_failure(self.rules, now, is_last) {
            member.eject(&health, now, why);
        }
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
mod tests {
    use super::*;
    use crate::config::entry::{Target, of_addresses, of_targets};
    use crate::config::member::Load;

    fn pool(servers: u16) -> ServerPool {
        pool_of(&(1..=servers).map(|_| MemberOptions::default()).collect::<Vec<_>>(), 0)
    }

    fn pool_of(servers: &[MemberOptions], slow_start: u64) -> ServerPool {
        let entry =
            |(port, options): (u16, &MemberOptions)| Entry::new(Server::tcp("a", port, false), *options);
        let check = Some(Check { rise: 1, fall: 1, ..Check::default() });
        let config = edge::Pool { slow_start, check, ..edge::Pool::default() };
        ServerPool::new(Some("p"), &config, (1..).zip(servers).map(entry).collect())
    }

    /// Returns the position of a chosen server, if the ones at `tried` were tried.
    fn choose(pool: &ServerPool, now: u64, tried: &[usize]) -> Option<usize> {
        let members = pool.members();
        let tried: Vec<_> = tried.iter().map(|at| members[*at].clone()).collect();
        let chosen = pool.choose(now, 0, &tried)?;
        members.iter().position(|member| member.is_same(&chosen))
    }

    /// Returns the numbers of choices of each server, of a hundred for each.
    fn shares(pool: &ServerPool, now: u64) -> Vec<usize> {
        let mut counts = vec![0; pool.members().len()];
        for _ in 0..100 * counts.len() {
            counts[choose(pool, now, &[]).unwrap()] += 1;
        }
        counts
    }

    fn fail(pool: &ServerPool, at: usize, now: u64) {
        pool.note_failure(&pool.members()[at], now, &"refused");
    }

    fn check(pool: &ServerPool, at: usize, now: u64, has_passed: bool) {
        pool.note_check(&pool.members()[at], now, if has_passed { Ok(()) } else { Err("refused") });
    }

    #[test]
    fn backup_is_chosen_while_no_other_server_is_available() {
        let (main, backup) =
            (MemberOptions::default(), MemberOptions { is_backup: true, ..MemberOptions::default() });
        let pool = pool_of(&[main, backup, main, backup], 0);
        assert_eq!(shares(&pool, 100), [200, 0, 200, 0]);
        assert_eq!(choose(&pool, 100, &[0]), Some(2));
        assert!(matches!(choose(&pool, 100, &[0, 2]), Some(1 | 3)));
        (0..3).for_each(|_| fail(&pool, 0, 100));
        check(&pool, 2, 100, false);
        assert_eq!(shares(&pool, 100), [0, 200, 0, 200]);
        // An ejected server comes before one that is down, and after the available ones.
        (0..3).for_each(|_| fail(&pool, 1, 100));
        check(&pool, 3, 100, false);
        assert_eq!(shares(&pool, 100), [400, 0, 0, 0]);
        check(&pool, 2, 100, true);
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
            let chosen = choose(&pool, 100, &[]).unwrap();
            assert!(chosen < 2, "{expected:?}");
            loads.push(Load::on(&pool.members()[chosen]));
            if loads.len() == 1 {
                assert_eq!(choose(&pool, 100, &[]), Some(1 - chosen));
                loads.push(Load::on(&pool.members()[1 - chosen]));
            }
            let mut now = [0, 1].map(|at| pool.members()[at].state.load.load(Ordering::Relaxed));
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
        check(&pool, 1, 100, false);
        check(&pool, 1, 200, true);
        grows(&pool, 200);
        (0..3).for_each(|_| fail(&pool, 1, 2000));
        assert_eq!(shares(&pool, 2009), [200, 0]);
        grows(&pool, 2010);
        (0..3).for_each(|_| fail(&pool, 1, 4000));
        pool.members()[1].note_success(4005);
        grows(&pool, 4005);
    }

    #[test]
    fn ejected_server_is_not_chosen_and_the_last_one_stays() {
        let pool = pool(3);
        for index in [0, 1, 2] {
            for _ in 0..10 {
                fail(&pool, index, 100);
            }
        }
        let chosen = |now| (0..9).map(|_| choose(&pool, now, &[]).unwrap()).collect::<Vec<_>>();
        assert_eq!(chosen(100), [2; 9]);
        // A retry goes to an ejected one if there is no other.
        assert!(choose(&pool, 100, &[2]).is_some_and(|index| index < 2));
        let mut later = chosen(110);
        later.sort_unstable();
        assert_eq!(later, [0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(choose(&pool, 100, &[0, 1, 2]), None);
    }

    /// Pool of a name and a server.
    fn named(slow_start: u64) -> ServerPool {
        let options = MemberOptions { weight: 2, ..MemberOptions::default() };
        let name = Entry::new(Server::tcp("a.example", 80, false), options);
        let other = Entry::new(Server::tcp("10.0.0.1", 80, false), MemberOptions::default());
        ServerPool::new(Some("p"), &edge::Pool { slow_start, ..edge::Pool::default() }, vec![name, other])
    }

    fn locate(pool: &ServerPool, addresses: &[u8], now: u64) {
        let addresses: Vec<_> = addresses.iter().map(|last| IpAddr::from([192, 0, 2, *last])).collect();
        pool.locate(0, of_addresses(&addresses, 80, SERVERS_MAX), now);
    }

    fn texts(pool: &ServerPool) -> Vec<String> {
        pool.members().iter().map(|member| member.server.to_string()).collect()
    }

    #[test]
    fn each_address_of_a_name_is_a_server_with_its_options() {
        let pool = named(0);
        assert_eq!(texts(&pool), ["a.example:80", "10.0.0.1:80"]);
        locate(&pool, &[2, 1], 100);
        assert_eq!(texts(&pool), ["a.example:80@192.0.2.1", "a.example:80@192.0.2.2", "10.0.0.1:80"]);
        assert_eq!(shares(&pool, 100), [120, 120, 60]);
        locate(&pool, &[], 100);
        assert_eq!(texts(&pool), ["a.example:80", "10.0.0.1:80"]);
    }

    #[test]
    fn address_that_stays_keeps_its_state_and_one_that_leaves_gets_no_more_requests() {
        let pool = named(0);
        locate(&pool, &[1, 2], 100);
        let before = pool.members();
        let load = Load::on(&before[0]);
        (0..3).for_each(|_| fail(&pool, 1, 100));
        locate(&pool, &[2, 3], 100);
        let after = pool.members();
        assert!(Arc::ptr_eq(&before[1], &after[0]) && after[0].is_ejected(101));
        assert!(before[0].is_gone() && load.is_last() && !after[1].is_gone());
        // A failure after it has left ejects no other.
        (0..9).for_each(|_| pool.note_failure(&before[0], 100, &"refused"));
        assert!(!after[1].is_ejected(101));
        // Equal records change nothing.
        locate(&pool, &[2, 3], 100);
        assert!(after.iter().zip(pool.members().iter()).all(|(one, other)| Arc::ptr_eq(one, other)));
        // An address that comes back is a new server.
        locate(&pool, &[1], 100);
        assert!(!pool.members()[0].is_same(&before[0]) && !pool.members()[0].is_gone());
    }

    #[test]
    fn address_that_joins_gets_its_share_slowly_unless_it_is_among_the_first() {
        let pool = named(40);
        locate(&pool, &[1], 100);
        assert_eq!(shares(&pool, 100), [134, 66]);
        locate(&pool, &[1, 2], 200);
        assert!(shares(&pool, 200)[1] < 5 && shares(&pool, 240)[1] == 120);
    }

    #[test]
    fn weight_of_a_record_changes_and_the_state_stays() {
        let service = Server::service("srv://_http._tcp.example.org").unwrap().unwrap();
        let entries = vec![Entry::new(service, MemberOptions::default())];
        let pool = ServerPool::new(Some("p"), &edge::Pool::default(), entries);
        let record = |priority, weight, last| Target {
            priority,
            weight,
            port: 80,
            addresses: vec![[192, 0, 2, last].into()],
        };
        let locate = |records: &[Target]| pool.locate(0, of_targets(records, SERVERS_MAX), 100);
        locate(&[record(1, 1, 1), record(1, 3, 2), record(2, 1, 3)]);
        assert_eq!(shares(&pool, 100), [75, 225, 0]);
        let before = pool.members();
        locate(&[record(1, 1, 1), record(1, 1, 2), record(1, 1, 3)]);
        assert_eq!(shares(&pool, 100), [100, 100, 100]);
        let after = pool.members();
        assert!(before.iter().zip(after.iter()).all(|(one, other)| one.is_same(other) && !one.is_gone()));
        // A priority is used once no server of a lower one is available.
        locate(&[record(1, 1, 1), record(2, 1, 2), record(3, 1, 3)]);
        (0..3).for_each(|_| fail(&pool, 0, 100));
        assert_eq!(shares(&pool, 101), [0, 300, 0]);
        (0..3).for_each(|_| fail(&pool, 1, 101));
        assert_eq!(shares(&pool, 102), [0, 0, 300]);
    }

    #[test]
    fn pool_has_a_limited_number_of_servers() {
        let name = |host: &str| Entry::new(Server::tcp(host, 80, false), MemberOptions::default());
        let pool =
            ServerPool::new(Some("p"), &edge::Pool::default(), vec![name("a.example"), name("b.example")]);
        let all: Vec<_> = (0..=255).map(|last| IpAddr::from([192, 0, 2, last])).collect();
        pool.locate(0, of_addresses(&all, 80, SERVERS_MAX), 100);
        pool.locate(1, of_addresses(&all, 80, SERVERS_MAX), 100);
        assert_eq!(pool.members().len(), SERVERS_MAX);
    }

    #[test]
    fn name_with_many_addresses_removes_no_other_server() {
        assert_eq!(divided(&[9, 1, 3, 1], 10), [5, 1, 3, 1]);
        assert_eq!(divided(&[1, 2], 10), [1, 2]);
        let entry = |host: &str| Entry::new(Server::tcp(host, 80, false), MemberOptions::default());
        let entries = vec![entry("a.example"), entry("192.0.2.1"), entry("b.example")];
        let pool = ServerPool::new(Some("p"), &edge::Pool::default(), entries);
        let all: Vec<_> = (0..=255).map(|last| IpAddr::from([192, 0, 2, last])).collect();
        pool.locate(0, of_addresses(&all, 80, SERVERS_MAX), 100);
        pool.locate(2, of_addresses(&all[..2], 80, SERVERS_MAX), 100);
        let members = pool.members();
        let of =
            |at: usize| members.iter().filter(|it| Arc::ptr_eq(&it.entry, &pool.entries[at].state)).count();
        assert_eq!((members.len(), of(0), of(1), of(2)), (SERVERS_MAX, SERVERS_MAX - 3, 1, 2));
    }

    #[test]
    fn server_of_two_entries_occurs_once() {
        let entry = |text: &str| Entry::new(Server::parse(text).unwrap(), MemberOptions::default());
        let entries = vec![entry("srv://_http._tcp.a.example"), entry("http://a.example:80")];
        let pool = ServerPool::new(Some("p"), &edge::Pool::default(), entries);
        let locate = |at| pool.locate(at, of_addresses(&[[192, 0, 2, 1].into()], 80, SERVERS_MAX), 100);
        assert!(locate(0) && locate(1));
        assert_eq!(pool.members().len(), 1);
        assert!(!locate(0) && !locate(1), "nothing has changed");
    }

    #[test]
    fn addresses_survive_a_reload() {
        let before = named(0);
        locate(&before, &[1, 2], 100);
        (0..3).for_each(|_| fail(&before, 0, 100));
        before.drain("a.example:80", true, 100);
        let mut after = named(0);
        after.take_over(&before);
        assert_eq!(texts(&after), texts(&before));
        assert!(after.members()[0].is_ejected(101) && after.members()[1].is_drained());
        locate(&after, &[3], 100);
        assert!(after.members()[0].is_drained() && !after.members()[1].is_drained());
    }

    #[test]
    fn failed_checks_are_forgotten_only_when_a_pool_without_a_check_is_applied() {
        let before = pool(1);
        before.members()[0].note_check(Err("refused"), 100, (1, 1));
        let mut after = pool(1);
        after.check = None;
        after.take_over(&before);
        assert!(before.members()[0].is_down(), "a configuration that is refused changes nothing");
        after.forget_checks(100);
        assert!(!after.members()[0].is_down());
    }

    #[test]
    fn state_of_a_server_survives_a_reload() {
        let before = pool(2);
        let load = Load::on(&before.members()[1]);
        (0..3).for_each(|_| fail(&before, 1, 100));
        let mut after = pool(3);
        after.take_over(&before);
        assert!(after.members()[1].is_ejected(101) && !after.members()[0].is_ejected(101));
        assert_eq!(after.members()[1].state.load.load(Ordering::Relaxed), 1);
        drop(load);
        assert_eq!(after.members()[1].state.load.load(Ordering::Relaxed), 0);
    }
}
