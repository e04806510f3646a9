//! `SIOCETHTOOL`: information from a driver, and the offloads that change captured frames.
//!
//! The probes of the engines and the doctor read queue counts, ring sizes and the driver's name;
//! the test rigs switch offloads. Structures mirror linux/ethtool.h. A driver without a call
//! returns EOPNOTSUPP, which is [`crate::Kind::Refused`]. Nothing here resets hardware or changes
//! link settings.

pub mod parse;

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use strait_sys::netdevice::{
    self, CMD_WORDS, DRVINFO_WORDS, ETH_SS_FEATURES, ETHTOOL_GCHANNELS, ETHTOOL_GDRVINFO, ETHTOOL_GFEATURES,
    ETHTOOL_GFLAGS, ETHTOOL_GRINGPARAM, ETHTOOL_GRXFHINDIR, ETHTOOL_GSET, ETHTOOL_GSSET_INFO,
    ETHTOOL_GSTRINGS, FEATURE_BLOCK_WORDS, FEATURES_MAX, STRING_WORDS, ethtool,
};

use crate::name::check_name;
use crate::{Error, Kind, Result};

/// Maximum number of RSS table entries to read; the largest NICs have 2048.
const RSS_ENTRIES_MAX: usize = 4096;

/// Handle on one interface's driver, in the namespace where it was opened.
#[derive(Debug)]
pub struct Ethtool {
    fd: OwnedFd,
    name: String,
}

/// Queues in use (`ETHTOOL_GCHANNELS`); a combined channel has one of each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Receive-only channels.
    pub rx: u32,
    /// Transmit-only channels.
    pub tx: u32,
    /// Combined channels.
    pub combined: u32,
    /// Maximum receive-only channels of the driver.
    pub rx_max: u32,
    /// Maximum combined channels of the driver.
    pub combined_max: u32,
}

/// Descriptor ring sizes (`ETHTOOL_GRINGPARAM`), in descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    /// Current receive ring.
    pub rx: u32,
    /// Maximum receive ring.
    pub rx_max: u32,
    /// Current transmit ring.
    pub tx: u32,
    /// Maximum transmit ring.
    pub tx_max: u32,
}

/// Driver of the interface (`ETHTOOL_GDRVINFO`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// Driver name: `veth`, `ice`, `virtio_net`, ...
    pub name: String,
    /// Driver version, usually the kernel's.
    pub version: String,
    /// Firmware version; often empty.
    pub firmware: String,
    /// Bus address of the device, for example on PCI; empty for virtual links.
    pub bus: String,
}

/// Offload that can be switched (`ETHTOOL_G...`/`ETHTOOL_S...` with an `ethtool_value`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// The device verifies receive checksums.
    RxChecksum,
    /// The device fills in transmit checksums; veth leaves them unfilled.
    TxChecksum,
    /// The device sends frames from several buffers.
    ScatterGather,
    /// The device segments TCP.
    Tso,
    /// The kernel segments just before the device.
    Gso,
    /// The kernel joins received segments: a capture then sees packets longer than the MTU.
    Gro,
}

/// Offloads that change received frames (`ETHTOOL_GFLAGS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The NIC joins TCP segments.
    pub lro: bool,
    /// The NIC removes VLAN tags from frames.
    pub rx_vlan: bool,
}

impl Offload {
    /// Returns the commands to get and set it.
    fn commands(self) -> (u32, u32) {
        match self {
            Self::RxChecksum => (netdevice::ETHTOOL_GRXCSUM, netdevice::ETHTOOL_SRXCSUM),
            Self::TxChecksum => (netdevice::ETHTOOL_GTXCSUM, netdevice::ETHTOOL_STXCSUM),
            Self::ScatterGather => (netdevice::ETHTOOL_GSG, netdevice::ETHTOOL_SSG),
            Self::Tso => (netdevice::ETHTOOL_GTSO, netdevice::ETHTOOL_STSO),
            Self::Gso => (netdevice::ETHTOOL_GGSO, netdevice::ETHTOOL_SGSO),
            Self::Gro => (netdevice::ETHTOOL_GGRO, netdevice::ETHTOOL_SGRO),
        }
    }

    /// Returns the names of its features in the kernel (net/ethtool/common.c).
    fn features(self) -> &'static [&'static str] {
        match self {
            Self::RxChecksum => &["rx-checksum"],
            Self::TxChecksum => &["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"],
            Self::ScatterGather => &["tx-scatter-gather"],
            Self::Tso => &["tx-tcp-segmentation"],
            Self::Gso => &["tx-generic-segmentation"],
            Self::Gro => &["rx-gro"],
        }
    }

    /// Returns its name for `ethtool -K`.
    pub fn key(self) -> &'static str {
        match self {
            Self::RxChecksum => "rx",
            Self::TxChecksum => "tx",
            Self::ScatterGather => "sg",
            Self::Tso => "tso",
            Self::Gso => "gso",
            Self::Gro => "gro",
        }
    }
}

impl Ethtool {
    /// Opens a handle for interface `name` of the calling thread's namespace. Each call looks the
    /// name up again.
    pub fn open(name: &str) -> Result<Self> {
        check_name(name)?;
        if name.len() >= libc::IFNAMSIZ {
            let cause = "an alternative name; use the primary name of the interface";
            return Err(Error::new(Kind::Usage, "ethtool", name, cause));
        }
        let flags = SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)
            .map_err(|errno| Error::os("open", "control socket", errno.raw_os_error()))?;
        Ok(Self { fd, name: name.into() })
    }

    /// Returns the queues in use.
    pub fn channels(&self) -> Result<Channels> {
        parse::channels(&self.words::<1, 9>([ETHTOOL_GCHANNELS])?)
    }

    /// Returns the descriptor ring sizes.
    pub fn rings(&self) -> Result<Rings> {
        parse::rings(&self.words::<1, 9>([ETHTOOL_GRINGPARAM])?)
    }

    /// Returns the offloads that change received frames.
    pub fn flags(&self) -> Result<Flags> {
        parse::flags(&self.words::<1, 2>([ETHTOOL_GFLAGS])?)
    }

    /// Returns the NIC's RSS table: a receive queue for each entry.
    pub fn rss_table(&self) -> Result<Vec<u32>> {
        let [_, entries] = self.words([ETHTOOL_GRXFHINDIR])?;
        let entries = (entries as usize).min(RSS_ENTRIES_MAX);
        let mut words = vec![0; 2 + entries];
        (words[0], words[1]) = (ETHTOOL_GRXFHINDIR, entries as u32);
        self.call(&mut words)?;
        Ok(words.split_off(2))
    }

    /// Returns the driver's name and versions.
    pub fn driver(&self) -> Result<Driver> {
        parse::driver(&self.words::<1, DRVINFO_WORDS>([ETHTOOL_GDRVINFO])?)
    }

    /// Returns the speed of the link in bits per second; none if the driver does not know it, as
    /// without a carrier.
    pub fn speed_bps(&self) -> Result<Option<u64>> {
        parse::speed_bps(&self.words::<1, CMD_WORDS>([ETHTOOL_GSET])?)
    }

    /// Returns true if `offload` is on.
    pub fn offload(&self, offload: Offload) -> Result<bool> {
        let [_, on] = self.words([offload.commands().0])?;
        Ok(on != 0)
    }

    /// Switches `offload`. Needs `CAP_NET_ADMIN`.
    pub fn set_offload(&self, offload: Offload, on: bool) -> Result<()> {
        let _: [u32; 2] = self.words([offload.commands().1, u32::from(on)])?;
        Ok(())
    }

    /// Returns true if the driver cannot switch `offload`.
    pub fn is_fixed(&self, offload: Offload) -> Result<bool> {
        let names = self.feature_names()?;
        let blocks = names.len().div_ceil(u32::BITS as usize);
        let mut words = vec![0; 2 + FEATURE_BLOCK_WORDS * blocks];
        (words[0], words[1]) = (ETHTOOL_GFEATURES, blocks as u32);
        self.call(&mut words)?;
        parse::is_fixed(offload, &names, &words)
    }

    /// Returns the names of the feature bits, which the kernel defines for all drivers.
    fn feature_names(&self) -> Result<Vec<String>> {
        let [_, _, _, _, count]: [u32; 5] = self.words([ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0])?;
        let mut words = vec![0; 3 + STRING_WORDS * FEATURES_MAX];
        words[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, parse::feature_count(count)?]);
        self.call(&mut words)?;
        parse::strings(&words)
    }

    /// Sends the first words of a command and returns its whole structure.
    fn words<const IN: usize, const OUT: usize>(&self, input: [u32; IN]) -> Result<[u32; OUT]> {
        let mut words = [0; OUT];
        words[..IN].copy_from_slice(&input);
        self.call(&mut words)?;
        Ok(words)
    }

    /// Calls `ioctl(fd, SIOCETHTOOL, words)`, with the command in the first word.
    fn call(&self, words: &mut [u32]) -> Result<()> {
        ethtool(self.fd.as_fd(), &self.name, words).map_err(explain)
    }
}

fn explain(error: Error) -> Error {
    match error.errno() {
        Some(libc::EPERM) => error.remedy("needs CAP_NET_ADMIN: run as root"),
        Some(libc::ENODEV) => error.remedy("no such interface; `ip link` lists them"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_offloads_and_no_channels() {
        let lo = Ethtool::open("lo").unwrap();
        assert!(lo.offload(Offload::Gso).unwrap() && !lo.is_fixed(Offload::Gso).unwrap());
        assert!(lo.offload(Offload::ScatterGather).unwrap() && lo.is_fixed(Offload::ScatterGather).unwrap());
        assert_eq!(lo.channels().unwrap_err().kind(), Kind::Refused);
        assert_eq!(lo.rings().unwrap_err().errno(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn an_unknown_interface_is_a_usage_error() {
        let none = Ethtool::open("strait-none0").unwrap();
        assert_eq!(none.driver().unwrap_err().kind(), Kind::Usage);
        assert_eq!(Ethtool::open("sixteen-letters-").unwrap_err().kind(), Kind::Usage);
    }
}
