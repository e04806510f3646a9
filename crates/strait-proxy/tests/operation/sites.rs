//! Sites, routes and pools: which server, redirection or fixed response answers a request.

use std::net::SocketAddr;

use lab::wait_until;
use strait_proxy::{Clock, Config, Contents, Pattern, Proxy};
use tempfile::TempDir;

use crate::rig::{Answer, Client, LIMIT, Origin};

/// Reverse proxy with sites.
pub(crate) struct Edge {
    pub(crate) proxy: Proxy,
    pub(crate) dir: TempDir,
}

impl Edge {
    pub(crate) fn start(toml: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let proxy = Proxy::start(&config(toml, &dir), Clock::system()).unwrap();
        Self { proxy, dir }
    }

    pub(crate) fn reload(&mut self, toml: &str) -> Result<(), String> {
        self.proxy.reload(&config(toml, &self.dir)).map(drop).map_err(|error| error.to_string())
    }

    pub(crate) fn get(&self, host: &str, path: &str) -> Answer {
        let mut client = Client::to(self.proxy.address());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        client.answer().unwrap()
    }

    /// Sends a request with these lines of fields to the host `h`.
    pub(crate) fn ask(&self, line: &str, fields: &str) -> Answer {
        let mut client = Client::to(self.proxy.address());
        client.send(format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
        if line.starts_with("HEAD") { client.head().unwrap() } else { client.answer().unwrap() }
    }
}

pub(crate) fn config(toml: &str, dir: &TempDir) -> Config {
    let mut config = Config::from_toml(toml).unwrap();
    config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    config.workers = 1;
    config.cache.dir = Some(dir.path().join("cache"));
    config
}

/// Pools `a` and `b` of one server each, and a site with other routes than pools.
fn two_pools(a: &Origin, b: &Origin) -> String {
    format!(
        r#"
        pool.a.servers = ["{}"]
        pool.b.servers = ["{}"]
        [[site]]
        hosts = ["www.example.org"]
        route = [
            {{ pool = "a" }},
            {{ path = "/200/60/7", pool = "b" }},
            {{ path = "/old", redirect = {{ location = "https://{{host}}/new{{uri}}" }} }},
            {{ path_exact = "/robots.txt", respond = {{ body = "none\n", headers = {{ Cache-Control = "no-store" }} }} }},
            {{ path = "/secret", respond = {{ status = 403 }} }},
        ]
        [[site]]
        hosts = ["*.example.org"]
        route = [{{ pool = "b" }}]
        "#,
        a.address, b.address
    )
}

#[test]
fn host_and_path_select_the_server() {
    let (a, b) = (Origin::start(), Origin::start());
    let edge = Edge::start(&two_pools(&a, &b));
    let mut asked = [0, 0];
    for (host, path, expected) in [
        ("www.example.org", "/200/60/5/x", [1, 0]),
        ("WWW.Example.org:8080", "/200/60/5/y", [1, 0]),
        ("www.example.org.", "/200/60/5/z", [1, 0]),
        ("www.example.org", "/200/60/7/x", [0, 1]),
        ("www.example.org", "/%32%30%30/60/7/x", [0, 1]),
        ("other.example.org", "/200/60/5/x", [0, 1]),
        // Stored.
        ("www.example.org", "/200/60/5/x", [0, 0]),
        ("www.example.org", "/200/60/7/x", [0, 0]),
        ("other.example.org", "/200/60/5/x", [0, 0]),
    ] {
        let answer = edge.get(host, path);
        let now = [a.asked(), b.asked()];
        assert_eq!([now[0] - asked[0], now[1] - asked[1]], expected, "{host}{path}: {}", answer.head);
        asked = now;
    }
    // The server gets the host and the path as the client sent them.
    assert!(a.heads.try_iter().any(|head| head.contains("Host: www.example.org:8080\r\n")));
    assert!(b.heads.try_iter().any(|head| head.starts_with("GET /%32%30%30/60/7/x ")));
}

#[test]
fn request_without_a_site_or_route_is_refused() {
    let (a, b) = (Origin::start(), Origin::start());
    let edge = Edge::start(&two_pools(&a, &b));
    assert_eq!(edge.get("www.example.com", "/200/60/5/x").status(), 404);
    let edge = Edge::start(&format!(
        "pool.a.servers = [\"{}\"]\n[[site]]\nroute = [{{ path = \"/200\", pool = \"a\" }}]",
        a.address
    ));
    assert_eq!(edge.get("www.example.com", "/404/60/5/x").status(), 404);
    assert_eq!((a.asked(), b.asked()), (0, 0));
    assert_eq!(edge.get("www.example.com", "/200/60/5/x").status(), 200);
}

#[test]
fn path_that_programs_read_differently_passes_no_route() {
    let (a, b) = (Origin::start(), Origin::start());
    let edge = Edge::start(&two_pools(&a, &b));
    assert_eq!(edge.get("www.example.org", "/secret/x").status(), 403);
    assert_eq!(edge.get("www.example.org", "/%73ecret").status(), 403);
    for path in [
        "/x/../secret",
        "//secret",
        "/x/%2e%2e/secret",
        "/x%2f..%2fsecret",
        "/x/..;/secret",
        "/x\\..\\secret",
        "/./secret/x",
        "/secret/../200/60/5/x",
        "/x%5cy/..%2fsecret",
        "/x\\y%2f..%2fsecret",
    ] {
        assert_eq!(edge.get("www.example.org", path).status(), 400, "{path}");
    }
    assert_eq!((a.asked(), b.asked()), (0, 0));
    // All readings have the same route.
    for path in ["/200/60/5/a%2fb%5Cc\\d//e;f", "/200/60/5/a/.././d"] {
        assert_eq!(edge.get("www.example.org", path).status(), 200, "{path}");
    }
}

#[test]
fn host_with_a_dot_at_its_end_has_its_own_responses() {
    let a = Origin::start();
    let toml = format!("pool.a.servers = [\"{}\"]\n[[site]]\nroute = [{{ pool = \"a\" }}]", a.address);
    let edge = Edge::start(&toml);
    for host in ["www.example.org", "www.example.org.", "WWW.example.org.:80"] {
        assert_eq!(edge.get(host, "/200/60/5/x").status(), 200, "{host}");
    }
    // An origin may distinguish the two.
    assert_eq!(a.asked(), 2);
    assert!(a.heads.try_iter().any(|head| head.contains("Host: www.example.org.\r\n")));
    for host in ["www.example.org..", "..", ".", ".example.org"] {
        assert_eq!(edge.get(host, "/200/60/5/x").status(), 400, "{host}");
    }
}

#[test]
fn redirections_and_fixed_responses_need_no_server() {
    let (a, b) = (Origin::start(), Origin::start());
    let edge = Edge::start(&two_pools(&a, &b));
    let answer = edge.get("WWW.example.org:8080", "/old/x?y={uri}");
    let expected = "https://www.example.org/new/old/x?y={uri}";
    assert_eq!((answer.status(), answer.field("location")), (308, Some(expected)));
    let mut client = Client::to(edge.proxy.address());
    client.send("GET /robots.txt HTTP/1.1\r\nHost: www.example.org\r\n\r\n");
    let answer = client.answer().unwrap();
    assert_eq!((answer.status(), answer.text().as_str()), (200, "none\n"));
    assert_eq!(answer.field("cache-control"), Some("no-store"));
    assert_eq!(answer.field("content-type"), Some("text/plain; charset=utf-8"));
    // The connection carries on, also after HEAD.
    client.send("HEAD /robots.txt HTTP/1.1\r\nHost: www.example.org\r\n\r\n");
    assert_eq!(client.head().unwrap().field("content-length"), Some("5"));
    assert_eq!(
        {
            client.send("GET /secret HTTP/1.1\r\nHost: www.example.org\r\n\r\n");
            client.answer().unwrap().status()
        },
        403
    );
    // The body is not read, so the connection ends.
    client.send("POST /secret HTTP/1.1\r\nHost: www.example.org\r\nContent-Length: 3\r\n\r\n");
    assert!(client.answer().unwrap().status() == 403 && client.is_ended());
    assert_eq!((a.asked(), b.asked()), (0, 0));
}

#[test]
fn http_1_0_without_host_gets_the_site_for_all_hosts() {
    let (a, b) = (Origin::start(), Origin::start());
    let edge = Edge::start(&two_pools(&a, &b));
    let ask = |edge: &Edge| {
        let mut client = Client::to(edge.proxy.address());
        client.send("GET /200/60/5/x HTTP/1.0\r\n\r\n");
        client.answer().unwrap().status()
    };
    assert_eq!(ask(&edge), 400);
    let all = format!("pool.a.servers = [\"{}\"]\n[[site]]\nroute = [{{ pool = \"a\" }}]", a.address);
    assert_eq!((ask(&Edge::start(&all)), a.asked()), (200, 1));
    // The server's address is not told to others.
    for target in ["redirect = { location = \"https://{host}{uri}\" }", "files = \"/usr\""] {
        let edge = Edge::start(&all.replace("}]", &format!("}}, {{ path = \"/200\", {target} }}]")));
        assert_eq!(ask(&edge), 400, "{target}");
    }
    assert!(a.heads.try_iter().any(|head| head.contains(&format!("Host: {}\r\n", a.address))));
}

#[test]
fn reload_gives_a_path_to_another_pool_without_its_stored_responses() {
    let (a, b) = (Origin::start(), Origin::start());
    let toml = |path: &str| {
        format!(
            "pool.a.servers = [\"{}\"]\npool.b.servers = [\"{}\"]\n[[site]]\nroute = [{{ pool = \"a\" }}, {{ path = \"{path}\", pool = \"b\" }}]",
            a.address, b.address
        )
    };
    let mut edge = Edge::start(&toml("/other"));
    for _ in 0..2 {
        assert_eq!(edge.get("h", "/200/60/5/x").status(), 200);
    }
    assert_eq!((a.asked(), b.asked()), (1, 0));
    edge.reload(&toml("/200")).unwrap();
    assert!(wait_until(LIMIT, || edge.get("h", "/200/60/5/x").status() == 200 && b.asked() == 1));
    edge.get("h", "/200/60/5/x");
    assert_eq!((a.asked(), b.asked()), (1, 1));
    edge.reload(&toml("/other")).unwrap();
    // The response of the first pool is still there.
    assert!(wait_until(LIMIT, || edge
        .get("h", "/200/60/5/x")
        .field("cache-status")
        .unwrap()
        .contains("; hit")));
    assert_eq!((a.asked(), b.asked()), (1, 1));
}

#[test]
fn unsafe_method_and_purge_remove_the_response_of_the_pool() {
    let (a, b) = (Origin::start(), Origin::start());
    let toml = two_pools(&a, &b) + "[access]\npurge = [\"127.0.0.0/8\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    let edge = Edge::start(&toml);
    let send = |method: &str| {
        let mut client = Client::to(edge.proxy.address());
        client.send(format!(
            "{method} /200/60/7/x HTTP/1.1\r\nHost: www.example.org\r\nContent-Length: 0\r\n\r\n"
        ));
        client.answer().unwrap().status()
    };
    let is_hit = || {
        let answer = edge.get("www.example.org", "/200/60/7/x");
        answer.field("cache-status").unwrap().contains("; hit")
    };
    let purge = || {
        let mut client = Client::to(edge.proxy.admin().unwrap());
        client.send("POST /purge?uri=http://www.example.org/200/60/7/x HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client.answer().unwrap().json()["stored"] == 1
    };
    assert!(!is_hit() && is_hit());
    assert!(send("PUT") == 200 && !is_hit() && is_hit());
    assert!(send("PURGE") == 200 && send("PURGE") == 404 && !is_hit() && is_hit());
    assert!(purge() && !purge() && !is_hit());
}

/// Sends POST to the admin address.
pub(crate) fn post(edge: &Edge, path: &str) -> Answer {
    let mut client = Client::to(edge.proxy.admin().unwrap());
    client.send(format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    client.answer().unwrap()
}

#[test]
fn ban_finds_the_responses_of_pools() {
    let (a, b) = (Origin::start(), Origin::start());
    let edge = Edge::start(&(two_pools(&a, &b) + "[admin]\nlisten = \"127.0.0.1:0\"\n"));
    for (pattern, expected) in [
        ("*.css", 2),
        ("http://www.example.org/200/60/*.css", 2),
        ("http://www.example.org/200/60/5/x.css", 1),
        ("*.css%23b", 1),
        ("*%23c", 0),
        ("*", 2),
    ] {
        for number in [5, 7] {
            let path = format!("/200/60/{number}/x.css");
            assert_eq!(edge.get("www.example.org", &path).status(), 200);
        }
        let listed = || {
            let mut client = Client::to(edge.proxy.admin().unwrap());
            client.send(format!("GET /objects?pattern={pattern} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            client.answer().unwrap().json().as_array().unwrap().len()
        };
        // A client can have its response before that is stored.
        assert!(wait_until(LIMIT, || listed() == expected), "{pattern}: {}", listed());
        let removed = post(&edge, &format!("/ban?pattern={pattern}")).json();
        assert_eq!(removed["stored"], expected, "{pattern}");
    }
    assert_eq!((a.asked(), b.asked()), (4, 4));
}

#[test]
fn responses_of_pools_are_found_in_the_directory_of_a_stopped_proxy() {
    const URI: &str = "http://www.example.org/200/60/5/x";
    let (a, b) = (Origin::start(), Origin::start());
    let edge = Edge::start(&two_pools(&a, &b));
    for name in ["x", "xy", "z"] {
        assert_eq!(edge.get("www.example.org", &format!("/200/60/5/{name}")).status(), 200);
    }
    let Edge { proxy, dir } = edge;
    proxy.stop();
    let contents = Contents::open(&dir.path().join("cache")).unwrap();
    let found = |key: &str| contents.get(key, 0).into_iter().map(|entry| entry.uri).collect::<Vec<_>>();
    assert_eq!(found(URI), [format!("{URI}#a")]);
    assert_eq!(found(&format!("{URI}#a")), [format!("{URI}#a")]);
    assert!(found(&format!("{URI}#b")).is_empty() && found("http://www.example.org/200/60/5/").is_empty());
    let b_alone = contents.purge(&format!("{URI}#b"));
    assert_eq!((b_alone, contents.purge(URI), contents.purge(URI)), (0, 1, 0));
    assert_eq!(contents.ban(&Pattern::new("http://www.example.org/*/xy").unwrap()), 1);
    assert_eq!(contents.stats().records, 1);
    contents.close();
}

#[test]
fn response_that_was_removed_does_not_come_back_with_its_pool() {
    const PATH: &str = "/200/60/5/x";
    let (a, b) = (Origin::start(), Origin::start());
    let more = "access.purge = [\"127.0.0.0/8\"]\nadmin.listen = \"127.0.0.1:0\"\n";
    let of_pool = |name: &str, origin: &Origin| {
        let address = origin.address;
        format!("{more}pool.{name}.servers = [\"{address}\"]\n[[site]]\nroute = [{{ pool = \"{name}\" }}]")
    };
    let without_pool = |origin: &Origin| format!("{more}origin = \"http://{}\"", origin.address);
    for (before, after) in [
        (of_pool("a", &a), of_pool("b", &b)),
        (without_pool(&a), of_pool("b", &b)),
        (of_pool("a", &a), without_pool(&b)),
    ] {
        for method in ["PURGE", "DELETE", "/purge?uri=http://h/200/60/5/x"] {
            let mut edge = Edge::start(&before);
            let is_hit = |edge: &Edge| {
                let answer = edge.get("h", PATH);
                answer.field("cache-status").unwrap().contains("; hit")
            };
            assert!(!is_hit(&edge) && is_hit(&edge));
            let asked = b.asked();
            edge.reload(&after).unwrap();
            assert!(wait_until(LIMIT, || is_hit(&edge) && b.asked() > asked));
            if method.starts_with('/') {
                assert_eq!(post(&edge, method).json()["stored"], 2);
            } else {
                let mut client = Client::to(edge.proxy.address());
                client.send(format!("{method} {PATH} HTTP/1.1\r\nHost: h\r\n\r\n"));
                assert_eq!(client.answer().unwrap().status(), 200, "{method}");
            }
            edge.reload(&before).unwrap();
            let asked = a.asked();
            // A request before the reload holds may still be one of the other pool.
            assert!(wait_until(LIMIT, || edge.get("h", "/200/0/5/y").status() == 200 && a.asked() > asked));
            assert!(!is_hit(&edge), "{method} {before} {after}");
        }
    }
}

#[test]
fn reload_does_not_make_sites_a_forward_proxy() {
    let (a, b) = (Origin::start(), Origin::start());
    let mut edge = Edge::start(&two_pools(&a, &b));
    let whole = two_pools(&a, &b);
    let error = edge.reload("name = \"x\"").unwrap_err();
    assert!(error.starts_with("site: missing; ") && error.contains("forward proxy"), "{error}");
    // A file that was written up to some byte is refused, or keeps the sites that it has.
    for end in 0..whole.len() {
        let Ok(mut half) = Config::from_toml(&whole[..end]) else { continue };
        half.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        half.workers = 1;
        assert!(edge.proxy.reload(&half).is_err() || half.is_reverse(), "{end}");
    }
    let uri = format!("http://{}/200/60/5/x", a.address);
    assert_eq!(edge.get("x", &uri).status(), 404);
    assert_eq!(a.asked(), 0);
}

#[test]
fn wrong_sites_are_reported_together() {
    let toml = r#"
pool.a.servers = ["127.0.0.1:1", "127.0.0.1:1", "a", "http://a/b", "a:1 weight=0", "srv://a.example", "srv://_http._tcp.a weight=2", "LABEL:1", "a..b:1"]
pool.unused.servers = ["127.0.0.1:1"]
pool.empty.servers = []
[[site]]
hosts = ["www.example.org", "WWW.example.org.", "a b", "a:80", "*"]
[[site.route]]
pool = "aa"
[[site.route]]
path = "/x"
pool = "a"
[[site.route]]
path = "/x"
pool = "a"
[[site.route]]
path = "/x/../y"
pool = "a"
[[site.route]]
path = "x"
pool = "a"
[[site.route]]
pool = "a"
respond = {}
[[site.route]]
path = "/r"
redirect = { location = "/{uri}" }
[[site.route]]
path = "/f"
respond = { headers = { Content-Length = "1" } }
[[site]]
[[site]]
"#;
    let toml = &toml.replace("LABEL", &"x".repeat(64));
    let config = Config::from_toml(toml).unwrap();
    let error = Config::locate(toml, config.check().unwrap_err()).to_string();
    for expected in [
        "\"srv://a.example\": expected the name of SRV records, for example srv://_http._tcp.example.org",
        "\"srv://_http._tcp.a weight=2\": the SRV records have the weights; remove weight",
        ":1\": a label of the name is too long; the maximum is 63 bytes",
        "\"a..b:1\": expected HOST:PORT",
        "line 2: pool.a.servers: \"127.0.0.1:1\" occurs twice",
        "pool.a.servers: \"a\": it has no port",
        "pool.a.servers: \"http://a/b\": it has a path",
        "pool.a.servers: \"a:1 weight=0\": \"weight=0\": expected weight=1",
        "line 3: pool.unused.servers: no route uses this pool",
        "line 4: pool.empty.servers: 0 servers",
        "line 6: site[1].hosts: \"WWW.example.org.\" occurs twice",
        "site[1].hosts: \"a b\" is no host",
        "site[1].hosts: \"a:80\" is no host",
        "site[1].hosts: \"*\" is no host",
        "line 8: site[1].route[1].pool: there is no [pool.aa]",
        "line 13: site[1].route[3].path: \"/x\": the route never matches",
        "line 16: site[1].route[4].path: \"/x/../y\": the route never matches",
        "line 19: site[1].route[5].path: \"x\": a path begins with /",
        "line 21: site[1].route[6]: a route has one target",
        "line 26: site[1].route[7].redirect: location = \"/{uri}\": expected",
        "line 29: site[1].route[8].respond: headers: \"Content-Length\": the proxy writes",
        "line 30: site[2]: no route",
        "line 31: site[3]: two sites have no hosts",
    ] {
        assert!(error.lines().any(|line| line.contains(expected)), "{expected}:\n{error}");
    }
}

#[test]
fn wrong_origins_and_pools_are_reported() {
    for (toml, expected) in [
        ("origin = \"http://a\"\npool.a.servers = [\"a:1\"]", "origin: [[site]] and [pool.NAME]"),
        ("pool.a.servers = [\"a:1\"]", "pool: there is no [[site]]"),
        ("dns.servers = [\"dns.example\"]", "dns.servers: \"dns.example\" is no address"),
        ("dns.ttl_min = 90", "dns.ttl_min = 90: more than dns.ttl_max = 60"),
        ("origin = \"srv://a\"", "origin = \"srv://a\": expected the name of SRV records"),
    ] {
        let error = Config::from_toml(toml).unwrap().check().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn all_missing_files_are_reported_at_once() {
    let toml = "tls = { listen = [\"127.0.0.1:0\"], certificate = \"/nowhere/a.pem\", key = \"/nowhere/a.key\" }\n\
        [[site]]\nhosts = [\"a.example\"]\ncertificate = \"/nowhere/b.pem\"\nkey = \"/nowhere/b.key\"\n\
        route = [{ files = \"/nowhere/www\", auth = { users = \"/nowhere/users\" } }]\n";
    let error = Config::from_toml(toml).unwrap().checked().unwrap_err().to_string();
    for file in ["a.pem", "a.key", "b.pem", "b.key", "www", "users"] {
        let count = error.lines().filter(|line| line.contains(&format!("/nowhere/{file}\""))).count();
        assert_eq!(count, 1, "{file}: {error}");
    }
}

#[test]
fn redirection_with_another_status_is_refused_with_the_possible_ones() {
    for status in [200, 300, 304] {
        let toml = format!("[[site]]\nroute = [{{ redirect = {{ status = {status}, location = \"/a\" }} }}]");
        let error = Config::from_toml(&toml).unwrap().check().unwrap_err().to_string();
        assert!(error.contains("expected 301, 302, 303, 307 or 308") && !error.contains('\n'), "{error}");
    }
}
