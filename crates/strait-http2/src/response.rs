//! Heads of responses (RFC 9113, section 8): checks, and a view of the decoded fields.

use crate::hpack::FieldList;
use crate::request::{Malformed, check_field, fields, length, set};

/// Head of a response. All its parts are valid in HTTP/1.1 as well: names are tokens, and values
/// contain no line end.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// Status, from 100 to 999 without 101.
    pub status: u16,
    /// Content-Length.
    pub content_length: Option<u64>,
    list: &'a FieldList,
}

impl<'a> Response<'a> {
    /// Returns the header fields without the pseudo-header field. Names are in lower case.
    pub fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a> {
        fields(self.list)
    }

    /// Returns true for an interim response.
    pub fn is_interim(&self) -> bool {
        self.status < 200
    }

    /// Checks a list of fields.
    pub(crate) fn parse(list: &'a FieldList) -> Result<Self, Malformed> {
        let (mut status, mut content_length, mut is_pseudo) = (None, None, true);
        for (name, value) in list.iter() {
            if name.starts_with(b":") {
                if !is_pseudo || name != b":status" {
                    return Err("a misplaced or unknown pseudo-header field");
                }
                set(&mut status, parse_status(value)?)?;
                continue;
            }
            is_pseudo = false;
            check_field(name, value)?;
            if name == b"content-length" {
                set(&mut content_length, length(value)?)?;
            }
        }
        let status = status.ok_or("no status")?;
        Ok(Self { status, content_length, list })
    }
}

/// RFC 9113 s8.3.2, s8.6: HTTP/2 has no 101.
fn parse_status(value: &[u8]) -> Result<u16, Malformed> {
    let status = match value {
        [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9'] => std::str::from_utf8(value).ok(),
        _ => None,
    };
    let status = status.and_then(|text| text.parse().ok()).filter(|status| *status != 101);
    status.ok_or("a malformed status")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpack::{Decoder, encode};

    fn list(fields: &[(&str, &str)]) -> FieldList {
        let (mut block, mut list) = (Vec::new(), FieldList::new(1 << 16, 100));
        for (name, value) in fields {
            encode(name.as_bytes(), value.as_bytes(), &mut block);
        }
        Decoder::new(4096).decode(&block, &mut list).unwrap();
        list
    }

    #[test]
    fn parts_and_fields_are_found() {
        let list = list(&[(":status", "206"), ("content-length", "3"), ("a", "b")]);
        let response = Response::parse(&list).unwrap();
        assert_eq!((response.status, response.content_length, response.is_interim()), (206, Some(3), false));
        let fields: Vec<_> = response.fields().collect();
        assert_eq!(fields, [(&b"content-length"[..], &b"3"[..]), (b"a", b"b")]);
    }

    #[test]
    fn malformed_responses_are_refused() {
        let ok = (":status", "200");
        for fields in [
            &[][..],
            &[("a", "b")],
            &[ok, ok],
            &[("a", "b"), ok],
            &[ok, (":path", "/")],
            &[(":status", "20")],
            &[(":status", "2000")],
            &[(":status", "+20")],
            &[(":status", "099")],
            &[(":status", "101")],
            &[ok, ("Upper", "a")],
            &[ok, ("a b", "a")],
            &[ok, ("a", "b\r\nc: d")],
            &[ok, ("a", "b\nc: d")],
            &[ok, ("a", "b\0")],
            &[ok, ("a", " b")],
            &[ok, ("connection", "close")],
            &[ok, ("transfer-encoding", "chunked")],
            &[ok, ("upgrade", "h2c")],
            &[ok, ("keep-alive", "1")],
            &[ok, ("content-length", "1"), ("content-length", "1")],
            &[ok, ("content-length", "1, 1")],
        ] {
            assert!(Response::parse(&list(fields)).is_err(), "{fields:?}");
        }
    }
}
