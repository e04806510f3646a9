//! Several parts in one response: multipart/byteranges (RFC 9110, section 14.6; RFC 2046, section 5.1).
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

/// What stands between the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary(u64);

impl Boundary {
    /// A boundary out of a number that nobody can foresee: no part may contain it, and none can be looked through before it is sent.
    pub fn of(random: u64) -> Self {
        Self(random)
    }
}

/// As it stands in Content-Type; always of one length.
impl fmt::Display for Boundary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

/// The framing of the parts of a representation.
#[derive(Clone, Copy, Debug)]
pub struct Multipart<'a> {
    /// What stands between them.
    pub boundary: Boundary,
    /// The Content-Type of the representation, if it tells one.
    pub content_type: Option<&'a [u8]>,
    /// The bytes of the whole representation.
    pub length: u64,
}

impl Multipart<'_> {
    /// Writes what stands before the bytes of `part`, which is not empty.
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

    /// Writes what stands behind the last part.
    pub fn write_end(&self, out: &mut Vec<u8>) {
        let _ = write!(out, "\r\n--{}--\r\n", self.boundary);
    }

    /// The Content-Length of a response with these parts; `None` where no number tells it.
    pub fn content_length(&self, parts: &[Range<u64>]) -> Option<u64> {
        let end = "\r\n----\r\n".len() as u64 + 16;
        parts.iter().try_fold(end, |sum, part| {
            sum.checked_add(self.head_bytes(part))?.checked_add(part.end.checked_sub(part.start)?)
        })
    }

    /// The length of what [`Self::write_head`] writes.
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
    fn parts_are_framed_as_the_rfc_says() {
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
        /// The length that is told before is that of what is written.
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
