//! Parsers of the kernel's replies about a link: identity, counters, attached XDP program.
//!
//! Only `netlink` uses the parsers; the types are public. Layouts: linux/if_link.h. No I/O here.

use super::message::{Attributes, Message, malformed, read_u32};
use crate::Result;
use crate::interface::Interface;

/// `sizeof(struct ifinfomsg)`.
const IFINFOMSG_LEN: usize = 16;
/// `sizeof(struct if_stats_msg)`.
const IF_STATS_MSG_LEN: usize = 12;
/// `IFLA_CARRIER_DOWN_COUNT`, and a flag of linux/if.h, which libc does not have for musl.
const IFLA_CARRIER_DOWN_COUNT: u16 = 48;
const IFF_LOWER_UP: u32 = 1 << 16;
/// `RTM_NEWSTATS`.
const RTM_NEWSTATS: u16 = 92;
/// `IFLA_STATS_LINK_64`, and the bit that requests it (`IFLA_STATS_FILTER_BIT`).
const IFLA_STATS_LINK_64: u16 = 1;
pub(super) const STATS_FILTER: u32 = 1 << (IFLA_STATS_LINK_64 - 1);
/// Fields of `struct rtnl_link_stats64` in Linux 5.15; later kernels append.
const STATS_FIELDS: usize = 24;
/// `IFLA_XDP_*`.
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;

/// `struct rtnl_link_stats64`: a link's counters, in packets unless the name contains bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the kernel's; linux/if_link.h describes each")]
pub struct LinkStats {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
    pub multicast: u64,
    pub collisions: u64,
    pub rx_length_errors: u64,
    pub rx_over_errors: u64,
    pub rx_crc_errors: u64,
    pub rx_frame_errors: u64,
    pub rx_fifo_errors: u64,
    pub rx_missed_errors: u64,
    pub tx_aborted_errors: u64,
    pub tx_carrier_errors: u64,
    pub tx_fifo_errors: u64,
    pub tx_heartbeat_errors: u64,
    pub tx_window_errors: u64,
    pub rx_compressed: u64,
    pub tx_compressed: u64,
    pub rx_nohandler: u64,
}

/// State of a link at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkReading {
    /// True if it is set up (`IFF_UP`).
    pub is_up: bool,
    /// True if it is set up and has a carrier (`IFF_LOWER_UP`).
    pub has_carrier: bool,
    /// Number of carrier losses since the link was created (`IFLA_CARRIER_DOWN_COUNT`); wraps
    /// around.
    pub carrier_downs: u32,
    /// Bytes of the longest packet without its link header (`IFLA_MTU`).
    pub mtu: u32,
}

/// Mode of an attached XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver (`XDP_ATTACHED_DRV`).
    Native,
    /// After the driver has created an skb (`XDP_ATTACHED_SKB`).
    Generic,
    /// On the NIC itself (`XDP_ATTACHED_HW`).
    Offloaded,
    /// Several at once (`XDP_ATTACHED_MULTI`).
    Several,
}

impl XdpMode {
    /// Returns the command that detaches a program without a bpf_link. ip-link(8) has a word for
    /// each mode; plain `xdp off` covers one mode only.
    pub fn detach_command(self, interface: &str) -> String {
        let words: &[&str] = match self {
            Self::Native => &["xdpdrv"],
            Self::Generic => &["xdpgeneric"],
            Self::Offloaded => &["xdpoffload"],
            Self::Several => &["xdpdrv", "xdpgeneric", "xdpoffload"],
        };
        let commands = words.iter().map(|word| format!("ip link set {interface} {word} off"));
        commands.collect::<Vec<_>>().join("; ")
    }
}

/// XDP program on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpAttachment {
    /// Mode of attachment.
    pub mode: XdpMode,
    /// The program's id, as shown by `bpftool prog`; the first if there are several.
    pub program_id: u32,
}

pub(super) fn parse_interface(message: Message<'_>) -> Result<Interface> {
    let attributes = link_attributes(message)?;
    let [_, _, type_low, type_high, rest @ ..] = message.body else {
        return Err(malformed("a truncated link header"));
    };
    let field = |at| read_u32(rest, at).ok_or_else(|| malformed("a truncated link header"));
    let mut interface = Interface {
        index: field(0)?,
        flags: field(4)?,
        hardware_type: u16::from_ne_bytes([*type_low, *type_high]),
        ..Interface::default()
    };
    for attribute in attributes {
        let (kind, value) = attribute?;
        let number = || read_u32(value, 0).ok_or_else(|| malformed("a truncated 32-bit attribute"));
        match kind {
            libc::IFLA_IFNAME => interface.name = Attributes::text(value),
            libc::IFLA_OPERSTATE => interface.operational_state = value.first().copied().unwrap_or_default(),
            libc::IFLA_MTU => interface.mtu = number()?,
            libc::IFLA_MAX_MTU => interface.mtu_max = number()?,
            libc::IFLA_NUM_RX_QUEUES => interface.rx_queues = number()?,
            libc::IFLA_NUM_TX_QUEUES => interface.tx_queues = number()?,
            libc::IFLA_ADDRESS => interface.mac = value.try_into().unwrap_or_default(),
            _ => {}
        }
    }
    Ok(interface)
}

pub(super) fn parse_reading(message: Message<'_>) -> Result<LinkReading> {
    let flags = read_u32(message.body, 8).ok_or_else(|| malformed("a truncated link header"))?;
    let attributes = || message.attributes(IFINFOMSG_LEN);
    let downs = attributes()?.find_u32(IFLA_CARRIER_DOWN_COUNT)?;
    let mtu = attributes()?.find_u32(libc::IFLA_MTU)?;
    Ok(LinkReading {
        is_up: flags & libc::IFF_UP as u32 != 0,
        has_carrier: flags & IFF_LOWER_UP != 0,
        carrier_downs: downs.unwrap_or_default(),
        mtu: mtu.unwrap_or_default(),
    })
}

pub(super) fn parse_stats(message: Message<'_>) -> Result<LinkStats> {
    if message.kind != RTM_NEWSTATS {
        return Err(malformed("not a link's counters"));
    }
    let value = message.attributes(IF_STATS_MSG_LEN)?.find(IFLA_STATS_LINK_64)?;
    let value = value.ok_or_else(|| malformed("no counters in the reply"))?;
    let (fields, _) = value.as_chunks::<8>();
    let fields: &[[u8; 8]; STATS_FIELDS] =
        fields.first_chunk().ok_or_else(|| malformed("fewer counters than Linux 5.15 has"))?;
    let mut fields = fields.iter().map(|field| u64::from_ne_bytes(*field));
    let mut next = || fields.next().expect("as many fields as the structure has, checked above");
    Ok(LinkStats {
        rx_packets: next(),
        tx_packets: next(),
        rx_bytes: next(),
        tx_bytes: next(),
        rx_errors: next(),
        tx_errors: next(),
        rx_dropped: next(),
        tx_dropped: next(),
        multicast: next(),
        collisions: next(),
        rx_length_errors: next(),
        rx_over_errors: next(),
        rx_crc_errors: next(),
        rx_frame_errors: next(),
        rx_fifo_errors: next(),
        rx_missed_errors: next(),
        tx_aborted_errors: next(),
        tx_carrier_errors: next(),
        tx_fifo_errors: next(),
        tx_heartbeat_errors: next(),
        tx_window_errors: next(),
        rx_compressed: next(),
        tx_compressed: next(),
        rx_nohandler: next(),
    })
}

pub(super) fn parse_xdp(message: Message<'_>) -> Result<Option<XdpAttachment>> {
    let Some(nested) = link_attributes(message)?.find(libc::IFLA_XDP)? else { return Ok(None) };
    let nested = Attributes(nested);
    let mode = match nested.find(IFLA_XDP_ATTACHED)?.and_then(<[u8]>::first) {
        None | Some(0) => return Ok(None),
        Some(1) => XdpMode::Native,
        Some(2) => XdpMode::Generic,
        Some(3) => XdpMode::Offloaded,
        Some(_) => XdpMode::Several,
    };
    for kind in [IFLA_XDP_PROG_ID, IFLA_XDP_DRV_PROG_ID, IFLA_XDP_SKB_PROG_ID, IFLA_XDP_HW_PROG_ID] {
        if let Some(program_id) = nested.find_u32(kind)? {
            return Ok(Some(XdpAttachment { mode, program_id }));
        }
    }
    Err(malformed("an XDP program without an id"))
}

fn link_attributes(message: Message<'_>) -> Result<Attributes<'_>> {
    if message.kind != libc::RTM_NEWLINK {
        return Err(malformed("not a link"));
    }
    message.attributes(IFINFOMSG_LEN)
}
