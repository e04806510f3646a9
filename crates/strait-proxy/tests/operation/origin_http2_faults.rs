//! Origins that violate HTTP/2, flood, or end their responses early.

use std::io::{Read as _, Write as _};

use lab::wait_until;

use crate::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    frame, get,
};
use crate::origin_http2_rig::{Peer, Rig, block, is_failure, post};
use crate::rig::{LIMIT, body};

const OK: (&str, &str) = (":status", "200");

/// Sends `next(0)`, `next(1)` and so on in place of a response until the proxy ends the connection;
/// the client gets an error, and the next request another connection.
fn attack(limit: &str, next: impl Fn(u32) -> Vec<u8>) {
    let rig = Rig::start();
    let mut client = rig.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    let mut origin = rig.accept();
    origin.request();
    // The proxy may have closed the connection.
    let is_ended = (0..400_000).any(|index| origin.tcp.write_all(&next(index)).is_err());
    let code = origin.until(GOAWAY).map(|frame| frame.payload[4..8].to_vec());
    assert!(is_ended || code == Some(vec![0, 0, 0, 11]), "{limit}: {code:?}");
    let mut answers = std::iter::from_fn(|| client.answer());
    let answer = answers.find(|answer| answer.status() >= 200).unwrap();
    assert!(is_failure(&answer), "{limit}: {answer:?}");
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut other = rig.accept();
    other.request();
    other.head(1, &[OK], END_STREAM);
    assert_eq!(client.answer().unwrap().status(), 200, "{limit}");
    let metric = format!("strait_proxy_origin_http2_abuse_total{{limit=\"{limit}\"}} 1");
    assert!(wait_until(LIMIT, || rig.metric(&metric)), "{limit}");
}

#[test]
fn floods_of_frames_end_the_connection() {
    attack("ping", |_| frame(PING, 0, 0, &[0; 8]));
    attack("settings", |_| frame(SETTINGS, 0, 0, &[]));
    attack("unknown_frames", |_| frame(0xee, 0, 0, &[]));
    attack("stream_errors", |_| frame(HEADERS, END_HEADERS, 1, &block(&[(":status", "20")])));
    attack("rapid_reset", |_| frame(RST_STREAM, 0, 1, &[0, 0, 0, 2]));
}

#[test]
fn floods_within_a_response_end_the_connection() {
    attack("continuation", |index| match index {
        0 => frame(HEADERS, 0, 1, &block(&[OK])),
        _ => frame(CONTINUATION, 0, 1, &block(&[("a", "b")])),
    });
    attack("stream_errors", |_| {
        frame(HEADERS, END_HEADERS, 1, &block(&[(":status", "103"), ("link", "</a>")]))
    });
}

/// The limit of a response is longer than a test: no request may wait for one there.
#[test]
fn no_request_waits_at_a_server_without_settings() {
    let rig = Rig::with("timeouts.connect = 1\ntimeouts.origin = 600\n");
    let mut clients = [rig.client(), rig.client(), rig.client()];
    for client in &mut clients {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    }
    let _silent = rig.accept_silent();
    for mut client in clients {
        let answer = client.answer().unwrap();
        assert!(is_failure(&answer), "{answer:?}");
    }
}

/// Lets an origin answer a request in a wrong way; returns the code of the proxy's RST_STREAM, or 0
/// if it ends the connection.
fn answer_to(method: &str, answer: impl FnOnce(&mut Peer)) -> u32 {
    let rig = Rig::start();
    let mut client = rig.client();
    client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    let mut origin = rig.accept();
    origin.request();
    answer(&mut origin);
    let code = loop {
        match origin.frame() {
            Some(frame) if frame.kind == RST_STREAM => {
                break u32::from_be_bytes(frame.payload.try_into().unwrap());
            }
            Some(frame) if frame.kind == GOAWAY => break 0,
            Some(_) => {}
            None => panic!("no end"),
        }
    };
    assert!(is_failure(&client.answer().unwrap()));
    code
}

#[test]
fn malformed_responses_are_refused() {
    for fields in [
        &[("a", "b")][..],
        &[OK, OK],
        &[("a", "b"), OK],
        &[(":status", "101")],
        &[OK, (":path", "/")],
        &[OK, ("connection", "close")],
        &[OK, ("transfer-encoding", "chunked")],
        &[OK, ("a", "b\r\nx: y")],
        &[OK, ("a", "b\0")],
        &[OK, ("A", "b")],
        &[OK, ("content-length", "1"), ("content-length", "2")],
    ] {
        assert_eq!(answer_to("POST", |origin| origin.head(1, fields, 0)), 1, "{fields:?}");
    }
    // Content-Length without content, DATA before the head, and content in a response to HEAD.
    assert_eq!(answer_to("POST", |origin| origin.head(1, &[OK, ("content-length", "1")], END_STREAM)), 1);
    assert_eq!(answer_to("POST", |origin| origin.data(1, b"x", 0)), 1);
    let long = "x".repeat(3000);
    let fields: Vec<_> = [OK].into_iter().chain((0..10).map(|_| ("a", long.as_str()))).collect();
    // Beyond MAX_HEADER_LIST_SIZE, in several frames.
    let block = block(&fields);
    let frames = |origin: &mut Peer| {
        let (first, rest) = block.split_at(16 << 10);
        origin.send(frame(HEADERS, 0, 1, first));
        origin.send(frame(CONTINUATION, END_HEADERS, 1, rest));
    };
    assert_eq!(answer_to("POST", frames), 1);
}

#[test]
fn violations_end_the_connection() {
    let promise = [&[0, 0, 0, 2][..], &block(&[(":method", "GET")])].concat();
    for bytes in [
        frame(5, END_HEADERS, 1, &promise),
        frame(HEADERS, END_HEADERS, 2, &block(&[OK])),
        frame(HEADERS, END_HEADERS, 7, &block(&[OK])),
        frame(DATA, 0, 0, b"x"),
        // ENABLE_PUSH.
        frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 1]),
        // PRIORITY_UPDATE.
        frame(0x10, 0, 0, &[0, 0, 0, 1]),
    ] {
        assert_eq!(answer_to("POST", |origin| origin.send(&bytes)), 0, "{bytes:?}");
    }
}

#[test]
fn data_beyond_the_window_is_refused() {
    let rig = Rig::start();
    let mut client = crate::http2::Client::with_window(rig.proxy.address(), 0);
    client.send(get(1, "/a"));
    let mut origin = rig.accept();
    origin.request();
    origin.head(1, &[OK, ("cache-control", "no-store")], 0);
    client.until(HEADERS).unwrap();
    origin.data(1, &body(512 << 10), 0);
    // FLOW_CONTROL_ERROR.
    assert_eq!(origin.until(RST_STREAM).unwrap().payload, [0, 0, 0, 3]);
    // The client gets what came before.
    client.send(frame(WINDOW_UPDATE, 0, 1, &(1_u32 << 20).to_be_bytes()));
    assert_eq!(client.until(RST_STREAM).unwrap().stream, 1);
}

#[test]
fn server_of_http_1_is_named_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let rig = Rig::with(&format!("log.access = \"{}\"\nlog.format = \"json\"", log.display()));
    let mut client = rig.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    let mut tcp = rig.accept_silent();
    tcp.read_exact(&mut [0; 24]).unwrap();
    tcp.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert_eq!(client.answer().unwrap().status(), 502);
    let line = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(wait_until(LIMIT, || line().ends_with('\n')));
    assert!(line().contains("an answer in HTTP/1.1"), "{}", line());
}

#[test]
fn incomplete_responses_are_cut_off_and_not_stored() {
    let rig = Rig::start();
    let mut client = rig.http2_client();
    client.send(get(1, "/a"));
    let mut origin = rig.accept();
    let kept = ("cache-control", "max-age=60");
    let mut stream = 1;
    for (length, ends) in [(Some("10"), true), (Some("2"), true), (Some("10"), false), (None, false)] {
        assert_eq!(origin.request().stream, stream);
        let with_length = length.map(|length| ("content-length", length));
        let fields: Vec<_> = [OK, kept].into_iter().chain(with_length).collect();
        origin.head(stream, &fields, 0);
        // The client has the head.
        client.until(HEADERS).unwrap();
        origin.data(stream, b"abcde", if ends { END_STREAM } else { 0 });
        if !ends {
            origin.send(frame(RST_STREAM, 0, stream, &[0, 0, 0, 2]));
        }
        assert_eq!(client.until(RST_STREAM).unwrap().stream, stream);
        stream += 2;
        client.send(get(stream, "/a"));
    }
    origin.request();
    origin.head(stream, &[OK, kept, ("content-length", "3")], 0);
    origin.data(stream, b"abc", END_STREAM);
    assert!(client.answers(1).remove(0).1.is_whole);
    let answer = client.get(stream + 2, "/a");
    assert!(answer.body == b"abc" && answer.field("cache-status").unwrap().contains("hit"));
}

#[test]
fn origin_without_a_window_gets_a_request_for_a_limited_time() {
    let rig = Rig::with("timeouts.origin = 1");
    let mut client = rig.http2_client();
    client.send([post(1, "/a", &[("content-length", "3")]), frame(DATA, END_STREAM, 1, b"abc")].concat());
    // INITIAL_WINDOW_SIZE 0. The first data may have been sent before it was known.
    let mut origin = rig.accept_with(&[(4, 0)]);
    origin.request();
    assert_eq!(client.answers(1).remove(0).1.field(":status"), Some("504"));
    let reset = origin.until(RST_STREAM).unwrap();
    assert_eq!((reset.stream, &reset.payload[..]), (1, &[0, 0, 0, 8][..]));
    // The next request gets another connection.
    client.send(get(3, "/b"));
    rig.accept().request();
}
