//! Bodies over TLS: complete, in both directions, for fast and slow clients.

use std::io::{Read as _, Write as _};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::tls::origin::Origin;
use crate::tls::origins::both;
use crate::tls::rig::{Authority, Client, LIMIT, Rig, body, field};

const LARGE: usize = 20 << 20;

/// Runs a test for every pair of a client and an origin with TLS on at least one side.
fn each(test: impl Fn(&Origin, &Rig, &mut Client)) {
    let (origin, rig) = both();
    test(&origin, &rig, &mut rig.tls());
    let (origin, rig) = both();
    test(&origin, &rig, &mut rig.plain());
    let origin = Origin::plain();
    let rig = Rig::for_origin(Authority::new(), &origin.url);
    test(&origin, &rig, &mut rig.tls());
}

#[test]
fn large_bodies_arrive_whole() {
    each(|origin, _, client| {
        for len in [300_000, LARGE] {
            let expected = body(len);
            for path in ["passed", "chunked", "kept", "kept"] {
                let response = client.get(&format!("/{path}?{len}"));
                assert!(response.body == expected, "{path} {len}: {}", response.head);
            }
        }
        assert_eq!(origin.requests(), 6);
    });
}

#[test]
fn large_bodies_are_sent_to_the_origin() {
    each(|_, _, client| {
        for len in [300_000, LARGE] {
            write!(client.stream, "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n")
                .unwrap();
            client.stream.write_all(&body(len)).unwrap();
            client.stream.flush().unwrap();
            assert_eq!(client.response().unwrap().body, b"true");
        }
    });
}

#[test]
fn early_refusal_of_a_body_is_forwarded_at_once() {
    each(|origin, _, client| {
        write!(client.stream, "POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n\r\n").unwrap();
        client.stream.write_all(&body(1 << 20)).unwrap();
        client.stream.flush().unwrap();
        assert!(client.head().unwrap().starts_with("HTTP/1.1 413 "));
        origin.go_on.send(()).unwrap();
    });
}

#[test]
fn ranges_of_stored_responses_are_sent() {
    each(|_, rig, client| {
        assert_eq!(client.get("/kept?300000").body.len(), 300_000);
        for client in [&mut rig.tls(), &mut rig.plain()] {
            write!(
                client.stream,
                "GET /kept?300000 HTTP/1.1\r\nHost: a\r\nRange: bytes=70000-269999\r\n\r\n"
            )
            .unwrap();
            client.stream.flush().unwrap();
            let response = client.response().unwrap();
            assert!(response.head.starts_with("HTTP/1.1 206 "), "{}", response.head);
            assert!(response.body == body(300_000)[70_000..270_000]);
        }
    });
}

#[test]
fn client_that_reads_nothing_does_not_delay_the_fill() {
    each(|origin, rig, slow| {
        slow.ask(&format!("GET /kept?{LARGE}"));
        let all_sent = || origin.seen.sent.load(Ordering::SeqCst) == 1;
        assert!(lab::wait_until(LIMIT, all_sent), "the fill waits for its client");
        let quick = rig.tls().get(&format!("/kept?{LARGE}"));
        assert!(quick.body == body(LARGE) && origin.requests() == 1);
        assert!(slow.response().unwrap().body == body(LARGE));
    });
}

/// Configuration that waits for a slow client for one second.
const STRICT: &str =
    "forwarded = \"off\"\ntimeouts.response_grace = 1\ntimeouts.client = 3600\nlimits.response_rate = 500";

#[test]
fn too_slow_tls_client_is_reset() {
    let origin = Origin::plain();
    let rig = Rig::with(Authority::new(), &format!("origin = \"{}\"\n{STRICT}", origin.url));
    let mut counted = 0;
    for path in ["passed", "kept", "kept"] {
        let mut slow = [rig.tls(), rig.plain()];
        for client in &mut slow {
            client.ask(&format!("GET /{path}?{LARGE}"));
        }
        counted += slow.len() as u64;
        assert!(lab::wait_until(LIMIT, || rig.proxy.report().requests == counted), "{path}");
        assert!(slow.iter_mut().all(|client| client.response().is_err()), "{path}");
    }
}

#[test]
fn waiting_for_the_origin_does_not_count_against_the_client() {
    let origin = Origin::plain();
    let rig = Rig::with(Authority::new(), &format!("origin = \"{}\"\n{STRICT}", origin.url));
    let mut clients = [rig.tls(), rig.plain()];
    for client in &mut clients {
        client.ask("GET /halves?300000");
        client.head().unwrap();
        assert!(client.read(150_000).unwrap() == body(150_000));
    }
    // Longer than a client may take.
    std::thread::sleep(Duration::from_millis(2500));
    origin.go_on.send(()).unwrap();
    for client in &mut clients {
        assert!(client.read(150_000).unwrap() == body(300_000)[150_000..]);
    }
}

#[test]
fn a_client_that_leaves_does_not_stop_the_fill() {
    each(|origin, rig, _| {
        let mut leaves = rig.tls();
        leaves.ask("GET /halves?300000");
        leaves.head().unwrap();
        leaves.read(1000).unwrap();
        drop(leaves);
        origin.go_on.send(()).unwrap();
        let response = rig.tls().get("/halves?300000");
        assert!(response.body == body(300_000) && origin.requests() == 1);
    });
}

#[test]
fn followers_with_tls_and_without_share_a_fill() {
    each(|origin, rig, first| {
        first.ask("GET /halves?300000");
        let mut followers = [rig.tls(), rig.plain(), rig.tls()];
        let half = 150_000;
        first.head().unwrap();
        assert!(first.read(half).unwrap() == body(half));
        for follower in &mut followers {
            follower.ask("GET /halves?300000");
            let head = follower.head().unwrap();
            assert_eq!(field(&head, "Content-Length"), Some("300000"));
            assert!(follower.read(half).unwrap() == body(half), "received bytes are sent at once");
        }
        origin.go_on.send(()).unwrap();
        for client in followers.iter_mut().chain([first]) {
            assert!(client.read(half).unwrap() == body(2 * half)[half..]);
        }
        assert_eq!(origin.requests(), 1);
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    each(|_, _, client| {
        let one = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let all: String = (1..=40).map(|number| one(&format!("/kept?{}", number * 1000))).collect();
        client.stream.write_all(all.as_bytes()).unwrap();
        client.stream.flush().unwrap();
        for number in 1..=40 {
            assert!(client.response().unwrap().body == body(number * 1000));
        }
        // No byte follows.
        write!(client.stream, "GET /kept HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        client.stream.flush().unwrap();
        assert_eq!(client.response().unwrap().body, body(11));
        assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn plain_connections_are_reused_after_a_large_body() {
    let origin = Origin::plain();
    let rig = Rig::for_origin(Authority::new(), &origin.url);
    let mut client = rig.plain();
    // A fill would return its connection at an unknown time, so the responses are not stored.
    for _ in 0..3 {
        assert!(client.get("/passed?300000").body == body(300_000));
    }
    assert_eq!(origin.seen.connections.load(Ordering::SeqCst), 1);
}
