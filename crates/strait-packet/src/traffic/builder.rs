//! Options of the traffic generator, checked once before the first frame.
//!
//! Addresses are in the ranges reserved for benchmarks, so that stray frames reach no host:
//! 198.18.0.0/15 (RFC 2544) and 2001:2::/48 (RFC 5180).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::sizes::{FCS_LEN, Sizes};
use super::template::{Bases, FrameTemplate, Kind};
use super::{FLOW_LOW_BITS, Traffic};
use crate::error::Error;
use crate::ethernet::MacAddress;
use crate::vlan::VLAN_ID_MAX;

/// Maximum number of flows: up to this number all flows differ, and their addresses and ports stay
/// in their ranges.
pub const FLOWS_MAX: u32 = 1 << 20;

/// Number of source ports.
const SOURCE_PORTS: u64 = 1 << FLOW_LOW_BITS;

/// Number of destination ports.
const DESTINATION_PORTS: u64 = (FLOWS_MAX >> FLOW_LOW_BITS) as u64;

/// Source and destination of flow 0.
const ADDRESSES_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 19, 0, 1)];
pub(super) const ADDRESSES_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 2, 0, 2, 0, 0, 0, 1)];

/// Options of the traffic generator. Each is set by the method with its name.
#[derive(Clone, Debug)]
pub struct TrafficBuilder {
    pub(super) source_mac: MacAddress,
    pub(super) destination_mac: MacAddress,
    pub(super) vlan: Option<u16>,
    source_port: u16,
    destination_port: u16,
    kinds: Vec<Kind>,
    sizes: Sizes,
    flows: u32,
}

impl Default for TrafficBuilder {
    fn default() -> Self {
        Self {
            source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
            vlan: None,
            source_port: 49_152,
            destination_port: 20_000,
            kinds: vec![Kind::Udp4],
            sizes: Sizes::default(),
            flows: 1,
        }
    }
}

impl TrafficBuilder {
    /// Sets the MAC addresses. Default 02:00:00:00:00:01 to 02:00:00:00:00:02.
    #[must_use]
    pub fn macs(mut self, source: MacAddress, destination: MacAddress) -> Self {
        (self.source_mac, self.destination_mac) = (source, destination);
        self
    }

    /// Tags every frame with this VLAN identifier, 0 to 4094. Sizes include the tag. Default none.
    #[must_use]
    pub fn vlan(mut self, id: Option<u16>) -> Self {
        self.vlan = id;
        self
    }

    /// Sets the ports of flow 0. The ranges of the flows, 16,384 source ports and 64 destination
    /// ports, must end at 65,535 or below. Default 49152 to 20000.
    #[must_use]
    pub fn ports(mut self, source: u16, destination: u16) -> Self {
        (self.source_port, self.destination_port) = (source, destination);
        self
    }

    /// Sets the kinds of frames; flows use them in turn. Default [`Kind::Udp4`].
    #[must_use]
    pub fn kinds(mut self, kinds: &[Kind]) -> Self {
        self.kinds = kinds.to_vec();
        self
    }

    /// Sets the frame sizes. A size too small for a kind's headers and the probe is raised.
    /// Default 64.
    #[must_use]
    pub fn sizes(mut self, sizes: Sizes) -> Self {
        self.sizes = sizes;
        self
    }

    /// Sets the number of flows, 1 to [`FLOWS_MAX`]. Default 1.
    #[must_use]
    pub fn flows(mut self, flows: u32) -> Self {
        self.flows = flows;
        self
    }

    /// Checks the options and builds the templates.
    pub fn build(self) -> Result<Traffic, Error> {
        self.check()?;
        let mut distinct: Vec<u16> = self.sizes.slots().to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let place = |size: &u16| distinct.partition_point(|other| other < size) as u16;
        let slots = self.sizes.slots().iter().map(place).collect();
        let template = |kind: Kind, size: u16| FrameTemplate::new(&self, kind, usize::from(size) - FCS_LEN);
        let of_kind = |kind: &Kind| distinct.iter().map(|size| template(*kind, *size)).collect::<Vec<_>>();
        let templates = self.kinds.iter().flat_map(of_kind).collect();
        let (kinds, flows) = (self.kinds.len() as u32, self.flows);
        Ok(Traffic { templates, slots, sizes: distinct.len(), kinds, flows })
    }

    fn check(&self) -> Result<(), Error> {
        let last = u64::from(self.flows.saturating_sub(1));
        let source_port_max = 65_536 - SOURCE_PORTS.min(last + 1);
        let destination_port_max = 65_536 - DESTINATION_PORTS.min((last >> FLOW_LOW_BITS) + 1);
        let vlan = u64::from(self.vlan.unwrap_or(0));
        let (kinds, kinds_max) = (self.kinds.len() as u64, Kind::ALL.len() as u64);
        in_range("number of flows", u64::from(self.flows), 1, u64::from(FLOWS_MAX))?;
        in_range("source port", u64::from(self.source_port), 0, source_port_max)?;
        in_range("destination port", u64::from(self.destination_port), 0, destination_port_max)?;
        in_range("VLAN identifier", vlan, 0, u64::from(VLAN_ID_MAX))?;
        in_range("number of frame kinds", kinds, 1, kinds_max)
    }

    /// Returns the values of flow 0 of `kind` in the fields that vary by flow.
    pub(super) fn bases(&self, kind: Kind) -> Bases {
        let [source_address, destination_address] = if kind.is_v6() {
            ADDRESSES_V6.map(|address| address.to_bits() as u32)
        } else {
            ADDRESSES_V4.map(Ipv4Addr::to_bits)
        };
        let (source_port, destination_port) = (self.source_port, self.destination_port);
        Bases { source_address, destination_address, source_port, destination_port }
    }
}

fn in_range(what: &'static str, value: u64, min: u64, max: u64) -> Result<(), Error> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(Error::OutOfRange { what, value, min, max }) }
}
