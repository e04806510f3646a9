//! Who clients are, how many of them there may be, and how long they may take.

use std::net::{SocketAddr, TcpListener};

use lab::wait_until;

use crate::rig::{Client, LIMIT, Rig};

/// A free port for a proxy that has to be told which it is.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn who_comes_through_a_load_balancer_is_told_by_it() {
    let (proxied, direct) = (free(), free());
    let rig = Rig::start(&format!(
        "listen = [\"{proxied}\", \"{direct}\"]\nproxy_protocol.on = [\"{proxied}\"]\naccess.allow = [\"192.0.2.0/24\", \"127.0.0.1\"]"
    ));
    let mut client = Client::to(proxied);
    client.send("PROXY TCP4 192.0.2.7 198.51.100.1 4000 80\r\n");
    assert_eq!(client.get("/200/0/3/a").status(), 200);
    // Each of its requests.
    assert_eq!(client.get("/200/0/3/b").status(), 200);
    let mut client = Client::to(proxied);
    client.send(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x08\xc6\x33\x64\x01\x0f\xa0\0\x50");
    assert_eq!(client.get("/200/0/3/c").status(), 200);
    // Whom it tells of may not use the proxy.
    let mut client = Client::to(proxied);
    client.send("PROXY TCP4 203.0.113.1 198.51.100.1 4000 80\r\nGET /200/0/3/a HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.is_ended());
    // Nobody tells.
    let mut client = Client::to(proxied);
    client.send("GET /200/0/3/a HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.is_ended());
    // Where it is not asked for it is no request.
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
fn who_may_not_tell_of_clients_is_turned_away() {
    let proxied = free();
    let _rig = Rig::start(&format!(
        "listen = [\"{proxied}\"]\nproxy_protocol = {{ on = [\"{proxied}\"], from = [\"10.0.0.0/8\"] }}"
    ));
    assert!(Client::to(proxied).is_ended());
}

#[test]
fn a_client_has_so_many_connections_and_no_more() {
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
fn who_comes_through_a_load_balancer_counts_for_itself() {
    let proxied = free();
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
fn who_does_not_tell_of_a_client_leaves_room_for_those_who_do() {
    let proxied = free();
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
fn a_head_that_does_not_come_to_its_end_ends_the_connection() {
    let rig = Rig::start("timeouts.head = 1\ntimeouts.idle = 3600");
    let mut client = rig.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n");
    // Another byte does not give it more time.
    client.send("X");
    assert!(client.is_ended());
    assert_eq!(rig.origin.asked(), 0);
}

#[test]
fn a_body_that_is_too_long_is_refused_however_it_is_framed() {
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
