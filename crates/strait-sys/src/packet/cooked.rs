//! Cooked packets: packets of a `SOCK_DGRAM` packet socket, with a header common to all link types.
//!
//! A capture on all interfaces has frames with different link headers. The kernel removes them
//! (packet(7)). The rings write libpcap's header, LINKTYPE_LINUX_SLL or LINKTYPE_LINUX_SLL2, from
//! the `sockaddr_ll` into the room before the packet.

use super::VlanTag;
use crate::link_type;

/// Maximum length of either header, including a VLAN tag.
pub(super) const HEADER_BYTES_MAX: usize = 20;

/// Kind of cooked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cooked {
    /// LINKTYPE_LINUX_SLL, 16 bytes; a VLAN tag precedes the protocol, as in Ethernet.
    Sll,
    /// LINKTYPE_LINUX_SLL2, 20 bytes; contains the interface, and no VLAN tag.
    Sll2,
}

impl Cooked {
    /// Returns the header for `link_type`, a `LINKTYPE_*` of pcap.
    pub fn from_link_type(link_type: u32) -> Option<Self> {
        [Self::Sll, Self::Sll2].into_iter().find(|cooked| cooked.link_type() == link_type)
    }

    /// Returns the `LINKTYPE_*` of pcap.
    pub fn link_type(self) -> u32 {
        match self {
            Self::Sll => link_type::LINUX_SLL,
            Self::Sll2 => link_type::LINUX_SLL2,
        }
    }

    /// Returns the bytes of the header without a tag.
    pub fn header_bytes(self) -> usize {
        match self {
            Self::Sll => 16,
            Self::Sll2 => 20,
        }
    }

    /// Returns the header of a packet from `address`, and the number of bytes used in it.
    pub(super) fn header(
        self,
        address: &libc::sockaddr_ll,
        vlan: Option<VlanTag>,
    ) -> ([u8; HEADER_BYTES_MAX], usize) {
        let mut header = [0; HEADER_BYTES_MAX];
        // The kernel stores the protocol in network order.
        let protocol = address.sll_protocol.to_ne_bytes();
        let hardware = address.sll_hatype.to_be_bytes();
        let halen = usize::from(address.sll_halen).min(address.sll_addr.len());
        let mac = &address.sll_addr[..halen];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        match self {
            Self::Sll => {
                put(0, &u16::from(address.sll_pkttype).to_be_bytes());
                put(2, &hardware);
                put(4, &u16::from(address.sll_halen).to_be_bytes());
                put(6, mac);
                let Some(tag) = vlan else {
                    put(14, &protocol);
                    return (header, self.header_bytes());
                };
                put(14, &tag.tpid.to_be_bytes());
                put(16, &tag.tci.to_be_bytes());
                put(18, &protocol);
            }
            Self::Sll2 => {
                put(0, &protocol);
                put(4, &address.sll_ifindex.to_be_bytes());
                put(8, &hardware);
                put(10, &[address.sll_pkttype, address.sll_halen]);
                put(12, mac);
            }
        }
        (header, HEADER_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> libc::sockaddr_ll {
        libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: 0x0800_u16.to_be(),
            sll_ifindex: 7,
            sll_hatype: 1,
            sll_pkttype: 4,
            sll_halen: 6,
            sll_addr: [1, 2, 3, 4, 5, 6, 0xaa, 0xaa],
        }
    }

    #[test]
    fn version_1_has_the_protocol_last_and_the_tag_before_it() {
        let (header, len) = Cooked::Sll.header(&address(), None);
        assert_eq!(header[..len], [0, 4, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0, 8, 0]);
        let (header, len) = Cooked::Sll.header(&address(), Some(VlanTag { tci: 0x2064, tpid: 0x88a8 }));
        assert_eq!(header[14..len], [0x88, 0xa8, 0x20, 0x64, 8, 0]);
    }

    #[test]
    fn version_2_has_the_protocol_first_and_the_interface() {
        let (header, len) = Cooked::Sll2.header(&address(), Some(VlanTag { tci: 1, tpid: 0x8100 }));
        assert_eq!(header[..len], [8, 0, 0, 0, 0, 0, 0, 7, 0, 1, 4, 6, 1, 2, 3, 4, 5, 6, 0, 0]);
    }

    #[test]
    fn link_types_round_trip() {
        for cooked in [Cooked::Sll, Cooked::Sll2] {
            assert_eq!(Cooked::from_link_type(cooked.link_type()), Some(cooked));
        }
        assert_eq!(Cooked::from_link_type(1), None);
    }
}
