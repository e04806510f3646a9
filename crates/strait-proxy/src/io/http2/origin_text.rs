//! Heads of messages of origins: requests from the text of HTTP/1.1 to HTTP/2, responses back.

use strait_http::head::Request;
use strait_http2::Response;

use crate::io::head::{push_field, push_number, push_status_line};
use crate::io::http2::translate::{Fields, is_of_connection};

/// Returns the fields of a request (RFC 9113, section 8.3.1). `takes_trailers`: its client accepts
/// trailers.
pub(super) fn request_fields(request: &Request<'_>, scheme: &str, takes_trailers: bool) -> Fields {
    let mut fields = Fields::default();
    let host = request.fields.one("host").unwrap_or_default();
    fields.push(":method", request.method.as_bytes());
    fields.push(":scheme", scheme.as_bytes());
    fields.push(":authority", host.as_bytes());
    fields.push(":path", request.target.as_bytes());
    let is_sent = |name: &str| {
        !is_of_connection(name) && !["host", "te"].iter().any(|own| name.eq_ignore_ascii_case(own))
    };
    for field in request.fields.iter().filter(|field| is_sent(field.name)) {
        fields.push(field.name, field.value);
    }
    if takes_trailers {
        fields.push("te", b"trailers");
    }
    fields
}

/// Writes the head of a response. Returns true if its body follows in chunks. `is_last`: nothing
/// follows it.
pub(super) fn write_response(
    out: &mut Vec<u8>,
    response: &Response<'_>,
    is_last: bool,
    is_to_head: bool,
) -> bool {
    push_status_line(out, response.status);
    let has_body = !response.is_interim() && !is_to_head && !matches!(response.status, 204 | 304);
    let may_have_length = has_body || is_to_head || response.status == 304;
    for (name, value) in response.fields().filter(|(name, _)| may_have_length || *name != b"content-length") {
        push_field(out, name, value);
    }
    let is_unknown = has_body && response.content_length.is_none();
    if is_unknown && is_last {
        push_number(out, "content-length", 0);
    } else if is_unknown {
        push_field(out, "transfer-encoding", b"chunked");
    }
    out.extend_from_slice(b"\r\n");
    is_unknown && !is_last
}
