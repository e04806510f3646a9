//! Error of this crate: the malformed header, and the expected value.
//!
//! Every view's `parse` returns it. It is `Copy` and has no text of its own, so that a malformed
//! packet costs no allocation.

use std::fmt;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of header that a parser reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// A link header other than Ethernet: cooked, loopback, or none before IP.
    Link,
    /// Ethernet (IEEE 802.3).
    Ethernet,
    /// A VLAN tag (IEEE 802.1Q, 802.1ad).
    Vlan,
    /// ARP (RFC 826).
    Arp,
    /// IPv4 (RFC 791).
    Ipv4,
    /// IPv6 and its extension headers (RFC 8200).
    Ipv6,
    /// TCP (RFC 9293).
    Tcp,
    /// UDP (RFC 768).
    Udp,
    /// ICMP (RFC 792).
    Icmp,
    /// `ICMPv6` (RFC 4443).
    Icmpv6,
    /// DNS (RFC 1035).
    Dns,
    /// TLS (RFC 8446).
    Tls,
    /// QUIC (RFC 9000).
    Quic,
}

impl Header {
    /// Returns the header's short name as tcpdump writes it in `[|tcp]`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Ethernet => "ether",
            Self::Vlan => "vlan",
            Self::Arp => "arp",
            Self::Ipv4 => "ip",
            Self::Ipv6 => "ip6",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Icmpv6 => "icmp6",
            Self::Dns => "domain",
            Self::Tls => "tls",
            Self::Quic => "quic",
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error of a parser or of the traffic generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes end within the header: the packet was cut, or is too short.
    #[error("{header}: {had} bytes where {needed} are needed")]
    Truncated {
        /// The header.
        header: Header,
        /// Required number of bytes from the start of the header.
        needed: usize,
        /// Available number of bytes.
        had: usize,
    },
    /// A field has a value that the specification does not allow.
    #[error("{header}: {field} is {value}, expected {expected}")]
    Invalid {
        /// The header.
        header: Header,
        /// The field's name.
        field: &'static str,
        /// The value found.
        value: u32,
        /// Values that the specification allows.
        expected: &'static str,
    },
    /// A chain of headers is longer than this crate supports.
    #[error("{header}: more than {limit} in a chain")]
    TooMany {
        /// The header that repeats.
        header: Header,
        /// Limit of headers.
        limit: usize,
    },
    /// A requested number is out of range.
    #[error("{what} {value}: expected {min} to {max}")]
    OutOfRange {
        /// Meaning of the number.
        what: &'static str,
        /// The number.
        value: u64,
        /// Smallest possible value.
        min: u64,
        /// Largest possible value.
        max: u64,
    },
    /// A requested text has the wrong form.
    #[error("{what}: expected {expected}")]
    Malformed {
        /// Meaning of the text.
        what: &'static str,
        /// Expected form.
        expected: &'static str,
    },
}

/// Returns the first `N` bytes of `bytes` and the rest.
pub(crate) fn split_head<const N: usize>(header: Header, bytes: &[u8]) -> Result<(&[u8; N], &[u8])> {
    bytes.split_first_chunk().ok_or(Error::Truncated { header, needed: N, had: bytes.len() })
}

/// Returns `bytes[from..to]`, where `to` is a length from the packet itself.
pub(crate) fn part(header: Header, bytes: &[u8], from: usize, to: usize) -> Result<&[u8]> {
    bytes.get(from..to).ok_or(Error::Truncated { header, needed: to, had: bytes.len() })
}

/// Returns the `M` bytes at `at`. The caller must ensure `at + M <= N`; all callers pass constants.
#[inline]
pub(crate) fn array_at<const M: usize, const N: usize>(head: &[u8; N], at: usize) -> [u8; M] {
    let mut bytes = [0; M];
    bytes.copy_from_slice(&head[at..at + M]);
    bytes
}

/// Returns the big-endian 16-bit field at `at`, see [`array_at`].
#[inline]
pub(crate) fn be16<const N: usize>(head: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes(array_at(head, at))
}

/// Returns the big-endian 32-bit field at `at`, see [`array_at`].
#[inline]
pub(crate) fn be32<const N: usize>(head: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes(array_at(head, at))
}
