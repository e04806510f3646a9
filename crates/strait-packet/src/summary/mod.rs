//! One line of text for a packet, as tcpdump prints it.
//!
//! `capture` without `-w` prints these. The form follows `tcpdump -n`: numeric addresses, and TCP
//! sequence numbers that are absolute, or relative with a table of connections. Intended
//! differences:
//! VLAN tags are always shown, fragments end in `(frag id:length@offset)`, and messages of some
//! applications follow the length of the payload. Any bytes result in
//! a line: it ends with `[|tcp]` for a header that is cut, and with `[bad field value]` for a
//! malformed one. Bytes from the network are never written raw: names are escaped.

mod application;
mod arp;
mod dns;
mod dump;
mod icmp;
mod internet;
mod sequences;
mod time;
mod transport;

use std::fmt::{self, Write};

use crate::error::{Error, Result};
use crate::ethernet::{self, Ethernet};
use crate::link;
use crate::protocol::ether_type;
use crate::vlan::{Tag, Untagged};

pub use self::sequences::{CONNECTIONS_MAX, Sequences};
pub use self::time::{write_date_time, write_elapsed, write_epoch, write_time};
pub use dump::{Dump, write_dump};

/// Supported link types: the numbers of pcap files (`LINKTYPE_*`). strait-sys and strait-pcapng
/// have those that they need; a test of strait-capture compares them.
pub mod link_type {
    /// BSD loopback: four bytes of address family in the writer's byte order.
    pub const NULL: u16 = 0;
    /// Ethernet.
    pub const ETHERNET: u16 = 1;
    /// IPv4 or IPv6 without a link header.
    pub const RAW: u16 = 101;
    /// `OpenBSD` loopback: as [`NULL`] in network byte order.
    pub const LOOP: u16 = 108;
    /// Linux "any" device, first form: 16 bytes.
    pub const LINUX_SLL: u16 = 113;
    /// IPv4 without a link header.
    pub const IPV4: u16 = 228;
    /// IPv6 without a link header.
    pub const IPV6: u16 = 229;
    /// Linux "any" device, second form: 20 bytes.
    pub const LINUX_SLL2: u16 = 276;

    /// Returns true for the headers of the Linux "any" device.
    pub fn is_cooked(link_type: u32) -> bool {
        [LINUX_SLL, LINUX_SLL2].map(u32::from).contains(&link_type)
    }

    /// Returns libpcap's `DLT_*` number of a link type. They differ for types that systems number
    /// differently (pcap-linktype(7)).
    pub fn dlt(link_type: u32) -> i32 {
        const DLT_RAW: i32 = 12;
        if link_type == u32::from(RAW) { DLT_RAW } else { link_type as i32 }
    }
}

/// Options for parsing the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Link header of the frame: one of [`link_type`].
    pub link_type: u16,
    /// VLAN tag that the kernel removed from the frame.
    pub tag: Option<Tag>,
}

impl Default for Options {
    /// Returns the options for an Ethernet frame as on the wire.
    fn default() -> Self {
        Self { link_type: link_type::ETHERNET, tag: None }
    }
}

/// Detail of a line, named after tcpdump's options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// `-e`: MAC addresses, Ethernet type and length of the frame.
    pub link: bool,
    /// `-v`: the fields of the IP header. For IPv4 the rest of the packet is on a second line.
    pub verbose: bool,
    /// `-q`: no fields of transport headers.
    pub quick: bool,
}

/// Writes the line for `frame`, without time and without a newline. `wire_len` is the frame's
/// length on the wire in bytes; `frame` may be only the start of it. Fails only if `out` does.
pub fn write(out: &mut impl Write, frame: &[u8], wire_len: u32, options: &Options) -> fmt::Result {
    write_detailed(out, frame, wire_len, options, Detail::default())
}

/// Like [`write()`], with more or less detail.
pub fn write_detailed(
    out: &mut impl Write,
    frame: &[u8],
    wire_len: u32,
    options: &Options,
    detail: Detail,
) -> fmt::Result {
    let wire_len = (wire_len as usize).max(frame.len());
    let mut line = Line { out, depth: 0, detail, sequences: None };
    line.link(frame, wire_len, *options)
}

/// Like [`write_detailed`], with TCP sequence numbers relative to those in `sequences`.
pub fn write_relative(
    out: &mut impl Write,
    frame: &[u8],
    wire_len: u32,
    options: &Options,
    detail: Detail,
    sequences: &mut Sequences,
) -> fmt::Result {
    let wire_len = (wire_len as usize).max(frame.len());
    let mut line = Line { out, depth: 0, detail, sequences: Some(sequences) };
    line.link(frame, wire_len, *options)
}

/// Returns the length of the link header of `frame` in bytes, without VLAN tags.
pub fn link_header_len(link_type: u16, frame: &[u8]) -> usize {
    let len = if link_type == link_type::ETHERNET {
        ethernet::HEADER_LEN
    } else {
        link::header_without_addresses(link_type, frame).map_or(0, |(_, len)| len)
    };
    len.min(frame.len())
}

/// Limit of nested IP headers.
const DEPTH_MAX: u32 = 4;

/// A line being written.
struct Line<'o> {
    out: &'o mut dyn Write,
    /// IP headers passed so far.
    depth: u32,
    detail: Detail,
    /// Table for relative sequence numbers; none for absolute ones.
    sequences: Option<&'o mut Sequences>,
}

impl Line<'_> {
    fn link(&mut self, frame: &[u8], wire_len: usize, options: Options) -> fmt::Result {
        if let Some(tag) = options.tag {
            self.tag(tag)?;
        }
        if options.link_type == link_type::ETHERNET {
            return self.ethernet(frame, wire_len);
        }
        let Some((ether_type, header_len)) = link::header_without_addresses(options.link_type, frame) else {
            return write!(self.out, "link type {}, length {wire_len}", options.link_type);
        };
        match (ether_type, frame.get(header_len..)) {
            (Some(ether_type), Some(payload)) => {
                self.tagged(None, ether_type, payload, wire_len - header_len, wire_len)
            }
            _ => self.out.write_str("[|link]"),
        }
    }

    fn ethernet(&mut self, frame: &[u8], wire_len: usize) -> fmt::Result {
        match Ethernet::parse(frame) {
            Ok(header) => {
                let payload_len = wire_len - ethernet::HEADER_LEN;
                self.tagged(Some(header), header.ether_type(), header.payload(), payload_len, wire_len)
            }
            Err(error) => self.broken(error),
        }
    }

    /// Writes the tags and the network layer after them. `payload_len` is the number of bytes after
    /// the link header on the wire.
    fn tagged(
        &mut self,
        link: Option<Ethernet<'_>>,
        ether_type: u16,
        payload: &[u8],
        payload_len: usize,
        wire_len: usize,
    ) -> fmt::Result {
        let untagged = match Untagged::parse(ether_type, payload) {
            Ok(untagged) => untagged,
            Err(error) => return self.broken(error),
        };
        if self.detail.link
            && let Some(header) = link
        {
            write!(self.out, "{} > {}, ", header.source(), header.destination())?;
            self.announce(ether_type)?;
            write!(self.out, ", length {wire_len}: ")?;
        }
        untagged.tags().iter().try_for_each(|tag| self.tag(*tag))?;
        let network_len = payload_len - (payload.len() - untagged.payload().len());
        match untagged.ether_type() {
            ether_type::ARP => self.arp(untagged.payload(), network_len),
            ether_type::IPV4 => self.ipv4(untagged.payload()),
            ether_type::IPV6 => self.ipv6(untagged.payload()),
            other => self.unknown(link, other, untagged.payload(), wire_len),
        }
    }

    /// Writes `ethertype IPv4 (0x0800)`, or `802.3` for a frame with a length in the type field.
    fn announce(&mut self, ether_type: u16) -> fmt::Result {
        match ether_type::name(ether_type) {
            Some(name) => write!(self.out, "ethertype {name} (0x{ether_type:04x})"),
            None if ether_type < ether_type::MIN => self.out.write_str("802.3"),
            None => write!(self.out, "ethertype 0x{ether_type:04x}"),
        }
    }

    fn tag(&mut self, tag: Tag) -> fmt::Result {
        let eligible = if tag.drop_eligible() { "DEI, " } else { "" };
        write!(self.out, "vlan {}, p {}, {eligible}", tag.id(), tag.priority())
    }

    /// Writes a frame of another type: addresses, type, length.
    fn unknown(
        &mut self,
        link: Option<Ethernet<'_>>,
        ether_type: u16,
        payload: &[u8],
        wire_len: usize,
    ) -> fmt::Result {
        if let Some(header) = link.filter(|_| !self.detail.link) {
            write!(self.out, "{} > {}, ", header.source(), header.destination())?;
        }
        match (ether_type::name(ether_type), payload) {
            (Some(name), _) => write!(self.out, "ethertype {name} (0x{ether_type:04x})")?,
            (None, [destination, source, ..]) if ether_type < ether_type::MIN => {
                write!(self.out, "802.3, dsap 0x{destination:02x}, ssap 0x{source:02x}")?;
            }
            (None, _) if ether_type < ether_type::MIN => self.out.write_str("802.3, [|llc]")?,
            (None, _) => write!(self.out, "ethertype 0x{ether_type:04x}")?,
        }
        write!(self.out, ", length {wire_len}")
    }

    /// Ends a line before an unreadable header.
    fn broken(&mut self, error: Error) -> fmt::Result {
        match error {
            Error::Truncated { header, .. } => write!(self.out, "[|{header}]"),
            Error::Invalid { field, value, .. } => write!(self.out, "[bad {field} {value}]"),
            Error::TooMany { header, .. } => write!(self.out, "[too many {header} headers]"),
            other => write!(self.out, "[{other}]"),
        }
    }

    /// Writes the result of `parsed`, or its error.
    fn header<T>(
        &mut self,
        parsed: Result<T>,
        write: impl FnOnce(&mut Self, T) -> fmt::Result,
    ) -> fmt::Result {
        match parsed {
            Ok(header) => write(self, header),
            Err(error) => self.broken(error),
        }
    }
}
