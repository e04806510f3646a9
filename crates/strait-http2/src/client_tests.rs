//! Client's side frame by frame: requests, responses, violations and limits of servers.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::frame::{FRAME_HEAD_BYTES, Head, PREFACE, flag, kind, number};
use crate::hpack::{Decoder, FieldList, encode};
use crate::{Abuse, Connection, ConnectionError, ErrorCode, Event, Limits};

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [&Head::new(payload.len(), kind, flags, stream).bytes()[..], payload].concat()
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        encode(name.as_bytes(), value.as_bytes(), &mut block);
    }
    block
}

const END: u8 = flag::END_STREAM;
const OK: (&str, &str) = (":status", "200");

fn head(stream: u32, fields: &[(&str, &str)], flags: u8) -> Vec<u8> {
    frame(kind::HEADERS, flag::END_HEADERS | flags, stream, &block(fields))
}

fn data(stream: u32, len: usize, flags: u8) -> Vec<u8> {
    frame(kind::DATA, flags, stream, &vec![b'x'; len])
}

fn settings(id: u16, value: u32) -> Vec<u8> {
    frame(kind::SETTINGS, 0, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

/// Connection to a server, after both prefaces.
struct Client {
    connection: Connection,
    now: Instant,
    events: Vec<String>,
}

impl Client {
    fn with(limits: Limits) -> Self {
        let now = Instant::now();
        let mut client = Self { connection: Connection::client(limits, now), now, events: Vec::new() };
        assert!(client.connection.output().starts_with(PREFACE));
        client.connection.sent(PREFACE.len());
        assert_eq!(client.output()[0].0.kind, kind::SETTINGS);
        client.take(&frame(kind::SETTINGS, 0, 0, &[])).unwrap();
        client.output();
        client
    }

    fn new() -> Self {
        Self::with(Limits::of_client())
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        let mut rest = bytes;
        loop {
            let (used, event) = self.connection.next(self.now, rest)?;
            rest = &rest[used..];
            match event {
                Some(Event::Body { stream, bytes, is_last }) => {
                    self.events.push(format!("body {stream} {} {is_last}", bytes.len()));
                }
                Some(Event::Response { stream, is_last }) => {
                    let response = self.connection.response().unwrap();
                    self.events.push(format!("{} {stream} {is_last}", response.status));
                }
                Some(Event::Trailers { stream }) => {
                    let names: Vec<_> =
                        self.connection.trailers().map(|(name, _)| String::from_utf8_lossy(name)).collect();
                    self.events.push(format!("trailers {stream} {}", names.join(" ")));
                }
                Some(Event::Reset { stream, code }) => self.events.push(format!("reset {stream} {code}")),
                Some(other) => self.events.push(format!("{other:?}")),
                None if used == 0 => return Ok(()),
                None => {}
            }
        }
    }

    fn events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    fn output(&mut self) -> Vec<(Head, Vec<u8>)> {
        let bytes = self.connection.output().to_vec();
        self.connection.sent(bytes.len());
        let (mut rest, mut frames) = (&bytes[..], Vec::new());
        while let Some((head, payload)) = rest.split_first_chunk::<FRAME_HEAD_BYTES>() {
            let head = Head::parse(*head);
            frames.push((head, payload[..head.len].to_vec()));
            rest = &payload[head.len..];
        }
        frames
    }

    fn resets(&mut self) -> Vec<(u32, u32)> {
        let frames = self.output().into_iter().filter(|(head, _)| head.kind == kind::RST_STREAM);
        frames.map(|(head, code)| (head.stream, number(&code).unwrap())).collect()
    }

    fn ask(&mut self, method: &str, more: &[(&str, &str)], ends: bool) -> Result<u32, ConnectionError> {
        let own = [(":method", method), (":scheme", "http"), (":authority", "a"), (":path", "/")];
        let all = [&own[..], more].concat();
        let fields = all.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        self.connection.open_request(fields, ends, method == "HEAD").map(|(stream, _)| stream)
    }

    fn get(&mut self) -> u32 {
        self.ask("GET", &[], true).unwrap()
    }

    /// Passes `next(0)`, `next(1)` and so on until the connection ends; returns the limit.
    fn flood(&mut self, next: impl Fn(u32) -> Vec<u8>) -> Option<Abuse> {
        (0..200_000).find_map(|index| {
            let error = self.take(&next(index)).err()?;
            let (head, payload) = self.output().pop().unwrap();
            assert_eq!((head.kind, number(&payload)), (kind::GOAWAY, Some(0)));
            assert_eq!(number(&payload[4..]), Some(error.code as u32));
            error.abuse
        })
    }
}

#[test]
fn request_and_response_have_bodies_and_trailers() {
    let mut client = Client::new();
    let stream = client.ask("POST", &[("te", "trailers")], false).unwrap();
    client.connection.push_data(stream, b"hello", false);
    let trailers = [(&b"x-end"[..], &b"1"[..])];
    assert!(client.connection.end_with_trailers(stream, trailers.into_iter()) > 0);
    let frames = client.output();
    let kinds: Vec<_> = frames.iter().map(|(head, _)| (head.kind, head.flags & END)).collect();
    assert_eq!(kinds, [(kind::HEADERS, 0), (kind::DATA, 0), (kind::HEADERS, END)]);
    let (mut decoder, mut list) = (Decoder::new(4096), FieldList::new(1 << 16, 100));
    decoder.decode(&frames[0].1, &mut list).unwrap();
    assert_eq!(list.iter().next(), Some((&b":method"[..], &b"POST"[..])));
    client
        .take(
            &[
                head(stream, &[(":status", "103")], 0),
                head(stream, &[OK, ("content-length", "3")], 0),
                data(stream, 3, 0),
                head(stream, &[("grpc-status", "0")], END),
            ]
            .concat(),
        )
        .unwrap();
    assert_eq!(client.events(), ["103 1 false", "200 1 false", "body 1 3 false", "trailers 1 grpc-status"]);
    client.connection.release(stream);
    assert!(client.resets().is_empty() && client.connection.streams() == 0);
}

#[test]
fn requests_that_could_become_others_are_not_sent() {
    let mut client = Client::new();
    for (name, value) in [
        ("a", "b\r\nc: d"),
        ("a", "b\nc: d"),
        ("a", "b\0"),
        ("a", " b"),
        ("A", "b"),
        ("a b", "c"),
        ("", "c"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("te", "gzip"),
        (":path", "/ HTTP/1.1\r\n"),
        (":authority", "a b"),
    ] {
        assert!(client.ask("GET", &[(name, value)], true).is_err(), "{name:?}: {value:?}");
    }
    assert!(client.output().is_empty() && client.connection.streams() == 0);
    assert_eq!(client.get(), 1);
}

#[test]
fn length_of_a_response_is_checked_unless_it_has_no_content() {
    let length = |length| ("content-length", length);
    for (method, frames, expected) in [
        ("GET", [head(1, &[OK, length("3")], 0), data(1, 2, END)].concat(), "reset 1 1"),
        ("GET", [head(1, &[OK, length("3")], 0), data(1, 4, 0)].concat(), "reset 1 1"),
        ("GET", [head(1, &[OK, length("3")], 0), head(1, &[("a", "b")], END)].concat(), "reset 1 1"),
        ("GET", head(1, &[OK, length("3")], END), "reset 1 1"),
        ("GET", head(1, &[(":status", "304"), length("3")], END), "304 1 true"),
        ("GET", [head(1, &[(":status", "204")], 0), data(1, 1, 0)].concat(), "reset 1 1"),
        ("HEAD", head(1, &[OK, length("3")], END), "200 1 true"),
        ("HEAD", [head(1, &[OK], 0), data(1, 1, END)].concat(), "reset 1 1"),
        ("GET", [head(1, &[OK], 0), data(1, 0, END)].concat(), "body 1 0 true"),
        ("GET", data(1, 1, 0), "reset 1 1"),
        ("GET", head(1, &[(":status", "103")], END), "reset 1 1"),
        ("GET", [head(1, &[OK], 0), head(1, &[("a", "b")], 0)].concat(), "reset 1 1"),
        ("GET", [head(1, &[OK], 0), head(1, &[(":status", "200")], END)].concat(), "reset 1 1"),
    ] {
        let mut client = Client::new();
        client.ask(method, &[], true).unwrap();
        client.take(&frames).unwrap();
        assert_eq!(client.events().last().map(String::as_str), Some(expected), "{method} {frames:?}");
    }
}

#[test]
fn maximum_of_streams_is_the_least_of_both_sides() {
    let mut client = Client::with(Limits { streams: 3, ..Limits::of_client() });
    for stream in [1, 3, 5] {
        assert!(client.connection.can_open());
        assert_eq!(client.get(), stream);
    }
    assert!(!client.connection.can_open());
    client.take(&settings(3, 2)).unwrap();
    client.take(&[head(1, &[OK], END), head(3, &[OK], END)].concat()).unwrap();
    // Their users still read.
    assert!(!client.connection.can_open());
    client.connection.release(1);
    client.connection.release(3);
    assert!(client.connection.can_open());
    assert_eq!(client.get(), 7);
    assert!(!client.connection.can_open());
    client.connection.release(7);
    assert_eq!(client.resets(), [(7, ErrorCode::Cancel as u32)]);
    assert!(client.connection.can_open());
    // A late frame of the cancelled stream.
    client.take(&[head(7, &[OK], 0), data(7, 100, END)].concat()).unwrap();
    client.take(&settings(3, 0)).unwrap();
    assert!(!client.connection.can_open() && !client.connection.is_leaving());
}

#[test]
fn go_away_and_refusals_show_the_requests_that_were_not_processed() {
    let mut client = Client::new();
    assert_eq!([(); 3].map(|()| client.get()), [1, 3, 5]);
    client.take(&frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 7])).unwrap();
    client.take(&frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0])).unwrap();
    assert_eq!(client.events(), ["reset 1 7", "GoAway { last_stream: 3 }"]);
    assert!(!client.connection.can_open() && client.connection.is_leaving());
    // The others go on.
    client.take(&head(3, &[OK], END)).unwrap();
    assert_eq!(client.events(), ["200 3 true"]);
}

#[test]
fn slow_reader_stops_its_stream_and_no_other() {
    let mut client = Client::new();
    let window = Limits::of_client().stream_window as usize;
    for stream in [1, 3, 5, 7, 9, 11] {
        client.get();
        client.take(&head(stream, &[OK], 0)).unwrap();
        (0..window >> 14).for_each(|_| client.take(&data(stream, 16 << 10, 0)).unwrap());
    }
    // Nothing was consumed, and all of the connection's window was announced again.
    let windows: Vec<_> =
        client.output().into_iter().filter(|(head, _)| head.kind == kind::WINDOW_UPDATE).collect();
    assert!(!windows.is_empty() && windows.iter().all(|(head, _)| head.stream == 0));
    client.take(&data(1, 1, 0)).unwrap();
    assert_eq!(client.events().last().unwrap(), "reset 1 3");
    client.connection.consumed(3, window / 2);
    let (head, payload) = client.output().pop().unwrap();
    assert_eq!((head.kind, head.stream, number(&payload)), (kind::WINDOW_UPDATE, 3, Some(window as u32 / 2)));
}

#[test]
fn windows_of_the_server_hold() {
    let mut client = Client::new();
    client.take(&settings(4, 10)).unwrap();
    let stream = client.ask("POST", &[], false).unwrap();
    assert_eq!(client.connection.window(stream), 10);
    client.connection.push_data(stream, &[0; 10], false);
    assert_eq!(client.connection.window(stream), 0);
    client.take(&settings(4, 15)).unwrap();
    assert_eq!(client.connection.window(stream), 5);
    client.take(&frame(kind::WINDOW_UPDATE, 0, stream, &[0, 0, 1, 0])).unwrap();
    assert_eq!(client.connection.window(stream), 261);
}

#[test]
fn violations_of_a_server_end_the_connection() {
    let promise = [&[0, 0, 0, 2][..], &block(&[OK])].concat();
    for bytes in [
        frame(kind::PUSH_PROMISE, flag::END_HEADERS, 1, &promise),
        head(2, &[OK], 0),
        head(3, &[OK], 0),
        data(3, 1, 0),
        frame(kind::PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 1]),
        settings(2, 1),
        frame(kind::RST_STREAM, 0, 3, &[0; 4]),
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
    ] {
        let mut client = Client::new();
        client.get();
        assert!(client.take(&bytes).is_err(), "{bytes:?}");
    }
    let mut client = Client::new();
    client.get();
    client.take(&frame(kind::PING, 0, 0, b"12345678")).unwrap();
    assert_eq!(client.output().pop().unwrap().1, b"12345678");
}

#[test]
fn floods_of_a_server_end_the_connection() {
    let flood = |next: &dyn Fn(u32) -> Vec<u8>| {
        let mut client = Client::new();
        client.get();
        client.flood(next)
    };
    assert_eq!(flood(&|_| frame(kind::PING, 0, 0, &[0; 8])), Some(Abuse::Ping));
    assert_eq!(flood(&|_| frame(kind::SETTINGS, 0, 0, &[])), Some(Abuse::Settings));
    assert_eq!(flood(&|_| frame(0xee, 0, 0, &[])), Some(Abuse::Unknown));
    assert_eq!(flood(&|_| frame(kind::RST_STREAM, 0, 1, &[0; 4])), Some(Abuse::RapidReset));
    assert_eq!(flood(&|_| head(1, &[(":status", "103")], 0)), Some(Abuse::StreamErrors));
    assert_eq!(flood(&|_| head(1, &[(":status", "20")], 0)), Some(Abuse::StreamErrors));
    assert_eq!(
        flood(&|index| if index == 0 { head(1, &[OK], 0) } else { data(1, 0, 0) }),
        Some(Abuse::SmallData)
    );
    assert_eq!(
        flood(&|index| match index {
            0 => frame(kind::HEADERS, 0, 1, &block(&[OK])),
            _ => frame(kind::CONTINUATION, 0, 1, &block(&[("a", "b")])),
        }),
        Some(Abuse::Continuation)
    );
    assert_eq!(flood(&|_| frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])), Some(Abuse::WindowUpdate));
}

#[test]
fn short_messages_are_no_flood() {
    let mut client = Client::new();
    client.get();
    client.take(&head(1, &[OK], 0)).unwrap();
    for _ in 0..100 {
        client.now += Duration::from_millis(100);
        for _ in 0..2000 {
            client.take(&data(1, 20, 0)).unwrap();
            client.connection.consumed(1, 20);
            client.output();
        }
    }
}

#[test]
fn end_of_a_complete_response_is_awaited_and_not_reset() {
    let mut client = Client::new();
    let length = ("content-length", "3");
    for stream in [1, 3] {
        client.get();
        client.take(&[head(stream, &[OK, length], 0), data(stream, 3, 0)].concat()).unwrap();
        client.connection.release(stream);
    }
    assert!(client.resets().is_empty() && client.connection.streams() == 2);
    client.events();
    client.take(&[data(1, 0, END), head(3, &[("a", "b")], END)].concat()).unwrap();
    assert!(client.events().is_empty() && client.resets().is_empty() && client.connection.streams() == 0);
    // Ends that never come have a limit.
    for index in 0..50 {
        let stream = client.get();
        assert_eq!(stream, 5 + 2 * index);
        client.take(&[head(stream, &[OK, length], 0), data(stream, 3, 0)].concat()).unwrap();
        client.connection.release(stream);
    }
    assert_eq!(client.connection.streams(), 16);
    let cancelled: Vec<_> = (5..73).step_by(2).map(|stream| (stream, 8)).collect();
    assert_eq!(client.resets(), cancelled);
}

/// A server counts them as open: without a reset it would refuse the next request.
#[test]
fn stream_that_waits_for_its_end_makes_room_for_a_request() {
    let mut client = Client::new();
    client.take(&settings(3, 2)).unwrap();
    let length = ("content-length", "3");
    for stream in [1, 3] {
        assert_eq!(client.get(), stream);
    }
    assert!(!client.connection.can_open());
    client.take(&[head(1, &[OK, length], 0), data(1, 3, 0)].concat()).unwrap();
    client.connection.release(1);
    assert_eq!((client.connection.room(), client.resets()), (1, vec![]));
    assert!(client.connection.opens_by_reset());
    assert_eq!(client.get(), 5);
    let frames = client.output().into_iter().map(|(head, _)| (head.kind, head.stream));
    assert_eq!(frames.collect::<Vec<_>>(), [(kind::RST_STREAM, 1), (kind::HEADERS, 5)]);
    // The others have users.
    assert!(!client.connection.can_open());
    // One that has ended needs no reset.
    client.take(&[head(3, &[OK, length], 0), data(3, 3, 0)].concat()).unwrap();
    client.connection.release(3);
    assert!(client.connection.opens_by_reset());
    client.take(&data(3, 0, END)).unwrap();
    assert!(!client.connection.opens_by_reset());
    assert_eq!((client.get(), client.resets()), (7, vec![]));
}

#[test]
fn late_data_of_many_cancelled_requests_ends_no_connection() {
    let mut client = Client::new();
    for _ in 0..1000 {
        let stream = client.get();
        client.connection.release(stream);
    }
    assert_eq!(client.resets().len(), 1000);
    for stream in (1..2000).step_by(2) {
        let trailers = head(stream, &[("grpc-status", "0")], flag::END_STREAM);
        client.take(&[head(stream, &[OK], 0), data(stream, 1000, 0), trailers].concat()).unwrap();
    }
    for stream in (1..2000).step_by(2) {
        (0..10).for_each(|_| client.take(&data(stream, 1000, 0)).unwrap());
    }
    assert!(client.resets().is_empty());
}

#[test]
fn stream_that_was_reset_gets_no_turn() {
    let mut client = Client::new();
    let (one, other) = (client.ask("POST", &[], false).unwrap(), client.ask("POST", &[], false).unwrap());
    client.connection.want(one, true);
    client.connection.want(other, true);
    client.take(&frame(kind::RST_STREAM, 0, one, &[0, 0, 0, 8])).unwrap();
    assert_eq!((client.connection.grant(), client.connection.grant()), (Some(other), None));
}

proptest! {
    /// No input makes the connection panic, and events do not depend on how it is divided.
    #[test]
    fn input_may_be_divided_anywhere(
        kinds in prop::collection::vec((0..12_u8, any::<u8>(), 0..6_u32, prop::collection::vec(any::<u8>(), 0..40)), 0..20),
        cut in 1..20_usize,
    ) {
        let bytes: Vec<u8> =
            kinds.iter().flat_map(|(kind, flags, stream, payload)| frame(*kind, *flags, *stream, payload)).collect();
        let begin = || {
            let mut client = Client::new();
            client.get();
            client.ask("POST", &[], false).unwrap();
            client
        };
        let mut whole = begin();
        let is_valid = whole.take(&bytes).is_ok();
        let mut parts = begin();
        let mut held = Vec::new();
        let mut is_valid_in_parts = true;
        for piece in bytes.chunks(cut) {
            held.extend_from_slice(piece);
            let mut at = 0;
            loop {
                let Ok((used, event)) = parts.connection.next(parts.now, &held[at..]) else {
                    is_valid_in_parts = false;
                    break;
                };
                at += used;
                if used == 0 && event.is_none() {
                    break;
                }
            }
            if !is_valid_in_parts {
                break;
            }
            held.drain(..at);
        }
        prop_assert_eq!(is_valid, is_valid_in_parts);
        prop_assert_eq!(whole.connection.streams(), parts.connection.streams());
    }
}
