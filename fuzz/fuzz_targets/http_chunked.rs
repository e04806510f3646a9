//! Fuzzes the chunked decoder: the whole body and its pieces give the same data, end and error.
//!
//! Input: a byte with the size of the pieces, then the body.

#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_http::chunked::{Chunked, Next};

fuzz_target!(|data: &[u8]| {
    let [piece, body @ ..] = data else { return };
    let whole = read(body, body.len().max(1));
    assert_eq!(whole, read(body, usize::from(*piece).max(1)));
    if let Some((data, len)) = whole {
        assert!(data.len() + 5 <= len && len <= body.len() && body[..len].ends_with(b"\r\n"));
    }
});

/// Returns the data of a body and its length; None if it is invalid or incomplete.
fn read(bytes: &[u8], piece: usize) -> Option<(Vec<u8>, usize)> {
    let (mut chunked, mut data, mut at, mut shown) = (Chunked::default(), Vec::new(), 0, 0);
    loop {
        match chunked.next(&bytes[at..shown]).ok()? {
            Next::Framing(len) | Next::Trailer(len) => at += len,
            Next::End(len) => return Some((data, at + len)),
            Next::Data(len) if shown > at => {
                let some = usize::try_from(len).map_or(shown - at, |len| len.min(shown - at));
                data.extend(&bytes[at..at + some]);
                chunked.advance(some as u64);
                at += some;
            }
            Next::Unknown | Next::Data(_) if shown == bytes.len() => return None,
            Next::Unknown | Next::Data(_) => shown = (shown + piece).min(bytes.len()),
        }
    }
}
