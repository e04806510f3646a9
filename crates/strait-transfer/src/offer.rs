//! How `strait send` and `strait receive` agree on what is sent: three lines before the bytes, one after.
//!
//! ```text
//! sender:   strait-send 2 length=1048576          (or length=? of a stream)
//! receiver: have=524288 hash=0123456789abcdef     (of all that it has)
//! sender:   from=524288                           (or 0, where its file does not begin so)
//!           ... bytes from there to the end ...
//! receiver: done=1048576
//! ```
//!
//! Who needs long for an answer says `wait` meanwhile. The lines are ASCII and end with LF. A line that is not as it should be is
//! refused whole.

use std::fmt;
use std::io::{Read, Result as IoResult, Seek};
use std::str::FromStr;

/// The most bytes of a line, LF included.
pub const LINE_BYTES_MAX: usize = 96;
/// Said by who is at work on an answer.
pub const WAIT: &str = "wait\n";

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

impl Have {
    /// Nothing yet.
    pub const NOTHING: Self = Self { bytes: 0, hash: 0 };

    /// The first `bytes` bytes of a file, or as many as there are. The hash finds what changed by accident or by use, not what somebody
    /// has forged.
    ///
    /// # Errors
    /// read(2)'s and lseek(2)'s.
    pub fn first(bytes: u64, mut of: impl Read + Seek) -> IoResult<Self> {
        of.rewind()?;
        Ok(Self { bytes, hash: rapidhash::v3::rapidhash_v3_file(of.take(bytes))? })
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length {
            Some(length) => writeln!(f, "strait-send 2 length={length}"),
            None => writeln!(f, "strait-send 2 length=?"),
        }
    }
}

impl fmt::Display for Have {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "have={} hash={:016x}", self.bytes, self.hash)
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
        parse(line, "strait send's offer", |line| match line.strip_prefix("strait-send 2 length=")? {
            "?" => Some(Self { length: None }),
            length => Some(Self { length: Some(number(length)?) }),
        })
    }
}

impl FromStr for Have {
    type Err = Unexpected;

    fn from_str(line: &str) -> Result<Self, Unexpected> {
        parse(line, "what the receiver has", |line| {
            let (bytes, hash) = line.strip_prefix("have=")?.split_once(" hash=")?;
            let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            let hash = is_hash.then(|| u64::from_str_radix(hash, 16).ok())??;
            Some(Self { bytes: number(bytes)?, hash })
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
        fn what_is_written_is_read(length: Option<u64>, bytes: u64, hash: u64) {
            let offer = Offer { length };
            prop_assert_eq!(offer.to_string().parse(), Ok(offer));
            let have = Have { bytes, hash };
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
            "strait-send 2 length=1",
            "strait-send 1 length=1\n",
            "strait-send 2 length=01\n",
            "strait-send 2 length=+1\n",
            "strait-send 2 length=1 \n",
            "strait-send 2 length=18446744073709551616\n",
            "GET / HTTP/1.1\r\n",
        ] {
            assert!(line.parse::<Offer>().is_err(), "{line}");
        }
        for line in [
            "have=1 tail=1 hash=0000000000000000\n",
            "have=1 hash=+000000000000000\n",
            "have=1 hash=0\n",
            "have= hash=0000000000000000\n",
        ] {
            assert!(line.parse::<Have>().is_err(), "{line}");
        }
        let error = "GET / HTTP/1.1\r\n".parse::<Offer>().unwrap_err().to_string();
        assert!(error.starts_with("'GET / HTTP/1.1' where strait send's offer"), "{error}");
    }
}
