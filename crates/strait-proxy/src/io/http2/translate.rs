//! Heads of messages: requests from HTTP/2 to the text of HTTP/1.1, responses back.

use std::hash::BuildHasher as _;
use std::hash::RandomState;

use strait_http::fields::{self, Field};
use strait_http::head::{self, Response, Version};
use strait_http2::Request;
use strait_http2::hpack::encode_lower;

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

/// Returns the head that the text of [`write_request`] has, for a request without a body; `None` if
/// that needs memory, or if the text is not valid.
pub(super) fn as_parsed<'a>(
    request: &Request<'a>,
    method: Method,
    form: TargetForm,
) -> Option<head::Request<'a>> {
    let target = request.path.filter(|_| form == TargetForm::Origin && !method.is_tunnel())?;
    let mut fields = fields::Fields::default();
    if let Some(authority) = request.authority {
        fields.push(Field { name: "Host", value: authority.as_bytes() });
    }
    let mut cookie = None;
    for (name, value) in request.text_fields() {
        if !value.iter().all(|byte| is_of_value(*byte)) {
            return None;
        }
        match name {
            "host" if request.authority.is_some() => {}
            "cookie" if cookie.is_some() => return None,
            "cookie" => cookie = Some(value),
            name => fields.push(Field { name, value }),
        }
    }
    if let Some(value) = cookie.filter(|value| !value.is_empty()) {
        fields.push(Field { name: "Cookie", value });
    }
    Some(head::Request { method: request.method, target, version: Version::Http2, fields })
}

/// Returns true for a byte of a field's value in HTTP/1.1 (RFC 9110, section 5.5).
fn is_of_value(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
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

/// Returns the fields of a head that HTTP/2 allows, with their names as written.
pub(super) fn allowed<'f>(fields: &'f fields::Fields<'_>) -> impl Iterator<Item = (&'f [u8], &'f [u8])> {
    let allowed = fields.iter().filter(|field| !is_of_connection(field.name));
    allowed.map(|field| (field.name.as_bytes(), field.value))
}

/// Status line and first field lines of a head, encoded for HTTP/2. Many responses begin with them.
#[derive(Debug)]
pub(crate) struct EncodedLines {
    status: u16,
    text_len: usize,
    block: Box<[u8]>,
}

impl EncodedLines {
    /// Encodes lines of a head that the proxy sends. Returns `None` if a response needs them as
    /// text: they have an interim status, or a field for framing, for the connection or with the
    /// priority of the response.
    pub(crate) fn of(lines: &[u8]) -> Option<Self> {
        let head = [lines, b"\r\n"].concat();
        let (response, len) = head::own_response(&head).ok()??;
        let is_text =
            |name: &str| is_of_connection(name) || AS_TEXT.iter().any(|own| name.eq_ignore_ascii_case(own));
        let needs_text = response.fields.iter().any(|field| is_text(field.name));
        if len != head.len() || response.status < 200 || needs_text {
            return None;
        }
        let mut block = Vec::new();
        encode_lower(b":status", itoa::Buffer::new().format(response.status).as_bytes(), &mut block);
        allowed(&response.fields).for_each(|(name, value)| encode_lower(name, value, &mut block));
        Some(Self { status: response.status, text_len: lines.len(), block: block.into() })
    }

    /// Returns the encoded fields.
    pub(crate) fn block(&self) -> &[u8] {
        &self.block
    }

    /// Returns the response that begins with these lines, with its other fields alone, and the
    /// length of its head; `None` if that is not a whole head.
    pub(super) fn rest<'b>(&self, text: &'b [u8]) -> Option<(Response<'b>, usize)> {
        let (fields, len) = head::own_fields(text.get(self.text_len..)?).ok()??;
        let response = Response { status: self.status, version: Version::Http11, fields };
        Some((response, self.text_len + len))
    }
}

/// Fields that decide on the framing or the priority of a response.
const AS_TEXT: [&str; 2] = ["content-length", "priority"];

impl Fields {
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
    use proptest::prelude::*;
    use strait_http2::hpack::{Decoder, FieldList, encode};
    use strait_http2::{Connection, Event, Limits, PREFACE, RequestHead};

    use super::*;

    /// Returns the head of a request with these fields; `None` if it is refused.
    fn received(fields: &[(&[u8], &[u8])]) -> Option<RequestHead> {
        let now = std::time::Instant::now();
        let mut connection = Connection::new(Limits::default(), now);
        let mut block = Vec::new();
        for (name, value) in fields {
            encode(name, value, &mut block);
        }
        let [_, len @ ..] = (block.len() as u32).to_be_bytes();
        let bytes = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0], &len, &[1, 4, 0, 0, 0, 1], &block].concat();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (used, event) = connection.next(now, rest).unwrap();
            rest = &rest[used..];
            if matches!(event, Some(Event::Request { .. })) {
                return connection.take_request();
            }
            assert!(used > 0, "an incomplete frame");
        }
        None
    }

    /// Returns the text of a request with these fields.
    fn text(fields: &[(&str, &str)], form: TargetForm) -> (String, bool) {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        let head = received(&fields).unwrap();
        let request = head.request();
        let (mut out, method) = (Vec::new(), Method::of(&request).unwrap());
        let is_chunked = write_request(&mut out, &request, method, form, true);
        assert_eq!(head::request(&out).unwrap().unwrap().1, out.len(), "the text is a valid head");
        (String::from_utf8(out).unwrap(), is_chunked)
    }

    /// Fields on which the response of a cache depends, with values that HTTP/1.1 has as well.
    fn any_known_field() -> impl Strategy<Value = (String, Vec<u8>)> {
        let known = prop::sample::select(vec![
            ("cache-control", "no-cache, max-age=0, only-if-cached"),
            ("if-none-match", "W/\"a\", \"b\""),
            ("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT"),
            ("range", "bytes=0-1, -5"),
            ("if-range", "\"a\""),
            ("accept-encoding", "gzip;q=0, br"),
            ("authorization", "Basic YTpi"),
            ("priority", "u=1, i"),
            ("content-length", "0"),
            ("te", "trailers"),
            ("expect", "100-continue"),
            ("max-forwards", "0"),
            ("x_a", "a"),
            ("cookie", "a=1; b=2"),
            ("cookie", ""),
            ("host", "a"),
        ]);
        known.prop_map(|(name, value)| (name.to_owned(), value.into()))
    }

    /// Any field that HTTP/2 allows, and others.
    fn any_field() -> impl Strategy<Value = (String, Vec<u8>)> {
        let name =
            prop_oneof!["(cookie|host|range|x-a)", "[a-z!#$%&'*+.^_`|~0-9-]{1,4}", "[A-Z ():a-z]{0,3}"];
        (name, prop::collection::vec(any::<u8>(), 0..4))
    }

    proptest! {
        /// A request must not be read differently because it is answered at once.
        #[test]
        fn request_is_read_as_its_text(
            method in "(GET|HEAD|OPTIONS|POST|PURGE|TRACE|CONNECT|get|G.T|[!-~]{1,4})",
            path in "(/[a-zA-Z?%/.:;#@&=+~-]{0,6}|\\*|http://a/|[!-~]{0,3})",
            authority in prop::option::of("([a-zA-Z0-9:.@/,-]{0,5}|\\[::1\\]:80|[!-~]{0,3})"),
            more in prop::collection::vec(prop_oneof![any_known_field(), any_field()], 0..6),
        ) {
            let mut fields = vec![(":method", method.as_bytes()), (":scheme", b"http"), (":path", path.as_bytes())];
            fields.extend(authority.iter().map(|authority| (":authority", authority.as_bytes())));
            fields.extend(more.iter().map(|(name, value)| (name.as_str(), &value[..])));
            let fields: Vec<_> = fields.into_iter().map(|(name, value)| (name.as_bytes(), value)).collect();
            let Some(head) = received(&fields) else { return Ok(()) };
            let (request, mut text) = (head.request(), Vec::new());
            let method = Method::of(&request).unwrap();
            write_request(&mut text, &request, method, TargetForm::Origin, false);
            let of_text = head::request(&text).ok().flatten();
            let cookies = request.fields().filter(|(name, _)| *name == b"cookie").count();
            match as_parsed(&request, method, TargetForm::Origin) {
                Some(read) => {
                    let (of_text, len) = of_text.unwrap();
                    prop_assert_eq!(len, text.len());
                    prop_assert_eq!(read, head::Request { version: Version::Http2, ..of_text });
                }
                None => prop_assert!(of_text.is_none() || cookies > 1),
            }
        }
    }

    #[test]
    fn requests_that_only_their_text_has_are_left() {
        let get: [(&[u8], &[u8]); 4] =
            [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a")];
        let head = received(&get).unwrap();
        let request = head.request();
        assert!(as_parsed(&request, Method::Other, TargetForm::Origin).is_some());
        assert!(as_parsed(&request, Method::Other, TargetForm::Absolute).is_none());
        assert!(as_parsed(&request, Method::WebSocket, TargetForm::Origin).is_none());
        for value in [&b"\x01"[..], b"a\x7fb"] {
            let head = received(&[&get[..], &[(b"a", value)]].concat()).unwrap();
            assert!(as_parsed(&head.request(), Method::Other, TargetForm::Origin).is_none());
        }
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

    /// Returns the status and the fields of a head as a client gets them.
    fn of_client(lines: Option<&EncodedLines>, text: &[u8]) -> Vec<(String, String)> {
        let mut block = lines.map_or_else(Vec::new, |lines| lines.block().to_vec());
        let (response, len) = match lines {
            Some(lines) => lines.rest(text).unwrap(),
            None => head::own_response(text).unwrap().unwrap(),
        };
        assert_eq!(len, text.len());
        if lines.is_none() {
            encode_lower(b":status", response.status.to_string().as_bytes(), &mut block);
        }
        allowed(&response.fields).for_each(|(name, value)| encode_lower(name, value, &mut block));
        let mut list = FieldList::new(1 << 16, 100);
        Decoder::new(4096).decode(&block, &mut list).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        list.iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    #[test]
    fn encoded_lines_give_the_same_head_as_their_text() {
        let lines =
            "HTTP/1.1 404 Not Found\r\nDate: x\r\nX-Long-Name: a b\r\nEmpty:\r\nVia: 1.1 a\r\nVia: 1.1 b\r\n";
        let rest =
            "Age: 3\r\nContent-Length: 5\r\nCache-Status: strait; hit; ttl=4\r\nConnection: close\r\n\r\n";
        let encoded = EncodedLines::of(lines.as_bytes()).unwrap();
        for rest in [rest, "\r\n", "Vary: a\r\n\r\n"] {
            let text = [lines, rest].concat();
            let all = of_client(Some(&encoded), text.as_bytes());
            assert_eq!(all, of_client(None, text.as_bytes()));
            assert!(all.iter().all(|(name, _)| name.bytes().all(|byte| !byte.is_ascii_uppercase())));
        }
        assert!(encoded.block.len() < lines.len());
    }

    /// A value that ends its line, and a head that is cut off, are never taken for a whole one.
    #[test]
    fn rest_of_a_head_is_checked() {
        let lines = b"HTTP/1.1 200 OK\r\nA: b\r\n";
        let encoded = EncodedLines::of(lines).unwrap();
        for rest in
            ["", "\r", "Age: 1\r\n", "Age: 1\n\r\n", "Age: 1\r\n\n", "Age: a\0\r\n\r\n", "A b: 1\r\n\r\n"]
        {
            assert!(encoded.rest(&[lines, rest.as_bytes()].concat()).is_none(), "{rest:?}");
        }
        let many = format!("{}\r\n", "A: b\r\n".repeat(17));
        assert!(encoded.rest(&[lines, many.as_bytes()].concat()).is_none());
    }

    #[test]
    fn lines_that_decide_on_a_response_stay_text() {
        for lines in [
            "HTTP/1.1 103 Early Hints\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n",
            "HTTP/1.1 200 OK\r\nCONNECTION: close\r\n",
            "HTTP/1.1 200 OK\r\nPriority: u=0\r\n",
            "HTTP/1.1 200 OK\nA: b\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n\r\nB: c\r\n",
            "HTTP/1.1 200 OK",
        ] {
            assert!(EncodedLines::of(lines.as_bytes()).is_none(), "{lines}");
        }
    }

    #[test]
    fn responses_lose_fields_of_the_connection() {
        let bytes =
            b"HTTP/1.1 200 OK\r\nAge: 1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\nX-A: B\r\n\r\n";
        let (response, _) = head::response(bytes).unwrap().unwrap();
        let all: Vec<_> = allowed(&response.fields).collect();
        assert_eq!(all, [(&b"Age"[..], &b"1"[..]), (b"X-A", b"B")]);
        let trailers = Fields::of_trailers(b"Grpc-Status: 0\r\nA:b\r\n");
        assert_eq!(trailers.iter().collect::<Vec<_>>(), [(&b"grpc-status"[..], &b"0"[..]), (b"a", b"b")]);
    }
}
