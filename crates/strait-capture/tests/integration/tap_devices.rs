//! The tap on kinds of devices, and on devices that other programs and administrators change.

use std::time::{Duration, Instant};

use lab::{Wire, wait_until};
use strait_capture::{Directions, Path, Session};
use strait_sys::bpf::{Classifier, Link, TcxHook, tcx_programs};

use crate::rig::{Capture, Seen, incoming, send};

const LIMIT: Duration = Duration::from_secs(20);
/// Address of the devices above the wire.
const ADDRESS: &str = "02:00:00:00:00:77";
const FRAMES: usize = 6;

/// Returns frames to [`ADDRESS`], each without a tag and with that of VLAN 7.
fn frames() -> Vec<Vec<u8>> {
    let frame = |number: usize| {
        let tag: &[u8] = if number % 2 == 1 { &[0x81, 0, 0, 7] } else { &[] };
        let addresses = [2, 0, 0, 0, 0, 0x77, 2, 0, 0, 0, 0, 8];
        [&addresses[..], tag, &[0x88, 0xb5], &[number as u8; 50]].concat()
    };
    (0..FRAMES).map(frame).collect()
}

fn ip(wire: &Wire, line: &str) {
    let command = wire.right().command("ip").args(line.split_whitespace());
    let _ = command.run(LIMIT).unwrap().success();
}

/// A device above the interface gets the same frames on the tap as on a packet socket.
#[test]
fn devices_above_an_interface_are_captured_as_on_packet_sockets() {
    for (kind, commands) in [
        ("macvlan", &["link add link right name upper address MAC type macvlan mode bridge"][..]),
        ("bridge", &["link add upper type bridge mcast_snooping 0", "link set right master upper"]),
    ] {
        let Some(wire) = Wire::builder().or_skip().filter(|_| lab::program_or_skip("ip")) else { return };
        for line in commands {
            ip(&wire, &line.replace("MAC", ADDRESS));
        }
        ip(&wire, "link set upper up");
        let open = |path| {
            let builder = Session::builder("upper").path(path).directions(Directions::In);
            Capture::open(wire.right(), builder.filter("ether proto 0x88b5 or vlan")).unwrap()
        };
        let captures = [Path::V3, Path::Tap].map(open);
        let noted = captures[1].notes().iter().any(|note| note.contains("a capture on its ports"));
        assert_eq!(noted, kind == "bridge", "{kind}");
        let before = wire.right().stats().rx_packets;
        send(&wire, &frames());
        wire.await_arrival(before, FRAMES as u64);
        let [sockets, tap] = captures.map(|capture| {
            let (captured, report) = capture.finish(wire.right());
            assert_eq!(report.capture.lost.total(), 0, "{kind}: {report}");
            captured.into_iter().map(|captured| captured.seen).collect::<Vec<Seen>>()
        });
        assert_eq!(tap.len(), FRAMES, "{kind}");
        assert_eq!(tap, sockets, "{kind}");
    }
}

/// A later program sends the frames elsewhere: the tap has them, and does not hinder it.
#[test]
fn frames_that_a_later_program_redirects_are_captured_and_redirected() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let index = wire.right().interface().index;
    // r1 = index; r2 = 0; call bpf_redirect; exit.
    let redirect = [u64::from(index) << 32 | 0x01b7, 0x02b7, 0x17_0000_0085, 0x95];
    let program = Classifier::load("redirect", &redirect).unwrap();
    let link = wire.right().run(|| Link::attach_tcx(&program, index, TcxHook::Ingress)).unwrap();
    let capture =
        Capture::open(wire.right(), incoming().path(Path::Tap).directions(Directions::Both)).unwrap();
    let returned = wire.left().stats().rx_packets;
    send(&wire, &frames());
    let is_back = || wire.left().stats().rx_packets - returned == FRAMES as u64;
    assert!(wait_until(LIMIT, is_back), "{:?}", wire.left().stats());
    let (captured, report) = capture.finish(wire.right());
    let bytes = |received| -> Vec<_> {
        let of_direction = captured.iter().filter(|captured| captured.seen.received == received);
        of_direction.map(|captured| captured.seen.bytes.clone()).collect()
    };
    assert_eq!((bytes(true), bytes(false)), (frames(), frames()), "{report}");
    drop(link);
}

/// The capture ends with an error, and takes its programs from the device that has left.
#[test]
fn interface_that_moves_to_another_namespace_ends_the_capture() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| lab::program_or_skip("ip")) else { return };
    let mut session = wire.right().run(|| incoming().path(Path::Tap).open()).unwrap();
    let mut lane = session.take_lanes().remove(0);
    send(&wire, &frames());
    let mut delivered = 0;
    while delivered < FRAMES {
        delivered += lane.next_batch(Instant::now() + LIMIT).unwrap().unwrap().frames().count();
    }
    let namespace = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(wire.left().namespace()));
    ip(&wire, &format!("link set right netns /proc/{}/fd/{namespace}", std::process::id()));
    let deadline = Instant::now() + LIMIT;
    let error = loop {
        match lane.next_batch(Instant::now() + Duration::from_millis(100)) {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < deadline, "the capture goes on"),
        }
    };
    assert_eq!(error.to_string(), "capture on right: the interface was removed");
    drop((lane, session));
    let programs = wire.left().run(|| {
        let index = strait_os::interface::Interface::find("right").unwrap().index;
        tcx_programs(index, TcxHook::Ingress).unwrap()
    });
    assert!(programs.is_empty(), "{programs:?}");
}
