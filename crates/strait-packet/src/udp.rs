//! The UDP header (RFC 768): source port, destination port, length and checksum, two bytes each.

use crate::error::{Error, Header, Result, be16, split_head};

/// Bytes of a UDP header.
pub const HEADER_LEN: usize = 8;

/// A view of a UDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    head: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Udp<'a> {
    /// Parses the datagram. Fails on fewer than 8 bytes, and on a length field from 1 to 7. With
    /// length 0, in a jumbogram (RFC 2675) or before segmentation offload, it extends to the end of
    /// `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (head, rest) = split_head::<HEADER_LEN>(Header::Udp, bytes)?;
        let payload = match usize::from(be16(head, 4)) {
            0 => rest,
            len if len < HEADER_LEN => {
                let (value, expected) = (len as u32, "at least 8");
                return Err(Error::Invalid { header: Header::Udp, field: "length", value, expected });
            }
            len => &rest[..rest.len().min(len - HEADER_LEN)],
        };
        Ok(Self { head, payload })
    }

    /// Returns the source port.
    pub fn source_port(&self) -> u16 {
        be16(self.head, 0)
    }

    /// Returns the destination port.
    pub fn destination_port(&self) -> u16 {
        be16(self.head, 2)
    }

    /// Returns the length field: header and payload.
    pub fn len(&self) -> u16 {
        be16(self.head, 4)
    }

    /// Returns true if the datagram has no payload.
    pub fn is_empty(&self) -> bool {
        usize::from(self.len()) == HEADER_LEN
    }

    /// Returns the checksum field; 0 means that the sender computed none.
    pub fn checksum(&self) -> u16 {
        be16(self.head, 6)
    }

    /// Returns the captured payload.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}
