//! Hits in memory that HTTP/2 sends at once: the same responses as those of a stream, and only if
//! nothing has to wait.

use std::cell::Cell;
use std::io::Write as _;

use lab::wait_until;
use strait_http2::FRAME_HEAD_BYTES;

use crate::http2::{
    Answer, Client, DATA, END_STREAM, HEADERS, ON, PING, RST_STREAM, Received, WINDOW_UPDATE, frame, get,
    head,
};
use crate::rig::{LIMIT, Origin, Rig, body};
use crate::sites::Edge;

const PATH: &str = "/200/60/4096/a";

/// Two fields that are one field with both values in HTTP/1.1 (RFC 9113, section 8.2.3).
const COOKIES: [(&str, &str); 2] = [("cookie", "a=1"), ("cookie", "b=2")];

/// Returns a request for [`PATH`] with more fields.
fn request(stream: u32, method: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let fields = [(":method", method), (":scheme", "http"), (":path", PATH), (":authority", "www.example")];
    head(stream, &[&fields[..], more].concat(), END_STREAM)
}

/// Sends a request, and returns the response.
fn ask(client: &mut Client, stream: u32, method: &str, more: &[(&str, &str)]) -> Answer {
    client.send(request(stream, method, more));
    client.answers(1).remove(0).1
}

/// Fields without the values that change with time.
fn lasting(answer: &Answer) -> Vec<(String, String)> {
    let status = |value: &str| value.split("ttl=").next().unwrap_or_default().to_owned();
    let field = |(name, value): &(String, String)| match name.as_str() {
        "age" | "date" => (name.clone(), String::new()),
        "cache-status" => (name.clone(), status(value)),
        _ => (name.clone(), value.clone()),
    };
    answer.fields.iter().map(field).collect()
}

/// Returns true if the response to a request is a hit that was sent at once.
fn is_at_once(client: &mut Client, request: Vec<u8>) -> bool {
    client.send(request);
    let block = client.until(HEADERS).unwrap().payload;
    while client.until(DATA).unwrap().flags & END_STREAM == 0 {}
    block.windows(10).any(|window| window == b"; hit; ttl")
}

#[test]
fn response_at_once_equals_that_of_a_stream() {
    let rig = Rig::start(ON);
    let mut client = Client::to(rig.proxy.address());
    client.get(1, PATH);
    rig.wait_stored(1);
    // The second hit is from memory.
    client.get(3, PATH);
    // Only the fields of a hit at once are without Huffman's code.
    assert!(is_at_once(&mut client, get(101, PATH)));
    assert!(!is_at_once(&mut client, request(103, "GET", &COOKIES)));
    let at_once = client.get(105, PATH);
    assert!(at_once.is_whole && at_once.body == body(4096), "{at_once:?}");
    assert!(at_once.field("cache-status").unwrap().contains("; hit; ttl="), "{at_once:?}");
    // Several cookies are joined for the user of a stream.
    let of_stream = ask(&mut client, 107, "GET", &COOKIES);
    assert_eq!((lasting(&at_once), &at_once.body), (lasting(&of_stream), &of_stream.body));
    let to_head = ask(&mut client, 109, "HEAD", &[]);
    assert!(to_head.is_whole && to_head.body.is_empty(), "{to_head:?}");
    assert_eq!(lasting(&at_once), lasting(&to_head));
    let part = ask(&mut client, 111, "GET", &[("range", "bytes=5-9")]);
    assert_eq!((part.field(":status"), &part.body[..]), (Some("206"), &body(4096)[5..10]));
    let control = ask(&mut client, 113, "GET", &[("a", "\u{1}")]);
    assert_eq!(control.field(":status"), Some("400"), "control characters are refused");
    assert_eq!(rig.origin.asked(), 1);
}

#[test]
fn hits_at_once_are_counted_and_logged() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("access");
    let rig = Rig::start(&format!("{ON}[log]\naccess = \"{}\"\nformat = \"json\"\n", file.display()));
    let mut client = Client::to(rig.proxy.address());
    for stream in [1, 3, 5, 7] {
        client.get(stream, PATH);
        rig.wait_stored(1);
    }
    client.send(get(9, PATH));
    let mut received_bytes = 0;
    while let Some(frame) = client.frame().filter(|frame| frame.stream == 9) {
        received_bytes += FRAME_HEAD_BYTES + frame.payload.len();
        if frame.flags & END_STREAM != 0 {
            break;
        }
    }
    rig.wait_counted(5);
    assert_eq!((rig.proxy.report().outcome("hit"), rig.proxy.report().copied > 5 * 4096), (4, true));
    let lines = || std::fs::read_to_string(&file).unwrap_or_default();
    assert!(wait_until(LIMIT, || lines().lines().count() == 5));
    let lines: Vec<serde_json::Value> =
        lines().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let without_times = |stream: u32| {
        let mut line = lines.iter().find(|line| line["stream"] == stream).unwrap().clone();
        let object = line.as_object_mut().unwrap();
        object.retain(|name, _| {
            !["time", "seconds", "stream", "sent_bytes", "copied"].contains(&name.as_str())
        });
        line
    };
    // The first hit reads the object into memory, for the user of a stream.
    assert_eq!(without_times(3), without_times(5));
    let last = lines.iter().find(|line| line["stream"] == 9).unwrap();
    assert_eq!(
        (last["body_bytes"].as_u64(), last["sent_bytes"].as_u64()),
        (Some(4096), Some(received_bytes as u64))
    );
}

#[test]
fn hit_waits_for_the_window_of_its_stream() {
    let rig = Rig::start(ON);
    let mut client = Client::with_window(rig.proxy.address(), 4096);
    for stream in [1, 3, 5] {
        assert!(client.get(stream, PATH).is_whole);
        rig.wait_stored(1);
    }
    let mut slow = Client::with_window(rig.proxy.address(), 100);
    slow.send(get(1, PATH));
    assert_eq!(slow.until(DATA).unwrap().payload, &body(4096)[..100]);
    slow.send(frame(WINDOW_UPDATE, 0, 1, &5000_u32.to_be_bytes()));
    let rest = slow.answers(1).remove(0).1;
    assert!(rest.is_whole && rest.body == body(4096)[100..], "{rest:?}");
    rig.wait_counted(4);
    assert_eq!(rig.proxy.report().outcome("hit"), 3);
}

#[test]
fn many_hits_of_one_read_are_whole() {
    let rig = Rig::start(ON);
    let mut client = Client::to(rig.proxy.address());
    client.get(1, PATH);
    rig.wait_stored(1);
    client.get(3, PATH);
    // Their bodies are more than the output takes.
    let streams: Vec<_> = (2..92).map(|number| number * 2 + 1).collect();
    let requests: Vec<_> = streams.iter().flat_map(|stream| get(*stream, PATH)).collect();
    client.send(requests);
    let mut answers = client.answers(streams.len());
    answers.sort_by_key(|(stream, _)| *stream);
    assert!(answers.iter().map(|(stream, _)| *stream).eq(streams));
    assert!(answers.iter().all(|(_, answer)| answer.is_whole && answer.body == body(4096)));
}

/// Stores [`PATH`] in memory; returns the next stream.
fn store_in_memory(rig: &Rig, client: &mut Client) -> u32 {
    for stream in [1, 3] {
        assert!(client.get(stream, PATH).is_whole);
        rig.wait_stored(1);
    }
    assert!(is_at_once(client, get(5, PATH)));
    7
}

#[test]
fn stream_without_a_window_leaves_hits_at_once() {
    const LEN: usize = 300_000;
    let rig = Rig::start(ON);
    let mut client = Client::with_window(rig.proxy.address(), 4096);
    store_in_memory(&rig, &mut client);
    client.send(get(101, &format!("/200/60/{LEN}/long")));
    let mut of_long = Vec::new();
    while of_long.len() < 4096 {
        of_long.extend(client.until(DATA).unwrap().payload);
    }
    assert_eq!(of_long, &body(LEN)[..4096]);
    for stream in [103, 105] {
        assert!(is_at_once(&mut client, get(stream, PATH)), "{stream}");
    }
    client.send(frame(WINDOW_UPDATE, 0, 101, &(LEN as u32).to_be_bytes()));
    let rest = client.answers(1).remove(0);
    assert!(rest.0 == 101 && rest.1.is_whole && rest.1.body == body(LEN)[4096..]);
    assert!(is_at_once(&mut client, get(107, PATH)));
}

/// A stream with data comes first, and takes turns with the hits after it.
#[test]
fn hit_does_not_overtake_a_stream_that_waits_for_its_turn() {
    const LEN: usize = 3_000_000;
    const WINDOW: usize = 65_535;
    let rig = Rig::start(ON);
    let mut client = Client::to(rig.proxy.address());
    store_in_memory(&rig, &mut client);
    let long = format!("/200/60/{LEN}/long");
    assert!(client.get(101, &long).is_whole);
    rig.wait_stored(2);
    let mut client = Client::with_windows(rig.proxy.address(), LEN as u32, WINDOW as u32);
    assert!(is_at_once(&mut client, get(1, PATH)));
    client.send(get(3, &long));
    let mut of_long = Vec::new();
    while of_long.len() < WINDOW - 4096 {
        of_long.extend(client.until(DATA).unwrap().payload);
    }
    // The stream waits for the window of the connection. The response to HEAD needs none.
    client.send([request(5, "HEAD", &[]), get(7, PATH)].concat());
    let mut heads: Vec<_> = (0..2).map(|_| client.until(HEADERS).unwrap()).collect();
    client.send(frame(WINDOW_UPDATE, 0, 0, &(LEN as u32).to_be_bytes()));
    let (mut of_hit, mut after_hit) = (Vec::new(), 0);
    while of_long.len() < LEN {
        let data = client.until(DATA).unwrap();
        if data.stream == 7 {
            of_hit.extend(data.payload);
        } else {
            after_hit += usize::from(of_hit.len() == 4096);
            of_long.extend(data.payload);
        }
    }
    heads.sort_by_key(|head| head.stream);
    assert!(heads.iter().map(|head| head.stream).eq([5, 7]));
    let is_at_once = |head: &Received| head.payload.windows(10).any(|window| window == b"; hit; ttl");
    assert!(!heads.iter().any(is_at_once), "{heads:?}");
    assert!(of_hit == body(4096) && of_long == body(LEN));
    assert!(after_hit > 0, "the hit did not wait for the whole long response");
}

#[test]
fn hit_waits_for_the_window_of_the_connection() {
    // After 16 bodies, the window of 65,535 bytes has one byte less than another one needs.
    const LEN: usize = 4095;
    let path = format!("/200/60/{LEN}/a");
    let rig = Rig::start(ON);
    let mut client = Client::to(rig.proxy.address());
    for stream in [1, 3] {
        assert!(client.get(stream, &path).is_whole);
        rig.wait_stored(1);
    }
    let mut client = Client::with_windows(rig.proxy.address(), 1 << 20, 65_535);
    for stream in 0..16 {
        assert!(is_at_once(&mut client, get(stream * 2 + 1, &path)), "{stream}");
    }
    client.send([101, 103].map(|stream| get(stream, &path)).concat());
    let begun = client.until(DATA).unwrap();
    assert_eq!(begun.payload, &body(LEN)[..15]);
    // A response without a body needs no window.
    assert!(ask(&mut client, 105, "HEAD", &[]).is_whole);
    client.send(frame(WINDOW_UPDATE, 0, 0, &(2 * LEN as u32).to_be_bytes()));
    let answers = client.answers(2);
    assert_eq!(answers.len(), 2);
    for (stream, answer) in answers {
        let from = if stream == begun.stream { 15 } else { 0 };
        assert!(answer.is_whole && answer.body == body(LEN)[from..], "{stream}");
    }
}

/// Fields with which responses of a cache differ.
const VARIANTS: &[&[(&str, &str)]] = &[
    &[],
    &[("if-none-match", "*")],
    &[("if-none-match", "\"x\", W/\"y\"")],
    &[("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT")],
    &[("if-modified-since", "Mon, 01 Jan 2001 00:00:00 GMT")],
    &[("range", "bytes=5-9")],
    &[("range", "bytes=-5")],
    &[("range", "bytes=9000-")],
    &[("range", "bytes=9-5")],
    &[("range", "lines=1-2")],
    &[("range", "bytes=5-9"), ("if-range", "\"x\"")],
    &[("range", "bytes=5-9"), ("if-none-match", "*")],
    &[("cache-control", "no-cache")],
    &[("cache-control", "no-store")],
    &[("cache-control", "max-age=0")],
    &[("cache-control", "min-fresh=3600")],
    &[("cache-control", "max-stale")],
    &[("cache-control", "only-if-cached")],
    &[("cache-control", "no-cache, only-if-cached")],
    &[("pragma", "no-cache")],
    &[("accept-encoding", "gzip, br")],
    &[("accept-encoding", "identity;q=0")],
    &[("authorization", "Basic YTpi")],
    &[("cookie", "a=1")],
    &[("host", "WWW.example")],
    &[("te", "trailers")],
    &[("expect", "100-continue")],
    &[("max-forwards", "0")],
    &[("content-length", "0")],
    &[("via", "1.1 other")],
    &[("x_method_override", "DELETE")],
    &[("x-http-method-override", "DELETE")],
    &[("priority", "u=1, i")],
    &[("a", "\u{1}")],
];

#[test]
fn each_request_gets_the_response_that_a_stream_gets() {
    let rig = Rig::start(ON);
    let mut client = Client::to(rig.proxy.address());
    let stream = Cell::new(store_in_memory(&rig, &mut client));
    let next = || stream.replace(stream.get() + 2);
    let methods = ["GET", "HEAD", "OPTIONS", "POST"];
    for (method, fields) in
        methods.into_iter().flat_map(|it| VARIANTS.iter().map(move |fields| (it, *fields)))
    {
        // Some of the requests replace the stored response.
        let is_settled =
            |client: &mut Client| rig.proxy.report().fills == 0 && is_at_once(client, get(next(), PATH));
        assert!(wait_until(LIMIT, || is_settled(&mut client)), "{method} {fields:?}");
        let at_once = ask(&mut client, next(), method, fields);
        assert!(wait_until(LIMIT, || is_settled(&mut client)), "{method} {fields:?}");
        let of_stream = ask(&mut client, next(), method, &[fields, &COOKIES].concat());
        assert_eq!(lasting(&at_once), lasting(&of_stream), "{method} {fields:?}");
        assert!(at_once.body == of_stream.body, "{method} {fields:?}");
    }
}

#[test]
fn each_authority_is_read_as_by_a_stream() {
    let rig = Rig::start(ON);
    let mut client = Client::to(rig.proxy.address());
    let mut streams = (store_in_memory(&rig, &mut client)..).step_by(2);
    for authority in [
        "www.example",
        "WWW.Example",
        "www.example:80",
        "www.example:8080",
        "www.example.",
        "[::1]:80",
        "a@www.example",
        "a,b",
        "a/b",
        "",
        "%77ww.example",
        "a:b",
    ] {
        let mut responses = |more: &[(&str, &str)]| {
            let fields =
                [(":method", "GET"), (":scheme", "http"), (":path", PATH), (":authority", authority)];
            let mut response = || {
                client.send(head(streams.next().unwrap(), &[&fields[..], more].concat(), END_STREAM));
                client.answers(1).remove(0).1
            };
            // The last one is from memory if it may be.
            for _ in 0..3 {
                response();
                assert!(wait_until(LIMIT, || rig.proxy.report().fills == 0));
            }
            response()
        };
        let (of_stream, at_once) = (responses(&COOKIES), responses(&[]));
        assert_eq!((lasting(&at_once), &at_once.body), (lasting(&of_stream), &of_stream.body), "{authority}");
    }
}

/// Fields of a response that do not depend on the version of HTTP.
fn of_any_version(fields: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value));
    let answer = Answer { fields: fields.collect(), ..Answer::default() };
    let mut fields = lasting(&answer);
    fields.retain(|(name, _)| !matches!(name.as_str(), ":status" | "connection" | "date" | "retry-after"));
    fields.sort();
    fields
}

/// Path, further fields of the request, and status of the response.
type Case = (&'static str, &'static [(&'static str, &'static str)], &'static str);

const PASSWORD: (&str, &str) = ("authorization", "Basic YW5uOmI=");

#[test]
fn rules_apply_to_hits_in_memory() {
    let (origin, other, dir) = (Origin::start(), Origin::start(), tempfile::tempdir().unwrap());
    let hash = bcrypt::hash_with_salt("b", 4, [7; 16]).unwrap();
    std::fs::write(dir.path().join("users"), format!("ann:{hash}\n")).unwrap();
    let edge = Edge::start(&format!(
        r#"
        {ON}
        pool.a.servers = ["{}"]
        pool.b.servers = ["{}"]
        [[site]]
        route = [
            {{ pool = "a" }},
            {{ path = "/200/60/1", pool = "a", response_headers = {{ set = {{ Server = "edge" }}, add = {{ X-A = "b" }}, remove = ["Cache-Control"] }} }},
            {{ path = "/200/60/2", pool = "a", request_headers = {{ remove = ["X-Kind"], add = {{ X-B = "c" }} }} }},
            {{ path = "/200/60/3", pool = "a", rate = {{ requests = 8, per = 86400 }} }},
            {{ path = "/200/60/4", pool = "a", auth = {{ users = "{}" }} }},
            {{ path = "/200/60/5", has_headers = {{ X-Staff = "1" }}, pool = "b" }},
            {{ path = "/200/60/5", pool = "a" }},
            {{ path = "/200/60/6", respond = {{ status = 403 }} }},
            {{ path = "/edge", rewrite = "/200", pool = "a" }},
        ]
        "#,
        origin.address,
        other.address,
        dir.path().join("users").display()
    ));
    let mut client = Client::to(edge.proxy.address());
    let mut streams = (1..).step_by(2);
    let cases: [Case; 12] = [
        ("/200/60/9/vary", &[("x-kind", "a")], "200"),
        ("/200/60/1/x", &[], "200"),
        ("/200/60/2/vary", &[("x-kind", "a")], "200"),
        ("/200/60/2/vary", &[("x-kind", "b")], "200"),
        ("/200/60/3/x", &[], "200"),
        ("/200/60/3/x", &[], "429"),
        ("/200/60/4/x", &[PASSWORD], "200"),
        ("/200/60/4/x", &[], "401"),
        ("/200/60/5/x", &[], "200"),
        ("/200/60/5/x", &[("x-staff", "1")], "200"),
        ("/200/60/6/x", &[], "403"),
        ("/edge/60/7/x", &[], "200"),
    ];
    for (path, more, status) in cases {
        let mut ask = || {
            let fields = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "h")];
            client.send(head(streams.next().unwrap(), &[&fields[..], more].concat(), END_STREAM));
            let answer = client.answers(1).remove(0).1;
            assert!(wait_until(LIMIT, || edge.proxy.report().fills == 0));
            answer
        };
        // The last one is from memory if it may be.
        let answer = (0..4).map(|_| ask()).last().unwrap();
        assert_eq!(answer.field(":status"), Some(status), "{path} {more:?}");
        let lines = more.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        let lines = lines.collect::<Vec<_>>().concat();
        let of_http_1 = edge.ask(&format!("GET {path}"), &lines);
        let fields = of_http_1.head.lines().filter_map(|line| line.split_once(": "));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(
            (of_any_version(answer.fields.into_iter()), answer.body),
            (of_any_version(fields), of_http_1.body),
            "{path} {more:?}"
        );
    }
    assert_eq!((origin.asked(), other.asked()), (7, 1));
}

/// A client that reads, and cancels hits which are answered in the same read.
#[test]
fn rapid_resets_of_hits_end_the_connection() {
    let rig = Rig::start(&format!("{ON}admin.listen = \"127.0.0.1:0\"\n"));
    let mut client = Client::to(rig.proxy.address());
    for stream in [1, 3] {
        client.get(stream, PATH);
        rig.wait_stored(1);
    }
    let pair = |stream: u32| [get(stream, PATH), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat();
    let ended = (1..500_u32).find(|round| {
        let mut batch: Vec<u8> = (0..10).flat_map(|number| pair((round * 10 + number) * 2 + 1)).collect();
        batch.extend(frame(PING, 0, 0, &[0; 8]));
        client.tcp.write_all(&batch).is_err() || client.until(PING).is_none()
    });
    assert!(ended.is_some());
    let metric = "strait_proxy_http2_abuse_total{limit=\"rapid_reset\"} 1";
    assert!(wait_until(LIMIT, || rig.show("/metrics").text().contains(metric)));
}
