//! Content of a capture file: packets, interfaces and their statistics, in the same types for both
//! formats.
//!
//! Encoders take records and the decoder lends them. They borrow every byte and string.

use std::fmt;

use crate::bytes::Order;

/// One captured packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Nanoseconds since the epoch.
    pub timestamp_ns: u64,
    /// The captured bytes, at most [`SNAPLEN_MAX`](crate::SNAPLEN_MAX).
    pub bytes: &'a [u8],
    /// Length on the wire in bytes; never less than `bytes.len()` when read from a file.
    pub wire_len: u32,
    /// Number of the interface: within the section for an encoder, counted through the whole file
    /// by the decoder.
    pub interface: u32,
    /// Direction of the packet, if the file has it.
    pub direction: Option<Direction>,
    /// Receive queue of the interface, if the file has it.
    pub queue: Option<u32>,
    /// First comment on the packet, if the file has one. An encoder cuts it to
    /// [`COMMENT_BYTES_MAX`](crate::COMMENT_BYTES_MAX).
    pub comment: Option<&'a str>,
}

/// Direction of a packet as seen from the capturing host (pcapng s4.3.1, bits 0 and 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received by the host.
    In,
    /// Sent by the host.
    Out,
}

/// Writer of a section: hardware, system, program (pcapng s4.1). `None` leaves the option out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Section<'a> {
    /// The hardware, for example `x86_64`.
    pub hardware: Option<&'a str>,
    /// The operating system, for example `Linux 6.1.0`.
    pub os: Option<&'a str>,
    /// The program that writes the file.
    pub application: Option<&'a str>,
    /// Comments. An encoder cuts each to [`COMMENT_BYTES_MAX`](crate::COMMENT_BYTES_MAX); the
    /// decoder lends none.
    pub comments: &'a [String],
}

/// An interface that packets were captured on (pcapng s4.2).
///
/// Strings with invalid UTF-8 are lent up to the first invalid byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interface<'a> {
    /// Link type: the header at the start of each packet.
    pub linktype: LinkType,
    /// Maximum number of captured bytes of a packet; 0 means no limit.
    pub snaplen: u32,
    /// The interface's name, for example `eth0`.
    pub name: Option<&'a str>,
    /// Description for users.
    pub description: Option<&'a str>,
    /// The filter that selected the packets, as text.
    pub filter: Option<&'a str>,
    /// Operating system of the machine with the interface.
    pub os: Option<&'a str>,
    /// Speed of the link in bits per second (`if_speed`).
    pub speed_bps: Option<u64>,
}

/// Counters of an interface (pcapng s4.6). `None` means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of the interface, as in [`Packet::interface`].
    pub interface: u32,
    /// Time at which the counters were read, in nanoseconds since the epoch.
    pub timestamp_ns: u64,
    /// Start of the capture, in nanoseconds since the epoch.
    pub start_ns: Option<u64>,
    /// End of the capture, in nanoseconds since the epoch.
    pub end_ns: Option<u64>,
    /// Packets that the interface received (`isb_ifrecv`).
    pub received: Option<u64>,
    /// Packets that the interface dropped for lack of resources (`isb_ifdrop`).
    pub dropped: Option<u64>,
    /// Packets that the filter accepted (`isb_filteraccept`).
    pub filter_accepted: Option<u64>,
    /// Packets that the operating system dropped (`isb_osdrop`).
    pub os_dropped: Option<u64>,
    /// Packets handed to the user (`isb_usrdeliv`).
    pub delivered: Option<u64>,
}

/// Secrets with which a reader decrypts packets of the section (pcapng s4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secrets<'a> {
    /// Format of the data, as [`Secrets::TLS_KEY_LOG`].
    pub kind: u32,
    /// The secrets, at most [`SECRETS_BYTES_MAX`](crate::SECRETS_BYTES_MAX) bytes.
    pub data: &'a [u8],
}

impl Secrets<'_> {
    /// Lines in the format of NSS key logs (`TLSK`; RFC 9850).
    pub const TLS_KEY_LOG: u32 = 0x544c_534b;
}

/// Names of addresses (pcapng s4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    pub(crate) order: Order,
    /// Whole records, without the one that ends them.
    pub(crate) records: &'a [u8],
}

/// Record of a name resolution block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRecord<'a> {
    /// Kind of the address, as [`NameRecord::IPV4`].
    pub kind: u16,
    /// The address, and its names, each with a zero byte at its end.
    pub value: &'a [u8],
}

impl NameRecord<'_> {
    /// An IPv4 address.
    pub const IPV4: u16 = 1;
    /// An IPv6 address.
    pub const IPV6: u16 = 2;
}

impl<'a> Names<'a> {
    /// Iterates over the records.
    pub fn records(&self) -> impl Iterator<Item = NameRecord<'a>> + use<'a> {
        let Self { order, records } = *self;
        let mut at = 0;
        std::iter::from_fn(move || {
            let head = records.get(at..at + 4)?;
            let (kind, length) = (order.u16(head, 0), usize::from(order.u16(head, 2)));
            let value = records.get(at + 4..at + 4 + length)?;
            at += 4 + length.next_multiple_of(4);
            Some(NameRecord { kind, value })
        })
    }
}

/// A decoded item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A packet, and the link type of its interface.
    Packet {
        /// The packet.
        packet: Packet<'a>,
        /// Link type of its interface.
        linktype: LinkType,
    },
    /// An interface; a pcap file has one, described by its header.
    Interface {
        /// Number of the interface, counted through the whole file.
        index: u32,
        /// Description of the interface in the file.
        interface: Interface<'a>,
    },
    /// Names of addresses.
    Names(Names<'a>),
    /// Secrets for the packets of the section.
    Secrets(Secrets<'a>),
    /// Counts of an interface.
    Statistics(Statistics),
    /// The header of a section, which sets the byte order. Interfaces are numbered from 0 again.
    Section(Section<'a>),
    /// The header of a section with an unknown version; its blocks are skipped (pcapng s3.4).
    UnknownSection {
        /// Major version of the section.
        major: u16,
        /// Minor version of the section.
        minor: u16,
    },
}

/// A link-layer header type of tcpdump.org's registry (draft-ietf-opsawg-pcaplinktype).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: four bytes of address family.
    pub const NULL: Self = Self(0);
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// IPv4 or IPv6 without a link-layer header.
    pub const RAW: Self = Self(101);
    /// Linux "cooked" capture, version 1.
    pub const LINUX_SLL: Self = Self(113);
    /// Linux "cooked" capture, version 2.
    pub const LINUX_SLL2: Self = Self(276);
}

impl Default for LinkType {
    fn default() -> Self {
        Self::ETHERNET
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NULL => f.write_str("NULL"),
            Self::ETHERNET => f.write_str("EN10MB"),
            Self::RAW => f.write_str("RAW"),
            Self::LINUX_SLL => f.write_str("LINUX_SLL"),
            Self::LINUX_SLL2 => f.write_str("LINUX_SLL2"),
            Self(other) => write!(f, "LINKTYPE {other}"),
        }
    }
}
