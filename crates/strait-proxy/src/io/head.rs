//! Lines of HTTP heads, and the memory in which heads are written.
//!
//! Requests to origins and responses to clients use it.

use std::cell::RefCell;
use std::time::{Duration, UNIX_EPOCH};

use strait_http::fields::Fields;
use strait_http::forward::{forwarded_fields, via};
use strait_http::head::{Response, Version};
use strait_http2::hpack;

use crate::config::via::ViaName;

/// Heads of which a worker keeps the memory.
const HEADS_MAX: usize = 64;

/// Memory for heads, kept for the next ones: a hit allocates none.
#[derive(Debug, Default)]
pub(crate) struct Heads(RefCell<Vec<Vec<u8>>>);

impl Heads {
    /// Takes memory for a head; it is empty.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps the memory of a head for another.
    pub(crate) fn give_back(&self, mut head: Vec<u8>) {
        head.clear();
        let mut heads = self.0.borrow_mut();
        if heads.len() < HEADS_MAX {
            heads.push(head);
        }
    }
}

/// Name of a field that the proxy adds to stored responses.
pub(crate) struct Name {
    text: &'static str,
    /// Its encoding for HTTP/2, in a field without an entry in the table (RFC 7541, section 6.2.2).
    block: &'static [u8],
}

// An index of the static table from 15 on takes two bytes (RFC 7541, section 5.1).
pub(crate) const AGE: Name = Name { text: "Age", block: &[0x0f, 21 - 15] };
pub(crate) const CACHE_STATUS: Name = Name { text: "Cache-Status", block: b"\x00\x0ccache-status" };
pub(crate) const CONTENT_LENGTH: Name = Name { text: "Content-Length", block: &[0x0f, 28 - 15] };
pub(crate) const HSTS: Name = Name { text: "Strict-Transport-Security", block: &[0x0f, 56 - 15] };
pub(crate) const TRANSFER_ENCODING: Name = Name { text: "Transfer-Encoding", block: &[0x0f, 57 - 15] };
pub(crate) const VARY: Name = Name { text: "Vary", block: &[0x0f, 59 - 15] };

/// Form in which fields of a head are written: text, or the encoding of HTTP/2.
pub(crate) trait HeadForm {
    /// Writes a field with a value that `write` appends.
    fn field_by(&mut self, name: &Name, write: impl FnOnce(&mut Vec<u8>));
    /// Writes Via with this proxy alone.
    fn own_via(&mut self, via: &ViaName);

    /// Writes a field.
    fn field(&mut self, name: &Name, value: &[u8]) {
        self.field_by(name, |out| out.extend_from_slice(value));
    }

    /// Writes a field with a number.
    fn number(&mut self, name: &Name, value: u64) {
        self.field(name, itoa::Buffer::new().format(value).as_bytes());
    }
}

/// Head as text.
impl HeadForm for Vec<u8> {
    fn field_by(&mut self, name: &Name, write: impl FnOnce(&mut Vec<u8>)) {
        self.extend_from_slice(name.text.as_bytes());
        self.extend_from_slice(b": ");
        write(self);
        self.extend_from_slice(b"\r\n");
    }

    fn own_via(&mut self, via: &ViaName) {
        self.extend_from_slice(&via.line);
    }
}

/// Header block of HTTP/2.
pub(crate) struct Block<'b>(pub(crate) &'b mut Vec<u8>);

impl HeadForm for Block<'_> {
    fn field_by(&mut self, name: &Name, write: impl FnOnce(&mut Vec<u8>)) {
        self.0.extend_from_slice(name.block);
        hpack::encode_value_by(write, self.0);
    }

    fn own_via(&mut self, via: &ViaName) {
        self.0.extend_from_slice(&via.block);
    }
}

/// Writes the Date of a message that has none.
pub(crate) fn push_date(out: &mut Vec<u8>, seconds: u64) {
    // A year of more than four digits, from a wrong clock, would not be a valid date.
    const LAST: u64 = 253_402_300_799;
    let date = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST));
    push_field(out, "Date", httpdate::fmt_http_date(date).as_bytes());
}

/// Writes a status line, with the reason phrase of RFC 9110, section 15.
pub(crate) fn push_status_line(out: &mut Vec<u8>, status: u16) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    out.push(b' ');
    let reason = http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    out.extend_from_slice(reason.unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes a field line.
pub(crate) fn push_field(out: &mut Vec<u8>, name: impl AsRef<[u8]>, value: &[u8]) {
    out.extend_from_slice(name.as_ref());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes a field line with a number.
pub(crate) fn push_number(out: &mut Vec<u8>, name: &str, value: u64) {
    push_field(out, name, itoa::Buffer::new().format(value).as_bytes());
}

/// Writes Via in one line: the proxies that forwarded the message, this one last (RFC 9110, section
/// 7.6.3).
pub(crate) fn push_via(head: &mut Vec<u8>, own: &ViaName, fields: &Fields<'_>, version: Version) {
    if version == Version::Http11 && !fields.has("via") {
        head.extend_from_slice(&own.line);
    } else {
        push_field(head, "Via", via(fields, version, &own.text).as_bytes());
    }
}

/// Writes an interim response, which has no body and no connection options.
pub(crate) fn write_interim(head: &mut Vec<u8>, own: &ViaName, response: &Response<'_>) {
    push_status_line(head, response.status);
    push_some(head, &forwarded_fields(&response.fields).copied().collect(), |name| name != "via");
    push_via(head, own, &response.fields, response.version);
    head.extend_from_slice(b"\r\n");
}

/// Writes the fields with names that `is_match` accepts; it gets them in lower case.
pub(crate) fn push_some(head: &mut Vec<u8>, fields: &Fields<'_>, is_match: impl Fn(&str) -> bool) {
    for field in fields.iter().filter(|field| is_match(&field.name.to_ascii_lowercase())) {
        push_field(head, field.name, field.value);
    }
}

#[cfg(test)]
mod tests {
    use strait_http2::hpack::{Decoder, FieldList};

    use super::*;

    #[test]
    fn names_are_the_same_in_both_forms() {
        for name in [AGE, CACHE_STATUS, CONTENT_LENGTH, HSTS, TRANSFER_ENCODING, VARY] {
            let (mut text, mut block, mut list) = (Vec::new(), Vec::new(), FieldList::new(1000, 1));
            text.number(&name, 70);
            Block(&mut block).number(&name, 70);
            assert_eq!(text, format!("{}: 70\r\n", name.text).into_bytes());
            Decoder::new(0).decode(&block, &mut list).unwrap();
            let lower = name.text.to_ascii_lowercase();
            assert!(list.iter().eq([(lower.as_bytes(), &b"70"[..])]), "{}", name.text);
        }
    }
}
