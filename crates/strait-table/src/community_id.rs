//! Community ID version 1: an identifier of a flow that Zeek, Suricata and Wireshark also compute
//! (<https://github.com/corelight/community-id-spec>).
//!
//! It is `1:` and the base64 of the SHA-1 of seed, addresses, protocol and ports, with the smaller
//! endpoint first. The seed is 0.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};
use strait_packet::protocol::ip;

/// Length of an identifier in bytes.
pub(crate) const LEN: usize = 30;
/// Length of a SHA-1 in bytes.
pub(crate) const HASH_BYTES: usize = 20;
/// Beginning of every identifier: the version.
const VERSION: &str = "1:";

/// Returns the identifier of the flow between `source` and `destination`. Type and code of ICMP are
/// in `ports`; a protocol without ports has none.
pub(crate) fn of(source: IpAddr, destination: IpAddr, protocol: u8, ports: Option<[u16; 2]>) -> String {
    let mut text = String::with_capacity(LEN);
    text.push_str(VERSION);
    STANDARD.encode_string(hash(source, destination, protocol, ports), &mut text);
    text
}

/// Returns the SHA-1 that an identifier has as text; none if the text is no identifier.
pub(crate) fn hash_in(id: &str) -> Option<[u8; HASH_BYTES]> {
    let bytes = STANDARD.decode(id.strip_prefix(VERSION)?).ok()?;
    bytes.try_into().ok()
}

/// Returns the SHA-1 in the identifier of a flow, as [`of`].
pub(crate) fn hash(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ports: Option<[u16; 2]>,
) -> [u8; HASH_BYTES] {
    let (ports, is_one_way) = match (protocol, ports) {
        (ip::ICMP, Some([kind, code])) => icmp(&ICMP_PAIRS, kind, code),
        (ip::ICMPV6, Some([kind, code])) => icmp(&ICMPV6_PAIRS, kind, code),
        (_, ports) => (ports, false),
    };
    let [source_port, destination_port] = ports.unwrap_or_default();
    let (one, other) = ((source, source_port), (destination, destination_port));
    let (first, second) = if one <= other || is_one_way { (one, other) } else { (other, one) };
    let mut hash = Sha1::new();
    hash.update([0, 0]);
    for address in [first.0, second.0] {
        match address {
            IpAddr::V4(address) => hash.update(address.octets()),
            IpAddr::V6(address) => hash.update(address.octets()),
        }
    }
    hash.update([protocol, 0]);
    if ports.is_some() {
        hash.update(first.1.to_be_bytes());
        hash.update(second.1.to_be_bytes());
    }
    hash.finalize().into()
}

/// Types of requests and of their responses.
const ICMP_PAIRS: [(u16, u16); 5] = [(8, 0), (13, 14), (15, 16), (17, 18), (10, 9)];
const ICMPV6_PAIRS: [(u16, u16); 7] =
    [(128, 129), (133, 134), (135, 136), (130, 131), (139, 140), (144, 145), (146, 147)];

/// Returns the numbers that stand for ports, and true if the type has no counterpart: type and the
/// type of its counterpart, or type and code.
fn icmp(pairs: &[(u16, u16)], kind: u16, code: u16) -> (Option<[u16; 2]>, bool) {
    let counterpart = pairs.iter().find_map(|&(request, response)| match kind {
        _ if kind == request => Some(response),
        _ if kind == response => Some(request),
        _ => None,
    });
    (Some([kind, counterpart.unwrap_or(code)]), counterpart.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Identifiers of the specification's baseline.
    #[test]
    fn identifiers_are_those_of_the_specification() {
        for (source, destination, protocol, ports, id) in [
            (
                "128.232.110.120",
                "66.35.250.204",
                ip::TCP,
                Some([34855, 80]),
                "1:LQU9qZlK+B5F3KDmev6m5PMibrg=",
            ),
            (
                "66.35.250.204",
                "128.232.110.120",
                ip::TCP,
                Some([80, 34855]),
                "1:LQU9qZlK+B5F3KDmev6m5PMibrg=",
            ),
            ("192.168.1.52", "8.8.8.8", ip::UDP, Some([54585, 53]), "1:d/FP5EW3wiY1vCndhwleRRKHowQ="),
            ("192.168.0.89", "192.168.0.1", ip::ICMP, Some([8, 0]), "1:X0snYXpgwiv9TZtqg64sgzUn6Dk="),
            ("192.168.0.1", "192.168.0.89", ip::ICMP, Some([0, 0]), "1:X0snYXpgwiv9TZtqg64sgzUn6Dk="),
            (
                "fe80::200:86ff:fe05:80da",
                "fe80::260:97ff:fe07:69ea",
                ip::ICMPV6,
                Some([135, 0]),
                "1:dGHyGvjMfljg6Bppwm3bg0LO8TY=",
            ),
        ] {
            assert_eq!(of(source.parse().unwrap(), destination.parse().unwrap(), protocol, ports), id);
        }
        assert_eq!(of("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 47, None).len(), LEN);
    }
}
