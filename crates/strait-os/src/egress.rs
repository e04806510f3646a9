//! Egress device for an address, and the offloads that it lacks for sends without a copy.
//!
//! For a device without scatter-gather or checksum offload the kernel copies the pages of a
//! zero-copy send. It does not always report that: segmenting a long packet for such a device
//! copies silently (`skb_segment` of net/core/skbuff.c). The sender therefore checks here before
//! it uses zero-copy, and the doctor uses it to explain copied sends.

use std::net::{IpAddr, SocketAddr};

use crate::Result;
use crate::ethtool::{Ethtool, Offload};
use crate::interface::Interface;
use crate::netlink::Netlink;

/// Device by which packets leave.
#[derive(Debug)]
pub struct Egress {
    /// The device.
    pub interface: Interface,
    /// Its driver.
    pub ethtool: Ethtool,
    /// True if the address belongs to this machine.
    pub is_local: bool,
}

impl Egress {
    /// Finds the device for packets to `to` in the calling thread's namespace. Routing rules may
    /// depend on `from` (ip-rule(8)).
    ///
    /// # Errors
    /// If there is no route.
    pub fn find(from: Option<IpAddr>, to: SocketAddr) -> Result<Self> {
        let mut netlink = Netlink::open()?;
        // A dual-stack socket has IPv4 addresses in IPv6-mapped form.
        let mapped = to.ip().to_canonical();
        let to = if mapped == to.ip() { to } else { SocketAddr::new(mapped, to.port()) };
        let route = netlink.route(from.map(|from| from.to_canonical()), to)?;
        let interface = netlink.interface_at(route.index)?;
        let ethtool = Ethtool::open(&interface.name)?;
        Ok(Self { interface, ethtool, is_local: route.is_local })
    }

    /// Returns the missing offloads that make the kernel copy zero-copy sends, in the order in
    /// which to switch them on.
    pub fn missing(&self) -> Result<Vec<Offload>> {
        let mut missing = Vec::new();
        for offload in [Offload::ScatterGather, Offload::TxChecksum] {
            if !self.ethtool.offload(offload)? {
                missing.push(offload);
            }
        }
        Ok(missing)
    }

    /// Returns true if the device sends a packet from several buffers (scatter-gather). Otherwise
    /// the kernel copies zero-copy sends, possibly without reporting it.
    pub fn gathers(&self) -> Result<bool> {
        self.ethtool.offload(Offload::ScatterGather)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::VethEnd;
    use crate::netns::Namespace;

    #[test]
    fn missing_offloads_are_reported() {
        let here = match Namespace::new() {
            Ok(here) => here,
            Err(error) => return eprintln!("SKIP egress: {error}"),
        };
        here.run(|| {
            let mut netlink = Netlink::open().unwrap();
            netlink.add_veth(&VethEnd::new("left"), &VethEnd::new("right")).unwrap();
            let [lo, left] = ["lo", "left"].map(|name| netlink.interface(name).unwrap().index);
            netlink.set_up(lo, true).unwrap();
            netlink.set_up(left, true).unwrap();
            netlink.add_address(left, [192, 0, 2, 1].into(), 24).unwrap();
            let own = IpAddr::from([192, 0, 2, 1]);
            let neighbour = SocketAddr::from(([192, 0, 2, 7], 9));
            let egress = Egress::find(Some(own), neighbour).unwrap();
            assert_eq!((&*egress.interface.name, egress.is_local), ("left", false));
            assert!(egress.gathers().unwrap() && egress.missing().unwrap().is_empty());
            egress.ethtool.set_offload(Offload::ScatterGather, false).unwrap();
            assert!(!egress.gathers().unwrap());
            assert_eq!(egress.missing().unwrap(), [Offload::ScatterGather]);
            let mapped = SocketAddr::from(([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x0207], 9));
            assert_eq!(Egress::find(None, mapped).unwrap().interface.name, "left");
            assert!(Egress::find(None, (own, 9).into()).unwrap().is_local);
            assert!(Egress::find(None, ([192, 0, 3, 1], 9).into()).is_err());
        })
        .unwrap();
    }
}
