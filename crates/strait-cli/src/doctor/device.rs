//! What kind of device an interface is: some are only the kernel's own, and their settings mean
//! something else.
//!
//! The findings on joined packets, queues and sends ask here.

use strait_sys::ethtool::Ethtool;
use strait_sys::interface::Interface;

/// How packets come to a device and leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Device {
    /// This machine to itself.
    Loopback,
    /// One end of a pair.
    Veth,
    /// Some program's end: a virtual machine's, a tunnel's.
    Tun,
    /// Some other link that is plugged in nowhere: a bridge, a bond, a VLAN.
    Virtual,
    /// A NIC, of a machine or a virtual one.
    Nic,
}

impl Device {
    pub(super) fn of(interface: &Interface, ethtool: &Ethtool) -> Self {
        match ethtool.driver() {
            _ if interface.is_loopback() => Self::Loopback,
            Err(_) => Self::Virtual,
            Ok(driver) => Self::of_driver(&driver.name, &driver.bus),
        }
    }

    /// Links that are plugged in nowhere say so in place of a bus.
    fn of_driver(driver: &str, bus: &str) -> Self {
        match (driver, bus) {
            ("veth", _) => Self::Veth,
            ("tun", _) | (_, "tun" | "tap") => Self::Tun,
            (_, "" | "N/A") => Self::Virtual,
            _ => Self::Nic,
        }
    }

    /// Whether it is only the kernel's own.
    pub(super) fn is_virtual(self) -> bool {
        self != Self::Nic
    }

    /// Whether each packet that is sent here is copied, for it goes to a receiver of this machine
    /// (the kernel's `skb_orphan_frags`).
    pub(super) fn always_copies(self) -> bool {
        matches!(self, Self::Loopback | Self::Veth | Self::Tun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_virtual_where_it_is_plugged_in_nowhere() {
        assert_eq!(Device::of_driver("veth", ""), Device::Veth);
        assert_eq!(Device::of_driver("tun", "tap"), Device::Tun);
        assert_eq!(Device::of_driver("bridge", "N/A"), Device::Virtual);
        assert_eq!(Device::of_driver("dummy", ""), Device::Virtual);
        assert_eq!(Device::of_driver("virtio_net", "0000:00:03.0"), Device::Nic);
        assert!(!Device::Nic.is_virtual() && !Device::Virtual.always_copies() && Device::Tun.always_copies());
    }
}
