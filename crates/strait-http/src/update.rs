//! What a response that confirms a stored one changes of it (RFC 9111, sections 3.2 and 4.3.4).

use crate::conditional::{Tag, is_strong_date};
use crate::fields::Fields;
use crate::forward::passed_on;
use crate::freshness::date_of;

/// Fields without which the stored bytes would be read as something else: they stay as they came with the bytes.
const OF_CONTENT: [&str; 2] = ["content-encoding", "content-range"];

/// The fields of a stored response after a 304: those that the 304 has, in place of the stored ones of their names, and the others as
/// they were. Neither message tells how the body is framed, nor anything of its connection.
pub fn updated<'b>(stored: &Fields<'b>, fresh: &Fields<'b>) -> Fields<'b> {
    let changes = |name: &str| !OF_CONTENT.into_iter().any(|kept| kept.eq_ignore_ascii_case(name));
    let news: Fields<'b> = passed_on(fresh).filter(|field| changes(field.name)).copied().collect();
    let kept = passed_on(stored).filter(|field| !news.has(field.name));
    kept.chain(news.iter()).copied().collect()
}

/// Whether a 304 is about the stored response (RFC 9111, section 4.3.4). A 304 that is about another changes nothing, and the request
/// is to be sent again without conditions.
///
/// - A strong validator of the 304 is to be one of the stored response: an entity tag byte by byte, a Last-Modified that is strong by
///   the stored Date (RFC 9110, section 8.8.2.2). Where both have tags these alone count.
/// - Without a strong one, a weak validator is to be the same.
/// - Without any, the stored response must not have an entity tag, and the caller must have ensured
///   that it is the only candidate. It may have a Last-Modified: RFC 9110 section 15.4.5 requires the
///   tag in a 304 and lets origins leave out the date, as Apache does.
pub fn confirms(stored: &Fields<'_>, fresh: &Fields<'_>) -> bool {
    let is_same_date = || {
        let (one, other) = (date_of(stored, "last-modified"), date_of(fresh, "last-modified"));
        one.is_some() && one == other
    };
    match (stored.has("etag"), fresh.has("etag")) {
        (true, true) => tag(stored).zip(tag(fresh)).is_some_and(|(stored, fresh)| {
            // A strong tag is about the same bytes; a weak one about what is as good.
            if fresh.weak { stored.is_like(&fresh) } else { stored.is(&fresh) }
        }),
        (false, true) => {
            tag(fresh).is_some_and(|fresh| is_same_date() && (fresh.weak || is_strong_date(stored)))
        }
        _ if fresh.has("last-modified") => is_same_date(),
        (has_tag, _) => !has_tag,
    }
}

/// Whether a 304 has neither of the validators: it names no response.
pub fn has_no_validator(fresh: &Fields<'_>) -> bool {
    !fresh.has("etag") && !fresh.has("last-modified")
}

/// Whether a 304 has a strong entity tag, which names one representation wherever it is stored.
pub fn names_bytes(fresh: &Fields<'_>) -> bool {
    tag(fresh).is_some_and(|tag| !tag.weak)
}

fn tag<'b>(fields: &Fields<'b>) -> Option<Tag<'b>> {
    fields.one("etag").and_then(Tag::parse)
}

/// Whether a 200 to HEAD is about the stored response of `length` bytes to GET (RFC 9111, section 4.3.5). If so, it is updated as by a 304;
/// if not, it is out of date.
pub fn head_confirms(stored: &Fields<'_>, length: u64, fresh: &Fields<'_>) -> bool {
    let is_told = |name: &str| fresh.has(name) == stored.has(name) && fresh.one(name) == stored.one(name);
    let is_length = fresh.one("content-length").is_none_or(|told| told.parse() == Ok(length));
    is_told("etag") && is_told("last-modified") && is_length
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    #[test]
    fn news_take_the_place_of_what_was_stored_and_the_content_stays_what_it_is() {
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
    fn a_304_is_about_what_its_validators_name() {
        let (early, late) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:50:37 GMT");
        let both = [("ETag", "\"a\""), ("Last-Modified", early)];
        // The date is strong where it is a minute before Date.
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
            // The stored response has no tag: a strong one is about its bytes only if its date is strong, too.
            (&strong, &[("ETag", "\"a\""), ("Last-Modified", early)], true),
            (&weak, &[("ETag", "\"a\""), ("Last-Modified", early)], false),
            (&weak, &[("ETag", "W/\"a\""), ("Last-Modified", early)], true),
            (&weak, &[("Last-Modified", early)], true),
            // A 304 that names nothing.
            (&both, &[], false),
            (&[("ETag", "\"a\"")], &[], false),
            (&weak, &[], true),
            (&[], &[], true),
        ] {
            assert_eq!(confirms(&fields(stored), &fields(fresh)), expected, "{stored:?} {fresh:?}");
        }
    }

    #[test]
    fn a_head_is_about_what_is_the_same() {
        let stored = fields(&[("ETag", "\"a\"")]);
        for (fresh, expected) in [
            (&[("ETag", "\"a\"")][..], true),
            (&[("ETag", "\"a\""), ("Content-Length", "5")], true),
            (&[("ETag", "\"a\""), ("Content-Length", "6")], false),
            (&[("ETag", "\"b\"")], false),
            (&[], false),
            (&[("ETag", "\"a\""), ("Last-Modified", "x")], false),
        ] {
            assert_eq!(head_confirms(&stored, 5, &fields(fresh)), expected, "{fresh:?}");
        }
    }
}
