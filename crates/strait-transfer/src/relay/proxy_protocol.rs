//! The header that tells a server who its client is: the PROXY protocol, versions 1 and 2 (haproxy.org, proxy-protocol.txt).
//! Pure.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// The version of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A line of text (section 2.1).
    V1,
    /// Binary (section 2.2).
    V2,
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "v1" => Ok(Self::V1),
            "v2" => Ok(Self::V2),
            _ => Err("give v1 or v2".into()),
        }
    }
}

/// What a version 2 header begins with (section 2.2).
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const PROXY: u8 = 0x21;
/// Address family and protocol: TCP over IPv4 and over IPv6.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// The header of a connection from `client` to `server`, as the relay saw both. IPv4 addresses in IPv6 form are taken for
/// what they are; of two families the IPv6 form is given.
pub fn header(version: Version, client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    let (from, to) = same_family(client.ip(), server.ip());
    match version {
        Version::V1 => line(from, to, client.port(), server.port()).into_bytes(),
        Version::V2 => binary(from, to, client.port(), server.port()),
    }
}

fn same_family(client: IpAddr, server: IpAddr) -> (IpAddr, IpAddr) {
    let (client, server) = (client.to_canonical(), server.to_canonical());
    let v6 = |address: IpAddr| match address {
        IpAddr::V4(address) => IpAddr::V6(address.to_ipv6_mapped()),
        IpAddr::V6(_) => address,
    };
    if client.is_ipv4() == server.is_ipv4() { (client, server) } else { (v6(client), v6(server)) }
}

fn line(from: IpAddr, to: IpAddr, from_port: u16, to_port: u16) -> String {
    let family = if from.is_ipv4() { "TCP4" } else { "TCP6" };
    format!("PROXY {family} {from} {to} {from_port} {to_port}\r\n")
}

fn binary(from: IpAddr, to: IpAddr, from_port: u16, to_port: u16) -> Vec<u8> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let addresses = [octets(from), octets(to)].concat();
    let len = (addresses.len() + 2 * size_of::<u16>()) as u16;
    let family = if from.is_ipv4() { TCP4 } else { TCP6 };
    [
        &SIGNATURE[..],
        &[PROXY, family],
        &len.to_be_bytes(),
        &addresses,
        &from_port.to_be_bytes(),
        &to_port.to_be_bytes(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[test]
    fn version_1_is_a_line() {
        let text = |client, server| String::from_utf8(header(Version::V1, at(client), at(server))).unwrap();
        assert_eq!(
            text("192.0.2.1:40000", "198.51.100.2:80"),
            "PROXY TCP4 192.0.2.1 198.51.100.2 40000 80\r\n"
        );
        assert_eq!(text("[2001:db8::1]:1", "[2001:db8::2]:2"), "PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n");
        assert_eq!(text("[::ffff:192.0.2.1]:1", "192.0.2.2:2"), "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n");
        // The longest that the protocol knows has 107 bytes.
        let longest = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
        assert!(text(longest, longest).len() <= 107);
    }

    #[test]
    fn version_2_is_binary() {
        let v4 = header(Version::V2, at("192.0.2.1:40000"), at("198.51.100.2:80"));
        assert_eq!(v4[..12], SIGNATURE);
        assert_eq!(v4[12..16], [0x21, 0x11, 0, 12]);
        assert_eq!(v4[16..], [192, 0, 2, 1, 198, 51, 100, 2, 0x9c, 0x40, 0, 80]);
        let mixed = header(Version::V2, at("192.0.2.1:40000"), at("[2001:db8::2]:80"));
        assert_eq!((mixed[13], mixed.len()), (0x21, 16 + 36));
    }
}
