//! The `ICMPv6` header (RFC 4443) with neighbour discovery (RFC 4861).
//!
//! Layout: type, code, checksum 2 bytes, then a body that depends on the type.

use std::net::Ipv6Addr;

use crate::error::{Header, Result, be16, split_head};

/// Bytes of an `ICMPv6` header.
pub const HEADER_LEN: usize = 4;

/// Content of an `ICMPv6` message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Destination unreachable (1).
    Unreachable {
        /// Code: 0 no route, 1 prohibited, 2 beyond scope, 3 address, 4 port.
        code: u8,
    },
    /// Packet too big (2).
    TooBig {
        /// The next hop's MTU.
        mtu: u32,
    },
    /// Time exceeded (3): code 0 in transit, 1 while reassembling.
    TimeExceeded {
        /// Code.
        code: u8,
    },
    /// Echo request (128) or reply (129).
    Echo {
        /// True if it is the reply.
        reply: bool,
        /// The sender's identifier.
        id: u16,
        /// The sender's sequence number.
        sequence: u16,
    },
    /// Router solicitation (133).
    RouterSolicitation,
    /// Router advertisement (134).
    RouterAdvertisement,
    /// Neighbour solicitation (135).
    NeighborSolicitation {
        /// Target: the requested address.
        target: Ipv6Addr,
    },
    /// Neighbour advertisement (136).
    NeighborAdvertisement {
        /// Target: the advertised address.
        target: Ipv6Addr,
    },
    /// Multicast listener report version 2 (143, RFC 9777).
    ListenerReport {
        /// Group records in the report.
        records: u16,
    },
    /// Any other type, or a truncated body.
    Other {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
    },
}

/// A view of an `ICMPv6` message.
#[derive(Clone, Copy, Debug)]
pub struct Icmpv6<'a> {
    head: &'a [u8; HEADER_LEN],
    body: &'a [u8],
}

impl<'a> Icmpv6<'a> {
    /// Parses the message. Fails only on fewer than 4 bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (head, body) = split_head(Header::Icmpv6, bytes)?;
        Ok(Self { head, body })
    }

    /// Returns the content of the message.
    pub fn message(&self) -> Message {
        let [kind, code, ..] = *self.head;
        self.known(kind, code).unwrap_or(Message::Other { kind, code })
    }

    fn known(&self, kind: u8, code: u8) -> Option<Message> {
        Some(match kind {
            1 => Message::Unreachable { code },
            2 => Message::TooBig { mtu: u32::from_be_bytes(*self.body.first_chunk()?) },
            3 => Message::TimeExceeded { code },
            128 | 129 => {
                let [a, b, c, d] = *self.body.first_chunk()?;
                let (id, sequence) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                Message::Echo { reply: kind == 129, id, sequence }
            }
            133 => Message::RouterSolicitation,
            134 => Message::RouterAdvertisement,
            135 => Message::NeighborSolicitation { target: self.target()? },
            136 => Message::NeighborAdvertisement { target: self.target()? },
            143 => {
                let [_, _, a, b] = *self.body.first_chunk()?;
                Message::ListenerReport { records: u16::from_be_bytes([a, b]) }
            }
            _ => return None,
        })
    }

    fn target(&self) -> Option<Ipv6Addr> {
        let octets: [u8; 16] = *self.body.get(4..)?.first_chunk()?;
        Some(Ipv6Addr::from(octets))
    }

    /// Returns the checksum field.
    pub fn checksum(&self) -> u16 {
        be16(self.head, 2)
    }

    /// Returns the bytes after the first four.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }
}
