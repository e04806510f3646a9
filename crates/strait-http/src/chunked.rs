//! Chunked bodies (RFC 9112, section 7.1): separates framing from data, so that data need not be
//! inspected.
//!
//! ```text
//! 1a;name=value CR LF     size, in hexadecimal, and extensions
//! ... 26 bytes ... CR LF  data
//! 0 CR LF                 the last chunk
//! Field: value CR LF      trailers
//! CR LF
//! ```
//!
//! The caller passes the next bytes and gets their kind: framing to skip, a number of bytes of
//! data, or too few bytes to decide. The kernel may then move the data.

use crate::error::Malformed;

/// Limit of a chunk-size line in bytes, extensions included.
const LINE_BYTES_MAX: usize = 256;
/// Limit of all trailers in bytes.
pub const TRAILERS_BYTES_MAX: usize = 8 << 10;
/// Limit of the digits of a chunk size: a longer one has leading zeros or exceeds 64 bits.
const DIGITS_MAX: usize = 16;

/// Kind and length of the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// More bytes are needed to decide.
    Unknown,
    /// Length of framing to skip.
    Framing(usize),
    /// Length of data, which may not be completely received. Call [`Chunked::advance`] as it is
    /// moved.
    Data(u64),
    /// Length of a trailer line including its end, after the last chunk.
    Trailer(usize),
    /// Length of framing at the end of the body.
    End(usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    Data(u64),
    /// CR LF after the data.
    DataEnd,
    /// Trailers, with the number of their bytes so far.
    Trailers(usize),
    Over,
}

/// State of a chunked body during reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chunked {
    state: State,
}

impl Chunked {
    /// Returns the kind of the next bytes. Framing is consumed by the call that returns it.
    ///
    /// # Errors
    /// `bytes` are not valid chunked coding: the end of the body is unknown, and the connection
    /// must be closed.
    pub fn next(&mut self, bytes: &[u8]) -> Result<Next, Malformed> {
        match self.state {
            State::Size => self.size(bytes),
            State::Data(left) => Ok(Next::Data(left)),
            State::DataEnd => self.data_end(bytes),
            State::Trailers(passed) => self.trailer(bytes, passed),
            State::Over => Ok(Next::End(0)),
        }
    }

    /// Consumes `moved` bytes of data. Zero is allowed in any state.
    ///
    /// # Panics
    /// If `moved` exceeds the remaining data of the chunk.
    pub fn advance(&mut self, moved: u64) {
        if moved == 0 {
            return;
        }
        let State::Data(left) = self.state else { panic!("the next bytes are not data") };
        assert!(moved <= left, "{moved} bytes of {left}");
        self.state = if moved == left { State::DataEnd } else { State::Data(left - moved) };
    }

    /// Returns true at the end of the body. A connection that ends earlier has failed.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    fn size(&mut self, bytes: &[u8]) -> Result<Next, Malformed> {
        let Some(line) = line(bytes, LINE_BYTES_MAX)? else { return Ok(Next::Unknown) };
        let size = size(line)?;
        self.state = if size == 0 { State::Trailers(0) } else { State::Data(size) };
        Ok(Next::Framing(line.len() + 2))
    }

    fn data_end(&mut self, bytes: &[u8]) -> Result<Next, Malformed> {
        match bytes {
            [b'\r', b'\n', ..] => {
                self.state = State::Size;
                Ok(Next::Framing(2))
            }
            [] | [b'\r'] => Ok(Next::Unknown),
            _ => Err(Malformed::Syntax("a chunk longer than its size")),
        }
    }

    fn trailer(&mut self, bytes: &[u8], passed: usize) -> Result<Next, Malformed> {
        let Some(line) = line(bytes, TRAILERS_BYTES_MAX - passed)? else { return Ok(Next::Unknown) };
        if line.is_empty() {
            self.state = State::Over;
            return Ok(Next::End(2));
        }
        let name = line.iter().position(|byte| *byte == b':').map(|colon| &line[..colon]);
        if !name.is_some_and(is_token) {
            return Err(Malformed::Syntax("a malformed trailer"));
        }
        let passed = passed + line.len() + 2;
        self.state = State::Trailers(passed.min(TRAILERS_BYTES_MAX));
        Ok(Next::Trailer(line.len() + 2))
    }
}

/// Returns the first line of `bytes` without its CR LF; `None` if it is incomplete.
fn line(bytes: &[u8], most: usize) -> Result<Option<&[u8]>, Malformed> {
    let shown = &bytes[..bytes.len().min(most)];
    match shown.iter().position(|byte| matches!(byte, b'\n' | 0)) {
        Some(at)
            if bytes[at] == b'\n'
                && at > 0
                && bytes[at - 1] == b'\r'
                && !bytes[..at - 1].contains(&b'\r') =>
        {
            Ok(Some(&bytes[..at - 1]))
        }
        Some(_) => Err(Malformed::Syntax("a line of a chunked body not terminated by CR LF")),
        None if bytes.len() >= most => Err(Malformed::TooLarge("an oversized line in a chunked body")),
        None => Ok(None),
    }
}

/// Parses the size in a line. Its extensions are ignored, since no extension is in use (RFC 9112,
/// section 7.1.1).
fn size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (number, behind) = line.split_at(digits);
    let is_size = (1..=DIGITS_MAX).contains(&digits)
        && (behind.is_empty() || behind.trim_ascii_start().starts_with(b";"));
    let number = std::str::from_utf8(number).ok().filter(|_| is_size);
    let size = number.and_then(|number| u64::from_str_radix(number, 16).ok());
    size.ok_or(Malformed::Syntax("a malformed chunk size"))
}

/// Returns true for a token (RFC 9110, section 5.6.2).
pub fn is_token(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().copied().all(is_tchar)
}

fn is_tchar(byte: u8) -> bool {
    let is_sign =
        matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~');
    is_sign || byte.is_ascii_alphanumeric()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a body received in pieces of `piece` bytes. Returns its data and its length.
    fn read(bytes: &[u8], piece: usize) -> Result<Option<(Vec<u8>, usize)>, Malformed> {
        let (mut chunked, mut data, mut at, mut shown) = (Chunked::default(), Vec::new(), 0, 0);
        loop {
            match chunked.next(&bytes[at..shown])? {
                Next::Unknown if shown == bytes.len() => return Ok(None),
                Next::Unknown => shown = (shown + piece).min(bytes.len()),
                Next::Framing(len) | Next::Trailer(len) => at += len,
                Next::End(len) => return Ok(Some((data, at + len))),
                Next::Data(len) => {
                    let some = (shown - at).min(len as usize);
                    if some == 0 && shown == bytes.len() {
                        return Ok(None);
                    }
                    data.extend(&bytes[at..at + some]);
                    chunked.advance(some as u64);
                    at += some;
                    shown = if some == 0 { (shown + piece).min(bytes.len()) } else { shown };
                }
            }
        }
    }

    #[test]
    fn data_is_separated_from_framing() {
        let body = b"5;a=\"b\"\r\nhello\r\n00006\r\n world\r\n0\r\nA: b\r\nC:\r\n\r\nGET";
        assert_eq!(read(body, 1).unwrap().unwrap(), (b"hello world".to_vec(), body.len() - 3));
        let (mut chunked, big) = (Chunked::default(), b"fffffffffffffff0\r\n");
        assert_eq!(chunked.next(big), Ok(Next::Framing(18)));
        assert_eq!(chunked.next(b""), Ok(Next::Data(u64::MAX - 15)));
        chunked.advance(u64::MAX - 15);
        chunked.advance(0);
        assert_eq!(chunked.next(b"\r\n"), Ok(Next::Framing(2)));
    }

    #[test]
    fn ambiguous_framing_is_refused() {
        for body in [
            "5\nhello\r\n0\r\n\r\n",
            "5\r\nhello0\r\n\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "-5\r\n",
            "0x5\r\n",
            " 5\r\n",
            "5 \r\n",
            "5 5\r\n",
            "\r\n",
            ";a\r\n",
            "5\r;\r\n",
            "10000000000000000\r\n",
            "00000000000000005\r\n",
            "0\r\nA b\r\n\r\n",
            "0\r\n: b\r\n\r\n",
            "0\r\nA: b\r\n c\r\n\r\n",
            "0\r\n\n",
            "5;\0\r\n",
        ] {
            assert!(read(body.as_bytes(), 1).is_err(), "{body:?}");
            assert!(read(body.as_bytes(), 100).is_err(), "{body:?}");
        }
        assert_eq!(read(&[b'1'; 300], 7).unwrap_err().status(), 431);
        let trailers = format!("0\r\n{}\r\n", "Name: value\r\n".repeat(1000));
        assert_eq!(read(trailers.as_bytes(), 100).unwrap_err().status(), 431);
    }

    proptest! {
        #[test]
        fn data_does_not_depend_on_the_pieces(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 0..10),
            piece in 1..60_usize,
        ) {
            let mut body = Vec::new();
            for chunk in &chunks {
                body.extend(format!("{:x}\r\n", chunk.len()).bytes());
                body.extend(chunk);
                body.extend(b"\r\n");
            }
            body.extend(b"0\r\n\r\n");
            let len = body.len();
            prop_assert_eq!(read(&body[..len - 1], piece).unwrap(), None);
            body.extend(b"next");
            prop_assert_eq!(read(&body, piece).unwrap(), Some((chunks.concat(), len)));
        }

        #[test]
        fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), piece in 1..20_usize) {
            let _ = read(&bytes, piece).is_ok();
        }
    }
}
