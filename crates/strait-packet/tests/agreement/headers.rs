//! Every header field agrees with etherparse, on complete, changed and cut frames.

use etherparse::{Ipv4Slice, Ipv6Slice, LinkExtSlice, NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use strait_packet::ethernet::Ethernet;
use strait_packet::ipv4::Ipv4;
use strait_packet::ipv6::{Ipv6, Upper};
use strait_packet::protocol::ip;
use strait_packet::tcp::{Tcp, flags};
use strait_packet::udp::Udp;
use strait_packet::vlan::Untagged;
use strait_packet::{Error, Header, Network, network};

use crate::frames::frame;

/// Extension headers that etherparse takes for a payload: mobility, HIP, Shim6.
const NOT_WALKED: [u8; 3] = [135, 139, 140];

fn walks_further(frame: &[u8]) -> bool {
    let link = Ethernet::parse(frame).and_then(|link| Untagged::parse(link.ether_type(), link.payload()));
    let Ok(Ok(packet)) = link.map(|untagged| Ipv6::parse(untagged.payload())) else { return false };
    let mut extensions = packet.extensions();
    let walked = extensions.by_ref().flatten().any(|extension| NOT_WALKED.contains(&extension.kind));
    walked || NOT_WALKED.contains(&extensions.upper().protocol)
}

/// Compares every field with the result of etherparse; returns false if etherparse refuses the
/// frame.
fn agree(frame: &[u8]) -> bool {
    let Ok(theirs) = SlicedPacket::from_ethernet(frame) else { return false };
    let (untagged, ours) = match network(frame) {
        _ if walks_further(frame) => return true,
        // ARP of other kinds than IPv4 over Ethernet is read by etherparse and refused here.
        Err(Error::Invalid { header: Header::Arp, .. }) => return true,
        ours => ours.expect("etherparse is the stricter of the two in everything else"),
    };
    let link = Ethernet::parse(frame).unwrap();
    assert_eq!([link.source().0, link.destination().0], [crate::frames::MACS.0, crate::frames::MACS.1]);
    let tags: Vec<u16> = untagged.tags().iter().map(|tag| tag.id()).collect();
    let their_tags = theirs.link_exts.iter().filter_map(|extension| match extension {
        LinkExtSlice::Vlan(tag) => Some(tag.vlan_identifier().value()),
        LinkExtSlice::Macsec(_) => None,
    });
    assert_eq!(tags, their_tags.collect::<Vec<_>>());
    let payload = match (&theirs.net, &ours) {
        (Some(NetSlice::Ipv4(theirs)), Network::Ipv4(ours)) => ipv4_agrees(theirs, ours),
        (Some(NetSlice::Ipv6(theirs)), Network::Ipv6(ours, upper)) => ipv6_agrees(theirs, ours, upper),
        (None, Network::Other) | (Some(NetSlice::Arp(_)), Network::Arp(_)) => None,
        (theirs, ours) => panic!("{theirs:?} is not {ours:?}"),
    };
    if let Some(payload) = payload {
        transport_agrees(theirs.transport.as_ref(), payload);
    }
    true
}

/// Compares an IPv4 header; returns the payload, unless etherparse parses more of it than this
/// crate.
fn ipv4_agrees<'a>(theirs: &Ipv4Slice<'_>, ours: &Ipv4<'a>) -> Option<&'a [u8]> {
    let header = theirs.header();
    assert_eq!((ours.source(), ours.destination()), (header.source_addr(), header.destination_addr()));
    assert_eq!((ours.ttl(), ours.protocol()), (header.ttl(), header.protocol().0));
    assert_eq!((ours.total_len(), ours.identification()), (header.total_len(), header.identification()));
    // etherparse sums a header without the reserved bit.
    let reserved = header.slice()[6] & 0x80 != 0;
    let holds = header.to_header().calc_header_checksum() == ours.checksum();
    assert!(reserved || ours.checksum_holds() == holds);
    if ours.protocol() == ip::AUTHENTICATION {
        return None;
    }
    assert_eq!(ours.is_fragment(), theirs.is_payload_fragmented());
    assert_eq!(ours.payload(), theirs.payload().payload);
    Some(ours.payload())
}

/// Compares an IPv6 header; returns the payload, unless it is a jumbogram, which etherparse does
/// not support.
fn ipv6_agrees<'a>(theirs: &Ipv6Slice<'_>, ours: &Ipv6<'a>, upper: &Upper<'a>) -> Option<&'a [u8]> {
    let header = theirs.header();
    assert_eq!((ours.source(), ours.destination()), (header.source_addr(), header.destination_addr()));
    assert_eq!((ours.hop_limit(), ours.traffic_class()), (header.hop_limit(), header.traffic_class()));
    assert_eq!(ours.flow_label(), header.flow_label().value());
    if header.payload_length() == 0 {
        return None;
    }
    assert_eq!(upper.protocol, theirs.payload().ip_number.0);
    let is_fragmented = upper.fragment.is_some_and(|fragment| fragment.more || fragment.offset > 0);
    assert_eq!(is_fragmented, theirs.is_payload_fragmented());
    assert_eq!(upper.payload, theirs.payload().payload);
    Some(upper.payload)
}

fn transport_agrees(theirs: Option<&TransportSlice<'_>>, payload: &[u8]) {
    match theirs {
        Some(TransportSlice::Udp(theirs)) => {
            let ours = Udp::parse(payload).unwrap();
            assert_eq!(
                (ours.source_port(), ours.destination_port(), ours.len(), ours.checksum()),
                (theirs.source_port(), theirs.destination_port(), theirs.length(), theirs.checksum())
            );
            assert_eq!(ours.payload(), theirs.payload());
        }
        Some(TransportSlice::Tcp(theirs)) => {
            let ours = Tcp::parse(payload).unwrap();
            assert_eq!(
                (ours.source_port(), ours.destination_port(), ours.sequence(), ours.acknowledgment()),
                (
                    theirs.source_port(),
                    theirs.destination_port(),
                    theirs.sequence_number(),
                    theirs.acknowledgment_number()
                )
            );
            assert_eq!((ours.window(), ours.urgent()), (theirs.window_size(), theirs.urgent_pointer()));
            assert_eq!(ours.flags() & flags::ACK != 0, theirs.ack());
            assert_eq!(ours.flags() & flags::RST != 0, theirs.rst());
            assert_eq!(ours.payload(), theirs.payload());
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn complete_frames_parse_as_in_etherparse(frame in frame()) {
        prop_assert!(agree(&frame));
    }

    #[test]
    fn changed_frames_parse_as_in_etherparse(mut frame in frame(), at in 12usize..60, byte: u8) {
        let at = at.min(frame.len() - 1);
        frame[at] = byte;
        agree(&frame);
    }

    #[test]
    fn error_of_a_cut_frame_names_the_header(frame in frame(), len in 0usize..40) {
        let len = len.min(frame.len());
        if let Err(error) = network(&frame[..len]) {
            let Error::Truncated { header, needed, had } = error else {
                return Err(TestCaseError::fail(format!("{error}")));
            };
            prop_assert!(had < needed && had <= len);
            prop_assert!(matches!(header, Header::Ethernet | Header::Vlan | Header::Ipv4 | Header::Ipv6));
        }
    }
}
