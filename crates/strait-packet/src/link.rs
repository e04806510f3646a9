//! Parses a frame from its link header to its network header.
//!
//! Flow keys, probes and sinks that need more than one layer use it.

use std::net::IpAddr;

use crate::arp::Arp;
use crate::error::{Error, Header, Result};
use crate::ethernet::Ethernet;
use crate::ipv4::Ipv4;
use crate::ipv6::{Ipv6, Upper};
use crate::protocol::ether_type;
use crate::summary::link_type;
use crate::vlan::Untagged;

/// The network layer of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Network<'a> {
    /// ARP for IPv4.
    Arp(Arp<'a>),
    /// IPv4.
    Ipv4(Ipv4<'a>),
    /// IPv6, with the payload after its extension headers.
    Ipv6(Ipv6<'a>, Upper<'a>),
    /// Any other protocol, by its Ethernet type.
    Other,
}

/// Parses `frame` down to its network header: the tags with the payload after them, and the header
/// of that payload. Fails if one of the headers is cut or malformed.
#[inline]
pub fn network(frame: &[u8]) -> Result<(Untagged<'_>, Network<'_>)> {
    let ethernet = Ethernet::parse(frame)?;
    parse_payload(ethernet.ether_type(), ethernet.payload())
}

/// Like [`network`], for a frame of `link_type`, one of [`link_type`]: cooked packets and plain IP
/// too.
#[inline]
pub fn network_on(link_type: u16, frame: &[u8]) -> Result<(Untagged<'_>, Network<'_>)> {
    if link_type == link_type::ETHERNET {
        return network(frame);
    }
    let header = Header::Link;
    let (ether_type, header_len) = header_without_addresses(link_type, frame).ok_or(Error::Invalid {
        header,
        field: "type",
        value: link_type.into(),
        expected: "one that is read here",
    })?;
    let cut = Error::Truncated { header, needed: header_len.max(1), had: frame.len() };
    parse_payload(ether_type.ok_or(cut)?, frame.get(header_len..).ok_or(cut)?)
}

/// Returns, for a link header other than Ethernet, the Ethernet type of its payload (`None` if it
/// is cut) and the header's length in bytes; `None` for an unsupported link type.
pub(crate) fn header_without_addresses(link_type: u16, frame: &[u8]) -> Option<(Option<u16>, usize)> {
    Some(match link_type {
        link_type::RAW | link_type::IPV4 | link_type::IPV6 => (version_type(frame), 0),
        link_type::NULL | link_type::LOOP => (family_type(frame), 4),
        link_type::LINUX_SLL => (type_at(frame, 14), 16),
        link_type::LINUX_SLL2 => (type_at(frame, 0), 20),
        _ => return None,
    })
}

/// Parses the payload of type `ether_type`.
#[inline]
fn parse_payload(ether_type: u16, payload: &[u8]) -> Result<(Untagged<'_>, Network<'_>)> {
    let untagged = Untagged::parse(ether_type, payload)?;
    let network = match untagged.ether_type() {
        ether_type::ARP => Network::Arp(Arp::parse(untagged.payload())?),
        ether_type::IPV4 => Network::Ipv4(Ipv4::parse(untagged.payload())?),
        ether_type::IPV6 => {
            let packet = Ipv6::parse(untagged.payload())?;
            Network::Ipv6(packet, packet.upper()?)
        }
        _ => Network::Other,
    };
    Ok((untagged, network))
}

/// Returns the payload of an IP packet of either version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried<'a> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) is_fragment: bool,
    pub(crate) payload: &'a [u8],
}

impl<'a> Network<'a> {
    /// Returns the IP packet, if it is one.
    pub(crate) fn carried(&self) -> Option<Carried<'a>> {
        match self {
            Self::Ipv4(packet) => Some(Carried {
                source: packet.source().into(),
                destination: packet.destination().into(),
                protocol: packet.protocol(),
                is_fragment: packet.is_fragment(),
                payload: packet.payload(),
            }),
            Self::Ipv6(packet, upper) => Some(Carried {
                source: packet.source().into(),
                destination: packet.destination().into(),
                protocol: upper.protocol,
                is_fragment: upper.fragment.is_some(),
                payload: upper.payload,
            }),
            Self::Arp(_) | Self::Other => None,
        }
    }
}

/// Returns the Ethernet type for the version in the first four bits of an IP packet.
fn version_type(packet: &[u8]) -> Option<u16> {
    match packet.first()? >> 4 {
        6 => Some(ether_type::IPV6),
        _ => Some(ether_type::IPV4),
    }
}

/// Returns the Ethernet type for the address family of a loopback header, in either byte order.
/// `AF_INET` is 2 on all systems, `AF_INET6` is 10, 24, 28 or 30.
fn family_type(frame: &[u8]) -> Option<u16> {
    match frame.first_chunk()? {
        [2, 0, 0, 0] | [0, 0, 0, 2] => Some(ether_type::IPV4),
        _ => Some(ether_type::IPV6),
    }
}

fn type_at(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}
