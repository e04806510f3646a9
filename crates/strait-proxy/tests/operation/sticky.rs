//! Sticky sessions: a cookie names the server of a client, and reaches no other client.

use std::collections::BTreeMap;
use std::thread;

use lab::wait_until;
use strait_proxy::Config;

use crate::pool_rig::{Mode, Rig, Server};
use crate::rig::{Answer, LIMIT};
use crate::sites::Edge;

const STICKY: &str = "sticky = \"S\"";

fn three() -> [Server; 3] {
    [Server::start(), Server::start(), Server::start()]
}

fn start(servers: &[Server], pool: &str) -> Rig {
    let all: Vec<_> = servers.iter().map(|server| (server, "")).collect();
    Rig::start(&all, &format!("{STICKY}\n{pool}"), "")
}

fn ask(rig: &Rig, line: &str, fields: &str) -> Answer {
    let mut client = rig.client();
    client.send(format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    if line.starts_with("HEAD") || line.contains("/unchanged") {
        client.head().unwrap()
    } else {
        client.answer().unwrap()
    }
}

/// Returns the cookie that a response sets.
fn cookie(answer: &Answer) -> Option<String> {
    let value = answer.field("set-cookie")?;
    Some(value.split(';').next().unwrap().to_owned())
}

fn server(answer: &Answer) -> &str {
    answer.field("x-server").unwrap()
}

#[test]
fn client_with_the_cookie_stays_at_its_server() {
    let servers = three();
    let mut rig = start(&servers, "");
    let mut ids = BTreeMap::new();
    for _ in 0..6 {
        let answer = ask(&rig, "GET /x", "Cookie: T=1\r\n");
        let value = answer.field("set-cookie").unwrap();
        let id =
            value.strip_prefix("S=").and_then(|rest| rest.strip_suffix("; Path=/; HttpOnly; SameSite=Lax"));
        let id = id.unwrap_or_else(|| panic!("{value}"));
        assert!(id.len() == 16 && !id.contains(server(&answer)), "{value}");
        assert!(answer.head.contains("\r\nCache-Control: private\r\n"), "{}", answer.head);
        // One value for each server.
        assert_eq!(ids.entry(server(&answer).to_owned()).or_insert_with(|| id.to_owned()), id);
    }
    assert_eq!(ids.len(), 3);
    rig.reload();
    for (name, id) in &ids {
        for line in ["GET /x", "POST /x", "GET /y", "HEAD /x"] {
            let answer = ask(&rig, line, &format!("Cookie: T=1; S={id}\r\n"));
            assert_eq!((server(&answer), cookie(&answer)), (&**name, None), "{line}");
        }
        // The cookie of another pool, a forged one, or one without a value.
        for wrong in ["S=0123456789abcdef", "S=", &format!("s={id}"), &format!("S={name}")] {
            assert!(cookie(&ask(&rig, "GET /x", &format!("Cookie: {wrong}\r\n"))).is_some(), "{wrong}");
        }
    }
}

#[test]
fn client_of_a_lost_server_gets_another_cookie() {
    let servers = three();
    let rig = start(&servers, "failures = 1");
    let of = |index: usize| {
        let name = &servers[index].name;
        let answers = std::iter::repeat_with(|| ask(&rig, "GET /x", "")).take(100);
        let own = answers.into_iter().find(|answer| server(answer) == name);
        format!("Cookie: {}\r\n", cookie(&own.unwrap()).unwrap())
    };
    let [drained, dead] = [of(0), of(1)];
    assert_eq!(rig.change(&format!("/drain?server={}", servers[0].text)).status(), 200);
    servers[1].become_mode(Mode::Dead);
    for lost in [&drained, &dead] {
        // The request itself fails over.
        let answer = ask(&rig, "GET /x", lost);
        assert_eq!((answer.status(), server(&answer)), (200, &*servers[2].name));
        let new = format!("Cookie: {}\r\n", cookie(&answer).unwrap());
        let answer = ask(&rig, "GET /x", &new);
        assert_eq!((server(&answer), cookie(&answer)), (&*servers[2].name, None));
    }
    // An ejected server is not asked, and a server that is back has its clients again.
    assert_eq!(rig.status(&servers[1])["is_ejected"], true);
    assert_eq!(rig.change(&format!("/undrain?server={}", servers[0].text)).status(), 200);
    for _ in 0..3 {
        let answer = ask(&rig, "GET /x", &drained);
        assert_eq!((server(&answer), cookie(&answer)), (&*servers[0].name, None));
    }
}

#[test]
fn backup_keeps_no_client_while_another_server_is_available() {
    let (main, backup) = (Server::start(), Server::start());
    let rig = Rig::start(&[(&main, ""), (&backup, "backup")], STICKY, "");
    assert_eq!(rig.change(&format!("/drain?server={}", main.text)).status(), 200);
    let answer = ask(&rig, "GET /x", "");
    assert_eq!(server(&answer), backup.name);
    let fields = format!("Cookie: {}\r\n", cookie(&answer).unwrap());
    assert_eq!(cookie(&ask(&rig, "GET /x", &fields)), None);
    assert_eq!(rig.change(&format!("/undrain?server={}", main.text)).status(), 200);
    let answer = ask(&rig, "GET /x", &fields);
    assert_eq!(server(&answer), main.name);
    assert!(cookie(&answer).is_some_and(|new| !fields.contains(&new)));
}

#[test]
fn cookie_is_in_no_stored_response() {
    let servers = three();
    let rig = start(&servers, "");
    let known = format!("Cookie: {}\r\n", cookie(&ask(&rig, "GET /x", "")).unwrap());
    // A miss of a client without a cookie, with a forged and with a known one, and hits after it.
    for fields in ["", "Cookie: S=forged\r\n", &known] {
        rig.clock.advance(20);
        let asked: usize = servers.iter().map(Server::asked).sum();
        for line in ["GET /stored", "GET /stored", "HEAD /stored"] {
            let answer = ask(&rig, line, fields);
            assert_eq!((answer.status(), answer.field("set-cookie")), (200, None), "{line} {fields}");
            assert!(!answer.head.contains("private"), "{line} {fields}: {}", answer.head);
        }
        assert_eq!(servers.iter().map(Server::asked).sum::<usize>(), asked + 1, "{fields}");
        for more in ["Range: bytes=0-0\r\n", "If-None-Match: *\r\n", "If-Modified-Since: x\r\n"] {
            let answer = ask(&rig, "HEAD /stored", &format!("{fields}{more}"));
            assert_eq!(answer.field("set-cookie"), None, "{more}");
        }
    }
    let asked: usize = servers.iter().map(Server::asked).sum();
    // A stale response in place of an error.
    rig.clock.advance(20);
    for server in &servers {
        server.become_mode(Mode::Dead);
    }
    let answer = ask(&rig, "GET /stored", "");
    assert_eq!((answer.status(), answer.field("set-cookie")), (200, None));
    assert_eq!(asked, servers.iter().map(Server::asked).sum::<usize>());
    // The proxy's own response.
    assert_eq!(cookie(&ask(&rig, "POST /x", "Content-Length: 0\r\n")), None);
}

#[test]
fn clients_that_wait_for_one_response_get_no_cookie_of_another() {
    let servers = three();
    let rig = start(&servers, "");
    let all = |mode| servers.iter().for_each(|server| server.become_mode(mode));
    for path in ["/stored", "/x", "/long"] {
        all(Mode::Hold);
        let before: usize = servers.iter().map(Server::asked).sum();
        let answers: Vec<_> = thread::scope(|scope| {
            let ask = || ask(&rig, &format!("GET {path}"), "");
            let clients: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            assert!(wait_until(LIMIT, || servers.iter().map(Server::asked).sum::<usize>() > before));
            all(Mode::Answer);
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        for answer in answers {
            let own = cookie(&answer);
            if path == "/stored" {
                assert_eq!(own, None, "{}", answer.head);
                continue;
            }
            // The cookie names the server whose response the client got.
            let fields = format!("Cookie: {}\r\n", own.unwrap());
            let again = ask(&rig, "GET /y", &fields);
            assert_eq!((server(&again), cookie(&again)), (server(&answer), None), "{path}");
        }
    }
}

#[test]
fn cookie_is_in_no_response_that_updates_another_cache() {
    let servers = three();
    let rig = start(&servers, "");
    // Past the cache, so that a cache before the proxy would get the origin's 304.
    let answer = ask(&rig, "GET /unchanged", "If-Match: *\r\nIf-None-Match: *\r\n");
    assert_eq!((answer.status(), cookie(&answer)), (304, None));
    assert!(!answer.head.contains("private"), "{}", answer.head);
    assert_eq!(cookie(&ask(&rig, "HEAD /x", "If-Match: *\r\n")), None);
    // Other caches obey this field in place of Cache-Control.
    assert_eq!(cookie(&ask(&rig, "POST /targeted", "Content-Length: 0\r\n")), None);
    let answer = ask(&rig, "POST /stored", "Content-Length: 0\r\n");
    assert!(cookie(&answer).is_some());
    assert!(answer.head.contains("\r\nCache-Control: private\r\n"), "{}", answer.head);
}

#[test]
fn routes_without_cookies_are_not_sticky() {
    for rules in [
        "request_headers = { remove = [\"Cookie\"] }",
        "cache = { ignore_cookies = [\"S*\"] }",
        "response_headers = { set = { Cache-Control = \"public\" } }",
        "response_headers = { remove = [\"Set-Cookie\"] }",
    ] {
        let servers = three();
        let all: Vec<_> = servers.iter().map(|server| format!("\"{}\"", server.text)).collect();
        let edge = Edge::start(&format!(
            "[pool.p]\nservers = [{}]\n{STICKY}\n[[site]]\n[[site.route]]\npool = \"p\"\n{rules}\n",
            all.join(", ")
        ));
        let answers: Vec<_> = (0..6).map(|_| edge.ask("GET /x", "")).collect();
        assert!(answers.iter().all(|answer| cookie(answer).is_none()), "{rules}");
        assert!(servers.iter().all(|server| server.asked() == 2), "{rules}");
    }
}

#[test]
fn wrong_cookies_are_named() {
    for (pool, expected) in [
        ("sticky = \"a b\"", "pool.a.sticky: expected the name of a cookie"),
        ("sticky = \"\"", "pool.a.sticky: expected the name of a cookie"),
        ("sticky = \"a;Domain=b\"", "pool.a.sticky: expected the name of a cookie"),
        ("sticky = true", "pool.a.sticky = true: expected text in quotes"),
        ("sticky = \"S\"\nsticky_key = \"short\"", "pool.a.sticky_key: the secret is too short"),
        ("sticky_key = \"0123456789abcdef\"", "pool.a.sticky_key: the pool sets no cookie"),
    ] {
        let toml = format!("[pool.a]\nservers = [\"a:1\"]\n{pool}\n[[site]]\nroute = [{{ pool = \"a\" }}]");
        let error = Config::from_toml(&toml).and_then(|config| config.check()).expect_err(pool).to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{pool}: {error}");
    }
}
