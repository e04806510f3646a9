//! The IPv4 header (RFC 791).
//!
//! ```text
//!  0      4      8              16                            31
//!  |version|IHL  |DSCP, ECN     |total length                  |   0
//!  |identification              |0 DF MF|fragment offset       |   4
//!  |time to live |protocol      |header checksum               |   8
//!  |source address                                             |  12
//!  |destination address                                        |  16
//!  |options: IHL * 4 - 20 bytes                                |  20
//! ```

use std::net::Ipv4Addr;

use crate::checksum::Sum;
use crate::error::{Error, Header, Result, be16, be32, part, split_head};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// Maximum length of a header, in bytes.
pub const HEADER_LEN_MAX: usize = 60;

/// A view of an IPv4 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    head: &'a [u8; HEADER_LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// Parses the packet. Fails on another version, on a header that is cut or shorter than 20
    /// bytes, and on a total length below that of the header. The payload may be cut, see
    /// [`Ipv4::payload`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (head, _) = split_head::<HEADER_LEN>(Header::Ipv4, bytes)?;
        if head[0] >> 4 != 4 {
            return Err(invalid("version", u32::from(head[0] >> 4), "4"));
        }
        let header_len = usize::from(head[0] & 0x0f) * 4;
        if header_len < HEADER_LEN {
            return Err(invalid("header length", header_len as u32, "at least 20"));
        }
        let options = part(Header::Ipv4, bytes, HEADER_LEN, header_len)?;
        let end = match usize::from(be16(head, 2)) {
            0 => bytes.len(),
            total if total < header_len => {
                return Err(invalid("total length", total as u32, "at least the header's length"));
            }
            total => total.min(bytes.len()),
        };
        Ok(Self { head, options, payload: &bytes[header_len..end.max(header_len)] })
    }

    /// Returns the length of the header with its options, in bytes.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Returns the total length field: the packet's length with its header. It is 0 in packets
    /// longer than 65,535 bytes, which exist only within a host: segments before the NIC cuts them,
    /// or after GRO has joined them.
    pub fn total_len(&self) -> u16 {
        be16(self.head, 2)
    }

    /// Returns the length of the payload on the wire, which may exceed the captured part.
    pub fn payload_len(&self) -> usize {
        match usize::from(self.total_len()) {
            0 => self.payload.len(),
            total => total.saturating_sub(self.header_len()),
        }
    }

    /// Returns the type of service: DSCP and ECN.
    pub fn tos(&self) -> u8 {
        self.head[1]
    }

    /// Returns the identification, which is equal in all fragments of a packet.
    pub fn identification(&self) -> u16 {
        be16(self.head, 4)
    }

    /// Returns the flag "don't fragment".
    pub fn dont_fragment(&self) -> bool {
        self.head[6] & 0x40 != 0
    }

    /// Returns the flag "more fragments".
    pub fn more_fragments(&self) -> bool {
        self.head[6] & 0x20 != 0
    }

    /// Returns the offset of this fragment's payload in that of the whole packet, in bytes.
    pub fn fragment_offset(&self) -> u32 {
        u32::from(be16(self.head, 6) & 0x1fff) * 8
    }

    /// Returns true if the packet is a fragment.
    pub fn is_fragment(&self) -> bool {
        self.more_fragments() || self.fragment_offset() > 0
    }

    /// Returns the time to live.
    pub fn ttl(&self) -> u8 {
        self.head[8]
    }

    /// Returns the protocol of the payload.
    pub fn protocol(&self) -> u8 {
        self.head[9]
    }

    /// Returns the header checksum field.
    pub fn checksum(&self) -> u16 {
        be16(self.head, 10)
    }

    /// Returns true if the header checksum is correct. Packets that this host sends may not have
    /// one yet, because the NIC computes it.
    pub fn checksum_holds(&self) -> bool {
        let mut sum = Sum::new();
        sum.add(self.head);
        sum.add(self.options);
        sum.finish() == 0
    }

    /// Returns the source address.
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(be32(self.head, 12))
    }

    /// Returns the destination address.
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from(be32(self.head, 16))
    }

    /// Returns the options, including padding.
    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    /// Returns the captured payload, without Ethernet padding.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

fn invalid(field: &'static str, value: u32, expected: &'static str) -> Error {
    Error::Invalid { header: Header::Ipv4, field, value, expected }
}
