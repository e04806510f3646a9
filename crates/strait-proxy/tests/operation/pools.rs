//! Pools: shares of the servers, and servers that fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use lab::wait_until;
use strait_proxy::{Clock, Config, Proxy};

use crate::pool_rig::{Mode, Rig, Server};
use crate::rig::{Client, LIMIT};

#[test]
fn requests_are_shared_by_weight() {
    let (a, b) = (Server::start(), Server::start());
    let rig = Rig::start(&[(&a, "weight=3"), (&b, "")], "", "");
    let mut client = rig.client();
    for _ in 0..80 {
        assert_eq!(client.get("/x").status(), 200);
    }
    assert_eq!((a.asked(), b.asked()), (60, 20));
    assert!(wait_until(LIMIT, || rig.status(&a)["load"] == 0));
    let status = rig.status(&a);
    assert_eq!((&status["requests"], &status["failures"]), (&60.into(), &0.into()));
    let line = format!("strait_proxy_server_requests_total{{pool=\"p\",server=\"{}\"}} 20\n", b.text);
    assert!(rig.metrics().contains(&line), "{}", rig.metrics());
}

#[test]
fn least_connections_goes_past_a_busy_server() {
    let (a, b) = (Server::start(), Server::start());
    let rig = Rig::start(&[(&a, ""), (&b, "")], "balance = \"least-connections\"", "");
    a.become_mode(Mode::Hang);
    b.become_mode(Mode::Hang);
    let mut busy = rig.client();
    busy.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(wait_until(LIMIT, || a.asked() + b.asked() == 1));
    let (other, hanging) = if a.asked() == 1 { (&b, &a) } else { (&a, &b) };
    other.become_mode(Mode::Answer);
    for _ in 0..20 {
        // A response can reach its client before its request counts as ended.
        assert!(wait_until(LIMIT, || rig.status(other)["load"] == 0));
        assert_eq!(rig.client().get("/x").status(), 200);
    }
    assert_eq!((hanging.asked(), other.asked()), (1, 20));
    assert_eq!(rig.status(hanging)["load"], 1);
}

#[test]
fn uri_has_its_server() {
    let (a, b, c) = (Server::start(), Server::start(), Server::start());
    let rig = Rig::start(&[(&a, ""), (&b, ""), (&c, "")], "balance = \"uri\"", "");
    let mut client = rig.client();
    let of = |client: &mut Client, number: usize| {
        client.get(&format!("/{number}")).field("x-server").unwrap().to_owned()
    };
    let first: Vec<_> = (0..60).map(|number| of(&mut client, number)).collect();
    let second: Vec<_> = (0..60).map(|number| of(&mut client, number)).collect();
    assert_eq!(first, second);
    assert!([&a, &b, &c].iter().all(|server| server.asked() > 0));
}

#[test]
fn value_of_a_field_or_a_cookie_has_its_server() {
    for (balance, field) in [("header:X-User", "X-User: "), ("cookie:session", "Cookie: a=b; session=")] {
        let servers = [Server::start(), Server::start(), Server::start()];
        let all: Vec<_> = servers.iter().map(|server| (server, "")).collect();
        let rig = Rig::start(&all, &format!("balance = \"{balance}\""), "");
        let of = |fields: &str, number: usize| {
            // The load of the request before counts until its connection is idle.
            let answer = rig.ask(&format!("GET /{number} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
            answer.field("x-server").unwrap().to_owned()
        };
        let value = |user: usize| format!("{field}user-{user}\r\n");
        let first: Vec<_> = (0..30).map(|user| of(&value(user), user)).collect();
        let second: Vec<_> = (0..30).map(|user| of(&value(user), 99)).collect();
        assert_eq!(first, second, "{balance}");
        assert!(servers.iter().all(|server| first.contains(&server.name)), "{balance}: {first:?}");
        // Other fields, and an empty value, choose no server.
        let without: Vec<_> = (0..30).map(|at| of(["", "Cookie: a=b\r\nX-User:\r\n"][at % 2], 0)).collect();
        assert!(servers.iter().all(|server| without.contains(&server.name)), "{balance}: {without:?}");
    }
}

#[test]
fn wrong_balances_are_named() {
    for (balance, expected) in [
        ("header:", "pool.a.balance = \"header:\": expected one of"),
        ("header:a b", "\"header:NAME\" and \"cookie:NAME\", with the name of a field or a cookie"),
        ("uri", "pool.a.outlier: by a hash, clients choose their server"),
        ("header:X-User", "pool.a.outlier: by a hash, clients choose their server"),
        ("cookie:a", "pool.a.outlier: by a hash, clients choose their server"),
        ("header:X-Forwarded-For", "pool.a.balance: this field is dropped from every request (forwarded)"),
    ] {
        let outlier = if expected.contains("outlier") { "outlier = {}" } else { "" };
        let toml = format!(
            "[pool.a]\nservers = [\"a:1\"]\nbalance = \"{balance}\"\n{outlier}\n[[site]]\nroute = [{{ pool = \"a\" }}]"
        );
        let error =
            Config::from_toml(&toml).and_then(|config| config.check()).expect_err(balance).to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{balance}: {error}");
    }
}

#[test]
fn killed_server_fails_no_idempotent_request() {
    const EACH: usize = 100;
    let servers = [Server::start(), Server::start(), Server::start()];
    let all: Vec<_> = servers.iter().map(|server| (server, "")).collect();
    let rig = Rig::start(&all, "", "");
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = rig.client();
                for number in 0..EACH {
                    let answer = client.get(&format!("/{number}"));
                    assert_eq!(answer.status(), 200, "{number}: {}", answer.head);
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        assert!(wait_until(LIMIT, || done.load(Ordering::SeqCst) > EACH));
        servers[1].become_mode(Mode::Dead);
    });
    assert_eq!(done.load(Ordering::SeqCst), 4 * EACH);
    // A connection is refused until the server is ejected.
    while rig.status(&servers[1])["is_ejected"] == false {
        assert_eq!(rig.client().get("/x").status(), 200);
    }
    let status = rig.status(&servers[1]);
    assert!(status["failures"].as_u64().unwrap() >= 3 && status["ejections"] == 1, "{status}");
}

#[test]
fn faulty_server_is_ejected_and_comes_back() {
    for mode in [Mode::Hang, Mode::Reset, Mode::Garbage] {
        let (good, bad) = (Server::start(), Server::start());
        let rig = Rig::start(&[(&good, ""), (&bad, "")], "failures = 2\neject = 10", "timeouts.origin = 1");
        bad.become_mode(mode);
        let mut client = rig.client();
        while rig.status(&bad)["is_ejected"] == false {
            assert_eq!(client.get("/x").status(), 200, "{mode:?}");
        }
        let asked = bad.asked();
        for _ in 0..10 {
            assert_eq!(client.get("/x").status(), 200, "{mode:?}");
        }
        assert_eq!((bad.asked(), &rig.status(&bad)["failures"]), (asked, &2.into()), "{mode:?}");
        // It comes back, and the next failure ejects it for twice as long.
        rig.clock.advance(10);
        while rig.status(&bad)["ejections"] == 1 {
            assert_eq!(client.get("/x").status(), 200, "{mode:?}");
        }
        rig.clock.advance(19);
        assert_eq!(rig.status(&bad)["is_ejected"], true, "{mode:?}");
        bad.become_mode(Mode::Answer);
        rig.clock.advance(1);
        let asked = bad.asked();
        for _ in 0..4 {
            assert_eq!(client.get("/x").status(), 200, "{mode:?}");
        }
        assert_eq!(bad.asked(), asked + 2, "{mode:?}");
    }
}

#[test]
fn server_that_is_far_slower_than_the_others_is_ejected() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let [slow, ..] = &servers;
    let all: Vec<_> = servers.iter().map(|server| (server, "")).collect();
    let rules = "outlier = { times = 2, floor_ms = 20, windows = 2, responses = 4 }";
    let rig = Rig::start(&all, rules, "");
    slow.become_mode(Mode::Slow);
    // One client has at most a quarter of a window.
    let mut clients: Vec<_> = (1..5).map(|last| Client::from(last, rig.proxy.address())).collect();
    let mut ejected = |number: u64| {
        let is_ejected = || {
            for client in &mut clients {
                assert_eq!(client.get("/x").status(), 200);
            }
            rig.status(slow)["slow_ejections"] == number
        };
        assert!(wait_until(LIMIT, is_ejected), "{}", rig.status(slow));
    };
    ejected(1);
    let status = rig.status(slow);
    assert_eq!(
        (&status["is_ejected"], &status["failures"], &status["ejections"]),
        (&true.into(), &0.into(), &0.into())
    );
    let asked = slow.asked();
    (0..9).for_each(|_| assert_eq!(rig.client().get("/x").status(), 200));
    assert_eq!(slow.asked(), asked);
    let line =
        format!("server_ejections_total{{pool=\"p\",server=\"{}\",reason=\"latency\"}} 1\n", slow.text);
    assert!(rig.metrics().contains(&line), "{}", rig.metrics());
    // It comes back, and is ejected for twice as long.
    rig.clock.advance(10);
    ejected(2);
    rig.clock.advance(19);
    assert_eq!(rig.status(slow)["is_ejected"], true);
    slow.become_mode(Mode::Answer);
    rig.clock.advance(1);
    (0..9).for_each(|_| assert_eq!(rig.client().get("/x").status(), 200));
    assert!(slow.asked() > asked);
}

#[test]
fn last_server_is_not_ejected() {
    let (a, b) = (Server::start(), Server::start());
    let rig = Rig::start(&[(&a, ""), (&b, "")], "failures = 1", "");
    a.become_mode(Mode::Dead);
    b.become_mode(Mode::Reset);
    for _ in 0..10 {
        assert!(matches!(rig.client().get("/x").status(), 502 | 503));
    }
    b.become_mode(Mode::Answer);
    a.become_mode(Mode::Dead);
    let ejected = [&a, &b].map(|server| rig.status(server)["is_ejected"].as_bool().unwrap());
    assert_ne!(ejected[0], ejected[1]);
    assert!(wait_until(LIMIT, || rig.client().get("/x").status() == 200));
}

#[test]
fn without_servers_a_request_gets_503_or_a_stale_response() {
    let (a, b) = (Server::start(), Server::start());
    let rig = Rig::start(&[(&a, ""), (&b, "")], "", "");
    assert_eq!(rig.client().get("/stored").status(), 200);
    a.become_mode(Mode::Dead);
    b.become_mode(Mode::Dead);
    rig.clock.advance(60);
    let stale = rig.client().get("/stored");
    assert_eq!((stale.status(), stale.text().as_str(), stale.field("age")), (200, "ok", Some("60")));
    let answer = rig.client().get("/x");
    assert_eq!(answer.status(), 503);
    assert!(answer.field("retry-after").is_some(), "{}", answer.head);
    // Addresses of servers are not for clients.
    assert_eq!(answer.text(), "strait: no server of the pool can be reached\n");
    assert_eq!(rig.post().status(), 503);
}

#[test]
fn request_that_a_server_may_have_acted_on_is_not_repeated() {
    let (a, b) = (Server::start(), Server::start());
    let rig = Rig::start(&[(&a, ""), (&b, "")], "failures = 0", "");
    a.become_mode(Mode::Reset);
    b.become_mode(Mode::Reset);
    assert_eq!(rig.post().status(), 502);
    assert_eq!(a.asked() + b.asked(), 1);
    // No connection: nothing was sent.
    a.become_mode(Mode::Dead);
    b.become_mode(Mode::Answer);
    for _ in 0..4 {
        assert_eq!(rig.post().status(), 200);
    }
}

#[test]
fn failed_request_is_sent_to_a_limited_number_of_servers() {
    let servers = [Server::start(), Server::start(), Server::start(), Server::start()];
    for server in &servers {
        server.become_mode(Mode::Reset);
    }
    let all: Vec<_> = servers.iter().map(|server| (server, "")).collect();
    let rig = Rig::start(&all, "retries = 1\nfailures = 0", "");
    assert_eq!(rig.client().get("/x").status(), 502);
    assert_eq!(servers.iter().map(Server::asked).sum::<usize>(), 2);
}

#[test]
fn server_that_fails_checks_gets_no_requests_until_it_passes() {
    for check in ["path = \"/healthz\", status = 200, ", ""] {
        let (a, b) = (Server::start(), Server::start());
        let check =
            format!("failures = 0\ncheck = {{ {check}interval = 1, timeout = 1, rise = 1, fall = 1 }}");
        let rig = Rig::start(&[(&a, ""), (&b, "")], &check, "");
        let is_down = |server: &Server| rig.status(server)["is_down"] == true;
        a.become_mode(Mode::Dead);
        assert!(wait_until(LIMIT, || is_down(&a)), "{check}");
        for _ in 0..4 {
            assert_eq!(rig.post().status(), 200);
        }
        assert_eq!((&rig.status(&a)["failures"], is_down(&b)), (&0.into(), false));
        // Without any server a request is refused at once.
        let stored = rig.client().get("/stored").status();
        b.become_mode(Mode::Dead);
        assert!(wait_until(LIMIT, || is_down(&b)), "{check}");
        rig.clock.advance(60);
        assert_eq!((stored, rig.client().get("/stored").status()), (200, 200));
        let answer = rig.client().get("/x");
        assert!(answer.status() == 503 && answer.field("retry-after").is_some(), "{}", answer.head);
        assert_eq!(rig.status(&b)["failures"], 0);
    }
}

#[test]
fn check_expects_a_response_in_time() {
    let (a, b) = (Server::start(), Server::start());
    let check = "check = { path = \"/healthz\", interval = 1, timeout = 1, rise = 1, fall = 1 }";
    let rig = Rig::start(&[(&a, ""), (&b, "")], check, "");
    let is_down = |server: &Server| rig.status(server)["is_down"] == true;
    for mode in [Mode::Hang, Mode::Garbage, Mode::Reset] {
        a.become_mode(mode);
        assert!(wait_until(LIMIT, || is_down(&a)), "{mode:?}");
        assert_eq!(rig.client().get("/x").status(), 200);
        a.become_mode(Mode::Answer);
        assert!(wait_until(LIMIT, || !is_down(&a)), "{mode:?}");
    }
    assert!(!is_down(&b));
}

#[test]
fn check_tries_all_addresses_of_a_name() {
    // On most systems localhost is ::1 as well, where the server does not listen.
    let server = Server::start();
    let toml = format!(
        "workers = 1\nlisten = [\"127.0.0.1:0\"]\nadmin.listen = \"127.0.0.1:0\"\n[pool.p]\nservers = [\"localhost:{}\"]\ncheck = {{ path = \"/healthz\", interval = 1, timeout = 1, rise = 1, fall = 1 }}\n[[site]]\n[[site.route]]\npool = \"p\"\n",
        server.name
    );
    let config = Config::from_toml(&toml).unwrap();
    let proxy = Proxy::start(&config, Clock::fixed(1_700_000_000)).unwrap();
    // Several checks, so that a failed one would have been noted.
    assert!(wait_until(LIMIT, || {
        let mut client = Client::to(proxy.admin().unwrap());
        client.send("GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let status = client.answer().unwrap().json();
        assert_eq!(status["servers"][0]["is_down"], false, "{status}");
        server.asked() >= 2
    }));
    assert_eq!(Client::to(proxy.address()).get("/x").status(), 200);
}

#[test]
fn request_that_waits_for_a_server_that_goes_down_gets_another_one() {
    let (a, b) = (Server::start(), Server::start());
    let pool = "check = { path = \"/healthz\", interval = 1, timeout = 1, rise = 1, fall = 3 }";
    let limits = "timeouts.connect = 60\nlimits.origin_connections_per_client = 1";
    // Of the first 101 requests, one is for the other server.
    let rig = Rig::start(&[(&a, "weight=100"), (&b, "")], pool, limits);
    a.become_mode(Mode::Hang);
    let mut clients = [rig.client(), rig.client(), rig.client()];
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    assert!(wait_until(LIMIT, || rig.status(&a)["is_down"] == true));
    // Ends the request in progress, so that the next one gets its permit.
    a.become_mode(Mode::Dead);
    for client in &mut clients {
        let answer = client.answer().unwrap();
        assert_eq!((answer.status(), answer.field("x-server")), (200, Some(&*b.name)), "{}", answer.head);
    }
}

#[test]
fn client_with_posts_at_which_every_server_fails_ejects_none() {
    let (a, b) = (Server::start(), Server::start());
    let rig = Rig::start(&[(&a, ""), (&b, "")], "failures = 2", "");
    let is_ejected = |server: &Server| rig.status(server)["is_ejected"] == true;
    a.become_mode(Mode::Reset);
    b.become_mode(Mode::Reset);
    for _ in 0..8 {
        assert_eq!(rig.post().status(), 502);
        assert!(!is_ejected(&a) && !is_ejected(&b));
    }
    assert!(a.asked() >= 2 && b.asked() >= 2);
    // A server that fails alone is ejected.
    rig.clock.advance(60);
    b.become_mode(Mode::Answer);
    assert!(wait_until(LIMIT, || {
        rig.post();
        is_ejected(&a)
    }));
    assert!(!is_ejected(&b) && rig.post().status() == 200);
}

#[test]
fn request_at_which_every_server_fails_ejects_none() {
    for mode in [Mode::Reset, Mode::Garbage, Mode::Hang] {
        let (a, b) = (Server::start(), Server::start());
        let rig = Rig::start(&[(&a, ""), (&b, "")], "failures = 1", "timeouts.origin = 1");
        a.become_mode(mode);
        b.become_mode(mode);
        for _ in 0..3 {
            assert!(matches!(rig.client().get("/x").status(), 502 | 504), "{mode:?}");
        }
        assert!(a.asked() >= 3 && b.asked() >= 3, "{mode:?}");
        for server in [&a, &b] {
            let status = rig.status(server);
            assert_eq!(
                (&status["failures"], &status["ejections"]),
                (&0.into(), &0.into()),
                "{mode:?} {status}"
            );
        }
    }
}
