//! From the first byte of a frame to its network header.
//!
//! Flow keys, probes and sinks that want more than one layer start here.

use std::net::IpAddr;

use crate::arp::Arp;
use crate::error::Result;
use crate::ethernet::Ethernet;
use crate::ipv4::Ipv4;
use crate::ipv6::{Ipv6, Upper};
use crate::protocol::ether_type;
use crate::vlan::Untagged;

/// The network layer of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Network<'a> {
    /// ARP for IPv4.
    Arp(Arp<'a>),
    /// IPv4.
    Ipv4(Ipv4<'a>),
    /// IPv6, and what its extension headers carry.
    Ipv6(Ipv6<'a>, Upper<'a>),
    /// Anything else; the Ethernet type says what.
    Other,
}

/// Takes `frame` apart down to its network header: the tags with the payload behind them, and that
/// payload's header. Fails where one of the headers is cut or wrong.
pub fn network(frame: &[u8]) -> Result<(Untagged<'_>, Network<'_>)> {
    let ethernet = Ethernet::parse(frame)?;
    let untagged = Untagged::parse(ethernet.ether_type(), ethernet.payload())?;
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

/// What an IP packet of either version carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried<'a> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) is_fragment: bool,
    pub(crate) payload: &'a [u8],
}

impl<'a> Network<'a> {
    /// The IP packet, if it is one.
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
