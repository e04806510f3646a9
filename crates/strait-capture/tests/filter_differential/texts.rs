//! Random filter texts (pcap-filter(7)) with the addresses, ports and tags of [`super::frames`].

use super::frames::{IPV4, IPV6_TAILS, PORTS, VLAN_IDS};
use super::rng::Rng;

/// Origin of the frames for which a filter is compiled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// File: tags are in the frames.
    Offline,
    /// Live interface: frames have a direction too.
    Live,
}

/// Filters with which the capture paths are compared, and similar ones.
pub(crate) const FIXED: [&str; 44] = [
    "",
    "ip",
    "ip6",
    "arp",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "ip6 and tcp",
    "host 10.0.0.1",
    "not host 10.0.0.1",
    "src host 10.0.0.1 and dst host 10.0.0.2",
    "net 10.0.0.0/8",
    "net 192.168.1.0/24 or net 224.0.0.0/4",
    "ip6 host 2001:db8::1",
    "net 2001:db8::/32",
    "port 80",
    "tcp port 80 or udp port 53",
    "portrange 40-500",
    "src port 443 and tcp",
    "udp dst portrange 50-60",
    "tcp[13]=24",
    "tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn",
    "ip[6:2] & 0x1fff != 0",
    "ip[8] > 32 and ip[9] != 17",
    "ip[0] & 0xf > 5",
    "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
    "ether[0] & 1 != 0",
    "ether[10:4] > 0x10000",
    "ether broadcast",
    "ether multicast",
    "ip multicast",
    "ether host 02:00:00:00:00:01",
    "ether proto 0x0806",
    "vlan",
    "vlan 5",
    "not vlan",
    "vlan 5 and tcp port 80",
    "vlan and ip host 10.0.0.1",
    "greater 100",
    "less 60",
    "len % 2 = 0",
    "ip proto 47 or (ip and not tcp and not udp)",
    "(tcp or udp) and not (port 22 or port 53) and greater 40",
];

/// Returns a text that libpcap is likely to accept; it refuses some combinations.
pub(crate) fn text(rng: &mut Rng, place: Place) -> String {
    let inner = expression(rng, place, 3);
    match rng.below(10) {
        0 => format!("vlan and ({inner})"),
        1 => format!("vlan {} and ({inner})", rng.pick(&VLAN_IDS)),
        _ => inner,
    }
}

fn expression(rng: &mut Rng, place: Place, depth: usize) -> String {
    if depth == 0 || rng.chance(35) {
        return primitive(rng, place);
    }
    let (left, right) = (expression(rng, place, depth - 1), expression(rng, place, depth - 1));
    match rng.below(5) {
        0 => format!("not ({left})"),
        1 | 2 => format!("({left}) or ({right})"),
        _ => format!("({left}) and ({right})"),
    }
}

fn primitive(rng: &mut Rng, place: Place) -> String {
    match rng.below(14) {
        0 | 1 => format!("{}host {}", direction(rng), address(rng)),
        2 => format!("{}net {}", direction(rng), network(rng)),
        3 | 4 => format!("{}{}port {}", transport(rng), direction(rng), rng.pick(&PORTS)),
        5 => {
            let low = rng.pick(&PORTS);
            format!("{}portrange {low}-{}", direction(rng), low.saturating_add(rng.below(400) as u16))
        }
        6 | 7 => comparison(rng),
        8 => rng.pick(&["ip", "ip6", "arp", "tcp", "udp", "icmp", "icmp6", "rarp"]).to_owned(),
        9 => rng.pick(&["ether broadcast", "ether multicast", "ip multicast", "ip6 multicast"]).to_owned(),
        10 => format!("{} {}", rng.pick(&["greater", "less"]), 14 + rng.below(120)),
        11 => format!("ip proto {}", rng.pick(&[1, 2, 6, 17, 47])),
        12 => format!("ether {}02:00:00:00:00:0{}", rng.pick(&["src ", "dst ", "host "]), 1 + rng.below(2)),
        _ if place == Place::Live => rng.pick(&["inbound", "outbound", "ifindex 1", "ifindex 7"]).to_owned(),
        _ => format!("ether proto {}", rng.pick(&["0x0800", "0x86dd", "0x8100", "0x88cc"])),
    }
}

fn direction(rng: &mut Rng) -> &'static str {
    rng.pick(&["", "", "src ", "dst ", "src or dst "])
}

fn transport(rng: &mut Rng) -> &'static str {
    rng.pick(&["", "tcp ", "udp "])
}

fn address(rng: &mut Rng) -> String {
    if rng.chance(30) {
        return format!("2001:db8::{:x}", rng.pick(&IPV6_TAILS));
    }
    let [a, b, c, d] = rng.pick(&IPV4);
    format!("{a}.{b}.{c}.{d}")
}

fn network(rng: &mut Rng) -> String {
    rng.pick(&["10.0.0.0/8", "10.0.0.0/30", "192.168.0.0/16", "224.0.0.0/4", "2001:db8::/64", "0.0.0.0/0"])
        .to_owned()
}

/// Returns a comparison of bytes, masked and shifted, with a number.
fn comparison(rng: &mut Rng) -> String {
    let protocol = rng.pick(&["ether", "ether", "ip", "ip", "ip6", "tcp", "udp", "icmp", "arp"]);
    let (at, size) = (rng.below(24), rng.pick(&[1, 2, 4]));
    let mask =
        rng.pick(&["", " & 0x1", " & 0x0f", " & 0x1fff", " + 3", " >> 2", " << 1", " * 3", " % 7", " ^ 5"]);
    let relation = rng.pick(&["=", "!=", ">", "<", ">=", "<="]);
    format!("{protocol}[{at}:{size}]{mask} {relation} {}", rng.pick(&[0, 1, 5, 6, 17, 24, 64, 0x800, 0xffff]))
}
