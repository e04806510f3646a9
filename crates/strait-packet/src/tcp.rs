//! The TCP header and its options (RFC 9293).
//!
//! Layout: source port 2 bytes, destination port 2, sequence 4, acknowledgment 4, data offset 4
//! bits, reserved 3 bits, nine flags, window 2, checksum 2, urgent pointer 2, options up to 40
//! bytes.

use crate::error::{Error, Header, Result, be16, be32, part, split_head};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// The flag bits, as in the low nine bits of bytes 12 and 13.
pub mod flags {
    /// No more data from the sender.
    pub const FIN: u16 = 0x001;
    /// Synchronise sequence numbers.
    pub const SYN: u16 = 0x002;
    /// Reset the connection.
    pub const RST: u16 = 0x004;
    /// Push.
    pub const PSH: u16 = 0x008;
    /// The acknowledgment number is valid.
    pub const ACK: u16 = 0x010;
    /// The urgent pointer is valid.
    pub const URG: u16 = 0x020;
    /// ECN echo (RFC 3168).
    pub const ECE: u16 = 0x040;
    /// Congestion window reduced (RFC 3168).
    pub const CWR: u16 = 0x080;
    /// Accurate ECN (RFC 9768), formerly the nonce sum.
    pub const AE: u16 = 0x100;
}

/// A view of a TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    head: &'a [u8; HEADER_LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Parses the segment. Fails on a header that is cut or shorter than 20 bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (head, _) = split_head::<HEADER_LEN>(Header::Tcp, bytes)?;
        let header_len = usize::from(head[12] >> 4) * 4;
        if header_len < HEADER_LEN {
            let (value, expected) = (header_len as u32, "at least 20");
            return Err(Error::Invalid { header: Header::Tcp, field: "header length", value, expected });
        }
        let options = part(Header::Tcp, bytes, HEADER_LEN, header_len)?;
        Ok(Self { head, options, payload: &bytes[header_len..] })
    }

    /// Returns the length of the header with its options, in bytes.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Returns the source port.
    pub fn source_port(&self) -> u16 {
        be16(self.head, 0)
    }

    /// Returns the destination port.
    pub fn destination_port(&self) -> u16 {
        be16(self.head, 2)
    }

    /// Returns the sequence number: of the SYN if it is set, otherwise of the first payload byte.
    pub fn sequence(&self) -> u32 {
        be32(self.head, 4)
    }

    /// Returns the acknowledgment number: the next sequence number that the sender expects.
    pub fn acknowledgment(&self) -> u32 {
        be32(self.head, 8)
    }

    /// Returns the flag bits, see [`flags`].
    pub fn flags(&self) -> u16 {
        be16(self.head, 12) & 0x1ff
    }

    /// Returns the receive window, unscaled.
    pub fn window(&self) -> u16 {
        be16(self.head, 14)
    }

    /// Returns the checksum field.
    pub fn checksum(&self) -> u16 {
        be16(self.head, 16)
    }

    /// Returns the urgent pointer.
    pub fn urgent(&self) -> u16 {
        be16(self.head, 18)
    }

    /// Iterates over the options, in order.
    pub fn options(&self) -> Options<'a> {
        Options { rest: self.options }
    }

    /// Returns the captured payload.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// One TCP option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// End of the list: the rest is padding (RFC 9293 s3.1).
    End,
    /// Padding of one byte.
    Nop,
    /// Maximum segment size in bytes.
    MaximumSegment(u16),
    /// Window scale shift (RFC 7323).
    WindowScale(u8),
    /// Selective acknowledgment permitted (RFC 2018).
    SackPermitted,
    /// Selective acknowledgment: pairs of 32-bit left and right edges.
    Sack(&'a [u8]),
    /// Timestamps (RFC 7323).
    Timestamps {
        /// The sender's clock.
        value: u32,
        /// The receiver's clock, echoed.
        echo: u32,
    },
    /// Any other option.
    Other {
        /// Its kind.
        kind: u8,
        /// Its data, without kind and length.
        data: &'a [u8],
    },
}

/// An iterator over options. It ends after the last one, after [`TcpOption::End`] and after an
/// error.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<TcpOption<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, rest) = self.rest.split_first()?;
        let taken = match kind {
            0 => Ok((TcpOption::End, &[][..])),
            1 => Ok((TcpOption::Nop, rest)),
            kind => take_option(*kind, rest),
        };
        self.rest = taken.map_or(&[], |(_, rest)| rest);
        Some(taken.map(|(option, _)| option))
    }
}

/// Parses an option with a length. `rest` starts at the length byte; the length includes kind and
/// length byte.
fn take_option(kind: u8, rest: &[u8]) -> Result<(TcpOption<'_>, &[u8])> {
    let len = usize::from(*rest.first().unwrap_or(&0));
    let data = rest.get(1..len.wrapping_sub(1)).ok_or(Error::Invalid {
        header: Header::Tcp,
        field: "option length",
        value: len as u32,
        expected: "at least 2 and within the header",
    })?;
    let option = match (kind, data) {
        (2, &[a, b]) => TcpOption::MaximumSegment(u16::from_be_bytes([a, b])),
        (3, &[shift]) => TcpOption::WindowScale(shift),
        (4, []) => TcpOption::SackPermitted,
        (5, edges) if edges.len() % 8 == 0 => TcpOption::Sack(edges),
        (8, data) => timestamps(data),
        (kind, data) => TcpOption::Other { kind, data },
    };
    Ok((option, &rest[len - 1..]))
}

/// Parses the timestamps option: two numbers of four bytes.
fn timestamps(data: &[u8]) -> TcpOption<'_> {
    match data.as_chunks() {
        (&[value, echo], []) => {
            TcpOption::Timestamps { value: u32::from_be_bytes(value), echo: u32::from_be_bytes(echo) }
        }
        _ => TcpOption::Other { kind: 8, data },
    }
}
