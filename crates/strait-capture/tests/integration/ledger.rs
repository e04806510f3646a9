//! Ledgers that balance on every path, with several lanes and with full rings: sent = delivered +
//! filtered + lost.

use lab::{Offload, Wire};
use strait_capture::{Directions, Fanout, Path, Queues, Session};
use strait_packet::traffic::{Kind, Traffic};

use crate::rig::{Capture, incoming, send};

const PATHS: [Path; 5] = [Path::Recv, Path::V2, Path::V3, Path::Tap, Path::Xdp];

fn traffic(count: u64) -> Vec<Vec<u8>> {
    let kinds = [Kind::Udp4, Kind::Tcp4, Kind::Udp6];
    let traffic = Traffic::builder().flows(300).kinds(&kinds).build().unwrap();
    let frame = |sequence| {
        let mut frame = vec![0; traffic.frame_len_max()];
        let len = traffic.write_frame(sequence, 1, &mut frame);
        frame.truncate(len);
        frame
    };
    (0..count).map(frame).collect()
}

#[test]
fn filtered_frames_are_counted_on_every_path() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let frames = traffic(3000);
    for path in PATHS {
        let capture = Capture::open(wire.right(), incoming().path(path).filter("udp and ip")).unwrap();
        let before = wire.right().stats().rx_packets;
        send(&wire, &frames);
        wire.await_arrival(before, 3000);
        let (captured, report) = capture.finish(wire.right());
        let account = &report.capture;
        assert_eq!((account.received, account.delivered, account.filtered), (3000, 1000, 2000), "{report}");
        assert_eq!(captured.len(), 1000);
        assert_eq!(account.copied_bytes, account.wire_bytes, "each frame is copied once, by the kernel");
        assert_eq!(account.check_balance(), Ok(()));
    }
}

#[test]
fn losses_of_a_full_ring_are_named_and_the_ledger_balances() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let frames = traffic(60_000);
    for path in PATHS {
        let capture = Capture::open(wire.right(), incoming().path(path).ring(256 << 10)).unwrap();
        let before = wire.right().stats().rx_packets;
        send(&wire, &frames);
        wire.await_arrival(before, 60_000);
        let (captured, report) = capture.finish(wire.right());
        let account = &report.capture;
        assert_eq!(account.received, 60_000, "{report}");
        assert!(account.lost.total() > 0, "{report}");
        assert_eq!(account.lost.other, 0, "{report}");
        assert_eq!(account.delivered, captured.len() as u64);
        assert_eq!(account.check_balance(), Ok(()), "{report}");
    }
}

/// A reader that stops for 100 ms loses none of 20,000 packets of 1,000 bytes a second, with any
/// offloads.
#[test]
fn default_ring_holds_two_thousand_frames_for_a_stopped_reader() {
    const FRAMES: u64 = 2000;
    let traffic = Traffic::builder().flows(300).sizes("1004".parse().unwrap()).build().unwrap();
    let frame = |sequence| {
        let mut frame = vec![0; traffic.frame_len_max()];
        traffic.write_frame(sequence, 1, &mut frame);
        frame
    };
    let frames: Vec<Vec<u8>> = (0..FRAMES).map(frame).collect();
    assert_eq!(frames[0].len(), 1000);
    for offloads in [&[][..], &[Offload::Gro, Offload::Gso, Offload::Tso]] {
        let Some(wire) = Wire::builder().offloads(offloads).or_skip() else { return };
        for path in PATHS {
            let builder = Session::builder("right").directions(Directions::In).path(path);
            let capture = Capture::open(wire.right(), builder).unwrap();
            let before = wire.right().stats().rx_packets;
            send(&wire, &frames);
            wire.await_arrival(before, FRAMES);
            let (captured, report) = capture.finish(wire.right());
            let account = &report.capture;
            assert_eq!((account.received, account.delivered), (FRAMES, FRAMES), "{offloads:?}: {report}");
            assert_eq!(captured.len() as u64, FRAMES);
            assert!(captured.iter().all(|frame| frame.seen.bytes.len() == 1000));
        }
    }
}

#[test]
fn fanout_gives_each_frame_to_one_lane_and_each_flow_to_the_same_lane() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let frames = traffic(3000);
    for path in [Path::Recv, Path::V2, Path::V3] {
        let builder = incoming().path(path).queues(Queues::These(vec![0, 1, 2])).fanout(Fanout::Hash);
        let capture = Capture::open(wire.right(), builder).unwrap();
        let before = wire.right().stats().rx_packets;
        send(&wire, &frames);
        wire.await_arrival(before, 3000);
        let (captured, report) = capture.finish(wire.right());
        assert_eq!(captured.len(), 3000, "{report}");
        assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
        let used = report.lanes.iter().filter(|lane| lane.capture.delivered > 0).count();
        assert_eq!(used, 3, "{report}");
    }
}

#[test]
fn xdp_has_a_lane_for_each_queue() {
    let Some(wire) = Wire::builder().queues(2).or_skip() else { return };
    let frames = traffic(2000);
    let capture = Capture::open(wire.right(), incoming().path(Path::Xdp)).unwrap();
    assert_eq!(capture.mode(), "native copy");
    let before = wire.right().stats().rx_packets;
    send(&wire, &frames);
    wire.await_arrival(before, 2000);
    let (captured, report) = capture.finish(wire.right());
    assert_eq!((captured.len(), report.lanes.len()), (2000, 2), "{report}");
    assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
}
