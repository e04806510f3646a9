//! Requests that share a connection to an origin: none stops the others.

use std::time::Duration;

use lab::wait_until;

use crate::http2::{DATA, END_STREAM, HEADERS, PING, RST_STREAM, Received, WINDOW_UPDATE, frame};
use crate::origin_http2_rig::{Peer, Rig, post};
use crate::rig::LIMIT;

/// Returns a POST of HTTP/1.1 with a body of that length.
fn post_1(len: usize) -> Vec<u8> {
    let head = format!("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n");
    [head.as_bytes(), &vec![b'x'; len]].concat()
}

#[test]
fn body_that_is_given_up_leaves_its_turn() {
    let rig = Rig::start();
    let (mut first, mut second) = (rig.client(), rig.client());
    first.send(post_1(100));
    // INITIAL_WINDOW_SIZE 10.
    let mut origin = rig.accept_with(&[(4, 10)]);
    origin.request();
    assert_eq!(origin.body(1, 10).len(), 10);
    // The origin answers before the rest, which the proxy gives up.
    origin.head(1, &[(":status", "200"), ("cache-control", "no-store")], 0);
    assert_eq!(first.head().unwrap().status(), 200);
    origin.send(frame(WINDOW_UPDATE, 0, 1, &1000_u32.to_be_bytes()));
    second.send(post_1(5));
    assert_eq!(origin.request().stream, 3);
    assert_eq!(origin.body(3, 5), b"xxxxx");
}

#[test]
fn requests_before_the_settings_of_the_origin_are_all_answered() {
    const CLIENTS: usize = 5;
    let rig = Rig::start();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| rig.client()).collect();
    for client in &mut clients {
        client.send(post_1(5));
    }
    let mut origins = Vec::new();
    for _ in 0..CLIENTS {
        // MAX_CONCURRENT_STREAMS 1.
        let mut origin = rig.accept_with(&[(3, 1)]);
        assert_eq!(origin.request().stream, 1);
        origins.push(origin);
    }
    for origin in &mut origins {
        origin.head(1, &[(":status", "204")], END_STREAM);
    }
    for client in &mut clients {
        assert_eq!(client.answer().unwrap().status(), 204);
    }
}

#[test]
fn complete_response_is_not_reset_before_its_end() {
    let rig = Rig::start();
    let mut client = rig.client();
    let mut origin = None;
    for stream in [1, 3, 5] {
        client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
        let origin = origin.get_or_insert_with(|| rig.accept());
        assert_eq!(origin.request().stream, stream);
        let fields = [(":status", "200"), ("content-length", "3"), ("cache-control", "no-store")];
        origin.head(stream, &fields, 0);
        origin.data(stream, b"abc", 0);
        assert_eq!(client.answer().unwrap().body, b"abc");
        origin.send([frame(DATA, END_STREAM, stream, b""), frame(PING, 0, 0, &[0; 8])].concat());
        loop {
            let frame = origin.frame().unwrap();
            assert!(frame.kind != RST_STREAM, "{frame:?}");
            if frame.kind == PING {
                break;
            }
        }
    }
}

/// The next request would reset the stream: the origin counts it as open.
#[test]
fn request_waits_for_the_end_of_a_complete_response() {
    let rig = Rig::start();
    let (mut first, mut second) = (rig.client(), rig.client());
    first.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    // MAX_CONCURRENT_STREAMS 1.
    let mut origin = rig.accept_with(&[(3, 1)]);
    let fields = [(":status", "200"), ("content-length", "3"), ("cache-control", "no-store")];
    let answer = |origin: &mut Peer, stream| {
        origin.head(stream, &fields, 0);
        origin.data(stream, b"abc", 0);
    };
    assert_eq!(origin.request().stream, 1);
    answer(&mut origin, 1);
    assert_eq!(first.answer().unwrap().body, b"abc");
    second.send("GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    origin.data(1, b"", END_STREAM);
    let frame = until_head_or_reset(&mut origin);
    assert_eq!((frame.kind, frame.stream), (HEADERS, 3));
    // An end that does not come is awaited once.
    answer(&mut origin, 3);
    assert_eq!(second.answer().unwrap().body, b"abc");
    for stream in [5, 7] {
        first.send("GET /c HTTP/1.1\r\nHost: a\r\n\r\n");
        let frame = until_head_or_reset(&mut origin);
        assert_eq!((frame.kind, frame.stream), (RST_STREAM, stream - 2));
        let frame = until_head_or_reset(&mut origin);
        assert_eq!((frame.kind, frame.stream), (HEADERS, stream));
        answer(&mut origin, stream);
        assert_eq!(first.answer().unwrap().body, b"abc");
    }
}

/// A request that waits for the end of another stream is not sent after its client has given it up.
#[test]
fn cancelled_request_does_not_wait_for_the_end_of_a_response() {
    let rig = Rig::start();
    let (mut first, mut second) = (rig.client(), rig.http2_client());
    first.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    // MAX_CONCURRENT_STREAMS 1.
    let mut origin = rig.accept_with(&[(3, 1)]);
    let fields = [(":status", "200"), ("content-length", "3"), ("cache-control", "no-store")];
    assert_eq!(origin.request().stream, 1);
    origin.head(1, &fields, 0);
    origin.data(1, b"abc", 0);
    assert_eq!(first.answer().unwrap().body, b"abc");
    second.send(post(1, "/b", &[("content-length", "0")]));
    assert!(wait_until(LIMIT, || rig.metric("strait_proxy_http2_streams_total 1")));
    second.send(frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
    // Its task ends although the origin has not ended the first stream.
    assert!(wait_until(LIMIT, || rig.proxy.report().requests == 2));
    origin.data(1, b"", END_STREAM);
    first.send("GET /c HTTP/1.1\r\nHost: a\r\n\r\n");
    let request = origin.request();
    assert_eq!((request.stream, request.field(":path")), (3, Some("/c")));
}

fn until_head_or_reset(origin: &mut Peer) -> Received {
    loop {
        let frame = origin.frame().unwrap();
        if [HEADERS, RST_STREAM].contains(&frame.kind) {
            return frame;
        }
    }
}

#[test]
fn body_may_take_longer_than_the_origin_may_be_silent() {
    let rig = Rig::with("timeouts.origin = 1\nlimits.request_ahead = 0");
    let mut client = rig.http2_client();
    client.send([post(1, "/a", &[("content-length", "60000")]), frame(DATA, 0, 1, &[1; 15_000])].concat());
    let mut origin = rig.accept();
    origin.request();
    origin.body(1, 15_000);
    // Longer than timeouts.origin.
    let _ = wait_until(Duration::from_millis(2500), || false);
    for _ in 0..2 {
        client.send(frame(DATA, 0, 1, &[1; 15_000]));
    }
    client.send(frame(DATA, END_STREAM, 1, &[1; 15_000]));
    assert_eq!(origin.body(1, 45_000).len(), 45_000);
    origin.answer(1, b"done");
    assert_eq!(client.answers(1).remove(0).1.body, b"done");
}

#[test]
fn head_with_fields_of_the_proxy_is_sent_whole() {
    let rig = Rig::start();
    let mut client = rig.client();
    let lines = (0..99).map(|number| format!("X-F{number}: a\r\n")).collect::<Vec<_>>().concat();
    client.send(format!("GET /a HTTP/1.1\r\nHost: a\r\n{lines}\r\n"));
    let mut origin = rig.accept();
    let request = origin.request();
    assert!(request.field("x-f98") == Some("a") && request.field("via").is_some(), "{request:?}");
}
