//! Sizes of rings, and the end of an intake, on a veth pair.

use std::time::{Duration, Instant};

use lab::{Wire, wait_until};
use strait_filter::cbpf::Program;
use strait_ledger::Capture;
use strait_sys::packet::v2;
use strait_sys::packet::v3::Early;
use strait_sys::process::wait_for_readers;

use super::ring::{HELD_FRAMES, MEMORY_SHARE, QUEUED_FRAME_BYTES_MAX, RING_BYTES, memory_bytes};
use super::{Engine, Kind, Shape};
use crate::{InjectPath, Injector};

const LIMIT: Duration = Duration::from_secs(20);

fn shape(kind: Kind, frame_bytes: usize, lanes: usize) -> Shape {
    Shape {
        kind,
        asked_bytes: None,
        lanes,
        frame_bytes,
        rx_hash: false,
        promiscuous: false,
        ignore_outgoing: true,
        doorbell: false,
        patient: false,
        early: Early::Quiet,
        cooked: None,
    }
}

#[test]
fn a_ring_is_sized_by_the_frames_that_it_holds() {
    const JOINED: usize = 65_562;
    let slots = |shape: &Shape| v2::Geometry::new(shape.ring_bytes(), shape.frame_bytes).slots;
    assert_eq!(shape(Kind::V3, JOINED, 1).ring_bytes(), RING_BYTES);
    assert!(shape(Kind::Recv, 1514, 1).ring_bytes() >= HELD_FRAMES * QUEUED_FRAME_BYTES_MAX);
    assert_eq!(slots(&shape(Kind::V2, 1514, 1)), 4096);
    let alone = shape(Kind::V2, JOINED, 1);
    let most = memory_bytes() / MEMORY_SHARE;
    assert!(alone.ring_bytes() <= most.max(RING_BYTES) && alone.ring_bytes() <= 144 << 20);
    assert!(slots(&alone) >= HELD_FRAMES - 15 || alone.ring_bytes() == most);
    assert!(shape(Kind::V2, JOINED, 64).ring_bytes() <= 18 << 20);
    let asked = Shape { asked_bytes: Some(1 << 20), ..alone };
    assert_eq!(asked.ring_bytes(), 1 << 20);
}

#[test]
fn frames_of_a_batch_that_was_dropped_unread_are_not_waited_for() {
    const FRAMES: u64 = 40;
    let Some(wire) = Wire::builder().or_skip() else { return };
    for kind in [Kind::Recv, Kind::V2, Kind::V3] {
        let program = Program::accept_all(1514);
        let interface = wire.right().interface();
        let shape = shape(kind, 1514, 1);
        let mut engine = wire.right().run(|| Engine::open(&interface, &program, &shape)).unwrap();
        engine.admit(&program).unwrap();
        wire.left().run(|| {
            let mut injector = Injector::open("left", InjectPath::Sendmmsg).unwrap();
            for _ in 0..FRAMES {
                injector.buffer().unwrap()[..60].fill(0xff);
                injector.push(60);
            }
            injector.finish().unwrap();
        });
        let mut dropped = 0;
        let all_came = wait_until(LIMIT, || {
            if engine.ready().unwrap() {
                dropped += engine.take(usize::MAX).len() as u64;
            }
            dropped == FRAMES
        });
        assert!(all_came, "{kind:?}: {dropped}");
        engine.reject_all().unwrap();
        wait_for_readers();
        let mut account = Capture::default();
        let waits = engine.drain(&mut account, 0, Instant::now()).unwrap();
        assert_eq!((waits, account.received, account.lost.unread), (false, FRAMES, FRAMES), "{kind:?}");
    }
}
