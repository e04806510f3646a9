//! Permission by another server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use strait_proxy::{Clock, Config, Proxy};

use crate::rig::{Answer, Client};

/// Starts a server that sends the response of `answer` to each head of a request, and returns the
/// heads with their bodies.
fn start(answer: fn(&str) -> String) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, heads) = channel();
    // The thread ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut reader = BufReader::new(&stream);
                loop {
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        if reader.read_line(&mut head).unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
                    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
                    reader.read_exact(&mut body).unwrap();
                    let answer = answer(&head);
                    let _ = sender.send(head + &String::from_utf8(body).unwrap());
                    if (&stream).write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, heads)
}

fn permission(head: &str) -> String {
    let (status, lines) = if head.contains("Cookie: user=a\r\n") {
        (200, "")
    } else if head.contains("Cookie: user=b\r\n") {
        (403, "")
    } else if head.contains("Cookie: odd\r\n") {
        (302, "Location: /login\r\n")
    } else {
        (401, "WWW-Authenticate: Own\r\n")
    };
    format!("HTTP/1.1 {status} Said\r\nContent-Length: 4\r\n{lines}\r\nasks")
}

fn page(_: &str) -> String {
    "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nCache-Control: max-age=600\r\n\r\npage".to_owned()
}

struct Rig {
    proxy: Proxy,
    asked: Receiver<String>,
    got: Receiver<String>,
}

impl Rig {
    fn start(route: &str) -> Self {
        let ((auth, asked), (app, got)) = (start(permission), start(page));
        let toml = format!(
            "workers = 1\nlisten = [\"127.0.0.1:0\"]\n[pool.app]\nservers = [\"{app}\"]\n[pool.auth]\nservers = [\"{auth}\"]\n[[site]]\n[[site.route]]\npool = \"app\"\nauth_request = {{ pool = \"auth\", path = \"/check?x\" }}\n{route}\n"
        );
        let config = Config::from_toml(&toml).unwrap();
        Self { proxy: Proxy::start(&config, Clock::system()).unwrap(), asked, got }
    }

    /// Sends a request with further field lines, each with a line feed before it.
    fn ask(&self, line: &str, lines: &str) -> Answer {
        let mut client = Client::to(self.proxy.address());
        client.send(format!("{line} HTTP/1.1\nHost: www.example{lines}\n\n").replace('\n', "\r\n"));
        client.answer().unwrap()
    }

    fn counts(&self) -> (usize, usize) {
        (self.asked.try_iter().count(), self.got.try_iter().count())
    }
}

#[test]
fn each_request_is_asked_for_also_if_its_response_is_stored() {
    let rig = Rig::start("");
    for count in [(1, 1), (1, 0)] {
        let answer = rig.ask("GET /page", "\nCookie: user=a");
        assert_eq!((answer.status(), answer.text().as_str(), rig.counts()), (200, "page", count));
    }
    for (lines, status) in [("\nCookie: user=b", 403), ("", 401), ("\nCookie: odd", 502)] {
        for line in ["GET /page", "PURGE /page", "OPTIONS /page"] {
            let answer = rig.ask(line, lines);
            assert_eq!((answer.status(), rig.counts()), (status, (1, 0)), "{line} {lines}");
            assert_eq!(answer.field("www-authenticate"), (status == 401).then_some("Own"));
            assert_eq!(answer.text() == "asks", status != 502);
        }
    }
    // The connection carries further requests.
    let mut client = Client::to(rig.proxy.address());
    client.send("HEAD /page HTTP/1.1\r\nHost: www.example\r\n\r\n");
    let head = client.head().unwrap();
    let fields = ["content-length", "www-authenticate"].map(|name| head.field(name));
    assert_eq!((head.status(), fields), (401, [Some("4"), Some("Own")]));
    client.send("GET /page HTTP/1.1\r\nHost: www.example\r\nCookie: user=a\r\n\r\n");
    assert_eq!(client.answer().unwrap().text(), "page");
    assert_eq!(rig.counts(), (2, 0));
}

#[test]
fn request_that_asks_has_the_fields_of_the_client_without_its_body() {
    let rig = Rig::start("request_headers = { remove = [\"Cookie\"] }");
    let fields = "\nConnection: X-Original-URI, X-Own\nCookie: user=a\nX-Own: 1\nRange: bytes=0-1\nIf-None-Match: *\nContent-Type: a/b\nX-Original-URI: /evil\nX_Original_Method: EVIL\nContent-Length: 3\n\nabc";
    assert_eq!(rig.ask("POST /a/b?c=d", fields).status(), 200);
    let (asked, got) = (rig.asked.try_recv().unwrap(), rig.got.try_recv().unwrap());
    assert!(asked.starts_with("GET /check?x HTTP/1.1\r\nHost: www.example\r\n"), "{asked}");
    for line in ["Cookie: user=a", "X-Original-Method: POST", "X-Original-URI: /a/b?c=d"] {
        assert_eq!(asked.matches(&format!("\r\n{line}\r\n")).count(), 1, "{line}: {asked}");
    }
    for name in ["Range", "If-None-Match", "Content-", "evil", "EVIL", "abc", "X-Own"] {
        assert!(!asked.contains(name), "{name}: {asked}");
    }
    assert!(got.starts_with("POST /a/b?c=d ") && got.contains("abc") && !got.contains("Cookie"), "{got}");
    // Fields that Connection names reach neither server.
    assert!(!got.contains("X-Own"), "{got}");
}

#[test]
fn path_that_is_asked_for_is_that_of_the_origin() {
    let rig = Rig::start("");
    for (target, path) in
        [("http://www.example?x=1", "/?x=1"), ("http://www.example", "/"), ("http://www.example/a?b", "/a?b")]
    {
        assert_eq!(rig.ask(&format!("GET {target}"), "\nCookie: user=a").status(), 200);
        let (asked, got) = (rig.asked.try_recv().unwrap(), rig.got.try_recv().unwrap());
        assert!(asked.contains(&format!("\r\nX-Original-URI: {path}\r\n")), "{asked}");
        assert!(got.starts_with(&format!("GET {path} HTTP")), "{got}");
    }
}

#[test]
fn refusal_of_a_request_with_an_unread_body_closes_the_connection() {
    let rig = Rig::start("");
    let mut client = Client::to(rig.proxy.address());
    client.send("POST /x HTTP/1.1\r\nHost: www.example\r\nContent-Length: 40000\r\n\r\n");
    let answer = client.answer().unwrap();
    assert_eq!((answer.status(), answer.field("connection")), (401, Some("close")), "{}", answer.head);
}

#[test]
fn failed_server_allows_nothing() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (app, got) = start(page);
    let toml = format!(
        "workers = 1\nlisten = [\"127.0.0.1:0\"]\n[pool.app]\nservers = [\"{app}\"]\n[pool.auth]\nservers = [\"{gone}\"]\n[[site]]\n[[site.route]]\npool = \"app\"\nauth_request = {{ pool = \"auth\", path = \"/\" }}\n"
    );
    let proxy = Proxy::start(&Config::from_toml(&toml).unwrap(), Clock::system()).unwrap();
    let mut client = Client::to(proxy.address());
    assert_eq!((client.get("/page").status(), got.try_iter().count()), (503, 0));
}

#[test]
fn wrong_auth_request_is_named() {
    for (route, expected) in [
        (
            "pool = \"p\"\nauth_request = { pool = \"q\", path = \"/\" }",
            "auth_request.pool: there is no [pool.q]",
        ),
        ("pool = \"p\"\nauth_request = { pool = \"p\", path = \"x\" }", "auth_request.path: expected a path"),
        (
            "pool = \"p\"\nauth_request = { pool = \"p\", path = \"/a b\" }",
            "auth_request.path: expected a path",
        ),
        (
            "respond = {}\nauth_request = { pool = \"p\", path = \"/\" }",
            "only requests of a route with a pool",
        ),
        ("pool = \"p\"\nauth_request = { pol = \"p\" }", "unknown key (did you mean pool?)"),
    ] {
        let toml = format!("pool.p.servers = [\"127.0.0.1:1\"]\n[[site]]\n[[site.route]]\n{route}");
        let error = Config::from_toml(&toml).and_then(|config| config.check()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn client_without_permission_learns_no_limit_of_a_body() {
    let rig = Rig::start("request_body = 1");
    let post = |user: &str| rig.ask("POST /x", &format!("\nCookie: user={user}\nContent-Length: 2")).status();
    assert_eq!([post("b"), post("a")], [403, 413]);
    assert_eq!(rig.counts(), (2, 0));
}
