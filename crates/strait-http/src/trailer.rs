//! Which trailers of a response a proxy passes on (RFC 9110, section 6.5).
//!
//! Whoever receives them may put them among the fields of the head. What says there how a message is framed, where it goes, who may see it,
//! how long it may be kept or how its content is read was looked at by nobody on the way, so it goes no further (section 6.5.1).

use crate::fields::Fields;
use crate::forward::is_of_connection;

/// Fields that count in a head alone, beside those of the connection.
const OF_HEAD: [&str; 31] = [
    // Routing.
    "alt-svc",
    "forwarded",
    "host",
    "location",
    "max-forwards",
    "refresh",
    "via",
    // Authentication, and what is as good as that.
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

/// What the names of others begin with: content negotiation, access from other pages, content, preconditions, and what is for proxies.
const BEGINNINGS: [&str; 6] = ["accept-", "access-control-", "content-", "if-", "proxy-", "x-forwarded-"];

/// The trailers of a response that are passed on.
#[derive(Clone, Debug)]
pub struct Trailers {
    /// Those that its Connection names, which are about the connection.
    named: Vec<String>,
}

impl Trailers {
    /// Of a response with such fields in its head; `None` where nobody can tell which are about the connection.
    pub fn of(fields: &Fields<'_>) -> Option<Self> {
        let named = fields.elements("connection").map(str::to_owned).collect();
        fields.is_legible("connection").then_some(Self { named })
    }

    /// Whether a trailer is passed on; `line` may have its end.
    pub fn pass(&self, line: &[u8]) -> bool {
        let line = line.strip_suffix(b"\r\n").unwrap_or(line);
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return false };
        let (name, value) = line.split_at(colon);
        let Ok(name) = std::str::from_utf8(name) else { return false };
        let is_named = self.named.iter().any(|named| named.eq_ignore_ascii_case(name));
        !is_named && !is_of_connection(name) && !is_of_head(name) && is_value(value)
    }
}

fn is_of_head(name: &str) -> bool {
    // RFC 9530 s2: a digest may come once the content is known.
    if name.eq_ignore_ascii_case("content-digest") {
        return false;
    }
    let begins = |with: &&str| {
        let start = name.get(..with.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(with))
    };
    // RFC 9213: a Cache-Control for some caches ends like that for all.
    let end = name.len().checked_sub("-cache-control".len()).and_then(|at| name.get(at..));
    end.is_some_and(|end| end.eq_ignore_ascii_case("-cache-control"))
        || BEGINNINGS.iter().any(begins)
        || OF_HEAD.into_iter().any(|other| other.eq_ignore_ascii_case(name))
}

/// RFC 9110, section 5.5.
fn is_value(value: &[u8]) -> bool {
    value.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    #[test]
    fn what_counts_in_a_head_is_not_passed_on_behind_the_body() {
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
    fn none_are_passed_on_where_connection_is_not_legible() {
        assert!(Trailers::of(&fields(&[("Connection", "\u{e9}")])).is_none());
        assert!(Trailers::of(&fields(&[])).is_some());
    }
}
