//! Connections frame by frame: events, output, violations and limits.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::frame::{FRAME_HEAD_BYTES, Head, PREFACE, flag, kind, number};
use crate::hpack::encode;
use crate::{Abuse, Connection, ConnectionError, ErrorCode, Event, Limits};

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [&Head::new(payload.len(), kind, flags, stream).bytes()[..], payload].concat()
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        encode(name.as_bytes(), value.as_bytes(), &mut block);
    }
    block
}

const GET: &[(&str, &str)] = &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];

pub(crate) fn get(stream: u32) -> Vec<u8> {
    frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &block(GET))
}

fn post(stream: u32, more: &[(&str, &str)]) -> Vec<u8> {
    let fields = [&[(":method", "POST")], &GET[1..], more].concat();
    frame(kind::HEADERS, flag::END_HEADERS, stream, &block(&fields))
}

fn data(stream: u32, len: usize, flags: u8) -> Vec<u8> {
    frame(kind::DATA, flags, stream, &vec![b'x'; len])
}

fn cancel(stream: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])
}

pub(crate) fn settings(id: u16, value: u32) -> Vec<u8> {
    frame(kind::SETTINGS, 0, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

/// Connection after both prefaces.
pub(crate) struct Server {
    pub(crate) connection: Connection,
    now: Instant,
    events: Vec<String>,
}

impl Server {
    fn with(limits: Limits) -> Self {
        let now = Instant::now();
        let mut server = Self { connection: Connection::new(limits, now), now, events: Vec::new() };
        server.take(&[PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat()).unwrap();
        server.output();
        server
    }

    pub(crate) fn new() -> Self {
        Self::with(Limits::default())
    }

    /// Passes bytes, and notes the events; returns the bytes that are not used yet.
    pub(crate) fn take<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], ConnectionError> {
        let mut rest = bytes;
        loop {
            let (used, event) = self.connection.next(self.now, rest)?;
            rest = &rest[used..];
            match event {
                Some(Event::Body { stream, bytes, is_last }) => {
                    self.events.push(format!("body {stream} {} {is_last}", bytes.len()));
                }
                Some(Event::Request { stream, is_last }) => {
                    let request = self.connection.request().unwrap();
                    let (method, path) = (request.method, request.path.unwrap_or_default());
                    self.events.push(format!("{method} {path} {stream} {is_last}"));
                }
                Some(other) => self.events.push(format!("{other:?}")),
                None if used == 0 => return Ok(rest),
                None => {}
            }
        }
    }

    fn events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// Takes the output as frames.
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

    /// Takes the output: the codes of RST_STREAM frames.
    fn resets(&mut self) -> Vec<(u32, u32)> {
        let frames = self.output().into_iter().filter(|(head, _)| head.kind == kind::RST_STREAM);
        frames.map(|(head, code)| (head.stream, number(&code).unwrap())).collect()
    }

    fn respond(&mut self, stream: u32, ends: bool) {
        let fields = [(&b":status"[..], &b"200"[..])];
        assert!(self.connection.respond(stream, fields.into_iter(), ends) > 0);
    }

    /// Passes `next(0)`, `next(1)` and so on until the connection ends; returns the limit.
    fn flood(&mut self, next: impl Fn(u32) -> Vec<u8>) -> Option<Abuse> {
        for index in 0..100_000 {
            if let Err(error) = self.take(&next(index)) {
                let (head, payload) = self.output().pop().unwrap();
                assert_eq!((head.kind, number(&payload[4..])), (kind::GOAWAY, Some(error.code as u32)));
                return error.abuse;
            }
            self.connection.sent(self.connection.output().len());
        }
        None
    }
}

#[test]
fn request_with_a_body_is_read_and_answered() {
    let mut server = Server::new();
    let trailers = frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 3, &block(&[("a", "b")]));
    server.take(&[get(1), post(3, &[("content-length", "5")]), data(3, 5, 0), trailers].concat()).unwrap();
    assert_eq!(
        server.events(),
        ["GET / 1 true", "POST / 3 false", "body 3 5 false", "Trailers { stream: 3 }"]
    );
    server.respond(3, false);
    assert_eq!(server.connection.push_data(3, b"hello", true), FRAME_HEAD_BYTES);
    let frames = server.output();
    assert_eq!(frames[0].0.kind, kind::HEADERS);
    // The first block of a connection gives up the dynamic table.
    assert_eq!(frames[0].1, [0x20, 0x88]);
    assert_eq!((frames[1].0.flags, &frames[1].1[..]), (flag::END_STREAM, &b"hello"[..]));
    server.connection.release(3);
    server.connection.release(1);
    assert_eq!(server.resets(), [(1, ErrorCode::Internal as u32)], "an unanswered request");
    assert_eq!(server.connection.streams(), 0);
}

#[test]
fn rest_of_a_request_is_refused_after_its_response() {
    let mut server = Server::new();
    server.take(&[post(1, &[]), data(1, 300, 0)].concat()).unwrap();
    server.respond(1, true);
    server.connection.release(1);
    assert_eq!(server.resets(), [(1, ErrorCode::NoError as u32)]);
    server.events();
    server.take(&[data(1, 300, flag::END_STREAM), get(3)].concat()).unwrap();
    assert_eq!(server.events(), ["GET / 3 true"], "late data is discarded");
}

#[test]
fn padding_is_removed_and_counts_for_windows() {
    let mut server = Server::new();
    server.take(&post(1, &[])).unwrap();
    let before = server.connection.receive_window;
    let padded = [&[3][..], b"hello", &[0; 3]].concat();
    server.take(&frame(kind::DATA, flag::PADDED | flag::END_STREAM, 1, &padded)).unwrap();
    assert_eq!(server.events()[1..], ["body 1 5 true"]);
    assert_eq!(before - server.connection.receive_window, 9);
    let error = server.take(&frame(kind::DATA, flag::PADDED, 1, &[9, 1, 2])).unwrap_err();
    assert_eq!(error.code, ErrorCode::Protocol);
}

#[test]
fn window_is_announced_when_half_is_consumed() {
    let mut server = Server::new();
    let half = Limits::default().stream_window as usize / 2;
    server.take(&post(1, &[])).unwrap();
    for _ in 0..2 {
        server.take(&data(1, half / 2, 0)).unwrap();
        assert!(server.output().is_empty());
        server.connection.consumed(1, half / 2);
    }
    let frames = server.output();
    assert_eq!((frames.len(), number(&frames[0].1)), (1, Some(half as u32)));
    // A client that sends more than it may is cut off.
    server
        .take(&[data(1, 16_384, 0), data(1, 16_384, 0), data(1, 16_384, 0), data(1, 16_384, 0)].concat())
        .unwrap();
    server.take(&data(1, 1, 0)).unwrap();
    assert_eq!(server.resets(), [(1, ErrorCode::FlowControl as u32)]);
}

#[test]
fn data_waits_for_windows() {
    let mut server = Server::new();
    server.take(&[settings(4, 10), get(1)].concat()).unwrap();
    assert_eq!(server.connection.window(1), 0, "no head was sent");
    assert_eq!(server.connection.window_after_head(1), 10);
    server.respond(1, false);
    assert_eq!((server.connection.window(1), server.connection.window_after_head(1)), (10, 0));
    server.connection.push_data(1, b"0123456789", false);
    assert_eq!(server.connection.window(1), 0);
    // A reduced setting makes a window negative.
    server.take(&settings(4, 4)).unwrap();
    server.take(&frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 6])).unwrap();
    assert_eq!(server.connection.window(1), 0);
    server.take(&frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 3])).unwrap();
    assert_eq!(server.connection.window(1), 3);
    let error = server.take(&frame(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255])).unwrap_err();
    assert_eq!(error.code, ErrorCode::FlowControl);
}

#[test]
fn head_can_be_taken_once_for_each_request() {
    let mut server = Server::new();
    assert!(server.connection.take_request().is_none());
    server.take(&get(1)).unwrap();
    let head = server.connection.take_request().unwrap();
    assert!(server.connection.take_request().is_none() && server.connection.request().is_err());
    server.respond(1, true);
    assert_eq!((head.request().method, head.request().path), ("GET", Some("/")));
    server.take(&post(3, &[])).unwrap();
    // A head of an earlier request does not replace this one.
    server.connection.give_back(head);
    let head = server.connection.take_request().unwrap();
    assert_eq!(head.request().text_fields().count(), 0);
    server.connection.give_back(head);
    assert!(server.connection.take_request().is_none());
    server.take(&[data(3, 0, flag::END_STREAM), get(5)].concat()).unwrap();
    assert_eq!(server.connection.request().unwrap().method, "GET");
    // Trailers are no request.
    server.take(&[post(7, &[]), frame(kind::HEADERS, 5, 7, &block(&[("a", "b")]))].concat()).unwrap();
    assert!(server.connection.take_request().is_none());
}

#[test]
fn waiting_streams_are_those_that_may_send() {
    let mut server = Server::new();
    server.take(&[settings(4, 0), get(1)].concat()).unwrap();
    server.respond(1, false);
    server.connection.want(1, true);
    assert!(!server.connection.has_waiting(), "no window");
    server.take(&frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 6])).unwrap();
    assert!(server.connection.has_waiting());
    assert_eq!(server.connection.grant(), Some(1));
    assert!(!server.connection.has_waiting());
}

#[test]
fn priorities_are_noted_unless_they_are_the_default() {
    let with = |value: &str| {
        let fields = [GET, &[("priority", value)]].concat();
        frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &block(&fields))
    };
    let update = frame(kind::PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 9, b'u', b'=', b'0']);
    for (bytes, expected) in [(get(1), false), (with("u=3, i"), false), (with("u=1"), true), (update, true)] {
        let mut server = Server::new();
        server.take(&bytes).unwrap();
        assert_eq!(server.connection.has_priorities(), expected, "{bytes:?}");
    }
    let mut server = Server::new();
    server.take(&get(1)).unwrap();
    let fields = [(&b":status"[..], &b"200"[..]), (b"priority", b"u=5")];
    server.connection.respond(1, fields.into_iter(), false);
    assert!(server.connection.has_priorities());
}

#[test]
fn streams_take_turns_by_urgency() {
    let mut server = Server::new();
    let urgent = |stream, value: &str| {
        let fields = [GET, &[("priority", value)]].concat();
        frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &block(&fields))
    };
    server.take(&[get(1), get(3), urgent(5, "u=2"), urgent(7, "u=2"), urgent(9, "u=6, i")].concat()).unwrap();
    for stream in [1, 3, 5, 7, 9] {
        server.respond(stream, false);
    }
    let grants = |server: &mut Server, wanting: &[u32]| {
        let mut order = Vec::new();
        for _ in 0..4 {
            for stream in wanting {
                server.connection.want(*stream, true);
            }
            order.extend(server.connection.grant());
            for stream in wanting {
                server.connection.want(*stream, false);
            }
        }
        order
    };
    assert_eq!(grants(&mut server, &[1, 3, 5, 7, 9]), [5, 5, 5, 5], "one after the other");
    assert_eq!(grants(&mut server, &[1, 3, 9]), [1, 3, 1, 3], "in turns");
    server.take(&frame(kind::PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 9, b'u', b'=', b'0'])).unwrap();
    assert_eq!(grants(&mut server, &[1, 3, 9]), [9, 9, 9, 9]);
    assert_eq!(grants(&mut server, &[]), []);
}

/// RFC 9218, section 8: also after the client has sent another priority.
#[test]
fn priority_of_a_response_comes_before_that_of_its_client() {
    let mut server = Server::new();
    server.take(&[get(1), get(3)].concat()).unwrap();
    let fields = [(":status", "200"), ("priority", "u=5"), ("priority", "i=?0")];
    let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    // That of an interim response is none.
    server.connection.respond_interim(1, [(&b":status"[..], &b"103"[..]), (b"priority", b"u=7")].into_iter());
    server.connection.respond(1, fields, false);
    server.respond(3, false);
    let first = |server: &mut Server| {
        for stream in [1, 3] {
            server.connection.want(stream, true);
        }
        server.connection.grant()
    };
    assert_eq!(first(&mut server), Some(3));
    for (urgency, expected) in [(b'6', Some(1)), (b'4', Some(3))] {
        server.take(&frame(kind::PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 1, b'u', b'=', b'0'])).unwrap();
        server.take(&frame(kind::PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 3, b'u', b'=', urgency])).unwrap();
        assert_eq!(first(&mut server), expected, "{urgency}");
    }
}

#[test]
fn violations_end_the_stream_or_the_connection() {
    let ends = |bytes: Vec<u8>| {
        let mut server = Server::new();
        server.take(&bytes).map(|_| server.resets()).map_err(|error| error.code)
    };
    let reset = |stream, code: ErrorCode| Ok(vec![(stream, code as u32)]);
    for (bytes, expected) in [
        (data(1, 1, 0), Err(ErrorCode::Protocol)),
        (data(0, 1, 0), Err(ErrorCode::Protocol)),
        (get(2), Err(ErrorCode::Protocol)),
        (get(0), Err(ErrorCode::Protocol)),
        ([get(3), get(1)].concat(), Err(ErrorCode::StreamClosed)),
        ([get(1), data(1, 1, 0)].concat(), reset(1, ErrorCode::StreamClosed)),
        ([get(1), get(1)].concat(), reset(1, ErrorCode::StreamClosed)),
        // Once the client has reset a stream, it may send nothing more on it.
        ([post(1, &[]), cancel(1), data(1, 1, 0)].concat(), reset(1, ErrorCode::StreamClosed)),
        ([post(1, &[]), cancel(1), get(1)].concat(), reset(1, ErrorCode::StreamClosed)),
        ([post(1, &[]), post(1, &[])].concat(), reset(1, ErrorCode::Protocol)),
        ([post(1, &[("content-length", "2")]), data(1, 1, 1)].concat(), reset(1, ErrorCode::Protocol)),
        ([post(1, &[("content-length", "2")]), data(1, 3, 0)].concat(), reset(1, ErrorCode::Protocol)),
        (post(1, &[("connection", "close")]), reset(1, ErrorCode::Protocol)),
        (frame(kind::HEADERS, flag::END_HEADERS, 1, &[0x80]), Err(ErrorCode::Compression)),
        (frame(kind::HEADERS, 0, 1, &[]), Ok(vec![])),
        (
            [frame(kind::HEADERS, 0, 1, &[]), frame(kind::PING, 0, 0, &[0; 8])].concat(),
            Err(ErrorCode::Protocol),
        ),
        (frame(kind::CONTINUATION, 0, 1, &[]), Err(ErrorCode::Protocol)),
        (frame(kind::PUSH_PROMISE, 0, 1, &[]), Err(ErrorCode::Protocol)),
        (frame(kind::RST_STREAM, 0, 1, &[0; 4]), Err(ErrorCode::Protocol)),
        (frame(kind::RST_STREAM, 0, 0, &[0; 4]), Err(ErrorCode::Protocol)),
        ([get(1), frame(kind::RST_STREAM, 0, 1, &[0; 3])].concat(), Err(ErrorCode::FrameSize)),
        (frame(kind::PING, 0, 0, &[0; 7]), Err(ErrorCode::FrameSize)),
        (frame(kind::PING, 0, 1, &[0; 8]), Err(ErrorCode::Protocol)),
        (frame(kind::SETTINGS, 0, 0, &[0; 5]), Err(ErrorCode::FrameSize)),
        (frame(kind::SETTINGS, flag::ACK, 0, &[0; 6]), Err(ErrorCode::FrameSize)),
        (frame(kind::SETTINGS, 0, 1, &[]), Err(ErrorCode::Protocol)),
        (settings(2, 2), Err(ErrorCode::Protocol)),
        (settings(4, 1 << 31), Err(ErrorCode::FlowControl)),
        (settings(5, 16_383), Err(ErrorCode::Protocol)),
        (frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4]), Err(ErrorCode::Protocol)),
        (frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), Err(ErrorCode::Protocol)),
        ([get(1), frame(kind::WINDOW_UPDATE, 0, 1, &[0; 4])].concat(), reset(1, ErrorCode::Protocol)),
        (frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 0]), Err(ErrorCode::Protocol)),
        (frame(kind::PRIORITY, 0, 1, &[0; 4]), reset(1, ErrorCode::FrameSize)),
        (frame(kind::GOAWAY, 0, 1, &[0; 8]), Err(ErrorCode::Protocol)),
        (frame(0x77, 0xff, 9, &[0; 100]), Ok(vec![])),
        (vec![0, 64, 1, 0, 0, 0, 0, 0, 1], Err(ErrorCode::FrameSize)),
    ] {
        assert_eq!(ends(bytes.clone()), expected, "{bytes:?}");
    }
    let mut connection = Connection::new(Limits::default(), Instant::now());
    assert!(connection.next(Instant::now(), b"GET / HTTP/1.1\r\n").is_err());
    let mut connection = Connection::new(Limits::default(), Instant::now());
    let bytes = [PREFACE, &frame(kind::PING, 0, 0, &[0; 8])].concat();
    assert!(connection.next(Instant::now(), &bytes).is_err(), "no SETTINGS");
}

#[test]
fn long_heads_are_reported_and_split() {
    let mut server = Server::new();
    let long = "x".repeat(30_000);
    let fields = block(&[GET, &[("a", &long)]].concat());
    let head = |stream, block: &[u8]| {
        let mut pieces = block.chunks(16_000);
        let first = frame(kind::HEADERS, flag::END_STREAM, stream, pieces.next().unwrap());
        let rest =
            pieces.map(|piece| frame(kind::CONTINUATION, 0, stream, piece)).collect::<Vec<_>>().concat();
        [first, rest, frame(kind::CONTINUATION, flag::END_HEADERS, stream, &[])].concat()
    };
    server.take(&head(1, &fields)).unwrap();
    server.take(&head(3, &[&fields[..], &block(&[("b", &long)])].concat())).unwrap();
    assert_eq!(server.events(), ["GET / 1 true", "TooLarge { stream: 3 }"]);
    server.connection.respond(
        1,
        [(&b":status"[..], &b"200"[..]), (b"a", long.repeat(2).as_bytes())].into_iter(),
        true,
    );
    let frames = server.output();
    let kinds: Vec<_> = frames.iter().map(|(head, _)| (head.kind, head.flags)).collect();
    assert_eq!(
        kinds,
        [
            (kind::HEADERS, flag::END_STREAM),
            (kind::CONTINUATION, 0),
            (kind::CONTINUATION, 0),
            (kind::CONTINUATION, flag::END_HEADERS)
        ]
    );
}

#[test]
fn streams_count_until_they_are_released() {
    let mut server = Server::with(Limits { streams: 2, ..Limits::default() });
    server.take(&[get(1), get(3), get(5)].concat()).unwrap();
    assert_eq!(server.resets(), [(5, ErrorCode::RefusedStream as u32)]);
    // Cancelled requests are under way until they are released.
    server.take(&[cancel(1), cancel(3), get(7), get(9), cancel(7), cancel(9), get(11)].concat()).unwrap();
    assert_eq!(server.resets(), [(11, ErrorCode::RefusedStream as u32)]);
    assert_eq!(server.connection.streams(), 4);
    server.connection.release(1);
    server.take(&get(13)).unwrap();
    assert!(server.connection.is_open(13) && server.resets().is_empty());
    server.connection.go_away();
    server.take(&get(15)).unwrap();
    assert_eq!(server.resets(), [(15, ErrorCode::RefusedStream as u32)]);
}

#[test]
fn streams_are_accepted_after_the_announcement_of_the_end() {
    let mut server = Server::with(Limits::default());
    let last_streams = |server: &mut Server| {
        let frames = server.output().into_iter().filter(|(head, _)| head.kind == kind::GOAWAY);
        frames.map(|(_, payload)| number(&payload).unwrap()).collect::<Vec<_>>()
    };
    server.take(&get(1)).unwrap();
    server.connection.announce_end();
    server.connection.announce_end();
    assert_eq!(last_streams(&mut server), [0x7fff_ffff]);
    server.take(&get(3)).unwrap();
    assert!(server.connection.is_open(3) && server.resets().is_empty());
    server.connection.go_away();
    server.connection.announce_end();
    assert_eq!(last_streams(&mut server), [3]);
    server.take(&get(5)).unwrap();
    assert_eq!(server.resets(), [(5, ErrorCode::RefusedStream as u32)]);
}

#[test]
fn floods_meet_their_limits() {
    let id = |index: u32| index * 2 + 1;
    let cancelled = |index| [get(id(index)), frame(kind::RST_STREAM, 0, id(index), &[0; 4])].concat();
    assert_eq!(Server::new().flood(cancelled), Some(Abuse::RapidReset));
    // Requests that are answered before their resets come.
    let mut server = Server::new();
    let ended = (0..1000).find(|index| {
        server.take(&get(id(*index))).unwrap();
        server.respond(id(*index), true);
        server.connection.release(id(*index));
        let reset = frame(kind::RST_STREAM, 0, id(*index), &[0; 4]);
        server.take(&reset).is_err_and(|error| error.abuse == Some(Abuse::RapidReset))
    });
    assert_eq!(ended, Some(199));
    assert_eq!(Server::new().flood(|index| get(id(index))), Some(Abuse::StreamErrors));
    assert_eq!(Server::new().flood(|_| frame(kind::SETTINGS, 0, 0, &[])), Some(Abuse::Settings));
    assert_eq!(Server::new().flood(|_| frame(kind::PING, 0, 0, &[0; 8])), Some(Abuse::Ping));
    assert_eq!(Server::new().flood(|_| frame(kind::PRIORITY, 0, 1, &[0; 5])), Some(Abuse::Priority));
    assert_eq!(Server::new().flood(|_| frame(0x77, 0, 0, &[])), Some(Abuse::Unknown));
    let update = |_| frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]);
    assert_eq!(Server::new().flood(update), Some(Abuse::WindowUpdate));
    let small = |index| if index == 0 { post(1, &[]) } else { data(1, 0, 0) };
    assert_eq!(Server::new().flood(small), Some(Abuse::SmallData));
    let endless = |index| match index {
        0 => frame(kind::HEADERS, flag::END_STREAM, 1, &block(GET)),
        _ => frame(kind::CONTINUATION, 0, 1, &[]),
    };
    assert_eq!(Server::new().flood(endless), Some(Abuse::Continuation));
    let bomb = |index| {
        let entry = [block(GET), b"\x40\x01a\x7f\xe0\x1e".to_vec(), vec![b'x'; 4063]].concat();
        let block = if index == 0 { entry } else { [block(GET), vec![0xbe; 1000]].concat() };
        frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, id(index), &block)
    };
    assert_eq!(Server::new().flood(bomb), Some(Abuse::Hpack));
    // A client that does not read.
    let mut server = Server::with(Limits { output_bytes: 1000, ..Limits::default() });
    let pings = frame(kind::PING, 0, 0, &[0; 8]).repeat(90);
    assert_eq!(server.take(&pings).unwrap_err().abuse, Some(Abuse::Output));
}

#[test]
fn frames_at_an_ordinary_rate_meet_no_limit() {
    let mut server = Server::new();
    for index in 0..2000 {
        let stream = index * 2 + 1;
        server.now += Duration::from_millis(200);
        let ping = frame(kind::PING, 0, 0, &[0; 8]);
        let update = frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 64, 0]);
        server.take(&[post(stream, &[]), data(stream, 10, flag::END_STREAM), ping, update].concat()).unwrap();
        server.respond(stream, false);
        server.connection.push_data(stream, &[0; 16_384], true);
        server.connection.consumed(stream, 10);
        server.connection.release(stream);
        assert!(server.resets().is_empty());
    }
    assert_eq!(server.events().len(), 4000);
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let id = prop::sample::select(vec![0_u32, 1, 3, 5, 7]);
    let payload = prop_oneof![
        Just(block(GET)),
        Just(block(&[("a", "b")])),
        prop::collection::vec(any::<u8>(), 0..40),
        Just(vec![0, 0, 0, 9]),
        Just(Vec::new()),
    ];
    (0..12_u8, prop::sample::select(vec![0, 1, 4, 5, 8, 0x25]), id, payload)
        .prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload))
}

proptest! {
    /// Events and output depend on the bytes alone, not on how they are divided.
    #[test]
    fn input_may_be_divided_anywhere(frames in prop::collection::vec(any_frame(), 0..20), cut in 1..50_usize) {
        let bytes = frames.concat();
        let (mut whole, mut parts) = (Server::new(), Server::new());
        let expected = whole.take(&bytes);
        let mut held: Vec<u8> = Vec::new();
        let mut result = Ok(());
        for piece in bytes.chunks(cut) {
            held.extend_from_slice(piece);
            match parts.take(&held).map(<[u8]>::len) {
                Ok(left) => held.drain(..held.len() - left).for_each(drop),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        prop_assert_eq!(result, expected.map(drop));
        let bodies = |events: Vec<String>| events.into_iter().filter(|it| !it.starts_with("body")).collect::<Vec<_>>();
        prop_assert_eq!(bodies(parts.events()), bodies(whole.events()));
        prop_assert_eq!(parts.connection.output(), whole.connection.output());
    }

    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut server = Server::new();
        let _ = server.take(&bytes);
        prop_assert!(server.connection.streams() <= 200);
    }
}
