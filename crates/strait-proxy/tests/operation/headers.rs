//! Header rules of routes: fields that the proxy sets, adds and removes.

use std::fs;

use lab::wait_until;
use strait_proxy::{Clock, Config, Proxy};

use crate::clients::unused_address;
use crate::rig::{Client, LIMIT, Origin};
use crate::sites::{Edge, post};

/// Site for all hosts with one route to a pool of one server, with these keys.
fn site(origin: &Origin, keys: &str) -> String {
    format!("pool.a.servers = [\"{}\"]\n[[site]]\nroute = [{{ pool = \"a\", {keys} }}]\n", origin.address)
}

/// Returns the last request that the origin has received.
fn last(origin: &Origin) -> String {
    origin.heads.try_iter().last().expect("a request has reached the origin")
}

/// Asks until the answer is a hit. A client can have its response before that is stored.
fn wait_hit(edge: &Edge, path: &str, fields: &str) {
    let is_hit = || {
        let answer = edge.ask(&format!("GET {path}"), fields);
        answer.field("cache-status").is_some_and(|status| status.contains("; hit"))
    };
    assert!(wait_until(LIMIT, is_hit), "{path}");
}

#[test]
fn lifetimes_of_the_rules_are_for_responses_without_an_error() {
    let origin = Origin::start();
    let edge = Edge::start(&site(
        &origin,
        r#"response_headers = { set = { Cache-Control = "max-age=3600", X-A = "b" }, remove = ["Server"] }"#,
    ));
    for (path, expected) in
        [("/200/0/5/x", "max-age=3600"), ("/404/60/5/x", "max-age=60"), ("/503/0/5/x", "no-store")]
    {
        let answer = edge.ask(&format!("GET {path}"), "");
        let lines: Vec<_> = answer.head.lines().filter(|line| line.starts_with("Cache-Control")).collect();
        assert_eq!(lines, [format!("Cache-Control: {expected}")], "{path}");
        assert_eq!(answer.field("x-a"), Some("b"), "{path}");
    }
}

#[test]
fn origin_gets_the_request_that_the_rules_make() {
    let origin = Origin::start();
    let edge = Edge::start(&site(
        &origin,
        r#"request_headers = { set = { X-User = "edge", Host = "app.internal:8080" }, add = { X-Trace = "b" }, remove = ["Cookie", "X-Secret"] }"#,
    ));
    let fields = "X-User: evil\r\nX_User: evil\r\nCookie: a=b\r\nx-secret: c\r\nX-Trace: a\r\nX-Other: d\r\n";
    for line in ["GET /200/60/5/x", "GET /200/0/5/y", "DELETE /200/60/5/z"] {
        assert_eq!(edge.ask(line, fields).status(), 200);
        let head = last(&origin);
        let lower = head.to_ascii_lowercase();
        assert!(
            head.contains("\r\nX-User: edge\r\n") && head.contains("\r\nHost: app.internal:8080\r\n"),
            "{head}"
        );
        assert!(head.contains("\r\nX-Trace: a\r\n") && head.contains("\r\nX-Trace: b\r\n"), "{head}");
        assert!(
            head.contains("\r\nX-Other: d\r\n") && head.contains("\r\nX-Forwarded-Host: h\r\n"),
            "{head}"
        );
        assert!(!lower.contains("evil") && !lower.contains("cookie") && !lower.contains("secret"), "{head}");
        assert_eq!(lower.matches("\r\nhost: ").count(), 1, "{head}");
    }
}

#[test]
fn client_cannot_take_a_field_of_the_proxy_out_of_its_request() {
    let origin = Origin::start();
    let edge = Edge::start(&site(
        &origin,
        r#"request_headers = { set = { X-User = "edge" } }, response_headers = { set = { Server = "edge" } }, rate = { requests = 4, per = 86400 }"#,
    ));
    for connection in ["X-User", "close, x-user", "x_user"] {
        let answer = edge.ask("GET /200/60/5/x", &format!("Connection: {connection}\r\n"));
        assert_eq!((answer.status(), answer.field("server")), (400, Some("edge")), "{connection}");
    }
    assert_eq!(origin.asked(), 0);
    assert_eq!(edge.ask("GET /200/60/5/x", "Connection: X-Other\r\nX-Other: a\r\n").status(), 200);
    assert!(!last(&origin).contains("X-Other"));
    // Refused requests count towards the limit.
    assert_eq!(edge.ask("GET /200/60/5/x", "Connection: X-User\r\n").status(), 429);
}

#[test]
fn removed_field_separates_no_responses() {
    let origin = Origin::start();
    let edge =
        Edge::start(&site(&origin, r#"request_headers = { remove = ["X-Kind", "X-Method-Override"] }"#));
    assert_eq!(edge.ask("GET /200/60/5/vary", "X-Kind: a\r\n").status(), 200);
    // The origin received neither value; X_Method_Override would bypass the cache.
    for fields in ["X-Kind: b\r\n", "X-Kind: c\r\n", "", "X_Method_Override: PUT\r\n"] {
        wait_hit(&edge, "/200/60/5/vary", fields);
    }
    assert_eq!(origin.asked(), 1);
    let other = Edge::start(&site(&origin, r#"request_headers = { remove = ["X-Other"] }"#));
    for kind in ["a", "b"] {
        assert_eq!(other.ask("GET /200/60/5/vary", &format!("X-Kind: {kind}\r\n")).status(), 200);
    }
    assert_eq!(origin.asked(), 3);
}

#[test]
fn stored_response_answers_no_request_under_other_rules() {
    let origin = Origin::start();
    let with =
        |tenant: &str| site(&origin, &format!("request_headers = {{ set = {{ X-Tenant = \"{tenant}\" }} }}"));
    let (none, a, b) = (site(&origin, ""), with("a"), with("b"));
    let mut edge = Edge::start(&none);
    wait_hit(&edge, "/200/60/5/x", "");
    for (number, toml) in [&a, &b, &a.replace("set", "add")].into_iter().enumerate() {
        edge.reload(toml).unwrap();
        assert!(wait_until(LIMIT, || {
            edge.ask("GET /200/60/5/x", "");
            origin.asked() == number + 2
        }));
        wait_hit(&edge, "/200/60/5/x", "");
        assert_eq!(origin.asked(), number + 2);
    }
    // Back under the first rules, their response is still there.
    edge.reload(&none).unwrap();
    assert!(wait_until(LIMIT, || edge.ask("GET /200/0/5/y", "").status() == 200
        && !last(&origin).contains("X-Tenant")));
    let asked = origin.asked();
    wait_hit(&edge, "/200/60/5/x", "");
    assert_eq!(origin.asked(), asked);
}

#[test]
fn purge_finds_responses_under_all_rules() {
    let origin = Origin::start();
    let more = "access.purge = [\"127.0.0.0/8\"]\nadmin.listen = \"127.0.0.1:0\"\n";
    let toml = more.to_owned() + &site(&origin, r#"request_headers = { set = { X-Tenant = "a" } }"#);
    let edge = Edge::start(&toml);
    for uri in ["http://h/200/60/5/x", "http://h/200/60/5/x%23a"] {
        wait_hit(&edge, "/200/60/5/x", "");
        let other = post(&edge, "/purge?uri=http://h/200/60/5/x%23b").json();
        assert_eq!(other["stored"], 0);
        assert_eq!(post(&edge, &format!("/purge?uri={uri}")).json()["stored"], 1, "{uri}");
        assert_eq!(post(&edge, &format!("/purge?uri={uri}")).json()["stored"], 0, "{uri}");
    }
    for method in ["PURGE", "DELETE"] {
        wait_hit(&edge, "/200/60/5/x", "");
        assert_eq!(edge.ask(&format!("{method} /200/60/5/x"), "").status(), 200);
        let asked = origin.asked();
        edge.ask("GET /200/60/5/x", "");
        assert_eq!(origin.asked(), asked + 1, "{method}");
    }
    wait_hit(&edge, "/200/60/5/x", "");
    assert_eq!(post(&edge, "/ban?pattern=*%23a").json()["stored"], 1);
}

const RESPONSE: &str = r#"response_headers = { set = { X-Frame-Options = "DENY", Server = "edge" }, remove = ["Cache-Status", "X-Powered-By"] }"#;

#[test]
fn all_responses_of_a_route_follow_its_rules() {
    let origin = Origin::start();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.txt"), "text").unwrap();
    let toml = format!(
        r#"
        pool.a.servers = ["{}"]
        pool.dead.servers = ["127.0.0.1:1"]
        [[site]]
        route = [
            {{ pool = "a", {RESPONSE} }},
            {{ path = "/dead", pool = "dead", {RESPONSE} }},
            {{ path = "/files", files = "{}", {RESPONSE} }},
            {{ path = "/fixed", respond = {{ body = "x", headers = {{ Server = "other" }} }}, {RESPONSE} }},
            {{ path = "/moved", redirect = {{ location = "/new" }}, {RESPONSE} }},
            {{ path = "/200/60/6", pool = "a" }},
        ]
        "#,
        origin.address,
        dir.path().display()
    );
    fs::create_dir(dir.path().join("files")).unwrap();
    fs::write(dir.path().join("files/a.txt"), "text").unwrap();
    let edge = Edge::start(&toml);
    // A miss, a hit from the store, hits from memory; a long body by sendfile.
    let stored = [("GET /200/60/5/x", "", 200); 4].into_iter().chain([("GET /200/60/300000/y", "", 200); 3]);
    let others = [
        ("GET /200/60/5/x", "Range: bytes=1-2\r\n", 206),
        ("GET /200/60/5/x", "Range: bytes=0-0,2-3\r\n", 206),
        ("GET /200/60/5/x", "Range: bytes=9-\r\n", 416),
        ("HEAD /200/60/5/x", "", 200),
        ("GET /200/0/5/z", "", 200),
        ("GET /404/0/5/z", "", 404),
        ("GET /500/0/5/z", "", 500),
        ("POST /200/60/5/x", "Content-Length: 0\r\n", 200),
        ("GET /200/60/5/none", "Cache-Control: only-if-cached\r\n", 504),
        ("GET /dead", "", 503),
        ("GET /files/a.txt", "", 200),
        ("GET /files/a.txt", "Range: bytes=1-1\r\n", 206),
        ("GET /files/none", "", 404),
        ("GET /fixed", "", 200),
        ("GET /moved", "", 308),
    ];
    for (line, fields, status) in stored.chain(others) {
        let answer = edge.ask(line, fields);
        let of = |name: &str| {
            let is =
                |line: &&str| line.split_once(':').is_some_and(|(own, _)| own.eq_ignore_ascii_case(name));
            answer.head.lines().filter(is).count()
        };
        assert_eq!(answer.status(), status, "{line} {fields}: {}", answer.head);
        assert_eq!(
            (answer.field("x-frame-options"), answer.field("server")),
            (Some("DENY"), Some("edge")),
            "{line}"
        );
        assert_eq!((of("server"), of("cache-status")), (1, 0), "{line} {fields}: {}", answer.head);
    }
    let plain = edge.ask("GET /200/60/6/x", "");
    assert!(plain.field("cache-status").is_some() && plain.field("x-frame-options").is_none());
}

#[test]
fn reload_changes_the_fields_of_stored_responses() {
    let origin = Origin::start();
    let mut edge = Edge::start(&site(&origin, RESPONSE));
    assert!(wait_until(LIMIT, || {
        edge.ask("GET /200/60/5/x", "").field("server") == Some("edge") && origin.asked() == 1
    }));
    edge.reload(&site(&origin, "")).unwrap();
    assert!(wait_until(LIMIT, || edge.ask("GET /200/60/5/x", "").field("server").is_none()));
    edge.reload(&site(&origin, r#"response_headers = { set = { Cache-Control = "no-store" } }"#)).unwrap();
    let control = |expected| {
        let answer = edge.ask("GET /200/60/5/x", "");
        answer.field("cache-control") == Some(expected)
    };
    assert!(wait_until(LIMIT, || control("no-store")));
    // The rule is for clients: the stored response keeps its lifetime.
    assert!(
        control("no-store")
            && edge.ask("GET /200/60/5/x", "").field("cache-status").unwrap().contains("; hit")
    );
    assert_eq!(origin.asked(), 1);
}

#[test]
fn log_has_the_request_as_it_came() {
    let origin = Origin::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let log = format!("log.access = \"{}\"\nlog.format = \"combined\"\n", path.display());
    let rule = r#"request_headers = { set = { User-Agent = "edge" } }"#;
    let edge = Edge::start(&(log + &site(&origin, rule)));
    for _ in 0..3 {
        edge.ask("GET /200/60/5/x", "User-Agent: browser\r\n");
    }
    let lines = || fs::read_to_string(&path).unwrap_or_default();
    assert!(wait_until(LIMIT, || lines().lines().count() == 3), "{}", lines());
    assert!(lines().lines().all(|line| line.contains("browser") && !line.contains("edge\"")), "{}", lines());
    assert!(last(&origin).contains("\r\nUser-Agent: edge\r\n"));
}

#[test]
fn wrong_header_rules_are_named() {
    for (keys, expected) in [
        ("request_headers = {}", "site[1].route[1].request_headers: it changes nothing"),
        (
            "request_headers = { set = { \"X-A\\r\\nX-B\" = \"1\" } }",
            "request_headers.set: \"X-A\\r\\nX-B\": this is not a field name",
        ),
        ("request_headers = { set = { X-A = \"1\\r\\nX-B: 2\" } }", "set: \"X-A\": the value has a control"),
        ("response_headers = { add = { X-A = \"1\\u0000\" } }", "add: \"X-A\": the value has a control"),
        ("response_headers = { add = { X-A = \"\u{e9}\" } }", "add: \"X-A\": the value has a control"),
        (
            "response_headers = { set = { X-A = \" 1\" } }",
            "set: \"X-A\": the value begins or ends with a space",
        ),
        (
            "request_headers = { set = { Content-Length = \"1\" } }",
            "set: \"Content-Length\": this field belongs",
        ),
        (
            "request_headers = { remove = [\"transfer-encoding\"] }",
            "remove: \"transfer-encoding\": this field",
        ),
        ("response_headers = { remove = [\"Connection\"] }", "remove: \"Connection\": this field belongs"),
        ("response_headers = { set = { Via = \"x\" } }", "set: \"Via\": the proxy writes this field itself"),
        (
            "response_headers = { set = { Content-Type = \"x\" } }",
            "set: \"Content-Type\": this field describes",
        ),
        ("request_headers = { add = { Host = \"x\" } }", "add: \"Host\": a request has one Host"),
        ("request_headers = { remove = [\"host\"] }", "remove: \"host\": a request has one Host"),
        ("request_headers = { set = { Host = \"a b\" } }", "set: \"Host\": expected a host"),
        ("request_headers = { set = { Host = \"\" } }", "set: \"Host\": expected a host"),
        ("request_headers = { set = { Range = \"bytes=0-\" } }", "set: \"Range\": the cache evaluates"),
        (
            "request_headers = { set = { X-Forwarded-For = \"1.1.1.1\" } }",
            "set: \"X-Forwarded-For\": the setting `forwarded`",
        ),
        (
            "request_headers = { set = { A = \"1\" }, remove = [\"a\"] }",
            "remove: \"a\": the field occurs twice",
        ),
        (
            "response_headers = { add = { A = \"b{uri}\" } }",
            "add: \"A\": fields of responses have no variables",
        ),
        ("request_headers = { sett = { A = \"1\" } }", "sett: unknown key (did you mean set?)"),
        ("request_headers = { set = { A = 1 } }", "request_headers.set.A: expected text in quotes"),
    ] {
        let toml = format!("pool.a.servers = [\"a:1\"]\n[[site]]\nroute = [{{ pool = \"a\", {keys} }}]");
        let error = Config::from_toml(&toml).and_then(|config| config.check()).expect_err(keys).to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{keys}: {error}");
    }
    for change in ["set", "add"] {
        let toml = format!(
            "pool.a.servers = [\"a:1\"]\n[[site]]\nroute = [{{ pool = \"a\", request_headers = {{ {change} = {{ A = \"x{{scheme}}\" }} }} }}]"
        );
        assert!(Config::from_toml(&toml).unwrap().check().is_ok());
        for (policy, is_valid) in [("off", false), ("append", true), ("replace", true)] {
            let toml = format!("forwarded = \"{policy}\"\n{toml}");
            match Config::from_toml(&toml).unwrap().check() {
                Ok(_) => assert!(is_valid, "{policy}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(!is_valid && error.contains("request_headers: with forwarded"), "{error}");
                    assert!(!error.contains('\n'), "{error}");
                }
            }
        }
    }
}

#[test]
fn header_rules_without_a_pool_or_with_too_many_fields_are_named() {
    let toml = "[[site]]\nroute = [{ respond = {}, request_headers = { remove = [\"A\"] } }]";
    let error = Config::from_toml(toml).unwrap().check().unwrap_err().to_string();
    assert!(error.contains("only a route with a pool sends requests"), "{error}");
    let many: Vec<_> = (0..33).map(|number| format!("\"x-{number}\"")).collect();
    let toml = format!(
        "[[site]]\nroute = [{{ respond = {{}}, response_headers = {{ remove = [{}] }} }}]",
        many.join(",")
    );
    let error = Config::from_toml(&toml).unwrap().check().unwrap_err().to_string();
    assert!(error.contains("33 fields; the maximum is 32"), "{error}");
}

#[test]
fn variables_of_a_request_are_in_the_fields_that_rules_write() {
    let (origin, proxied) = (Origin::start(), unused_address());
    let toml = format!(
        "listen = [\"{proxied}\"]\nworkers = 1\nproxy_protocol.on = [\"{proxied}\"]\n{}",
        site(
            &origin,
            r#"request_headers = { set = { X-Kind = "{client}" }, add = { X-From = "{scheme}://{host}{uri} {\"a\"}" } }"#
        )
    );
    let _proxy = Proxy::start(&Config::from_toml(&toml).unwrap(), Clock::system()).unwrap();
    let ask = |client: &str, path: &str| {
        let mut connection = Client::to(proxied);
        connection.send(format!(
            "PROXY TCP4 {client} 198.51.100.1 4000 80\r\nGET {path} HTTP/1.1\r\nHost: h:81\r\nX-Kind: evil\r\n\r\n"
        ));
        let answer = connection.answer().unwrap();
        let is_hit = answer.field("cache-status").is_some_and(|status| status.contains("; hit"));
        (answer.status(), is_hit)
    };
    assert_eq!(ask("192.0.2.1", "/200/60/5/vary?a=b").0, 200);
    let head = last(&origin);
    assert!(head.contains("\r\nX-Kind: 192.0.2.1\r\n") && !head.contains("evil"), "{head}");
    assert!(head.contains("\r\nX-From: http://h:81/200/60/5/vary?a=b {\"a\"}\r\n"), "{head}");
    // The origin names the field in Vary: a stored response is for the same client alone.
    assert!(wait_until(LIMIT, || ask("192.0.2.1", "/200/60/5/vary?a=b").1));
    let asked = origin.asked();
    assert_eq!(ask("192.0.2.2", "/200/60/5/vary?a=b"), (200, false));
    assert!(last(&origin).contains("\r\nX-Kind: 192.0.2.2\r\n"));
    assert!(wait_until(LIMIT, || ask("192.0.2.2", "/200/60/5/vary?a=b").1));
    assert_eq!(origin.asked(), asked + 1);
    // A value that would be too long is not cut.
    assert_eq!(ask("192.0.2.1", &format!("/200/60/5/{}", "a".repeat(5000))).0, 414);
    assert_eq!(origin.asked(), asked + 1);
}

#[test]
fn host_in_a_field_is_the_one_of_the_key() {
    let (origin, proxied) = (Origin::start(), unused_address());
    let site = site(&origin, r#"request_headers = { set = { X-From = "{host}" } }"#);
    let toml = format!("listen = [\"{proxied}\"]\nworkers = 1\n{site}");
    let _proxy = Proxy::start(&Config::from_toml(&toml).unwrap(), Clock::system()).unwrap();
    let ask = |host: &str| {
        let mut connection = Client::to(proxied);
        connection.send(format!("GET /200/60/5/x HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let answer = connection.answer().unwrap();
        (answer.status(), answer.field("cache-status").is_some_and(|status| status.contains("; hit")))
    };
    // The response answers clients that name the host without the port.
    assert_eq!(ask("T.Example:80"), (200, false));
    let head = last(&origin);
    assert!(head.contains("\r\nX-From: t.example\r\n"), "{head}");
    assert!(wait_until(LIMIT, || ask("t.example") == (200, true)));
    assert_eq!(origin.asked(), 1);
}

#[test]
fn response_that_varies_with_the_address_answers_no_more_once_the_proxy_writes_it() {
    let origin = Origin::start();
    let toml = |forwarded: &str| format!("forwarded = \"{forwarded}\"\n{}", site(&origin, ""));
    let mut edge = Edge::start(&toml("off"));
    let paths = ["/200/60/5/address", "/200/60/300000/address"];
    for path in paths {
        wait_hit(&edge, path, "");
    }
    let is_hit = |edge: &Edge, path: &str| {
        let answer = edge.ask(&format!("GET {path}"), "");
        answer.field("cache-status").is_some_and(|status| status.contains("; hit"))
    };
    for forwarded in ["append", "replace"] {
        edge.reload(&toml(forwarded)).unwrap();
        for path in paths {
            assert!(wait_until(LIMIT, || !is_hit(&edge, path)), "{forwarded} {path}");
            assert!(!is_hit(&edge, path), "{forwarded} {path}");
        }
    }
}
