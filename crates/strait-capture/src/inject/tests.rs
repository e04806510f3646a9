//! Frames that an interface does not take, and batches that fail in the middle.

use std::time::Duration;

use lab::{Wire, wait_until};

use crate::{InjectPath, Injector};

const PATHS: [InjectPath; 3] = [InjectPath::Sendmmsg, InjectPath::Ring, InjectPath::Xdp];
const LIMIT: Duration = Duration::from_secs(10);

fn frame(ether_type: u16, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend(ether_type.to_be_bytes());
    frame.resize(len, 0x5a);
    frame
}

fn push(injector: &mut Injector, frame: &[u8]) {
    injector.buffer().unwrap()[..frame.len()].copy_from_slice(frame);
    injector.push(frame.len());
}

#[test]
fn frames_too_long_for_the_link_are_refused_on_every_path() {
    for path in PATHS {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let mut injector = wire.left().run(|| Injector::open("left", path)).unwrap();
        let before = wire.right().stats().rx_packets;
        for (ether_type, len) in [(0x88b5, 1514), (0x8100, 1518), (0x8100, 60)] {
            push(&mut injector, &frame(ether_type, len));
        }
        for (ether_type, len) in [(0x88b5, 1515), (0x8100, 1519), (0x88a8, 1518), (0x88b5, 1520)] {
            push(&mut injector, &frame(ether_type, len));
        }
        let sent = injector.finish().unwrap();
        assert_eq!((sent.frames, sent.refused, sent.unfinished), (3, 4, 0), "{path:?}");
        assert_eq!(sent.bytes, 1514 + 1518 + 60, "{path:?}");
        assert!(wait_until(LIMIT, || wire.right().stats().rx_packets - before >= 3), "{path:?}");
        assert_eq!(wire.right().stats().rx_packets - before, 3, "{path:?}");
    }
}

#[test]
fn failed_batch_keeps_its_account_and_is_sent_once() {
    for path in PATHS {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let mut injector = wire.left().run(|| Injector::open("left", path)).unwrap();
        let before = wire.right().stats().rx_packets;
        for _ in 0..10 {
            push(&mut injector, &frame(0x88b5, 60));
        }
        injector.flush().unwrap();
        wire.left().set_up(false);
        for _ in 0..5 {
            push(&mut injector, &frame(0x88b5, 100));
        }
        assert!(injector.flush().is_err(), "{path:?}");
        let sent = injector.account();
        assert_eq!((sent.frames, sent.bytes, sent.unfinished), (10, 600, 5), "{path:?}");
        wire.left().set_up(true);
        assert!(wait_until(LIMIT, || wire.left().interface().is_running()));
        let sent = injector.finish().unwrap();
        assert_eq!((sent.frames, sent.bytes, sent.unfinished), (15, 1100, 0), "{path:?}");
        assert!(wait_until(LIMIT, || wire.right().stats().rx_packets - before >= 15), "{path:?}");
        assert_eq!(wire.right().stats().rx_packets - before, 15, "{path:?}");
    }
}

#[test]
fn unfinished_frames_are_counted_in_frames_not_in_chunks() {
    let Some(wire) = Wire::builder().mtu(9000).or_skip() else { return };
    let mut injector = wire.left().run(|| Injector::open("left", InjectPath::Xdp)).unwrap();
    for len in [60, 9014, 5000] {
        push(&mut injector, &frame(0x88b5, len));
    }
    let queued = injector.account();
    assert_eq!((queued.frames, queued.bytes, queued.unfinished), (0, 0, 3));
    let sent = injector.finish().unwrap();
    assert_eq!((sent.frames, sent.bytes, sent.unfinished), (3, 60 + 9014 + 5000, 0));
}

#[test]
fn frames_before_a_failed_one_are_sent_once_and_counted() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let mut injector = wire.left().run(|| Injector::open("left", InjectPath::Sendmmsg)).unwrap();
    let before = wire.left().stats().tx_packets;
    // The last frame is shorter than an Ethernet header.
    for len in [60, 60, 60, 5] {
        push(&mut injector, &frame(0x88b5, 60)[..len]);
    }
    for _ in 0..2 {
        assert!(injector.flush().is_err());
        let sent = injector.account();
        assert_eq!((sent.frames, sent.bytes, sent.unfinished), (3, 180, 1));
    }
    assert_eq!(wire.left().stats().tx_packets - before, 3);
}

#[test]
fn frame_longer_than_the_buffer_is_refused_not_cut() {
    // Loopback accepts 64 KiB.
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in [InjectPath::Sendmmsg, InjectPath::Ring] {
        let mut injector = wire.left().run(|| Injector::open("lo", path)).unwrap();
        injector.buffer().unwrap();
        injector.push(20_000);
        let sent = injector.finish().unwrap();
        assert_eq!((sent.frames, sent.bytes, sent.refused), (0, 0, 1), "{path:?}");
    }
}
