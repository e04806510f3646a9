//! The access log.

use std::path::Path;

use lab::wait_until;
use strait_proxy::{Clock, Proxy};

use crate::rig::{Client, LIMIT, Rig};

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn each_request_is_a_line_that_tells_of_the_cache_and_of_copies() {
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

#[test]
fn why_an_origin_cannot_be_reached_is_told_in_the_log_alone() {
    let rig = Rig::start("log.access = \"$DIR/log\"\nlog.format = \"json\"");
    let (path, mut config) = (rig.dir.path().join("log"), rig.config("log.format = \"json\""));
    config.log.access = Some(path.clone());
    config.cache.dir = None;
    // Nobody listens there.
    config.origin = Some("http://127.0.0.1:1".to_owned());
    let proxy = Proxy::start(&config, Clock::system()).unwrap();
    let answer = Client::to(proxy.address()).get("/a");
    assert_eq!((answer.status(), answer.text().contains("127.0.0.1")), (502, false));
    assert!(wait_until(LIMIT, || lines(&path).len() == 1));
    let line: serde_json::Value = serde_json::from_str(&lines(&path)[0]).unwrap();
    assert!(line["why"].as_str().unwrap().starts_with("connect to 127.0.0.1:1: "), "{line}");
}

#[test]
fn nobody_writes_a_line_of_their_own() {
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
fn lines_go_to_the_new_file_once_the_old_one_was_renamed() {
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
fn what_was_asked_before_the_end_is_in_the_log() {
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
fn a_log_that_cannot_be_opened_is_told() {
    let config = "log.access = \"/nonexistent/log\"\nlisten = [\"127.0.0.1:0\"]";
    let config = strait_proxy::Config::from_toml(config).unwrap();
    let error = strait_proxy::Proxy::start(&config, strait_proxy::Clock::system()).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/log"), "{error}");
}
