//! Tests of pools: choices, ejections and names.

use super::*;
use crate::config::entry::{Target, of_addresses, of_targets};
use crate::config::member::Load;

fn pool(servers: u16) -> ServerPool {
    pool_of(&(1..=servers).map(|_| MemberOptions::default()).collect::<Vec<_>>(), 0)
}

fn pool_of(servers: &[MemberOptions], slow_start: u64) -> ServerPool {
    let entry = |(port, options): (u16, &MemberOptions)| Entry::new(Server::tcp("a", port, false), *options);
    let check = Some(Check { rise: 1, fall: 1, ..Check::default() });
    let config = edge::Pool { slow_start, check, ..edge::Pool::default() };
    ServerPool::new(Some("p"), &config, (1..).zip(servers).map(entry).collect())
}

/// Returns the position of a chosen server, if the ones at `tried` were tried.
fn choose(pool: &ServerPool, now: u64, tried: &[usize]) -> Option<usize> {
    let members = pool.members();
    let tried: Vec<_> = tried.iter().map(|at| members[*at].clone()).collect();
    let chosen = pool.choose(now, None, &tried)?;
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
fn request_at_its_next_server_takes_no_turn() {
    let pool = pool(2);
    let turns: Vec<_> = (0..6)
        .map(|_| {
            let first = choose(&pool, 100, &[]).unwrap();
            (first, choose(&pool, 100, &[first]).unwrap())
        })
        .collect();
    assert_eq!(turns, [(0, 1), (1, 0), (0, 1), (1, 0), (0, 1), (1, 0)]);
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
    let pool = ServerPool::new(Some("p"), &edge::Pool::default(), vec![name("a.example"), name("b.example")]);
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
    let of = |at: usize| members.iter().filter(|it| Arc::ptr_eq(&it.entry, &pool.entries[at].state)).count();
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

/// Notes a window of times in milliseconds, each of another client.
fn note_times(pool: &ServerPool, at: usize, time_ms: u64, now: u64) {
    let members = pool.members();
    let note = |last: u8| {
        let client = [192, 0, 2, last].into();
        pool.note_time(&members[at], client, Duration::from_millis(time_ms), now);
    };
    (0..4).for_each(note);
}

fn pool_with_outliers(slow_start: u64) -> ServerPool {
    let outlier = Some(edge::Outlier { windows: 2, responses: 4, ..edge::Outlier::default() });
    let entry = |port| Entry::new(Server::tcp("a", port, false), MemberOptions::default());
    let config = edge::Pool { slow_start, outlier, ..edge::Pool::default() };
    ServerPool::new(Some("p"), &config, (1..=3).map(entry).collect())
}

#[test]
fn server_that_is_far_slower_is_ejected_and_comes_back_slowly() {
    let pool = pool_with_outliers(40);
    let slow = pool.members()[0].clone();
    let usual = |now| (1..3).for_each(|at| note_times(&pool, at, 20, now));
    // Without times of the others there is no judgement.
    (0..9).for_each(|_| note_times(&pool, 0, 900, 100));
    usual(100);
    note_times(&pool, 0, 900, 100);
    assert!(!slow.is_ejected(100));
    note_times(&pool, 0, 900, 100);
    assert_eq!(shares(&pool, 100), [0, 150, 150]);
    // Responses in progress neither end the ejection nor begin another one.
    slow.note_success(105);
    note_times(&pool, 0, 1, 105);
    assert_eq!((shares(&pool, 109)[0], slow.state.slow_ejections.load(Ordering::Relaxed)), (0, 1));
    assert!((1..9).contains(&shares(&pool, 110)[0]) && shares(&pool, 150) == [100, 100, 100]);
    // One more slow window ejects it for twice as long.
    note_times(&pool, 0, 900, 150);
    assert!(slow.is_ejected(169) && !slow.is_ejected(170));
    // After a usual one, two are needed again.
    note_times(&pool, 0, 20, 170);
    note_times(&pool, 0, 900, 170);
    assert!(!slow.is_ejected(170));
    note_times(&pool, 0, 900, 170);
    assert!(slow.is_ejected(179) && !slow.is_ejected(180));
    assert_eq!(slow.state.failures.load(Ordering::Relaxed), 0);
}

#[test]
fn slow_server_stays_while_no_other_one_gets_requests() {
    let pool = pool_with_outliers(0);
    (1..3).for_each(|at| note_times(&pool, at, 20, 100));
    (1..3).for_each(|at| pool.members()[at].drain(true, 100));
    (0..9).for_each(|_| note_times(&pool, 0, 900, 100));
    assert!(!pool.members()[0].is_ejected(100));
    pool.members()[1].drain(false, 100);
    (0..2).for_each(|_| note_times(&pool, 0, 900, 100));
    assert!(pool.members()[0].is_ejected(100));
    (0..9).for_each(|_| note_times(&pool, 1, 9000, 100));
    assert!(!pool.members()[1].is_ejected(100));
}

#[test]
fn at_most_half_of_the_servers_are_ejected_for_their_times() {
    for times_ms in [[30, 200, 1200], [1200, 30, 200]] {
        let pool = pool_with_outliers(0);
        let ejected = |now| -> Vec<_> {
            let members = pool.members();
            (0..3).filter(|at| members[*at].is_ejected(now)).map(|at| times_ms[at]).collect()
        };
        // The slowest one comes back twice, with the median from before its ejection.
        for now in [100, 110, 130] {
            for _ in 0..9 {
                (0..3).for_each(|at| note_times(&pool, at, times_ms[at], now));
                assert!(ejected(now).iter().all(|time_ms| *time_ms == 1200));
            }
            assert_eq!(ejected(now), [1200]);
        }
    }
    // The others have become slow since then.
    let pool = pool_with_outliers(0);
    (0..3).for_each(|at| note_times(&pool, at, 20, 100));
    (0..2).for_each(|_| note_times(&pool, 0, 900, 100));
    (0..9).for_each(|_| note_times(&pool, 1, 9000, 100));
    assert!(pool.members()[0].is_ejected(100) && !pool.members()[1].is_ejected(100));
}

#[test]
fn times_of_a_pool_without_rules_eject_none() {
    let pool = pool(3);
    (0..9).for_each(|_| (0..3).for_each(|at| note_times(&pool, at, 1000 * at as u64, 100)));
    assert!(!pool.has_outliers() && pool.members().iter().all(|member| !member.is_ejected(100)));
}
