//! `ARP, Request who-has 10.0.0.2 tell 10.0.0.1, length 28`.

use std::fmt;

use super::Line;
use crate::arp::{Arp, Operation};
use crate::ethernet::MacAddress;

impl Line<'_> {
    /// Writes an ARP packet; `len` is its length on the wire, with padding.
    pub(super) fn arp(&mut self, bytes: &[u8], len: usize) -> fmt::Result {
        self.out.write_str("ARP, ")?;
        self.header(Arp::parse(bytes), |line, packet| line.arp_packet(packet, len))
    }

    fn arp_packet(&mut self, packet: Arp<'_>, len: usize) -> fmt::Result {
        let (sender, target) = (packet.sender(), packet.target());
        match packet.operation() {
            Operation::Request => {
                write!(self.out, "Request who-has {target}")?;
                if packet.target_mac() != MacAddress::default() {
                    write!(self.out, " ({})", packet.target_mac())?;
                }
                write!(self.out, " tell {sender}")?;
            }
            Operation::Reply => write!(self.out, "Reply {sender} is-at {}", packet.sender_mac())?,
            Operation::Other(code) => write!(self.out, "Unknown ({code})")?,
        }
        write!(self.out, ", length {len}")
    }
}
