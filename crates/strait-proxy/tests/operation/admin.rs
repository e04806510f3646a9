//! The admin address.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};

use lab::wait_until;
use strait_proxy::{Clock, Proxy};

use crate::rig::{Client, LIMIT, Rig};

const ADMIN: &str = "admin.listen = \"127.0.0.1:0\"\n";
/// Configuration without a store.
const MEMORY: &str = "cache.dir = \"\"\n";

#[test]
fn no_admin_address_by_default() {
    assert_eq!(Rig::start("").proxy.admin(), None);
}

#[test]
fn metrics_and_status_count_requests() {
    let rig = Rig::start(ADMIN);
    let mut client = rig.client();
    for _ in 0..3 {
        client.get("/200/60/100000/a");
        rig.wait_stored(1);
    }
    client.get("/404/0/5/b");
    rig.wait_counted(4);
    let metrics = rig.show("/metrics");
    assert_eq!(metrics.field("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let metrics = metrics.text();
    for line in [
        "strait_proxy_requests_total{cache=\"hit\"} 2",
        "strait_proxy_requests_total{cache=\"miss\"} 1",
        "strait_proxy_requests_total{cache=\"pass\"} 1",
        "strait_proxy_responses_total{status=\"4xx\"} 1",
        "strait_proxy_response_seconds_count{cache=\"hit\"} 2",
        "strait_proxy_connections 1",
        "strait_proxy_origin_connections_total ",
        "strait_proxy_fill_bytes_total{mechanism=\"copy\"}",
        "strait_proxy_fills 0",
        "strait_store_records 1",
    ] {
        assert!(metrics.lines().any(|own| own.starts_with(line)), "{line}\n{metrics}");
    }
    let status = rig.show("/status.json").json();
    assert_eq!((&status["requests"], &status["statuses"]["4xx"]), (&4.into(), &1.into()), "{status}");
    let most_requested = &status["most_requested"][0];
    assert_eq!(
        (&most_requested["uri"], &most_requested["hits"]),
        (&"http://www.example/200/60/100000/a".into(), &2.into())
    );
    assert!(status["sendfile"].as_u64().unwrap() >= 200_000, "{status}");
    drop(client);
    assert!(wait_until(LIMIT, || rig.show("/status.json").json()["open"] == 0));
    assert_eq!(rig.show("/healthz").text(), "ok\n");
}

#[test]
fn page_loads_nothing_from_other_servers() {
    let rig = Rig::start(ADMIN);
    let page = rig.show("/");
    assert!(page.field("content-security-policy").unwrap().starts_with("default-src 'none'"));
    let text = page.text();
    assert!(text.starts_with("<!doctype html>"));
    assert!(!text.contains("http:") && !text.contains("https:") && !text.contains(" src="));
    assert_eq!(rig.show("/nothing").status(), 404);
}

#[test]
fn foreign_host_name_is_refused() {
    let rig = Rig::start(&format!("{ADMIN}admin.hosts = [\"cache.example\"]"));
    for (host, expected) in [
        ("evil.example", 421),
        ("localhost", 200),
        ("127.0.0.1:9", 200),
        ("[::1]:9", 200),
        ("Cache.example:1", 200),
        ("localhost.evil.example", 421),
    ] {
        assert_eq!(rig.ask(&format!("GET /healthz HTTP/1.1\nHost: {host}")).status(), expected, "{host}");
    }
    assert_eq!(rig.ask("GET /healthz HTTP/1.0").status(), 400);
}

#[test]
fn stored_objects_are_listed_and_purged() {
    let rig = Rig::start(ADMIN);
    let mut client = rig.client();
    for name in ["a", "b", "c"] {
        client.get(&format!("/200/60/10/{name}"));
    }
    let entries = rig.show("/objects?pattern=*/b").json();
    assert_eq!(entries.as_array().unwrap().len(), 1);
    let entry = &entries[0];
    assert_eq!((&entry["uri"], &entry["bytes"]), (&"http://www.example/200/60/10/b".into(), &10.into()));
    assert_eq!((&entry["status"], &entry["content_type"]), (&200.into(), &"text/x-test".into()), "{entry}");
    let uri = "http://www.example/200/60/10/a";
    assert_eq!(rig.show(&format!("/object?uri={uri}")).json()[0]["uri"], uri);
    let post = |path: &str| rig.ask(&format!("POST {path} HTTP/1.1\nHost: localhost"));
    assert_eq!(post(&format!("/purge?uri={uri}")).json()["stored"], 1);
    assert_eq!(rig.show(&format!("/object?uri={uri}")).json().as_array().unwrap().len(), 0);
    assert!(client.get("/200/60/10/a").field("cache-status").unwrap().contains("uri-miss"));
    rig.wait_stored(3);
    assert_eq!(post("/ban?pattern=http%3A//www.example/*").json()["stored"], 3);
    let asked = rig.origin.asked();
    client.get("/200/60/10/b");
    assert_eq!(rig.origin.asked(), asked + 1);
    assert_eq!(post("/verify").json()["corrupt"], 0);
    assert_eq!((post("/purge?uri=x").status(), post("/ban").status()), (400, 400));
}

#[test]
fn ban_without_a_store_holds_for_every_worker() {
    let rig = Rig::start(&format!("{ADMIN}workers = 3\n{MEMORY}"));
    for _ in 0..30 {
        rig.client().get("/200/60/10/a");
    }
    let post = |path: &str| rig.ask(&format!("POST {path} HTTP/1.1\nHost: localhost"));
    assert!(post("/ban?pattern=*").json()["in_memory"].as_u64().unwrap() >= 1);
    let asked = rig.origin.asked();
    assert!(rig.client().get("/200/60/10/a").field("cache-status").unwrap().contains("fwd="));
    assert_eq!(rig.origin.asked(), asked + 1);
}

#[test]
fn invalidation_without_a_store_holds_for_every_worker() {
    let rig = Rig::start(&format!("workers = 3\naccess.purge = [\"127.0.0.1\"]\n{MEMORY}"));
    let path = "/200/60/10/a";
    let stored = || {
        let asked = (0..30).map(|_| {
            let mut client = rig.client();
            client.send(format!(
                "GET {path} HTTP/1.1\r\nHost: www.example\r\nCache-Control: only-if-cached\r\n\r\n"
            ));
            client.answer().unwrap().status()
        });
        asked.filter(|status| *status == 200).count()
    };
    for method in ["POST", "PURGE"] {
        for _ in 0..30 {
            rig.client().get(path);
        }
        assert!(stored() > 0, "{method}");
        let mut client = rig.client();
        client.send(format!("{method} {path} HTTP/1.1\r\nHost: www.example\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!(client.answer().unwrap().status(), 200);
        assert_eq!(stored(), 0, "{method}");
    }
}

#[test]
fn number_of_variants_is_limited() {
    for toml in [ADMIN.to_owned(), format!("{ADMIN}{MEMORY}")] {
        let rig = Rig::start(&toml);
        let mut client = rig.client();
        let mut ask = |kind: usize| {
            client
                .send(format!("GET /200/60/10/vary HTTP/1.1\r\nHost: www.example\r\nX-Kind: {kind}\r\n\r\n"));
            client.answer().unwrap().field("cache-status").unwrap().contains("hit")
        };
        assert!((0..70).all(|kind| !ask(kind)));
        // The newest stay.
        assert!((6..70).all(&mut ask));
        assert!(!ask(5) && !ask(6) && ask(8));
    }
}

#[test]
fn changes_need_post_from_an_allowed_origin_and_address() {
    let rig = Rig::start(ADMIN);
    rig.client().get("/200/60/10/a");
    let path = "/ban?pattern=*";
    assert_eq!(rig.show(path).status(), 405);
    for (fields, expected) in [
        ("Origin: http://evil.example", 403),
        ("Sec-Fetch-Site: cross-site", 403),
        ("Content-Length: 5", 413),
        ("Origin: http://localhost\nSec-Fetch-Site: same-origin", 200),
    ] {
        let answer = rig.ask(&format!("POST {path} HTTP/1.1\nHost: localhost\n{fields}"));
        assert_eq!(answer.status(), expected, "{fields}");
    }
    let elsewhere = Rig::start(&format!("{ADMIN}admin.change = [\"10.0.0.0/8\"]"));
    let answer = elsewhere.ask(&format!("POST {path} HTTP/1.1\nHost: localhost"));
    assert_eq!(answer.status(), 403);
}

#[test]
fn without_a_store_all_workers_share_one_memory_cache() {
    let rig = Rig::start(&format!("{ADMIN}workers = 2\naccess.purge = [\"127.0.0.1\"]\n{MEMORY}"));
    let post = |path: &str| rig.ask(&format!("POST {path} HTTP/1.1\nHost: localhost"));
    for name in ["a", "b"] {
        for _ in 0..20 {
            rig.client().get(&format!("/200/60/10/{name}"));
        }
    }
    assert_eq!(rig.origin.asked(), 2);
    // A ban removes only the objects that match.
    assert_eq!(post("/ban?pattern=*/none").json()["in_memory"], 0);
    assert_eq!(post("/ban?pattern=*/a").json()["in_memory"], 1);
    for _ in 0..20 {
        rig.client().get("/200/60/10/b");
    }
    assert_eq!(rig.origin.asked(), 2);
    let purge = || {
        let mut client = rig.client();
        client.send("PURGE /200/60/10/b HTTP/1.1\r\nHost: www.example\r\n\r\n");
        client.answer().unwrap().status()
    };
    assert_eq!((purge(), purge()), (200, 404));
}

/// Starts an origin that sends responses that are fresh for a minute, and that confirms its tag by
/// a 304.
fn start_confirming_origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(&stream);
                let mut head = String::new();
                while reader.read_line(&mut head).is_ok_and(|read| read > 0) {
                    if !head.ends_with("\r\n\r\n") {
                        continue;
                    }
                    let is_known = head.to_ascii_lowercase().contains("if-none-match");
                    let status = if is_known { "304 Not Modified" } else { "200 OK\r\nContent-Length: 2" };
                    let body = if is_known { "" } else { "ab" };
                    let fields = "ETag: \"a\"\r\nCache-Control: max-age=60\r\n";
                    let _ = write!(&stream, "HTTP/1.1 {status}\r\n{fields}\r\n{body}");
                    head.clear();
                }
            });
        }
    });
    address
}

#[test]
fn without_a_store_a_304_renews_an_object_after_many_purges_and_bans_of_others() {
    for path in ["/purge?uri=http://other/", "/ban?pattern=http://other/"] {
        let rig = Rig::start("");
        let mut config = rig.config(&format!("{ADMIN}{MEMORY}"));
        config.origin = Some(format!("http://{}", start_confirming_origin()));
        let clock = Clock::fixed(1_000_000_000);
        let proxy = Proxy::start(&config, clock.clone()).unwrap();
        let mut client = Client::to(proxy.address());
        let mut status = || client.get("/x").field("cache-status").unwrap().to_owned();
        assert!(!status().contains("; hit") && status().contains("; hit"));
        for number in 0..300 {
            let mut admin = Client::to(proxy.admin().unwrap());
            admin.send(format!("POST {path}{number} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            assert_eq!(admin.answer().unwrap().status(), 200);
        }
        clock.advance(100);
        assert!(status().contains("fwd-status=304"), "{path}");
        assert!(status().contains("; hit"), "{path}");
    }
}

#[test]
fn wrong_methods_and_missing_parameters_are_named() {
    let rig = Rig::start(ADMIN);
    let ask = |line: &str| rig.ask(&format!("{line} HTTP/1.1\nHost: localhost"));
    for (line, allow) in [
        ("GET /purge?uri=http://a/", "POST"),
        ("GET /drain", "POST"),
        ("POST /metrics", "GET, HEAD"),
        ("PUT /purge", "GET, HEAD, POST"),
    ] {
        let answer = ask(line);
        assert_eq!((answer.status(), answer.field("allow")), (405, Some(allow)), "{line}");
    }
    for line in ["POST /purge", "POST /purge?uri=%4"] {
        let answer = ask(line);
        assert_eq!(answer.status(), 400, "{line}");
        assert!(answer.text().contains("the parameter uri or tag is missing"), "{}", answer.text());
    }
    let answer = ask("POST /drain?server=10.0.0.1:80&pool=p");
    assert_eq!(answer.status(), 404);
    assert!(answer.text().contains("the pool \"p\" has no server \"10.0.0.1:80\""), "{}", answer.text());
}
