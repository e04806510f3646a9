//! `--metrics` of `strait capture` and `strait relay`: a plain HTTP client gets the counters of the
//! running command, which agree with the final account.

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use lab::{Launch, Wire, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Capture, LIMIT, STRAIT, count, ledger, numbered, send};

const FRAMES: u64 = 3000;

/// Sends a request, and returns the response's head and body.
fn request(address: SocketAddr, head: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Gets the metrics.
pub(crate) fn scrape(address: SocketAddr) -> String {
    let (head, body) = request(address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    body
}

/// Returns the sum of the samples of `name` that contain `label`.
pub(crate) fn sum(text: &str, name: &str, label: &str) -> u64 {
    let is_of = |line: &&str| line.split(['{', ' ']).next() == Some(name) && line.contains(label);
    let values = text.lines().filter(is_of).map(|line| line.rsplit(' ').next().unwrap());
    values.map(|value| value.parse::<u64>().unwrap()).sum()
}

/// Returns the address that a command has reported.
pub(crate) fn address(stderr: &str) -> Option<SocketAddr> {
    let (_, rest) = stderr.split_once("strait: metrics on http://")?;
    rest.split_once("/metrics\n")?.0.parse().ok()
}

#[test]
fn metrics_of_a_live_capture_agree_with_its_ledger() {
    for path in ["v3", "xdp"] {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let arguments = ["-p", path, "-Q", "in", "--metrics", "0", "--json", "-w", "/dev/null"];
        let capture = Capture::start(wire.right(), &arguments);
        assert!(wait_until(LIMIT, || address(&capture.stderr()).is_some()));
        let address = address(&capture.stderr()).unwrap();
        assert!(address.ip().is_loopback());
        send(&wire, &numbered(FRAMES));
        let text = RefCell::new(String::new());
        let has_all = || {
            *text.borrow_mut() = wire.right().run(|| scrape(address));
            sum(&text.borrow(), "strait_capture_delivered_total", "") >= FRAMES
        };
        assert!(wait_until(LIMIT, has_all), "{}", text.borrow());
        let head = wire.right().run(|| request(address, "POST /metrics HTTP/1.1\r\n\r\n").0);
        assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
        let ledger = ledger(&capture.finish());
        let text = text.into_inner();
        for name in ["received", "delivered", "filtered", "bytes", "wire_bytes", "copied_bytes"] {
            let counted = sum(&text, &format!("strait_capture_{name}_total"), "");
            assert_eq!(counted, count(&ledger, name), "{path} {name}: {text}");
        }
        let labels = format!("interface=\"right\",path=\"{}\"", ledger["path"].as_str().unwrap());
        assert!(text.contains(&labels), "{labels}: {text}");
    }
}

#[test]
fn metrics_of_a_relay_agree_with_its_account() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap().to_string();
    let launch = Launch::new(STRAIT).args(["relay", "--json", "--listen", "127.0.0.1:0", "--to", &to]);
    let relay = launch.args(["--metrics", ":0", "--workers", "2"]).spawn().unwrap();
    assert!(wait_until(LIMIT, || address(&relay.stderr()).is_some()), "{}", relay.stderr());
    let metrics = address(&relay.stderr()).unwrap();
    let listening: SocketAddr = relay.stderr().split_whitespace().nth(1).unwrap().parse().unwrap();
    let mut client = TcpStream::connect(listening).unwrap();
    client.write_all(&[7; 10_000]).unwrap();
    let (mut peer, _) = server.accept().unwrap();
    peer.read_exact(&mut [0; 10_000]).unwrap();
    // The bytes of open connections are included.
    let bytes = |text: &str| sum(text, "strait_relay_bytes_total", "");
    let is_open = || {
        let text = scrape(metrics);
        bytes(&text) == 10_000 && sum(&text, "strait_relay_connections", "") == 1
    };
    assert!(wait_until(LIMIT, is_open), "{}", scrape(metrics));
    drop((client, peer));
    let is_closed = || sum(&scrape(metrics), "strait_relay_connections", "") == 0;
    assert!(wait_until(LIMIT, is_closed), "{}", scrape(metrics));
    let text = scrape(metrics);
    relay.signal(Signal::TERM);
    let finished = relay.wait(LIMIT).unwrap().success();
    let account: Value = serde_json::from_str(finished.text().lines().next_back().unwrap()).unwrap();
    for name in ["connections", "failed", "full"] {
        assert_eq!(sum(&text, &format!("strait_relay_{name}_total"), ""), count(&account, name), "{text}");
    }
    assert_eq!(bytes(&text), count(&account, "spliced") + count(&account, "copied"), "{text}");
}

#[test]
fn large_request_is_refused() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap().to_string();
    let launch = Launch::new(STRAIT).args(["relay", "--listen", "127.0.0.1:0", "--to", &to]);
    let relay = launch.args(["--metrics", "127.0.0.1:0"]).spawn().unwrap();
    assert!(wait_until(LIMIT, || address(&relay.stderr()).is_some()), "{}", relay.stderr());
    let address = address(&relay.stderr()).unwrap();
    let (head, _) = request(address, &format!("GET /metrics HTTP/1.1\r\nA: {}", "a".repeat(8 << 10)));
    assert!(head.starts_with("HTTP/1.1 431 "), "{head}");
    assert!(request(address, "GET / HTTP/1.0\r\n\r\n").0.starts_with("HTTP/1.1 404 "));
    relay.signal(Signal::TERM);
    let _ = relay.wait(LIMIT).unwrap().success();
}
