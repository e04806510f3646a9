//! Hits in memory that HTTP/2 sends at once: the same responses as those of a stream, and only if
//! nothing has to wait.

use std::io::Write as _;

use lab::wait_until;
use strait_http2::FRAME_HEAD_BYTES;

use crate::http2::{
    Answer, Client, DATA, END_STREAM, HEADERS, ON, PING, RST_STREAM, WINDOW_UPDATE, frame, get, head,
};
use crate::rig::{LIMIT, Rig, body};

const PATH: &str = "/200/60/4096/a";

/// Fields whose values a stream's user joins.
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
        "age" => (name.clone(), String::new()),
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
