//! Forwarding of messages by a proxy (RFC 9110, section 7.6; RFC 9112, section 9.1).

use smallvec::SmallVec;

use crate::error::Malformed;
use crate::fields::{Field, Fields};
use crate::head::{Request, Version};

/// Fields of a connection (RFC 9110, section 7.6.1), and fields defined for proxies only.
const OF_CONNECTION: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Iterates over the fields to forward: all except the connection's, including those that
/// Connection names. The sender adds the framing fields.
pub fn forwarded_fields<'s, 'b>(fields: &'s Fields<'b>) -> impl Iterator<Item = &'s Field<'b>> {
    let named: SmallVec<[&str; 4]> = fields.elements("connection").filter(|name| !is_needed(name)).collect();
    let is_named = move |name: &str| named.iter().any(|named| named.eq_ignore_ascii_case(name));
    fields.iter().filter(move |field| !is_of_connection(field.name) && !is_named(field.name))
}

/// Returns true if a field belongs to the connection or to the framing on it.
pub(crate) fn is_of_connection(name: &str) -> bool {
    name.eq_ignore_ascii_case("content-length")
        || OF_CONNECTION.into_iter().any(|other| other.eq_ignore_ascii_case(name))
}

/// Returns true for fields that Connection cannot remove: naming them there is an attack that
/// changes the message.
fn is_needed(name: &str) -> bool {
    ["host", "authorization", "cache-control", "content-type", "cookie", "date", "etag", "vary"]
        .into_iter()
        .any(|needed| needed.eq_ignore_ascii_case(name))
}

/// Returns true if the connection persists after a message (RFC 9112, section 9.3).
pub fn keeps_alive(version: Version, fields: &Fields<'_>) -> bool {
    if !fields.is_legible("connection") {
        return false;
    }
    let mut keeps_alive = version >= Version::Http11;
    for option in fields.elements("connection") {
        if option.eq_ignore_ascii_case("close") {
            return false;
        }
        keeps_alive |= option.eq_ignore_ascii_case("keep-alive");
    }
    keeps_alive
}

/// Value of Via for a message received in `version` and forwarded by `by` (RFC 9110, section
/// 7.6.3). Existing elements come first.
pub fn via(fields: &Fields<'_>, version: Version, by: &str) -> String {
    let mut via: String = fields.elements("via").flat_map(|element| [element, ", "]).collect();
    via.push_str(match version {
        Version::Http10 => "1.0 ",
        Version::Http11 => "1.1 ",
        Version::Http2 => "2 ",
    });
    via.push_str(by);
    via
}

/// Returns true if a message has passed `by` before, which is a loop.
pub fn has_passed(fields: &Fields<'_>, by: &str) -> bool {
    fields.elements("via").any(|element| element.split_ascii_whitespace().nth(1) == Some(by))
}

/// Number of hops left for a request (RFC 9110, section 7.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hops {
    /// There is no limit.
    Any,
    /// The request may be forwarded with this Max-Forwards.
    Left(u32),
    /// The request must be answered here.
    None,
}

/// Number of hops left for a request of `method`. Max-Forwards applies to OPTIONS and TRACE only.
///
/// # Errors
/// Max-Forwards is not a number, or is repeated.
pub fn hops(method: &str, fields: &Fields<'_>) -> Result<Hops, Malformed> {
    if !matches!(method, "OPTIONS" | "TRACE") || !fields.has("max-forwards") {
        return Ok(Hops::Any);
    }
    let digits = fields.one("max-forwards").filter(|text| !text.is_empty());
    let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let digits = digits.ok_or(Malformed::Syntax("an invalid Max-Forwards"))?;
    Ok(digits.parse().unwrap_or(u32::MAX).checked_sub(1).map_or(Hops::None, Hops::Left))
}

/// Fields left out of the response to TRACE: a script in a page could read secrets there (RFC 9110,
/// section 9.3.8).
const SECRET: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];

/// Writes the received request as the `message/http` content of the response to TRACE.
pub fn write_trace(request: &Request<'_>, out: &mut Vec<u8>) {
    let version = if request.version >= Version::Http11 { "1.1" } else { "1.0" };
    out.extend([request.method, " ", request.target, " HTTP/", version, "\r\n"].concat().bytes());
    let is_secret = |name: &str| SECRET.into_iter().any(|secret| secret.eq_ignore_ascii_case(name));
    for field in request.fields.iter().filter(|field| !is_secret(field.name)) {
        out.extend_from_slice(field.name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(field.value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    #[test]
    fn fields_of_the_connection_are_not_forwarded() {
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
        let names: Vec<_> = forwarded_fields(&all).map(|field| field.name).collect();
        assert_eq!(names, ["Host", "x-end"]);
    }

    #[test]
    fn persistence_depends_on_version_and_connection() {
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
    fn via_is_appended_and_detects_loops() {
        let before = fields(&[("Via", "1.0 fred"), ("via", "1.1 p.example.net (x)")]);
        assert_eq!(
            via(&before, Version::Http11, "strait-1"),
            "1.0 fred, 1.1 p.example.net (x), 1.1 strait-1"
        );
        assert!(has_passed(&before, "p.example.net") && !has_passed(&before, "strait-1"));
        assert_eq!(via(&fields(&[]), Version::Http10, "s"), "1.0 s");
    }

    #[test]
    fn max_forwards_applies_to_options_and_trace_only() {
        for (method, value, expected) in [
            ("TRACE", "0", Ok(Hops::None)),
            ("OPTIONS", "1", Ok(Hops::Left(0))),
            ("OPTIONS", "007", Ok(Hops::Left(6))),
            ("TRACE", "99999999999999999999", Ok(Hops::Left(u32::MAX - 1))),
            ("GET", "0", Ok(Hops::Any)),
            ("GET", "x", Ok(Hops::Any)),
            ("TRACE", "-1", Err(400)),
            ("TRACE", "", Err(400)),
            ("TRACE", "1, 2", Err(400)),
        ] {
            let hops = hops(method, &fields(&[("Max-Forwards", value)])).map_err(Malformed::status);
            assert_eq!(hops, expected, "{method} {value}");
        }
        assert_eq!(hops("TRACE", &fields(&[])), Ok(Hops::Any));
        assert!(hops("TRACE", &fields(&[("Max-Forwards", "1"), ("max-forwards", "1")])).is_err());
    }

    #[test]
    fn trace_shows_the_request_without_its_secrets() {
        let head = b"TRACE /a HTTP/1.1\r\nHost: b\r\nCookie: c\r\nAuthorization: d\r\nX:  e \r\n\r\n";
        let mut out = Vec::new();
        write_trace(&crate::head::request(head).unwrap().unwrap().0, &mut out);
        assert_eq!(out, b"TRACE /a HTTP/1.1\r\nHost: b\r\nX: e\r\n\r\n");
    }
}
