//! HTTP/2 to origins: requests side by side, bodies in both directions, trailers, refusals.

use lab::wait_until;

use crate::http2::{DATA, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, WINDOW_UPDATE, frame, get, head};
use crate::origin_http2_rig::{Rig, post};
use crate::rig::{LIMIT, body};

const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];

#[test]
fn head_of_a_request_has_the_form_of_http2() {
    let rig = Rig::start();
    let mut client = rig.client();
    client.send("GET /a?b HTTP/1.1\r\nHost: www.example\r\nX-A: B\r\nConnection: x-hop\r\nX-Hop: 1\r\nTE: trailers\r\nKeep-Alive: 1\r\n\r\n");
    let mut origin = rig.accept();
    let request = origin.request();
    let pseudo: Vec<_> = request.fields.iter().take(4).map(|(name, value)| (&**name, &**value)).collect();
    let expected =
        [(":method", "GET"), (":scheme", "http"), (":authority", "www.example"), (":path", "/a?b")];
    assert_eq!(pseudo, expected);
    assert_eq!((request.field("x-a"), request.field("te")), (Some("B"), Some("trailers")));
    for name in ["host", "connection", "keep-alive", "x-hop", "transfer-encoding"] {
        assert_eq!(request.field(name), None, "{name}");
    }
    assert!(request.is_last && request.stream == 1);
    origin.answer(1, b"hello");
    let answer = client.head().unwrap();
    assert!(answer.status() == 200 && answer.field("via").unwrap().starts_with("2 strait"), "{answer:?}");
    assert_eq!(client.exactly(15).unwrap(), b"5\r\nhello\r\n0\r\n\r\n");
}

#[test]
fn connection_carries_as_many_requests_as_the_origin_allows() {
    let rig = Rig::start();
    let mut clients: Vec<_> = (0..3).map(|_| rig.client()).collect();
    let get = |at: usize| format!("GET /{at} HTTP/1.1\r\nHost: a\r\n\r\n");
    clients[0].send(get(0));
    // MAX_CONCURRENT_STREAMS.
    let mut origin = rig.accept_with(&[(3, 2)]);
    let first = origin.request().stream;
    clients[1].send(get(1));
    let second = origin.request().stream;
    clients[2].send(get(2));
    let mut other = rig.accept();
    let third = other.request();
    assert_eq!((first, second, third.stream, third.field(":path")), (1, 3, 1, Some("/2")));
    other.answer(1, b"2");
    origin.answer(3, b"1");
    origin.answer(1, b"0");
    for (index, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.head().unwrap().status(), 200);
        assert_eq!(client.exactly(11).unwrap(), format!("1\r\n{index}\r\n0\r\n\r\n").as_bytes());
    }
}

#[test]
fn messages_pass_both_ways_at_once_and_end_with_trailers() {
    let rig = Rig::start();
    let mut client = rig.http2_client();
    client.send(post(1, "/echo", &[("te", "trailers")]));
    let mut origin = rig.accept();
    let request = origin.request();
    assert!(!request.is_last && request.field("te") == Some("trailers"), "{request:?}");
    origin.head(1, &[(":status", "200"), ("content-type", "application/grpc")], 0);
    client.until(HEADERS).unwrap();
    for number in 0..50_u32 {
        client.send(frame(DATA, 0, 1, &number.to_be_bytes()));
        assert_eq!(origin.body(1, 4), number.to_be_bytes());
        origin.data(1, &number.to_be_bytes(), 0);
        assert_eq!(client.until(DATA).unwrap().payload, number.to_be_bytes());
    }
    client.send(head(1, &[("x-up", "1"), ("cookie", "a=b"), ("x_role", "a")], END_STREAM));
    let trailers = origin.request();
    assert!(trailers.is_last && trailers.fields == [("x-up".to_owned(), "1".to_owned())], "{trailers:?}");
    let down = [("grpc-status", "0"), ("content-length", "7"), ("set-cookie", "a=b"), ("x-down", "2")];
    origin.head(1, &down, END_STREAM);
    let answer = client.answers(1).remove(0).1;
    assert_eq!((answer.field("grpc-status"), answer.field("x-down")), (Some("0"), Some("2")));
    assert!(
        answer.is_whole && answer.field("set-cookie").is_none() && answer.field("content-length").is_none()
    );
}

#[test]
fn rules_for_fields_of_requests_keep_their_trailers_back() {
    let rig = Rig::with_route("request_headers = { remove = [\"X-Role\"] }");
    let mut client = rig.http2_client();
    let trailers = head(1, &[("x-role", "staff")], END_STREAM);
    client.send([post(1, "/a", &[("x-role", "staff")]), frame(DATA, 0, 1, b"x"), trailers].concat());
    let mut origin = rig.accept();
    assert_eq!(origin.request().field("x-role"), None);
    assert_eq!(origin.body(1, 1), b"x");
    let end = origin.frame().unwrap();
    assert_eq!((end.kind, end.flags, end.payload.len()), (DATA, END_STREAM, 0));
}

#[test]
fn response_of_trailers_alone_ends_with_its_head() {
    let rig = Rig::start();
    let mut client = rig.http2_client();
    client.send([post(1, "/a", &[]), frame(DATA, END_STREAM, 1, b"x")].concat());
    let mut origin = rig.accept();
    origin.request();
    assert_eq!(origin.body(1, 1), b"x");
    origin.head(1, &[(":status", "200"), ("grpc-status", "12")], END_STREAM);
    let frame = client.until(HEADERS).unwrap();
    assert_eq!((frame.stream, frame.flags & END_STREAM), (1, END_STREAM));
}

#[test]
fn trailers_are_not_stored() {
    let rig = Rig::start();
    let mut client = rig.http2_client();
    client.send(get(1, "/a"));
    let mut origin = rig.accept();
    origin.request();
    origin.head(1, &[(":status", "200"), ("cache-control", "max-age=60")], 0);
    origin.data(1, b"abc", 0);
    origin.head(1, &[("x-end", "1"), ("cache-control", "max-age=9999")], END_STREAM);
    assert_eq!(client.answers(1).remove(0).1.body, b"abc");
    let answer = client.get(3, "/a");
    assert!(answer.field("cache-status").unwrap().contains("hit") && answer.body == b"abc", "{answer:?}");
    assert_eq!((answer.field("x-end"), answer.field("cache-control")), (None, Some("max-age=60")));
}

#[test]
fn refused_requests_are_sent_again_with_their_bodies() {
    let rig = Rig::start();
    let mut client = rig.http2_client();
    let long = body(20_000);
    client.send(post(1, "/a", &[]));
    long.chunks(16 << 10).for_each(|piece| client.send(frame(DATA, 0, 1, piece)));
    let mut origin = rig.accept();
    origin.request();
    assert_eq!(origin.body(1, long.len()), long);
    origin.send(frame(RST_STREAM, 0, 1, &REFUSED_STREAM));
    let again = origin.request();
    assert_eq!((again.stream, again.field(":path")), (3, Some("/a")));
    assert_eq!(origin.body(3, long.len()), long);
    client.send(frame(DATA, END_STREAM, 1, b"end"));
    assert_eq!(origin.body(3, 3), b"end");
    // GOAWAY: the last processed stream is 1.
    origin.send(frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]));
    let mut other = rig.accept();
    assert_eq!(other.request().field(":path"), Some("/a"));
    assert_eq!(other.body(1, long.len() + 3), [&long[..], b"end"].concat());
    other.answer(1, b"done");
    assert_eq!(client.answers(1).remove(0).1.body, b"done");
    // The first connection has no more requests.
    assert!(origin.until(GOAWAY).is_some() && origin.frame().is_none());
}

#[test]
fn request_that_may_have_been_processed_is_not_sent_again() {
    let rig = Rig::start();
    let mut client = rig.http2_client();
    client.send([post(1, "/a", &[]), frame(DATA, END_STREAM, 1, b"x")].concat());
    let mut origin = rig.accept();
    origin.request();
    assert_eq!(origin.body(1, 1), b"x");
    drop(origin);
    assert_eq!(client.answers(1).remove(0).1.field(":status"), Some("502"));
    client.send(get(3, "/b"));
    assert_eq!(rig.accept().request().field(":path"), Some("/b"));
}

#[test]
fn connection_that_ended_while_idle_costs_no_request() {
    let rig = Rig::start();
    let mut client = rig.client();
    client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut origin = rig.accept();
    origin.request();
    origin.head(1, &[(":status", "204"), ("cache-control", "no-store")], END_STREAM);
    assert_eq!(client.answer().unwrap().status(), 204);
    drop(origin);
    client.send("GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut other = rig.accept();
    assert_eq!(other.request().field(":path"), Some("/b"));
    other.head(1, &[(":status", "204")], END_STREAM);
    assert_eq!(client.answer().unwrap().status(), 204);
}

#[test]
fn resets_pass_in_both_directions() {
    let rig = Rig::start();
    let mut client = rig.http2_client();
    client.send([post(1, "/a", &[]), get(3, "/b"), post(5, "/c", &[])].concat());
    let mut origin = rig.accept();
    let streams = [(); 3].map(|()| origin.request());
    let stream = |path: &str| streams.iter().find(|it| it.field(":path") == Some(path)).unwrap().stream;
    // A client that cancels before the response, and one that cancels during it.
    origin.head(stream("/c"), &[(":status", "200")], 0);
    client.until(HEADERS).unwrap();
    for (own, path) in [(1, "/a"), (5, "/c")] {
        client.send(frame(RST_STREAM, 0, own, &[0, 0, 0, 8]));
        let reset = origin.until(RST_STREAM).unwrap();
        assert_eq!((reset.stream, &reset.payload[..]), (stream(path), &[0, 0, 0, 8][..]));
    }
    // The origin resets during a response, and before one: the code reaches the client.
    origin.head(stream("/b"), &[(":status", "200"), ("cache-control", "no-store")], 0);
    client.until(HEADERS).unwrap();
    origin.send(frame(RST_STREAM, 0, stream("/b"), &[0, 0, 0, 11]));
    let reset = client.until(RST_STREAM).unwrap();
    assert_eq!((reset.stream, &reset.payload[..]), (3, &[0, 0, 0, 11][..]));
    client.send(post(7, "/d", &[]));
    let request = origin.request();
    origin.send(frame(RST_STREAM, 0, request.stream, &[0, 0, 0, 8]));
    let reset = client.until(RST_STREAM).unwrap();
    assert_eq!((reset.stream, &reset.payload[..]), (7, &[0, 0, 0, 8][..]));
}

#[test]
fn codes_of_resets_are_mapped() {
    let rig = Rig::with_pool("failures = 0");
    let mut client = rig.http2_client();
    let (mut own, mut peer) = (1, None);
    // A client has violated nothing, and its response is not complete (RFC 9113, section 7).
    for (code, expected) in
        [(0, 2), (1, 2), (2, 2), (3, 2), (5, 2), (8, 8), (9, 2), (11, 11), (12, 2), (13, 2), (1 << 31, 2)]
    {
        client.send(post(own, "/a", &[]));
        let origin = peer.get_or_insert_with(|| rig.accept());
        let stream = origin.request().stream;
        origin.send(frame(RST_STREAM, 0, stream, &u32::to_be_bytes(code)));
        let reset = client.until(RST_STREAM).unwrap();
        assert_eq!((reset.stream, reset.payload), (own, u32::to_be_bytes(expected).to_vec()), "{code}");
        own += 2;
    }
    // The origin learns that the request is given up, and no more.
    let mut origin = peer.unwrap();
    for code in [0, 1, 2, 5, 7, 8, 11, 1 << 31] {
        client.send(post(own, "/a", &[]));
        let stream = origin.request().stream;
        client.send(frame(RST_STREAM, 0, own, &u32::to_be_bytes(code)));
        let reset = origin.until(RST_STREAM).unwrap();
        assert_eq!((reset.stream, &reset.payload[..]), (stream, &[0, 0, 0, 8][..]), "{code}");
        own += 2;
    }
}

/// The origin refuses each repetition, and then the other server of the pool gets the request.
#[test]
fn refused_request_moves_to_another_server_with_its_body() {
    let (rig, backup) = Rig::with_backup();
    let mut client = rig.http2_client();
    client.send([post(1, "/a", &[]), frame(DATA, 0, 1, b"abc")].concat());
    let mut origin = rig.accept();
    for stream in [1, 3, 5, 7] {
        assert_eq!(origin.request().stream, stream);
        assert_eq!(origin.body(stream, 3), b"abc");
        origin.send(frame(RST_STREAM, 0, stream, &REFUSED_STREAM));
    }
    let mut other = backup.accept();
    assert_eq!(other.request().field(":path"), Some("/a"));
    assert_eq!(other.body(1, 3), b"abc");
    client.send(frame(DATA, END_STREAM, 1, b"end"));
    assert_eq!(other.body(1, 3), b"end");
    other.answer(1, b"done");
    let answer = client.answers(1).remove(0).1;
    assert_eq!((answer.field(":status"), &answer.body[..]), (Some("200"), &b"done"[..]));
}

/// The origin ends: its last frame is GOAWAY, and it accepts no further connection.
#[test]
fn request_that_a_leaving_server_has_not_processed_moves_to_another_one() {
    let (rig, backup) = Rig::with_backup();
    let mut client = rig.http2_client();
    client.send([post(1, "/a", &[]), frame(DATA, END_STREAM, 1, b"abc")].concat());
    let mut origin = rig.accept();
    origin.request();
    assert_eq!(origin.body(1, 3), b"abc");
    let Rig { proxy: _proxy, origin: listener } = rig;
    drop(listener);
    // No stream was processed.
    origin.send(frame(GOAWAY, 0, 0, &[0; 8]));
    let mut other = backup.accept();
    assert_eq!(other.request().field(":path"), Some("/a"));
    assert_eq!(other.body(1, 3), b"abc");
    other.answer(1, b"done");
    assert_eq!(client.answers(1).remove(0).1.body, b"done");
}

/// RFC 9218, section 5: the field is a signal from end to end, and an intermediary that replaces it
/// overrides the client for all further recipients.
#[test]
fn priority_reaches_the_origin_as_the_client_has_sent_it() {
    let rig = Rig::start();
    let mut client = rig.http2_client();
    let fields = [(":method", "GET"), (":scheme", "http"), (":path", "/a"), (":authority", "a")];
    client.send(head(1, &[&fields[..], &[("priority", "u=1, i, x=2")]].concat(), END_STREAM));
    // PRIORITY_UPDATE is for this connection alone.
    client.send(frame(0x10, 0, 0, b"\0\0\0\x01u=7"));
    client.send(get(3, "/b"));
    let mut origin = rig.accept();
    let requests = [(); 2].map(|()| origin.request());
    let of = |path| requests.iter().find(|it| it.field(":path") == Some(path)).unwrap();
    assert_eq!((of("/a").field("priority"), of("/b").field("priority")), (Some("u=1, i, x=2"), None));
    let stream = of("/a").stream;
    origin.send(head(
        stream,
        &[(":status", "200"), ("priority", "u=5"), ("cache-control", "no-store")],
        END_STREAM,
    ));
    let answer = client.answers(1).remove(0).1;
    assert_eq!(answer.field("priority"), Some("u=5"));
    // Frames for the origin until the end of its connection.
    drop(rig);
    let kinds: Vec<_> = std::iter::from_fn(|| origin.frame()).map(|frame| frame.kind).collect();
    assert!(!kinds.contains(&0x10), "{kinds:?}");
}

/// The second connection, without requests, ends; the first one, which is older, has one.
#[test]
fn connection_without_requests_ends_after_a_time() {
    let rig = Rig::with("timeouts.origin_idle = 1");
    let mut clients = [rig.http2_client(), rig.http2_client()];
    let one_stream = [(3, 1)];
    clients[0].send(get(1, "/long"));
    let mut busy = rig.accept_with(&one_stream);
    assert_eq!(busy.request().field(":path"), Some("/long"));
    clients[1].send(get(1, "/short"));
    let mut idle = rig.accept_with(&one_stream);
    assert_eq!(idle.request().field(":path"), Some("/short"));
    idle.answer(1, b"short");
    assert_eq!(clients[1].answers(1).remove(0).1.body, b"short");
    let end = idle.until(GOAWAY).unwrap();
    assert_eq!(&end.payload[4..8], &[0; 4], "no error");
    assert!(idle.frame().is_none());
    busy.answer(1, b"long");
    assert_eq!(clients[0].answers(1).remove(0).1.body, b"long");
    assert!(busy.until(GOAWAY).is_some() && busy.frame().is_none());
    clients[1].send(get(3, "/next"));
    let mut next = rig.accept();
    assert_eq!(next.request().field(":path"), Some("/next"));
    next.answer(1, b"next");
    assert_eq!(clients[1].answers(1).remove(0).1.body, b"next");
}

#[test]
fn connections_without_requests_beyond_the_limit_end() {
    let rig = Rig::with("limits.origin_idle = 1\ntimeouts.origin_idle = 600");
    let mut client = rig.http2_client();
    let mut origins = Vec::new();
    for stream in [1, 3, 5] {
        client.send(get(stream, &format!("/{stream}")));
        let mut origin = rig.accept_with(&[(3, 1)]);
        origin.request();
        origins.push(origin);
    }
    for origin in &mut origins {
        origin.answer(1, b"x");
    }
    assert_eq!(client.answers(3).len(), 3);
    // The first connection gets the next requests.
    for origin in &mut origins[1..] {
        assert!(origin.until(GOAWAY).is_some() && origin.frame().is_none());
    }
    client.send(get(7, "/7"));
    let request = origins[0].request();
    assert_eq!((request.stream, request.field(":path")), (3, Some("/7")));
}

#[test]
fn windows_of_the_origin_and_of_the_client_hold() {
    let rig = Rig::start();
    let mut client = rig.http2_client();
    // INITIAL_WINDOW_SIZE 10.
    client.send([post(1, "/a", &[]), frame(DATA, END_STREAM, 1, &body(100))].concat());
    let mut origin = rig.accept_with(&[(4, 10)]);
    origin.request();
    let mut got: Vec<u8> = Vec::new();
    // The first frame may have been sent before the settings were known.
    while got.len() < 100 {
        let frame = origin.until(DATA).unwrap();
        got.extend(&frame.payload);
        if got.len() < 50 {
            origin.send(self::frame(WINDOW_UPDATE, 0, 1, &10_u32.to_be_bytes()));
        } else if got.len() < 100 {
            origin.settings(&[(4, 1000)]);
        }
    }
    assert_eq!(got, body(100));
    origin.answer(1, b"x");
    assert!(client.answers(1).remove(0).1.is_whole);
    // A client that reads nothing stops its stream at the origin after one window, and no other.
    let mut slow = crate::http2::Client::with_window(rig.proxy.address(), 0);
    slow.send(get(1, "/slow"));
    let stream = origin.request().stream;
    origin.head(stream, &[(":status", "200"), ("cache-control", "no-store")], 0);
    let window = 256 << 10;
    origin.data(stream, &body(window), 0);
    client.send(get(3, "/fast"));
    let fast = origin.request().stream;
    origin.answer(fast, &body(100_000));
    assert_eq!(client.answers(1).remove(0).1.body, body(100_000));
    slow.send(frame(WINDOW_UPDATE, 0, 1, &(1_u32 << 20).to_be_bytes()));
    let is_of_stream = |update: &crate::http2::Received| update.stream == stream;
    while !is_of_stream(&origin.until(WINDOW_UPDATE).unwrap()) {}
    origin.data(stream, b"end", END_STREAM);
    let answer = slow.answers(1).remove(0).1;
    assert!(answer.is_whole && answer.body.len() == window + 3);
}

#[test]
fn pings_are_answered_and_the_metric_counts_connections() {
    let rig = Rig::start();
    let mut client = rig.client();
    for number in 0..3 {
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
        if number == 0 {
            let mut origin = rig.accept();
            origin.request();
            origin.send(frame(PING, 0, 0, b"12345678"));
            let pong = origin.until(PING).unwrap();
            assert_eq!((pong.flags, &pong.payload[..]), (1, &b"12345678"[..]));
            for stream in [1, 3, 5] {
                if stream > 1 {
                    client.send(format!("GET /{stream} HTTP/1.1\r\nHost: a\r\n\r\n"));
                    assert_eq!(origin.request().stream, stream);
                }
                origin.head(stream, &[(":status", "204"), ("cache-control", "no-store")], END_STREAM);
                assert_eq!(client.answer().unwrap().status(), 204);
            }
            break;
        }
    }
    assert!(wait_until(LIMIT, || rig.metric("strait_proxy_origin_connections_total 1")));
    assert!(rig.metric("strait_proxy_origin_connections_reused_total 2"));
}

#[test]
fn long_response_is_stored_and_its_length_checked() {
    const LEN: usize = 3 << 20;
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::with(&format!("cache.dir = \"{}\"", dir.path().join("cache").display()));
    let mut client = rig.client();
    client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut origin = rig.accept();
    origin.request();
    let fields = [(":status", "200"), ("cache-control", "max-age=60"), ("content-length", "3145728")];
    origin.head(1, &fields, 0);
    let feeding = std::thread::spawn(move || {
        let (whole, mut at, mut windows) = (body(LEN), 0, [65_535_u64; 2]);
        // The stream's window, and the connection's.
        windows[0] = 256 << 10;
        windows[1] = 1 << 20;
        while at < LEN {
            let len = (LEN - at).min(16 << 10);
            while windows.iter().any(|window| *window < len as u64) {
                let update = origin.until(WINDOW_UPDATE).unwrap();
                let more = u32::from_be_bytes(update.payload.try_into().unwrap());
                windows[usize::from(update.stream == 0)] += u64::from(more);
            }
            windows = windows.map(|window| window - len as u64);
            origin.data(1, &whole[at..at + len], if at + len == LEN { END_STREAM } else { 0 });
            at += len;
        }
        origin
    });
    assert!(client.answer().unwrap().body == body(LEN));
    let _origin = feeding.join().unwrap();
    let is_stored = || {
        let report = rig.proxy.report();
        report.fills == 0 && report.store.is_some_and(|store| store.records == 1)
    };
    assert!(wait_until(LIMIT, is_stored));
    // Frames are copied into the store, and counted.
    assert!(rig.metric(&format!("strait_proxy_fill_bytes_total{{mechanism=\"copy\"}} {LEN}")));
    client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = client.answer().unwrap();
    assert!(answer.field("cache-status").unwrap().contains("hit") && answer.body == body(LEN));
}

#[test]
fn websocket_goes_by_http_1() {
    let rig = Rig::start();
    let mut client = rig.client();
    client.send("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    let mut tcp = rig.accept_silent();
    let mut begin = [0; 19];
    std::io::Read::read_exact(&mut tcp, &mut begin).unwrap();
    assert_eq!(&begin, b"GET /chat HTTP/1.1\r");
    let switching = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello";
    std::io::Write::write_all(&mut tcp, switching).unwrap();
    assert_eq!(client.head().unwrap().status(), 101);
    assert_eq!(client.exactly(5).unwrap(), b"hello");
}

/// A connection alone does not show that requests can be sent.
#[test]
fn active_checks_without_a_path_need_the_settings_of_http2() {
    let rig = Rig::with_pool("check = { interval = 1, timeout = 1, rise = 1, fall = 1 }");
    let is_down = || rig.status()["servers"][0]["is_down"] == true;
    let mut tcp = rig.accept_silent();
    std::io::Write::write_all(&mut tcp, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert!(wait_until(LIMIT, is_down));
    let mut peers = Vec::new();
    let accept = || {
        peers.push(rig.accept());
        !is_down()
    };
    assert!(wait_until(LIMIT, accept));
    // Nothing is read from further connections.
    assert!(wait_until(LIMIT, is_down));
}

#[test]
fn active_checks_are_requests_of_http2() {
    let rig = Rig::with_pool("check = { path = \"/healthz\", interval = 1, rise = 1, fall = 1 }");
    for (status, is_down) in [("503", true), ("204", false)] {
        let mut origin = rig.accept();
        let request = origin.request();
        assert_eq!((request.field(":method"), request.field(":path")), (Some("GET"), Some("/healthz")));
        origin.head(1, &[(":status", status)], END_STREAM);
        assert!(wait_until(LIMIT, || rig.status()["servers"][0]["is_down"] == is_down));
    }
}
