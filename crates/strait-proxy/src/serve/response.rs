//! Heads of responses to clients.

use std::ops::Range;

use strait_http::cache_status::CacheStatus;
use strait_http::forward::{forwarded_fields, keeps_alive};
use strait_http::head::{Request, Response, Version};
use strait_http::multipart::Multipart;
use strait_http::range::content_range;

use crate::cache::object::Object;
use crate::cache::worker::Worker;
use crate::config::rules::ResponseRules;
use crate::config::settings::Settings;
use crate::io::head::{
    AGE, Block, CACHE_STATUS, CONTENT_LENGTH, HSTS, HeadForm, TRANSFER_ENCODING, VARY, push_date, push_field,
    push_number, push_some, push_status_line, push_via,
};
use crate::serve::coded;

/// Response options derived from the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseOptions<'a> {
    /// True for HEAD: no body.
    pub(crate) is_head: bool,
    pub(crate) version: Version,
    /// True if the connection stays open.
    pub(crate) keeps_alive: bool,
    /// True if the client is told to use https only (HSTS, RFC 6797).
    pub(crate) has_hsts: bool,
    /// Rules of the route.
    pub(crate) rules: Option<&'a ResponseRules>,
    /// Value of Set-Cookie that a forwarded response gets.
    pub(crate) set_cookie: Option<&'a str>,
}

impl ResponseOptions<'_> {
    /// Returns the options of a request.
    pub(crate) fn of(request: &Request<'_>) -> Self {
        Self {
            is_head: request.method == "HEAD",
            version: request.version,
            keeps_alive: keeps_alive(request.version, &request.fields),
            has_hsts: false,
            rules: None,
            set_cookie: None,
        }
    }

    /// Closes the connection after this response if the proxy shuts down.
    fn within(self, settings: &Settings) -> Self {
        Self { keeps_alive: self.keeps_alive && !settings.is_closing(), ..self }
    }
}

/// Framing of a body on its way to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// No body and no Content-Length.
    None,
    Length(u64),
    Chunked,
    /// The end of the connection ends it.
    ToClose,
}

impl Framing {
    /// Framing of a body of unknown length.
    pub(crate) fn unknown(version: Version) -> Self {
        if version < Version::Http11 { Self::ToClose } else { Self::Chunked }
    }

    /// Returns true if the connection can carry another response.
    pub(crate) fn keeps_alive(self) -> bool {
        self != Self::ToClose
    }
}

/// Fields of a 304 (RFC 9110, section 15.4.5).
const OF_NOT_MODIFIED: [&str; 8] = [
    "cache-control",
    "content-location",
    "date",
    "etag",
    "expires",
    "last-modified",
    "vary",
    "cdn-cache-control",
];

/// Form of the response from a stored object.
pub(crate) enum Answer<'a> {
    /// Whole object.
    Whole(Framing),
    /// 304.
    NotModified,
    /// Part with that range, of a representation of that length.
    Part(&'a Range<u64>, u64),
    /// Several parts, with their total length.
    Parts(&'a Multipart<'a>, u64),
    /// 416 for a representation of that length.
    Unsatisfiable(u64),
}

/// Writes the head of a response from the store; returns its status.
pub(crate) fn write_stored(
    head: &mut Vec<u8>,
    settings: &Settings,
    object: &Object,
    answer: &Answer<'_>,
    age: Option<u64>,
    status: &CacheStatus<'_>,
    options: ResponseOptions<'_>,
) -> u16 {
    let mut framing = Framing::None;
    let code = answer.status(object);
    match answer {
        Answer::Whole(how) => {
            head.extend_from_slice(object.head_lines());
            framing = *how;
        }
        Answer::NotModified => {
            push_status_line(head, code);
            push_some(head, &object.fields(), |name| OF_NOT_MODIFIED.contains(&name));
        }
        Answer::Part(range, length) => {
            push_status_line(head, code);
            head.extend_from_slice(object.field_lines());
            push_field(head, "Content-Range", content_range(range, *length).as_bytes());
            framing = Framing::Length(range.end - range.start);
        }
        Answer::Parts(multipart, length) => {
            push_status_line(head, code);
            push_some(head, &object.fields(), |name| name != "content-type");
            let kind = format!("multipart/byteranges; boundary={}", multipart.boundary);
            push_field(head, "Content-Type", kind.as_bytes());
            framing = Framing::Length(*length);
        }
        Answer::Unsatisfiable(length) => {
            push_status_line(head, code);
            // As the Age below counts from it.
            push_some(head, &object.fields(), |name| name == "date");
            push_field(head, "Content-Range", format!("bytes */{length}").as_bytes());
            framing = Framing::Length(0);
        }
    }
    write_added(head, settings, object, age, options);
    write_end(head, framing, Some(status), options.within(settings));
    code
}

/// Appends the fields of a whole response from the store to `block`, which has the lines of the
/// object ([`Object::encoded_lines`]). Without rules. `length` is that of the body, if it has one.
pub(crate) fn encode_stored(
    block: &mut Vec<u8>,
    settings: &Settings,
    object: &Object,
    length: Option<u64>,
    age: Option<u64>,
    status: &CacheStatus<'_>,
    options: ResponseOptions<'_>,
) {
    let block = &mut Block(block);
    write_added(block, settings, object, age, options);
    write_own_fields(block, length.map_or(Framing::None, Framing::Length), Some(status), options);
}

/// Writes the fields that a stored response gets in addition.
fn write_added(
    head: &mut impl HeadForm,
    settings: &Settings,
    object: &Object,
    age: Option<u64>,
    options: ResponseOptions<'_>,
) {
    if let Some(age) = age {
        head.number(&AGE, age);
    }
    if coded::adds_vary(object, options.rules) {
        head.field(&VARY, b"Accept-Encoding");
    }
    // The object's own Via stays: a list may have several lines.
    head.own_via(&settings.via);
}

impl Answer<'_> {
    fn status(&self, object: &Object) -> u16 {
        match self {
            Self::Whole(_) => object.status,
            Self::NotModified => 304,
            Self::Part(..) | Self::Parts(..) => 206,
            Self::Unsatisfiable(_) => 416,
        }
    }
}

/// Writes the head of a forwarded response.
pub(crate) fn write_passed(
    head: &mut Vec<u8>,
    settings: &Settings,
    response: &Response<'_>,
    now: u64,
    framing: Framing,
    status: Option<&CacheStatus<'_>>,
    options: ResponseOptions<'_>,
) {
    push_status_line(head, response.status);
    for field in forwarded_fields(&response.fields).filter(|field| !field.name.eq_ignore_ascii_case("via")) {
        push_field(head, field.name, field.value);
    }
    if !response.fields.has("date") {
        push_date(head, now);
    }
    push_via(head, &settings.via, &response.fields, response.version);
    if let Some(cookie) = options.set_cookie {
        push_field(head, "Set-Cookie", cookie.as_bytes());
        // RFC 9111 s5.2.2.7: no other cache gives the cookie to other clients.
        push_field(head, "Cache-Control", b"private");
    }
    write_end(head, framing, status, options.within(settings));
}

/// Writes the head of a 101 (RFC 9110, section 7.8).
pub(crate) fn write_switching(head: &mut Vec<u8>, settings: &Settings, response: &Response<'_>) {
    push_status_line(head, response.status);
    for field in forwarded_fields(&response.fields).chain(response.fields.all("upgrade")) {
        push_field(head, field.name, field.value);
    }
    head.extend_from_slice(&settings.via.line);
    head.extend_from_slice(b"Connection: Upgrade\r\n\r\n");
}

/// Tells clients for a year to use https only.
const HSTS_YEAR: &[u8] = b"max-age=31536000";

/// Writes framing, HSTS and Cache-Status.
fn write_own_fields(
    head: &mut impl HeadForm,
    framing: Framing,
    status: Option<&CacheStatus<'_>>,
    options: ResponseOptions<'_>,
) {
    match framing {
        Framing::Length(length) => head.number(&CONTENT_LENGTH, length),
        Framing::Chunked => head.field(&TRANSFER_ENCODING, b"chunked"),
        Framing::None | Framing::ToClose => {}
    }
    if options.has_hsts {
        head.field(&HSTS, HSTS_YEAR);
    }
    if let Some(status) = status {
        head.field_by(&CACHE_STATUS, |out| status.write(out));
    }
}

/// Writes framing, HSTS and Cache-Status, applies the rules of the route, and writes Connection and
/// the empty line.
pub(crate) fn write_end(
    head: &mut Vec<u8>,
    framing: Framing,
    status: Option<&CacheStatus<'_>>,
    options: ResponseOptions<'_>,
) {
    write_own_fields(head, framing, status, options);
    if let Some(rules) = options.rules {
        rules.apply(head);
    }
    let stays = options.keeps_alive && framing.keeps_alive();
    match (stays, options.version) {
        (false, _) => head.extend_from_slice(b"Connection: close\r\n"),
        (true, Version::Http10) => head.extend_from_slice(b"Connection: keep-alive\r\n"),
        (true, Version::Http11 | Version::Http2) => {}
    }
    head.extend_from_slice(b"\r\n");
}

/// Retry-After of a 503 in seconds: the default wait of a request.
const RETRY_SECONDS: u64 = 10;

/// Writes the proxy's own response with a line that gives the reason, and further lines of fields.
/// Returns the length of its head.
pub(crate) fn write_own(
    head: &mut Vec<u8>,
    worker: &Worker,
    (status, why, field_lines): (u16, &str, &[u8]),
    options: ResponseOptions<'_>,
) -> usize {
    let settings = worker.settings();
    push_status_line(head, status);
    push_date(head, worker.now());
    push_field(head, "Content-Type", b"text/plain; charset=utf-8");
    head.extend_from_slice(&settings.via.line);
    if status == 503 {
        push_number(head, "Retry-After", RETRY_SECONDS);
    }
    head.extend_from_slice(field_lines);
    let body = format!("{}: {why}\n", settings.name);
    write_end(head, Framing::Length(body.len() as u64), None, options.within(settings));
    let head_len = head.len();
    if !options.is_head {
        head.extend_from_slice(body.as_bytes());
    }
    head_len
}
