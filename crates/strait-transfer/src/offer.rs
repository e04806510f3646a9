//! Protocol of `strait send` and `strait receive`, version 4: text lines that announce and confirm
//! the transferred bytes.
//!
//! ```text
//! sender:   strait-send 4 length=1048576 mode=600 mtime=1700000000.000000000   (stream: length=?)
//! receiver: have=524288                           (only if it has bytes of a file)
//! sender:   begins=524288 hash=0123456789abcdef   (hash of the first bytes of its file)
//! receiver: from=524288                           (0 if it has no bytes or others)
//! sender:   data=524288                           (once for each piece of data)
//!           ... as many bytes ...
//! sender:   end=1048576 hash=0123456789abcdef   (of the whole; ? if it never read the bytes)
//! receiver: done=1048576
//! ```
//!
//! Each end sends `wait` between its own lines and bytes, at any time, to show that it is alive.
//! `refused=REASON` replaces any line and ends the transfer. Lines are ASCII and end with LF. An
//! unexpected line is an error.
//!
//! The receiver compares the hashes and never sends its own: any program can connect to it, and a
//! hash confirms a guess of a whole file. A sender learns the length of a part, whether a file of
//! the offered length exists, and whether it begins with the bytes of the sent hash.
//!
//! Both ends must have the same version: each change of the lines gets a new one. A receiver
//! refuses an offer of another version with both numbers, so the start of the first line
//! (`strait-send VERSION length=`) never changes. In version 3 the receiver sent its hash.

use std::fmt;
use std::str::FromStr;

/// Version of the protocol, in the first line.
pub const VERSION: u32 = 4;
/// Limit of a line in bytes, including LF.
pub const LINE_BYTES_MAX: usize = 192;
/// Line that shows that the sending end is alive.
pub const WAIT: &str = "wait\n";

/// Properties of the source file that the received file gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, at most 0o777.
    pub mode: u32,
    /// Time of the last modification: seconds and nanoseconds since the epoch.
    pub modified: (i64, u32),
}

/// First line of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Length in bytes; `None` for a stream of unknown length.
    pub length: Option<u64>,
    /// Attributes, if the source is a file.
    pub attributes: Option<Attributes>,
}

/// Answer of the receiver to an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The receiver has this many bytes, which may be those of the file. The sender sends
    /// [`Begins`].
    Have(u64),
    /// The receiver has no bytes.
    From(From),
}

/// Beginning of the sender's file, as long as the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begins {
    /// Length in bytes, from the start.
    pub bytes: u64,
    /// Hash of these bytes.
    pub hash: u64,
}

/// Offset at which the sender starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct From(pub u64);

/// Line of the sender during the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Number of bytes that follow.
    Data(u64),
    /// End of the data.
    End {
        /// Total length in bytes, including those that the receiver had before.
        bytes: u64,
        /// Hash of all bytes; `None` if the sender never read them.
        hash: Option<u64>,
    },
}

/// Length that the receiver has at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done(pub u64);

/// Refusal of one end to continue, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

/// Error for a line that is not part of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The line belongs to no version of the protocol.
    #[error(
        "received '{line}' instead of {expected}: is the other end strait, without --raw? --raw moves the bytes alone"
    )]
    Line {
        /// First bytes of the line; other than printable ASCII as `\\x00`.
        line: String,
        /// Expected line.
        expected: &'static str,
    },
    /// The line belongs to another version.
    #[error(
        "the sender speaks version {found} of the protocol and this end version {VERSION}: use the same strait at both ends"
    )]
    Version {
        /// Version of the sender.
        found: u32,
    },
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length {
            Some(length) => write!(f, "strait-send {VERSION} length={length}")?,
            None => write!(f, "strait-send {VERSION} length=?")?,
        }
        if let Some(Attributes { mode, modified: (seconds, nanoseconds) }) = self.attributes {
            write!(f, " mode={mode:03o} mtime={seconds}.{nanoseconds:09}")?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(bytes) => writeln!(f, "data={bytes}"),
            Self::End { bytes, hash: Some(hash) } => writeln!(f, "end={bytes} hash={hash:016x}"),
            Self::End { bytes, hash: None } => writeln!(f, "end={bytes} hash=?"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const START: &str = "refused=";
        let plain = self.0.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' });
        let reason: String = plain.take(LINE_BYTES_MAX - START.len() - 1).collect();
        writeln!(f, "{START}{reason}")
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Have(bytes) => writeln!(f, "have={bytes}"),
            Self::From(from) => from.fmt(f),
        }
    }
}

impl fmt::Display for Begins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "begins={} hash={:016x}", self.bytes, self.hash)
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

/// Parses a decimal number without sign, space or leading zero.
fn number(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (plain && (text == "0" || !text.starts_with('0'))).then(|| text.parse().ok())?
}

/// Parses a line after removing its LF.
fn parse<T>(
    line: &str,
    expected: &'static str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<T, ProtocolError> {
    let found = line.strip_suffix('\n').and_then(read);
    found.ok_or_else(|| ProtocolError::Line { line: shown(line), expected })
}

/// Returns the first characters of an arbitrary line for a message.
fn shown(line: &str) -> String {
    const CHARACTERS_MAX: usize = 16;
    let line = line.trim_end_matches(['\r', '\n']);
    let start = line.chars().take(CHARACTERS_MAX);
    let mut text: String = start.flat_map(escape).collect();
    if line.chars().nth(CHARACTERS_MAX).is_some() {
        text.push_str("...");
    }
    text
}

/// Returns `\x00` for a byte and `\u{fffd}` for another character; printable ASCII is unchanged.
fn escape(c: char) -> impl Iterator<Item = char> {
    let text = match c {
        '\\' | '\'' => format!("\\{c}"),
        ' '..='~' => c.to_string(),
        '\0'..='\u{ff}' => format!("\\x{:02x}", u32::from(c)),
        _ => c.escape_unicode().to_string(),
    };
    text.chars().collect::<Vec<_>>().into_iter()
}

/// Parses a hash: 16 hexadecimal digits.
fn hash(text: &str) -> Option<u64> {
    let is_hash = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| u64::from_str_radix(text, 16).ok())?
}

/// Parses `mode=600 mtime=1700000000.000000000`.
fn attributes(text: &str) -> Option<Attributes> {
    let (mode, modified) = text.strip_prefix("mode=")?.split_once(" mtime=")?;
    let is_mode = mode.len() == 3 && mode.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = is_mode.then(|| u32::from_str_radix(mode, 8).ok())??;
    let (seconds, nanoseconds) = modified.split_once('.')?;
    let magnitude = seconds.strip_prefix('-').unwrap_or(seconds);
    let is_fraction = nanoseconds.len() == 9 && nanoseconds.bytes().all(|byte| byte.is_ascii_digit());
    number(magnitude).filter(|&magnitude| is_fraction && (magnitude > 0 || !seconds.starts_with('-')))?;
    Some(Attributes { mode, modified: (seconds.parse().ok()?, nanoseconds.parse().ok()?) })
}

impl FromStr for Offer {
    type Err = ProtocolError;

    fn from_str(line: &str) -> Result<Self, ProtocolError> {
        const EXPECTED: &str = "strait send's offer";
        let version = parse(line, EXPECTED, |line| {
            let (version, _) = line.strip_prefix("strait-send ")?.split_once(" length=")?;
            u32::try_from(number(version)?).ok()
        })?;
        if version != VERSION {
            return Err(ProtocolError::Version { found: version });
        }
        parse(line, EXPECTED, |line| {
            let (_, rest) = line.split_once(" length=")?;
            let (length, rest) =
                rest.split_once(' ').map_or((rest, None), |(length, rest)| (length, Some(rest)));
            let length = if length == "?" { None } else { Some(number(length)?) };
            let attributes = if let Some(rest) = rest { Some(attributes(rest)?) } else { None };
            Some(Self { length, attributes })
        })
    }
}

impl FromStr for Frame {
    type Err = ProtocolError;

    fn from_str(line: &str) -> Result<Self, ProtocolError> {
        parse(line, "the sender's next bytes or end line", |line| {
            if let Some(bytes) = line.strip_prefix("data=") {
                return number(bytes).filter(|bytes| *bytes > 0).map(Self::Data);
            }
            let (bytes, of_all) = line.strip_prefix("end=")?.split_once(" hash=")?;
            let hash = if of_all == "?" { None } else { Some(hash(of_all)?) };
            Some(Self::End { bytes: number(bytes)?, hash })
        })
    }
}

impl FromStr for Refusal {
    type Err = ProtocolError;

    fn from_str(line: &str) -> Result<Self, ProtocolError> {
        parse(line, "a refusal", |line| {
            let reason = line.strip_prefix("refused=")?.chars();
            Some(Self(reason.map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()))
        })
    }
}

impl FromStr for Answer {
    type Err = ProtocolError;

    fn from_str(line: &str) -> Result<Self, ProtocolError> {
        parse(line, "the receiver's answer", |line| {
            if let Some(bytes) = line.strip_prefix("have=") {
                return number(bytes).filter(|bytes| *bytes > 0).map(Self::Have);
            }
            Some(Self::From(From(number(line.strip_prefix("from=")?)?)))
        })
    }
}

impl FromStr for Begins {
    type Err = ProtocolError;

    fn from_str(line: &str) -> Result<Self, ProtocolError> {
        parse(line, "the beginning of the sender's file", |line| {
            let (bytes, of_all) = line.strip_prefix("begins=")?.split_once(" hash=")?;
            Some(Self { bytes: number(bytes)?, hash: hash(of_all)? })
        })
    }
}

impl FromStr for From {
    type Err = ProtocolError;

    fn from_str(line: &str) -> Result<Self, ProtocolError> {
        parse(line, "the sender's start offset", |line| Some(Self(number(line.strip_prefix("from=")?)?)))
    }
}

impl FromStr for Done {
    type Err = ProtocolError;

    fn from_str(line: &str) -> Result<Self, ProtocolError> {
        parse(line, "the receiver's confirmation", |line| Some(Self(number(line.strip_prefix("done=")?)?)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn error_quotes_the_first_bytes_of_a_foreign_line_escaped() {
        let error_of = |line: &str| line.parse::<Offer>().unwrap_err().to_string();
        let start = error_of("\u{16}\u{3}\u{1}\u{2}\0\u{1}\u{fc}hello\u{1b}[31m, this is the rest\n");
        assert!(
            start.starts_with(r"received '\x16\x03\x01\x02\x00\x01\xfchello\x1b[31...' instead of "),
            "{start}"
        );
        assert!(
            error_of("GET / HTTP/1.1\r\n")
                .starts_with("received 'GET / HTTP/1.1' instead of strait send's offer")
        );
    }

    proptest! {
        #[test]
        fn written_lines_are_parsed(
            length: Option<u64>,
            bytes: u64,
            hash: u64,
            attributes in proptest::option::of((0..=0o777_u32, any::<i64>(), 0..1_000_000_000_u32)),
            reason in "[ -~]{0,100}",
        ) {
            let attributes = attributes.map(|(mode, seconds, ns)| Attributes { mode, modified: (seconds, ns) });
            let offer = Offer { length, attributes };
            prop_assert_eq!(offer.to_string().parse(), Ok(offer));
            prop_assert!(offer.to_string().len() <= LINE_BYTES_MAX);
            for frame in [Frame::Data(bytes.max(1)), Frame::End { bytes, hash: Some(hash) }, Frame::End { bytes, hash: None }] {
                prop_assert_eq!(frame.to_string().parse(), Ok(frame));
            }
            let refused = Refusal(reason);
            prop_assert_eq!(refused.to_string().parse(), Ok(refused));
            let begins = Begins { bytes, hash };
            prop_assert_eq!(begins.to_string().parse(), Ok(begins));
            prop_assert!(begins.to_string().len() <= LINE_BYTES_MAX);
            for answer in [Answer::Have(bytes.max(1)), Answer::From(From(bytes))] {
                prop_assert_eq!(answer.to_string().parse(), Ok(answer));
            }
            prop_assert_eq!(From(bytes).to_string().parse(), Ok(From(bytes)));
            prop_assert_eq!(Done(bytes).to_string().parse(), Ok(Done(bytes)));
        }

        #[test]
        fn arbitrary_lines_are_parsed_or_refused(line in "\\PC{0,100}\n?") {
            if let Ok(offer) = line.parse::<Offer>() {
                prop_assert_eq!(offer.to_string(), line);
            }
        }
    }

    #[test]
    fn malformed_lines_are_refused() {
        for line in [
            "strait-send 4 length=1",
            "strait-send 4 length=1 mode=600\n",
            "strait-send 4 length=1 mode=4755 mtime=1.000000000\n",
            "strait-send 4 length=1 mode=600 mtime=1\n",
            "strait-send 4 length=1 mode=600 mtime=-0.000000000\n",
            "strait-send 4 length=01\n",
            "strait-send 4 length=+1\n",
            "strait-send 4 length=1 \n",
            "strait-send 4 length=18446744073709551616\n",
            "GET / HTTP/1.1\r\n",
        ] {
            assert!(line.parse::<Offer>().is_err(), "{line}");
        }
        for line in [
            "begins=1 tail=1 hash=0000000000000000\n",
            "begins=1 hash=+000000000000000\n",
            "begins=1 hash=0\n",
            "begins= hash=0000000000000000\n",
        ] {
            assert!(line.parse::<Begins>().is_err(), "{line}");
        }
        for line in ["have=0\n", "have=\n", "have=1 hash=0000000000000000\n", "from=\n", "begins=1\n"] {
            assert!(line.parse::<Answer>().is_err(), "{line}");
        }
        for line in ["data=0\n", "data=\n", "end=1\n", "end=1 hash=\n", "wait\n"] {
            assert!(line.parse::<Frame>().is_err(), "{line}");
        }
        let error = "GET / HTTP/1.1\r\n".parse::<Offer>().unwrap_err().to_string();
        assert!(error.starts_with("received 'GET / HTTP/1.1' instead of strait send's offer"), "{error}");
    }

    #[test]
    fn error_for_another_version_names_both_versions() {
        let error = "strait-send 2 length=1\n".parse::<Offer>().unwrap_err();
        assert_eq!(error, ProtocolError::Version { found: 2 });
        assert!(
            error.to_string().contains("version 2") && error.to_string().contains("version 4"),
            "{error}"
        );
    }

    #[test]
    fn refusal_stays_one_short_line() {
        let line = Refusal("bad\nname\u{1b}[0m".repeat(100)).to_string();
        assert!(line.len() <= LINE_BYTES_MAX && line.find('\n') == Some(line.len() - 1), "{line}");
    }
}
