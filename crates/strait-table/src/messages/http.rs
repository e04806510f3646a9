//! Rows of the table `http`.

use strait_http::Fields;
use strait_http::head::{self, Version};

use super::message::Message;
use super::rows::{Cell, MessageRow};

/// Parses a head of a request or a response.
pub(super) fn row(message: &Message) -> Option<MessageRow> {
    let bytes = &message.bytes[..];
    if bytes.starts_with(b"HTTP/") {
        let (response, _) = head::response(bytes).ok()??;
        let fields = &response.fields;
        let cells = vec![
            Cell::text("response"),
            Cell::text(version(response.version)),
            Cell::Text(None),
            Cell::Text(None),
            Cell::Text(None),
            Cell::Text(None),
            Cell::number(response.status),
            value(fields, "content-type"),
            length(fields),
        ];
        return MessageRow::new(message, cells);
    }
    let (request, _) = head::request(bytes).ok()??;
    let fields = &request.fields;
    let cells = vec![
        Cell::text("request"),
        Cell::text(version(request.version)),
        Cell::text(request.method),
        value(fields, "host"),
        Cell::text(request.target),
        value(fields, "user-agent"),
        Cell::Number(None),
        value(fields, "content-type"),
        length(fields),
    ];
    MessageRow::new(message, cells)
}

fn version(version: Version) -> &'static str {
    match version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
        Version::Http2 => "2",
    }
}

/// Returns the first value of a field.
fn value(fields: &Fields<'_>, name: &str) -> Cell {
    Cell::bytes(fields.all(name).next().map(|field| field.value))
}

fn length(fields: &Fields<'_>) -> Cell {
    Cell::Number(fields.one("content-length").and_then(|text| text.parse().ok()))
}
