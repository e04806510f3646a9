//! Heads of messages: requests from HTTP/2 to the text of HTTP/1.1, responses back.

use std::hash::BuildHasher as _;
use std::hash::RandomState;

use strait_http::head::Response;
use strait_http2::Request;

use crate::io::head::push_field;

/// Form of a request target that the proxy expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetForm {
    /// Path, for a reverse proxy.
    Origin,
    /// Whole URI, for a forward proxy.
    Absolute,
}

/// Method of a request, as far as the framing of its response depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Head,
    Connect,
    /// WebSocket over HTTP/2 (RFC 8441): GET with Upgrade in HTTP/1.1.
    WebSocket,
    Other,
}

impl Method {
    /// Returns the method of a request; `None` for an extended CONNECT to another protocol than
    /// WebSocket.
    pub(super) fn of(request: &Request<'_>) -> Option<Self> {
        Some(match (request.method, request.protocol) {
            ("CONNECT", Some("websocket")) => Self::WebSocket,
            (_, Some(_)) => return None,
            ("CONNECT", None) => Self::Connect,
            ("HEAD", None) => Self::Head,
            _ => Self::Other,
        })
    }

    /// Returns the method by which the framing of the response in HTTP/1.1 is determined.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Head => "HEAD",
            Self::Connect => "CONNECT",
            Self::WebSocket | Self::Other => "GET",
        }
    }

    /// Returns true if the bytes after the request's head belong to a tunnel.
    pub(super) fn is_tunnel(self) -> bool {
        matches!(self, Self::Connect | Self::WebSocket)
    }
}

/// Bytes for which memory is taken at once; longer heads are rare.
const HEAD_BYTES: usize = 512;

/// Writes the head of a request. Returns true if its body is to be sent in chunks.
pub(super) fn write_request(
    out: &mut Vec<u8>,
    request: &Request<'_>,
    method: Method,
    form: TargetForm,
    has_body: bool,
) -> bool {
    out.reserve(HEAD_BYTES);
    write_line(out, request, method, form);
    if let Some(authority) = request.authority {
        push_field(out, "Host", authority.as_bytes());
    }
    let mut cookies = Vec::new();
    for (name, value) in request.fields() {
        match name {
            // Equal to the authority, which was written as Host.
            b"host" if request.authority.is_some() => {}
            // The proxy's own follows.
            b"sec-websocket-key" if method == Method::WebSocket => {}
            // RFC 9113 s8.2.3: one field in HTTP/1.1.
            b"cookie" if cookies.is_empty() => cookies.extend_from_slice(value),
            b"cookie" => cookies.extend([b"; ", value].concat()),
            name => push_field(out, name, value),
        }
    }
    if !cookies.is_empty() {
        push_field(out, "Cookie", &cookies);
    }
    if method == Method::WebSocket {
        push_field(out, "Connection", b"Upgrade");
        push_field(out, "Upgrade", b"websocket");
        push_field(out, "Sec-WebSocket-Key", websocket_key().as_bytes());
    }
    let is_chunked = has_body && !method.is_tunnel() && request.content_length.is_none();
    if is_chunked {
        push_field(out, "Transfer-Encoding", b"chunked");
    }
    out.extend_from_slice(b"\r\n");
    is_chunked
}

fn write_line(out: &mut Vec<u8>, request: &Request<'_>, method: Method, form: TargetForm) {
    let name = if method == Method::WebSocket { "GET" } else { request.method };
    let authority = request.authority.unwrap_or_default();
    let path = request.path.unwrap_or_default();
    let scheme = request.scheme.unwrap_or_default();
    let is_absolute = form == TargetForm::Absolute && path.starts_with('/') && !authority.is_empty();
    let target = match method {
        Method::Connect => &[authority][..],
        _ if is_absolute => &[scheme, "://", authority, path],
        _ => &[path],
    };
    for part in [name, " "].iter().chain(target) {
        out.extend_from_slice(part.as_bytes());
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// Returns a key for the origin's WebSocket handshake (RFC 6455, section 4.1): 16 bytes in base64.
/// The proxy and the origin speak of one connection, so nothing depends on its secrecy.
fn websocket_key() -> String {
    let random = RandomState::new();
    // 21 hexadecimal digits are valid base64, and the last character has no excess bits.
    format!("{:016x}{:05x}A==", random.hash_one(0), random.hash_one(1) & 0xf_ffff)
}

/// Fields of HTTP/1.1 connections, which HTTP/2 forbids (RFC 9113, section 8.2.2).
const OF_CONNECTION: [&str; 7] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "sec-websocket-accept",
    "transfer-encoding",
    "upgrade",
];

/// Returns true for a field of HTTP/1.1 connections.
pub(super) fn is_of_connection(name: &str) -> bool {
    OF_CONNECTION.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// Head or trailers in the form of HTTP/2: names in lower case.
#[derive(Debug, Default)]
pub(super) struct Fields {
    text: Vec<u8>,
    /// Lengths of names and values.
    fields: Vec<(usize, usize)>,
}

impl Fields {
    /// Fields of a response with that status.
    pub(super) fn of(response: &Response<'_>, status: u16) -> Self {
        let count = response.fields.iter().count();
        let mut fields = Self { text: Vec::with_capacity(HEAD_BYTES), fields: Vec::with_capacity(count + 1) };
        fields.push(":status", itoa::Buffer::new().format(status).as_bytes());
        for field in response.fields.iter().filter(|field| !is_of_connection(field.name)) {
            fields.push(field.name, field.value);
        }
        fields
    }

    /// Fields of trailers: lines without the empty one.
    pub(super) fn of_trailers(lines: &[u8]) -> Self {
        let mut fields = Self::default();
        for line in lines.split(|byte| *byte == b'\n') {
            let mut parts = line.trim_ascii().splitn(2, |byte| *byte == b':');
            if let (Some(name), Some(value)) = (parts.next(), parts.next())
                && let Ok(name) = std::str::from_utf8(name)
            {
                fields.push(name, value.trim_ascii());
            }
        }
        fields
    }

    pub(super) fn push(&mut self, name: &str, value: &[u8]) {
        let start = self.text.len();
        self.text.extend_from_slice(name.as_bytes());
        self.text[start..].make_ascii_lowercase();
        self.text.extend_from_slice(value);
        self.fields.push((name.len(), value.len()));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        let mut rest = &self.text[..];
        self.fields.iter().filter_map(move |(name, value)| {
            let (field, more) = rest.split_at_checked(name + value)?;
            rest = more;
            field.split_at_checked(*name)
        })
    }
}

#[cfg(test)]
mod tests {
    use strait_http::head;
    use strait_http2::hpack::encode;
    use strait_http2::{Connection, Event, Limits, PREFACE};

    use super::*;

    /// Returns the text of a request with these fields.
    fn text(fields: &[(&str, &str)], form: TargetForm) -> (String, bool) {
        let now = std::time::Instant::now();
        let mut connection = Connection::new(Limits::default(), now);
        let mut block = Vec::new();
        for (name, value) in fields {
            encode(name.as_bytes(), value.as_bytes(), &mut block);
        }
        let head = [0, 0, block.len() as u8, 1, 4, 0, 0, 0, 1];
        let bytes = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0], &head, &block].concat();
        let mut rest = &bytes[..];
        loop {
            let (used, event) = connection.next(now, rest).unwrap();
            rest = &rest[used..];
            if matches!(event, Some(Event::Request { .. })) {
                break;
            }
            assert!(used > 0, "no request");
        }
        let request = connection.request().unwrap();
        let (mut out, method) = (Vec::new(), Method::of(&request).unwrap());
        let is_chunked = write_request(&mut out, &request, method, form, true);
        assert_eq!(head::request(&out).unwrap().unwrap().1, out.len(), "the text is a valid head");
        (String::from_utf8(out).unwrap(), is_chunked)
    }

    #[test]
    fn requests_become_heads_of_http_1_1() {
        let get = [(":method", "GET"), (":scheme", "http"), (":path", "/x?y"), (":authority", "a:1")];
        let more = [("cookie", "b=1"), ("accept", "*/*"), ("cookie", "c=2"), ("content-length", "3")];
        let (head, is_chunked) = text(&[&get[..], &more].concat(), TargetForm::Origin);
        assert_eq!(
            head,
            "GET /x?y HTTP/1.1\r\nHost: a:1\r\naccept: */*\r\ncontent-length: 3\r\nCookie: b=1; c=2\r\n\r\n"
        );
        assert!(!is_chunked);
        let (head, is_chunked) = text(&get, TargetForm::Absolute);
        assert_eq!(head, "GET http://a:1/x?y HTTP/1.1\r\nHost: a:1\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert!(is_chunked);
        let (head, _) = text(&[(":method", "CONNECT"), (":authority", "a:443")], TargetForm::Absolute);
        assert_eq!(head, "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n");
        let websocket = [&[(":method", "CONNECT"), (":protocol", "websocket")], &get[1..]].concat();
        let (head, is_chunked) = text(&websocket, TargetForm::Origin);
        assert!(
            head.starts_with(
                "GET /x?y HTTP/1.1\r\nHost: a:1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            )
        );
        assert!(!is_chunked);
    }

    #[test]
    fn responses_lose_fields_of_the_connection() {
        let bytes =
            b"HTTP/1.1 200 OK\r\nAge: 1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\nX-A: B\r\n\r\n";
        let (response, _) = head::response(bytes).unwrap().unwrap();
        let fields = Fields::of(&response, 200);
        let all: Vec<_> = fields.iter().collect();
        assert_eq!(all, [(&b":status"[..], &b"200"[..]), (b"age", b"1"), (b"x-a", b"B")]);
        let trailers = Fields::of_trailers(b"Grpc-Status: 0\r\nA:b\r\n");
        assert_eq!(trailers.iter().collect::<Vec<_>>(), [(&b"grpc-status"[..], &b"0"[..]), (b"a", b"b")]);
    }
}
