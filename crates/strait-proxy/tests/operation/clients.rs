//! Addresses of clients (PROXY protocol), their number, and their time limits.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use lab::wait_until;

use crate::rig::{Client, LIMIT, Rig};

/// Returns an address with an unused port, for a proxy with a configured address.
pub(crate) fn unused_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn client_address_is_taken_from_the_proxy_header() {
    let (proxied, direct) = (unused_address(), unused_address());
    let rig = Rig::start(&format!(
        "listen = [\"{proxied}\", \"{direct}\"]\nproxy_protocol.on = [\"{proxied}\"]\naccess.allow = [\"192.0.2.0/24\", \"127.0.0.1\"]"
    ));
    let mut client = Client::to(proxied);
    client.send("PROXY TCP4 192.0.2.7 198.51.100.1 4000 80\r\n");
    assert_eq!(client.get("/200/0/3/a").status(), 200);
    // The address holds for every request on the connection.
    assert_eq!(client.get("/200/0/3/b").status(), 200);
    let mut client = Client::to(proxied);
    client.send(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x08\xc6\x33\x64\x01\x0f\xa0\0\x50");
    assert_eq!(client.get("/200/0/3/c").status(), 200);
    // This client is not in access.allow.
    let mut client = Client::to(proxied);
    client.send("PROXY TCP4 203.0.113.1 198.51.100.1 4000 80\r\nGET /200/0/3/a HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.is_ended());
    // A PROXY header is missing.
    let mut client = Client::to(proxied);
    client.send("GET /200/0/3/a HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.is_ended());
    // On a listener without the PROXY protocol its header is not a request.
    let mut client = Client::to(direct);
    client.send("PROXY TCP4 192.0.2.7 198.51.100.1 4000 80\r\n\r\n");
    assert!(client.answer().is_none_or(|answer| answer.status() == 400));
    assert_eq!(Client::to(direct).get("/200/0/3/a").status(), 200);
    let clients: Vec<_> = rig.origin.heads.try_iter().map(|head| forwarded_for(&head)).collect();
    assert_eq!(clients, ["192.0.2.7", "192.0.2.7", "192.0.2.8", "127.0.0.1"]);
}

fn forwarded_for(head: &str) -> String {
    let lines = head.lines().find_map(|line| line.strip_prefix("X-Forwarded-For: "));
    lines.unwrap_or_default().to_owned()
}

#[test]
fn proxy_header_from_another_address_is_refused() {
    let proxied = unused_address();
    let _rig = Rig::start(&format!(
        "listen = [\"{proxied}\"]\nproxy_protocol = {{ on = [\"{proxied}\"], from = [\"10.0.0.0/8\"] }}"
    ));
    assert!(Client::to(proxied).is_ended());
}

#[test]
fn connections_per_client_are_limited() {
    let rig = Rig::start("limits.connections_per_client = 2\nworkers = 2");
    let mut clients = [rig.client(), rig.client()];
    for client in &mut clients {
        assert_eq!(client.get("/200/60/1/a").status(), 200);
    }
    assert!(rig.client().is_ended());
    let [first, _second] = clients;
    drop(first);
    assert!(wait_until(LIMIT, || {
        let mut client = rig.client();
        client.send("GET /200/60/1/a HTTP/1.1\r\nHost: a\r\n\r\n");
        client.answer().is_some()
    }));
    assert!(rig.proxy.report().refused >= 1);
}

#[test]
fn clients_behind_a_load_balancer_are_counted_separately() {
    let proxied = unused_address();
    let rig = Rig::start(&format!(
        "listen = [\"{proxied}\"]\nproxy_protocol.on = [\"{proxied}\"]\nlimits.connections_per_client = 1"
    ));
    let connect = |client: &str| {
        let mut connection = Client::to(proxied);
        connection.send(format!(
            "PROXY TCP4 {client} 198.51.100.1 4000 80\r\nGET /200/60/1/a HTTP/1.1\r\nHost: a\r\n\r\n"
        ));
        connection
    };
    let mut clients = [connect("192.0.2.7"), connect("192.0.2.8")];
    for client in &mut clients {
        assert_eq!(client.answer().unwrap().status(), 200);
    }
    assert!(connect("192.0.2.7").is_ended());
    assert!(wait_until(LIMIT, || rig.proxy.report().refused == 1));
    drop(clients);
    assert!(wait_until(LIMIT, || connect("192.0.2.7").answer().is_some()));
}

#[test]
fn connections_without_a_proxy_header_cannot_use_the_whole_limit() {
    let proxied = unused_address();
    let rig = Rig::start(&format!(
        "listen = [\"{proxied}\"]\nproxy_protocol.on = [\"{proxied}\"]\nlimits.connections = 4"
    ));
    let silent = [Client::to(proxied), Client::to(proxied)];
    assert!(wait_until(LIMIT, || rig.proxy.report().connections == 2));
    assert!(Client::to(proxied).is_ended());
    drop(silent);
    assert!(wait_until(LIMIT, || {
        let mut client = Client::to(proxied);
        client
            .send("PROXY TCP4 192.0.2.7 198.51.100.1 4000 80\r\nGET /200/60/1/a HTTP/1.1\r\nHost: a\r\n\r\n");
        client.answer().is_some()
    }));
}

#[test]
fn incomplete_head_ends_the_connection() {
    let rig = Rig::start("timeouts.head = 1\ntimeouts.idle = 3600");
    let mut client = rig.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n");
    // Another byte does not give it more time.
    client.send("X");
    assert!(client.is_ended());
    assert_eq!(rig.origin.asked(), 0);
}

#[test]
fn too_long_body_is_refused_in_any_framing() {
    let rig = Rig::start("limits.request_body = 10");
    let mut client = rig.client();
    client.send("POST /200/0/1/a HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n");
    assert_eq!(client.answer().unwrap().status(), 413);
    assert_eq!(rig.origin.asked(), 0);
    let mut client = rig.client();
    client.send("POST /200/0/1/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n");
    client.send("6\r\n012345\r\n0\r\n\r\n");
    assert_eq!(client.answer().unwrap().status(), 413);
    let mut client = rig.client();
    client.send("POST /200/0/1/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n5\r\n01234\r\n0\r\n\r\n");
    assert_eq!(client.answer().unwrap().status(), 200);
}

/// Opens connections and sends a POST with the beginning of its body on each.
fn open_trickling_posts(rig: &Rig, count: usize) -> Vec<Client> {
    let begin = |_| {
        let mut client = rig.client();
        client.send("POST /200/0/1/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
        client
    };
    (0..count).map(begin).collect()
}

#[test]
fn trickling_bodies_hold_no_connection_to_the_origin() {
    let rig = Rig::start("workers = 2\ntimeouts.body_grace = 3600");
    let mut clients = open_trickling_posts(&rig, 200);
    assert!(wait_until(LIMIT, || rig.proxy.report().open == 200));
    for client in &mut clients {
        client.send("1\r\nx\r\n");
    }
    assert_eq!(rig.client().get("/200/0/1/b").status(), 200);
    let report = rig.proxy.report();
    assert!(report.origin_opened == 1 && rig.origin.asked() == 1, "{report:?}");
    for client in &mut clients {
        client.send("0\r\n\r\n");
        assert_eq!(client.answer().unwrap().status(), 200);
    }
}

#[test]
fn slow_body_is_refused_with_any_request_ahead() {
    let timeouts = "timeouts.body_grace = 1\ntimeouts.client = 3600\n";
    for limit in ["", "limits.request_ahead = 0\n", "limits.request_ahead_memory = 0\n"] {
        let rig = Rig::start(&format!("{timeouts}{limit}"));
        let mut client = open_trickling_posts(&rig, 1).remove(0);
        let answer = client.answer().unwrap();
        assert_eq!(answer.status(), 408, "{limit}");
        assert!(answer.text().contains("limits.request_body_rate") && client.is_ended());
    }
    let rig = Rig::start("limits.request_body_rate = 0\ntimeouts.body = 1\ntimeouts.client = 3600");
    assert_eq!(open_trickling_posts(&rig, 1).remove(0).answer().unwrap().status(), 408);
}

#[test]
fn client_that_trickles_its_body_after_100_holds_no_origin_connection() {
    let rig = Rig::start("timeouts.body_grace = 3600");
    let mut client = rig.client();
    client.send("POST /200/0/1/a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n");
    assert_eq!(client.answer().unwrap().status(), 100);
    client.send("x");
    assert_eq!(rig.client().get("/200/0/1/b").status(), 200);
    let report = rig.proxy.report();
    assert!(report.origin_opened == 1 && rig.origin.asked() == 1, "{report:?}");
}

/// Bytes of a body that is larger than the buffers of two sockets.
const LARGE: usize = 24 << 20;

#[test]
fn too_slow_client_is_reset() {
    let limits = "timeouts.response_grace = 1\ntimeouts.client = 3600\n";
    for (limit, fresh) in [("", 60), ("", 0), ("transfer = { sendfile = false, splice = false }", 60)] {
        let rig = Rig::start(&format!("{limits}{limit}"));
        let path = format!("/200/{fresh}/{LARGE}/a");
        // If the response is storable: a miss, a coalesced request and a hit. Otherwise: two
        // requests with responses that are not stored.
        let ask = || {
            let mut client = rig.client();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: www.example\r\n\r\n"));
            client
        };
        let mut slow = vec![ask(), ask()];
        if fresh > 0 {
            rig.wait_stored(1);
            slow.push(ask());
        }
        rig.wait_counted(slow.len() as u64);
        assert!(slow.iter_mut().all(|client| client.answer().is_none()), "{limit}");
        // A client that reads its response is served as before.
        let answer = rig.client().get(&path);
        assert!(answer.status() == 200 && answer.body == crate::rig::body(LARGE));
    }
}

#[test]
fn full_origin_gives_503_until_a_connection_is_free() {
    let rig = Rig::start(
        "limits.origin_connections = 2\nlimits.origin_connections_per_client = 0\nlimits.request_ahead = 0\ntimeouts.connect = 1\ntimeouts.body_grace = 3600",
    );
    let mut holding = open_trickling_posts(&rig, 2);
    assert!(wait_until(LIMIT, || rig.proxy.report().origin_opened == 2));
    let mut client = rig.client();
    let answer = client.get("/200/0/1/b");
    assert_eq!(answer.status(), 503);
    assert!(answer.text().contains("limits.origin_connections"), "{}", answer.text());
    drop(holding.pop());
    // The client's connection carries another request.
    assert!(wait_until(LIMIT, || client.get("/200/0/1/b").status() == 200));
}

#[test]
fn one_address_does_not_take_all_connections_by_default() {
    let limits = strait_proxy::Config::default().limits;
    assert!(limits.connections_per_client > 0 && limits.connections_per_client < limits.connections);
    // Tunnels of one client do not take all connections to an origin.
    assert!((limits.connections_per_client as usize) < limits.origin_connections);
}

#[test]
fn interim_responses_to_a_client_that_does_not_read_delay_no_other_client() {
    /// Limit of the requests before the last one on a connection.
    const PRECEDING_MAX: usize = 200;
    let rig = Rig::start("");
    assert_eq!(rig.client().get("/200/60/100000/large").status(), 200);
    // Each client leaves less room in its socket than the one before. The last one leaves no room
    // for the response before the interim ones.
    for preceding in 0..PRECEDING_MAX {
        let (asked, path) = (rig.origin.asked(), format!("/200/60/5/early{preceding}"));
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: www.example\r\n\r\n");
        let mut leader = rig.client();
        leader.send(get("/200/60/100000/large").repeat(preceding) + &get(&path));
        let has_asked = || rig.origin.asked() > asked;
        if !wait_until(Duration::from_secs(1), has_asked) {
            return;
        }
        assert_eq!(rig.client().get(&path).status(), 200, "{preceding}");
        assert_eq!(rig.origin.asked(), asked + 1, "{preceding}");
    }
}
