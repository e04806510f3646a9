//! The device by which packets to an address leave, and what it lacks to take them from a program's pages.
//!
//! A device without scatter-gather or checksum offload has the kernel copy what was lent to it. That is not always
//! reported: cutting a long packet into segments for such a device copies them and tells nobody (`skb_segment` of
//! net/core/skbuff.c). So the sender asks here before it lends, and the doctor to tell why a send was copied.

use std::net::{IpAddr, SocketAddr};

use crate::error::Result;
use crate::ethtool::{Ethtool, Offload};
use crate::interface::Interface;
use crate::netlink::Netlink;

/// A device by which packets leave.
#[derive(Debug)]
pub struct Egress {
    /// The device.
    pub interface: Interface,
    /// Its driver.
    pub ethtool: Ethtool,
    /// Whether the packets are for an address of this machine's own.
    pub is_local: bool,
}

impl Egress {
    /// The device for packets to `to`, which `from` may decide together with it (ip-rule(8)). Looked up in the calling
    /// thread's namespace.
    ///
    /// # Errors
    /// There is no route.
    pub fn find(from: Option<IpAddr>, to: SocketAddr) -> Result<Self> {
        let mut netlink = Netlink::open()?;
        // A socket for both versions of IP writes addresses of version 4 in those of version 6.
        let mapped = to.ip().to_canonical();
        let to = if mapped == to.ip() { to } else { SocketAddr::new(mapped, to.port()) };
        let route = netlink.route(from.map(|from| from.to_canonical()), to)?;
        let interface = netlink.interface_at(route.index)?;
        let ethtool = Ethtool::open(&interface.name)?;
        Ok(Self { interface, ethtool, is_local: route.is_local })
    }

    /// Which offloads are off and have the kernel copy what is lent to it, in the order in which they are to be switched on.
    pub fn missing(&self) -> Result<Vec<Offload>> {
        let mut missing = Vec::new();
        for offload in [Offload::ScatterGather, Offload::TxChecksum] {
            if !self.ethtool.offload(offload)? {
                missing.push(offload);
            }
        }
        Ok(missing)
    }

    /// Whether the device takes a packet from several places. Where it does not, the kernel copies what is lent to it,
    /// and may not say so.
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
    fn a_device_tells_what_it_lacks() {
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
