//! TCP and UDP in a line: `Flags [S], seq 1, win 64240, options [mss 1460], length 0`.

use std::fmt;

use super::Line;
use super::internet::Packet;
use super::sequences::Numbers;
use crate::tcp::{Tcp, TcpOption, flags};
use crate::udp::{self, Udp};

/// Letters of the flags, in the order of output.
const FLAGS: [(u16, char); 9] = [
    (flags::FIN, 'F'),
    (flags::SYN, 'S'),
    (flags::RST, 'R'),
    (flags::PSH, 'P'),
    (flags::ACK, '.'),
    (flags::URG, 'U'),
    (flags::ECE, 'E'),
    (flags::CWR, 'W'),
    (flags::AE, 'e'),
];

/// UDP ports with DNS payload: unicast and multicast.
const DNS_PORTS: [u16; 2] = [53, 5353];

impl Line<'_> {
    pub(super) fn tcp(&mut self, packet: &Packet<'_>) -> fmt::Result {
        self.ports(packet)?;
        self.header(Tcp::parse(packet.payload), |line, segment| {
            line.segment(packet, &segment, packet.payload_len.saturating_sub(segment.header_len()))
        })
    }

    pub(super) fn udp(&mut self, packet: &Packet<'_>) -> fmt::Result {
        self.ports(packet)?;
        self.header(Udp::parse(packet.payload), |line, datagram| line.datagram(packet, &datagram))
    }

    /// Writes `source.port > destination.port: `, without ports if they are cut, and without
    /// addresses if the line already has them.
    fn ports(&mut self, packet: &Packet<'_>) -> fmt::Result {
        let Some(&[a, b, c, d]) = packet.payload.first_chunk() else { return self.addresses(packet) };
        let (source, destination) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        if packet.addressed {
            return write!(self.out, "{source} > {destination}: ");
        }
        write!(self.out, "{}.{source} > {}.{destination}: ", packet.source, packet.destination)
    }

    fn segment(&mut self, packet: &Packet<'_>, segment: &Tcp<'_>, len: usize) -> fmt::Result {
        let numbers = match &mut self.sequences {
            Some(sequences) => sequences.numbers(packet, segment),
            None => Numbers::absolute(segment),
        };
        if self.detail.quick {
            return write!(self.out, "tcp {len}");
        }
        let bits = segment.flags();
        self.flags(bits)?;
        if len > 0 || bits & (flags::SYN | flags::FIN | flags::RST) != 0 {
            write!(self.out, ", seq {}", numbers.sequence)?;
            if len > 0 {
                write!(self.out, ":{}", numbers.sequence.wrapping_add(len as u32))?;
            }
        }
        if bits & flags::ACK != 0 {
            write!(self.out, ", ack {}", numbers.acknowledgment)?;
        }
        write!(self.out, ", win {}", segment.window())?;
        if bits & flags::URG != 0 {
            write!(self.out, ", urg {}", segment.urgent())?;
        }
        self.options(segment, numbers.edge)?;
        write!(self.out, ", length {len}")?;
        self.stream_application(within(segment.payload(), len))
    }

    fn flags(&mut self, bits: u16) -> fmt::Result {
        self.out.write_str("Flags [")?;
        if bits == 0 {
            self.out.write_str("none")?;
        }
        for (_, letter) in FLAGS.iter().filter(|(bit, _)| bits & bit != 0) {
            self.out.write_char(*letter)?;
        }
        self.out.write_char(']')
    }

    fn options(&mut self, segment: &Tcp<'_>, edge: u32) -> fmt::Result {
        let mut before = ", options [";
        for option in segment.options() {
            self.out.write_str(before)?;
            self.header(option, |line, option| line.option(option, edge))?;
            before = ",";
        }
        if before == "," { self.out.write_char(']') } else { Ok(()) }
    }

    fn option(&mut self, option: TcpOption<'_>, edge: u32) -> fmt::Result {
        match option {
            TcpOption::End => self.out.write_str("eol"),
            TcpOption::Nop => self.out.write_str("nop"),
            TcpOption::MaximumSegment(bytes) => write!(self.out, "mss {bytes}"),
            TcpOption::WindowScale(shift) => write!(self.out, "wscale {shift}"),
            TcpOption::SackPermitted => self.out.write_str("sackOK"),
            TcpOption::Sack(edges) => self.sack(edges, edge),
            TcpOption::Timestamps { value, echo } => write!(self.out, "TS val {value} ecr {echo}"),
            TcpOption::Other { kind, data } => {
                write!(self.out, "unknown-{kind}")?;
                if !data.is_empty() {
                    self.out.write_str(" 0x")?;
                }
                data.iter().try_for_each(|byte| write!(self.out, "{byte:02x}"))
            }
        }
    }

    /// Writes the edges of the blocks, relative to `origin`.
    fn sack(&mut self, edges: &[u8], origin: u32) -> fmt::Result {
        let (edges, _) = edges.as_chunks::<4>();
        let (blocks, _) = edges.as_chunks::<2>();
        write!(self.out, "sack {} ", blocks.len())?;
        blocks.iter().try_for_each(|[left, right]| {
            let [left, right] = [left, right].map(|edge| u32::from_be_bytes(*edge).wrapping_sub(origin));
            write!(self.out, "{{{left}:{right}}}")
        })
    }

    fn datagram(&mut self, packet: &Packet<'_>, datagram: &Udp<'_>) -> fmt::Result {
        let room = packet.payload_len.saturating_sub(udp::HEADER_LEN);
        let len = match usize::from(datagram.len()) {
            0 => room,
            len => len - udp::HEADER_LEN,
        };
        let is_dns =
            DNS_PORTS.contains(&datagram.source_port()) || DNS_PORTS.contains(&datagram.destination_port());
        if is_dns && !self.detail.quick && len <= room && self.dns(datagram.payload(), len)? {
            return Ok(());
        }
        if len > room && !packet.is_fragment {
            return write!(self.out, "UDP, bad length {len} > {room}");
        }
        write!(self.out, "UDP, length {len}")?;
        if self.detail.quick || len > room {
            return Ok(());
        }
        self.datagram_application(
            within(datagram.payload(), len),
            [datagram.source_port(), datagram.destination_port()],
        )
    }
}

/// Returns the payload without the padding of a frame.
fn within(payload: &[u8], len: usize) -> &[u8] {
    payload.get(..len).unwrap_or(payload)
}
