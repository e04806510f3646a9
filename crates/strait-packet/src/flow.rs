//! Which flow a packet belongs to: the five-tuple and the VLAN.
//!
//! The tests of generated traffic count by it: every frame is in the flow that it was made for.

use std::fmt;
use std::net::IpAddr;

use crate::link::{Network, network};
use crate::protocol::ip;
use crate::vlan::Untagged;

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// The port; 0 where the protocol has none or the packet is a fragment.
    pub port: u16,
}

/// A flow in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// The outermost VLAN identifier, if the frame has a tag.
    pub vlan: Option<u16>,
    /// The IP protocol.
    pub protocol: u8,
    /// Where the packets come from.
    pub source: Endpoint,
    /// Where they go.
    pub destination: Endpoint,
}

impl FlowKey {
    /// The flow of an Ethernet frame; `None` if it is not IP or its IP header is cut or wrong.
    /// Every fragment of a packet, the first one too, has ports 0, so that all of them are in
    /// one flow.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let (untagged, network) = network(frame).ok()?;
        Self::of_network(&untagged, &network)
    }

    /// Flow key of a frame that [`network_on`](crate::network_on) has parsed.
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

/// Source and destination port, the first four bytes of TCP and UDP alike; 0 where they are cut.
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
