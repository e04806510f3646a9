//! ICMP and `ICMPv6` in a line: `ICMP echo request, id 1, seq 1, length 64`.

use std::fmt;

use super::Line;
use super::internet::Packet;
use crate::icmp::{self, Icmp};
use crate::icmpv6::{self, Icmpv6};
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::protocol::ip;

impl Line<'_> {
    pub(super) fn icmp(&mut self, packet: &Packet<'_>) -> fmt::Result {
        self.out.write_str("ICMP ")?;
        self.header(Icmp::parse(packet.payload), |line, message| line.icmp_message(packet, &message))?;
        write!(self.out, ", length {}", packet.payload_len)
    }

    fn icmp_message(&mut self, packet: &Packet<'_>, icmp: &Icmp<'_>) -> fmt::Result {
        match icmp.message() {
            icmp::Message::Echo { reply, id, sequence } => self.echo(reply, id, sequence),
            icmp::Message::Unreachable { code, mtu } => self.unreachable(packet, icmp, code, mtu),
            icmp::Message::Redirect { code, gateway } => self.redirect(icmp, code, &gateway),
            icmp::Message::TimeExceeded { code: 0 } => self.out.write_str("time exceeded in-transit"),
            icmp::Message::TimeExceeded { code: 1 } => self.out.write_str("ip reassembly time exceeded"),
            icmp::Message::TimeExceeded { code } => write!(self.out, "time exceeded-#{code}"),
            icmp::Message::Other { kind, code } => match icmp_name(kind) {
                Some(name) => self.out.write_str(name),
                None => write!(self.out, "type-#{kind}, code {code}"),
            },
        }
    }

    fn echo(&mut self, reply: bool, id: u16, sequence: u16) -> fmt::Result {
        let what = if reply { "reply" } else { "request" };
        write!(self.out, "echo {what}, id {id}, seq {sequence}")
    }

    /// Writes destination unreachable with the destination of the quoted packet.
    fn unreachable(&mut self, packet: &Packet<'_>, icmp: &Icmp<'_>, code: u8, mtu: u16) -> fmt::Result {
        let Ok(quoted) = Ipv4::parse(icmp.payload()) else {
            return write!(self.out, "{} unreachable, code {code}", packet.destination);
        };
        let target = quoted.destination();
        match code {
            0 => write!(self.out, "net {target} unreachable"),
            1 => write!(self.out, "host {target} unreachable"),
            2 => write!(self.out, "{target} protocol {} unreachable", quoted.protocol()),
            3 => {
                write!(self.out, "{target} ")?;
                self.quoted_port(quoted.protocol(), quoted.payload())?;
                self.out.write_str(" unreachable")
            }
            4 if mtu > 0 => write!(self.out, "{target} unreachable - need to frag (mtu {mtu})"),
            4 => write!(self.out, "{target} unreachable - need to frag"),
            9 | 10 | 13 => write!(self.out, "host {target} unreachable - admin prohibited"),
            code => write!(self.out, "{target} unreachable - #{code}"),
        }
    }

    fn redirect(&mut self, icmp: &Icmp<'_>, code: u8, gateway: &dyn fmt::Display) -> fmt::Result {
        let Ok(quoted) = Ipv4::parse(icmp.payload()) else {
            return write!(self.out, "redirect to {gateway}");
        };
        let what = if code.is_multiple_of(2) { "net" } else { "host" };
        write!(self.out, "redirect {} to {what} {gateway}", quoted.destination())
    }

    /// Writes `udp port 53` for a quoted packet.
    fn quoted_port(&mut self, protocol: u8, transport: &[u8]) -> fmt::Result {
        match ip::name(protocol) {
            Some(name) => write!(self.out, "{name} port")?,
            None => write!(self.out, "protocol {protocol} port")?,
        }
        match transport {
            [_, _, high, low, ..] => write!(self.out, " {}", u16::from_be_bytes([*high, *low])),
            _ => Ok(()),
        }
    }

    pub(super) fn icmpv6(&mut self, packet: &Packet<'_>) -> fmt::Result {
        self.out.write_str("ICMP6, ")?;
        self.header(Icmpv6::parse(packet.payload), |line, message| line.icmpv6_message(&message))?;
        write!(self.out, ", length {}", packet.payload_len)
    }

    fn icmpv6_message(&mut self, icmp: &Icmpv6<'_>) -> fmt::Result {
        use icmpv6::Message;
        match icmp.message() {
            Message::Unreachable { code } => self.unreachable_v6(icmp, code),
            Message::TooBig { mtu } => write!(self.out, "packet too big, mtu {mtu}"),
            Message::TimeExceeded { code: 0 } => self.out.write_str("time exceeded in-transit"),
            Message::TimeExceeded { .. } => self.out.write_str("time exceeded in reassembly"),
            Message::Echo { reply, id, sequence } => self.echo(reply, id, sequence),
            Message::RouterSolicitation => self.out.write_str("router solicitation"),
            Message::RouterAdvertisement => self.out.write_str("router advertisement"),
            Message::NeighborSolicitation { target } => {
                write!(self.out, "neighbor solicitation, who has {target}")
            }
            Message::NeighborAdvertisement { target } => {
                write!(self.out, "neighbor advertisement, tgt is {target}")
            }
            Message::ListenerReport { records } => {
                write!(self.out, "multicast listener report v2, {records} group record(s)")
            }
            Message::Other { kind, code } => match icmpv6_name(kind) {
                Some(name) => self.out.write_str(name),
                None => write!(self.out, "unknown icmp6 type ({kind}), code {code}"),
            },
        }
    }

    fn unreachable_v6(&mut self, icmp: &Icmpv6<'_>, code: u8) -> fmt::Result {
        self.out.write_str("destination unreachable, ")?;
        let quoted = icmp.body().get(4..).and_then(|bytes| Ipv6::parse(bytes).ok());
        let Some(quoted) = quoted else { return write!(self.out, "code {code}") };
        let target = quoted.destination();
        match code {
            0 => write!(self.out, "unreachable route {target}"),
            1 => write!(self.out, "unreachable prohibited {target}"),
            2 => write!(self.out, "beyond scope {target}"),
            3 => write!(self.out, "unreachable address {target}"),
            4 => {
                write!(self.out, "unreachable port, {target} ")?;
                match quoted.upper() {
                    Ok(upper) => self.quoted_port(upper.protocol, upper.payload),
                    Err(error) => self.broken(error),
                }
            }
            code => write!(self.out, "unknown unreach code ({code}) {target}"),
        }
    }
}

fn icmp_name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        4 => "source quench",
        9 => "router advertisement",
        10 => "router solicitation",
        12 => "parameter problem",
        13 => "time stamp query",
        14 => "time stamp reply",
        17 => "address mask request",
        18 => "address mask reply",
        _ => return None,
    })
}

fn icmpv6_name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        4 => "parameter problem",
        130 => "multicast listener query",
        131 => "multicast listener report",
        132 => "multicast listener done",
        137 => "redirect",
        _ => return None,
    })
}
