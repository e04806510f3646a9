//! The ICMP header (RFC 792): type, code, checksum, and four bytes that depend on the type.

use std::net::Ipv4Addr;

use crate::error::{Header, Result, be16, be32, split_head};

/// Bytes of an ICMP header.
pub const HEADER_LEN: usize = 8;

/// Content of an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Echo request (8) or reply (0).
    Echo {
        /// True if it is the reply.
        reply: bool,
        /// The sender's identifier.
        id: u16,
        /// The sender's sequence number.
        sequence: u16,
    },
    /// Destination unreachable (3).
    Unreachable {
        /// Code: 0 net, 1 host, 2 protocol, 3 port, 4 fragmentation needed, and so on.
        code: u8,
        /// The next hop's MTU, for code 4 (RFC 1191).
        mtu: u16,
    },
    /// Redirect (5) to a gateway.
    Redirect {
        /// Code: 0 for the net, 1 for the host, 2 and 3 with type of service.
        code: u8,
        /// The gateway to use.
        gateway: Ipv4Addr,
    },
    /// Time exceeded (11): code 0 in transit, 1 while reassembling.
    TimeExceeded {
        /// Code.
        code: u8,
    },
    /// Any other type.
    Other {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
    },
}

/// A view of an ICMP message.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<'a> {
    head: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Icmp<'a> {
    /// Parses the message. Fails only on fewer than 8 bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (head, payload) = split_head(Header::Icmp, bytes)?;
        Ok(Self { head, payload })
    }

    /// Returns the content of the message.
    pub fn message(&self) -> Message {
        let [kind, code, ..] = *self.head;
        let (id, sequence) = (be16(self.head, 4), be16(self.head, 6));
        match kind {
            0 | 8 => Message::Echo { reply: kind == 0, id, sequence },
            3 => Message::Unreachable { code, mtu: sequence },
            5 => Message::Redirect { code, gateway: Ipv4Addr::from(be32(self.head, 4)) },
            11 => Message::TimeExceeded { code },
            _ => Message::Other { kind, code },
        }
    }

    /// Returns the checksum field.
    pub fn checksum(&self) -> u16 {
        be16(self.head, 2)
    }

    /// Returns the bytes after the first eight: echo data, or the start of the packet that caused
    /// the error.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}
