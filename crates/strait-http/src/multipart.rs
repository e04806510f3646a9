//! Multiple parts in one response: multipart/byteranges (RFC 9110, section 14.6; RFC 2046, section
//! 5.1).
//!
//! ```text
//! CR LF --boundary CR LF
//! Content-Type: text/plain CR LF
//! Content-Range: bytes 0-99/1000 CR LF
//! CR LF
//! ... 100 bytes ...                      once for each part
//! CR LF --boundary-- CR LF
//! ```

use std::fmt;
use std::io::Write as _;
use std::ops::Range;

/// Delimiter of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary(u64);

impl Boundary {
    /// Makes a boundary from an unpredictable number. No part may contain the boundary, and the
    /// parts cannot be searched before they are sent.
    pub fn of(random: u64) -> Self {
        Self(random)
    }
}

/// Writes the boundary as in Content-Type, always with the same length.
impl fmt::Display for Boundary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

/// Framing of the parts of a representation.
#[derive(Clone, Copy, Debug)]
pub struct Multipart<'a> {
    /// Delimiter of the parts.
    pub boundary: Boundary,
    /// Content-Type of the representation, if it has one.
    pub content_type: Option<&'a [u8]>,
    /// Length of the whole representation in bytes.
    pub length: u64,
}

impl Multipart<'_> {
    /// Writes the delimiter and the fields before `part`, which is not empty.
    pub fn write_head(&self, part: &Range<u64>, out: &mut Vec<u8>) {
        // Writing to a Vec does not fail.
        let _ = write!(out, "\r\n--{}\r\n", self.boundary);
        if let Some(content_type) = self.content_type {
            out.extend_from_slice(b"Content-Type: ");
            out.extend_from_slice(content_type);
            out.extend_from_slice(b"\r\n");
        }
        let last = part.end.saturating_sub(1);
        let _ = write!(out, "Content-Range: bytes {}-{last}/{}\r\n\r\n", part.start, self.length);
    }

    /// Writes the delimiter after the last part.
    pub fn write_end(&self, out: &mut Vec<u8>) {
        let _ = write!(out, "\r\n--{}--\r\n", self.boundary);
    }

    /// Content-Length of a response with these parts; `None` if it exceeds 64 bits.
    pub fn content_length(&self, parts: &[Range<u64>]) -> Option<u64> {
        let end = "\r\n----\r\n".len() as u64 + 16;
        parts.iter().try_fold(end, |sum, part| {
            sum.checked_add(self.head_bytes(part))?.checked_add(part.end.checked_sub(part.start)?)
        })
    }

    /// Length of the bytes written by [`Self::write_head`].
    fn head_bytes(&self, part: &Range<u64>) -> u64 {
        let line = |content_type: &[u8]| "Content-Type: \r\n".len() + content_type.len();
        let fixed =
            "\r\n--\r\nContent-Range: bytes -/\r\n\r\n".len() + 16 + self.content_type.map_or(0, line);
        fixed as u64
            + [part.start, part.end.saturating_sub(1), self.length].into_iter().map(digits).sum::<u64>()
    }
}

fn digits(number: u64) -> u64 {
    u64::from(number.checked_ilog10().unwrap_or(0)) + 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_are_framed_as_in_the_rfc() {
        let multipart =
            Multipart { boundary: Boundary::of(0xabc), content_type: Some(b"text/plain"), length: 8000 };
        let mut out = Vec::new();
        multipart.write_head(&(500..1000), &mut out);
        multipart.write_end(&mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "\r\n--0000000000000abc\r\nContent-Type: text/plain\r\nContent-Range: bytes 500-999/8000\r\n\r\n\
             \r\n--0000000000000abc--\r\n"
        );
        assert_eq!(multipart.content_length(&[0..u64::MAX, 0..1]), None);
    }

    proptest! {
        /// The predicted length equals the length of the written bytes.
        #[test]
        fn lengths_are_exact(
            random: u64, length: u64, content_type: Option<[u8; 3]>, parts in prop::collection::vec((0..1_u64 << 40, 1..300_u64), 0..5),
        ) {
            let multipart = Multipart {
                boundary: Boundary::of(random), content_type: content_type.as_ref().map(<[u8; 3]>::as_slice), length,
            };
            let parts: Vec<_> = parts.iter().map(|(start, bytes)| *start..start + bytes).collect();
            let mut out = Vec::new();
            for part in &parts {
                multipart.write_head(part, &mut out);
                out.extend((part.start..part.end).map(|_| b'x'));
            }
            multipart.write_end(&mut out);
            prop_assert_eq!(multipart.content_length(&parts), Some(out.len() as u64));
        }
    }
}
