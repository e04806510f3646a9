//! Cache policies of routes: lifetimes, queries, cookies, and requests that bypass the cache.

use lab::wait_until;
use strait_proxy::{Clock, Config, Proxy};

use crate::rig::{LIMIT, Origin, Rig};
use crate::sites::{Edge, config};

/// Site for all hosts with this cache policy for all paths.
fn site(origin: &Origin, cache: &str) -> String {
    format!(
        "access.purge = [\"127.0.0.0/8\"]\npool.a.servers = [\"{}\"]\n[[site]]\n[[site.route]]\npool = \"a\"\n[site.route.cache]\n{cache}\n",
        origin.address
    )
}

/// Returns the Cache-Status of a response to GET: what begins with `hit` is one.
fn status(edge: &Edge, path: &str, fields: &str) -> String {
    let answer = edge.ask(&format!("GET {path}"), fields);
    answer.field("cache-status").unwrap().split_once("; ").unwrap().1.to_owned()
}

fn is_hit(edge: &Edge, path: &str, fields: &str) -> bool {
    status(edge, path, fields).starts_with("hit")
}

/// Waits until a request is a hit. A client can have its response before that is stored.
fn assert_hit(edge: &Edge, path: &str, fields: &str) {
    assert!(wait_until(LIMIT, || is_hit(edge, path, fields)), "{path} {fields}");
}

/// Returns the lifetime that a hit shows; `None` if the response is not stored.
fn lifetime(edge: &Edge, path: &str) -> Option<u64> {
    let first = status(edge, path, "");
    if !first.starts_with("hit") && !first.contains("stored") {
        return None;
    }
    assert_hit(edge, path, "");
    let status = status(edge, path, "");
    // Some time passes between the two requests.
    let ttl = status.strip_prefix("hit; ttl=")?.parse::<u64>().unwrap();
    Some(ttl.next_multiple_of(1000))
}

#[test]
fn lifetimes_apply_where_the_origin_gives_none() {
    let origin = Origin::start();
    let edge = Edge::start(&site(&origin, "ttl = 7000\nnegative = 5000"));
    for (path, expected) in [
        ("/200/0/5/plain", Some(7000)),
        ("/404/0/5/plain", Some(5000)),
        ("/200/3000/5/x", Some(3000)),
        ("/404/3000/5/x", Some(3000)),
        ("/200/0/5/x", None),
        ("/302/0/5/plain", None),
        ("/503/0/5/plain", None),
        ("/200/0/5/nocache", None),
    ] {
        assert_eq!(lifetime(&edge, path), expected, "{path}");
    }
}

#[test]
fn overriding_lifetime_replaces_that_of_the_origin_but_never_no_store() {
    let origin = Origin::start();
    let mut edge = Edge::start(&site(&origin, "ttl = 7000\noverride = true"));
    for (path, expected) in [
        ("/200/3000/5/x", Some(7000)),
        ("/200/0/5/nocache", Some(7000)),
        ("/200/0/5/x", None),
        ("/200/60/5/cookie", None),
        ("/404/3000/5/x", Some(3000)),
    ] {
        assert_eq!(lifetime(&edge, path), expected, "{path}");
    }
    // What is stored keeps its lifetime, also over a restart and without the policy.
    edge.reload(&site(&origin, "ttl = 5")).unwrap();
    assert_eq!(lifetime(&edge, "/200/0/5/nocache"), Some(7000));
    let Edge { proxy, dir } = edge;
    proxy.stop();
    let proxy = Proxy::start(&config(&site(&origin, ""), &dir), Clock::system()).unwrap();
    let edge = Edge { proxy, dir };
    assert!(edge.proxy.wait_loaded(LIMIT));
    assert_eq!(lifetime(&edge, "/200/0/5/nocache"), Some(7000));
    assert_eq!(lifetime(&edge, "/200/0/6/nocache"), None);
}

#[test]
fn response_without_a_lifetime_is_fresh_for_two_minutes_at_most_unless_configured() {
    let reverse = Rig::start("");
    let longer = Rig::start("cache.heuristic_max = 1000");
    let never = Rig::start("cache.heuristic_max = 0");
    for (rig, expected) in [(reverse, "hit; ttl=1"), (longer, "hit; ttl="), (never, "fwd=stale")] {
        let mut client = rig.client();
        client.get("/200/0/5/plain");
        rig.wait_stored(1);
        let answer = client.get("/200/0/5/plain");
        let status = answer.field("cache-status").unwrap();
        assert!(status.contains(expected), "{expected}: {status}");
        let ttl = status.split("ttl=").nth(1).and_then(|ttl| ttl.split(';').next()?.parse::<i64>().ok());
        assert!(ttl.is_none_or(|ttl| ttl <= if expected.ends_with('1') { 120 } else { 1000 }), "{status}");
    }
}

#[test]
fn query_without_ignored_parameters_is_the_same_for_cache_and_origin() {
    let origin = Origin::start();
    let edge = Edge::start(&site(&origin, "ignore_query = [\"utm_*\", \"id\"]\nsort_query = true"));
    edge.ask("GET /200/60/5/x?b=2&utm_source=evil&a=1&id=7", "");
    let lines = |origin: &Origin| -> Vec<String> {
        origin.heads.try_iter().map(|head| head.lines().next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(lines(&origin), ["GET /200/60/5/x?a=1&b=2 HTTP/1.1"]);
    for path in ["/200/60/5/x?a=1&b=2", "/200/60/5/x?b=2&a=1", "/200/60/5/x?id=1&a=1&utm_&b=2"] {
        assert_hit(&edge, path, "");
    }
    assert!(!is_hit(&edge, "/200/60/5/x?a=1&b=3", ""));
    // A purge, and a method that is not safe, remove it by each form. The origin gets the latter
    // as it is.
    assert_eq!(edge.ask("PURGE /200/60/5/x?b=2&id=9&a=1", "").status(), 200);
    assert!(!is_hit(&edge, "/200/60/5/x?a=1&b=2", ""));
    assert_hit(&edge, "/200/60/5/x?a=1&b=2", "");
    lines(&origin);
    edge.ask("DELETE /200/60/5/x?b=2&id=9&a=1", "");
    assert_eq!(lines(&origin), ["DELETE /200/60/5/x?b=2&id=9&a=1 HTTP/1.1"]);
    assert!(!is_hit(&edge, "/200/60/5/x?a=1&b=2", ""));
}

#[test]
fn ignored_cookies_reach_neither_cache_nor_origin() {
    let origin = Origin::start();
    let edge = Edge::start(&site(&origin, "ttl = 60\nignore_cookies = [\"_ga*\"]"));
    let cookies = |origin: &Origin| {
        let head = origin.heads.try_iter().last().unwrap();
        head.lines().find_map(|line| Some(line.split_once("Cookie: ")?.1.to_owned()))
    };
    for (sent, got) in [
        ("_ga=1; _ga_X=2", None),
        ("a=1; _ga=1; b=2", Some("a=1; b=2")),
        ("a=1;_ga; b=2;  c=3", Some("a=1; b=2;  c=3")),
        ("a=1\r\nCookie: b=2; _ga=1", Some("a=1; b=2")),
    ] {
        edge.ask("GET /200/0/5/x", &format!("Cookie: {sent}\r\n"));
        assert_eq!(cookies(&origin).as_deref(), got, "{sent}");
    }
    // Without an explicit lifetime, a response to a request with another cookie is for one alone.
    assert!(!is_hit(&edge, "/200/0/5/plain", "Cookie: a=1; _ga=1\r\n"));
    assert!(!is_hit(&edge, "/200/0/5/plain", "Cookie: _ga=1\r\n"));
    assert_hit(&edge, "/200/0/5/plain", "Cookie: _ga=2\r\n");
    assert_hit(&edge, "/200/0/5/plain", "");
}

#[test]
fn cookies_and_fields_of_the_key_separate_responses() {
    let origin = Origin::start();
    let edge = Edge::start(&site(&origin, "ttl = 60\nkey_cookies = [\"lang\"]\nkey_fields = [\"X-Device\"]"));
    let all = [
        "",
        "Cookie: lang=de\r\n",
        "Cookie: lang=fr\r\n",
        "X-Device: m\r\n",
        "Cookie: lang=de\r\nX-Device: m\r\n",
        // Programs that decode names read another language.
        "Cookie: l%61ng=fr; lang=de\r\n",
    ];
    for fields in all {
        assert!(
            !is_hit(&edge, "/200/60/5/x", fields) && !is_hit(&edge, "/200/0/5/plain", fields),
            "{fields}"
        );
    }
    for fields in all {
        assert_hit(&edge, "/200/60/5/x", fields);
        if fields.contains('%') {
            assert!(!is_hit(&edge, "/200/0/5/plain", fields));
        } else {
            assert_hit(&edge, "/200/0/5/plain", fields);
        }
    }
    // Another cookie does not count where the origin gives a lifetime, and keeps others out.
    assert_hit(&edge, "/200/60/5/x", "Cookie: a=1; lang=de\r\n");
    assert!(!is_hit(&edge, "/200/0/6/plain", "Cookie: a=1; lang=de\r\n"));
    assert!(!is_hit(&edge, "/200/0/6/plain", "Cookie: lang=de\r\n"));
    assert_eq!(edge.ask("DELETE /200/60/5/x", "").status(), 200);
    assert!(all.iter().all(|fields| !is_hit(&edge, "/200/60/5/x", fields)));
}

#[test]
fn response_for_one_client_has_the_lifetimes_of_its_origin() {
    let origin = Origin::start();
    let policy = "ttl = 7000\noverride = true\nstale_while_revalidate = 60\nstale_if_error = 60";
    let edge = Edge::start(&site(&origin, policy));
    for (name, fields) in [
        ("nocache", "Authorization: Basic YTpi\r\n"),
        ("nocache", "Cookie: session=alice\r\n"),
        ("plain", "Cookie: session=alice\r\n"),
    ] {
        for len in 1..3 {
            let path = format!("/200/0/{len}/{name}{}", fields.len());
            edge.ask(&format!("GET {path}"), fields);
            assert!(!is_hit(&edge, &path, if len == 1 { "" } else { "Cookie: session=bob\r\n" }), "{path}");
        }
    }
    // It does not end those of the response for all, which it gets as well.
    assert_eq!(lifetime(&edge, "/200/0/5/nocache"), Some(7000));
    assert_hit(&edge, "/200/0/5/nocache", "Cookie: session=bob\r\n");
}

#[test]
fn cookies_outside_a_list_reach_neither_cache_nor_origin() {
    let origin = Origin::start();
    let edge = Edge::start(&site(&origin, "ttl = 60\nkeep_cookies = [\"lang\"]\nkey_cookies = [\"lang\"]"));
    edge.ask("GET /200/0/5/plain", "Cookie: session=alice; lang=de; $Version=1\r\n");
    assert!(origin.heads.try_iter().last().unwrap().contains("\r\nCookie: lang=de\r\n"));
    assert_hit(&edge, "/200/0/5/plain", "Cookie: a=1; lang=de\r\n");
    assert!(!is_hit(&edge, "/200/0/5/plain", "Cookie: lang=de ;\r\n"));
    assert!(!is_hit(&edge, "/200/0/5/plain", "Cookie: a=1\r\n"));
}

#[test]
fn many_cookies_are_written_once() {
    let origin = Origin::start();
    let edge = Edge::start(&site(&origin, "ignore_cookies = [\"x\"]"));
    let sent = "a;x;".repeat(4000);
    edge.ask("GET /200/0/5/x", &format!("Cookie: {sent}\r\n"));
    let head = origin.heads.try_iter().last().unwrap();
    let got = head.lines().filter_map(|line| line.strip_prefix("Cookie: ")).collect::<Vec<_>>();
    assert_eq!(got, [vec!["a"; 4000].join("; ")]);
}

#[test]
fn requests_bypass_the_cache_by_a_cookie_or_by_the_route() {
    let origin = Origin::start();
    let policy = "bypass_cookies = [\"session*\"]\nignore_cookies = [\"session_x\"]";
    let mut edge = Edge::start(&site(&origin, policy));
    let bypasses = |edge: &Edge, fields: &str| status(edge, "/200/60/5/x", fields).contains("fwd=bypass");
    assert!(bypasses(&edge, "Cookie: a=1; session_1=2\r\n"));
    assert!(!is_hit(&edge, "/200/60/5/x", ""));
    // PHP reads a name with an underscore.
    assert!(bypasses(&edge, "Cookie: sess%69on_1=2\r\n"));
    assert!(bypasses(&edge, "Cookie: session=\r\n"));
    assert_hit(&edge, "/200/60/5/x", "Cookie: a=session\r\n");
    assert_hit(&edge, "/200/60/5/x", "Cookie: session_x=1\r\n");
    edge.reload(&site(&origin, "enabled = false")).unwrap();
    assert!(bypasses(&edge, ""));
    edge.reload(&site(&origin, "ignore_cookies = [\"session_x\"]")).unwrap();
    assert_hit(&edge, "/200/60/5/x", "");
}

#[test]
fn wrong_policies_are_refused_with_their_keys() {
    let origin = Origin::start();
    for (cache, expected) in [
        ("override = true", "site[1].route[1].cache.override: there is no lifetime"),
        ("ttl = 0", "cache.ttl = 0: expected a whole number from 1"),
        ("tll = 5", "cache.tll: unknown key (did you mean ttl?)"),
        ("key_fields = [\"Host\"]", "cache.key_fields: \"Host\""),
        ("keep_query = [\"a=b\"]", "cache.keep_query: \"a=b\""),
    ] {
        let toml = site(&origin, cache);
        let error = Config::from_toml(&toml).and_then(|config| config.check()).unwrap_err().to_string();
        assert!(error.contains(expected), "{cache}: {error}");
    }
}
