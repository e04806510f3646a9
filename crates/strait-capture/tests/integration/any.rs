//! Captures on all interfaces together: equal cooked packets on every packet-socket path.

use lab::Wire;
use strait_capture::{Builder, Directions, Path, Session};
use strait_os::interface::Interface;
use strait_sys::libpcap::Compiler;

use crate::corpus;
use crate::rig::{Capture, Seen, send};

const PATHS: [Path; 4] = [Path::Auto, Path::Recv, Path::V2, Path::V3];
const SLL: u32 = 113;
const SLL2: u32 = 276;
const VLAN_BYTES: usize = 4;

/// Filters for cooked packets. The kernel runs all except the last three.
const FILTERS: [&str; 14] = [
    "ip",
    "arp or ip6",
    "udp port 53",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "host 192.0.2.1 and not tcp",
    "net 2001:db8::/32 and portrange 5000-5100",
    "ip[6:2] & 0x1fff != 0",
    "ip proto 17 and ip[8] = 64",
    "inbound and tcp port 80",
    "ether proto 0x88b5",
    "icmp or icmp6",
    "link[11] = 6 and udp",
    "link[12:4] = 0x02000000 and tcp",
    "link[9] = 1 and ip",
];

fn incoming(path: Path) -> Builder {
    Session::builder("any").path(path).directions(Directions::In).ring(32 << 20)
}

/// Returns the corpus without frames with two tags. For those, the kernel's filter sees the outer
/// type, and its packet header the inner one (`vlan_get_protocol_dgram` of net/packet/af_packet.c).
fn frames() -> Vec<Vec<u8>> {
    let inner = |frame: &[u8]| matches!(frame[16..18], [0x81, 0] | [0x88, 0xa8]);
    corpus::frames().into_iter().filter(|frame| tag(frame).is_none() || !inner(frame)).collect()
}

/// Captures the corpus at the right end with the cooked header `link_type`.
fn captured(wire: &Wire, builder: Builder, link_type: u32) -> Vec<Seen> {
    let mut capture = Capture::open(wire.right(), builder).unwrap();
    capture.set_link_type(link_type);
    let frames = frames();
    let before = wire.right().stats().rx_packets;
    send(wire, &frames);
    wire.await_arrival(before, frames.len() as u64);
    let (captured, report) = capture.finish(wire.right());
    assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
    assert_eq!(report.capture.lost.total(), 0, "{report}");
    captured.into_iter().map(|captured| captured.seen).collect()
}

/// Returns the outermost tag of a frame, which the kernel removes.
fn tag(frame: &[u8]) -> Option<&[u8]> {
    matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]).then(|| &frame[12..16])
}

#[test]
fn each_frame_has_the_requested_header() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let index = wire.right().interface().index.to_be_bytes();
    for path in PATHS {
        let (long, short) = (captured(&wire, incoming(path), SLL2), captured(&wire, incoming(path), SLL));
        assert_eq!((long.len(), short.len()), (frames().len(), frames().len()), "{path:?}");
        for ((long, short), frame) in long.iter().zip(&short).zip(frames()) {
            let tag_bytes = tag(&frame).map_or(0, <[u8]>::len);
            let payload = &frame[14 + tag_bytes..];
            assert_eq!(long.bytes[4..8], index);
            assert_eq!(long.bytes[8..12], [0, 1, long.bytes[10], 6]);
            assert_eq!(long.bytes[12..18], frame[6..12]);
            assert_eq!(long.bytes[20..], *payload);
            assert_eq!(long.wire_len as usize, 20 + payload.len());
            assert_eq!(short.bytes[..6], [0, long.bytes[10], 0, 1, 0, 6]);
            assert_eq!(short.bytes[6..12], frame[6..12]);
            assert_eq!(short.bytes[14..14 + tag_bytes], *tag(&frame).unwrap_or_default());
            assert_eq!(short.bytes[16 + tag_bytes..], *payload);
            assert_eq!(short.wire_len as usize, 16 + tag_bytes.min(VLAN_BYTES) + payload.len());
        }
    }
}

#[test]
fn filter_matches_cooked_packets_as_libpcap_does() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let compiler = Compiler::offline(SLL2 as i32, 262_144).unwrap();
    for path in PATHS {
        let all = captured(&wire, incoming(path), SLL2);
        for filter in FILTERS {
            let oracle = compiler.compile_for_oracle(filter, true).unwrap();
            let expected: Vec<&Seen> =
                all.iter().filter(|seen| oracle.run(&seen.bytes, seen.wire_len) != 0).collect();
            assert!(!expected.is_empty() && expected.len() < all.len(), "{filter} tests nothing");
            let captured = captured(&wire, incoming(path).filter(filter), SLL2);
            let same = captured.iter().eq(expected.iter().copied());
            assert!(same, "{path:?}: {filter}: {} in place of {}", captured.len(), expected.len());
        }
    }
}

#[test]
fn snaplen_includes_the_header() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in PATHS {
        for seen in captured(&wire, incoming(path).snaplen(40), SLL2) {
            assert_eq!(seen.bytes.len(), 40, "{path:?}");
        }
    }
}

#[test]
fn loopback_is_captured_once_and_other_interfaces_in_both_directions() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    for path in PATHS {
        let lo = wire.right().run(|| Interface::find("lo")).unwrap();
        let builder = Session::builder("any").path(path).filter("udp");
        let capture = Capture::open(wire.right(), builder).unwrap();
        let before = wire.left().stats().rx_packets;
        wire.right().run(|| {
            let socket = std::net::UdpSocket::bind((wire.right().ipv4(), 0)).unwrap();
            socket.send_to(b"within", socket.local_addr().unwrap()).unwrap();
            socket.send_to(b"outward", (wire.left().ipv4(), 9)).unwrap();
        });
        let arrived = || wire.left().stats().rx_packets > before;
        assert!(lab::wait_until(std::time::Duration::from_secs(10), arrived));
        let (captured, report) = capture.finish(wire.right());
        let directions: Vec<_> = captured
            .iter()
            .map(|captured| (captured.seen.bytes[4..8] == lo.index.to_be_bytes(), captured.seen.received))
            .collect();
        assert_eq!(directions, [(true, true), (false, false)], "{path:?}: {report}");
        assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
    }
}

#[test]
fn paths_and_filters_for_a_single_interface_are_refused() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let refused = |builder: Builder| Capture::open(wire.right(), builder).err().unwrap().to_string();
    assert!(refused(incoming(Path::Xdp)).contains("--path v3"));
    assert!(refused(incoming(Path::V3).filter("vlan 5")).contains("vlan"));
}
