//! Fuzzes Range, Cache-Control, Vary and conditional fields: ranges are within the object, and a
//! stale object is served only if a field allows it.
//!
//! Input: eight bytes for a length and a time, then the text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_http::cache_control::{OfRequest, OfResponse};
use strait_http::freshness::Times;
use strait_http::range::{RANGES_MAX, Wanted, wanted};
use strait_http::reuse::{Reuse, reuse};
use strait_http::vary::Variant;
use strait_http::{Field, Fields, conditional, forward, partial, update};

fuzz_target!(|data: &[u8]| {
    let Some((numbers, text)) = data.split_first_chunk::<8>() else { return };
    let length = u64::from(u32::from_le_bytes(numbers[..4].try_into().expect("four bytes")));
    let later = u64::from(u32::from_le_bytes(numbers[4..].try_into().expect("four bytes")));
    if let Ok(range) = std::str::from_utf8(text)
        && let Wanted::Parts(parts) = wanted(range, length)
    {
        assert!((1..=RANGES_MAX).contains(&parts.len()));
        assert!(parts.iter().all(|part| part.start < part.end && part.end <= length));
    }
    let of = |name| -> Fields<'_> { [Field { name, value: text }].into_iter().collect() };
    let (stored, requested) = (OfResponse::of(&of("cache-control")), OfRequest::of(&of("cache-control")));
    let times = Times::of(200, &of("cache-control"), &stored, 0, 0);
    if reuse(later, &times, &stored, &requested) == Reuse::Serve && !times.is_fresh(later) {
        assert!(requested.max_stale.is_some() && !stored.must_revalidate);
    }
    let _ = Times::of(200, &of("age"), &stored, 0, 0).age_at(later);
    let _ = (
        conditional::is_not_modified(&of("if-none-match"), &of("etag")),
        conditional::range_counts(&of("if-range"), &of("etag")),
    );
    let _ = Variant::of(&of("vary"), &of("accept-encoding"), &[]);
    let targeted = OfResponse::of(&of("cdn-cache-control"));
    assert!(targeted.targeted || targeted == OfResponse::default());
    // Several lines form one dictionary, in which later members override earlier ones.
    let lines = [text, b"no-store, private"].map(|value| Field { name: "cdn-cache-control", value });
    let both = OfResponse::of(&lines.into_iter().collect());
    assert!(!both.targeted || both.no_store);
    assert!(
        !update::confirms(&of("etag"), &Fields::default())
            && !partial::may_combine(&of("etag"), &of("last-modified"))
    );
    let _ = (forward::hops("TRACE", &of("max-forwards")), partial::strong_validator(&of("etag")));
});
