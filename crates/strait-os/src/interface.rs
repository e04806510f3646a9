//! Snapshot of a network interface: index, MTU, MAC address, flags, queues, NUMA node.
//!
//! Capture, injection and the programs look up their interface here before they open anything. An
//! [`Interface`] does not follow changes and makes none.

use std::fs;
use std::path::{Path, PathBuf};

use strait_sys::link_type;
use strait_sys::netdevice;

use crate::Result;
use crate::ethtool::Ethtool;
use crate::netlink::Netlink;

/// `IF_OPER_UP` (linux/if.h).
const IF_OPER_UP: u8 = 6;

/// linux/if_arp.h
const ARPHRD_RAWIP: u16 = 519;

/// Network interface of the calling thread's network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Name in the kernel.
    pub name: String,
    /// Index in its namespace.
    pub index: u32,
    /// Maximum bytes of a packet without its link header.
    pub mtu: u32,
    /// Maximum MTU of the driver; 0 means no limit.
    pub mtu_max: u32,
    /// MAC address; zero if the link has none.
    pub mac: [u8; 6],
    /// `IFF_*` (`netdevice(7)`).
    pub flags: u32,
    /// RFC 2863 operational state (`IF_OPER_*` of linux/if.h): 6 is up, 0 means that the driver
    /// does not report it.
    pub operational_state: u8,
    /// `ARPHRD_*` (linux/if_arp.h): 1 is Ethernet, 772 is loopback.
    pub hardware_type: u16,
    /// Receive queues that the driver has allocated; [`Interface::queues`] returns those in use.
    pub rx_queues: u32,
    /// Transmit queues that the driver has allocated.
    pub tx_queues: u32,
}

/// Numbers of queues in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Receive queues.
    pub rx: u32,
    /// Transmit queues.
    pub tx: u32,
}

impl Interface {
    /// Returns the bytes of the longest Ethernet frame that the kernel sends here, without or with
    /// an 802.1Q tag. The kernel makes no allowance for other tags (af_packet.c
    /// `packet_extra_vlan_len_allowed`).
    pub fn frame_bytes_max(&self, tagged: bool) -> usize {
        const HEADER: usize = 14;
        const TAG: usize = 4;
        self.mtu as usize + HEADER + if tagged { TAG } else { 0 }
    }

    /// Looks up the interface `name` in the calling thread's namespace. Returns
    /// [`Kind::Usage`](crate::Kind::Usage) if there is none.
    pub fn find(name: &str) -> Result<Self> {
        Netlink::open()?.interface(name)
    }

    /// Returns the pseudo-interface of packet sockets for all interfaces: index 0.
    pub fn any() -> Self {
        Self { name: "any".into(), ..Self::default() }
    }

    /// Returns the indices of all interfaces of the calling thread's namespace (`if_nameindex(3)`).
    pub fn indices() -> Result<Vec<u32>> {
        netdevice::indices()
    }

    /// Returns true if it is administratively up (`IFF_UP`).
    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    /// Returns true if frames can be sent: up, with a carrier, queues active. A link reaches this
    /// state shortly after it is set up; frames sent before are lost.
    pub fn is_running(&self) -> bool {
        self.is_up() && (self.operational_state == IF_OPER_UP || self.is_loopback())
    }

    /// Returns true if it is the loopback (`IFF_LOOPBACK`).
    pub fn is_loopback(&self) -> bool {
        self.flags & libc::IFF_LOOPBACK as u32 != 0
    }

    /// Returns true if its frames begin with an Ethernet header, as the loopback's do.
    pub fn is_ethernet(&self) -> bool {
        matches!(self.hardware_type, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK)
    }

    /// Returns the `LINKTYPE_*` of pcap for frames of a raw packet socket: 1 is Ethernet, 101 an IP
    /// packet without a link header (tun, WireGuard, cellular modems). `None` for links of another
    /// kind.
    pub fn link_type(&self) -> Option<u32> {
        match self.hardware_type {
            _ if self.is_ethernet() => Some(link_type::ETHERNET),
            libc::ARPHRD_NONE | ARPHRD_RAWIP => Some(link_type::RAW),
            _ => None,
        }
    }

    /// Returns the queues in use: the driver's channels, or all allocated queues if the driver does
    /// not report channels.
    pub fn queues(&self) -> Result<Queues> {
        let all = Queues { rx: self.rx_queues.max(1), tx: self.tx_queues.max(1) };
        match Ethtool::open(&self.name)?.channels() {
            Ok(channels) => Ok(Queues {
                rx: (channels.rx + channels.combined).clamp(1, all.rx),
                tx: (channels.tx + channels.combined).clamp(1, all.tx),
            }),
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => Ok(all),
            Err(error) => Err(error),
        }
    }

    /// Returns its directory in sysfs (Documentation/ABI/testing/sysfs-class-net). `None` if the
    /// mounted sysfs shows another network namespace, and for the loopback, which looks identical
    /// in every namespace.
    pub fn sysfs(&self) -> Option<PathBuf> {
        let directory = Path::new("/sys/class/net").join(&self.name);
        (!self.is_loopback() && self.is_shown_at(&directory)).then_some(directory)
    }

    /// Returns the NUMA node of the NIC; `None` for virtual links and machines with one node.
    pub fn numa_node(&self) -> Option<u32> {
        read(&self.sysfs()?, "device/numa_node")?.trim().parse().ok()
    }

    /// Returns true if `directory` shows this interface. sysfs shows the namespace that mounted it,
    /// in which the name may belong to another interface.
    fn is_shown_at(&self, directory: &Path) -> bool {
        let index = read(directory, "ifindex").and_then(|text| text.trim().parse().ok());
        index == Some(self.index) && read(directory, "address").is_some_and(|text| self.has_mac(&text))
    }

    fn has_mac(&self, text: &str) -> bool {
        let bytes = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
        bytes.eq(self.mac.iter().copied().map(Some))
    }
}

fn read(directory: &Path, file: &str) -> Option<String> {
    fs::read_to_string(directory.join(file)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn the_loopback_is_found() {
        let lo = Interface::find("lo").unwrap();
        assert_eq!((lo.name.as_str(), lo.mac, lo.hardware_type), ("lo", [0; 6], libc::ARPHRD_LOOPBACK));
        assert!(lo.index > 0 && lo.mtu > 0 && lo.is_loopback() && lo.is_ethernet());
        assert_eq!(lo.queues().unwrap(), Queues { rx: 1, tx: 1 });
        assert_eq!((lo.numa_node(), lo.sysfs()), (None, None));
    }

    #[test]
    fn sysfs_entry_of_another_namespace_is_ignored() {
        let names = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
        for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
            let Ok(here) = Interface::find(&name) else { continue };
            let elsewhere = Interface { index: here.index + 1, ..here.clone() };
            let replaced = Interface { mac: [2, 0, 0, 0, 0xde, 0xad], ..here };
            assert_eq!((elsewhere.sysfs(), replaced.sysfs()), (None, None), "{name}");
        }
    }

    #[test]
    fn unknown_name_is_a_usage_error_with_a_remedy() {
        for name in ["strait-none0", &"x".repeat(127)] {
            let error = Interface::find(name).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage);
            assert!(error.to_string().contains("no such interface; `ip link` lists them"), "{error}");
        }
    }

    #[test]
    fn invalid_names_are_refused() {
        for name in ["", "a/b", "a b", "nul\0", &"x".repeat(128)] {
            assert_eq!(Interface::find(name).unwrap_err().kind(), Kind::Usage, "{name:?}");
        }
    }

    #[test]
    fn a_mac_address_is_compared_as_sysfs_prints_it() {
        let interface = Interface { mac: [2, 0, 0xab, 0, 0, 1], ..Interface::default() };
        assert!(interface.has_mac("02:00:ab:00:00:01\n"));
        assert!(
            !interface.has_mac("02:00:ab:00:00:02\n")
                && !interface.has_mac("02:00:ab")
                && !interface.has_mac("")
        );
    }
}
