//! Lines for the operator about servers and clients.

use lab::wait_until;

use crate::http2;
use crate::pool_rig::{Mode, Rig, Server};
use crate::rig::LIMIT;

#[test]
fn server_that_fails_a_check_makes_a_line_with_the_reason() {
    let (a, b) = (Server::start(), Server::start());
    let check =
        "check = { path = \"/healthz\", status = 204, interval = 1, timeout = 1, rise = 1, fall = 1 }";
    let rig = Rig::start(&[(&a, ""), (&b, "")], check, "");
    let line = |server: &Server, text: &str| format!("pool p: server {} {text}", server.text);
    rig.wait_for_note(&line(&a, "is down: check: status 200"));
    rig.wait_for_note("pool p: no server is available");
    let change = &rig.status(&a)["change"];
    assert_eq!(
        (&change["text"], &change["at"]),
        (&"is down: check: status 200".into(), &1_700_000_000.into())
    );
}

#[test]
fn refused_and_silent_servers_are_told_apart() {
    let (a, b) = (Server::start(), Server::start());
    let check = "check = { path = \"/healthz\", interval = 1, timeout = 1, rise = 1, fall = 1 }";
    let rig = Rig::start(&[(&a, ""), (&b, "")], check, "");
    let line = |server: &Server, text: &str| format!("pool p: server {} {text}", server.text);
    a.become_mode(Mode::Hang);
    rig.wait_for_note(&line(&a, "is down: check: timed out"));
    a.become_mode(Mode::Answer);
    rig.wait_for_note(&line(&a, "is up again"));
    b.become_mode(Mode::Dead);
    rig.wait_for_note(&line(&b, "is down: check: refused"));
}

#[test]
fn ejection_drain_and_return_make_lines() {
    let (a, b) = (Server::start(), Server::start());
    let rig = Rig::start(&[(&a, ""), (&b, "")], "failures = 2", "");
    let line = |server: &Server, text: &str| format!("pool p: server {} {text}", server.text);
    a.become_mode(Mode::Dead);
    let mut client = rig.client();
    assert!(wait_until(LIMIT, || {
        client.get("/x");
        rig.status(&a)["is_ejected"] == true
    }));
    let why = format!("connect to {}: Connection refused (os error 111)", a.text);
    rig.wait_for_note(&line(&a, &format!("is ejected for 10 s: 2 failures, the last: {why}")));
    rig.clock.advance(10);
    rig.wait_for_note(&line(&a, "returns: its ejection has ended"));
    assert_eq!(rig.status(&a)["change"]["at"], 1_700_000_010);
    for server in [&a, &b] {
        assert_eq!(rig.change(&format!("/drain?server={}", server.text)).status(), 200);
        rig.wait_for_note(&line(server, "is drained"));
    }
    rig.wait_for_note("pool p: no server is available");
    assert_eq!(rig.change(&format!("/undrain?server={}", b.text)).status(), 200);
    rig.wait_for_note(&line(&b, "is no longer drained"));
    rig.wait_for_note("pool p: has an available server again");
}

#[test]
fn refused_connections_and_streams_make_a_line_with_the_key() {
    let server = Server::start();
    let rest = "http2.enabled = true\nlimits.connections_per_client = 2";
    let rig = Rig::start(&[(&server, "")], "", rest);
    server.become_mode(Mode::Hold);
    let mut first = http2::Client::to(rig.proxy.address());
    first.send([http2::get(1, "/1"), http2::get(3, "/2")].concat());
    assert_eq!(first.until(http2::RST_STREAM).unwrap().stream, 3);
    rig.wait_for_note("limits.connections_per_client: HTTP/2 requests of 127.0.0.1 were refused: 1");
    assert!(rig.client().is_ended());
    rig.wait_for_note("limits.connections_per_client: connections of 127.0.0.1 were refused: 1");
    assert!(
        rig.metrics()
            .contains("strait_proxy_connections_refused_total{reason=\"connections_per_client\"} 2\n")
    );
    server.become_mode(Mode::Answer);
}
