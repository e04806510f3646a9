//! Message heads: the start line and the fields (RFC 9112, sections 2 to 5).
//!
//! httparse checks the tokens. Input that it accepts but other parsers read differently is refused
//! here: lines terminated by LF alone, CR within a line, NUL, and line folding.

use std::mem::MaybeUninit;
use std::ops::Range;

use httparse::{Header, ParserConfig};
use smallvec::SmallVec;

use crate::error::Malformed;
use crate::fields::{Field, Fields};

/// Limit of a head in bytes.
pub const HEAD_BYTES_MAX: usize = 32 << 10;
/// Limit of the field lines of a head.
pub const FIELDS_MAX: usize = 100;
/// Limit in bytes of a head that the proxy has written: the head of an origin with the fields of
/// rules.
pub const OWN_HEAD_BYTES_MAX: usize = 512 << 10;
/// Limit of the field lines of a head that the proxy has written.
pub const OWN_FIELDS_MAX: usize = 256;

/// HTTP version of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2: the head was translated to the form of HTTP/1.1.
    Http2,
}

/// Head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'b> {
    /// Method as received; methods are case-sensitive.
    pub method: &'b str,
    /// Request target as received.
    pub target: &'b str,
    /// HTTP version.
    pub version: Version,
    /// Header fields.
    pub fields: Fields<'b>,
}

/// Head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response<'b> {
    /// Status code, 100 to 999.
    pub status: u16,
    /// HTTP version.
    pub version: Version,
    /// Header fields.
    pub fields: Fields<'b>,
}

/// Parses the request head at the start of `bytes`. Returns it with its length, which includes the
/// empty line, or `None` if it is incomplete. Skips one empty line before the head (RFC 9112,
/// section 2.2).
///
/// # Errors
/// The head violates the grammar or is longer than [`HEAD_BYTES_MAX`].
pub fn request(bytes: &[u8]) -> Result<Option<(Request<'_>, usize)>, Malformed> {
    request_within::<FIELDS_MAX>(bytes, HEAD_BYTES_MAX)
}

/// Like [`request`], for a head that the proxy has written itself.
///
/// # Errors
/// The head violates the grammar, or is longer than [`OWN_HEAD_BYTES_MAX`].
pub fn own_request(bytes: &[u8]) -> Result<Option<(Request<'_>, usize)>, Malformed> {
    request_within::<OWN_FIELDS_MAX>(bytes, OWN_HEAD_BYTES_MAX)
}

fn request_within<const LINES_MAX: usize>(
    bytes: &[u8],
    bytes_max: usize,
) -> Result<Option<(Request<'_>, usize)>, Malformed> {
    let skipped = if bytes.starts_with(b"\r\n") { 2 } else { 0 };
    let bytes = &bytes[skipped..];
    if skipped == 0 && bytes == b"\r" {
        return Ok(None);
    }
    check_start(bytes)?;
    let mut lines = [const { MaybeUninit::<Header<'_>>::uninit() }; LINES_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    let result = parsed.parse_with_uninit_headers(bytes, &mut lines);
    if result == Err(httparse::Error::Version) && !has_version(bytes) {
        return Err(Malformed::Syntax("a request line without a version at its end"));
    }
    let Some(len) = whole(result, bytes, bytes_max)? else { return Ok(None) };
    let (Some(method), Some(target)) = (parsed.method, parsed.path) else {
        return Err(Malformed::Syntax("a request line without method or target"));
    };
    let fields = fields(parsed.headers);
    Ok(Some((Request { method, target, version: version(parsed.version)?, fields }, skipped + len)))
}

/// Parses the response head at the start of `bytes`. Returns it with its length, or `None` if it is
/// incomplete.
///
/// # Errors
/// The head violates the grammar or is longer than [`HEAD_BYTES_MAX`].
pub fn response(bytes: &[u8]) -> Result<Option<(Response<'_>, usize)>, Malformed> {
    response_within::<FIELDS_MAX>(bytes, HEAD_BYTES_MAX)
}

/// Like [`response`], for a head that the proxy has written itself.
///
/// # Errors
/// The head violates the grammar, or is longer than [`OWN_HEAD_BYTES_MAX`].
pub fn own_response(bytes: &[u8]) -> Result<Option<(Response<'_>, usize)>, Malformed> {
    response_within::<OWN_FIELDS_MAX>(bytes, OWN_HEAD_BYTES_MAX)
}

/// Field lines of a part of a head, at most; [`own_fields`].
const OWN_LINES_MAX: usize = 16;

/// Parses the field lines that a head of [`own_response`] ends with. Returns them with their
/// length, which includes the empty line; `None` if they are incomplete.
///
/// # Errors
/// A line violates the grammar, or there are more than 16.
pub fn own_fields(bytes: &[u8]) -> Result<Option<(Fields<'_>, usize)>, Malformed> {
    let mut lines = [httparse::EMPTY_HEADER; OWN_LINES_MAX];
    let parsed = match httparse::parse_headers(bytes, &mut lines).map_err(why)? {
        httparse::Status::Complete((len, _)) if len > OWN_HEAD_BYTES_MAX => return Err(TOO_LARGE),
        httparse::Status::Complete(parsed) => parsed,
        httparse::Status::Partial => return Ok(None),
    };
    let (len, lines) = parsed;
    check_lines(&bytes[..len])?;
    Ok(Some((fields(lines), len)))
}

fn response_within<const LINES_MAX: usize>(
    bytes: &[u8],
    bytes_max: usize,
) -> Result<Option<(Response<'_>, usize)>, Malformed> {
    check_start(bytes)?;
    let mut lines = [const { MaybeUninit::<Header<'_>>::uninit() }; LINES_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let config = ParserConfig::default();
    let result = config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut lines);
    let Some(len) = whole(result, bytes, bytes_max)? else { return Ok(None) };
    let status = parsed.code.filter(|code| *code >= 100);
    let status = status.ok_or(Malformed::Syntax("a status below 100"))?;
    let fields = fields(parsed.headers);
    Ok(Some((Response { status, version: version(parsed.version)?, fields }, len)))
}

/// Returns true if a request line ends with any HTTP version, supported or not (RFC 9112, section
/// 2.3).
fn has_version(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let word = line.splitn(3, |byte| *byte == b' ').nth(2).unwrap_or_default();
    matches!(word, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit())
}

/// Refuses an empty line at the start, since httparse skips any number of them.
fn check_start(bytes: &[u8]) -> Result<(), Malformed> {
    match bytes.first() {
        Some(b'\r' | b'\n') => Err(Malformed::Syntax("an empty line in place of the first one")),
        _ => Ok(()),
    }
}

/// Length of a complete head; checks its size and its line ends.
fn whole(
    parsed: httparse::Result<usize>,
    bytes: &[u8],
    bytes_max: usize,
) -> Result<Option<usize>, Malformed> {
    let len = match parsed.map_err(why)? {
        httparse::Status::Complete(len) => len,
        httparse::Status::Partial if bytes.len() >= bytes_max => return Err(TOO_LARGE),
        httparse::Status::Partial => return Ok(None),
    };
    if len > bytes_max {
        return Err(TOO_LARGE);
    }
    check_lines(&bytes[..len])?;
    Ok(Some(len))
}

const TOO_LARGE: Malformed = Malformed::TooLarge("a head of more than 32 KiB");

fn why(error: httparse::Error) -> Malformed {
    match error {
        httparse::Error::TooManyHeaders => Malformed::TooLarge("more than 100 header fields"),
        httparse::Error::Version => Malformed::Version,
        httparse::Error::HeaderName => Malformed::Syntax("a malformed field name"),
        httparse::Error::HeaderValue => Malformed::Syntax("a malformed field value"),
        httparse::Error::NewLine => Malformed::Syntax("a line not terminated by CR LF"),
        httparse::Error::Status => Malformed::Syntax("a malformed status"),
        httparse::Error::Token => Malformed::Syntax("a malformed first line"),
    }
}

fn version(minor: Option<u8>) -> Result<Version, Malformed> {
    match minor {
        Some(0) => Ok(Version::Http10),
        Some(1) => Ok(Version::Http11),
        _ => Err(Malformed::Version),
    }
}

fn fields<'b>(lines: &[httparse::Header<'b>]) -> Fields<'b> {
    let trim = |value: &'b [u8]| value.trim_ascii();
    lines.iter().map(|line| Field { name: line.name, value: trim(line.value) }).collect()
}

/// Checks that every line ends with CR LF. httparse refuses other errors in lines.
fn check_lines(head: &[u8]) -> Result<(), Malformed> {
    // Without branches the compiler compares many bytes at once.
    let lf_alone = head
        .iter()
        .zip(head.iter().skip(1))
        .fold(0, |found, (one, next)| found | (u8::from(*next == b'\n') & u8::from(*one != b'\r')));
    if lf_alone > 0 || head.first() == Some(&b'\n') {
        return Err(Malformed::Syntax("LF without CR"));
    }
    Ok(())
}

/// A response head with its bytes and the positions of its fields, so that it is parsed only once.
#[derive(Clone, Debug)]
pub struct OwnedResponse {
    bytes: Bytes,
    status: u16,
    version: Version,
    lines: SmallVec<[Line; 16]>,
}

/// Bytes of a head, checked once. Most heads are UTF-8; their names are then part of one text.
#[derive(Clone, Debug)]
enum Bytes {
    Text(String),
    Other(Vec<u8>),
}

/// Positions of the name and the value of a field.
#[derive(Clone, Debug)]
struct Line {
    name: Range<u16>,
    value: Range<u16>,
}

impl OwnedResponse {
    /// Copies a response into `memory`, which is empty. `bytes` are those that [`response`] parsed,
    /// up to the length it returned.
    pub fn new(response: &Response<'_>, bytes: &[u8], mut memory: Vec<u8>) -> Self {
        // A head is shorter than 64 KiB.
        let place = |part: &[u8]| {
            let start = (part.as_ptr().addr() - bytes.as_ptr().addr()) as u16;
            start..start + part.len() as u16
        };
        let line = |field: &Field<'_>| Line { name: place(field.name.as_bytes()), value: place(field.value) };
        memory.extend_from_slice(bytes);
        Self {
            status: response.status,
            version: response.version,
            lines: response.fields.iter().map(line).collect(),
            bytes: String::from_utf8(memory)
                .map_or_else(|error| Bytes::Other(error.into_bytes()), Bytes::Text),
        }
    }

    /// Returns the memory of the copy for another one.
    pub fn into_memory(self) -> Vec<u8> {
        match self.bytes {
            Bytes::Text(text) => text.into_bytes(),
            Bytes::Other(bytes) => bytes,
        }
    }

    /// Status code.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The response with its fields.
    pub fn response(&self) -> Response<'_> {
        let range = |place: &Range<u16>| usize::from(place.start)..usize::from(place.end);
        let (text, bytes) = match &self.bytes {
            Bytes::Text(text) => (text.as_str(), text.as_bytes()),
            Bytes::Other(bytes) => ("", &bytes[..]),
        };
        let name = |place: &Range<u16>| {
            let checked = || std::str::from_utf8(&bytes[range(place)]).unwrap_or_default();
            text.get(range(place)).unwrap_or_else(checked)
        };
        let field = |line: &Line| Field { name: name(&line.name), value: &bytes[range(&line.value)] };
        let fields = self.lines.iter().map(field).collect();
        Response { status: self.status, version: self.version, fields }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn head_is_read_as_written() {
        let bytes = b"\r\nGET http://a/b?c HTTP/1.0\r\nHost: a\r\nX:\t one \r\nX: two\r\n\r\nrest";
        let (request, len) = request(bytes).unwrap().unwrap();
        assert_eq!(
            (request.method, request.target, request.version),
            ("GET", "http://a/b?c", Version::Http10)
        );
        assert_eq!(&bytes[len..], b"rest");
        let values: Vec<_> = request.fields.all("x").map(|field| field.value).collect();
        assert_eq!(values, [b"one", b"two"]);
        let (response, len) = response(b"HTTP/1.1 404\r\nAge: 3\r\n\r\n").unwrap().unwrap();
        assert_eq!((response.status, response.fields.one("age"), len), (404, Some("3"), 24));
    }

    #[test]
    fn owned_head_equals_the_parsed_head() {
        let bytes = b"HTTP/1.0 404 None\r\nX:\t one \r\nEmpty:\r\nx: \xfftwo\r\n\r\nbody";
        let (response, len) = response(bytes).unwrap().unwrap();
        let owned = OwnedResponse::new(&response, &bytes[..len], Vec::new());
        assert_eq!(format!("{:?}", owned.response()), format!("{response:?}"));
        assert_eq!(owned.status(), 404);
    }

    #[test]
    fn ambiguous_heads_are_refused() {
        for head in [
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
            "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "GET / HTTP/1.1\r\nHo st: a\r\n\r\n",
            "GET / HTTP/1.1\r\n: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\0\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /  HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
            "GET /\r\nHost: a\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "\nGET / HTTP/1.1\r\n\r\n",
            "G(T / HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            assert!(request(head.as_bytes()).is_err(), "{head:?}");
        }
        for (version, status) in
            [("HTTP/2.0", 505), ("HTTP/1.2", 505), ("http/1.1", 400), ("HTTP/1.10", 400), ("FTP/1.1", 400)]
        {
            let head = format!("GET / {version}\r\nHost: a\r\n\r\n");
            assert_eq!(request(head.as_bytes()).map_err(Malformed::status), Err(status), "{version}");
        }
        assert_eq!(request(b"GET /  HTTP/1.1\r\n\r\n").unwrap_err().status(), 400);
        assert!(response(b"HTTP/1.1 099 X\r\n\r\n").is_err());
        assert!(response(b"\r\nHTTP/1.1 200 X\r\n\r\n").is_err());
    }

    #[test]
    fn heads_have_limits() {
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(HEAD_BYTES_MAX));
        assert_eq!(request(long.as_bytes()).unwrap_err().status(), 431);
        assert_eq!(request(&long.as_bytes()[..HEAD_BYTES_MAX]).unwrap_err().status(), 431);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(FIELDS_MAX + 1));
        assert_eq!(request(many.as_bytes()).unwrap_err().status(), 431);
    }

    proptest! {
        /// A head is complete at its last byte and not before.
        #[test]
        fn head_is_complete_at_its_end(names in prop::collection::vec("[A-Za-z-]{1,12}", 0..20), value in "[ -~]{0,40}") {
            let lines: Vec<_> = names.iter().map(|name| format!("{name}: {value}\r\n")).collect();
            let head = format!("GET /x HTTP/1.1\r\n{}\r\n", lines.concat());
            for len in 0..head.len() {
                prop_assert_eq!(request(&head.as_bytes()[..len]), Ok(None));
            }
            let (parsed, len) = request(head.as_bytes()).unwrap().unwrap();
            prop_assert_eq!((parsed.fields.iter().count(), len), (names.len(), head.len()));
        }

        #[test]
        fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (request(&bytes).is_ok(), response(&bytes).is_ok());
        }
    }
}
