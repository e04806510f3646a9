//! Coded forms of a stored response: its body with content codings (RFC 9110, section 8.4). The
//! proxy makes them itself, and stores them behind the body in the same record. So they are
//! evicted, purged, marked as stale and replaced with the response, and never apart from it.
//!
//! ```text
//!  0                    length
//!  +--------------------+----------+---------+-----------+
//!  | body as received   | zstd     | br      | gzip      |    record
//!  +--------------------+----------+---------+-----------+
//! ```

use std::ops::Range;

use strait_http::coding::Coding;
use strait_http::conditional::Tag;
use strait_http::fields::Fields;

use crate::io::head::{push_field, push_status_line};

/// Number of codings.
const CODINGS: usize = Coding::ALL.len();
/// Value for a form that was not made.
const MISSING: u32 = u32::MAX;
/// Value for one that would not be shorter than the body.
const NOT_SHORTER: u32 = 0;

/// Lengths of the coded forms of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forms([u32; CODINGS]);

impl Default for Forms {
    fn default() -> Self {
        Self([MISSING; CODINGS])
    }
}

impl Forms {
    /// Bytes of the encoded lengths.
    pub(crate) const BYTES: usize = 4 * CODINGS;

    /// Returns true if no form was made, or found not to be shorter.
    pub(crate) fn are_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if the form was not made yet.
    pub(crate) fn lack(&self, coding: Coding) -> bool {
        self.0[coding.index()] == MISSING
    }

    /// Sets the length of a form; `None` if it would not be shorter than the body.
    pub(crate) fn set(&mut self, coding: Coding, len: Option<u32>) {
        self.0[coding.index()] = len.unwrap_or(NOT_SHORTER);
    }

    /// Returns the codings of all forms with their ranges in the record of a body of `length`
    /// bytes.
    pub(crate) fn ranges(self, length: u64) -> impl Iterator<Item = (Coding, Range<u64>)> {
        let mut at = length;
        Coding::ALL.into_iter().zip(self.0).filter(|(_, len)| !matches!(*len, MISSING | NOT_SHORTER)).map(
            move |(coding, len)| {
                let first = at;
                at = first.saturating_add(len.into());
                (coding, first..at)
            },
        )
    }

    /// Returns the number of bytes of all forms.
    pub(crate) fn total(self) -> u64 {
        self.ranges(0).map(|(_, range)| range.end).max().unwrap_or(0)
    }

    /// Returns the lengths as they are in a record.
    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (place, len) in bytes.chunks_exact_mut(4).zip(self.0) {
            place.copy_from_slice(&len.to_le_bytes());
        }
        bytes
    }

    /// Reads the lengths of a record.
    pub(crate) fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let mut lens = [MISSING; CODINGS];
        for (len, place) in lens.iter_mut().zip(bytes.as_chunks().0) {
            *len = u32::from_le_bytes(*place);
        }
        Self(lens)
    }
}

/// Fields that a coded form does not have, because they describe other bytes.
const OF_OTHER_BYTES: [&str; 7] =
    ["accept-ranges", "content-digest", "content-md5", "digest", "etag", "last-modified", "repr-digest"];

/// Returns the head of a coded form of the response with that status and those fields, up to the
/// empty line.
///
/// A strong tag gets a suffix, because the bytes differ (RFC 9110, section 8.8.3.3), and is weak,
/// because another level or version of a library gives other bytes. A weak one stays. The form has
/// no Last-Modified: a client or a cache could take it for a strong validator, and continue the
/// form with a range of other bytes (If-Range).
pub(super) fn head_of(status: u16, fields: &Fields<'_>, coding: Coding) -> Vec<u8> {
    let mut head = Vec::new();
    let tag = fields.one("etag").and_then(Tag::parse);
    let is_dropped = |name: &str| OF_OTHER_BYTES.into_iter().any(|own| own.eq_ignore_ascii_case(name));
    push_status_line(&mut head, status);
    for field in fields.iter().filter(|field| !is_dropped(field.name)) {
        push_field(&mut head, field.name, field.value);
    }
    push_field(&mut head, "Content-Encoding", coding.name().as_bytes());
    if let Some(Tag { weak, opaque }) = tag {
        let inside = opaque.strip_suffix('"').unwrap_or(opaque);
        let own = if weak { format!("W/{opaque}") } else { format!("W/{inside}-strait-{}\"", coding.name()) };
        push_field(&mut head, "ETag", own.as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    head
}

#[cfg(test)]
mod tests {
    use strait_http::head;

    use super::*;

    #[test]
    fn forms_are_behind_the_body_in_the_order_of_their_codings() {
        let mut forms = Forms::default();
        assert!(forms.are_none() && forms.total() == 0 && forms.lack(Coding::Gzip));
        forms.set(Coding::Gzip, Some(7));
        forms.set(Coding::Brotli, None);
        forms.set(Coding::Zstd, Some(5));
        let ranges: Vec<_> = forms.ranges(100).collect();
        assert_eq!(ranges, [(Coding::Zstd, 100..105), (Coding::Gzip, 105..112)]);
        assert_eq!((forms.total(), forms.lack(Coding::Brotli)), (12, false));
        assert_eq!(Forms::decode(forms.encode()), forms);
    }

    #[test]
    fn head_of_a_form_has_its_own_tag_and_no_field_of_other_bytes() {
        let head = |lines: &str| {
            let all = format!(
                "HTTP/1.1 200 OK\r\n{lines}Accept-Ranges: bytes\r\nRepr-Digest: a=:b:\r\nX: y\r\n\r\n"
            );
            let (response, _) = head::response(all.as_bytes()).unwrap().unwrap();
            String::from_utf8(head_of(200, &response.fields, Coding::Brotli)).unwrap()
        };
        for (lines, expected) in [
            (
                "ETag: \"a\"\r\nLast-Modified: b\r\n",
                "X: y\r\nContent-Encoding: br\r\nETag: W/\"a-strait-br\"\r\n",
            ),
            ("ETag: \"\"\r\n", "X: y\r\nContent-Encoding: br\r\nETag: W/\"-strait-br\"\r\n"),
            ("ETag: W/\"a\"\r\nLast-Modified: b\r\n", "X: y\r\nContent-Encoding: br\r\nETag: W/\"a\"\r\n"),
            ("Last-Modified: b\r\n", "X: y\r\nContent-Encoding: br\r\n"),
            // An origin may take a malformed tag in If-Range for its own.
            ("ETag: a\r\n", "X: y\r\nContent-Encoding: br\r\n"),
        ] {
            assert_eq!(head(lines), format!("HTTP/1.1 200 OK\r\n{expected}\r\n"));
        }
    }
}
