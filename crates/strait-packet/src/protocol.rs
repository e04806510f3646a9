//! Protocol numbers with names: Ethernet types (IEEE) and IP protocols (IANA).
//!
//! It has only the protocols that Strait parses or names in a summary.

/// Ethernet types, the 16 bits before an Ethernet payload.
pub mod ether_type {
    /// Values below this are an IEEE 802.3 length, not a type.
    pub const MIN: u16 = 0x0600;
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// A customer VLAN tag (802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// A service VLAN tag (802.1ad).
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// Tag type of some switches before 802.1ad.
    pub const OLD_QINQ: u16 = 0x9100;

    /// Returns the name of a known type that Strait does not parse.
    pub fn name(ether_type: u16) -> Option<&'static str> {
        Some(match ether_type {
            IPV4 => "IPv4",
            ARP => "ARP",
            VLAN => "802.1Q",
            IPV6 => "IPv6",
            SERVICE_VLAN => "802.1Q-QinQ",
            OLD_QINQ => "802.1Q-9100",
            0x8035 => "Reverse ARP",
            0x8808 => "MPCP",
            0x8809 => "Slow Protocols",
            0x8847 => "MPLS unicast",
            0x8848 => "MPLS multicast",
            0x8863 => "PPPoE D",
            0x8864 => "PPPoE S",
            0x888e => "EAPOL",
            0x88a2 => "AoE",
            0x88cc => "LLDP",
            0x88e5 => "802.1AE MACsec",
            0x88f7 => "PTP",
            0x9000 => "Loopback",
            _ => return None,
        })
    }
}

/// IP protocol numbers: the IPv4 protocol field and the IPv6 next header.
pub mod ip {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// IPv4 in IP.
    pub const IPV4: u8 = 4;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 in IP.
    pub const IPV6: u8 = 41;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Authentication header (RFC 4302).
    pub const AUTHENTICATION: u8 = 51;
    /// `ICMPv6`.
    pub const ICMPV6: u8 = 58;
    /// IPv6: no next header.
    pub const NO_NEXT: u8 = 59;
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// IPv6 mobility header (RFC 6275).
    pub const MOBILITY: u8 = 135;
    /// Host Identity Protocol (RFC 7401).
    pub const HIP: u8 = 139;
    /// Shim6 (RFC 5533).
    pub const SHIM6: u8 = 140;

    /// Returns the lower-case name of a protocol.
    pub fn name(protocol: u8) -> Option<&'static str> {
        Some(match protocol {
            ICMP => "icmp",
            2 => "igmp",
            IPV4 => "ipip",
            TCP => "tcp",
            UDP => "udp",
            33 => "dccp",
            IPV6 => "ip6",
            46 => "rsvp",
            47 => "gre",
            50 => "esp",
            AUTHENTICATION => "ah",
            ICMPV6 => "icmp6",
            89 => "ospf",
            103 => "pim",
            112 => "vrrp",
            132 => "sctp",
            136 => "udplite",
            _ => return None,
        })
    }
}
