//! Fuzzes the heads of requests and responses: a head is refused, or parsed unambiguously.

#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_http::head::{HEAD_BYTES_MAX, request, response};
use strait_http::{Fields, forward, framing};

fuzz_target!(|data: &[u8]| {
    if let Ok(Some((head, len))) = request(data) {
        check(&data[..len], &head.fields);
        // Later bytes have no effect, and with a byte less the head is incomplete.
        assert_eq!(request(&data[..len]), Ok(Some((head.clone(), len))));
        assert_eq!(request(&data[..len - 1]), Ok(None));
        let _ = (framing::of_request(&head), forward::keeps_alive(head.version, &head.fields));
    }
    if let Ok(Some((head, len))) = response(data) {
        check(&data[..len], &head.fields);
        assert_eq!(response(&data[..len - 1]), Ok(None));
        let _ = framing::of_response(&head, "GET");
    }
});

fn check(head: &[u8], fields: &Fields<'_>) {
    assert!(head.len() <= HEAD_BYTES_MAX + 2 && head.ends_with(b"\r\n\r\n"));
    let feeds = head.iter().filter(|byte| **byte == b'\n').count();
    let ends = head.windows(2).filter(|pair| pair == b"\r\n").count();
    let returns = head.iter().filter(|byte| **byte == b'\r').count();
    assert!(feeds == ends && returns == ends && !head.contains(&0));
    // One line for each field, the first line, the empty line, and an optional empty line before.
    let lines = fields.iter().count() + 2;
    assert!(ends == lines || ends == lines + 1);
    for field in forward::forwarded_fields(fields) {
        assert!(!field.name.is_empty() && !field.name.contains([' ', '\t', ':']));
    }
}
