//! Partial content in a cache (RFC 9111, sections 3.3 and 3.4; RFC 9110, section 15.3.7).

use std::ops::Range;

use crate::conditional::{Tag, is_strong_date};
use crate::fields::Fields;
use crate::framing::BodyFraming;

/// Value of Content-Range (RFC 9110, section 14.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentRange {
    /// A non-empty range, and the complete length if it is known.
    Part(Range<u64>, Option<u64>),
    /// An unsatisfied range and the complete length, as in a 416.
    Unsatisfied(u64),
}

impl ContentRange {
    /// Parses a field value; `None` if it is malformed or has another unit.
    pub fn parse(text: &str) -> Option<Self> {
        let (unit, rest) = text.split_once(' ')?;
        let (range, complete) = rest.split_once('/')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        if range == "*" {
            return number(complete).map(Self::Unsatisfied);
        }
        let (first, last) = range.split_once('-')?;
        let part = number(first)?..number(last)?.checked_add(1)?;
        let complete = if complete == "*" { None } else { Some(number(complete)?) };
        let is_valid = part.start < part.end && complete.is_none_or(|complete| part.end <= complete);
        is_valid.then_some(Self::Part(part, complete))
    }
}

fn number(digits: &str) -> Option<u64> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// Range of a 206 with the given body, and the complete length if it is known. `None` if the
/// response is ambiguous, since it has several parts or its body length differs from its range.
/// Such a response is forwarded and not stored.
pub fn part_of(fields: &Fields<'_>, body: BodyFraming) -> Option<(Range<u64>, Option<u64>)> {
    let ContentRange::Part(part, complete) = ContentRange::parse(fields.one("content-range")?)? else {
        return None;
    };
    let is_length = |length| length == part.end - part.start;
    let fits = match body {
        BodyFraming::Length(length) => is_length(length),
        BodyFraming::Chunked | BodyFraming::ToClose => true,
        BodyFraming::None | BodyFraming::Tunnel => false,
    };
    fits.then_some((part, complete))
}

/// Strong validator of a response (RFC 9110, section 8.8), by which its parts are combined.
/// If-Range carries it in a request for the missing part.
pub fn strong_validator<'b>(fields: &Fields<'b>) -> Option<&'b str> {
    if fields.has("etag") {
        return fields.one("etag").filter(|text| Tag::parse(text).is_some_and(|tag| !tag.weak));
    }
    fields.one("last-modified").filter(|_| is_strong_date(fields))
}

/// Returns true if parts of two responses belong to the same bytes (RFC 9111, section 3.4): both
/// have the same strong validator. The caller compares the complete lengths.
pub fn may_combine(stored: &Fields<'_>, fresh: &Fields<'_>) -> bool {
    // A date and a tag are different validators, even if one response has both.
    let both_tagged = stored.has("etag") == fresh.has("etag");
    let (one, other) = (strong_validator(stored), strong_validator(fresh));
    both_tagged && one.is_some() && one == other
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    #[test]
    fn content_range_is_parsed_strictly() {
        for (text, expected) in [
            ("bytes 0-0/1", Some(ContentRange::Part(0..1, Some(1)))),
            ("Bytes 5-9/*", Some(ContentRange::Part(5..10, None))),
            ("bytes */9", Some(ContentRange::Unsatisfied(9))),
            ("bytes */*", None),
            ("bytes 5-4/9", None),
            ("bytes 0-9/9", None),
            ("bytes 0-/9", None),
            ("bytes -5/9", None),
            ("bytes=0-1/9", None),
            ("bytes 0-1", None),
            ("bytes  0-1/9", None),
            ("bytes 0 -1/9", None),
            ("bytes +0-1/9", None),
            ("lines 0-1/9", None),
            ("bytes 0-1/9, bytes 2-3/9", None),
            ("bytes 0-18446744073709551615/*", None),
            ("", None),
        ] {
            assert_eq!(ContentRange::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn part_needs_the_length_of_its_range() {
        let part = fields(&[("Content-Range", "bytes 2-5/9")]);
        for (body, fits) in [
            (BodyFraming::Length(4), true),
            (BodyFraming::Chunked, true),
            (BodyFraming::ToClose, true),
            (BodyFraming::Length(5), false),
            (BodyFraming::None, false),
        ] {
            assert_eq!(part_of(&part, body), fits.then_some((2..6, Some(9))), "{body:?}");
        }
        assert_eq!(part_of(&fields(&[("Content-Range", "bytes */9")]), BodyFraming::Length(4)), None);
        assert_eq!(part_of(&fields(&[]), BodyFraming::Length(4)), None);
    }

    #[test]
    fn parts_are_combined_by_the_same_strong_validator() {
        let modified = ("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT");
        let (soon, late) =
            (("Date", "Sun, 06 Nov 1994 08:49:38 GMT"), ("Date", "Sun, 06 Nov 1994 09:49:37 GMT"));
        for (one, other, expected) in [
            (&[("ETag", "\"a\"")][..], &[("etag", "\"a\"")][..], true),
            (&[("ETag", "\"a\"")], &[("ETag", "\"b\"")], false),
            (&[("ETag", "W/\"a\"")], &[("ETag", "W/\"a\"")], false),
            (&[modified, late], &[modified, late], true),
            (&[modified, soon], &[modified, late], false),
            (&[("ETag", "\"a\""), modified, late], &[modified, late], false),
            (&[("ETag", "W/\"a\""), modified, late], &[("ETag", "W/\"a\""), modified, late], false),
            (&[], &[], false),
        ] {
            assert_eq!(may_combine(&fields(one), &fields(other)), expected, "{one:?} {other:?}");
        }
    }
}
