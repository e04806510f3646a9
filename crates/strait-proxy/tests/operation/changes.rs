//! Reload of the configuration, and shutdown.

use std::net::{SocketAddr, TcpListener, TcpStream};

use lab::wait_until;
use strait_proxy::{Clock, Config, Proxy};

use crate::http2::{self, GOAWAY, SETTINGS};
use crate::rig::{Client, LIMIT, Origin, Rig, body};

/// Bytes of a body that is larger than socket buffers.
const LEN: usize = 20_000_000;

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn reload_holds_from_the_next_request_and_closes_no_connection() {
    let mut rig = Rig::start("name = \"one\"");
    let mut client = rig.client();
    assert!(client.get("/200/60/5/a").field("via").unwrap().ends_with(" one"));
    let config = rig.config("name = \"two\"\nlimits.request_body = 1");
    assert_eq!(rig.proxy.reload(&config).unwrap(), Vec::<&str>::new());
    // Workers apply it a moment later.
    assert!(wait_until(LIMIT, || client.get("/200/60/5/a").field("via").unwrap().ends_with(" two")));
    assert!(client.get("/200/60/5/a").field("cache-status").unwrap().starts_with("two; hit"));
    client.send("POST /200/0/1/a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n");
    assert_eq!(client.answer().unwrap().status(), 413);
}

/// Requests /200/60/5/a for a tenant.
fn get_as(client: &mut Client, tenant: &str) -> crate::rig::Answer {
    client.send(format!("GET /200/60/5/a HTTP/1.1\r\nHost: www.example\r\nX-Tenant: {tenant}\r\n\r\n"));
    client.answer().unwrap()
}

#[test]
fn responses_stored_with_other_key_fields_answer_no_request() {
    let mut rig = Rig::start("name = \"p1\"");
    let mut client = rig.client();
    let reload = |rig: &mut Rig, name: &str, rest: &str| {
        let config = rig.config(&format!("name = \"{name}\"\n{rest}"));
        rig.proxy.reload(&config).unwrap();
        let end = format!(" {name}");
        assert!(wait_until(LIMIT, || rig.client().get("/200/0/5/b").field("via").unwrap().ends_with(&end)));
    };
    let is_hit = |answer: crate::rig::Answer| answer.field("cache-status").unwrap().contains("hit");
    // Stored for a tenant without a key field; the second request brings it into the memory cache.
    assert!(!is_hit(get_as(&mut client, "a")) && is_hit(get_as(&mut client, "b")));
    reload(&mut rig, "p2", "cache.key_fields = [\"X-Tenant\"]");
    for tenant in ["a", "b"] {
        assert!(!is_hit(get_as(&mut client, tenant)) && is_hit(get_as(&mut client, tenant)), "{tenant}");
    }
    // The response that answers no request any more is removed.
    rig.wait_stored(2);
    // Another key field, then both.
    reload(&mut rig, "p3", "cache.key_fields = [\"X-Other\"]");
    assert!(!is_hit(get_as(&mut client, "a")) && is_hit(get_as(&mut client, "b")));
    reload(&mut rig, "p4", "cache.key_fields = [\"X-Other\", \"X-Tenant\"]");
    for tenant in ["a", "b"] {
        assert!(!is_hit(get_as(&mut client, tenant)) && is_hit(get_as(&mut client, tenant)), "{tenant}");
    }
    // Without key fields a response for one tenant is not sent to all.
    reload(&mut rig, "p5", "");
    client.send("GET /200/60/5/a HTTP/1.1\r\nHost: www.example\r\n\r\n");
    assert!(!is_hit(client.answer().unwrap()));
}

#[test]
fn stricter_policy_stops_hits_of_stored_responses() {
    for (before, after, path) in [
        ("cache.store_set_cookie = true", "cache.store_set_cookie = false", "/200/60/5/cookie"),
        ("cache.store_errors = [404]", "cache.store_errors = [410]", "/404/60/5/a"),
    ] {
        let mut rig = Rig::start(before);
        let mut client = rig.client();
        let mut is_hit = || client.get(path).field("cache-status").unwrap().contains("; hit");
        assert!(!is_hit() && is_hit() && is_hit(), "{path}");
        let config = rig.config(after);
        rig.proxy.reload(&config).unwrap();
        assert!(wait_until(LIMIT, || !is_hit()), "{path}");
        assert!(!is_hit(), "{path}");
        let config = rig.config(before);
        rig.proxy.reload(&config).unwrap();
        // The stored response was not removed, or was replaced by the same.
        assert!(wait_until(LIMIT, &mut is_hit), "{path}");
    }
}

#[test]
fn access_reach_is_checked_for_every_request() {
    let origin = Origin::start();
    let config = |reach: &str| Config {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        workers: 1,
        ..Config::from_toml(&format!("access.reach = [{reach}]")).unwrap()
    };
    let mut proxy = Proxy::start(&config("\"127.0.0.0/8\""), Clock::system()).unwrap();
    let mut client = Client::to(proxy.address());
    let uri = format!("http://localhost:{}/200/0/5/a", origin.address.port());
    assert_eq!(client.get(&uri).status(), 200);
    // The proxy has cached the addresses of the name, and keeps a connection.
    proxy.reload(&config("")).unwrap();
    assert!(wait_until(LIMIT, || client.get(&uri).status() == 403));
    proxy.reload(&config("\"127.0.0.0/8\"")).unwrap();
    assert!(wait_until(LIMIT, || client.get(&uri).status() == 200));
}

#[test]
fn invalid_configuration_changes_nothing() {
    let mut rig = Rig::start("name = \"one\"");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    for toml in ["name = \"a b\"", &format!("listen = [\"{}\"]", taken.local_addr().unwrap())] {
        let config = rig.config(toml);
        assert!(rig.proxy.reload(&config).is_err(), "{toml}");
    }
    assert!(rig.client().get("/200/60/5/a").field("via").unwrap().ends_with(" one"));
}

#[test]
fn a_reload_does_not_change_the_kind_of_proxy() {
    let mut rig = Rig::start("name = \"one\"");
    let mut config = rig.config("name = \"two\"");
    config.origin = None;
    let error = rig.proxy.reload(&config).unwrap_err().to_string();
    assert!(error.starts_with("origin: missing; ") && error.contains("forward proxy"), "{error}");
    assert!(rig.client().get("/200/60/5/a").field("via").unwrap().ends_with(" one"));
    // The other way round.
    config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    config.cache.dir = None;
    let mut forward = Proxy::start(&config, Clock::system()).unwrap();
    config.origin = Some("http://127.0.0.1:1".to_owned());
    let error = forward.reload(&config).unwrap_err().to_string();
    assert!(error.starts_with("origin: set; "), "{error}");
}

#[test]
fn reload_returns_settings_that_need_a_restart() {
    let mut rig = Rig::start("");
    let config = rig.config("workers = 3\ncache.size = \"2GiB\"\nadmin.listen = \"127.0.0.1:0\"");
    assert_eq!(rig.proxy.reload(&config).unwrap(), ["workers", "cache.size", "admin.listen"]);
}

#[test]
fn reload_changes_addresses_and_keeps_connections() {
    let (one, other) = (free(), free());
    let mut rig = Rig::start(&format!("listen = [\"{one}\"]\nworkers = 2"));
    let mut early = Client::to(one);
    early.get("/200/60/5/a");
    let config = rig.config(&format!("listen = [\"{one}\", \"{other}\"]\nworkers = 2"));
    rig.proxy.reload(&config).unwrap();
    assert_eq!(Client::to(other).get("/200/60/5/a").status(), 200);
    let config = rig.config(&format!("listen = [\"{other}\"]\nworkers = 2"));
    rig.proxy.reload(&config).unwrap();
    assert!(wait_until(LIMIT, || TcpStream::connect(one).is_err()));
    assert_eq!(early.get("/200/60/5/a").status(), 200);
    assert_eq!(Client::to(other).get("/200/60/5/a").status(), 200);
    assert_eq!(rig.proxy.addresses().collect::<Vec<_>>(), [other]);
}

#[test]
fn shutdown_closes_idle_connections_and_finishes_responses() {
    let rig = Rig::start("timeouts.drain = 20\ncache.memory_object = 0");
    let mut idle = rig.client();
    idle.get("/200/60/5/a");
    let mut busy = rig.client();
    // The client reads its response only later, so that the proxy is still sending it.
    busy.send(format!("GET /200/600/{LEN}/b HTTP/1.1\r\nHost: www.example\r\n\r\n"));
    assert!(wait_until(LIMIT, || rig.origin.asked() == 2));
    let (address, proxy) = (rig.proxy.address(), rig.proxy);
    let ending = std::thread::spawn(move || proxy.stop());
    assert!(idle.is_ended());
    assert!(wait_until(LIMIT, || TcpStream::connect(address).is_err()));
    let answer = busy.answer().unwrap();
    assert!(answer.body == body(LEN) && busy.is_ended());
    let report = ending.join().unwrap();
    assert_eq!((report.requests, report.cut, report.open), (2, 0, 0));
}

#[test]
fn shutdown_answers_the_request_of_a_new_connection() {
    // On a busy machine the request can come later than the proxy waits.
    assert!((0..5).any(|_| is_answered_in_shutdown()));
}

/// Sends the first request of a connection to a proxy that has closed its listener. Returns true if
/// it is answered.
fn is_answered_in_shutdown() -> bool {
    let rig = Rig::start("timeouts.drain = 20");
    let (mut new, silent) = (rig.client(), rig.client());
    assert!(wait_until(LIMIT, || rig.proxy.report().open == 2));
    let (address, proxy) = (rig.proxy.address(), rig.proxy);
    let ending = std::thread::spawn(move || proxy.stop());
    assert!(wait_until(LIMIT, || TcpStream::connect(address).is_err()));
    new.send("GET /200/60/5/a HTTP/1.1\r\nHost: a\r\n\r\n");
    let report = ending.join().unwrap();
    assert_eq!((report.cut, report.open), (0, 0));
    drop(silent);
    report.requests == 1
}

#[test]
fn shutdown_announces_the_end_of_http2_connections_and_answers_requests_on_their_way() {
    // On a busy machine the requests can come later than the proxy waits.
    assert!((0..5).any(|_| are_answered_after_goaway()));
}

/// Sends a request on a new and on an idle connection of HTTP/2 after the first GOAWAY. Returns
/// true if both are answered.
fn are_answered_after_goaway() -> bool {
    let rig = Rig::start(&format!("timeouts.drain = 20\n{}", http2::ON));
    let (mut new, mut idle) =
        (http2::Client::to(rig.proxy.address()), http2::Client::to(rig.proxy.address()));
    assert_eq!(idle.get(1, "/200/60/5/a").body, body(5));
    new.until(SETTINGS).unwrap();
    let proxy = rig.proxy;
    let ending = std::thread::spawn(move || proxy.stop());
    let last_streams = |client: &mut http2::Client| client.until(GOAWAY).unwrap().payload[..4].to_vec();
    let mut answered = 0;
    for client in [&mut new, &mut idle] {
        assert_eq!(last_streams(client), [0x7f, 0xff, 0xff, 0xff]);
        client.send(http2::get(3, "/200/60/5/a"));
        answered += client.answers(1).into_iter().filter(|(_, answer)| answer.body == body(5)).count();
    }
    for mut client in [new, idle] {
        assert!(answered < 2 || last_streams(&mut client) == [0, 0, 0, 3]);
        while client.frame().is_some() {}
    }
    let report = ending.join().unwrap();
    assert_eq!((report.cut, report.open), (0, 0));
    answered == 2
}

#[test]
fn shutdown_closes_connections_after_the_drain_timeout() {
    let rig = Rig::start("timeouts.drain = 1");
    let mut slow = rig.client();
    slow.send("GET /200/60/5/a HTTP/1.1\r\n");
    assert!(wait_until(LIMIT, || rig.proxy.report().open == 1));
    let report = rig.proxy.stop();
    assert!(slow.is_ended());
    assert_eq!(report.requests, 0);
}

#[test]
fn address_of_another_proxy_is_refused() {
    let (one, other) = (Rig::start("workers = 2"), Rig::start(""));
    let mut config = other.config("");
    config.listen = vec![one.proxy.address()];
    config.cache.dir = None;
    let error = Proxy::start(&config, Clock::system()).unwrap_err().to_string();
    assert!(error.starts_with("listen on 127.0.0.1:") && error.contains("in use"), "{error}");
}
