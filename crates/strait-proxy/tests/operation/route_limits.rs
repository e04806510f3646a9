//! Limits of routes in place of those of the file and of the pool: timeouts, retries and the size
//! of request bodies.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use lab::wait_until;
use strait_proxy::Config;

use crate::pool_rig::{Mode, Rig, Server};
use crate::rig::{Client, LIMIT};

/// Keys of a pool, followed by a site for the host `own` with a route that has these limits.
fn with_site(pool: &str, limits: &str) -> String {
    format!("{pool}\n[[site]]\nhosts = [\"own\"]\n[[site.route]]\npool = \"p\"\n{limits}\n")
}

fn send(client: &mut Client, host: &str, path: &str) {
    client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
}

/// Sends a request to a host and returns the status.
fn get(rig: &Rig, host: &str, path: &str) -> u16 {
    let mut client = rig.client();
    send(&mut client, host, path);
    client.answer().unwrap().status()
}

#[test]
fn body_is_limited_by_its_route() {
    let server = Server::start();
    let pool = with_site("", "request_body = \"4KiB\"");
    let rig = Rig::start(&[(&server, "")], &pool, "limits.request_body = 100");
    let post = |host: &str, length: usize| {
        let body = "x".repeat(length);
        let fields = format!("Host: {host}\r\nContent-Length: {length}");
        rig.ask(&format!("POST /x HTTP/1.1\r\n{fields}\r\n\r\n{body}")).status()
    };
    assert_eq!([post("own", 4096), post("own", 4097), post("a", 100), post("a", 101)], [200, 413, 200, 413]);
    let chunked = |host: &str, length: usize| {
        let body = format!("{length:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(length));
        let mut client = rig.client();
        client.send(format!("POST /x HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n"));
        client.try_send(body);
        client.answer().unwrap().status()
    };
    assert_eq!([chunked("own", 4097), chunked("a", 101)], [413, 413]);
    assert_eq!(server.asked(), 2);
}

#[test]
fn refused_client_learns_no_limit_of_a_body() {
    let server = Server::start();
    let pool = with_site("", "request_body = 1\naccess.deny = [\"127.0.0.0/8\"]");
    let rig = Rig::start(&[(&server, "")], &pool, "");
    let answer = rig.ask("POST /x HTTP/1.1\r\nHost: own\r\nContent-Length: 2\r\n\r\nab");
    assert_eq!(answer.status(), 403, "{}", answer.head);
}

#[test]
fn body_that_takes_longer_than_its_route_allows_gets_408() {
    let server = Server::start();
    let pool = with_site("", "timeouts = { body = 1 }");
    let rig = Rig::start(&[(&server, "")], &pool, "limits.request_body_rate = 0");
    let [mut other, mut own] = ["a", "own"].map(|host| {
        let mut client = rig.client();
        client.send(format!("POST /x HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\n\r\nab"));
        client
    });
    assert_eq!(own.answer().unwrap().status(), 408);
    assert_eq!(server.asked(), 0);
    // The body of the other route has begun before, and has the time of the file.
    other.send("cde");
    assert_eq!(other.answer().unwrap().status(), 200);
}

#[test]
fn server_is_awaited_as_long_as_the_route_allows() {
    let server = Server::start();
    let pool = with_site("failures = 0\nretries = 0", "timeouts = { origin = 600 }");
    let rig = Rig::start(&[(&server, "")], &pool, "timeouts.origin = 1");
    // Each connection is used by both routes, so its limit is that of the request.
    for host in ["own", "a"] {
        assert_eq!(get(&rig, host, "/x"), 200);
    }
    server.become_mode(Mode::Hold);
    let mut patient = rig.client();
    send(&mut patient, "own", "/x");
    assert!(wait_until(LIMIT, || rig.status(&server)["load"] == 1));
    assert_eq!(get(&rig, "a", "/x"), 504);
    server.become_mode(Mode::Answer);
    assert_eq!(patient.answer().unwrap().status(), 200);
    assert_eq!(get(&rig, "own", "/x"), 200);
    server.become_mode(Mode::Hang);
    assert_eq!(get(&rig, "a", "/x"), 504);
}

#[test]
fn request_waits_for_a_connection_as_long_as_its_route_allows() {
    let server = Server::start();
    let pool = with_site("", "timeouts = { connect = 1 }");
    let limits =
        "timeouts.connect = 600\nlimits.origin_connections = 1\nlimits.origin_connections_per_client = 0";
    let rig = Rig::start(&[(&server, "")], &pool, limits);
    server.become_mode(Mode::Hold);
    let mut clients = [rig.client(), rig.client()];
    for (client, load) in clients.iter_mut().zip(1..) {
        send(client, "a", "/x");
        assert!(wait_until(LIMIT, || rig.status(&server)["load"] == load));
    }
    assert_eq!(get(&rig, "own", "/x"), 503);
    server.become_mode(Mode::Answer);
    for client in &mut clients {
        assert_eq!(client.answer().unwrap().status(), 200);
    }
}

#[test]
fn request_is_repeated_as_often_as_its_route_allows() {
    let servers = [Server::start(), Server::start(), Server::start(), Server::start()];
    let all: Vec<_> = servers.iter().map(|server| (server, "")).collect();
    let asked = || servers.iter().map(Server::asked).sum::<usize>();
    for (pool, own, expected) in [(2, 0, 1), (0, 3, 4)] {
        let pool = with_site(&format!("failures = 0\nretries = {pool}"), &format!("retries = {own}"));
        let rig = Rig::start(&all, &pool, "");
        for server in &servers {
            server.become_mode(Mode::Reset);
        }
        let before = asked();
        assert_eq!((get(&rig, "own", "/x"), asked() - before), (502, expected));
        let before = asked();
        assert_eq!((get(&rig, "a", "/x"), asked() - before), (502, if expected == 1 { 3 } else { 1 }));
    }
}

#[test]
fn idle_websocket_ends_after_the_time_of_its_route() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let read = stream.read(&mut [0; 4096]).unwrap();
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        // Until the proxy ends the tunnel.
        (read, stream.read(&mut [0; 16]))
    });
    let rig = Rig::of(&[&address], &with_site("", "timeouts = { tunnel = 1 }"), "timeouts.tunnel = 600");
    let mut client = rig.client();
    client.send("GET /x HTTP/1.1\r\nHost: own\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n");
    assert_eq!(client.head().unwrap().status(), 101);
    assert!(client.is_ended());
    assert!(server.join().unwrap().0 > 0);
}

#[test]
fn sizes_of_routes_have_units_also_in_long_files() {
    let route = "[[site.route]]\nrequest_body = \"1.5KiB\"\npool = \"p\"\n";
    let site = |host: usize| format!("[[site]]\nhosts = [\"h{host}\"]\n{route}");
    let long: String = (0..2000).map(site).collect();
    for sites in [site(0), long] {
        let config = Config::from_toml(&format!("pool.p.servers = [\"a:1\"]\n{sites}")).unwrap();
        let sizes = config.site.iter().map(|site| site.route[0].request_body.unwrap().as_u64());
        assert!(sizes.into_iter().all(|size| size == 1536));
    }
}

#[test]
fn wrong_limits_are_named() {
    const POOL: &str = "pool = \"a\", ";
    for (target, limits, expected) in [
        (POOL, "retries = 17", "site[1].route[1].retries = 17: expected a whole number from 0 to 16"),
        (POOL, "timeouts = { origin = 0 }", "timeouts.origin = 0: expected a whole number from 1 to 86400"),
        (POOL, "timeouts = { idle = 1 }", "site[1].route[1].timeouts.idle: unknown key"),
        (POOL, "timeouts = {}", "site[1].route[1].timeouts: it has no limit"),
        (POOL, "timeouts = 5", "site[1].route[1].timeouts: expected a section with the keys connect"),
        (POOL, "request_body = \"many\"", "site[1].route[1].request_body = \"many\": expected a size"),
        ("respond = {}, ", "retries = 1", "site[1].route[1].retries: only a route with a pool"),
        ("files = \"/\", ", "request_body = 1", "site[1].route[1].request_body: only a route with a pool"),
        (
            "respond = {}, ",
            "timeouts = { connect = 1 }",
            "site[1].route[1].timeouts: only a route with a pool",
        ),
    ] {
        let pools = if target == POOL { "pool.a.servers = [\"a:1\"]\n" } else { "" };
        let toml = format!("{pools}[[site]]\nroute = [{{ {target}{limits} }}]");
        let error = Config::from_toml(&toml).and_then(|config| config.check()).expect_err(limits).to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{limits}: {error}");
    }
}
