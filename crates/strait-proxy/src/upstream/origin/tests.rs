//! Tests of the servers that a request tries.

use std::io;

use rustix::io::Errno;
use strait_http::head;
use strait_http::target::Uri;

use super::*;
use crate::config::edge;
use crate::config::entry::{Entry, of_addresses};
use crate::config::member::MemberOptions;
use crate::config::sites::Manner;

fn pool(servers: u16) -> Arc<ServerPool> {
    let config = edge::Pool {
        check: Some(edge::Check::default()),
        hedge: Some(edge::Hedge::default()),
        retries: 1,
        ..edge::Pool::default()
    };
    pool_of(&config, servers)
}

fn pool_of(config: &edge::Pool, servers: u16) -> Arc<ServerPool> {
    let server = |port| Server::tcp("a", port, false);
    let entries = (1..=servers).map(|port| Entry::new(server(port), MemberOptions::default())).collect();
    Arc::new(ServerPool::new(Some("p"), config, entries))
}

fn take_down(pool: &ServerPool, index: usize) {
    (0..100).for_each(|_| pool.note_check(&pool.members()[index], 100, Err("refused")));
}

fn origin(pool: &Arc<ServerPool>, chosen: usize) -> Origin {
    let uri = Uri::parse("http://a/").unwrap();
    let chosen = Some(pool.members()[chosen].clone());
    let (request, _) = head::request(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap().unwrap();
    Origin::of(&Resource { uri, pool: Some(pool), manner: Manner::default() }, &request, chosen, 100)
}

/// Returns the position of the server in its pool.
fn position(origin: &Origin) -> Option<usize> {
    let choice = origin.choice.as_ref()?;
    choice.pool.members().iter().position(|member| member.is_same(&choice.member))
}

fn client() -> Client {
    Client::of([192, 0, 2, 1].into())
}

fn failures(pool: &ServerPool) -> Vec<u64> {
    pool.members().iter().map(|member| member.state.failures.load(Ordering::Relaxed)).collect()
}

/// Failure to connect.
fn unsent(errno: Errno) -> Failure {
    let error = OriginError::of_connect(&"127.0.0.1:80", io::Error::from(errno));
    Failure { error, was_sent: false, may_repeat: true }
}

/// Failure after the request was sent.
fn sent(error: OriginError) -> Failure {
    Failure { error, was_sent: true, may_repeat: true }
}

#[test]
fn request_leaves_a_server_that_is_down_without_a_failed_attempt() {
    let pool = pool(3);
    take_down(&pool, 0);
    assert_ne!(position(&origin(&pool, 0)), Some(0));
    let mut origin = origin(&pool, 1);
    take_down(&pool, 1);
    assert!(origin.is_out() && origin.leave(100) && !origin.is_out());
    assert_eq!((position(&origin), origin.server.to_string().as_str()), (Some(2), "a:3"));
    // The others are out: the failure stays that of this server.
    assert!(!origin.fail_over(100, client(), &unsent(Errno::CONNREFUSED)));
    assert_eq!((position(&origin), failures(&pool)), (Some(2), vec![0, 0, 1]));
}

#[test]
fn request_leaves_a_server_that_has_left_its_name() {
    let entry = Entry::new(Server::tcp("a.example", 80, false), MemberOptions::default());
    let pool = Arc::new(ServerPool::new(Some("p"), &edge::Pool::default(), vec![entry]));
    let locate = |last: u8| pool.locate(0, of_addresses(&[[192, 0, 2, last].into()], 80, 1), 100);
    locate(1);
    let mut origin = origin(&pool, 0);
    assert!(!origin.is_out());
    locate(2);
    assert!(origin.is_gone() && origin.is_out() && origin.leave(100));
    assert!(!origin.is_out() && origin.server.to_string().ends_with("192.0.2.2"));
    assert_eq!(failures(&pool), [0]);
}

#[test]
fn server_is_not_charged_with_an_exhausted_host() {
    for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL] {
        let pool = pool(2);
        let mut origin = origin(&pool, 0);
        assert!(origin.fail_over(100, client(), &unsent(errno)) && position(&origin) == Some(1), "{errno}");
        assert!(!origin.fail_over(100, client(), &unsent(errno)), "{errno}");
        let error = origin.last_error(unsent(errno).error, 0);
        assert_eq!((error.status(), failures(&pool)), (503, vec![0, 0]), "{errno}");
    }
    let pool = pool(1);
    assert!(!origin(&pool, 0).fail_over(100, client(), &unsent(Errno::CONNREFUSED)));
    assert_eq!(failures(&pool), [1]);
}

#[test]
fn times_count_unless_the_client_has_chosen_the_server() {
    for (hash, is_stuck, counts) in [(None, false, true), (Some(1), false, false), (None, true, false)] {
        let outlier = Some(edge::Outlier { windows: 1, responses: 4, ..edge::Outlier::default() });
        let config = edge::Pool { outlier, ..edge::Pool::default() };
        let pool = pool_of(&config, 2);
        let note = |chosen: usize, time_ms: u64, last: u8| {
            let mut origin = origin(&pool, chosen);
            if let Some(choice) = origin.choice.as_mut().filter(|_| chosen == 0) {
                choice.hash = hash;
                choice.sticky = Some(Named(is_stuck.then(|| choice.member.clone())));
            }
            let client = Client::of([192, 0, 2, last].into());
            origin.note_time(client, Duration::from_millis(time_ms), 100);
        };
        (0..4).for_each(|last| note(1, 20, last));
        // One client alone makes no window.
        (0..100).for_each(|_| note(0, 900, 0));
        assert!(!pool.members()[0].is_ejected(100));
        (0..4).for_each(|last| note(0, 900, last));
        assert_eq!(pool.members()[0].is_ejected(100), counts, "{hash:?} {is_stuck}");
    }
}

#[test]
fn failure_of_the_first_server_counts_after_a_hedge_and_ends_no_other_attempt() {
    let pool = pool(2);
    let mut first = origin(&pool, 0);
    let other = first.hedge(100).unwrap();
    first.give_way(other, Some(&OriginError::Closed));
    first.note_success(100);
    assert_eq!((position(&first), failures(&pool)), (Some(1), vec![1, 0]));
    // After both have failed, the third one is asked.
    let config = edge::Pool { hedge: Some(edge::Hedge::default()), retries: 2, ..edge::Pool::default() };
    let pool = pool_of(&config, 3);
    let mut first = origin(&pool, 0);
    let other = first.hedge(100).unwrap();
    first.note_tried(&other);
    assert!(first.fail_over(100, client(), &sent(OriginError::Closed)));
    assert_eq!(position(&first).zip(position(&other)).map(|(third, second)| third + second), Some(3));
}

#[test]
fn failure_before_a_hedge_counts_once() {
    for has_answered in [false, true] {
        let pool = pool(3);
        let mut origin = origin(&pool, 0);
        assert!(origin.fail_over(100, client(), &sent(OriginError::Closed)));
        let first = position(&origin).unwrap();
        let mut other = origin.hedge(100).unwrap();
        let hedge = position(&other).unwrap();
        if has_answered {
            origin.give_way(other, None);
            assert_eq!(position(&origin), Some(hedge));
        } else {
            let failure = Failure { may_repeat: false, ..sent(OriginError::TimedOut) };
            assert!(!other.fail_over(100, client(), &failure));
        }
        origin.note_success(100);
        let mut expected = [1, 0, 0];
        expected[hedge] = u64::from(!has_answered);
        assert_eq!((failures(&pool), first + hedge), (expected.to_vec(), 3));
    }
}

#[test]
fn failure_after_the_request_was_sent_counts_unless_it_repeats_elsewhere() {
    use OriginError::{Closed, TimedOut};
    let refused = || unsent(Errno::CONNREFUSED);
    let unsent_in_time = || Failure { was_sent: false, ..sent(TimedOut) };
    let unrepeatable = |error| Failure { may_repeat: false, ..sent(error) };
    for (attempts, expected) in [
        (vec![Some(sent(Closed)), Some(sent(Closed))], [0, 0]),
        (vec![Some(sent(Closed)), Some(sent(TimedOut))], [1, 0]),
        (vec![Some(sent(Closed)), Some(refused())], [1, 1]),
        (vec![Some(refused()), Some(sent(Closed))], [1, 1]),
        (vec![Some(sent(Closed)), None], [1, 0]),
        (vec![Some(unrepeatable(Closed))], [1, 0]),
        // Without a connection the request is not the reason.
        (vec![Some(unsent_in_time()), Some(unsent_in_time())], [1, 1]),
        (vec![None], [0, 0]),
    ] {
        let pool = pool(2);
        let mut origin = origin(&pool, 0);
        for (index, attempt) in attempts.iter().enumerate() {
            match attempt {
                Some(failure) => {
                    let has_next = index == 0 && failure.may_repeat;
                    assert_eq!(origin.fail_over(100, client(), failure), has_next, "{attempts:?}");
                }
                None => origin.note_success(100),
            }
        }
        assert_eq!(failures(&pool), expected, "{attempts:?}");
    }
}
