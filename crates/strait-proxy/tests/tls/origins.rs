//! Origins with TLS.

use std::io::Write as _;
use std::net::TcpListener;
use std::sync::atomic::Ordering;

use lab::wait_until;

use crate::tls::origin::Origin;
use crate::tls::rig::{Authority, LIMIT, Rig, body, field};

/// Starts an origin with a certificate for its address, and a reverse proxy for it.
pub(crate) fn both() -> (Origin, Rig) {
    let authority = Authority::new();
    authority.sign("origin", "127.0.0.1", 2999);
    let origin = Origin::tls(authority.server("origin"));
    let rig = Rig::for_origin(authority, &origin.url);
    (origin, rig)
}

#[test]
fn one_connection_carries_request_after_request() {
    let (origin, rig) = both();
    let mut client = rig.tls();
    for len in [11, 300_000, 12] {
        assert!(client.get(&format!("/passed?{len}")).body == body(len));
    }
    assert_eq!((origin.requests(), origin.seen.connections.load(Ordering::SeqCst)), (3, 1));
}

#[test]
fn a_new_connection_resumes_the_session_of_another() {
    let (origin, rig) = both();
    for _ in 0..2 {
        assert_eq!(rig.plain().get("/to-close").body, body(11));
        rig.plain().get("/to-close?100000");
    }
    assert_eq!(origin.seen.connections.load(Ordering::SeqCst), 2);
    // With kTLS the tickets arrive after the kernel has taken over, so no session is resumed.
    let is_copied = rig.proxy.notes().iter().any(|note| note.contains("kTLS"));
    assert_eq!(origin.seen.resumed.load(Ordering::SeqCst), usize::from(is_copied));
}

/// Starts a proxy with an access log.
fn logged(authority: Authority, url: &str) -> Rig {
    let log = authority.file("log").display().to_string();
    let config = format!("origin = \"{url}\"\nlog.access = \"{log}\"\nlog.format = \"json\"");
    Rig::with(authority, &config)
}

/// Returns the log of the only request.
fn log_of(rig: &Rig) -> String {
    log_lines(rig)
}

/// Returns the log of a request to an origin with a certificate for `subject`, valid until
/// `last_year`, signed by a known authority or by another one.
fn log_of_certificate(subject: &str, last_year: i32, is_known: bool) -> String {
    let authority = Authority::new();
    let signer = if is_known { None } else { Some(Authority::new()) };
    let signer = signer.as_ref().unwrap_or(&authority);
    signer.sign("origin", subject, last_year);
    let origin = Origin::tls(signer.server("origin"));
    let rig = logged(authority, &origin.url);
    let response = rig.plain().get("/kept");
    assert!(response.head.starts_with("HTTP/1.1 502 "), "{}", response.head);
    assert_eq!(origin.requests(), 0);
    log_of(&rig)
}

#[test]
fn origin_with_an_invalid_certificate_gets_no_request() {
    for (log, expected) in [
        (log_of_certificate("other.example", 2999, true), "not valid for name"),
        (log_of_certificate("127.0.0.1", 2002, true), "expired"),
        (log_of_certificate("127.0.0.1", 2999, false), "UnknownIssuer"),
    ] {
        assert!(log.contains("TLS with 127.0.0.1: ") && log.contains(expected), "{log}");
    }
}

#[test]
fn origin_without_tls_is_reported_in_the_log() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let rig = logged(Authority::new(), &url);
    let mut client = rig.plain();
    client.ask("GET /kept");
    let (mut tcp, _) = listener.accept().unwrap();
    tcp.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
    let response = client.response().unwrap();
    assert!(response.head.starts_with("HTTP/1.1 502 "), "{}", response.head);
    assert!(log_of(&rig).contains("TLS with 127.0.0.1: "));
}

#[test]
fn body_without_close_notify_is_incomplete() {
    let (origin, rig) = both();
    for len in [1000, 300_000] {
        let path = format!("/to-close?{len}");
        assert_eq!(rig.tls().get(&path).body, body(len));
        let again = rig.plain().get(&path);
        assert!(again.body == body(len) && field(&again.head, "Cache-Status").unwrap().contains("hit"));
    }
    assert_eq!(origin.requests(), 2);
    for len in [1000, 300_000] {
        for client in [&mut rig.tls(), &mut rig.plain()] {
            client.ask(&format!("GET /cut?{len}"));
            client.response().unwrap_err();
        }
    }
    assert_eq!(origin.requests(), 6, "incomplete bodies are not stored");
}

#[test]
fn http_1_0_client_notices_a_truncated_body() {
    let (_origin, rig) = both();
    for (path, is_whole) in [("/to-close?300000", true), ("/cut?300000", false)] {
        let mut client = rig.tls();
        write!(client.stream, "GET {path} HTTP/1.0\r\nHost: a\r\n\r\n").unwrap();
        client.stream.flush().unwrap();
        let response = client.response();
        assert_eq!(response.is_ok_and(|response| response.body == body(300_000)), is_whole);
    }
}

#[test]
fn origin_that_does_not_choose_http2_gets_http_1_unless_http2_is_required() {
    for (http2, expected) in [("auto", "HTTP/1.1 200 "), ("on", "HTTP/1.1 502 ")] {
        let authority = Authority::new();
        authority.sign("origin", "127.0.0.1", 2999);
        let origin = Origin::tls(authority.server("origin"));
        let log = authority.file("log").display().to_string();
        let config = format!(
            "log.access = \"{log}\"\nlog.format = \"json\"\npool.a.servers = [\"{}\"]\npool.a.http2 = \"{http2}\"\nsite = [{{ route = [{{ pool = \"a\" }}] }}]",
            origin.url
        );
        let rig = Rig::with(authority, &config);
        let mut client = rig.plain();
        for number in 0..3 {
            let response = client.get(&format!("/passed?{number}"));
            assert!(response.head.starts_with(expected), "{http2}: {}", response.head);
        }
        if http2 == "on" {
            assert!(log_lines(&rig).contains("has not chosen it in the TLS handshake"));
        } else {
            assert_eq!((origin.requests(), origin.seen.connections.load(Ordering::SeqCst)), (3, 1));
        }
    }
}

fn log_lines(rig: &Rig) -> String {
    let lines = || std::fs::read_to_string(rig.authority.file("log")).unwrap_or_default();
    assert!(wait_until(LIMIT, || lines().ends_with('\n')));
    lines()
}
