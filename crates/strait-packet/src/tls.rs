//! TLS hello messages (RFC 8446 s4.1, RFC 5246 s7.4.1), which begin a connection in plain text.
//!
//! Layout: a record is type 1 byte, version 2, length 2, fragment. Fragments join to handshake
//! messages of type 1 byte, length 3, body. A hello can be longer than a record. Every length is
//! checked when a hello is parsed, so that the iterators over its parts do not fail.

use crate::error::{Error, Header, Result};
use crate::reader::Reader;

/// Bytes of a record's header.
const RECORD_HEADER_LEN: usize = 5;
/// Bytes of a handshake message's header.
const MESSAGE_HEADER_LEN: usize = 4;
/// Record type of handshake messages.
const HANDSHAKE: u8 = 22;
/// Maximum length of a record's fragment in plain text (RFC 8446 s5.1).
const FRAGMENT_LEN_MAX: usize = 1 << 14;
/// Maximum length of a hello. Hellos with keys of post-quantum algorithms have 2 KiB.
pub const HELLO_LEN_MAX: usize = 1 << 14;
/// Bytes of the random value in a hello.
const RANDOM_LEN: usize = 32;

/// Extensions with a name here.
pub mod extension {
    /// Name of the requested server.
    pub const SERVER_NAME: u16 = 0;
    /// Groups for key exchange.
    pub const GROUPS: u16 = 10;
    /// Formats of points on elliptic curves.
    pub const POINT_FORMATS: u16 = 11;
    /// Signature algorithms.
    pub const SIGNATURE_ALGORITHMS: u16 = 13;
    /// Application protocols (ALPN).
    pub const PROTOCOLS: u16 = 16;
    /// Versions, which replace the version in the hello.
    pub const VERSIONS: u16 = 43;
}

/// Sender of a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// `ClientHello`.
    Client,
    /// `ServerHello`, or `HelloRetryRequest`.
    Server,
}

/// View of a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// Sender.
    pub sender: Sender,
    /// Version field. TLS 1.3 has 0x0303 here, and its version in an extension.
    pub legacy_version: u16,
    ciphers: &'a [u8],
    extensions: &'a [u8],
}

/// Returns true if `bytes` are the start of a stream with a hello.
pub fn is_hello(bytes: &[u8]) -> bool {
    matches!(bytes, [HANDSHAKE, 3, 0..=4, _, _, 1 | 2, ..])
}

/// Parses the hello at the start of a stream. Returns `None` if it is incomplete. `buffer` is used
/// for a hello of several records.
///
/// # Errors
/// The bytes are no hello, or one with a wrong or too large length.
pub fn hello<'a>(bytes: &'a [u8], buffer: &'a mut Vec<u8>) -> Result<Option<Hello<'a>>> {
    let Some((first, mut rest)) = fragment(bytes)? else { return Ok(None) };
    if let Some((sender, body)) = message(first)? {
        return Hello::parse(sender, body).map(Some);
    }
    buffer.clear();
    buffer.extend_from_slice(first);
    while message(buffer)?.is_none() {
        let Some((next, after)) = fragment(rest)? else { return Ok(None) };
        buffer.extend_from_slice(next);
        rest = after;
    }
    message(buffer)?.map(|(sender, body)| Hello::parse(sender, body)).transpose()
}

/// Search for the end of the hello at the start of a stream that arrives in pieces. Looks at each
/// record once, because a hello can come with a byte in each record, and in each piece.
#[derive(Clone, Copy, Debug, Default)]
pub struct HelloEnd {
    /// Bytes of the complete records.
    record_bytes: usize,
    /// Bytes of their fragments.
    fragment_bytes: usize,
    /// Their first bytes.
    head: [u8; MESSAGE_HEADER_LEN],
}

impl HelloEnd {
    /// Returns true if [`hello`] does not need more than `bytes`: they have the whole hello, or
    /// are no hello. `bytes` begin with those of the last call.
    pub fn is_in(&mut self, bytes: &[u8]) -> bool {
        while !self.is_passed() {
            let rest = bytes.get(self.record_bytes..).unwrap_or_default();
            let (part, after) = match fragment(rest) {
                Ok(Some(split)) => split,
                Ok(None) => return false,
                Err(_) => return true,
            };
            for (byte, next) in self.head.iter_mut().skip(self.fragment_bytes).zip(part) {
                *byte = *next;
            }
            self.fragment_bytes += part.len();
            self.record_bytes = bytes.len() - after.len();
        }
        true
    }

    /// Returns true if the complete records have the whole hello, or are no hello.
    fn is_passed(&self) -> bool {
        let [_, a, b, c] = self.head;
        let len = MESSAGE_HEADER_LEN + u32::from_be_bytes([0, a, b, c]) as usize;
        self.fragment_bytes >= MESSAGE_HEADER_LEN
            && (self.fragment_bytes >= len || message(&self.head).is_err())
    }
}

/// Splits the fragment of the first record from the bytes. Returns `None` if it is incomplete.
fn fragment(bytes: &[u8]) -> Result<Option<(&[u8], &[u8])>> {
    let Some((&[kind, major, _, high, low], rest)) = bytes.split_first_chunk::<RECORD_HEADER_LEN>() else {
        return Ok(None);
    };
    if kind != HANDSHAKE {
        return Err(invalid("record type", u32::from(kind), "22"));
    }
    if major != 3 {
        return Err(invalid("record version", u32::from(major), "3"));
    }
    let len = usize::from(u16::from_be_bytes([high, low]));
    if !(1..=FRAGMENT_LEN_MAX).contains(&len) {
        return Err(invalid("record length", len as u32, "1 to 16384"));
    }
    Ok(rest.split_at_checked(len))
}

/// Returns the first handshake message without its header, or `None` if it is incomplete.
fn message(bytes: &[u8]) -> Result<Option<(Sender, &[u8])>> {
    let Some((&[kind, a, b, c], rest)) = bytes.split_first_chunk::<MESSAGE_HEADER_LEN>() else {
        return Ok(None);
    };
    let sender = match kind {
        1 => Sender::Client,
        2 => Sender::Server,
        other => return Err(invalid("handshake type", u32::from(other), "1 or 2")),
    };
    let len = u32::from_be_bytes([0, a, b, c]);
    if len as usize > HELLO_LEN_MAX {
        return Err(invalid("hello length", len, "at most 16384"));
    }
    Ok(rest.get(..len as usize).map(|body| (sender, body)))
}

impl<'a> Hello<'a> {
    fn parse(sender: Sender, body: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(Header::Tls, body);
        let legacy_version = reader.u16()?;
        reader.take(RANDOM_LEN)?;
        let _session_id = reader.short_vector()?;
        let ciphers = match sender {
            Sender::Client => reader.vector()?,
            Sender::Server => reader.take(2)?,
        };
        if !ciphers.len().is_multiple_of(2) {
            return Err(invalid("length of the cipher suites", ciphers.len() as u32, "an even number"));
        }
        match sender {
            Sender::Client => reader.short_vector()?,
            Sender::Server => reader.take(1)?,
        };
        // Old versions have no extensions.
        let extensions = if reader.rest.is_empty() { &[] } else { reader.vector()? };
        let mut reader = Reader::new(Header::Tls, extensions);
        while !reader.rest.is_empty() {
            reader.u16()?;
            reader.vector()?;
        }
        Ok(Self { sender, legacy_version, ciphers, extensions })
    }

    /// Returns the offered cipher suites, or the selected one.
    pub fn ciphers(&self) -> impl Iterator<Item = u16> + use<'a> {
        words(self.ciphers)
    }

    /// Returns the extensions in order: type and content.
    pub fn extensions(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        let mut reader = Reader::new(Header::Tls, self.extensions);
        std::iter::from_fn(move || Some((reader.u16().ok()?, reader.vector().ok()?)))
    }

    fn extension(&self, kind: u16) -> Option<&'a [u8]> {
        self.extensions().find(|(other, _)| *other == kind).map(|(_, content)| content)
    }

    /// Returns the name of the server that the client requests (RFC 6066 s3).
    pub fn server_name(&self) -> Option<&'a [u8]> {
        const HOST_NAME: u8 = 0;
        let list = vector(self.extension(extension::SERVER_NAME)?)?;
        let (&kind, name) = list.split_first()?;
        vector(name).filter(|name| kind == HOST_NAME && !name.is_empty())
    }

    /// Returns the offered application protocols, or the selected one (RFC 7301 s3.1).
    pub fn protocols(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let list = self.extension(extension::PROTOCOLS).and_then(vector).unwrap_or(&[]);
        let mut reader = Reader::new(Header::Tls, list);
        std::iter::from_fn(move || reader.short_vector().ok())
    }

    /// Returns the versions of the extension: those that are offered, or the selected one.
    pub fn versions(&self) -> impl Iterator<Item = u16> + use<'a> {
        let content = self.extension(extension::VERSIONS).unwrap_or(&[]);
        words(match self.sender {
            Sender::Client => short_vector(content).unwrap_or(&[]),
            Sender::Server => content,
        })
    }

    /// Returns the groups for key exchange.
    pub fn groups(&self) -> impl Iterator<Item = u16> + use<'a> {
        words(self.extension(extension::GROUPS).and_then(vector).unwrap_or(&[]))
    }

    /// Returns the formats of points.
    pub fn point_formats(&self) -> &'a [u8] {
        self.extension(extension::POINT_FORMATS).and_then(short_vector).unwrap_or(&[])
    }

    /// Returns the signature algorithms.
    pub fn signature_algorithms(&self) -> impl Iterator<Item = u16> + use<'a> {
        words(self.extension(extension::SIGNATURE_ALGORITHMS).and_then(vector).unwrap_or(&[]))
    }
}

/// Returns the content of a vector with a length of 2 bytes.
fn vector(bytes: &[u8]) -> Option<&[u8]> {
    Reader::new(Header::Tls, bytes).vector().ok()
}

/// Returns the content of a vector with a length of 1 byte.
fn short_vector(bytes: &[u8]) -> Option<&[u8]> {
    Reader::new(Header::Tls, bytes).short_vector().ok()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u16> + use<'_> {
    bytes.as_chunks().0.iter().map(|word| u16::from_be_bytes(*word))
}

fn invalid(field: &'static str, value: u32, expected: &'static str) -> Error {
    Error::Invalid { header: Header::Tls, field, value, expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a client hello with a server name, two protocols and two versions.
    fn client_hello() -> Vec<u8> {
        let extensions: &[(u16, &[u8])] = &[
            (0, b"\0\x0e\0\0\x0bexample.org"),
            (16, b"\0\x0c\x02h2\x08http/1.1"),
            (43, b"\x04\x03\x04\x03\x03"),
            (10, b"\0\x02\0\x1d"),
            (11, b"\x01\0"),
            (13, b"\0\x04\x04\x03\x08\x04"),
        ];
        let mut list = Vec::new();
        for (kind, content) in extensions {
            list.extend(kind.to_be_bytes());
            list.extend((content.len() as u16).to_be_bytes());
            list.extend_from_slice(content);
        }
        let mut body = [&[3, 3][..], &[7; 32], &[1, 9], &[0, 4, 0x13, 1, 0x13, 2], &[1, 0]].concat();
        body.extend((list.len() as u16).to_be_bytes());
        body.extend(list);
        let len = (body.len() as u32).to_be_bytes();
        [&[1, len[1], len[2], len[3]][..], &body].concat()
    }

    /// Puts a message into records of at most `size` bytes.
    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
        message.chunks(size).flat_map(record).collect()
    }

    #[test]
    fn client_hello_has_its_fields_in_any_number_of_records() {
        for size in [1, 7, 100, 1 << 14] {
            let bytes = records(&client_hello(), size);
            let mut buffer = Vec::new();
            let hello = hello(&bytes, &mut buffer).unwrap().unwrap();
            assert_eq!((hello.sender, hello.legacy_version), (Sender::Client, 0x0303));
            assert_eq!(hello.ciphers().collect::<Vec<_>>(), [0x1301, 0x1302]);
            assert_eq!(hello.server_name(), Some(&b"example.org"[..]));
            assert_eq!(hello.protocols().collect::<Vec<_>>(), [&b"h2"[..], b"http/1.1"]);
            assert_eq!(hello.versions().collect::<Vec<_>>(), [0x0304, 0x0303]);
            assert_eq!((hello.groups().collect::<Vec<_>>(), hello.point_formats()), (vec![29], &[0][..]));
            assert_eq!(hello.signature_algorithms().collect::<Vec<_>>(), [0x0403, 0x0804]);
            assert_eq!(hello.extensions().map(|(kind, _)| kind).collect::<Vec<_>>(), [0, 16, 43, 10, 11, 13]);
        }
    }

    #[test]
    fn cut_hello_is_incomplete_at_every_byte() {
        for size in [60, 1 << 14] {
            let bytes = records(&client_hello(), size);
            for end in 0..bytes.len() {
                assert_eq!(hello(&bytes[..end], &mut Vec::new()), Ok(None), "{end}");
            }
            assert!(is_hello(&bytes) && !is_hello(&bytes[..5]));
        }
    }

    #[test]
    fn end_is_found_in_pieces_where_the_parser_finds_it() {
        let message = client_hello();
        let mut wrong = message.clone();
        wrong[1] = 1;
        for message in [&message, &wrong] {
            for size in [1, 3, 4, 60, 1 << 14] {
                let bytes = [&records(message, size)[..], b"\x17\x03\x03"].concat();
                let mut end = HelloEnd::default();
                for len in 0..=bytes.len() {
                    let is_parsed = hello(&bytes[..len], &mut Vec::new()) != Ok(None);
                    assert_eq!(end.is_in(&bytes[..len]), is_parsed, "{size} {len}");
                }
                assert!(HelloEnd::default().is_in(&bytes));
            }
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let whole = records(&client_hello(), 1 << 14);
        let with = |at: usize, value: u8| {
            let mut bytes = whole.clone();
            bytes[at] = value;
            hello(&bytes, &mut Vec::new()).map(|hello| hello.is_some())
        };
        // Type and version of the record, type and length of the message, and the lengths of
        // session identifier, cipher suites, extensions and the first of them.
        for at in [0, 1, 5, 6, 43, 45, 46, 53, 57] {
            assert!(with(at, 0x7f).is_err() || with(at, 0x7f) == Ok(false), "{at}");
        }
        assert!(with(46, 3).is_err(), "an odd length of the cipher suites");
    }
}
