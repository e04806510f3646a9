//! The Ethernet II header, and MAC addresses.
//!
//! Layout (IEEE 802.3): destination 6 bytes, source 6, type or length 2, payload. Frames here never
//! include the frame check sequence, because Linux does not deliver it.

use std::fmt;

use crate::error::{Header, Result, array_at, be16, split_head};

/// Bytes of an Ethernet header.
pub const HEADER_LEN: usize = 14;

/// A MAC address, written as `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns true if the group bit is set: multicast and broadcast.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0;
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

/// A view of an Ethernet frame.
#[derive(Clone, Copy, Debug)]
pub struct Ethernet<'a> {
    head: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Ethernet<'a> {
    /// Parses the header of `frame`. Fails only if the frame is shorter than 14 bytes.
    pub fn parse(frame: &'a [u8]) -> Result<Self> {
        let (head, payload) = split_head(Header::Ethernet, frame)?;
        Ok(Self { head, payload })
    }

    /// Returns the destination address.
    pub fn destination(&self) -> MacAddress {
        MacAddress(array_at(self.head, 0))
    }

    /// Returns the source address.
    pub fn source(&self) -> MacAddress {
        MacAddress(array_at(self.head, 6))
    }

    /// Returns the type field; below [`ether_type::MIN`](crate::protocol::ether_type::MIN) it is
    /// the length of an 802.3 frame.
    pub fn ether_type(&self) -> u16 {
        be16(self.head, 12)
    }

    /// Returns the bytes after the header, including padding.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}
