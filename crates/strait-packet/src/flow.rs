//! Which flow a packet belongs to: the five-tuple and the VLAN.
//!
//! The flow sink counts by it, and the agreement tests compare order within it. The hash is symmetric: both
//! directions of a connection give the same value, on every machine and in every run.

use std::fmt;
use std::net::IpAddr;

use rapidhash::v3::rapidhash_v3;

use crate::link::network;
use crate::protocol::ip;

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

/// Bytes of an endpoint as it is hashed: an IPv6 (or mapped IPv4) address and a port.
const ENDPOINT_LEN: usize = 18;

impl FlowKey {
    /// The flow of an Ethernet frame; `None` if it is not IP or its IP header is cut or wrong. Every
    /// fragment of a packet, the first one too, has ports 0, so that all of them are in one flow.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let (untagged, network) = network(frame).ok()?;
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

    /// The same flow with another VLAN: for a tag that the kernel took off the frame.
    #[must_use]
    pub fn with_vlan(self, vlan: Option<u16>) -> Self {
        Self { vlan, ..self }
    }

    /// The same flow seen from the other end.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { source: self.destination, destination: self.source, ..self }
    }

    /// One key for both directions: the lower endpoint comes first.
    #[must_use]
    pub fn canonical(self) -> Self {
        if self.source <= self.destination { self } else { self.reversed() }
    }

    /// A 64-bit hash, the same for both directions.
    pub fn symmetric_hash(&self) -> u64 {
        let (one, other) = (self.source.bytes(), self.destination.bytes());
        let (low, high) = if one <= other { (one, other) } else { (other, one) };
        let mut bytes = [0u8; 2 * ENDPOINT_LEN + 3];
        bytes[..ENDPOINT_LEN].copy_from_slice(&low);
        bytes[ENDPOINT_LEN..2 * ENDPOINT_LEN].copy_from_slice(&high);
        let [vlan_high, vlan_low] = self.vlan.map_or(u16::MAX, |id| id).to_be_bytes();
        bytes[2 * ENDPOINT_LEN..].copy_from_slice(&[self.protocol, vlan_high, vlan_low]);
        rapidhash_v3(&bytes)
    }
}

impl Endpoint {
    fn bytes(&self) -> [u8; ENDPOINT_LEN] {
        let address = match self.address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let mut bytes = [0; ENDPOINT_LEN];
        bytes[..16].copy_from_slice(&address.octets());
        bytes[16..].copy_from_slice(&self.port.to_be_bytes());
        bytes
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
