//! The kind of device behind an interface. Offload and queue settings have other effects on a
//! virtual device than on a NIC.
//!
//! The findings on merged packets, queues, XDP and routes use it.

use strait_os::ethtool::Ethtool;
use strait_os::interface::Interface;

/// Kind of a network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Device {
    /// The loopback.
    Loopback,
    /// One end of a veth pair.
    Veth,
    /// A tap or tun device, with a program at its other end: a virtual machine or a tunnel.
    Tun,
    /// Another device without a bus: a bridge, a bond, a VLAN.
    Virtual,
    /// A NIC, physical or emulated.
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

    /// Classifies a driver. Virtual devices report `N/A` or nothing as their bus.
    fn of_driver(driver: &str, bus: &str) -> Self {
        match (driver, bus) {
            ("veth", _) => Self::Veth,
            ("tun", _) | (_, "tun" | "tap") => Self::Tun,
            (_, "" | "N/A") => Self::Virtual,
            _ => Self::Nic,
        }
    }

    /// Returns true for every kind but a NIC.
    pub(super) fn is_virtual(self) -> bool {
        self != Self::Nic
    }

    /// Returns true if the kernel copies every packet that is sent to the device, as its receiver
    /// is on this machine (`skb_orphan_frags` in include/linux/skbuff.h).
    pub(super) fn always_copies(self) -> bool {
        matches!(self, Self::Loopback | Self::Veth | Self::Tun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_without_a_bus_is_virtual() {
        assert_eq!(Device::of_driver("veth", ""), Device::Veth);
        assert_eq!(Device::of_driver("tun", "tap"), Device::Tun);
        assert_eq!(Device::of_driver("bridge", "N/A"), Device::Virtual);
        assert_eq!(Device::of_driver("dummy", ""), Device::Virtual);
        assert_eq!(Device::of_driver("virtio_net", "0000:00:03.0"), Device::Nic);
        assert!(!Device::Nic.is_virtual() && !Device::Virtual.always_copies() && Device::Tun.always_copies());
    }
}
