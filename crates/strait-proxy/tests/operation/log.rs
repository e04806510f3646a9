//! The access log.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use lab::wait_until;
use strait_proxy::{Clock, Config, Proxy};

use crate::rig::{Client, LIMIT, Rig};

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn each_request_is_a_line_with_cache_result_and_copied_bytes() {
    let rig = Rig::start("log.access = \"$DIR/log\"\nlog.format = \"json\"");
    let mut client = rig.client();
    for path in ["/200/60/100000/a", "/200/60/100000/a", "/200/0/10/b"] {
        assert_eq!(client.get(path).status(), 200);
        rig.wait_stored(1);
    }
    client.send("BAD\r\n\r\n");
    assert_eq!(client.answer().unwrap().status(), 400);
    let path = rig.dir.path().join("log");
    assert!(wait_until(LIMIT, || lines(&path).len() == 4), "{:?}", lines(&path));
    let lines: Vec<serde_json::Value> =
        lines(&path).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name| lines.iter().map(|line| line[name].to_string()).collect::<Vec<_>>();
    assert_eq!(of("cache"), ["\"miss\"", "\"hit\"", "\"pass\"", "\"own\""]);
    assert_eq!(of("status"), ["200", "200", "200", "400"]);
    assert_eq!(lines[1]["mechanism"], "sendfile");
    assert_eq!(lines[1]["sendfile"], 100_000);
    assert!(lines[1]["copied"].as_u64().unwrap() < 1000, "the head alone: {}", lines[1]);
    assert_eq!(lines[1]["target"], "/200/60/100000/a");
    assert_eq!(lines[0]["origin"], rig.origin.address.to_string());
    assert!(lines[1].get("origin").is_none() && lines[3].get("target").is_none());
}

/// A hit has a span too, although the origin does not learn of it.
#[test]
fn the_log_has_the_trace_that_the_origin_got() {
    let rig = Rig::start(
        "log.access = \"$DIR/log\"\nlog.format = \"json\"\ntrace.context = \"join\"\ntrace.request_id = \"X-Id\"",
    );
    let mut client = rig.client();
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    for _ in 0..2 {
        client.send(format!(
            "GET /200/60/9/a HTTP/1.1\r\nHost: a\r\ntraceparent: 00-{trace}-{parent}-01\r\n\r\n"
        ));
        assert_eq!(client.answer().unwrap().status(), 200);
        rig.wait_stored(1);
    }
    client.get("/200/0/9/b");
    let path = rig.dir.path().join("log");
    assert!(wait_until(LIMIT, || lines(&path).len() == 3), "{:?}", lines(&path));
    let lines: Vec<serde_json::Value> =
        lines(&path).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["cache"], &lines[1]["cache"]), (&"miss".into(), &"hit".into()));
    for line in &lines[..2] {
        assert_eq!((&line["trace"], &line["parent"]), (&trace.into(), &parent.into()), "{line}");
        assert_eq!(line["sampled"], true);
    }
    assert_ne!(lines[0]["span"], lines[1]["span"]);
    assert!(lines[2].get("parent").is_none() && lines[2]["sampled"] == false, "{}", lines[2]);
    assert_ne!(lines[2]["trace"], trace);
}

#[test]
fn a_sample_of_nothing_has_the_errors() {
    let rig = Rig::start("log.access = \"$DIR/log\"\nlog.sample = 0");
    let mut client = rig.client();
    for path in ["/200/60/9/a", "/404/0/9/b", "/200/60/9/c"] {
        client.get(path);
    }
    drop(client);
    rig.proxy.stop();
    let lines = lines(&rig.dir.path().join("log"));
    assert!(lines.len() == 1 && lines[0].contains("/404/0/9/b"), "{lines:?}");
}

#[test]
fn connect_error_is_in_the_log_and_not_in_the_response() {
    let rig = Rig::start("log.access = \"$DIR/log\"\nlog.format = \"json\"");
    let (path, mut config) = (rig.dir.path().join("log"), rig.config("log.format = \"json\""));
    config.log.access = Some(path.clone());
    config.cache.dir = None;
    // No server listens on this port.
    config.origin = Some("http://127.0.0.1:1".to_owned());
    let proxy = Proxy::start(&config, Clock::system()).unwrap();
    let answer = Client::to(proxy.address()).get("/a");
    assert_eq!((answer.status(), answer.text().contains("127.0.0.1")), (502, false));
    assert!(wait_until(LIMIT, || lines(&path).len() == 1));
    let line: serde_json::Value = serde_json::from_str(&lines(&path)[0]).unwrap();
    assert!(line["why"].as_str().unwrap().starts_with("connect to 127.0.0.1:1: "), "{line}");
}

#[test]
fn states_of_the_servers_of_a_pool_are_in_the_log_and_not_in_the_response() {
    let rig = Rig::start("log.access = \"$DIR/log\"\nlog.format = \"json\"");
    let path = rig.dir.path().join("pool.log");
    // No server listens on these ports.
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\nadmin.listen = \"127.0.0.1:0\"\nlog.access = \"{}\"\nlog.format = \"json\"\n\
         pool.p.servers = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n[[site]]\nroute = [{{ pool = \"p\" }}]\n",
        path.display()
    );
    let proxy = Proxy::start(&Config::from_toml(&config).unwrap(), Clock::system()).unwrap();
    let ask = |expected: usize| {
        let answer = Client::to(proxy.address()).get("/a");
        assert_eq!(
            (answer.status(), answer.text().as_str()),
            (503, "strait: no server of the pool can be reached\n")
        );
        assert!(wait_until(LIMIT, || lines(&path).len() == expected));
        let line: serde_json::Value = serde_json::from_str(&lines(&path)[expected - 1]).unwrap();
        line["why"].as_str().unwrap().to_owned()
    };
    let why = ask(1);
    assert!(why.starts_with("no server of the pool can be reached: connect to 127.0.0.1:"), "{why}");
    assert!(why.ends_with("; 127.0.0.1:1 failed now, 127.0.0.1:2 failed now"), "{why}");
    for server in ["127.0.0.1:1", "127.0.0.1:2"] {
        let mut admin = Client::to(proxy.admin().unwrap());
        admin.send(format!(
            "POST /drain?server={server} HTTP/1.1\r\nHost: {}\r\n\r\n",
            proxy.admin().unwrap()
        ));
        assert_eq!(admin.answer().unwrap().status(), 200);
    }
    assert_eq!(ask(2), "no server of the pool can be reached: 127.0.0.1:1 drained, 127.0.0.1:2 drained");
}

#[test]
fn clients_cannot_inject_log_lines() {
    let rig = Rig::start("log.access = \"$DIR/log\"\nlog.format = \"combined\"");
    rig.client().send("GET /200/60/1/a HTTP/1.1\r\nHost: a\r\nUser-Agent: \"\\ \x7f\u{e9}\tx\r\n\r\n");
    let path = rig.dir.path().join("log");
    assert!(wait_until(LIMIT, || lines(&path).len() == 1));
    let line = &lines(&path)[0];
    assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
    assert!(line.contains("\"GET /200/60/1/a HTTP/1.1\" ") || line.contains("\"-\" 400"), "{line}");
    assert!(line.is_ascii() && !line.contains('\t'), "{line}");
}

#[test]
fn reopened_log_writes_to_the_new_file() {
    let rig = Rig::start("log.access = \"$DIR/log\"\nlog.format = \"squid\"");
    let (path, old) = (rig.dir.path().join("log"), rig.dir.path().join("old"));
    rig.client().get("/200/60/1/a");
    assert!(wait_until(LIMIT, || lines(&path).len() == 1));
    std::fs::rename(&path, &old).unwrap();
    rig.proxy.reopen_log().unwrap();
    assert!(wait_until(LIMIT, || path.exists()));
    rig.client().get("/200/60/1/a");
    assert!(wait_until(LIMIT, || lines(&path).len() == 1));
    assert!(lines(&old)[0].contains(" TCP_MISS/200 ") && lines(&path)[0].contains(" TCP_HIT/200 "));
}

#[test]
fn requests_before_shutdown_are_in_the_log() {
    let rig = Rig::start("log.access = \"$DIR/log\"");
    let mut client = rig.client();
    for number in 0..50 {
        client.get(&format!("/200/0/1/{number}"));
    }
    drop(client);
    rig.proxy.stop();
    assert_eq!(lines(&rig.dir.path().join("log")).len(), 50);
}

#[test]
fn log_that_cannot_be_opened_is_an_error() {
    let config = "log.access = \"/nonexistent/log\"\nlisten = [\"127.0.0.1:0\"]";
    let config = strait_proxy::Config::from_toml(config).unwrap();
    let error = strait_proxy::Proxy::start(&config, strait_proxy::Clock::system()).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/log"), "{error}");
}

/// Starts an origin that sends these bytes in response to each request, and closes.
fn origin_that_sends(response: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let mut lines = BufReader::new(&stream).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let _ = (&stream).write_all(response.as_bytes());
        }
    });
    format!("http://{address}")
}

/// Starts an origin that answers each request in two chunks, 10 bytes of data in all.
fn chunked_origin() -> String {
    origin_that_sends(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\nCache-Control: no-store\r\n\r\n\
         4\r\nabcd\r\n6\r\n012345\r\n0\r\n\r\n",
    )
}

/// Returns the status and the size in a line of the common format.
fn status_and_size(line: &str) -> (String, String) {
    let mut words = line.rsplit_once('"').unwrap().1.split_whitespace();
    (words.next().unwrap().to_owned(), words.next().unwrap().to_owned())
}

#[test]
fn the_common_log_has_the_size_of_the_body_alone() {
    let rig = Rig::start("log.access = \"$DIR/log\"\nlog.format = \"common\"");
    let path = rig.dir.path().join("log");
    let mut expected = Vec::new();
    for (request, status, size) in [
        ("GET /200/60/100000/a HTTP/1.1", "200", "100000"),
        // From the store by sendfile, and a small one from memory.
        ("GET /200/60/100000/a HTTP/1.1", "200", "100000"),
        ("GET /200/60/77/s HTTP/1.1", "200", "77"),
        ("GET /200/60/77/s HTTP/1.1", "200", "77"),
        ("GET /200/60/77/s HTTP/1.1", "200", "77"),
        ("GET /200/0/33/p HTTP/1.1", "200", "33"),
        ("GET /200/0/0/p HTTP/1.1", "200", "-"),
        ("GET /200/60/77/s HTTP/1.1\r\nRange: bytes=0-9", "206", "10"),
        ("GET /200/60/77/s HTTP/1.1\r\nRange: bytes=99-", "416", "-"),
        ("HEAD /200/60/77/s HTTP/1.1", "200", "-"),
    ] {
        let mut client = rig.client();
        client.send(format!("{request}\r\nHost: www.example\r\nConnection: close\r\n\r\n"));
        let _ = client.answer();
        expected.push((status.to_owned(), size.to_owned()));
        let count = expected.len();
        assert!(wait_until(LIMIT, || lines(&path).len() == count), "{request}: {:?}", lines(&path));
    }
    let logged: Vec<_> = lines(&path).iter().map(|line| status_and_size(line)).collect();
    assert_eq!(logged, expected);
}

#[test]
fn size_in_the_log_excludes_chunk_framing_and_includes_error_text() {
    let rig = Rig::start("");
    let path = rig.dir.path().join("log");
    let mut config = rig.config("log.format = \"json\"");
    (config.log.access, config.cache.dir) = (Some(path.clone()), None);
    config.origin = Some(chunked_origin());
    let proxy = Proxy::start(&config, Clock::system()).unwrap();
    let whole = |request: &str| {
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer.len() as u64
    };
    let sent = [
        whole("GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
        whole("GET /a HTTP/1.0\r\nHost: a\r\n\r\n"),
        whole("BAD\r\n\r\n"),
    ];
    assert!(wait_until(LIMIT, || lines(&path).len() == 3), "{:?}", lines(&path));
    let logged: Vec<serde_json::Value> =
        lines(&path).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (line, sent) in logged.iter().zip(sent) {
        assert_eq!(line["sent_bytes"], sent, "{line}");
    }
    assert_eq!((&logged[0]["body_bytes"], &logged[1]["body_bytes"]), (&10.into(), &10.into()));
    let own = format!("strait: {}\n", logged[2]["why"].as_str().unwrap());
    assert_eq!(logged[2]["body_bytes"], own.len());
}

/// Starts an origin that ends each response before its announced length.
fn origin_that_cuts() -> String {
    origin_that_sends("HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: 10\r\n\r\nabc")
}

#[test]
fn combined_lines_end_with_the_reason() {
    let rig = Rig::start("");
    let ask = |origin: String, name: &str| {
        let path = rig.dir.path().join(name);
        let mut config = rig.config("log.format = \"combined\"");
        (config.log.access, config.cache.dir) = (Some(path.clone()), None);
        config.origin = Some(origin);
        let proxy = Proxy::start(&config, Clock::system()).unwrap();
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"GET /200/0/5/a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        // A response that is cut ends with a reset.
        let _ = stream.read_to_end(&mut Vec::new());
        assert!(wait_until(LIMIT, || lines(&path).len() == 1));
        lines(&path)[0].clone()
    };
    let failed = ask("http://127.0.0.1:1".to_owned(), "failed");
    assert!(failed.contains("\" 502 ") && failed.contains(" \"connect to 127.0.0.1:1: "), "{failed}");
    let cut = ask(origin_that_cuts(), "cut");
    assert!(cut.contains("\" 200 3 ") && cut.ends_with(" \"incomplete\""), "{cut}");
    let whole = ask(format!("http://{}", rig.origin.address), "whole");
    assert!(whole.contains("\" 200 5 ") && whole.ends_with(" \"-\""), "{whole}");
}
