//! Update of a stored response by one that confirms it (RFC 9111, sections 3.2 and 4.3.4).

use crate::conditional::{Tag, is_strong_date};
use crate::fields::Fields;
use crate::forward::forwarded_fields;
use crate::freshness::date_of;

/// Fields that an update must not change, because they describe the stored bytes.
const OF_CONTENT: [&str; 2] = ["content-encoding", "content-range"];

/// Fields of a stored response after a 304. Fields of the 304 replace the stored fields of the same
/// names. Framing and connection fields are omitted.
pub fn updated<'b>(stored: &Fields<'b>, fresh: &Fields<'b>) -> Fields<'b> {
    let changes = |name: &str| {
        !OF_CONTENT.into_iter().any(|name_of_content| name_of_content.eq_ignore_ascii_case(name))
    };
    let replacing: Fields<'b> =
        forwarded_fields(fresh).filter(|field| changes(field.name)).copied().collect();
    let unchanged = forwarded_fields(stored).filter(|field| !replacing.has(field.name));
    unchanged.chain(replacing.iter()).copied().collect()
}

/// Returns true if a 304 confirms the stored response (RFC 9111, section 4.3.4). Another 304
/// changes nothing, and the request must be repeated without conditions.
///
/// - A strong validator of the 304 must equal that of the stored response: an entity tag byte by
///   byte, or a Last-Modified that is strong by the stored Date (RFC 9110, section 8.8.2.2). If
///   both have tags, only these count.
/// - Without a strong validator, a weak one must be equal.
/// - Without any, the stored response must not have an entity tag, and the caller must have ensured
///   that it is the only candidate. It may have a Last-Modified: RFC 9110 section 15.4.5 requires
///   the tag in a 304 and lets origins omit the date, as Apache does.
pub fn confirms(stored: &Fields<'_>, fresh: &Fields<'_>) -> bool {
    let is_same_date = || {
        let (one, other) = (date_of(stored, "last-modified"), date_of(fresh, "last-modified"));
        one.is_some() && one == other
    };
    match (stored.has("etag"), fresh.has("etag")) {
        (true, true) => tag(stored).zip(tag(fresh)).is_some_and(|(stored, fresh)| {
            // A strong tag identifies bytes; a weak tag identifies an equivalent representation.
            if fresh.weak { stored.is_like(&fresh) } else { stored.is(&fresh) }
        }),
        (false, true) => {
            tag(fresh).is_some_and(|fresh| is_same_date() && (fresh.weak || is_strong_date(stored)))
        }
        _ if fresh.has("last-modified") => is_same_date(),
        (has_tag, _) => !has_tag,
    }
}

/// Returns true if a 304 has no validator, so it identifies no response.
pub fn has_no_validator(fresh: &Fields<'_>) -> bool {
    !fresh.has("etag") && !fresh.has("last-modified")
}

/// Returns true if a 304 has a strong entity tag, which identifies one representation in any cache.
pub fn has_strong_tag(fresh: &Fields<'_>) -> bool {
    tag(fresh).is_some_and(|tag| !tag.weak)
}

fn tag<'b>(fields: &Fields<'b>) -> Option<Tag<'b>> {
    fields.one("etag").and_then(Tag::parse)
}

/// Compares a 200 to HEAD with the stored response to GET, which has `length` bytes (RFC 9111,
/// section 4.3.5). `Some(true)`: they match, so the stored response is updated as by a 304.
/// `Some(false)`: it is stale. `None`: neither response has a validator. Equal lengths alone do not
/// show that the content is the same, so the stored response stays as it is.
pub fn head_confirms(stored: &Fields<'_>, length: u64, fresh: &Fields<'_>) -> Option<bool> {
    let is_same = |name: &str| fresh.has(name) == stored.has(name) && fresh.one(name) == stored.one(name);
    let is_length = fresh.one("content-length").is_none_or(|value| value.parse() == Ok(length));
    let is_match = is_same("etag") && is_same("last-modified") && is_length;
    (!is_match || !has_no_validator(fresh)).then_some(is_match)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    #[test]
    fn update_replaces_fields_except_those_of_the_content() {
        let stored = fields(&[
            ("ETag", "\"a\""),
            ("Warning", "1"),
            ("warning", "2"),
            ("Content-Encoding", "gzip"),
            ("Content-Length", "5"),
            ("Set-Cookie", "a"),
        ]);
        let fresh = fields(&[
            ("Connection", "X"),
            ("X", "hop"),
            ("WARNING", "3"),
            ("Content-Encoding", "br"),
            ("Content-Length", "0"),
            ("Set-Cookie", "b"),
            ("Set-Cookie", "c"),
        ]);
        let expected = fields(&[
            ("ETag", "\"a\""),
            ("Content-Encoding", "gzip"),
            ("WARNING", "3"),
            ("Set-Cookie", "b"),
            ("Set-Cookie", "c"),
        ]);
        assert_eq!(updated(&stored, &fresh), expected);
    }

    #[test]
    fn validators_of_a_304_select_the_stored_response() {
        let (early, late) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:50:37 GMT");
        let both = [("ETag", "\"a\""), ("Last-Modified", early)];
        // Last-Modified is strong if it is a minute before Date.
        let dated = |date| [("Last-Modified", early), ("Date", date)];
        let (weak, strong) = (dated(early), dated(late));
        for (stored, fresh, expected) in [
            (&both[..], &[("ETag", "\"a\"")][..], true),
            (&both, &[("ETag", "W/\"a\"")], true),
            (&both, &[("ETag", "\"b\"")], false),
            (&both, &[("ETag", "\"a\""), ("Last-Modified", late)], true),
            (&both, &[("Last-Modified", early)], true),
            (&both, &[("Last-Modified", late)], false),
            (&[("ETag", "W/\"a\"")], &[("ETag", "\"a\"")], false),
            (&[("ETag", "W/\"a\"")], &[("ETag", "W/\"a\"")], true),
            (&[("ETag", "a")], &[("ETag", "a")], false),
            (&[], &[("ETag", "\"a\"")], false),
            (&[], &[("Last-Modified", "x")], false),
            (&[("Last-Modified", "x")], &[("Last-Modified", "x")], false),
            // Without a stored tag, a strong one matches only if the stored date is strong.
            (&strong, &[("ETag", "\"a\""), ("Last-Modified", early)], true),
            (&weak, &[("ETag", "\"a\""), ("Last-Modified", early)], false),
            (&weak, &[("ETag", "W/\"a\""), ("Last-Modified", early)], true),
            (&weak, &[("Last-Modified", early)], true),
            // A 304 without a validator.
            (&both, &[], false),
            (&[("ETag", "\"a\"")], &[], false),
            (&weak, &[], true),
            (&[], &[], true),
        ] {
            assert_eq!(confirms(&fields(stored), &fields(fresh)), expected, "{stored:?} {fresh:?}");
        }
    }

    #[test]
    fn head_response_confirms_equal_metadata() {
        let stored = fields(&[("ETag", "\"a\"")]);
        for (fresh, expected) in [
            (&[("ETag", "\"a\"")][..], true),
            (&[("ETag", "\"a\""), ("Content-Length", "5")], true),
            (&[("ETag", "\"a\""), ("Content-Length", "6")], false),
            (&[("ETag", "\"b\"")], false),
            (&[], false),
            (&[("ETag", "\"a\""), ("Last-Modified", "x")], false),
        ] {
            assert_eq!(head_confirms(&stored, 5, &fields(fresh)), Some(expected), "{fresh:?}");
        }
        let bare = fields(&[]);
        assert_eq!(head_confirms(&bare, 5, &fields(&[("Content-Length", "5")])), None);
        assert_eq!(head_confirms(&bare, 5, &fields(&[("Content-Length", "6")])), Some(false));
    }
}
