//! Conditional requests (RFC 9110, section 13): evaluation against a stored response, and
//! validation of one.

use crate::fields::Fields;
use crate::freshness::date_of;

/// An entity tag (RFC 9110, section 8.8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag<'a> {
    /// The tag may stay the same when bytes change.
    pub weak: bool,
    /// Opaque tag with its quotes.
    pub opaque: &'a str,
}

impl<'a> Tag<'a> {
    /// Parses an entity tag; `None` if `text` is not one.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (weak, opaque) = text.strip_prefix("W/").map_or((false, text), |opaque| (true, opaque));
        let inside = opaque.strip_prefix('"')?.strip_suffix('"')?;
        let is_tag = inside.bytes().all(|byte| matches!(byte, 0x21 | 0x23..=0x7e));
        is_tag.then_some(Self { weak, opaque })
    }

    /// Weak comparison (RFC 9110, section 8.8.3.2): equivalent representations.
    pub fn is_like(&self, other: &Self) -> bool {
        self.opaque == other.opaque
    }

    /// Strong comparison: identical bytes.
    pub fn is(&self, other: &Self) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }
}

/// Returns true if the client has the stored response, to be answered with 304 (RFC 9110, section
/// 13.2.2, steps 3 and 4). `stored` are the fields of the stored response.
pub fn is_not_modified(request: &Fields<'_>, stored: &Fields<'_>) -> bool {
    if request.has("if-none-match") {
        return request.elements("if-none-match").any(|element| element == "*") || has_tag(request, stored);
    }
    // RFC 9111 s4.3.2: without Last-Modified, Date takes its place.
    let modified = if stored.has("last-modified") { "last-modified" } else { "date" };
    let (since, modified) = (date_of(request, "if-modified-since"), date_of(stored, modified));
    since.zip(modified).is_some_and(|(since, modified)| modified <= since)
}

/// Returns true if a precondition of the request excludes the response with the fields `own`, to be
/// answered with 412 (RFC 9110, section 13.2.2, steps 1 and 2).
pub fn fails_precondition(request: &Fields<'_>, own: &Fields<'_>) -> bool {
    if request.has("if-match") {
        let tag = own.one("etag").and_then(Tag::parse);
        let is_own = |it: &str| Tag::parse(it).zip(tag).is_some_and(|(one, tag)| one.is(&tag));
        return !request.elements("if-match").any(|element| element == "*" || is_own(element));
    }
    let (since, modified) = (date_of(request, "if-unmodified-since"), date_of(own, "last-modified"));
    since.zip(modified).is_some_and(|(since, modified)| modified > since)
}

/// Returns true if If-None-Match of a request has the tag of the stored response.
fn has_tag(request: &Fields<'_>, stored: &Fields<'_>) -> bool {
    let Some(tag) = stored.one("etag").and_then(Tag::parse) else { return false };
    request.elements("if-none-match").any(|it| Tag::parse(it).is_some_and(|one| one.is_like(&tag)))
}

/// Returns true if If-Range allows the Range of a request, or is absent (RFC 9110, section 13.1.5).
pub fn range_counts(request: &Fields<'_>, stored: &Fields<'_>) -> bool {
    if !request.has("if-range") {
        return true;
    }
    let Some(condition) = request.one("if-range") else { return false };
    if let Some(tag) = Tag::parse(condition) {
        return stored.one("etag").and_then(Tag::parse).is_some_and(|own| own.is(&tag));
    }
    // A date counts only if it is a strong validator and equal byte for byte.
    is_strong_date(stored) && stored.one("last-modified") == Some(condition)
}

/// Returns true if Last-Modified is a strong validator (RFC 9110, section 8.8.2.2). Its Date must
/// be later by a minute, so that no change within the second or between two clocks is missed.
pub(crate) fn is_strong_date(stored: &Fields<'_>) -> bool {
    let (modified, date) = (date_of(stored, "last-modified"), date_of(stored, "date"));
    modified.zip(date).is_some_and(|(modified, date)| date >= modified.saturating_add(60))
}

/// Fields of a request to validate a stored response (RFC 9111, section 4.3.1): names and values.
/// Empty if the response has no validator.
pub fn validators<'b>(stored: &Fields<'b>) -> impl Iterator<Item = (&'static str, &'b str)> + use<'b> {
    let tag = stored.one("etag").filter(|tag| Tag::parse(tag).is_some());
    let modified = stored.one("last-modified").filter(|_| date_of(stored, "last-modified").is_some());
    tag.map(|tag| ("If-None-Match", tag)).into_iter().chain(modified.map(|date| ("If-Modified-Since", date)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Field;
    use crate::fields::tests::fields;

    const EARLY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATE: &str = "Sun, 06 Nov 1994 08:50:37 GMT";

    #[test]
    fn tags_are_compared_as_in_the_rfc() {
        // Table of RFC 9110 s8.8.3.2.
        for (one, other, strong, weak) in [
            ("W/\"1\"", "W/\"1\"", false, true),
            ("W/\"1\"", "W/\"2\"", false, false),
            ("W/\"1\"", "\"1\"", false, true),
            ("\"1\"", "\"1\"", true, true),
        ] {
            let (one, other) = (Tag::parse(one).unwrap(), Tag::parse(other).unwrap());
            assert_eq!((one.is(&other), one.is_like(&other)), (strong, weak));
        }
        for text in ["1", "\"1", "w/\"1\"", "\"a b\"", "\"a\"b\"", ""] {
            assert_eq!(Tag::parse(text), None, "{text}");
        }
    }

    #[test]
    fn client_with_the_stored_response_gets_304() {
        let stored = fields(&[("ETag", "W/\"a\""), ("Last-Modified", EARLY)]);
        for (request, expected) in [
            (&[("If-None-Match", "\"b\", \"a\"")][..], true),
            (&[("If-None-Match", "*")], true),
            (&[("If-None-Match", "\"b\"")], false),
            // If-None-Match overrides If-Modified-Since.
            (&[("If-None-Match", "\"b\""), ("If-Modified-Since", LATE)], false),
            (&[("If-Modified-Since", EARLY)], true),
            (&[("If-Modified-Since", LATE)], true),
            (&[("If-Modified-Since", "Sun, 06 Nov 1994 08:49:36 GMT")], false),
            (&[("If-Modified-Since", "yesterday")], false),
            (&[], false),
        ] {
            assert_eq!(is_not_modified(&fields(request), &stored), expected, "{request:?}");
        }
        assert!(!is_not_modified(&fields(&[("If-None-Match", "\"a\"")]), &fields(&[])));
        let dated = fields(&[("Date", LATE)]);
        assert!(is_not_modified(&fields(&[("If-Modified-Since", LATE)]), &dated));
        assert!(!is_not_modified(&fields(&[("If-Modified-Since", EARLY)]), &dated));
        let undated = fields(&[("Last-Modified", "x"), ("Date", EARLY)]);
        assert!(!is_not_modified(&fields(&[("If-Modified-Since", LATE)]), &undated));
    }

    #[test]
    fn changed_response_fails_a_precondition() {
        let strong = fields(&[("ETag", "\"a\""), ("Last-Modified", EARLY)]);
        let weak = fields(&[("ETag", "W/\"a\""), ("Last-Modified", LATE)]);
        for (request, of_strong, of_weak) in [
            (&[("If-Match", "\"b\", \"a\"")][..], false, true),
            (&[("If-Match", "W/\"a\"")], true, true),
            (&[("If-Match", "\"b\"")], true, true),
            (&[("If-Match", "*")], false, false),
            (&[("If-Match", "")], true, true),
            // If-Match overrides If-Unmodified-Since.
            (&[("If-Match", "\"a\""), ("If-Unmodified-Since", "Sun, 06 Nov 1994 08:49:36 GMT")], false, true),
            (&[("If-Unmodified-Since", EARLY)], false, true),
            (&[("If-Unmodified-Since", LATE)], false, false),
            (&[("If-Unmodified-Since", "yesterday")], false, false),
            (&[], false, false),
        ] {
            let request = fields(request);
            let failed = (fails_precondition(&request, &strong), fails_precondition(&request, &weak));
            assert_eq!(failed, (of_strong, of_weak), "{request:?}");
        }
    }

    #[test]
    fn range_needs_a_strong_match_of_if_range() {
        let strong = fields(&[("ETag", "\"a\""), ("Last-Modified", EARLY), ("Date", LATE)]);
        let weak = fields(&[("ETag", "W/\"a\""), ("Last-Modified", EARLY), ("Date", EARLY)]);
        for (condition, of_strong, of_weak) in [
            ("\"a\"", true, false),
            ("\"b\"", false, false),
            ("W/\"a\"", false, false),
            (EARLY, true, false),
            (LATE, false, false),
        ] {
            let request = [Field { name: "If-Range", value: condition.as_bytes() }].into_iter().collect();
            assert_eq!(
                (range_counts(&request, &strong), range_counts(&request, &weak)),
                (of_strong, of_weak),
                "{condition}"
            );
        }
        assert!(range_counts(&fields(&[]), &weak));
    }

    #[test]
    fn validators_of_the_stored_response_are_sent() {
        let stored = fields(&[("ETag", "W/\"a\""), ("Last-Modified", EARLY)]);
        let request: Vec<_> = validators(&stored).collect();
        assert_eq!(request, [("If-None-Match", "W/\"a\""), ("If-Modified-Since", EARLY)]);
        assert_eq!(validators(&fields(&[("ETag", "a"), ("Last-Modified", "x")])).count(), 0);
    }
}
