//! Fuzzes the input of an HTTP/2 connection of a client: events do not depend on how the bytes are
//! divided, and no input exceeds a limit.

#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use strait_http2::{Connection, Event, Limits, PREFACE};

/// Preface and empty SETTINGS.
fn begun(now: Instant) -> Connection {
    let mut connection = Connection::new(Limits::default(), now);
    let bytes = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    assert_eq!(take(&mut connection, now, &bytes), Some(bytes.len()));
    connection
}

/// Passes bytes; returns the number of used ones, `None` after an error.
fn take(connection: &mut Connection, now: Instant, bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let (used, event) = connection.next(now, &bytes[at..]).ok()?;
        at += used;
        match event {
            Some(Event::Body { stream, bytes, .. }) => connection.consumed(stream, bytes.len()),
            Some(Event::Request { stream, .. }) => {
                assert!(connection.is_open(stream));
                read_twice(connection);
            }
            Some(Event::Trailers { .. }) => assert!(connection.trailers().all(|(name, _)| !name.is_empty())),
            Some(Event::TooLarge { .. } | Event::Reset { .. }) => {}
            Some(Event::Response { .. } | Event::GoAway { .. }) => unreachable!("events of a client"),
            None if used == 0 => return Some(at),
            None => {}
        }
    }
}

/// Reads the head of a request with and without the checks: both must be the same.
fn read_twice(connection: &mut Connection) {
    let checked = format!("{:?}", connection.request().unwrap());
    let fields: Vec<_> = connection.request().unwrap().fields().map(owned).collect();
    let head = connection.take_request().unwrap();
    assert_eq!(format!("{:?}", head.request()), checked);
    let text = head.request().text_fields().map(|(name, value)| owned((name.as_bytes(), value)));
    assert!(text.eq(fields));
    connection.give_back(head);
}

fn owned((name, value): (&[u8], &[u8])) -> (Vec<u8>, Vec<u8>) {
    (name.to_vec(), value.to_vec())
}

fuzz_target!(|data: &[u8]| {
    let now = Instant::now();
    let (Some((cut, data)), limits) = (data.split_first(), Limits::default()) else { return };
    let mut whole = begun(now);
    let is_valid = take(&mut whole, now, data).is_some();
    assert!(whole.streams() <= 2 * limits.streams as usize);
    assert!(whole.output().len() <= limits.output_bytes + 1024);
    let (mut parts, mut held) = (begun(now), Vec::new());
    let mut has_failed = false;
    for piece in data.chunks(usize::from(*cut).max(1)) {
        held.extend_from_slice(piece);
        let Some(used) = take(&mut parts, now, &held) else {
            has_failed = true;
            break;
        };
        held.drain(..used);
    }
    assert_eq!((!has_failed, parts.streams()), (is_valid, whole.streams()));
});
