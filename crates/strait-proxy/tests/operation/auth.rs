//! Basic authentication of routes: who gets stored responses, and what the origin sees.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lab::wait_until;
use strait_proxy::Config;
use tempfile::TempDir;

use crate::rig::{Client, LIMIT, Origin};
use crate::sites::Edge;

/// File of users with bcrypt hashes of the least cost.
fn users(dir: &TempDir, name: &str, pairs: &[(&str, &str)]) -> String {
    let path = dir.path().join(name);
    write_users(&path, pairs);
    path.display().to_string()
}

fn write_users(path: &Path, pairs: &[(&str, &str)]) {
    let line = |(user, password): &(&str, &str)| {
        format!("{user}:{}\n", bcrypt::hash_with_salt(password, 4, [7; 16]).unwrap())
    };
    fs::write(path, pairs.iter().map(line).collect::<String>()).unwrap();
}

fn basic(pair: &str) -> String {
    format!("Authorization: Basic {}\r\n", BASE64_STANDARD.encode(pair))
}

/// Site with these routes, which may use the pool `a`.
fn site(origin: &Origin, routes: &str) -> String {
    format!(
        "access.purge = [\"127.0.0.0/8\"]\nadmin.listen = \"127.0.0.1:0\"\npool.a.servers = [\"{}\"]\n[[site]]\nroute = [{routes}]\n",
        origin.address
    )
}

fn is_hit(edge: &Edge, path: &str, fields: &str) -> bool {
    let answer = edge.ask(&format!("GET {path}"), fields);
    answer.field("cache-status").is_some_and(|status| status.contains("; hit"))
}

/// Returns the number of passwords that were hashed for the first route.
fn hashed(edge: &Edge) -> u64 {
    const SERIES: &str = "strait_proxy_auth_hashed_total{route=\"site[1].route[1]\"} ";
    let mut client = Client::to(edge.proxy.admin().unwrap());
    client.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let text = client.answer().unwrap().text();
    text.lines().find_map(|line| line.strip_prefix(SERIES)).map_or(0, |value| value.parse().unwrap())
}

#[test]
fn stored_response_reaches_only_authenticated_clients() {
    let (origin, dir) = (Origin::start(), tempfile::tempdir().unwrap());
    let file = users(&dir, "users", &[("ann", "a:b"), ("bob", "")]);
    let edge = Edge::start(&site(
        &origin,
        &format!("{{ pool = \"a\", auth = {{ users = \"{file}\", realm = \"shop\" }} }}"),
    ));
    let paths = ["/200/60/5/x", "/200/60/300000/y"];
    for path in paths {
        for user in ["ann:a:b", "bob:"] {
            assert!(wait_until(LIMIT, || is_hit(&edge, path, &basic(user))), "{path} {user}");
        }
    }
    assert_eq!(origin.asked(), 2);
    let wrong = [
        String::new(),
        basic("ann:a"),
        basic("ann:"),
        basic("bob:a:b"),
        basic("eve:a:b"),
        basic("ann:a:b\0a:b"),
        format!("{}{}", basic("ann:a:b"), basic("eve:a:b")),
        basic("ann:a:b").replace("Basic", "Bearer"),
        "Authorization: Basic\r\n".to_owned(),
        basic("ann:a:b").replace("Authorization", "Proxy-Authorization"),
        basic("ann:a:b").replace("Authorization", "X-Authorization"),
    ];
    for fields in &wrong {
        for path in paths {
            for (method, more) in [
                ("GET", ""),
                ("HEAD", ""),
                ("GET", "Range: bytes=0-1\r\n"),
                ("GET", "If-None-Match: *\r\n"),
                ("GET", "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n"),
                ("GET", "Cache-Control: only-if-cached\r\n"),
                ("POST", "Content-Length: 0\r\n"),
                ("PURGE", ""),
                ("DELETE", ""),
            ] {
                let answer = edge.ask(&format!("{method} {path}"), &format!("{fields}{more}"));
                assert_eq!(answer.status(), 401, "{method} {path} {fields}");
                assert_eq!(answer.field("www-authenticate"), Some("Basic realm=\"shop\", charset=\"UTF-8\""));
                assert!(answer.field("cache-status").is_none() && answer.body.len() < 100, "{}", answer.head);
            }
        }
    }
    assert_eq!(origin.asked(), 2);
    // None of them has removed a response.
    assert!(paths.iter().all(|path| is_hit(&edge, path, &basic("ann:a:b"))));
}

#[test]
fn users_can_have_hashes_of_argon2id() {
    let (origin, dir) = (Origin::start(), tempfile::tempdir().unwrap());
    let file = users(&dir, "users", &[("ann", "a")]);
    let argon2 = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
    let both = fs::read_to_string(&file).unwrap() + &format!("bob:{argon2}\n");
    fs::write(&file, &both).unwrap();
    let toml = site(&origin, &format!("{{ pool = \"a\", auth = {{ users = \"{file}\" }} }}"));
    let mut edge = Edge::start(&toml);
    for (user, status) in
        [("ann:a", 200), ("bob:password", 200), ("ann:password", 401), ("bob:a", 401), ("eve:password", 401)]
    {
        assert_eq!(edge.ask("GET /200/60/5/x", &basic(user)).status(), status, "{user}");
    }
    // The right passwords are verified once.
    assert_eq!(hashed(&edge), 5);
    assert!(is_hit(&edge, "/200/60/5/x", &basic("bob:password")) && hashed(&edge) == 5);
    // A hash that needs too much memory is refused, and changes nothing.
    fs::write(&file, both.replace("m=256", "m=1048576")).unwrap();
    let error = edge.reload(&toml).unwrap_err();
    assert!(error.contains("line 2: the hash needs 1048576 KiB of memory; the maximum is 262144"), "{error}");
    assert!(is_hit(&edge, "/200/60/5/x", &basic("bob:password")));
}

#[test]
fn origin_does_not_get_the_password_unless_told_so() {
    let (origin, dir) = (Origin::start(), tempfile::tempdir().unwrap());
    let file = users(&dir, "users", &[("ann", "a")]);
    let route =
        |keys: &str| site(&origin, &format!("{{ pool = \"a\", auth = {{ users = \"{file}\"{keys} }} }}"));
    let edge = Edge::start(&route(""));
    for line in ["GET /200/60/5/x", "GET /200/0/5/y", "DELETE /200/60/5/z"] {
        assert_eq!(edge.ask(line, &basic("ann:a")).status(), 200);
    }
    assert!(origin.heads.try_iter().all(|head| !head.to_ascii_lowercase().contains("authorization")));
    let edge = Edge::start(&route(", keep = true"));
    for _ in 0..2 {
        // RFC 9111 s3.5: the response may be for this user alone.
        assert!(!is_hit(&edge, "/200/60/5/x", &basic("ann:a")));
    }
    assert!(origin.heads.try_iter().all(|head| head.contains(basic("ann:a").trim())));
    // With a field of the proxy's own.
    let edge = Edge::start(&site(
        &origin,
        &format!(
            "{{ pool = \"a\", auth = {{ users = \"{file}\" }}, request_headers = {{ set = {{ Authorization = \"Bearer t\" }} }} }}"
        ),
    ));
    assert_eq!(edge.ask("GET /200/60/5/x", &basic("ann:a")).status(), 200);
    let head = origin.heads.try_iter().last().unwrap();
    assert!(head.contains("\r\nAuthorization: Bearer t\r\n") && !head.contains("Basic"), "{head}");
}

#[test]
fn password_is_hashed_once() {
    let (origin, dir) = (Origin::start(), tempfile::tempdir().unwrap());
    let file = users(&dir, "users", &[("ann", "a"), ("bob", "b")]);
    let routes = |name: &str| {
        format!(
            "{{ pool = \"a\", auth = {{ users = \"{file}\" }} }}, {{ path = \"/name\", respond = {{ body = \"{name}\" }} }}"
        )
    };
    let mut edge = Edge::start(&site(&origin, &routes("one")));
    let ask = |edge: &Edge, pair: &str| edge.ask("GET /200/60/5/x", &basic(pair)).status();
    assert_eq!((ask(&edge, "ann:a"), hashed(&edge)), (200, 1));
    assert_eq!((ask(&edge, "ann:a"), hashed(&edge)), (200, 1));
    assert_eq!((ask(&edge, "bob:b"), hashed(&edge)), (200, 2));
    assert_eq!((ask(&edge, "bob:a"), ask(&edge, "ann:b"), hashed(&edge)), (401, 401, 4));
    // A reload keeps it, and has another user's new password.
    write_users(Path::new(&file), &[("ann", "a"), ("bob", "c")]);
    edge.reload(&site(&origin, &routes("two"))).unwrap();
    assert!(wait_until(LIMIT, || edge.ask("GET /name", "").text() == "two"));
    assert_eq!((ask(&edge, "ann:a"), hashed(&edge)), (200, 4));
    assert_eq!((ask(&edge, "bob:b"), ask(&edge, "bob:c"), hashed(&edge)), (401, 200, 6));
    // A removed user has no access.
    write_users(Path::new(&file), &[("bob", "c")]);
    edge.reload(&site(&origin, &routes("three"))).unwrap();
    assert!(wait_until(LIMIT, || edge.ask("GET /name", "").text() == "three"));
    assert_eq!((ask(&edge, "ann:a"), ask(&edge, "bob:c")), (401, 200));
    // A file that cannot be read changes nothing.
    fs::write(&file, "ann:plain\n").unwrap();
    let error = edge.reload(&site(&origin, &routes("four"))).unwrap_err();
    assert!(error.contains("line 1: expected USER:HASH"), "{error}");
    assert_eq!((ask(&edge, "ann:a"), ask(&edge, "bob:c")), (401, 200));
}

#[test]
fn requests_at_the_same_time_wait_for_the_first_password() {
    let (origin, dir) = (Origin::start(), tempfile::tempdir().unwrap());
    let file = dir.path().join("users");
    // A hash that takes longer than the other requests need to arrive.
    fs::write(&file, format!("ann:{}", bcrypt::hash_with_salt("a", 10, [7; 16]).unwrap())).unwrap();
    let route = format!("{{ pool = \"a\", auth = {{ users = \"{}\" }} }}", file.display());
    let edge = Edge::start(&site(&origin, &route));
    let mut clients: Vec<_> = (0..8).map(|_| Client::to(edge.proxy.address())).collect();
    let request = format!("GET /200/60/5/x HTTP/1.1\r\nHost: h\r\n{}\r\n", basic("ann:a"));
    for client in &mut clients {
        client.send(&request);
    }
    assert!(clients.iter_mut().all(|client| client.answer().unwrap().status() == 200));
    assert_eq!(hashed(&edge), 1);
}

#[test]
fn validation_in_the_background_follows_the_rules() {
    let (listener, dir) = (TcpListener::bind("127.0.0.1:0").unwrap(), tempfile::tempdir().unwrap());
    let file = users(&dir, "users", &[("ann", "a")]);
    let edge = Edge::start(&format!(
        "pool.a.servers = [\"{}\"]\n[[site]]\nroute = [{{ pool = \"a\", auth = {{ users = \"{file}\" }} }}]",
        listener.local_addr().unwrap()
    ));
    // The first response is stale when it comes; each has its number as the body.
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().filter_map(Result::ok).enumerate() {
            BufReader::new(&stream).lines().map(Result::unwrap).find(String::is_empty);
            let (age, etag) = if number == 0 { (100, "a") } else { (0, "b") };
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\nAge: {age}\r\nETag: \"{etag}\"\r\nCache-Control: max-age=60, stale-while-revalidate=1000\r\n\r\n{number}"
            );
            let _ = (&stream).write_all(head.as_bytes());
        }
    });
    let ask = || edge.ask("GET /x", &basic("ann:a")).text();
    assert_eq!((ask(), ask()), ("0".to_owned(), "0".to_owned()));
    // The one of the validation is stored: the origin got no Authorization.
    assert!(wait_until(LIMIT, || ask() == "1"));
    assert_eq!((ask(), ask()), ("1".to_owned(), "1".to_owned()));
}

#[test]
fn guesses_of_one_client_are_answered_and_do_not_lock_users_out() {
    let (origin, dir) = (Origin::start(), tempfile::tempdir().unwrap());
    let file = users(&dir, "users", &[("ann", "a")]);
    let edge = Edge::start(&site(&origin, &format!("{{ pool = \"a\", auth = {{ users = \"{file}\" }} }}")));
    assert_eq!(edge.ask("GET /200/60/5/x", &basic("ann:a")).status(), 200);
    std::thread::scope(|scope| {
        let guess = |number: usize| edge.ask("GET /200/60/5/x", &basic(&format!("ann:{number}"))).status();
        let threads: Vec<_> = (0..16).map(|number| scope.spawn(move || guess(number))).collect();
        assert_eq!(edge.ask("GET /200/60/5/x", &basic("ann:a")).status(), 200);
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 401));
    });
    assert_eq!(hashed(&edge), 17);
}

#[test]
fn response_of_an_authenticated_route_reaches_no_other_route() {
    let (origin, dir) = (Origin::start(), tempfile::tempdir().unwrap());
    let one = users(&dir, "one", &[("ann", "a")]);
    let two = users(&dir, "two", &[("bob", "b")]);
    // The origin gets the same request from all of them.
    let mut edge = Edge::start(&site(
        &origin,
        &format!(
            r#"
            {{ path = "/one", rewrite = "/200/60", pool = "a", auth = {{ users = "{one}" }} }},
            {{ path = "/two", rewrite = "/200/60", pool = "a", auth = {{ users = "{two}" }} }},
            {{ path = "/open", rewrite = "/200/60", pool = "a" }},
            {{ path = "/200", pool = "a" }},
            "#
        ),
    ));
    for (number, (path, fields)) in
        [("/one/5/x", basic("ann:a")), ("/two/5/x", basic("bob:b")), ("/open/5/x", String::new())]
            .iter()
            .enumerate()
    {
        assert!(!is_hit(&edge, path, fields) && wait_until(LIMIT, || is_hit(&edge, path, fields)), "{path}");
        assert_eq!(origin.asked(), number + 1, "{path}");
    }
    assert_eq!(edge.ask("GET /two/5/x", &basic("ann:a")).status(), 401);
    // A response that was stored for all is not one of a route that is closed now.
    assert!(wait_until(LIMIT, || is_hit(&edge, "/200/60/5/z", "")));
    for (routes, fields) in [
        (format!("{{ pool = \"a\", auth = {{ users = \"{one}\" }} }}"), basic("ann:a")),
        (format!("{{ pool = \"a\", auth = {{ users = \"{two}\" }} }}"), basic("bob:b")),
    ] {
        let asked = origin.asked();
        edge.reload(&site(&origin, &routes)).unwrap();
        assert!(wait_until(LIMIT, || edge.ask("GET /200/60/5/z", "").status() == 401));
        assert!(!is_hit(&edge, "/200/60/5/z", &fields) && origin.asked() == asked + 1);
        assert!(wait_until(LIMIT, || is_hit(&edge, "/200/60/5/z", &fields)));
    }
}

#[test]
fn files_and_own_responses_need_the_password_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = users(&dir, "users", &[("ann", "a")]);
    fs::create_dir_all(dir.path().join("www/f")).unwrap();
    fs::write(dir.path().join("www/f/a"), "secret").unwrap();
    let auth = format!("auth = {{ users = \"{file}\" }}");
    let edge = Edge::start(&format!(
        r#"[[site]]
        route = [
            {{ path = "/f", files = "{}", {auth}, response_headers = {{ set = {{ X-A = "b" }} }} }},
            {{ path = "/r", respond = {{ body = "x" }}, {auth} }},
            {{ path = "/m", redirect = {{ location = "/n" }}, {auth}, rate = {{ requests = 2, per = 86400 }} }},
        ]"#,
        dir.path().join("www").display()
    ));
    for (path, status) in [("/f/a", 200), ("/r", 200), ("/m", 308)] {
        let line = format!("GET {path}");
        assert_eq!(edge.ask(&line, "").status(), 401, "{path}");
        assert_eq!(edge.ask(&line, &basic("ann:a")).status(), status, "{path}");
    }
    // The rate limits guesses, and a refusal follows the rules of its route.
    assert_eq!(edge.ask("GET /m", &basic("ann:b")).status(), 429);
    assert_eq!(edge.ask("GET /f/a", "").field("x-a"), Some("b"));
    for path in ["/x/../f/a", "//f/a", "/x/%2e%2e/f/a", "/f/../f/a", "/f%2fa"] {
        let answer = edge.get("h", path);
        assert!([400, 401, 404].contains(&answer.status()) && !answer.text().contains("secret"), "{path}");
    }
}

#[test]
fn wrong_authentication_is_named() {
    for (auth, expected) in [
        ("{}", "site[1].route[1].auth: it has no file of users"),
        (
            "{ users = \"/nonexistent/users\" }",
            "auth.users = \"/nonexistent/users\": the file cannot be read",
        ),
        ("{ users = \"/dev/null\" }", "auth.users = \"/dev/null\": the file has no users; htpasswd"),
        ("{ users = \"/dev/null\", realm = \"a\\\"b\" }", "auth.realm = \"a\\\"b\": printable ASCII"),
        ("{ users = \"/dev/null\", realm = \"a\\r\\nb\" }", "auth.realm = \"a\\r\\nb\": printable ASCII"),
        ("{ user = \"x\" }", "auth.user: unknown key (did you mean users?)"),
        ("{ users = \"/dev/zero\" }", "auth.users = \"/dev/zero\": the file is too long"),
    ] {
        let toml = format!("[[site]]\nroute = [{{ respond = {{}}, auth = {auth} }}]");
        let error = Config::from_toml(&toml).and_then(|config| config.check()).expect_err(auth).to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{auth}: {error}");
    }
}

#[test]
fn log_names_the_user_whose_password_is_right() {
    let (origin, dir) = (Origin::start(), tempfile::tempdir().unwrap());
    let (file, log) = (users(&dir, "users", &[("ann", "a")]), dir.path().join("log"));
    let routes = format!("{{ pool = \"a\", auth = {{ users = \"{file}\" }} }}");
    let edge = Edge::start(&format!("log.access = \"{}\"\n{}", log.display(), site(&origin, &routes)));
    let lines =
        || fs::read_to_string(&log).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    let mut count = 0;
    let mut ask = |path: &str, pair: &str| {
        let status = edge.ask(&format!("GET {path}"), &basic(pair)).status();
        count += 1;
        assert!(wait_until(LIMIT, || lines().len() == count), "{:?}", lines());
        (status, lines()[count - 1].split(' ').nth(2).unwrap().to_owned())
    };
    // Its password is hashed; then it is known, also for a hit in memory.
    for path in ["/200/0/5/a", "/200/0/5/b", "/200/60/5/c", "/200/60/5/c", "/200/60/5/c", "/404/0/5/d"] {
        assert_eq!(ask(path, "ann:a").1, "ann", "{path}");
    }
    assert_eq!(ask("/200/60/5/c", "ann:b"), (401, "-".to_owned()));
    assert_eq!(ask("/200/60/5/c", "eve:a"), (401, "-".to_owned()));
}

#[test]
fn client_without_the_password_learns_no_limit_of_a_body() {
    let (origin, dir) = (Origin::start(), tempfile::tempdir().unwrap());
    let file = users(&dir, "users", &[("ann", "a")]);
    let route = format!("{{ pool = \"a\", auth = {{ users = \"{file}\" }}, request_body = 1 }}");
    let edge = Edge::start(&site(&origin, &route));
    let post = |user: &str| {
        let fields = format!("{}Content-Length: 2\r\n", basic(user));
        edge.ask("POST /200/0/5/x", &fields).status()
    };
    assert_eq!([post("ann:b"), post("ann:a"), post("ann:a")], [401, 413, 413]);
    assert_eq!(origin.asked(), 0);
}
