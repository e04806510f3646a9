//! What a proxy passes on of a message (RFC 9110, section 7.6; RFC 9112, section 9.1).

use crate::fields::{Field, Fields};
use crate::head::Version;

/// Fields that are about a connection and not about the message (RFC 9110, section 7.6.1), and those that only proxies understood.
const OF_CONNECTION: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The fields that are passed on: without those of the connection, which may name more of them. How the body is framed is told anew
/// by whoever sends it on.
pub fn passed_on<'s, 'b>(fields: &'s Fields<'b>) -> impl Iterator<Item = &'s Field<'b>> {
    fields.iter().filter(move |field| !is_of_connection(fields, field.name))
}

fn is_of_connection(fields: &Fields<'_>, name: &str) -> bool {
    let is_named = |other: &str| other.eq_ignore_ascii_case(name);
    OF_CONNECTION.into_iter().any(is_named)
        || is_named("content-length")
        || (fields.elements("connection").any(is_named) && !is_needed(name))
}

/// Fields without which the message is another one, whatever Connection says: naming them there is an attack.
fn is_needed(name: &str) -> bool {
    ["host", "authorization", "cache-control", "content-type", "cookie", "date", "etag", "vary"]
        .into_iter()
        .any(|needed| needed.eq_ignore_ascii_case(name))
}

/// Whether the connection stays open behind a message (RFC 9112, section 9.3).
pub fn keeps_alive(version: Version, fields: &Fields<'_>) -> bool {
    let says =
        |option: &str| fields.elements("connection").any(|element| element.eq_ignore_ascii_case(option));
    match version {
        Version::Http11 => !says("close"),
        Version::Http10 => says("keep-alive") && !says("close"),
    }
}

/// The Via of a message that came in `version` through `by` (RFC 9110, section 7.6.3), behind what there was.
pub fn via(fields: &Fields<'_>, version: Version, by: &str) -> String {
    let mut via: String = fields.elements("via").flat_map(|element| [element, ", "]).collect();
    via.push_str(if version == Version::Http11 { "1.1 " } else { "1.0 " });
    via.push_str(by);
    via
}

/// Whether a message has passed through `by` before: a loop.
pub fn has_passed(fields: &Fields<'_>, by: &str) -> bool {
    fields.elements("via").any(|element| element.split_ascii_whitespace().nth(1) == Some(by))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    #[test]
    fn what_is_of_the_connection_stays_there() {
        let all = fields(&[
            ("Host", "a"),
            ("Connection", "close, X-Hop, Host"),
            ("X-Hop", "1"),
            ("x-end", "2"),
            ("TE", "trailers"),
            ("Transfer-Encoding", "chunked"),
            ("Proxy-Authorization", "secret"),
            ("Keep-Alive", "5"),
        ]);
        let names: Vec<_> = passed_on(&all).map(|field| field.name).collect();
        assert_eq!(names, ["Host", "x-end"]);
    }

    #[test]
    fn connections_stay_open_as_their_version_says() {
        for (version, value, expected) in [
            (Version::Http11, "", true),
            (Version::Http11, "close", false),
            (Version::Http11, "x, Close", false),
            (Version::Http10, "", false),
            (Version::Http10, "Keep-Alive", true),
            (Version::Http10, "keep-alive, close", false),
        ] {
            assert_eq!(
                keeps_alive(version, &fields(&[("Connection", value)])),
                expected,
                "{version:?} {value}"
            );
        }
    }

    #[test]
    fn a_proxy_says_that_it_was_there_and_knows_itself_again() {
        let before = fields(&[("Via", "1.0 fred"), ("via", "1.1 p.example.net (x)")]);
        assert_eq!(
            via(&before, Version::Http11, "strait-1"),
            "1.0 fred, 1.1 p.example.net (x), 1.1 strait-1"
        );
        assert!(has_passed(&before, "p.example.net") && !has_passed(&before, "strait-1"));
        assert_eq!(via(&fields(&[]), Version::Http10, "s"), "1.0 s");
    }
}
