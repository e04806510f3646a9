//! How `strait send` and `strait receive` agree on what is sent: three lines before the bytes, one after.
//!
//! ```text
//! sender:   strait-send 1 length=1048576          (or length=? of a stream)
//! receiver: have=524288 tail=65536 hash=0123456789abcdef
//! sender:   from=524288                           (or 0, where its file does not end so at that place)
//!           ... bytes from there to the end ...
//! receiver: done=1048576
//! ```
//!
//! The lines are ASCII and end with LF. Pure: bytes in, bytes out. A line that is not as it should be is refused whole.

use std::fmt;
use std::str::FromStr;

/// The most bytes of a line, LF included.
pub const LINE_BYTES_MAX: usize = 96;
/// The most bytes at the end of what a receiver has that are compared before a transfer goes on there.
pub const TAIL_BYTES_MAX: u64 = 64 << 10;

/// What a sender has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Bytes; `None` of a stream, whose length shows at its end.
    pub length: Option<u64>,
}

/// What a receiver has of it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Have {
    /// Bytes from the start.
    pub bytes: u64,
    /// Bytes at their end that the hash is of.
    pub tail: u64,
    /// Their hash.
    pub hash: u64,
}

/// Where the sender begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct From(pub u64);

/// What the receiver has at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done(pub u64);

/// A line that is none of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{line}' where {expected} should stand: is the other end strait send or strait receive?")]
pub struct Unexpected {
    line: String,
    expected: &'static str,
}

/// The hash of the end of a file.
pub fn hash(tail: &[u8]) -> u64 {
    rapidhash::v3::rapidhash_v3(tail)
}

impl Have {
    /// Nothing yet.
    pub const NOTHING: Self = Self { bytes: 0, tail: 0, hash: 0 };
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length {
            Some(length) => writeln!(f, "strait-send 1 length={length}"),
            None => writeln!(f, "strait-send 1 length=?"),
        }
    }
}

impl fmt::Display for Have {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "have={} tail={} hash={:016x}", self.bytes, self.tail, self.hash)
    }
}

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "from={}", self.0)
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "done={}", self.0)
    }
}

/// A decimal number without sign, space or superfluous zero.
fn number(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (plain && (text == "0" || !text.starts_with('0'))).then(|| text.parse().ok())?
}

/// The line without its LF, and its words behind `start`, parsed.
fn parse<T>(
    line: &str,
    expected: &'static str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<T, Unexpected> {
    let found = line.strip_suffix('\n').and_then(read);
    found.ok_or_else(|| {
        let line = line.trim_end().chars().take(LINE_BYTES_MAX).map(|c| if c.is_control() { '?' } else { c });
        Unexpected { line: line.collect(), expected }
    })
}

impl FromStr for Offer {
    type Err = Unexpected;

    fn from_str(line: &str) -> Result<Self, Unexpected> {
        parse(line, "strait send's offer", |line| match line.strip_prefix("strait-send 1 length=")? {
            "?" => Some(Self { length: None }),
            length => Some(Self { length: Some(number(length)?) }),
        })
    }
}

impl FromStr for Have {
    type Err = Unexpected;

    fn from_str(line: &str) -> Result<Self, Unexpected> {
        parse(line, "what the receiver has", |line| {
            let (bytes, rest) = line.strip_prefix("have=")?.split_once(" tail=")?;
            let (tail, hash) = rest.split_once(" hash=")?;
            let (bytes, tail) = (number(bytes)?, number(tail)?);
            let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            let hash = is_hash.then(|| u64::from_str_radix(hash, 16).ok())??;
            (tail <= bytes && tail <= TAIL_BYTES_MAX).then_some(Self { bytes, tail, hash })
        })
    }
}

impl FromStr for From {
    type Err = Unexpected;

    fn from_str(line: &str) -> Result<Self, Unexpected> {
        parse(line, "where the sender begins", |line| Some(Self(number(line.strip_prefix("from=")?)?)))
    }
}

impl FromStr for Done {
    type Err = Unexpected;

    fn from_str(line: &str) -> Result<Self, Unexpected> {
        parse(line, "what the receiver got", |line| Some(Self(number(line.strip_prefix("done=")?)?)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(length: Option<u64>, bytes: u64, tail in 0..=TAIL_BYTES_MAX, hash: u64) {
            let offer = Offer { length };
            prop_assert_eq!(offer.to_string().parse(), Ok(offer));
            let have = Have { bytes: bytes.max(tail), tail, hash };
            prop_assert_eq!(have.to_string().parse(), Ok(have));
            prop_assert!(have.to_string().len() <= LINE_BYTES_MAX);
            prop_assert_eq!(From(bytes).to_string().parse(), Ok(From(bytes)));
            prop_assert_eq!(Done(bytes).to_string().parse(), Ok(Done(bytes)));
        }

        #[test]
        fn whatever_comes_is_read_or_refused(line in "\\PC{0,100}\n?") {
            if let Ok(offer) = line.parse::<Offer>() {
                prop_assert_eq!(offer.to_string(), line);
            }
        }
    }

    #[test]
    fn lines_that_only_look_right_are_refused() {
        for line in [
            "strait-send 1 length=1",
            "strait-send 2 length=1\n",
            "strait-send 1 length=01\n",
            "strait-send 1 length=+1\n",
            "strait-send 1 length=1 \n",
            "strait-send 1 length=18446744073709551616\n",
            "GET / HTTP/1.1\r\n",
        ] {
            assert!(line.parse::<Offer>().is_err(), "{line}");
        }
        for line in [
            "have=1 tail=2 hash=0000000000000000\n",
            "have=99999999 tail=65537 hash=0000000000000000\n",
            "have=1 tail=1 hash=+000000000000000\n",
            "have=1 tail=1 hash=0\n",
        ] {
            assert!(line.parse::<Have>().is_err(), "{line}");
        }
        let error = "GET / HTTP/1.1\r\n".parse::<Offer>().unwrap_err().to_string();
        assert!(error.starts_with("'GET / HTTP/1.1' where strait send's offer"), "{error}");
    }
}
