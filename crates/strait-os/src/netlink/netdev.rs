//! XDP features of a driver, from the generic netlink family `netdev` (Linux 6.3).
//!
//! The query needs no privilege and changes nothing, unlike a trial attachment of a program.
//! Layouts: linux/netdev.h, linux/genetlink.h.

use super::message::{Message, malformed};
use super::{Netlink, Protocol, REQUEST};
use crate::Result;

/// `NETLINK_GENERIC`.
const GENERIC: u32 = 16;
/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_NAME`, `CTRL_ATTR_FAMILY_ID`.
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_NAME: u16 = 2;
const FAMILY_ID: u16 = 1;
/// `NETDEV_CMD_DEV_GET`, `NETDEV_A_DEV_IFINDEX`, `NETDEV_A_DEV_XDP_FEATURES`,
/// `NETDEV_A_DEV_XDP_RX_METADATA_FEATURES`.
const DEVICE_GET: u8 = 1;
const INDEX: u16 = 1;
const FEATURES: u16 = 3;
const METADATA_FEATURES: u16 = 5;
/// `struct genlmsghdr`.
const HEADER_LEN: usize = 4;

/// XDP features of a driver that concern capture (`enum netdev_xdp_act`, `enum
/// netdev_xdp_rx_metadata`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpAbilities {
    /// The driver runs XDP programs itself.
    pub native: bool,
    /// XDP programs can redirect frames, to AF_XDP sockets too.
    pub redirect: bool,
    /// AF_XDP works without copies.
    pub zero_copy: bool,
    /// Metadata that a program can request of a frame; `None` if the kernel does not report it
    /// (before Linux 6.8).
    pub metadata: Option<XdpMetadata>,
}

/// Metadata that a driver provides to an XDP program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpMetadata {
    /// Time at which the NIC received the frame.
    pub timestamp: bool,
    /// Flow hash.
    pub hash: bool,
    /// VLAN tag that the NIC removed.
    pub vlan_tag: bool,
}

/// Returns the XDP features of link `index`.
///
/// # Errors
/// If the kernel is too old to report them.
pub fn xdp_abilities(index: u32) -> Result<XdpAbilities> {
    let mut netlink = Netlink::with_protocol(Protocol::from_raw(GENERIC.try_into().expect("not 0")).into())?;
    let mut request = netlink.request(CONTROLLER, REQUEST, &[GET_FAMILY, 1, 0, 0]);
    request.attribute_str(FAMILY_NAME, "netdev");
    let family = netlink.get(&mut request, "find", "generic netlink family netdev", parse_family)?;
    let mut request = netlink.request(family, REQUEST, &[DEVICE_GET, 1, 0, 0]);
    request.attribute_u32(INDEX, index);
    netlink.get(&mut request, "read the XDP features of", &super::subject(index), parse)
}

pub(super) fn parse_family(message: Message<'_>) -> Result<u16> {
    let id = message.attributes(HEADER_LEN)?.find(FAMILY_ID)?;
    let id = id.and_then(|id| id.first_chunk()).ok_or_else(|| malformed("a family without an id"))?;
    Ok(u16::from_ne_bytes(*id))
}

pub(super) fn parse(message: Message<'_>) -> Result<XdpAbilities> {
    let bits = |kind| -> Result<Option<u64>> {
        let value = message.attributes(HEADER_LEN)?.find(kind)?;
        Ok(value.and_then(|value| value.first_chunk()).map(|&value| u64::from_ne_bytes(value)))
    };
    let features = bits(FEATURES)?.unwrap_or(0);
    let has = |bit: u32| features & 1 << bit != 0;
    let metadata = bits(METADATA_FEATURES)?.map(|bits| XdpMetadata {
        timestamp: bits & 1 != 0,
        hash: bits & 2 != 0,
        vlan_tag: bits & 4 != 0,
    });
    Ok(XdpAbilities { native: has(0), redirect: has(1), zero_copy: has(3), metadata })
}
