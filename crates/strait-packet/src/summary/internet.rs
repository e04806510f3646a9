//! `IP 10.0.0.1.4242 > 10.0.0.2.53: ...` and `IP6 ...`: the IP layer of a line.

use std::fmt;
use std::net::IpAddr;

use super::{DEPTH_MAX, Line};
use crate::error::{Error, Header};
use crate::ipv4::Ipv4;
use crate::ipv6::{Extension, Ipv6};
use crate::protocol::ip;

/// Fields of the IP header for the transport layer.
#[derive(Clone, Copy)]
pub(super) struct Packet<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: u8,
    pub(super) is_fragment: bool,
    /// Captured part of the payload.
    pub(super) payload: &'a [u8],
    /// Length of the payload on the wire.
    pub(super) payload_len: usize,
    /// True if the line already has the addresses.
    pub(super) addressed: bool,
}

impl Line<'_> {
    pub(super) fn ipv4(&mut self, bytes: &[u8]) -> fmt::Result {
        self.out.write_str("IP ")?;
        self.deeper(|line| line.header(Ipv4::parse(bytes), |line, packet| line.ipv4_packet(&packet)))
    }

    pub(super) fn ipv6(&mut self, bytes: &[u8]) -> fmt::Result {
        self.out.write_str("IP6 ")?;
        self.deeper(|line| line.header(Ipv6::parse(bytes), |line, packet| line.ipv6_packet(&packet)))
    }

    /// Parses a nested IP header, up to the limit of nesting.
    fn deeper(&mut self, write: impl FnOnce(&mut Self) -> fmt::Result) -> fmt::Result {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return self.broken(Error::TooMany { header: Header::Ipv4, limit: DEPTH_MAX as usize });
        }
        write(self)
    }

    /// Writes `(tos 0x0, ttl 64, id 1, offset 0, flags [DF], proto UDP (17), length 46)` and a
    /// second line, as tcpdump -v does.
    fn ipv4_fields(&mut self, packet: &Ipv4<'_>) -> fmt::Result {
        let flags = match (packet.dont_fragment(), packet.more_fragments()) {
            (true, true) => "+, DF",
            (true, false) => "DF",
            (false, true) => "+",
            (false, false) => "none",
        };
        let (tos, ttl, id) = (packet.tos(), packet.ttl(), packet.identification());
        let offset = packet.fragment_offset();
        write!(self.out, "(tos {tos:#x}, ttl {ttl}, id {id}, offset {offset}, flags [{flags}], proto ")?;
        self.header_name(packet.protocol())?;
        write!(self.out, " ({}), length {}", packet.protocol(), packet.total_len())?;
        if !packet.checksum_holds() {
            write!(self.out, ", bad cksum {:x}", packet.checksum())?;
        }
        self.out.write_str(")\n    ")
    }

    fn ipv6_fields(&mut self, packet: &Ipv6<'_>) -> fmt::Result {
        self.out.write_char('(')?;
        if packet.traffic_class() != 0 {
            write!(self.out, "class {:#04x}, ", packet.traffic_class())?;
        }
        if packet.flow_label() != 0 {
            write!(self.out, "flowlabel {:#07x}, ", packet.flow_label())?;
        }
        write!(self.out, "hlim {}, next-header ", packet.hop_limit())?;
        self.header_name(packet.next_header())?;
        write!(self.out, " ({}) payload length: {}) ", packet.next_header(), packet.payload_len())
    }

    fn ipv4_packet(&mut self, packet: &Ipv4<'_>) -> fmt::Result {
        if self.detail.verbose {
            self.ipv4_fields(packet)?;
        }
        let carried = Packet {
            source: packet.source().into(),
            destination: packet.destination().into(),
            protocol: packet.protocol(),
            is_fragment: packet.is_fragment(),
            payload: packet.payload(),
            payload_len: packet.payload_len(),
            addressed: false,
        };
        if packet.fragment_offset() > 0 {
            self.addresses(&carried)?;
            self.protocol_name(carried.protocol)?;
        } else {
            self.upper(carried)?;
        }
        if !packet.is_fragment() {
            return Ok(());
        }
        let (id, len, offset) = (packet.identification(), packet.payload_len(), packet.fragment_offset());
        let more = if packet.more_fragments() { "+" } else { "" };
        write!(self.out, " (frag {id}:{len}@{offset}{more})")
    }

    fn ipv6_packet(&mut self, packet: &Ipv6<'_>) -> fmt::Result {
        if self.detail.verbose {
            self.ipv6_fields(packet)?;
        }
        let mut extensions = packet.extensions();
        let mut carried = Packet {
            source: packet.source().into(),
            destination: packet.destination().into(),
            protocol: packet.next_header(),
            is_fragment: false,
            payload: packet.payload(),
            payload_len: packet.payload_len(),
            addressed: false,
        };
        for extension in extensions.by_ref() {
            if !carried.addressed {
                self.addresses(&carried)?;
                carried.addressed = true;
            }
            match extension {
                Ok(extension) => self.extension(&extension)?,
                Err(error) => return self.broken(error),
            }
        }
        let upper = extensions.upper();
        carried.protocol = upper.protocol;
        carried.is_fragment = upper.fragment.is_some();
        (carried.payload, carried.payload_len) = (upper.payload, upper.payload_len);
        match upper.fragment {
            Some(fragment) if fragment.offset > 0 => self.protocol_name(upper.protocol)?,
            _ => self.upper(carried)?,
        }
        let Some(fragment) = upper.fragment else { return Ok(()) };
        let (id, len, offset) = (fragment.identification, upper.payload_len, fragment.offset);
        let more = if fragment.more { "+" } else { "" };
        write!(self.out, " (frag {id}:{len}@{offset}{more})")
    }

    fn extension(&mut self, extension: &Extension<'_>) -> fmt::Result {
        match (extension.kind, extension.bytes) {
            (ip::HOP_BY_HOP, _) => self.out.write_str("HBH "),
            (ip::DESTINATION_OPTIONS, _) => self.out.write_str("DSTOPT "),
            (ip::ROUTING, [_, len, kind, left, ..]) => {
                write!(self.out, "srcrt (len={len}, type={kind}, segleft={left}) ")
            }
            (ip::FRAGMENT, _) => Ok(()),
            (ip::AUTHENTICATION, _) => self.out.write_str("AH "),
            (ip::MOBILITY, _) => self.out.write_str("mobility "),
            (kind, _) => write!(self.out, "ext-hdr-{kind} "),
        }
    }

    fn upper(&mut self, packet: Packet<'_>) -> fmt::Result {
        match packet.protocol {
            ip::TCP => return self.tcp(&packet),
            ip::UDP => return self.udp(&packet),
            _ => self.addresses(&packet)?,
        }
        match packet.protocol {
            ip::ICMP => self.icmp(&packet),
            ip::ICMPV6 => self.icmpv6(&packet),
            ip::IPV4 => self.ipv4(packet.payload),
            ip::IPV6 => self.ipv6(packet.payload),
            ip::NO_NEXT => self.out.write_str("no next header"),
            protocol => {
                self.protocol_name(protocol)?;
                write!(self.out, ", length {}", packet.payload_len)
            }
        }
    }

    /// Writes `source > destination: `, unless the line already has it.
    pub(super) fn addresses(&mut self, packet: &Packet<'_>) -> fmt::Result {
        if packet.addressed {
            return Ok(());
        }
        write!(self.out, "{} > {}: ", packet.source, packet.destination)
    }

    /// Returns the name of a protocol as tcpdump writes it in the fields of an IP header: in
    /// capitals.
    fn header_name(&mut self, protocol: u8) -> fmt::Result {
        match (protocol, ip::name(protocol)) {
            (ip::ICMPV6, _) => self.out.write_str("ICMPv6"),
            (_, Some(name)) => self.out.write_str(&name.to_ascii_uppercase()),
            (_, None) => self.out.write_str("unknown"),
        }
    }

    fn protocol_name(&mut self, protocol: u8) -> fmt::Result {
        match ip::name(protocol) {
            Some(name) => self.out.write_str(name),
            None => write!(self.out, "ip-proto-{protocol}"),
        }
    }
}
