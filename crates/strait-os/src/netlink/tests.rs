//! Tests with links in the test's own namespaces, and with replies of wrong lengths.

use std::os::fd::AsFd;

use proptest::prelude::*;

use super::*;
use crate::netns::Namespace;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

fn namespace() -> Option<Namespace> {
    Namespace::new().inspect_err(|error| eprintln!("SKIP netlink: {error}")).ok()
}

fn veth(netlink: &mut Netlink, other: &Namespace) -> Interface {
    let end = VethEnd { mac: Some(MAC), queues: 3, mtu: Some(9000), ..VethEnd::new("left") };
    let peer = VethEnd { namespace: Some(other.as_fd()), queues: 2, ..VethEnd::new("right") };
    netlink.add_veth(&end, &peer).unwrap();
    netlink.interface("left").unwrap()
}

#[test]
fn a_veth_pair_joins_two_namespaces() {
    let (Some(here), Some(there)) = (namespace(), namespace()) else { return };
    here.run(|| {
        let mut netlink = Netlink::open().unwrap();
        let left = veth(&mut netlink, &there);
        assert_eq!((left.mac, left.mtu, left.rx_queues, left.tx_queues), (MAC, 9000, 3, 3));
        assert!(!left.is_up());
        let right = there.run(|| Interface::find("right").unwrap()).unwrap();
        assert_eq!((right.mtu, right.rx_queues), (1500, 2));
        assert_eq!(netlink.interface("right").unwrap_err().kind(), Kind::Usage);
    })
    .unwrap();
}

/// Returns the waiting changes.
fn waiting(monitor: &LinkMonitor) -> Vec<LinkEvent> {
    std::iter::from_fn(|| monitor.next().unwrap()).collect()
}

#[test]
fn each_change_of_one_link_is_reported_and_none_of_another() {
    let (Some(here), Some(there)) = (namespace(), namespace()) else { return };
    here.run(|| {
        let mut netlink = Netlink::open().unwrap();
        let left = veth(&mut netlink, &there).index;
        netlink.add_veth(&VethEnd::new("one"), &VethEnd::new("other")).unwrap();
        let [one, other] = ["one", "other"].map(|name| netlink.interface(name).unwrap().index);
        netlink.set_up(other, true).unwrap();
        netlink.set_up(one, true).unwrap();
        let monitor = LinkMonitor::open(one).unwrap();
        netlink.set_up(left, true).unwrap();
        netlink.set_up(left, false).unwrap();
        let start = netlink.link(one).unwrap();
        assert!(start.is_up && start.has_carrier, "{start:?}");
        for _ in 0..3 {
            netlink.set_up(one, false).unwrap();
            netlink.set_up(one, true).unwrap();
        }
        let changes = waiting(&monitor);
        let downs =
            changes.iter().filter(|event| matches!(event, LinkEvent::Changed(now) if !now.is_up)).count();
        assert_eq!(downs, 3, "{changes:?}");
        assert!(!changes.contains(&LinkEvent::Lost) && !changes.contains(&LinkEvent::Removed), "{changes:?}");
        let now = netlink.link(one).unwrap();
        assert_eq!((now.is_up, now.carrier_downs - start.carrier_downs), (true, 3));
        netlink.delete(one).unwrap();
        assert_eq!(waiting(&monitor).last(), Some(&LinkEvent::Removed));
        assert_eq!(netlink.link(one).unwrap_err().kind(), Kind::Usage);
    })
    .unwrap();
}

#[test]
fn unread_changes_are_reported_as_lost() {
    let Some(here) = namespace() else { return };
    here.run(|| {
        let mut netlink = Netlink::open().unwrap();
        netlink.add_veth(&VethEnd::new("one"), &VethEnd::new("other")).unwrap();
        let one = netlink.interface("one").unwrap().index;
        let monitor = LinkMonitor::open(one).unwrap();
        for mtu in (1000..5000).map(|count| 1000 + count % 2) {
            netlink.set_mtu(one, mtu).unwrap();
        }
        assert!(waiting(&monitor).contains(&LinkEvent::Lost));
        assert_eq!(waiting(&monitor), [], "changes continue after the loss");
        netlink.set_up(one, true).unwrap();
        assert!(matches!(waiting(&monitor)[..], [LinkEvent::Changed(now), ..] if now.is_up));
    })
    .unwrap();
}

#[test]
fn a_link_is_set_and_deleted() {
    let (Some(here), Some(there)) = (namespace(), namespace()) else { return };
    here.run(|| {
        let mut netlink = Netlink::open().unwrap();
        let index = veth(&mut netlink, &there).index;
        netlink.set_mtu(index, 1400).unwrap();
        netlink.set_up(index, true).unwrap();
        netlink.set_promiscuous(index, true).unwrap();
        netlink.add_address(index, "192.0.2.1".parse().unwrap(), 24).unwrap();
        netlink.add_address(index, "2001:db8::1".parse().unwrap(), 64).unwrap();
        netlink.add_neighbour(index, "192.0.2.2".parse().unwrap(), MAC).unwrap();
        netlink.add_neighbour(index, "2001:db8::2".parse().unwrap(), MAC).unwrap();
        let left = netlink.interface("left").unwrap();
        assert_eq!((left.mtu, left.is_up()), (1400, true));
        assert_ne!(left.flags & libc::IFF_PROMISC as u32, 0);
        assert!(std::net::UdpSocket::bind("[2001:db8::1]:0").is_ok(), "the address is usable at once");
        netlink.set_up(index, false).unwrap();
        assert!(!netlink.interface("left").unwrap().is_up());
        netlink.delete(index).unwrap();
        assert_eq!(netlink.interface("left").unwrap_err().kind(), Kind::Usage);
        assert_eq!(netlink.delete(index).unwrap_err().kind(), Kind::Usage);
    })
    .unwrap();
}

#[test]
fn counters_count_and_no_xdp_is_none() {
    let Some(here) = namespace() else { return };
    here.run(|| {
        let mut netlink = Netlink::open().unwrap();
        let lo = netlink.interface("lo").unwrap().index;
        netlink.set_up(lo, true).unwrap();
        assert_eq!(netlink.stats(lo).unwrap(), LinkStats::default());
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&[0; 100], socket.local_addr().unwrap()).unwrap();
        let stats = netlink.stats(lo).unwrap();
        // The loopback counts without the Ethernet header.
        assert_eq!((stats.tx_packets, stats.rx_packets, stats.rx_bytes), (1, 1, 128));
        assert_eq!(netlink.xdp(lo).unwrap(), None);
        assert_eq!(netlink.stats(9999).unwrap_err().kind(), Kind::Usage);
    })
    .unwrap();
}

#[test]
fn route_has_interface_and_locality() {
    let Some(here) = namespace() else { return };
    here.run(|| {
        let mut netlink = Netlink::open().unwrap();
        netlink.add_veth(&VethEnd::new("left"), &VethEnd::new("right")).unwrap();
        let [lo, left] = ["lo", "left"].map(|name| netlink.interface(name).unwrap().index);
        netlink.set_up(lo, true).unwrap();
        netlink.set_up(left, true).unwrap();
        netlink.add_address(left, [192, 0, 2, 1].into(), 24).unwrap();
        let mut route = |last| netlink.route(None, ([192, 0, last, 1], 9).into());
        assert_eq!(route(2).unwrap(), Route { index: lo, is_local: true });
        assert_eq!(route(3).unwrap_err().errno(), Some(libc::ENETUNREACH));
        let neighbour = netlink.route(Some([192, 0, 2, 1].into()), ([192, 0, 2, 7], 9).into()).unwrap();
        assert_eq!(neighbour, Route { index: left, is_local: false });
        assert_eq!(netlink.interface_at(left).unwrap().name, "left");
        assert_eq!(netlink.interface_at(9999).unwrap_err().kind(), Kind::Usage);
    })
    .unwrap();
}

#[test]
fn error_contains_the_kernels_message() {
    let Some(here) = namespace() else { return };
    let error = here.run(|| {
        let mut netlink = Netlink::open().unwrap();
        netlink.add_veth(&VethEnd::new("left"), &VethEnd::new("right")).unwrap();
        let index = netlink.interface("left").unwrap().index;
        netlink.set_mtu(index, 70_000)
    });
    let error = error.unwrap().unwrap_err();
    assert_eq!(error.errno(), Some(libc::EINVAL));
    assert!(error.to_string().contains("mtu greater than device maximum"), "{error}");
}

#[test]
fn driver_name_and_channels_are_read() {
    let (Some(here), Some(there)) = (namespace(), namespace()) else { return };
    here.run(|| {
        use crate::ethtool::{Ethtool, Offload};
        let left = veth(&mut Netlink::open().unwrap(), &there);
        let ethtool = Ethtool::open("left").unwrap();
        assert_eq!(ethtool.driver().unwrap().name, "veth");
        let channels = ethtool.channels().unwrap();
        assert_eq!((channels.rx, channels.rx_max, channels.combined_max), (3, 3, 0));
        assert_eq!(left.queues().unwrap(), crate::interface::Queues { rx: 3, tx: 3 });
        for on in [true, false] {
            ethtool.set_offload(Offload::Gro, on).unwrap();
            assert_eq!(ethtool.offload(Offload::Gro).unwrap(), on);
        }
    })
    .unwrap();
}

#[test]
fn a_message_is_written_and_read_back() {
    let mut request = Request::new(16, 5, 77, &link_header(3, 1, 1));
    request.attribute_str(3, "lo").nested(18, |inside| {
        inside.attribute(1, b"veth").attribute_u32(2, 9);
    });
    let mut datagram = request.finish();
    assert_eq!(datagram.len() % 4, 0);
    let message = Message::take(&mut datagram).unwrap().unwrap();
    assert!(datagram.is_empty());
    assert_eq!((message.kind, message.flags, message.sequence), (16, 5, 77));
    let attributes = message.attributes(16).unwrap();
    assert_eq!(attributes.find_str(3).unwrap().as_deref(), Some("lo"));
    let nested = Attributes(attributes.find(18).unwrap().unwrap());
    assert_eq!(nested.find_u32(2).unwrap(), Some(9));
    assert_eq!(nested.find(7).unwrap(), None);
}

#[test]
fn wrong_lengths_are_errors() {
    for len in [0u32, 15, 17, u32::MAX] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        assert!(Message::take(&mut &bytes[..]).is_err(), "{len}");
    }
    for len in [0u16, 3, 9, u16::MAX] {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&len.to_ne_bytes());
        assert!(Attributes(&bytes).find(1).is_err(), "{len}");
    }
}

/// Calls every reader; the results are of no interest, only that none panics.
fn read_all(datagram: &[u8]) {
    let _ = (parse::interface(datagram), parse::link(datagram), parse::stats(datagram), parse::xdp(datagram));
    let _ = (parse::route(datagram), parse::family(datagram), parse::xdp_abilities(datagram));
    let _ = (parse::packet_sockets(datagram), parse::link_event(datagram));
}

/// Kinds of messages that the readers distinguish; 28 is the id of a generic family.
const KINDS: [u16; 8] =
    [libc::RTM_NEWLINK, libc::RTM_DELLINK, 92, libc::RTM_NEWROUTE, 20, 28, libc::NLMSG_ERROR as u16, 3];

proptest! {
    #[test]
    fn any_reply_is_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind: u16) {
        let mut datagram = &bytes[..];
        if let Ok(Some(message)) = Message::take(&mut datagram) {
            prop_assert!(message.body.len() + HEADER_LEN + datagram.len() <= bytes.len());
        }
        read_all(&bytes);
        // A valid header, so that the readers see the random bytes as a body.
        for kind in KINDS.into_iter().chain([kind]) {
            let mut message = Request::new(kind, libc::NLM_F_ACK_TLVS as u16, 0, &bytes);
            read_all(message.finish());
        }
    }

    #[test]
    fn any_attributes_are_parsed_without_panic(
        header in proptest::collection::vec(any::<u8>(), 0..20),
        attributes in proptest::collection::vec((0..64u16, proptest::collection::vec(any::<u8>(), 0..40)), 0..8),
    ) {
        for kind in KINDS {
            let mut message = Request::new(kind, libc::NLM_F_ACK_TLVS as u16, 0, &header);
            for (kind, value) in &attributes {
                message.attribute(*kind, value);
            }
            read_all(message.finish());
        }
    }
}

#[test]
fn truncated_answers_of_this_kernel_are_errors() {
    let Some(here) = namespace() else { return };
    here.run(|| {
        let mut netlink = Netlink::open().unwrap();
        let lo = netlink.interface("lo").unwrap();
        let mut request = netlink.get_link(lo.index);
        netlink.exchange(&mut request, "read", "lo").unwrap();
        let len = message::read_u32(&netlink.reply[..], 0).unwrap() as usize;
        let whole = netlink.reply[..len].to_vec();
        assert_eq!(parse::interface(&whole).unwrap(), lo);
        assert!(parse::link(&whole).is_ok() && parse::xdp(&whole).unwrap().is_none());
        assert!(matches!(parse::link_event(&whole).unwrap(), Some(LinkEvent::Changed(_))));
        for len in 0..len {
            assert!(parse::interface(&whole[..len]).is_err(), "{len}");
            // With a length that fits, the rest of the header and the last attribute are missing.
            let mut cut = whole[..len].to_vec();
            if let Some(field) = cut.first_chunk_mut::<4>() {
                *field = (len as u32).to_ne_bytes();
            }
            read_all(&cut);
        }
    })
    .unwrap();
}

#[test]
fn the_largest_numbers_of_a_packet_socket_are_parsed() {
    let mut message = Request::new(20, 0, 0, &[0; 16]);
    message.attribute(0, &[0xff; 16]).attribute(2, &[0xff; 28]);
    let sockets = parse::packet_sockets(message.finish()).unwrap();
    assert_eq!((sockets[0].version, sockets[0].ring.unwrap().blocks), (u32::MAX, u32::MAX));
}

#[test]
fn a_refusal_and_an_acknowledgement_are_no_answer() {
    let acknowledge = |code: i32| {
        let mut body = code.to_ne_bytes().to_vec();
        body.extend_from_slice(&[0; HEADER_LEN]);
        Request::new(libc::NLMSG_ERROR as u16, 0, 1, &body).finish().to_vec()
    };
    assert_eq!(parse::stats(&acknowledge(-libc::EBUSY)).unwrap_err().errno(), Some(libc::EBUSY));
    for code in [0, libc::EBUSY, i32::MIN] {
        assert_eq!(parse::link(&acknowledge(code)).unwrap_err().errno(), None, "{code}");
    }
}

#[test]
fn detach_command_names_the_mode() {
    assert_eq!(XdpMode::Native.detach_command("a"), "ip link set a xdpdrv off");
    assert_eq!(XdpMode::Generic.detach_command("a"), "ip link set a xdpgeneric off");
    let several = XdpMode::Several.detach_command("a");
    assert!(several.starts_with("ip link set a xdpdrv off; ip link set a xdpgeneric off"), "{several}");
}
