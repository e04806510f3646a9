//! Key of the flow of a packet: the five-tuple and the VLAN.
//!
//! The tests of generated traffic count frames by it and compare with the generator's flows.

use std::fmt;
use std::net::IpAddr;

use crate::link::{Network, network};
use crate::protocol::ip;
use crate::vlan::Untagged;

/// Endpoint of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// The port; 0 if the protocol has none or the packet is a fragment.
    pub port: u16,
}

/// A flow in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// The outermost VLAN identifier, if the frame has a tag.
    pub vlan: Option<u16>,
    /// The IP protocol.
    pub protocol: u8,
    /// Source of the packets.
    pub source: Endpoint,
    /// Destination of the packets.
    pub destination: Endpoint,
}

impl FlowKey {
    /// Returns the flow of an Ethernet frame; `None` if it is not IP or its IP header is malformed.
    /// Every fragment of a packet, including the first one, has ports 0, so that all of them are
    /// in one flow.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let (untagged, network) = network(frame).ok()?;
        Self::of_network(&untagged, &network)
    }

    /// Returns the flow of a frame that [`network_on`](crate::network_on) has parsed.
    pub fn of_network(untagged: &Untagged<'_>, network: &Network<'_>) -> Option<Self> {
        let carried = network.carried()?;
        let [source_port, destination_port] = match carried.protocol {
            ip::TCP | ip::UDP if !carried.is_fragment => ports(carried.payload),
            _ => [0, 0],
        };
        Some(Self {
            vlan: untagged.tags().first().map(|tag| tag.id()),
            protocol: carried.protocol,
            source: Endpoint { address: carried.source, port: source_port },
            destination: Endpoint { address: carried.destination, port: destination_port },
        })
    }
}

/// Returns source and destination port, which are the first four bytes of both TCP and UDP; 0 if
/// they are cut.
fn ports(transport: &[u8]) -> [u16; 2] {
    match transport.first_chunk() {
        Some(&[a, b, c, d]) => [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])],
        None => [0, 0],
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            0 => write!(f, "{}", self.address),
            port => write!(f, "{}.{port}", self.address),
        }
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(vlan) = self.vlan {
            write!(f, "vlan {vlan}, ")?;
        }
        match ip::name(self.protocol) {
            Some(name) => write!(f, "{name} ")?,
            None => write!(f, "ip-proto-{} ", self.protocol)?,
        }
        write!(f, "{} > {}", self.source, self.destination)
    }
}
