//! QUIC's long headers (RFC 9000 s17.2, RFC 9369), as far as the Initial packets need them, and the
//! frames in these.
//!
//! Layout of an Initial packet: flags 1 byte, version 4, two connection IDs of up to 20 bytes after
//! their lengths, a token after its length, a length, then the packet number and the payload. The
//! packet number, its length in the flags, and the payload are encrypted with keys from the
//! packet itself. This module does not decrypt: the caller gives the payload to [`Crypto`].

use crate::error::{Error, Header, Result};
use crate::reader::Reader;

/// Minimum bytes of a datagram with an Initial packet that the receiver must acknowledge (RFC 9000
/// s14.1).
pub const INITIAL_DATAGRAM_LEN_MIN: usize = 1200;
/// Minimum length of the first connection ID that a client chooses (RFC 9000 s7.2).
pub const CLIENT_ID_LEN_MIN: usize = 8;
/// Bytes behind the start of the packet number at which the sample for header protection begins
/// (RFC 9001 s5.4.2).
pub const SAMPLE_OFFSET: usize = 4;
/// Bytes of the sample.
pub const SAMPLE_LEN: usize = 16;
/// Maximum length of a connection ID.
const ID_LEN_MAX: usize = 20;
/// Flag of packets with a long header.
const LONG: u8 = 0x80;
/// Flag of all packets, unless the peer accepts packets without it (RFC 9287).
const FIXED: u8 = 0x40;

/// Version with known Initial packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 1 (RFC 9000).
    V1,
    /// Version 2 (RFC 9369).
    V2,
}

/// Initial packet, still encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initial<'a> {
    /// Version.
    pub version: Version,
    /// Connection ID of the receiver.
    pub destination_id: &'a [u8],
    /// Connection ID of the sender.
    pub source_id: &'a [u8],
    /// The packet, without those that follow it in its datagram.
    pub bytes: &'a [u8],
    /// Offset of the packet number in `bytes`. The sample is within `bytes`.
    pub number_offset: usize,
}

/// Packet with a long header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// Initial packet.
    Initial(Initial<'a>),
    /// Retry: the client sends its Initial packets again, with keys from the server's connection
    /// ID.
    Retry {
        /// Connection ID of the client.
        destination_id: &'a [u8],
        /// Connection ID of the server.
        source_id: &'a [u8],
    },
    /// Packet of another kind. Its keys do not follow from the packet.
    Other,
}

/// Returns true if `datagram` may begin with a packet that has a long header of a known version.
pub fn has_long_header(datagram: &[u8]) -> bool {
    matches!(datagram, [flags, a, b, c, d, ..]
        if flags & LONG == LONG && Version::of(u32::from_be_bytes([*a, *b, *c, *d])).is_some())
}

/// Returns true if the first packet of `datagram` has the flag of all packets.
pub fn has_fixed_flag(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|flags| flags & FIXED != 0)
}

/// Returns the packets with long headers of a datagram, or of several that a device has merged,
/// with zeros between them. An error is the last item: an Initial packet is cut or malformed.
pub fn packets(datagram: &[u8]) -> impl Iterator<Item = Result<Packet<'_>>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.len() < datagram.len() {
            let padding = rest.iter().position(|byte| *byte != 0).unwrap_or(rest.len());
            rest = &rest[padding..];
        }
        if !has_long_header(rest) {
            return None;
        }
        let mut reader = Reader::new(Header::Quic, rest);
        let packet = packet(&mut reader, rest);
        rest = packet.as_ref().map_or(&[], |_| reader.rest);
        Some(packet)
    })
}

/// Parses the packet at the start of `bytes`, which `reader` passes.
fn packet<'a>(reader: &mut Reader<'a>, bytes: &'a [u8]) -> Result<Packet<'a>> {
    let (flags, version) = (reader.u8()?, reader.u32()?);
    let version = Version::of(version).ok_or(invalid("version", version, "1 or 2"))?;
    let (destination_id, source_id) = (connection_id(reader)?, connection_id(reader)?);
    let kind = version.kind(flags);
    if kind == Kind::Retry {
        reader.rest = &[];
        return Ok(Packet::Retry { destination_id, source_id });
    }
    if kind == Kind::Other {
        let passed = number(reader).and_then(|len| take(reader, len));
        if passed.is_err() {
            reader.rest = &[];
        }
        return Ok(Packet::Other);
    }
    let token_len = number(reader)?;
    take(reader, token_len)?;
    let len = number(reader)?;
    let number_offset = bytes.len() - reader.rest.len();
    let payload = take(reader, len)?;
    if payload.len() < SAMPLE_OFFSET + SAMPLE_LEN {
        return Err(invalid("length", payload.len() as u32, "at least 20"));
    }
    let bytes = bytes.get(..number_offset + payload.len()).unwrap_or_default();
    Ok(Packet::Initial(Initial { version, destination_id, source_id, bytes, number_offset }))
}

#[derive(PartialEq)]
enum Kind {
    Initial,
    Retry,
    Other,
}

impl Version {
    fn of(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::V1),
            0x6b33_43cf => Some(Self::V2),
            _ => None,
        }
    }

    fn kind(self, flags: u8) -> Kind {
        match (self, flags >> 4 & 3) {
            (Self::V1, 0) | (Self::V2, 1) => Kind::Initial,
            (Self::V1, 3) | (Self::V2, 0) => Kind::Retry,
            _ => Kind::Other,
        }
    }
}

/// CRYPTO frames of the decrypted payload of an Initial packet: offset in the stream of handshake
/// messages, and data. An error is the last item: the payload is cut, or has a frame that these
/// packets cannot have (RFC 9000 s12.4).
#[derive(Clone, Debug)]
pub struct Crypto<'a> {
    reader: Reader<'a>,
}

impl<'a> Crypto<'a> {
    /// Reads a decrypted payload.
    pub fn new(payload: &'a [u8]) -> Self {
        Self { reader: Reader::new(Header::Quic, payload) }
    }

    /// Passes other frames, and returns the next CRYPTO frame.
    fn frame(&mut self) -> Result<Option<(u64, &'a [u8])>> {
        const PADDING: u8 = 0;
        const PING: u8 = 1;
        const ACK: u8 = 2;
        const ACK_WITH_ECN: u8 = 3;
        const CRYPTO: u8 = 6;
        const CLOSE: u8 = 0x1c;
        let reader = &mut self.reader;
        while let Some((&kind, rest)) = reader.rest.split_first() {
            reader.rest = rest;
            match kind {
                PADDING | PING => {}
                ACK | ACK_WITH_ECN => {
                    let (_largest, _delay) = (number(reader)?, number(reader)?);
                    let ranges = number(reader)?;
                    let _first = number(reader)?;
                    for _ in 0..ranges {
                        let (_gap, _len) = (number(reader)?, number(reader)?);
                    }
                    for _ in 0..if kind == ACK { 0 } else { 3 } {
                        number(reader)?;
                    }
                }
                CRYPTO => {
                    let (offset, len) = (number(reader)?, number(reader)?);
                    return Ok(Some((offset, take(reader, len)?)));
                }
                CLOSE => {
                    let (_code, _kind) = (number(reader)?, number(reader)?);
                    let len = number(reader)?;
                    take(reader, len)?;
                }
                other => return Err(invalid("frame type", u32::from(other), "0 to 3, 6 or 28")),
            }
        }
        Ok(None)
    }
}

impl<'a> Iterator for Crypto<'a> {
    type Item = Result<(u64, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let frame = self.frame();
        if frame.is_err() {
            self.reader.rest = &[];
        }
        frame.transpose()
    }
}

/// Returns `len` bytes.
fn take<'a>(reader: &mut Reader<'a>, len: u64) -> Result<&'a [u8]> {
    reader.take(usize::try_from(len).unwrap_or(usize::MAX))
}

/// Returns a connection ID after its length.
fn connection_id<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8]> {
    let len = reader.u8()?;
    if usize::from(len) > ID_LEN_MAX {
        return Err(invalid("length of a connection ID", u32::from(len), "at most 20"));
    }
    reader.take(usize::from(len))
}

/// Returns an integer of variable length (RFC 9000 s16).
fn number(reader: &mut Reader<'_>) -> Result<u64> {
    let first = reader.rest.first().copied().unwrap_or_default();
    let bytes = reader.take(1 << (first >> 6))?;
    let number = bytes.iter().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    Ok(number & u64::MAX >> (66 - 8 * bytes.len()))
}

fn invalid(field: &'static str, value: u32, expected: &'static str) -> Error {
    Error::Invalid { header: Header::Quic, field, value, expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A version 1 packet with the flags, connection IDs of 2 bytes and 0 bytes, and `rest`.
    fn long(flags: u8, rest: &[u8]) -> Vec<u8> {
        [&[flags, 0, 0, 0, 1, 2, 7, 8, 0], rest].concat()
    }

    #[test]
    fn packets_of_a_datagram_are_split() {
        let payload = [5; 20];
        let initial = long(0xc0, &[&[1, 9, 0x40, 20][..], &payload].concat());
        let handshake = long(0xe0, &[3, 1, 2, 3]);
        let datagram = [initial.clone(), handshake, vec![0x40; 8]].concat();
        let expected = Initial {
            version: Version::V1,
            destination_id: &[7, 8],
            source_id: &[],
            bytes: &initial,
            number_offset: 13,
        };
        let all: Vec<_> = packets(&datagram).collect();
        assert_eq!(all, [Ok(Packet::Initial(expected)), Ok(Packet::Other)]);
        let retry = Packet::Retry { destination_id: &[7, 8], source_id: &[] };
        assert_eq!(packets(&long(0xf0, &[1, 2])).collect::<Vec<_>>(), [Ok(retry)]);
        // Merged datagrams with padding, the second one without the fixed flag, and a cut packet.
        let mut second = initial.clone();
        second[0] = 0x80;
        let merged = [initial.clone(), vec![0; 9], second, long(0xe0, &[3, 1])].concat();
        let kinds: Vec<_> = packets(&merged).map(|packet| matches!(packet, Ok(Packet::Initial(_)))).collect();
        assert_eq!(kinds, [true, true, false]);
        assert!(packets(&merged).all(|packet| packet.is_ok()));
    }

    #[test]
    fn kinds_of_version_2_differ() {
        let mut packet = long(0xd0, &[&[0, 20][..], &[5; 20]].concat());
        packet[1..5].copy_from_slice(&0x6b33_43cf_u32.to_be_bytes());
        assert!(matches!(
            packets(&packet).next(),
            Some(Ok(Packet::Initial(Initial { version: Version::V2, .. })))
        ));
        packet[0] = 0xc0;
        assert!(matches!(packets(&packet).next(), Some(Ok(Packet::Retry { .. }))));
    }

    #[test]
    fn cut_and_other_packets_are_refused() {
        let initial = long(0xc0, &[&[0, 20][..], &[5; 20]].concat());
        for len in 5..initial.len() {
            let all: Vec<_> = packets(&initial[..len]).collect();
            assert!(matches!(all[..], [Err(Error::Truncated { .. })]), "{len}: {all:?}");
        }
        assert!(matches!(packets(&long(0xc0, &[0, 1, 0])).next(), Some(Err(Error::Invalid { .. }))));
        // A short header, an unknown version, version negotiation.
        for start in [[0x40, 0, 0, 0, 1], [0xc0, 0, 0, 0, 9], [0xc0, 0, 0, 0, 0]] {
            assert_eq!(packets(&[&start[..], &[0; 40]].concat()).count(), 0);
        }
    }

    #[test]
    fn crypto_frames_are_found_between_others() {
        let ack = [3, 0, 0, 1, 0, 0x40, 1, 2, 0, 0, 1];
        let payload =
            [&[1, 0, 0][..], &ack, &[6, 0x44, 1, 2, b'a', b'b'], &[0x1c, 0, 0, 1, b'x'], &[6, 0, 0]].concat();
        let frames: Vec<_> = Crypto::new(&payload).collect::<Result<_>>().unwrap();
        assert_eq!(frames, [(0x401, &b"ab"[..]), (0, b"")]);
        let wrong: Vec<_> = Crypto::new(&[6, 0, 1, b'a', 8, 6, 0, 0]).collect();
        assert!(matches!(wrong[..], [Ok((0, b"a")), Err(Error::Invalid { value: 8, .. })]));
        let cut: Vec<_> = Crypto::new(&[6, 0, 3, b'a']).collect();
        assert!(matches!(cut[..], [Err(Error::Truncated { .. })]));
    }
}
