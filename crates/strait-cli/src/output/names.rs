//! `--names`: names of addresses from the DNS answers in the captured packets.
//!
//! Nothing is looked up. An address has the first name that an answer gives it. A host that can
//! send answers into the network can choose names.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write as _;
use std::net::IpAddr;

use strait_capture::extra::{ExtraBlock, NAMES_MAX};
use strait_packet::dns::{Data, Dns, Name};
use strait_packet::udp::Udp;
use strait_packet::{Network, network_on, protocol::ip};

/// Maximum number of addresses. Later ones get no name.
pub(super) const ADDRESSES_MAX: usize = 65_536;
/// Maximum number of answers that are read of a message.
const ANSWERS_MAX: usize = 64;
/// Source ports of answers: unicast and multicast (RFC 1035 s4.2.1, RFC 6762).
const PORTS: [u16; 2] = [53, 5353];
/// Maximum bytes of a record in a block without the letters of its name.
const RECORD_BYTES_MAX: usize = 24;
/// Class of the Internet. The top bit of the class is a flag of multicast DNS.
const INTERNET: u16 = 1;

/// Names that were found.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: HashSet<IpAddr>,
    /// Names that are not in the file yet.
    fresh: VecDeque<(IpAddr, String)>,
    text: String,
    /// True once an address got no name because of the limit.
    is_full: bool,
    /// True once [`Names::take_full`] has returned that.
    is_full_taken: bool,
}

impl Names {
    /// Reads the answers of a frame, if it has any. Returns true if they have new names.
    pub(super) fn read(&mut self, link_type: u16, frame: &[u8]) -> bool {
        let Some(message) = message(link_type, frame) else { return false };
        let Ok(dns) = Dns::parse(message) else { return false };
        if !dns.is_response() || dns.opcode() != 0 || dns.response_code() != 0 {
            return false;
        }
        let Ok(answers) = dns.answers() else { return false };
        let before = self.fresh.len();
        for answer in answers.take(ANSWERS_MAX).map_while(Result::ok) {
            let address = match answer.data {
                Data::A(address) => IpAddr::V4(address),
                Data::Aaaa(address) => IpAddr::V6(address),
                _ => continue,
            };
            if answer.class & 0x7fff == INTERNET {
                self.add(address, answer.name);
            }
        }
        self.fresh.len() > before
    }

    /// Returns a block with names that are not in the file yet: at most about `bytes_max` bytes,
    /// but at least one name. Call it until it returns `None`.
    pub(super) fn take_block(&mut self, bytes_max: usize) -> Option<ExtraBlock> {
        let mut bytes = 0;
        let fits = |(_, name): &&(IpAddr, String)| {
            bytes += name.len() + RECORD_BYTES_MAX;
            bytes <= bytes_max
        };
        let count = self.fresh.iter().take(NAMES_MAX).take_while(fits).count().max(1);
        if self.fresh.is_empty() {
            return None;
        }
        let block = self.fresh.iter().take(count).map(|(address, name)| (*address, name.as_str()));
        let block = ExtraBlock::names(block);
        self.fresh.drain(..count);
        Some(block)
    }

    /// Returns true once after an address got no name because there are too many.
    pub(super) fn take_full(&mut self) -> bool {
        let is_new = self.is_full && !self.is_full_taken;
        self.is_full_taken |= is_new;
        is_new
    }

    fn add(&mut self, address: IpAddr, name: Name<'_>) {
        if address.is_unspecified() || self.known.contains(&address) {
            return;
        }
        if self.known.len() >= ADDRESSES_MAX {
            self.is_full = true;
            return;
        }
        self.text.clear();
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{name}");
        let name = self.text.strip_suffix('.').unwrap_or(&self.text);
        if is_host(name) {
            self.known.insert(address);
            self.fresh.push_back((address, name.to_owned()));
        }
    }
}

/// Returns true for the usual letters of a host name. Other bytes could mislead the user.
fn is_host(name: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && name.len() < 256 && name.bytes().all(is_usual)
}

/// Returns the payload of a datagram that comes from a port of DNS.
fn message(link_type: u16, frame: &[u8]) -> Option<&[u8]> {
    let (_, network) = network_on(link_type, frame).ok()?;
    let payload = match network {
        Network::Ipv4(packet) if packet.protocol() == ip::UDP && !packet.is_fragment() => packet.payload(),
        Network::Ipv6(_, upper) if upper.protocol == ip::UDP && upper.fragment.is_none() => upper.payload,
        _ => return None,
    };
    let datagram = Udp::parse(payload).ok()?;
    PORTS.contains(&datagram.source_port()).then(|| datagram.payload())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `LINKTYPE_RAW`.
    const RAW: u16 = 101;

    /// Returns an IPv4 packet from a port with a response that has one A record.
    fn answer(port: u16, flags: u16, name: &[u8], address: [u8; 4]) -> Vec<u8> {
        let mut message = vec![0, 1];
        message.extend(flags.to_be_bytes());
        message.extend([0, 0, 0, 1, 0, 0, 0, 0]);
        message.push(name.len() as u8);
        message.extend(name);
        message.extend([0, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4]);
        message.extend(address);
        let udp_len = 8 + message.len() as u16;
        let mut packet =
            vec![0x45, 0, 0, 20 + udp_len as u8, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend(port.to_be_bytes());
        packet.extend([0x10, 0]);
        packet.extend(udp_len.to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(message);
        packet
    }

    fn found(packets: &[Vec<u8>]) -> Vec<(String, String)> {
        let mut names = Names::default();
        for packet in packets {
            names.read(RAW, packet);
        }
        names.fresh.iter().map(|(address, name)| (address.to_string(), name.clone())).collect()
    }

    #[test]
    fn only_good_answers_give_usual_names() {
        let (port, response) = (53, 0x8180);
        let good = answer(port, response, b"good", [192, 0, 2, 1]);
        let named = |name: &str| vec![("192.0.2.1".to_owned(), name.to_owned())];
        assert_eq!(found(std::slice::from_ref(&good)), named("good"));
        let second = answer(5353, response, b"second", [192, 0, 2, 1]);
        assert_eq!(found(&[good.clone(), second.clone()]), named("good"), "the first one counts");
        assert_eq!(found(&[second]), named("second"));
        for other in [
            answer(54, response, b"x", [192, 0, 2, 1]),
            answer(port, 0x0100, b"x", [192, 0, 2, 1]),
            answer(port, 0x8183, b"x", [192, 0, 2, 1]),
            answer(port, response, b"a b", [192, 0, 2, 1]),
            answer(port, response, b"\x1b[2J", [192, 0, 2, 1]),
            answer(port, response, b"", [192, 0, 2, 1]),
            answer(port, response, b"x", [0; 4]),
            good[..good.len() - 1].to_vec(),
        ] {
            assert_eq!(found(std::slice::from_ref(&other)), [], "{other:?}");
        }
    }

    #[test]
    fn addresses_are_limited_and_blocks_have_all_names() {
        let mut names = Names::default();
        let read = |names: &mut Names, number: u32| {
            names.read(RAW, &answer(53, 0x8180, b"x", (number + (1 << 24)).to_be_bytes()))
        };
        for number in 0..ADDRESSES_MAX as u32 {
            assert!(read(&mut names, number));
        }
        // A known address needs no room.
        assert!(!read(&mut names, 0) && !names.take_full());
        for number in 0..10 {
            assert!(!read(&mut names, ADDRESSES_MAX as u32 + number));
            assert_eq!(names.take_full(), number == 0, "once");
        }
        assert_eq!(names.fresh.len(), ADDRESSES_MAX);
        let small = std::iter::from_fn(|| names.take_block(100)).take(10).count();
        assert_eq!((small, names.fresh.len()), (10, ADDRESSES_MAX - 40), "25 bytes each");
        let blocks = std::iter::from_fn(|| names.take_block(usize::MAX)).count();
        assert_eq!(blocks, ADDRESSES_MAX / NAMES_MAX);
    }
}
