//! Fuzzes the input of an HTTP/2 connection to an origin: events do not depend on how the bytes are
//! divided, no input exceeds a limit, and each response is valid in HTTP/1.1.

#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use strait_http2::{Connection, Event, Limits};

/// Connection with three requests, after empty SETTINGS of the server.
fn begun(now: Instant) -> Connection {
    let mut connection = Connection::client(Limits::of_client(), now);
    let bytes = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    assert_eq!(take(&mut connection, now, &bytes), Some(bytes.len()));
    for method in ["GET", "HEAD", "POST"] {
        let fields = [(":method", method), (":scheme", "http"), (":authority", "a"), (":path", "/")];
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        connection.open_request(fields, method != "POST", method == "HEAD").unwrap();
    }
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
            Some(Event::Response { stream, .. }) => {
                let response = connection.response().unwrap();
                assert!((100..1000).contains(&response.status) && connection.is_open(stream));
                for (name, value) in response.fields() {
                    assert!(!name.is_empty() && !name.iter().any(u8::is_ascii_uppercase));
                    assert!(!value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')));
                }
            }
            Some(Event::Trailers { .. }) => assert!(connection.trailers().all(|(name, _)| !name.is_empty())),
            Some(Event::Reset { .. } | Event::GoAway { .. }) => {}
            Some(Event::Request { .. } | Event::TooLarge { .. }) => unreachable!("events of a server"),
            None if used == 0 => return Some(at),
            None => {}
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let now = Instant::now();
    let (Some((cut, data)), limits) = (data.split_first(), Limits::of_client()) else { return };
    let mut whole = begun(now);
    let is_valid = take(&mut whole, now, data).is_some();
    // Streams of complete responses may have ended already.
    assert!(whole.streams() <= 3);
    let is_leaving = whole.is_leaving();
    (1..6).step_by(2).for_each(|stream| whole.release(stream));
    if is_valid {
        let _ = take(&mut whole, now, data);
    }
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
    assert_eq!((!has_failed, parts.is_leaving()), (is_valid, is_leaving));
});
