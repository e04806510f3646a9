//! Sizes of rings, and the end of reception on a veth pair.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lab::{Wire, wait_until};
use strait_filter::cbpf::Program;
use strait_ledger::Capture;
use strait_os::process::wait_for_receive_paths;
use strait_sys::packet::v2;
use strait_sys::packet::v3::{self, Early};

use super::engine::Engine;
use super::ring::{RawBatch, Ring};
use super::shape::{DEFAULT_FRAMES, RING_BYTES, Shape};
use crate::paths::engine::{Engine as _, Lend};
use crate::paths::recv::{QUEUED_FRAME_BYTES_MAX, Queue};
use crate::paths::v2::{MEMORY_SHARE, memory_bytes};
use crate::{InjectPath, Injector};

const LIMIT: Duration = Duration::from_secs(20);

fn shape(frame_bytes: usize, lanes: usize) -> Shape {
    Shape {
        requested_bytes: None,
        lanes,
        frame_bytes,
        rx_hash: false,
        promiscuous: false,
        ignore_outgoing: true,
        doorbell: false,
        long_retire: false,
        early: Early::Quiet,
        cooked: None,
    }
}

#[test]
fn default_ring_size_depends_on_the_frames_that_it_holds() {
    const JOINED: usize = 65_562;
    let v2_bytes = |shape: &Shape| shape.ring_bytes::<v2::Ring>();
    let slots = |shape: &Shape| v2::Geometry::new(v2_bytes(shape), shape.frame_bytes).slots;
    assert_eq!(shape(JOINED, 1).ring_bytes::<v3::Ring>(), RING_BYTES);
    assert!(shape(1514, 1).ring_bytes::<Queue>() >= DEFAULT_FRAMES * QUEUED_FRAME_BYTES_MAX);
    assert_eq!(slots(&shape(1514, 1)), 4096);
    let alone = shape(JOINED, 1);
    let most = memory_bytes() / MEMORY_SHARE;
    assert!(v2_bytes(&alone) <= most.max(RING_BYTES) && v2_bytes(&alone) <= 144 << 20);
    assert!(slots(&alone) >= DEFAULT_FRAMES - 15 || v2_bytes(&alone) == most);
    assert!(v2_bytes(&shape(JOINED, 64)) <= 18 << 20);
    let requested = Shape { requested_bytes: Some(1 << 20), ..alone };
    assert_eq!(v2_bytes(&requested), 1 << 20);
}

#[test]
fn drain_does_not_wait_for_frames_of_a_batch_dropped_unread() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    drains::<Queue>(&wire);
    drains::<v2::Ring>(&wire);
    drains::<v3::Ring>(&wire);
}

fn drains<R: Ring>(wire: &Wire) {
    const FRAMES: u64 = 40;
    let program = Program::accept_all(1514);
    let interface = wire.right().interface();
    let shape = shape(1514, 1);
    let mut engine = wire.right().run(|| Engine::<R>::open(&interface, &program, &shape)).unwrap();
    engine.accept_matching(&program).unwrap();
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
        if engine.ready(&AtomicBool::new(false)).unwrap() {
            dropped += engine.take(usize::MAX).0.len() as u64;
        }
        dropped == FRAMES
    });
    assert!(all_came, "{}: {dropped}", R::PATH);
    engine.reject_all().unwrap();
    wait_for_receive_paths();
    let mut account = Capture::default();
    let waits = engine.drain(&mut account, 0, Instant::now()).unwrap();
    assert_eq!((waits, account.received, account.lost.unread), (false, FRAMES, FRAMES), "{}", R::PATH);
}
