//! PROXY protocol header, versions 1 and 2, which names a connection's client to the server
//! (haproxy.org, proxy-protocol.txt). Pure.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Version of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Line of text (section 2.1).
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

/// Signature of a version 2 header (section 2.2).
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const PROXY: u8 = 0x21;
/// Address family and protocol: TCP over IPv4 and over IPv6.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// Returns the header of a connection from `client` to `server`, as the relay sees both.
/// IPv4-mapped addresses become IPv4; if the families differ, both become IPv6.
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

/// Client of a connection according to its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Connection of this client.
    Client(SocketAddr),
    /// Connection of the connecting peer itself, or of an unknown client.
    Unknown,
}

/// Error for bytes that are not a header of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HeaderError(&'static str);

/// Limit of a version 1 header in bytes, including its end (section 2.1).
const LINE_BYTES_MAX: usize = 107;
/// Bytes of a version 2 header before the addresses.
const FIXED_BYTES: usize = 16;
/// Limit of the bytes after those. The longest additional fields are names from certificates.
const BEHIND_BYTES_MAX: usize = 4 << 10;

/// Parses the header at the start of `bytes`. Returns the client and the header's length; `None` if
/// the header is incomplete.
///
/// # Errors
/// If `bytes` do not start with a header.
pub fn read(bytes: &[u8]) -> Result<Option<(Source, usize)>, HeaderError> {
    let common = |begin: &[u8]| bytes.iter().zip(begin).all(|(byte, own)| byte == own);
    if common(b"PROXY ") {
        read_line(bytes)
    } else if common(&SIGNATURE) {
        read_binary(bytes)
    } else {
        Err(HeaderError("a connection that does not begin with a PROXY header"))
    }
}

fn read_line(bytes: &[u8]) -> Result<Option<(Source, usize)>, HeaderError> {
    let bytes = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        return if bytes.len() < LINE_BYTES_MAX {
            Ok(None)
        } else {
            Err(HeaderError("a PROXY line that is too long"))
        };
    };
    let line = bytes[..end].strip_suffix(b"\r").and_then(|line| std::str::from_utf8(line).ok());
    let client = line.and_then(of_line).ok_or(HeaderError("a malformed PROXY line"))?;
    Ok(Some((client, end + 1)))
}

fn of_line(line: &str) -> Option<Source> {
    let mut words = line.strip_prefix("PROXY ")?.split(' ');
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(Source::Unknown);
    }
    let mut address = || {
        let word = words.next()?;
        match family {
            "TCP4" => word.parse().ok().map(IpAddr::V4),
            "TCP6" => word.parse().ok().map(IpAddr::V6),
            _ => None,
        }
    };
    let (from, _to) = (address()?, address()?);
    let mut port = || {
        let word = words.next()?;
        let is_plain =
            word.bytes().all(|byte| byte.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
        word.parse().ok().filter(|_| is_plain)
    };
    let (from_port, _to_port): (u16, u16) = (port()?, port()?);
    words.next().is_none().then(|| Source::Client(SocketAddr::new(from, from_port)))
}

fn read_binary(bytes: &[u8]) -> Result<Option<(Source, usize)>, HeaderError> {
    const LOCAL: u8 = 0x20;
    let Some((fixed, behind)) = bytes.split_at_checked(FIXED_BYTES) else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if len > BEHIND_BYTES_MAX {
        return Err(HeaderError("a PROXY header that is too long"));
    }
    if !matches!(fixed[12], LOCAL | PROXY) {
        return Err(HeaderError("a PROXY header of another version or command"));
    }
    let Some(behind) = behind.get(..len) else { return Ok(None) };
    let client = match (fixed[12], fixed[13]) {
        (LOCAL, _) | (_, 0) => Source::Unknown,
        (_, TCP4) => of_octets::<4>(behind)?,
        (_, TCP6) => of_octets::<16>(behind)?,
        _ => return Err(HeaderError("a PROXY header of something else than TCP")),
    };
    Ok(Some((client, FIXED_BYTES + len)))
}

/// Parses source and destination addresses of `LEN` bytes each, and their ports.
fn of_octets<const LEN: usize>(bytes: &[u8]) -> Result<Source, HeaderError>
where
    IpAddr: From<[u8; LEN]>,
{
    const SHORT: HeaderError = HeaderError("a PROXY header that is too short for its addresses");
    let from: [u8; LEN] = bytes.get(..LEN).and_then(|bytes| bytes.try_into().ok()).ok_or(SHORT)?;
    let ports = bytes.get(2 * LEN..2 * LEN + 4).ok_or(SHORT)?;
    Ok(Source::Client(SocketAddr::new(from.into(), u16::from_be_bytes([ports[0], ports[1]]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_headers_are_parsed_from_any_fragments() {
        for (client, server) in
            [("192.0.2.1:40000", "198.51.100.2:80"), ("[2001:db8::1]:1", "[2001:db8::2]:2")]
        {
            for version in [Version::V1, Version::V2] {
                let written = header(version, at(client), at(server));
                for len in 0..written.len() {
                    assert_eq!(read(&written[..len]), Ok(None), "{version:?} {len}");
                }
                let more = [&written[..], b"GET / HTTP/1.1"].concat();
                assert_eq!(read(&more), Ok(Some((Source::Client(at(client)), written.len()))));
            }
        }
    }

    #[test]
    fn header_without_a_client_is_parsed() {
        assert_eq!(read(b"PROXY UNKNOWN\r\n"), Ok(Some((Source::Unknown, 15))));
        assert_eq!(read(b"PROXY UNKNOWN ffff::1 ::2 1 2\r\nGET"), Ok(Some((Source::Unknown, 31))));
        let local = [&SIGNATURE[..], &[0x20, 0, 0, 3], b"abc"].concat();
        assert_eq!(read(&local), Ok(Some((Source::Unknown, 19))));
    }

    #[test]
    fn additional_fields_are_skipped() {
        let mut header = header(Version::V2, at("192.0.2.1:5"), at("192.0.2.2:6"));
        header[15] += 5;
        header.extend_from_slice(b"\x04\0\x02ab");
        assert_eq!(read(&header), Ok(Some((Source::Client(at("192.0.2.1:5")), 33))));
    }

    #[test]
    fn malformed_headers_are_refused() {
        let binary = |rest: &[u8]| [&SIGNATURE[..], rest].concat();
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
            b"PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 65536 2\r\n",
            b"PROXY TCP4 ::1 ::2 1 2\r\n",
            b"PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
            b"PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
            &[b"PROXY UNKNOWN ", &[b'x'; 107][..]].concat(),
            &binary(&[0x11, 0x11, 0, 12]),
            &binary(&[0x22, 0x11, 0, 12]),
            &binary(&[0x21, 0x12, 0, 0]),
            &binary(&[0x21, 0x31, 0, 0]),
            &binary(&[0x21, 0x11, 0, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]),
            &binary(&[0x21, 0x11, 0xff, 0xff]),
        ] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }

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
        // The longest line of the protocol has 107 bytes.
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
