//! Hedging: a request that waits for a slow server is also sent to another one.

use std::thread;
use std::time::Duration;

use lab::wait_until;
use strait_proxy::Config;

use crate::pool_rig::{Mode, Rig, Server};
use crate::rig::LIMIT;

/// Time limit far above that of a test, so that no request is repeated by it.
const PATIENT: &str = "timeouts.origin = 600";

/// Returns the sum of a number of the servers.
fn sum(rig: &Rig, servers: &[&Server], name: &str) -> u64 {
    servers.iter().map(|server| rig.status(server)[name].as_u64().unwrap()).sum()
}

#[test]
fn other_server_answers_in_place_of_a_slow_one() {
    let (slow, other) = (Server::start(), Server::start());
    let rig = Rig::start(&[(&slow, ""), (&other, "")], "hedge = { after_ms = 100, percent = 50 }", PATIENT);
    slow.become_mode(Mode::Hang);
    let mut client = rig.client();
    for number in 0..8 {
        let answer = client.get(&format!("/{number}"));
        assert_eq!((answer.status(), answer.field("x-server")), (200, Some(&*other.name)), "{}", answer.head);
    }
    client.send("HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().unwrap().status(), 200);
    assert!(slow.asked() >= 4);
    let won = rig.status(&other)["hedges_won"].as_u64().unwrap();
    assert!(won >= 4 && rig.status(&other)["hedged"] == won, "{}", rig.status(&other));
    // The requests at the slow server are given up, and are no failures.
    assert!(wait_until(LIMIT, || rig.status(&slow)["load"] == 0));
    assert_eq!(rig.status(&slow)["failures"], 0);
    assert!(wait_until(LIMIT, || rig.status(&other)["load"] == 0));
    let line = format!("server_hedges_won_total{{pool=\"p\",server=\"{}\"}} {won}\n", other.text);
    assert!(rig.metrics().contains(&line), "{}", rig.metrics());
}

#[test]
fn response_of_the_other_server_is_stored() {
    let (slow, other) = (Server::start(), Server::start());
    let rig = Rig::start(&[(&slow, "weight=1000"), (&other, "")], "hedge = { after_ms = 20 }", PATIENT);
    slow.become_mode(Mode::Hang);
    for _ in 0..3 {
        assert_eq!(rig.client().get("/stored").field("x-server"), Some(&*other.name));
    }
    assert_eq!((slow.asked(), other.asked()), (1, 1));
}

#[test]
fn first_server_that_answers_late_is_heard_if_the_other_fails() {
    let (slow, other) = (Server::start(), Server::start());
    let rig = Rig::start(&[(&slow, ""), (&other, "")], "failures = 0\nhedge = { after_ms = 20 }", PATIENT);
    slow.become_mode(Mode::Hold);
    other.become_mode(Mode::Hold);
    let mut client = rig.client();
    client.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(wait_until(LIMIT, || slow.asked() + other.asked() == 2));
    let is_hedged = |server: &Server| rig.status(server)["hedged"] == 1;
    let (first, second) = if is_hedged(&other) { (&slow, &other) } else { (&other, &slow) };
    second.become_mode(Mode::Reset);
    assert!(wait_until(LIMIT, || rig.status(second)["failures"] == 1));
    first.become_mode(Mode::Answer);
    let answer = client.answer().unwrap();
    assert_eq!((answer.status(), answer.field("x-server")), (200, Some(&*first.name)), "{}", answer.head);
    assert_eq!(sum(&rig, &[&slow, &other], "hedges_won"), 0);
}

#[test]
fn hedge_is_heard_if_the_first_server_fails() {
    let servers = [Server::start(), Server::start()];
    let [one, two] = &servers;
    let rig = Rig::start(&[(one, ""), (two, "")], "failures = 0\nhedge = { after_ms = 20 }", PATIENT);
    for server in &servers {
        server.become_mode(Mode::Hold);
    }
    let mut client = rig.client();
    client.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(wait_until(LIMIT, || one.asked() + two.asked() == 2));
    let (first, second) = if rig.status(two)["hedged"] == 1 { (one, two) } else { (two, one) };
    first.become_mode(Mode::Reset);
    // The request is not sent again.
    assert!(!wait_until(Duration::from_millis(300), || second.asked() == 2));
    second.become_mode(Mode::Answer);
    let answer = client.answer().unwrap();
    assert_eq!((answer.status(), answer.field("x-server")), (200, Some(&*second.name)), "{}", answer.head);
    assert_eq!((first.asked(), second.asked(), &rig.status(second)["hedges_won"]), (1, 1, &1.into()));
}

#[test]
fn requests_beyond_the_budget_wait_for_their_server() {
    const REQUESTS: usize = 40;
    let (slow, other) = (Server::start(), Server::start());
    let pool = "failures = 0\nretries = 0\nhedge = { after_ms = 50, percent = 1 }";
    let rig = Rig::start(&[(&slow, ""), (&other, "")], pool, "timeouts.origin = 1");
    slow.become_mode(Mode::Hang);
    let statuses: Vec<_> = thread::scope(|scope| {
        let get = |number| rig.client().get(&format!("/{number}")).status();
        let clients: Vec<_> = (0..REQUESTS).map(|number| scope.spawn(move || get(number))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    // The burst, and the shares of 40 requests.
    let (hedged, refused) = (sum(&rig, &[&slow, &other], "hedged"), sum(&rig, &[&slow], "hedges_refused"));
    let late = statuses.iter().filter(|status| **status == 504).count();
    assert!(hedged <= 10 && refused >= 1 && late >= 1, "{hedged} {refused} {statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 200 | 504)), "{statuses:?}");
}

#[test]
fn only_plain_requests_are_hedged() {
    let servers = [Server::start(), Server::start()];
    let all: Vec<_> = servers.iter().map(|server| (server, "")).collect();
    let pool = "failures = 0\nretries = 0\nsticky = \"S\"\nhedge = { after_ms = 1 }";
    let rig = Rig::start(&all, pool, "timeouts.origin = 1");
    let answer = rig.client().get("/x");
    let cookie = answer.field("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    for server in &servers {
        server.become_mode(Mode::Hang);
    }
    let hedged = || sum(&rig, &[&servers[0], &servers[1]], "hedged");
    let before = hedged();
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    for (line, fields) in [
        ("POST", "Content-Length: 0"),
        ("GET", "Content-Length: 1"),
        ("DELETE", "X: y"),
        ("GET", upgrade),
        ("GET", &format!("Cookie: {cookie}")),
    ] {
        let body = if fields.ends_with("Length: 1") { "x" } else { "" };
        let answer = rig.ask(&format!("{line} /x HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n{body}"));
        assert_eq!((answer.status(), hedged()), (504, before), "{line} {fields}");
    }
}

#[test]
fn backup_gets_no_hedged_request() {
    let (slow, backup) = (Server::start(), Server::start());
    let pool = "failures = 0\nretries = 0\nhedge = { after_ms = 1 }";
    let rig = Rig::start(&[(&slow, ""), (&backup, "backup")], pool, "timeouts.origin = 1");
    slow.become_mode(Mode::Hang);
    assert_eq!((rig.client().get("/x").status(), backup.asked()), (504, 0));
}

#[test]
fn wrong_rules_for_slow_servers_are_named() {
    for (pool, expected) in [
        ("hedge = { after = 1 }", "pool.a.hedge.after: unknown key (did you mean after_ms?)"),
        ("hedge = { after_ms = 0 }", "pool.a.hedge.after_ms = 0: expected a whole number from 1 to 60000"),
        ("hedge = { percent = 51 }", "pool.a.hedge.percent = 51: expected a whole number from 1 to 50"),
        ("hedge = 1", "pool.a.hedge: expected a section with the keys after_ms, percent"),
        ("outlier = { times = 1 }", "pool.a.outlier.times = 1: expected a whole number from 2 to 1000"),
        ("outlier = true", "pool.a.outlier: expected a section with the keys times, floor_ms"),
    ] {
        let toml = format!("[pool.a]\nservers = [\"a:1\"]\n{pool}\n[[site]]\nroute = [{{ pool = \"a\" }}]");
        let error = Config::from_toml(&toml).and_then(|config| config.check()).expect_err(pool).to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{pool}: {error}");
    }
}
