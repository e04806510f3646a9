//! Routes by method and fields, and routes that rewrite paths.

use lab::wait_until;
use strait_proxy::Config;

use crate::rig::{LIMIT, Origin};
use crate::sites::{Edge, post};

/// Site for all hosts with these routes, to the pools `a` and `b`.
fn site(a: &Origin, b: &Origin, routes: &str) -> String {
    format!(
        "access.purge = [\"127.0.0.0/8\"]\nadmin.listen = \"127.0.0.1:0\"\npool.a.servers = [\"{}\"]\npool.b.servers = [\"{}\"]\n[[site]]\nroute = [{routes}]\n[[site]]\nhosts = [\"b\"]\nroute = [{{ pool = \"b\" }}]\n",
        a.address, b.address
    )
}

/// Returns the first lines of the requests that an origin has received.
fn lines(origin: &Origin) -> Vec<String> {
    origin.heads.try_iter().map(|head| head.lines().next().unwrap_or_default().to_owned()).collect()
}

fn is_hit(edge: &Edge, path: &str, fields: &str) -> bool {
    let answer = edge.ask(&format!("GET {path}"), fields);
    answer.field("cache-status").is_some_and(|status| status.contains("; hit"))
}

#[test]
fn method_and_fields_select_among_the_routes_of_a_path() {
    let (a, b) = (Origin::start(), Origin::start());
    let edge = Edge::start(&site(
        &a,
        &b,
        r#"
        { path = "/200", methods = ["GET"], has_headers = { X-Beta = "1" }, pool = "b" },
        { path = "/200", methods = ["GET", "DELETE"], pool = "a" },
        { path = "/200", has_headers = { X-Any = "*", X-Two = "2" }, respond = { status = 418 } },
        { pool = "a" },
        "#,
    ));
    for (line, fields, status, expected) in [
        ("GET /200/0/5/x", "", 200, [1, 0]),
        ("GET /200/0/5/x", "x-beta: 1\r\n", 200, [0, 1]),
        ("GET /200/0/5/x", "X-Beta: 0\r\nX-Beta: 1\r\n", 200, [1, 0]),
        ("GET /200/0/5/x", "X-Beta: 1\r\nX_Beta: 1\r\n", 200, [1, 0]),
        ("GET /200/0/5/x", "X-Beta: 1, 1\r\n", 200, [1, 0]),
        ("GET /200/0/5/x", "X_BETA: 1\r\n", 200, [0, 1]),
        ("HEAD /200/0/0/x", "X-Beta: 1\r\n", 200, [0, 1]),
        ("DELETE /200/0/5/x", "X-Beta: 1\r\n", 200, [1, 0]),
        ("PUT /200/0/5/x", "X-Two: 2\r\nX-Any: x\r\n", 418, [0, 0]),
        ("PUT /200/0/5/x", "X-Two: 2\r\n", 404, [0, 0]),
        ("PUT /200/0/5/x", "", 404, [0, 0]),
        ("get /200/0/5/x", "", 404, [0, 0]),
        // A shorter path is no way round.
        ("PUT /%32%30%30/0/5/x", "", 404, [0, 0]),
        ("GET /404/0/5/x", "", 404, [1, 0]),
    ] {
        let before = [a.asked(), b.asked()];
        assert_eq!(edge.ask(line, fields).status(), status, "{line} {fields}");
        assert_eq!([a.asked() - before[0], b.asked() - before[1]], expected, "{line} {fields}");
    }
}

#[test]
fn regular_expression_selects_among_the_routes_of_the_longest_path() {
    let (a, b) = (Origin::start(), Origin::start());
    let edge = Edge::start(&site(
        &a,
        &b,
        r#"
        { path_regex = '^/200/0/[0-9]+/v[0-9]$', methods = ["GET"], pool = "b" },
        { path_regex = '/private/.', respond = { status = 403 } },
        { pool = "a" },
        { path = "/404", path_regex = 'x$', pool = "b" },
        { path_exact = "/200/0/5/v9", pool = "a" },
        "#,
    ));
    for (line, status, expected) in [
        ("GET /200/0/5/v1", 200, [0, 1]),
        ("HEAD /200/0/5/v1", 200, [0, 1]),
        ("GET /200/0/5/v1?x", 200, [0, 1]),
        ("GET /200/0/5/%76%31", 200, [0, 1]),
        ("GET /200/0/5/v1%0a", 200, [1, 0]),
        ("GET /200/0/5/v12", 200, [1, 0]),
        ("GET /200/0/5/x?/200/0/5/v1", 200, [1, 0]),
        ("DELETE /200/0/5/v1", 200, [1, 0]),
        ("GET /200/0/5/private/%0a", 403, [0, 0]),
        ("GET /200/0/5/private/%ff", 403, [0, 0]),
        ("GET /200/0/5/%70rivate/x", 403, [0, 0]),
        // An exact path and a longer one come before, and a shorter one is no way round.
        ("GET /200/0/5/v9", 200, [1, 0]),
        ("GET /404/0/5/x", 404, [0, 1]),
        ("GET /404/0/5/private/x", 404, [0, 1]),
        ("GET /404/0/5/y", 404, [0, 0]),
        // The expression may hold for one reading alone.
        ("GET /200/0/5/a%2f../v1", 400, [0, 0]),
        ("GET /200/0/5//v1", 400, [0, 0]),
        ("GET /200/0/5/private;a/x", 400, [0, 0]),
        ("GET /200/0/5/private%2fx", 400, [0, 0]),
        ("GET /200/0/5/private\\x", 400, [0, 0]),
        ("GET /200/0/5/x/%2e%2e/private/x", 400, [0, 0]),
        ("GET /200/0/5/private%00/x", 400, [0, 0]),
    ] {
        let before = [a.asked(), b.asked()];
        assert_eq!(edge.ask(line, "").status(), status, "{line}");
        assert_eq!([a.asked() - before[0], b.asked() - before[1]], expected, "{line}");
    }
}

#[test]
fn response_of_a_route_with_an_expression_reaches_no_other_route() {
    let (a, b) = (Origin::start(), Origin::start());
    let staff = r#"request_headers = { set = { X-Role = "staff" } }"#;
    let routes = |regex: &str| {
        format!(
            r#"{{ path_regex = '{regex}', pool = "a", {staff} }}, {{ path_regex = 'other$', pool = "b" }}, {{ pool = "a" }}"#
        )
    };
    let mut edge = Edge::start(&site(&a, &b, &routes("^/200/60/5/x$")));
    for (path, own) in [("/200/60/5/x", &a), ("/200/60/5/other", &b), ("/200/60/5/y", &a)] {
        let before = own.asked();
        assert!(wait_until(LIMIT, || is_hit(&edge, path, "")), "{path}");
        assert_eq!(own.asked(), before + 1, "{path}");
    }
    // An encoding that the server reads alike has the same route, and a response of its own.
    assert!(!is_hit(&edge, "/200/60/5/%78", ""));
    assert!(a.heads.try_iter().any(|head| head.starts_with("GET /200/60/5/%78 ") && head.contains("X-Role")));
    // Another expression gives the path to another route.
    edge.reload(&site(&a, &b, &routes("^/200/60/5/y$"))).unwrap();
    assert!(!is_hit(&edge, "/200/60/5/x", "") && !is_hit(&edge, "/200/60/5/y", ""));
    assert!(is_hit(&edge, "/200/60/5/other", ""));
    // The URI names the responses of all routes.
    assert_eq!(edge.ask("PURGE /200/60/5/x", "").status(), 200);
    edge.reload(&site(&a, &b, &routes("^/200/60/5/x$"))).unwrap();
    assert!(!is_hit(&edge, "/200/60/5/x", ""));
}

#[test]
fn response_of_a_route_with_fields_reaches_no_other_route() {
    let (a, b) = (Origin::start(), Origin::start());
    // The origin sees the field, and its response need not name it in Vary.
    let edge =
        Edge::start(&site(&a, &b, r#"{ has_headers = { X-Staff = "1" }, pool = "a" }, { pool = "a" }"#));
    let path = "/200/60/5/x";
    assert!(wait_until(LIMIT, || is_hit(&edge, path, "X-Staff: 1\r\n")));
    assert_eq!(a.asked(), 1);
    assert!(!is_hit(&edge, path, "") && !is_hit(&edge, "/200/60/5/y", ""));
    // That of the route without conditions is for requests without the field.
    for (fields, status) in [("", 200), ("X-Staff: 2\r\n", 504)] {
        let fields = format!("Cache-Control: only-if-cached\r\n{fields}");
        assert_eq!(edge.ask(&format!("HEAD {path}"), &fields).status(), status, "{fields}");
    }
    assert!(wait_until(LIMIT, || is_hit(&edge, path, "")));
    assert_eq!(a.asked(), 3);
    // The origin would not get the field, and its response would be for requests with it.
    for connection in ["X-Staff", "close, x_staff"] {
        let fields = format!("X-Staff: 1\r\nConnection: {connection}\r\n");
        assert_eq!(edge.ask("GET /200/60/5/z", &fields).status(), 400);
    }
    // Programs may read it as the field.
    assert_eq!(edge.ask("GET /200/60/5/z", "X_Staff: 1\r\n").status(), 200);
    assert!(!is_hit(&edge, "/200/60/5/z", "X-Staff: 1\r\n"));
    assert_eq!(a.asked(), 5);
    // PURGE without the field removes both.
    assert_eq!(edge.ask(&format!("PURGE {path}"), "").status(), 200);
    assert!(!is_hit(&edge, path, "X-Staff: 1\r\n") && !is_hit(&edge, path, ""));
}

#[test]
fn stored_response_answers_only_requests_with_its_fields_of_conditions() {
    let (a, b) = (Origin::start(), Origin::start());
    let open = site(&a, &b, r#"{ pool = "a" }"#);
    let mut edge = Edge::start(&open);
    let path = "/200/60/500/x";
    // Stored before the route has conditions, without the fields in its key.
    assert!(wait_until(LIMIT, || is_hit(&edge, path, "Cookie: u=alice\r\n")));
    for (routes, requests) in [
        (
            r#"{ has_headers = { Cookie = "*" }, pool = "a" }, { pool = "a" }"#,
            ["Cookie: u=alice\r\n", "Cookie: u=bob\r\n", "Cookie: u=bob\r\nCookie: u=alice\r\n", ""],
        ),
        // Each of them has the route without conditions.
        (
            r#"{ has_headers = { X-Beta = "1" }, pool = "a" }, { pool = "a" }"#,
            ["X-Beta: true\r\n", "X-Beta: 0\r\nX-Beta: 1\r\n", "X-Beta: 1, 1\r\n", ""],
        ),
        // Programs read the name of the condition in both forms.
        (
            r#"{ has_headers = { x_beta = "*" }, pool = "a" }, { pool = "a" }"#,
            ["X-Beta: 0\r\n", "X-BETA: 1\r\n", "x-beta:\r\n", ""],
        ),
    ] {
        edge.reload(&site(&a, &b, routes)).unwrap();
        for fields in requests {
            for other in ["Cache-Control: no-store\r\n", fields] {
                assert!(!is_hit(&edge, path, &format!("{other}Range: bytes=1-2\r\n")), "{routes} {fields}");
            }
            assert!(wait_until(LIMIT, || is_hit(&edge, path, fields)), "{routes} {fields}");
            assert!(is_hit(&edge, path, &format!("{fields}Range: bytes=1-2\r\n")), "{routes} {fields}");
        }
        assert!(requests.iter().all(|fields| is_hit(&edge, path, fields)), "{routes}");
        // The path alone names all of them.
        assert_eq!(edge.ask(&format!("PURGE {path}"), "").status(), 200);
        assert!(requests.iter().all(|fields| !is_hit(&edge, path, fields)), "{routes}");
        for fields in requests {
            assert!(wait_until(LIMIT, || is_hit(&edge, path, fields)), "{routes} {fields}");
        }
        assert_eq!(edge.ask(&format!("DELETE {path}"), "").status(), 200);
        assert!(requests.iter().all(|fields| !is_hit(&edge, path, fields)), "{routes}");
        assert_eq!(edge.ask(&format!("PURGE {path}"), "").status(), 200);
    }
}

#[test]
fn origin_gets_the_rewritten_path() {
    let (a, b) = (Origin::start(), Origin::start());
    let edge = Edge::start(&site(
        &a,
        &b,
        r#"{ path = "/api", rewrite = "/200/60", pool = "a" }, { path_exact = "/one", rewrite = "/200/60/5/x", pool = "a" }, { path = "/all/", rewrite = "/", pool = "b" }"#,
    ));
    for (path, status) in [
        ("/api/5/x", 200),
        ("/%61pi/5/y%2fz?q=/api", 200),
        ("/one?q", 200),
        ("/all/200/0/5/x", 200),
        ("/one/x", 404),
        ("/apix", 404),
    ] {
        assert_eq!(edge.get("h", path).status(), status, "{path}");
    }
    assert_eq!(edge.ask("POST /api/5/x", "Content-Length: 0\r\n").status(), 200);
    let expected = ["GET /200/60/5/x", "GET /200/60/5/y%2fz?q=/api", "GET /200/60/5/x?q", "POST /200/60/5/x"];
    assert_eq!(lines(&a), expected.map(|line| format!("{line} HTTP/1.1")));
    assert_eq!(lines(&b), ["GET /200/0/5/x HTTP/1.1"]);
}

#[test]
fn groups_of_the_expression_are_in_the_rewritten_path() {
    let (a, b) = (Origin::start(), Origin::start());
    let edge = Edge::start(&site(
        &a,
        &b,
        r#"{ path_regex = "^/item/([0-9]+)/(?<size>[0-9]+)$", rewrite = "/200/60/{size}/{1}", pool = "a" }"#,
    ));
    for (path, status) in
        [("/item/7/5?q", 200), ("/item/%37/5?q", 200), ("/item/7/5/", 404), ("/item/x/5", 404)]
    {
        assert_eq!(edge.get("h", path).status(), status, "{path}");
    }
    let expected = ["GET /200/60/5/7?q HTTP/1.1", "GET /200/60/5/%37?q HTTP/1.1"];
    assert_eq!(lines(&a), expected, "groups stay encoded");
    assert_eq!(edge.ask("PURGE /item/7/5?q", "").status(), 200);
    assert_eq!(edge.get("h", "/item/7/5?q").status(), 200);
    assert_eq!(lines(&a).len(), 1, "the client's path purges");
}

#[test]
fn no_path_leaves_the_new_prefix() {
    let (a, b) = (Origin::start(), Origin::start());
    for routes in
        [r#"{ path = "/api", rewrite = "/public", pool = "a" }"#, r#"{ rewrite = "/public", pool = "a" }"#]
    {
        let edge = Edge::start(&site(&a, &b, routes));
        for rest in [
            "/../secret",
            "/x/../../secret",
            "/%2e%2e/secret",
            "/..%2fsecret",
            "/x%2f..%2f..%2fsecret",
            "/..;/secret",
            "/x\\..\\..\\secret",
            "/%5c..%5csecret",
            "//../secret",
            "/.",
            "/..",
        ] {
            let path = format!("/api{rest}");
            assert!([400, 404].contains(&edge.get("h", &path).status()), "{path}");
        }
        assert!([400, 404].contains(&edge.get("h", "http://h/../secret").status()));
    }
    // After the slash of the new path, another one would begin an authority.
    let edge = Edge::start(&site(&a, &b, r#"{ path = "/r", rewrite = "/", pool = "a" }"#));
    for rest in ["//evil", "/\\evil", "/%2fevil", "/%2Fevil", "/%5cevil", "/;a/evil", "/%3b/evil"] {
        assert_eq!(edge.get("h", &format!("/r{rest}")).status(), 400, "{rest}");
    }
    assert_eq!(a.asked(), 0);
    assert_eq!(edge.get("h", "/r/200/0/5/x%2fy;z").status(), 200);
}

#[test]
fn routes_to_the_same_request_share_its_response_unless_rules_differ() {
    let (a, b) = (Origin::start(), Origin::start());
    let edge = Edge::start(&site(
        &a,
        &b,
        r#"
        { pool = "a" },
        { path = "/old", rewrite = "/200/60", pool = "a" },
        { path = "/staff", rewrite = "/200/60", pool = "a", request_headers = { set = { X-Role = "staff" } } },
        { path = "/other", rewrite = "/200/60", pool = "b" },
        "#,
    ));
    assert!(wait_until(LIMIT, || is_hit(&edge, "/staff/5/x", "")));
    // The origin has answered a request with another field.
    assert!(!is_hit(&edge, "/old/5/x", ""));
    assert!(wait_until(LIMIT, || is_hit(&edge, "/old/5/x", "")));
    assert!(is_hit(&edge, "/200/60/5/x", "") && a.asked() == 2);
    assert!(!is_hit(&edge, "/other/5/x", "") && b.asked() == 1);
}

#[test]
fn invalidation_finds_rewritten_responses() {
    let (a, b) = (Origin::start(), Origin::start());
    // Requests to change have a pool of their own, which sees the path as it came.
    let edge = Edge::start(&site(
        &a,
        &b,
        r#"
        { pool = "b" },
        { path = "/200", methods = ["GET"], rewrite = "/200/60", pool = "a" },
        { path = "/200", pool = "b" },
        "#,
    ));
    let path = "/200/5/x";
    for by in ["DELETE", "PUT", "PURGE"] {
        assert!(wait_until(LIMIT, || is_hit(&edge, path, "")), "{by}");
        assert_eq!(edge.ask(&format!("{by} {path}"), "Content-Length: 0\r\n").status(), 200, "{by}");
        assert!(!is_hit(&edge, path, ""), "{by}");
    }
    for uri in ["http://h/200/5/x", "http://h/200/60/5/x", "http://h/200/5/x%23a"] {
        assert!(wait_until(LIMIT, || is_hit(&edge, path, "")));
        assert_eq!(post(&edge, &format!("/purge?uri={uri}")).json()["stored"], 1, "{uri}");
        assert!(!is_hit(&edge, path, ""), "{uri}");
    }
}

#[test]
fn wrong_expressions_are_named() {
    for (routes, expected) in [
        (
            r#"{ pool = "a", path_regex = "(" }"#,
            "route[1].path_regex = \"(\": this is not a regular expression",
        ),
        (r#"{ pool = "a", path_regex = "(.{500}){500}" }"#, "larger than 64KiB"),
        (r#"{ pool = "a", path_regex = ["a"] }"#, "path_regex = [\"a\"]: expected text in quotes"),
        (
            r#"{ pool = "a", path_regex = "a", path_exact = "/b" }"#,
            "path_regex: the route has one path alone (path_exact)",
        ),
        (
            r#"{ pool = "a", path_regex = "a" }, { pool = "a", path_regex = "a" }"#,
            "route[2].path: \"/\": the route never matches",
        ),
    ] {
        let toml = format!("pool.a.servers = [\"a:1\"]\n[[site]]\nroute = [{routes}]");
        let error = Config::from_toml(&toml).and_then(|config| config.check()).expect_err(routes).to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{routes}: {error}");
    }
}

#[test]
fn wrong_conditions_and_rewrites_are_named() {
    for (routes, expected) in [
        (r#"{ pool = "a", methods = ["get"] }"#, "route[1].methods: \"get\" is no method"),
        (r#"{ pool = "a", methods = ["A B"] }"#, "route[1].methods: \"A B\" is no method"),
        (r#"{ pool = "a", methods = "GET" }"#, "methods = \"GET\": expected a list of methods"),
        (
            r#"{ pool = "a", has_headers = { "a b" = "1" } }"#,
            "has_headers: \"a b\": this is not a field name",
        ),
        (r#"{ pool = "a", has_headers = { Host = "x" } }"#, "has_headers: \"Host\": the hosts of the site"),
        (
            r#"{ pool = "a", has_headers = { TE = "x" } }"#,
            "has_headers: \"TE\": this field belongs to the connection",
        ),
        (
            r#"{ pool = "a", has_headers = { X-Forwarded-Host = "x" } }"#,
            "has_headers: \"X-Forwarded-Host\": this field is dropped",
        ),
        (
            r#"{ pool = "a", has_headers = { Forwarded = "*" } }"#,
            "has_headers: \"Forwarded\": the cache key has its hosts and schemes alone",
        ),
        (r#"{ pool = "a", has_headers = { X-A = true } }"#, "has_headers.X-A: expected text"),
        (
            r#"{ pool = "a" }, { pool = "a", methods = ["GET"] }"#,
            "route[2].path: \"/\": the route never matches",
        ),
        (
            r#"{ pool = "a", methods = ["GET"] }, { pool = "a" }, { pool = "a", methods = ["PUT"] }"#,
            "route[3].path: \"/\": the route never matches",
        ),
        (
            r#"{ path_exact = "/x", pool = "a", has_headers = { A = "1" } }, { path_exact = "/x", pool = "a", has_headers = { a = "1" } }"#,
            "route[2].path_exact: \"/x\": the route never matches",
        ),
        (r#"{ pool = "a", rewrite = "v1" }"#, "route[1].rewrite: a path begins with /"),
        (r#"{ pool = "a", rewrite = "/{1}" }"#, "rewrite: a group, as {1}, needs the path_regex"),
        (r#"{ pool = "a", path_regex = "^/x$", rewrite = "/{1}" }"#, "rewrite: path_regex has no group"),
        (r#"{ pool = "a", rewrite = "/a/../b" }"#, "rewrite: the path has empty or dot segments"),
        (r#"{ pool = "a", rewrite = "//evil" }"#, "rewrite: the path has empty or dot segments"),
        (r#"{ pool = "a", rewrite = "/a?b" }"#, "rewrite: write the path without query"),
        (r#"{ pool = "a", rewrite = "/a\r\nX: y" }"#, "rewrite: write the path without query"),
        (r#"{ pool = "a", rewrite = "/%2e" }"#, "rewrite: write the path without query"),
    ] {
        let toml = format!("pool.a.servers = [\"a:1\"]\n[[site]]\nroute = [{routes}]");
        let error = Config::from_toml(&toml).and_then(|config| config.check()).expect_err(routes).to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{routes}: {error}");
    }
    let toml = "[[site]]\nroute = [{ redirect = { location = \"/y\" }, rewrite = \"/x\" }]";
    let error = Config::from_toml(toml).unwrap().check().unwrap_err().to_string();
    assert!(error.contains("rewrite: only a route with a pool or with files"), "{error}");
    let route = |names: std::ops::Range<u32>| {
        let fields: Vec<_> = names.map(|name| format!("A{name} = \"1\"")).collect();
        format!("{{ pool = \"a\", has_headers = {{ {} }} }}", fields.join(", "))
    };
    for (second, is_valid) in [(30..32, true), (30..33, false)] {
        let routes = format!("{}, {}", route(0..30), route(second));
        let toml = format!("pool.a.servers = [\"a:1\"]\n[[site]]\nroute = [{routes}]");
        let checked = Config::from_toml(&toml).unwrap().check();
        let why = checked.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(why.contains("too many fields in has_headers"), !is_valid, "{why}");
        assert_eq!(why.is_empty(), is_valid, "{why}");
    }
    let many = "{ pool = \"a\", has_headers = { A = \"N\" } },";
    let many: String = (0..66).map(|number| many.replace('N', &number.to_string())).collect();
    let toml = format!("pool.a.servers = [\"a:1\"]\n[[site]]\nroute = [{many}]");
    let error = Config::from_toml(&toml).unwrap().check().unwrap_err().to_string();
    assert!(error.contains("route[66].path: \"/\": too many routes have this path"), "{error}");
}
