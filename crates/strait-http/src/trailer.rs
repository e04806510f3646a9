//! Forwarding of trailers by a proxy (RFC 9110, section 6.5).
//!
//! A recipient may merge trailers into the head. Trailers that affect framing, routing, access,
//! caching or the meaning of the content were not checked with the head, so they are not forwarded
//! (section 6.5.1).

use crate::fields::Fields;
use crate::forward::is_of_connection;

/// Fields that are valid in a head only, in addition to those of the connection.
const OF_HEAD: [&str; 31] = [
    // Routing.
    "alt-svc",
    "forwarded",
    "host",
    "location",
    "max-forwards",
    "refresh",
    "via",
    // Authentication, and fields with similar effect.
    "authentication-info",
    "authorization",
    "clear-site-data",
    "cookie",
    "cookie2",
    "set-cookie",
    "set-cookie2",
    "strict-transport-security",
    "www-authenticate",
    // Request modifiers.
    "accept",
    "expect",
    "pragma",
    "range",
    "referer",
    // Response control.
    "age",
    "allow",
    "cache-control",
    "cache-status",
    "date",
    "expires",
    "retry-after",
    "surrogate-control",
    "vary",
    "warning",
];

/// Prefixes of further such fields: content negotiation, cross-origin access, content,
/// preconditions, and proxies.
const BEGINNINGS: [&str; 6] = ["accept-", "access-control-", "content-", "if-", "proxy-", "x-forwarded-"];

/// Filter of the trailers of a message.
#[derive(Clone, Debug)]
pub struct Trailers {
    /// Names listed in Connection, which belong to the connection.
    named: Vec<String>,
    /// True for a request: programs that serve it read an underscore as a hyphen.
    is_of_request: bool,
}

impl Trailers {
    /// Filter for a response with these head fields; `None` if Connection is unreadable, since it
    /// may name any trailer.
    pub fn of(fields: &Fields<'_>) -> Option<Self> {
        let named = fields.elements("connection").map(str::to_owned).collect();
        fields.is_legible("connection").then_some(Self { named, is_of_request: false })
    }

    /// Filter for a request of HTTP/2, which has no Connection.
    pub fn of_request() -> Self {
        Self { named: Vec::new(), is_of_request: true }
    }

    /// Returns true if a trailer is forwarded. `line` may include its line end.
    pub fn pass(&self, line: &[u8]) -> bool {
        let line = line.strip_suffix(b"\r\n").unwrap_or(line);
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return false };
        let (name, value) = line.split_at(colon);
        let Ok(name) = std::str::from_utf8(name) else { return false };
        let is_named = self.named.iter().any(|named| named.eq_ignore_ascii_case(name));
        let is_ambiguous = self.is_of_request && name.contains('_');
        !is_named && !is_ambiguous && !is_of_connection(name) && !is_of_head(name) && is_value(value)
    }
}

fn is_of_head(name: &str) -> bool {
    // RFC 9530 s2: a digest may follow the content.
    if name.eq_ignore_ascii_case("content-digest") {
        return false;
    }
    let begins = |with: &&str| {
        let start = name.get(..with.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(with))
    };
    // RFC 9213: names of targeted fields end like Cache-Control.
    let end = name.len().checked_sub("-cache-control".len()).and_then(|at| name.get(at..));
    end.is_some_and(|end| end.eq_ignore_ascii_case("-cache-control"))
        || BEGINNINGS.iter().any(begins)
        || OF_HEAD.into_iter().any(|other| other.eq_ignore_ascii_case(name))
}

/// Returns true for a valid field value (RFC 9110, section 5.5).
fn is_value(value: &[u8]) -> bool {
    value.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    #[test]
    fn head_fields_are_not_forwarded_as_trailers() {
        let trailers = Trailers::of(&fields(&[("Connection", "close, X-Hop")])).unwrap();
        for line in [
            "Content-Length: 3\r\n",
            "transfer-encoding: chunked\r\n",
            "Trailer: a\r\n",
            "HOST: a\r\n",
            "Connection: close\r\n",
            "Keep-Alive: 5\r\n",
            "TE: trailers\r\n",
            "Upgrade: x\r\n",
            "Content-Encoding: gzip\r\n",
            "content-type: text/html\r\n",
            "Content-Range: bytes 0-1/2\r\n",
            "Set-Cookie: a=b\r\n",
            "Cache-Control: public\r\n",
            "CDN-Cache-Control: public\r\n",
            "Authorization: x\r\n",
            "WWW-Authenticate: Basic\r\n",
            "Proxy-Status: x\r\n",
            "Location: /\r\n",
            "Vary: *\r\n",
            "Date: x\r\n",
            "Age: 1\r\n",
            "Expires: 0\r\n",
            "Via: 1.1 a\r\n",
            "If-Match: *\r\n",
            "x-hop: 1\r\n",
            "X-Sum: \x01\r\n",
            "no colon",
        ] {
            assert!(!trailers.pass(line.as_bytes()), "{line}");
        }
        for line in
            ["X-Sum: 5\r\n", "Content-Digest: x\r\n", "Server-Timing:\ta", "ETag: \"a\"\r\n", "ag: \u{e9}"]
        {
            assert!(trailers.pass(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn no_trailer_is_forwarded_if_connection_is_unreadable() {
        assert!(Trailers::of(&fields(&[("Connection", "\u{e9}")])).is_none());
        assert!(Trailers::of(&fields(&[])).is_some());
    }
}
