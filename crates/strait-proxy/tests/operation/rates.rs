//! Rate limits of routes.

use std::fs;

use lab::wait_until;
use strait_proxy::Config;

use crate::rig::{Client, LIMIT, Origin};
use crate::sites::Edge;

/// Site with limited routes; the limits do not refill within a test.
fn limited(origin: &Origin, rate: &str) -> String {
    format!(
        r#"
        admin.listen = "127.0.0.1:0"
        pool.a.servers = ["{}"]
        [[site]]
        route = [
            {{ pool = "a", rate = {{ requests = 3, per = 86400, {rate} }} }},
            {{ path = "/free", respond = {{ body = "x" }} }},
        ]
        "#,
        origin.address
    )
}

/// Returns the statuses of requests.
fn statuses(edge: &Edge, lines: &[&str], fields: &str) -> Vec<u16> {
    lines.iter().map(|line| edge.ask(line, fields).status()).collect()
}

fn metric(edge: &Edge, series: &str) -> Option<String> {
    let mut client = Client::to(edge.proxy.admin().unwrap());
    client.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let text = client.answer().unwrap().text();
    text.lines().find_map(|line| line.strip_prefix(series).map(|value| value.trim().to_owned()))
}

#[test]
fn requests_beyond_the_burst_get_429_with_retry_after() {
    let origin = Origin::start();
    let edge = Edge::start(&limited(&origin, ""));
    // Hits count as misses do.
    let lines =
        ["GET /200/60/5/x", "GET /200/60/5/x", "HEAD /200/60/5/x", "GET /200/60/5/x", "DELETE /200/60/5/x"];
    assert_eq!(statuses(&edge, &lines, ""), [200, 200, 200, 429, 429]);
    let answer = edge.ask("GET /200/60/5/x", "");
    let wait: u64 = answer.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=28_800).contains(&wait) && answer.text().contains("too many requests"), "{}", answer.head);
    assert_eq!(edge.ask("GET /free", "").status(), 200);
    assert_eq!(origin.asked(), 1);
    assert_eq!(
        metric(&edge, "strait_proxy_rate_limited_total{route=\"site[1].route[1]\"}").as_deref(),
        Some("3")
    );
    assert_eq!(
        metric(&edge, "strait_proxy_rate_evicted_total{route=\"site[1].route[1]\"}").as_deref(),
        Some("0")
    );
}

#[test]
fn limit_holds_over_all_workers_and_connections() {
    let origin = Origin::start();
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::from_toml(&limited(&origin, "burst = 50")).unwrap();
    config.listen = vec![([127, 0, 0, 1], 0).into()];
    config.workers = 4;
    config.cache.dir = Some(dir.path().join("cache"));
    let proxy = strait_proxy::Proxy::start(&config, strait_proxy::Clock::system()).unwrap();
    let ask = || {
        let mut client = Client::to(proxy.address());
        client.send("GET /200/60/5/x HTTP/1.1\r\nHost: h\r\n\r\n");
        client.answer().unwrap().status()
    };
    let passed: usize = std::thread::scope(|scope| {
        let count = || (0..40).filter(|_| ask() == 200).count();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(passed, 50);
}

#[test]
fn value_of_a_field_is_limited_on_its_own() {
    let origin = Origin::start();
    let edge = Edge::start(&limited(&origin, "burst = 1, field = \"X-Api-Key\""));
    let line = ["GET /200/60/5/x"; 2];
    for fields in ["X-Api-Key: a\r\n", "x-api-key: b\r\n", ""] {
        assert_eq!(statuses(&edge, &line, fields), [200, 429], "{fields}");
    }
}

#[test]
fn reload_keeps_the_state_of_an_unchanged_limit() {
    let origin = Origin::start();
    let mut edge = Edge::start(&limited(&origin, "burst = 2"));
    assert_eq!(statuses(&edge, &["GET /200/60/5/x"; 3], ""), [200, 200, 429]);
    let free =
        |text: &str| limited(&origin, "burst = 2").replace("body = \"x\"", &format!("body = \"{text}\""));
    edge.reload(&free("y")).unwrap();
    assert!(wait_until(LIMIT, || edge.ask("GET /free", "").text() == "y"));
    assert_eq!(edge.ask("GET /200/60/5/x", "").status(), 429);
    edge.reload(&free("z").replace("burst = 2", "burst = 1")).unwrap();
    assert!(wait_until(LIMIT, || edge.ask("GET /free", "").text() == "z"));
    assert_eq!(statuses(&edge, &["GET /200/60/5/x"; 2], ""), [200, 429]);
}

#[test]
fn state_of_a_limit_belongs_to_its_route_wherever_that_is_in_the_file() {
    let route = |path: &str, more: &str| {
        format!("{{ path = \"{path}\", {more}respond = {{}}, rate = {{ requests = 1, per = 86400 }} }}, ")
    };
    let get = r#"methods = ["GET"], "#;
    let site = |host: &str, routes: &[&str]| {
        format!("[[site]]\nhosts = [\"{host}\"]\nroute = [{}]\n", routes.concat().trim_end_matches(", "))
    };
    let (x, y, z) = (&*route("/x", ""), &*route("/y", ""), &*route("/z", ""));
    let toml = |sites: &[String]| format!("admin.listen = \"127.0.0.1:0\"\n{}", sites.concat());
    let mut edge = Edge::start(&toml(&[site("h", &[x, y])]));
    let ask = |edge: &Edge, path: &str| edge.ask(&format!("GET {path}"), "").status();
    assert_eq!((ask(&edge, "/x"), ask(&edge, "/x")), (200, 429));
    // Each reload changes what is before the route. A new route has a state of its own.
    for (sites, path, status) in [
        (vec![site("h", &[y, x])], "/x", 429),
        (vec![site("i", &[x]), site("h", &[z, y, x])], "/x", 429),
        (vec![site("i", &[x]), site("h", &[z, y, x])], "/y", 200),
        (vec![site("h", &[&route("/x", get), x, y])], "/x", 200),
        (vec![site("h", &[y])], "/y", 429),
    ] {
        edge.reload(&toml(&sites)).unwrap();
        assert_eq!(ask(&edge, path), status, "{sites:?} {path}");
    }
    let series = "strait_proxy_rate_limited_total{route=\"site[1].route[1]\"}";
    assert_eq!(metric(&edge, series).as_deref(), Some("1"));
}

#[test]
fn files_and_fixed_responses_are_limited_too() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("f")).unwrap();
    fs::write(dir.path().join("f/a"), "text").unwrap();
    let rate = "rate = { requests = 1, per = 86400 }";
    let edge = Edge::start(&format!(
        "[[site]]\nroute = [{{ path = \"/f\", files = \"{}\", {rate} }}, {{ path = \"/r\", respond = {{}}, {rate} }}, {{ path = \"/m\", redirect = {{ location = \"/n\" }}, {rate} }}]",
        dir.path().display()
    ));
    for (line, status) in [("GET /f/a", 200), ("GET /r", 200), ("GET /m", 308)] {
        assert_eq!(statuses(&edge, &[line, line], ""), [status, 429], "{line}");
    }
}

#[test]
fn wrong_limits_are_named() {
    for (rate, expected) in [
        ("{}", "site[1].route[1].rate: it has no number of requests"),
        ("{ requests = 0 }", "rate.requests = 0: expected a whole number from 1 to 1000000"),
        ("{ requests = 1, burst = 0 }", "rate.burst = 0: expected a whole number from 1"),
        ("{ requests = 1, field = \"a b\" }", "rate.field = \"a b\": this is not a field name"),
        (
            "{ requests = 1, field = \"X-Forwarded-For\" }",
            "rate.field = \"X-Forwarded-For\": this field is dropped",
        ),
        ("{ request = 1 }", "rate.request: unknown key (did you mean requests?)"),
        ("10", "rate: expected a section with the keys requests"),
    ] {
        let toml = format!("[[site]]\nroute = [{{ respond = {{}}, rate = {rate} }}]");
        let error = Config::from_toml(&toml).and_then(|config| config.check()).expect_err(rate).to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{rate}: {error}");
    }
}
