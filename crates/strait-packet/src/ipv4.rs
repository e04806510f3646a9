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

/// Bytes of the longest header.
pub const HEADER_LEN_MAX: usize = 60;

/// A view of an IPv4 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    head: &'a [u8; HEADER_LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// Reads the packet. Fails on another version, a header shorter than 20 bytes or cut, and a
    /// total length below the header's. The payload may be cut: see [`Ipv4::payload`].
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

    /// Bytes of the header with its options.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// The packet's length with its header, as the sender wrote it. 0 stands for "longer than
    /// 65,535 or not known yet": the kernel leaves it so in segments that the NIC or GRO will
    /// cut or has joined.
    pub fn total_len(&self) -> u16 {
        be16(self.head, 2)
    }

    /// Bytes of payload that the sender wrote, which may be more than were captured.
    pub fn payload_len(&self) -> usize {
        match usize::from(self.total_len()) {
            0 => self.payload.len(),
            total => total.saturating_sub(self.header_len()),
        }
    }

    /// Type of service: DSCP and ECN.
    pub fn tos(&self) -> u8 {
        self.head[1]
    }

    /// The identification that the fragments of a packet share.
    pub fn identification(&self) -> u16 {
        be16(self.head, 4)
    }

    /// Don't fragment.
    pub fn dont_fragment(&self) -> bool {
        self.head[6] & 0x40 != 0
    }

    /// More fragments follow.
    pub fn more_fragments(&self) -> bool {
        self.head[6] & 0x20 != 0
    }

    /// Where this fragment's payload starts in the whole packet's, in bytes.
    pub fn fragment_offset(&self) -> u32 {
        u32::from(be16(self.head, 6) & 0x1fff) * 8
    }

    /// Returns true if the packet is a part of a larger one.
    pub fn is_fragment(&self) -> bool {
        self.more_fragments() || self.fragment_offset() > 0
    }

    /// Time to live.
    pub fn ttl(&self) -> u8 {
        self.head[8]
    }

    /// The protocol of the payload.
    pub fn protocol(&self) -> u8 {
        self.head[9]
    }

    /// The header checksum as it is in the packet.
    pub fn checksum(&self) -> u16 {
        be16(self.head, 10)
    }

    /// Returns true if the header checksum is right. Packets that this host is sending may not have
    /// it yet.
    pub fn checksum_holds(&self) -> bool {
        let mut sum = Sum::new();
        sum.add(self.head);
        sum.add(self.options);
        sum.finish() == 0
    }

    /// Where the packet comes from.
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(be32(self.head, 12))
    }

    /// Where the packet goes.
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from(be32(self.head, 16))
    }

    /// The options, padding included.
    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    /// The payload that was captured, without Ethernet padding.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

fn invalid(field: &'static str, value: u32, expected: &'static str) -> Error {
    Error::Invalid { header: Header::Ipv4, field, value, expected }
}
