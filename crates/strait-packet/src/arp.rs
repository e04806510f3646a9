//! ARP for IPv4 over Ethernet (RFC 826).
//!
//! Layout: hardware type 2 bytes, protocol type 2, hardware length 1, protocol length 1, operation
//! 2, then sender MAC 6, sender IPv4 4, target MAC 6, target IPv4 4. Other hardware and protocol
//! pairs are refused.

use std::net::Ipv4Addr;

use crate::error::{Error, Header, Result, array_at, be16, be32, split_head};
use crate::ethernet::MacAddress;
use crate::protocol::ether_type;

/// Bytes of an ARP packet for IPv4 over Ethernet.
pub const PACKET_LEN: usize = 28;

/// Operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Request for the MAC address of an IPv4 address.
    Request,
    /// Reply with the MAC address.
    Reply,
    /// Any other operation code.
    Other(u16),
}

/// A view of an ARP packet.
#[derive(Clone, Copy, Debug)]
pub struct Arp<'a> {
    head: &'a [u8; PACKET_LEN],
}

impl<'a> Arp<'a> {
    /// Parses the payload of Ethernet type ARP. Fails if it is cut, or is not IPv4 over Ethernet.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (head, _) = split_head(Header::Arp, bytes)?;
        let invalid = |field, value: u16, expected| {
            Err(Error::Invalid { header: Header::Arp, field, value: u32::from(value), expected })
        };
        match (be16(head, 0), be16(head, 2), be16(head, 4)) {
            (1, ether_type::IPV4, 0x0604) => Ok(Self { head }),
            (1, ether_type::IPV4, lengths) => invalid("address lengths", lengths, "6 and 4"),
            (1, protocol, _) => invalid("protocol type", protocol, "IPv4"),
            (hardware, ..) => invalid("hardware type", hardware, "1, Ethernet"),
        }
    }

    /// Returns the operation.
    pub fn operation(&self) -> Operation {
        match be16(self.head, 6) {
            1 => Operation::Request,
            2 => Operation::Reply,
            other => Operation::Other(other),
        }
    }

    /// Returns the sender's MAC address.
    pub fn sender_mac(&self) -> MacAddress {
        MacAddress(array_at(self.head, 8))
    }

    /// Returns the sender's IPv4 address.
    pub fn sender(&self) -> Ipv4Addr {
        Ipv4Addr::from(be32(self.head, 14))
    }

    /// Returns the target's MAC address; zero in a request.
    pub fn target_mac(&self) -> MacAddress {
        MacAddress(array_at(self.head, 18))
    }

    /// Returns the target's IPv4 address.
    pub fn target(&self) -> Ipv4Addr {
        Ipv4Addr::from(be32(self.head, 24))
    }
}
