//! Networks of the clients of routes: who gets stored responses, files and redirections.

use std::fs;

use lab::wait_until;
use strait_proxy::Config;

use crate::rig::{Answer, Client, LIMIT, Origin};
use crate::sites::Edge;

/// Site with these routes. Connections name their clients by the PROXY protocol.
fn site(origin: &Origin, routes: &str) -> String {
    format!(
        "access.purge = [\"0.0.0.0/0\", \"::/0\"]\nadmin.listen = \"127.0.0.1:0\"\nproxy_protocol.on = [\"127.0.0.1:0\"]\npool.a.servers = [\"{}\"]\n[[site]]\nroute = [{routes}]\n",
        origin.address
    )
}

/// Sends a request as a client with that address.
fn ask_as(edge: &Edge, client: &str, line: &str) -> Answer {
    let mut connection = Client::to(edge.proxy.address());
    let (family, own) = if client.contains(':') { ("TCP6", "::1") } else { ("TCP4", "127.0.0.1") };
    connection.send(format!("PROXY {family} {client} {own} 4000 80\r\n{line} HTTP/1.1\r\nHost: h\r\n\r\n"));
    if line.starts_with("HEAD") { connection.head().unwrap() } else { connection.answer().unwrap() }
}

fn is_hit(answer: &Answer) -> bool {
    answer.field("cache-status").is_some_and(|status| status.contains("; hit"))
}

fn refused(edge: &Edge) -> u64 {
    const SERIES: &str = "strait_proxy_route_refused_total{route=\"site[1].route[1]\"} ";
    let mut client = Client::to(edge.proxy.admin().unwrap());
    client.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let text = client.answer().unwrap().text();
    text.lines().find_map(|line| line.strip_prefix(SERIES)).map_or(0, |value| value.parse().unwrap())
}

#[test]
fn hit_reaches_only_allowed_clients() {
    let origin = Origin::start();
    let access = "access = { allow = [\"10.0.0.0/8\"], deny = [\"10.9.0.0/16\"] }";
    let edge = Edge::start(&site(&origin, &format!("{{ pool = \"a\", {access} }}")));
    let path = "GET /200/60/5/x";
    assert_eq!(ask_as(&edge, "10.1.0.1", path).status(), 200);
    assert!(wait_until(LIMIT, || is_hit(&ask_as(&edge, "10.1.0.2", path))));
    assert!(is_hit(&ask_as(&edge, "::ffff:10.1.0.2", path)));
    let lines = [path, "HEAD /200/60/5/x", "GET /200/60/5/other", "POST /200/60/5/x", "PURGE /200/60/5/x"];
    let clients = ["192.0.2.1", "10.9.0.1", "::ffff:10.9.0.1", "::ffff:192.0.2.1", "2001:db8::1"];
    for client in clients {
        for line in lines {
            let answer = ask_as(&edge, client, line);
            assert_eq!(answer.status(), 403, "{client} {line}: {}", answer.head);
        }
    }
    assert_eq!((origin.asked(), refused(&edge)), (1, (clients.len() * lines.len()) as u64));
    // A refused PURGE removes nothing, and an allowed one does.
    assert!(is_hit(&ask_as(&edge, "10.1.0.1", path)));
    assert_eq!(ask_as(&edge, "10.1.0.1", "PURGE /200/60/5/x").status(), 200);
    assert!(!is_hit(&ask_as(&edge, "10.1.0.1", path)));
}

#[test]
fn every_target_is_for_allowed_clients_alone() {
    let (origin, dir) = (Origin::start(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a.txt"), "text").unwrap();
    let files = dir.path().display();
    let access = "access = { deny = [\"192.0.2.0/24\"] }, response_headers = { set = { X-Route = \"1\" } }";
    let routes = format!(
        "{{ path = \"/a.txt\", files = \"{files}\", {access} }}, {{ path = \"/old\", redirect = {{ location = \"/new\" }}, {access} }}, {{ path = \"/text\", respond = {{ body = \"x\" }}, {access} }}, {{ path = \"/v2\", pool = \"a\", rewrite = \"/200/60/5\", {access} }}, {{ path = \"/free\", respond = {{}} }}"
    );
    let edge = Edge::start(&site(&origin, &routes));
    for (path, status) in [("/a.txt", 200), ("/old", 308), ("/text", 200), ("/v2/x", 200)] {
        let answer = ask_as(&edge, "192.0.2.1", &format!("GET {path}"));
        assert_eq!((answer.status(), answer.field("x-route")), (403, Some("1")), "{path}");
        assert_eq!(ask_as(&edge, "192.0.3.1", &format!("GET {path}")).status(), status, "{path}");
    }
    assert_eq!(ask_as(&edge, "192.0.2.1", "GET /free").status(), 200);
}

#[test]
fn refused_client_takes_no_token() {
    let origin = Origin::start();
    let rules =
        "rate = { requests = 1, per = 86400, field = \"X-Key\" }, access = { allow = [\"10.0.0.1\"] }";
    let edge = Edge::start(&site(&origin, &format!("{{ pool = \"a\", {rules} }}")));
    for client in ["10.0.0.2", "10.0.0.2", "2001:db8::1"] {
        assert_eq!(ask_as(&edge, client, "GET /200/60/5/x").status(), 403);
    }
    let statuses = [(); 2].map(|()| ask_as(&edge, "10.0.0.1", "GET /200/60/5/x").status());
    assert_eq!(statuses, [200, 429]);
}

#[test]
fn response_of_a_restricted_route_answers_on_no_open_one() {
    let origin = Origin::start();
    let access = "access = { allow = [\"10.0.0.0/8\"] }, ";
    let route = |path: &str, access: &str| {
        format!("{{ path = \"{path}\", rewrite = \"/200/60/5\", {access}pool = \"a\" }}")
    };
    let restricted = route("/in", access);
    let mut edge = Edge::start(&site(&origin, &format!("{restricted}, {}", route("/out", ""))));
    assert_eq!(ask_as(&edge, "10.0.0.1", "GET /in/x").status(), 200);
    assert!(wait_until(LIMIT, || is_hit(&ask_as(&edge, "10.0.0.1", "GET /in/x"))));
    // Both routes send the same request to the pool.
    assert!(!is_hit(&ask_as(&edge, "192.0.2.1", "GET /out/x")));
    assert_eq!(origin.asked(), 2);
    // Nor on the same route once it is open, or open to others.
    let mark = "{ path = \"/mark\", respond = { status = 204 } }";
    let other = restricted.replace("10.0.0.0/8", "192.0.2.0/24");
    edge.reload(&site(&origin, &format!("{other}, {mark}"))).unwrap();
    assert!(wait_until(LIMIT, || ask_as(&edge, "192.0.2.1", "HEAD /mark").status() == 204));
    assert_eq!(ask_as(&edge, "10.0.0.1", "GET /in/x").status(), 403);
    assert!(!is_hit(&ask_as(&edge, "192.0.2.1", "GET /in/x")));
    assert_eq!(origin.asked(), 3);
}

#[test]
fn reload_with_another_denied_network_keeps_stored_responses_and_the_count() {
    let origin = Origin::start();
    let route = |denied: &str| format!("{{ pool = \"a\", access = {{ deny = [\"{denied}\"] }} }}");
    let mut edge = Edge::start(&site(&origin, &route("192.0.2.0/24")));
    let line = "GET /200/60/5/x";
    assert_eq!(ask_as(&edge, "192.0.2.1", line).status(), 403);
    assert_eq!(ask_as(&edge, "10.0.0.1", line).status(), 200);
    assert!(wait_until(LIMIT, || is_hit(&ask_as(&edge, "10.0.0.1", line))));
    edge.reload(&site(&origin, &route("198.51.100.0/24"))).unwrap();
    assert!(wait_until(LIMIT, || ask_as(&edge, "198.51.100.1", line).status() == 403));
    assert!(is_hit(&ask_as(&edge, "192.0.2.1", line)));
    assert!(origin.asked() == 1 && refused(&edge) >= 2);
}

#[test]
fn wrong_networks_are_named() {
    for (access, expected) in [
        ("{ allow = [\"10.0.0.0/33\"] }", "site[1].route[1].access.allow: \"10.0.0.0/33\" is not a network"),
        ("{ deny = [\"example.org\"] }", "site[1].route[1].access.deny: \"example.org\" is not a network"),
        ("{}", "site[1].route[1].access: it restricts nothing"),
        ("{ allow = [] }", "site[1].route[1].access.allow: the list is empty"),
        ("{ deny = \"10.0.0.1\" }", "access.deny = \"10.0.0.1\": expected a list of networks"),
        ("{ alow = [] }", "access.alow: unknown key (did you mean allow?)"),
        ("[\"10.0.0.1\"]", "site[1].route[1].access: expected a section with the keys allow, deny"),
    ] {
        let toml =
            format!("pool.a.servers = [\"a:1\"]\n[[site]]\nroute = [{{ pool = \"a\", access = {access} }}]");
        let error = Config::from_toml(&toml).and_then(|config| config.check()).expect_err(access).to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{access}: {error}");
    }
}
