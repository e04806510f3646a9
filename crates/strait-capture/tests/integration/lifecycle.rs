//! Lifecycle tests. An invalid option and a removed interface each produce one clear error. A
//! capture survives link flaps. No frame that arrived is lost.

use std::time::{Duration, Instant};

use lab::{End, Wire, wait_until};
use strait_capture::{Directions, Error, Lane, Path, Queues, Session, Wait};
use strait_ledger::Report;
use strait_os::netlink::Netlink;
use strait_sys::Kind;

use crate::corpus::frames;
use crate::rig::{Capture, Captured, Seen, drain, incoming, send};

const LIMIT: Duration = Duration::from_secs(10);

fn error_of(wire: &Wire, builder: strait_capture::Builder) -> Error {
    match Capture::open(wire.right(), builder) {
        Ok(_) => panic!("the session opened, but an error was expected"),
        Err(error) => error,
    }
}

#[test]
fn unknown_interface_is_a_usage_error_with_its_name() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in [Path::Auto, Path::Recv, Path::Xdp] {
        let error = error_of(&wire, Session::builder("nosuch0").path(path));
        assert_eq!(error.kind(), Kind::Usage, "{error}");
        assert!(error.to_string().contains("nosuch0"), "{error}");
    }
}

#[test]
fn invalid_filter_is_a_usage_error_with_libpcaps_message() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let error = error_of(&wire, incoming().filter("tcp prot 80"));
    assert_eq!(error.kind(), Kind::Usage, "{error}");
    assert!(error.to_string().contains("syntax error"), "{error}");
}

#[test]
fn options_out_of_range_are_usage_errors() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for builder in [
        incoming().snaplen(0),
        incoming().snaplen(300_000),
        incoming().ring(1),
        incoming().ring(usize::MAX),
        incoming().queues(Queues::These(vec![])),
        incoming().path(Path::Xdp).queues(Queues::These(vec![7])),
        incoming().path(Path::Xdp).directions(Directions::Out),
        incoming().path(Path::Tap).queues(Queues::These((0..64).collect())),
    ] {
        let error = error_of(&wire, builder);
        assert_eq!(error.kind(), Kind::Usage, "{error}");
    }
}

#[test]
fn zero_copy_is_refused_without_driver_support() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let error = error_of(&wire, incoming().path(Path::XdpZeroCopy));
    assert_eq!(error.kind(), Kind::Refused, "{error}");
}

#[test]
fn native_program_on_a_veth_notes_its_cost_to_the_host() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let warns = |path| {
        let session = wire.right().run(|| incoming().path(path).open()).unwrap();
        session.notes().iter().any(|note| note.contains("right is a veth") && note.contains("--path tap"))
    };
    assert_eq!([Path::XdpNative, Path::XdpGeneric, Path::Tap].map(warns), [true, false, false]);
}

#[test]
fn frames_of_an_mtu_that_grew_are_whole_except_in_slots() {
    const SMALLEST_RING: usize = 1 << 20;
    let Some(wire) = Wire::builder().or_skip() else { return };
    let open = |path| {
        let builder = Session::builder("right").directions(Directions::In).path(path).ring(SMALLEST_RING);
        Capture::open(wire.right(), builder).unwrap()
    };
    let captures = [Path::Recv, Path::V3, Path::Tap, Path::V2].map(|path| (path, open(path)));
    assert!(captures.iter().all(|(_, capture)| capture.link().mtu_beyond_slots.is_none()));
    for end in [wire.left(), wire.right()] {
        let index = end.interface().index;
        end.run(|| Netlink::open().unwrap().set_mtu(index, 9000).unwrap());
    }
    let mut long = frames().swap_remove(0);
    long.resize(5042, 7);
    let before = wire.right().stats().rx_packets;
    send(&wire, &[long.clone()]);
    wire.await_arrival(before, 1);
    for (path, capture) in captures {
        assert_eq!(capture.link().mtu_beyond_slots.is_some(), path == Path::V2, "{path:?}");
        let (captured, report) = capture.finish(wire.right());
        let [Captured { seen: Seen { bytes, wire_len, .. }, .. }] = &captured[..] else { panic!("{report}") };
        let is_cut = path == Path::V2;
        assert_eq!(report.capture.events.snaplen_cuts, u64::from(is_cut), "{path:?}: {report}");
        assert_eq!((*wire_len, bytes.len() < long.len()), (5042, is_cut), "{path:?}: {}", bytes.len());
        assert!(long.starts_with(bytes), "{path:?}");
    }
}

#[test]
fn frames_sent_by_the_host_have_direction_out() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    for path in [Path::Recv, Path::V2, Path::V3, Path::Tap] {
        let builder = Session::builder("left").path(path).directions(Directions::Out).filter("udp");
        let capture = Capture::open(wire.left(), builder).unwrap();
        let before = wire.right().stats().rx_packets;
        let socket = wire.left().run(|| std::net::UdpSocket::bind((wire.left().ipv4(), 0)).unwrap());
        socket.send_to(b"outward", (wire.right().ipv4(), 9)).unwrap();
        wire.await_arrival(before, 1);
        let (captured, report) = capture.finish(wire.left());
        assert_eq!(captured.len(), 1, "{report}");
        assert!(!captured[0].seen.received);
        assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
    }
}

#[test]
fn loopback_delivers_each_frame_once() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in [Path::Recv, Path::V2, Path::V3, Path::Tap] {
        let capture = Capture::open(wire.left(), Session::builder("lo").path(path).filter("udp")).unwrap();
        let socket = wire.left().run(|| std::net::UdpSocket::bind(("127.0.0.1", 0)).unwrap());
        let address = socket.local_addr().unwrap();
        for _ in 0..3 {
            socket.send_to(b"to myself", address).unwrap();
        }
        let (captured, report) = capture.finish(wire.left());
        assert_eq!((captured.len(), report.capture.filtered), (3, 0), "{report}");
        assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
    }
}

#[test]
fn links_without_a_header_are_captured_and_unknown_links_are_refused() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !lab::program_or_skip("ip") {
        return;
    }
    let ip = |line: &str| wire.right().command("ip").args(line.split(' ')).run(LIMIT).unwrap().success();
    ip("tuntap add mode tun name plain");
    ip("link set plain up");
    for path in [Path::Auto, Path::Tap] {
        let builder = Session::builder("plain").path(path).filter("udp port 53");
        let session = wire.right().run(|| builder.open()).unwrap();
        assert_eq!(session.link_type(), 101, "{path:?}: LINKTYPE_RAW");
    }
    let error = error_of(&wire, Session::builder("plain").path(Path::Xdp));
    assert!(error.to_string().contains("--path v3"), "{error}");
}

/// Reads a lane until it fails, and returns the frames that it delivered before.
fn until_failure(wire: &Wire, path: Path, wait: Wait, fail: impl Fn()) -> (usize, Error) {
    let mut session = wire.right().run(|| incoming().path(path).wait(wait).open()).unwrap();
    let mut lane = session.take_lanes().remove(0);
    let before = wire.right().stats().rx_packets;
    send(wire, &frames());
    wire.await_arrival(before, frames().len() as u64);
    fail();
    let mut delivered = 0;
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        match lane.next_batch(Instant::now() + Duration::from_millis(100)) {
            Ok(Some(mut batch)) => delivered += batch.frames().count(),
            Ok(None) => panic!("the lane ended, although it was not stopped"),
            Err(error) => return (delivered, error),
        }
    }
    panic!("{path:?}: the removal of the interface was not reported");
}

/// Reads all lanes until `done` returns true for the number of frames read. Returns that number.
fn read_until(lanes: &mut [Lane], mut done: impl FnMut(usize) -> bool) -> usize {
    let deadline = Instant::now() + LIMIT;
    let mut delivered = 0;
    while !done(delivered) {
        assert!(Instant::now() < deadline, "{delivered} frames came, and no more");
        for lane in lanes.iter_mut() {
            let batch = lane.next_batch(Instant::now() + Duration::from_millis(10)).unwrap();
            delivered += batch.expect("the lane ended, although it was not stopped").frames().count();
        }
    }
    delivered
}

fn survive_flaps(path: Path, wait: Wait, lanes: u32) {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let builder = incoming().path(path).wait(wait).queues(Queues::These((0..lanes).collect()));
    let mut session = wire.right().run(|| builder.open()).unwrap();
    let mut lanes = session.take_lanes();
    for flap in 0..3 {
        let before = wire.right().stats().rx_packets;
        send(&wire, &frames());
        wire.await_arrival(before, frames().len() as u64);
        // XDP's frames in progress would be lost with the link.
        let all = |delivered| delivered == frames().len();
        assert!(all(read_until(&mut lanes, all)), "{path:?}, {wait:?}: flap {flap}");
        wire.right().set_up(false);
        read_until(&mut lanes, |_| session.link().is_down);
        wire.right().set_up(true);
        read_until(&mut lanes, |_| !session.link().is_down);
        let running = || wire.left().interface().is_running() && wire.right().interface().is_running();
        assert!(wait_until(LIMIT, running));
        assert_eq!(session.link().downs, flap + 1, "{path:?}, {wait:?}");
    }
    wire.right().run(|| session.stop()).unwrap();
    let mut accounts = Vec::new();
    for mut lane in lanes {
        drain(&mut lane);
        accounts.push(lane.finish().unwrap());
    }
    let report = session.report(accounts);
    let account = &report.capture;
    assert_eq!((account.delivered, account.events.link_downs), (3 * frames().len() as u64, 3), "{report}");
    assert!(report.link_down_seconds > 0.0, "{report}");
    assert_eq!(account.check_balance(), Ok(()), "{report}");
}

#[test]
fn capture_continues_after_its_link_was_down() {
    for path in [Path::Recv, Path::V2, Path::V3, Path::Tap, Path::Xdp] {
        for wait in [Wait::Balanced, Wait::Latency, Wait::Busy] {
            survive_flaps(path, wait, 1);
        }
    }
}

#[test]
fn flap_counts_once_for_all_lanes() {
    for path in [Path::Recv, Path::V2, Path::V3] {
        survive_flaps(path, Wait::Balanced, 3);
    }
}

/// Flaps the link too briefly for a polling lane to notice, and checks that every flap is counted.
/// The lane reads only after every second flap. Returns None if the test was skipped.
fn count_short_flaps(path: Path, wait: Wait, flap: impl Fn(&Wire)) -> Option<Report> {
    const FLAPS: usize = 20;
    let wire = Wire::builder().or_skip()?;
    let mut session = wire.right().run(|| incoming().path(path).wait(wait).open()).unwrap();
    let mut lanes = session.take_lanes();
    for nth in 0..FLAPS {
        flap(&wire);
        if nth % 2 == 1 {
            let batch = lanes[0].next_batch(Instant::now() + Duration::from_millis(5)).unwrap();
            assert!(batch.expect("the lane ended, although it was not stopped").is_empty());
        }
    }
    let running = || wire.left().interface().is_running() && wire.right().interface().is_running();
    assert!(wait_until(LIMIT, running));
    let before = wire.right().stats().rx_packets;
    send(&wire, &frames());
    wire.await_arrival(before, frames().len() as u64);
    read_until(&mut lanes, |delivered| delivered == frames().len());
    wire.right().run(|| session.stop()).unwrap();
    let mut lane = lanes.remove(0);
    drain(&mut lane);
    let report = session.report(vec![lane.finish().unwrap()]);
    assert_eq!(report.capture.delivered, frames().len() as u64, "{path:?}, {wait:?}: {report}");
    assert_eq!(report.capture.check_balance(), Ok(()), "{path:?}, {wait:?}: {report}");
    let events = report.capture.events;
    let counted = events.link_downs + events.carrier_losses;
    assert_eq!(counted, FLAPS as u64, "{path:?}, {wait:?}: {report}");
    Some(report)
}

fn flap(end: &End) {
    end.set_up(false);
    end.set_up(true);
}

#[test]
fn every_short_flap_is_counted() {
    for path in [Path::Recv, Path::V2, Path::V3, Path::Tap, Path::Xdp] {
        for wait in [Wait::Balanced, Wait::Busy] {
            let Some(report) = count_short_flaps(path, wait, |wire| flap(wire.right())) else { return };
            assert_eq!(report.capture.events.carrier_losses, 0, "{path:?}, {wait:?}: {report}");
        }
    }
}

#[test]
fn every_short_carrier_loss_is_counted() {
    for path in [Path::Recv, Path::V2, Path::V3, Path::Tap, Path::Xdp] {
        for wait in [Wait::Balanced, Wait::Busy] {
            let Some(report) = count_short_flaps(path, wait, |wire| flap(wire.left())) else { return };
            assert_eq!(report.capture.events.link_downs, 0, "{path:?}, {wait:?}: {report}");
        }
    }
}

#[test]
fn carrier_loss_is_distinguished_from_link_down() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    wire.left().set_up(false);
    assert!(wait_until(LIMIT, || !wire.right().interface().is_running()));
    let mut session = wire.right().run(|| incoming().path(Path::V3).open()).unwrap();
    let mut lanes = session.take_lanes();
    let state = || (session.link().is_down, session.link().has_no_carrier);
    assert_eq!(state(), (false, true), "the link has no carrier at the start");
    wire.left().set_up(true);
    read_until(&mut lanes, |_| state() == (false, false));
    wire.right().set_up(false);
    read_until(&mut lanes, |_| state() == (true, false));
    wire.left().set_up(false);
    wire.right().set_up(true);
    read_until(&mut lanes, |_| state() == (false, true));
    let link = session.link();
    assert_eq!((link.downs, link.carrier_losses), (1, 0));
    assert!(!link.down_for.is_zero() && !link.no_carrier_for.is_zero());
}

#[test]
fn removed_interface_is_reported_after_its_last_frame() {
    for path in [Path::Recv, Path::V2, Path::V3, Path::Tap, Path::Xdp] {
        for wait in [Wait::Balanced, Wait::Busy] {
            let Some(wire) = Wire::builder().or_skip() else { return };
            let (delivered, error) = until_failure(&wire, path, wait, || wire.right().delete());
            assert_eq!(delivered, frames().len(), "{path:?}, {wait:?}: {error}");
            assert_eq!(
                error.to_string(),
                "capture on right: the interface was removed",
                "{path:?}, {wait:?}"
            );
        }
    }
}

/// Longer than the interval at which a lane checks a link that is down.
const SLOW_READER: Duration = Duration::from_millis(120);

#[test]
fn slow_reader_gets_every_frame_of_a_link_that_is_deleted() {
    let sent = frames().len() as u64;
    for path in [Path::Recv, Path::V2, Path::V3, Path::Tap, Path::Xdp] {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let mut session = wire.right().run(|| incoming().path(path).open()).unwrap();
        let mut lane = session.take_lanes().remove(0);
        let counters = lane.live_counters();
        send(&wire, &frames());
        // XDP's frames in progress are lost with the link.
        assert!(wait_until(LIMIT, || counters.read().unwrap().received == sent), "{path:?}");
        wire.right().set_up(false);
        lane.check_link().unwrap();
        assert!(session.link().is_down, "{path:?}");
        wire.right().delete();
        let mut read = 0;
        let error = loop {
            // The lane checks the link before each of the first frames.
            std::thread::sleep(if read < 4 { SLOW_READER } else { Duration::ZERO });
            match lane.next_batch_of(1, Instant::now() + LIMIT) {
                Ok(Some(mut batch)) => read += batch.frames().count() as u64,
                Ok(None) => panic!("the lane ended, although it was not stopped"),
                Err(error) => break error,
            }
        };
        assert_eq!(read, sent, "{path:?}: {error}");
        assert_eq!(error.to_string(), "capture on right: the interface was removed", "{path:?}");
    }
}

#[test]
fn xdp_detaches_its_program_at_the_end_and_passes_other_frames() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let receiver = wire.right().run(|| std::net::UdpSocket::bind((wire.right().ipv4(), 0)).unwrap());
    receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let capture = Capture::open(wire.right(), incoming().path(Path::Xdp).filter("tcp")).unwrap();
    let sender = wire.left().run(|| std::net::UdpSocket::bind((wire.left().ipv4(), 0)).unwrap());
    sender.send_to(b"through", receiver.local_addr().unwrap()).unwrap();
    let mut bytes = [0; 16];
    assert_eq!(receiver.recv(&mut bytes).unwrap(), 7);
    let (captured, report) = capture.finish(wire.right());
    assert!(captured.is_empty(), "{report}");
    assert_eq!(report.capture.filtered, 1, "{report}");
    let index = wire.right().interface().index;
    let attached = || wire.right().run(|| strait_os::netlink::Netlink::open()?.xdp(index)).unwrap();
    assert!(wait_until(Duration::from_secs(5), || attached().is_none()));
}
