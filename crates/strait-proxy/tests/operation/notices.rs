//! Lines for the operator about servers and clients.

use lab::wait_until;

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
