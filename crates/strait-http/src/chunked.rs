//! Chunked bodies (RFC 9112, section 7.1): where framing ends and data begins, so that data need not be looked at.
//!
//! ```text
//! 1a;name=value CR LF     size, in hexadecimal, and extensions
//! ... 26 bytes ... CR LF  data
//! 0 CR LF                 the last chunk
//! Field: value CR LF      trailers
//! CR LF
//! ```
//!
//! Whoever reads it shows the next bytes and is told what they are: framing to be passed over, so many bytes of data, or too few to
//! tell. Data may then be moved by the kernel.

use crate::error::Malformed;

/// Bytes of the line of a chunk's size at most, extensions included.
const LINE_BYTES_MAX: usize = 256;
/// Bytes of all trailers at most.
const TRAILERS_BYTES_MAX: usize = 8 << 10;
/// Digits of a chunk's size at most: more are zeros or too many bytes.
const DIGITS_MAX: usize = 16;

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// More bytes must be shown to tell.
    Unknown,
    /// So many bytes of framing: pass over them.
    Framing(usize),
    /// So many bytes of data, of which not all may be shown yet: [`Chunked::advance`] as they are moved.
    Data(u64),
    /// So many bytes of a trailer's line, its end included: behind the last chunk, and before the end.
    Trailer(usize),
    /// So many bytes of framing, and the body is over.
    End(usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    Data(u64),
    /// CR LF behind the data.
    DataEnd,
    /// Trailers, of which so many bytes have passed.
    Trailers(usize),
    Over,
}

/// A chunked body that is being read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chunked {
    state: State,
}

impl Chunked {
    /// What the next bytes are; of framing it is told once.
    ///
    /// # Errors
    /// They are no chunk: what follows cannot be told apart any more, and the connection is to be closed.
    pub fn next(&mut self, bytes: &[u8]) -> Result<Next, Malformed> {
        match self.state {
            State::Size => self.size(bytes),
            State::Data(left) => Ok(Next::Data(left)),
            State::DataEnd => self.data_end(bytes),
            State::Trailers(passed) => self.trailer(bytes, passed),
            State::Over => Ok(Next::End(0)),
        }
    }

    /// So many bytes of data were moved; none is no move, whatever is next.
    ///
    /// # Panics
    /// If that is more than there were to be moved.
    pub fn advance(&mut self, moved: u64) {
        if moved == 0 {
            return;
        }
        let State::Data(left) = self.state else { panic!("the next bytes are no data") };
        assert!(moved <= left, "{moved} bytes of {left}");
        self.state = if moved == left { State::DataEnd } else { State::Data(left - moved) };
    }

    /// Whether the body is over: a connection that ends before has broken off.
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
            _ => Err(Malformed::Syntax("a chunk that is longer than its size")),
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

/// The line that `bytes` begin with, without its CR LF; `None` while it is not whole.
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
        Some(_) => Err(Malformed::Syntax("a line of a chunked body that does not end with CR LF")),
        None if bytes.len() >= most => Err(Malformed::TooLarge("a line of a chunked body that is too long")),
        None => Ok(None),
    }
}

/// The size that a line tells, with its extensions (RFC 9112, section 7.1.1), which nobody uses and which are passed over.
fn size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (number, behind) = line.split_at(digits);
    let is_size = (1..=DIGITS_MAX).contains(&digits)
        && (behind.is_empty() || behind.trim_ascii_start().starts_with(b";"));
    let number = std::str::from_utf8(number).ok().filter(|_| is_size);
    let size = number.and_then(|number| u64::from_str_radix(number, 16).ok());
    size.ok_or(Malformed::Syntax("a malformed chunk size"))
}

/// RFC 9110, section 5.6.2.
pub(crate) fn is_token(name: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !name.is_empty() && name.iter().all(is_part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The data of a body that comes in pieces of `piece` bytes, and how long the body was.
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
    fn data_is_told_from_framing() {
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
    fn what_others_might_read_differently_is_refused() {
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
        fn however_it_is_cut_the_data_is_the_same(
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
        fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100), piece in 1..20_usize) {
            let _ = read(&bytes, piece).is_ok();
        }
    }
}
