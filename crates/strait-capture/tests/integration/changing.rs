//! Changes of a running capture: filter, directions, and reads of its counters.

use std::time::{Duration, Instant};

use lab::Wire;
use strait_capture::{Directions, ErrorKind, InjectPath, Injector, Interrupter, Lane, Path, Session};
use strait_filter::cbpf::{Instruction, Program};
use strait_packet::traffic::{Kind, Traffic};
use strait_sys::libpcap::Compiler;

use crate::rig::{drain, incoming};

const PATHS: [Path; 5] = [Path::Recv, Path::V2, Path::V3, Path::Tap, Path::Xdp];
const FRAMES: u64 = 60;
const LIMIT: Duration = Duration::from_secs(10);

fn compiled(wire: &Wire, text: &str) -> Program {
    let instructions =
        wire.right().run(|| Compiler::live("right", 262_144).unwrap().compile(text, true).unwrap());
    Program::check(instructions.into_iter().map(Instruction::from).collect()).unwrap()
}

/// Sends as many UDP as TCP frames from the left end and waits until they have arrived.
fn send(wire: &Wire) {
    let before = wire.right().stats().rx_packets;
    wire.left().run(|| {
        let traffic = Traffic::builder().flows(2).kinds(&[Kind::Udp4, Kind::Tcp4]).build().unwrap();
        let mut injector = Injector::open("left", InjectPath::Sendmmsg).unwrap();
        for sequence in 0..FRAMES {
            let len = traffic.write_frame(sequence, 1, injector.buffer().unwrap());
            injector.push(len);
        }
        injector.finish().unwrap();
    });
    wire.await_arrival(before, FRAMES);
}

fn open(wire: &Wire, path: Path) -> (Session, Vec<Lane>) {
    let mut session = wire.right().run(|| incoming().path(path).open()).unwrap();
    let lanes = session.take_lanes();
    (session, lanes)
}

/// Returns the IP protocols of the captured frames, and checks that the account balances.
fn protocols(wire: &Wire, mut session: Session, lanes: Vec<Lane>) -> Vec<u8> {
    wire.right().run(|| session.stop()).unwrap();
    let (mut protocols, mut accounts) = (Vec::new(), Vec::new());
    for mut lane in lanes {
        protocols.extend(drain(&mut lane).iter().map(|captured| captured.seen.bytes[23]));
        accounts.push(lane.finish().unwrap());
    }
    let report = session.report(accounts);
    assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
    assert_eq!(report.capture.delivered, protocols.len() as u64, "{report}");
    protocols
}

#[test]
fn new_filter_applies_to_every_frame_lent_later() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (udp, tcp) = (compiled(&wire, "udp"), compiled(&wire, "tcp"));
    for path in PATHS {
        let (mut session, mut lanes) = open(&wire, path);
        send(&wire);
        wire.right().run(|| session.set_filter(&mut lanes, &udp)).unwrap();
        send(&wire);
        wire.right().run(|| session.set_filter(&mut lanes, &tcp)).unwrap();
        send(&wire);
        let protocols = protocols(&wire, session, lanes);
        assert_eq!(protocols, [6].repeat(FRAMES as usize / 2), "{path:?}");
    }
}

#[test]
fn without_privilege_af_xdp_alone_keeps_the_filter() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let udp = compiled(&wire, "udp and inbound");
    for path in PATHS {
        let (mut session, mut lanes) = open(&wire, path);
        let counters = lanes[0].live_counters();
        send(&wire);
        let set = std::thread::scope(|scope| {
            let unprivileged = || {
                strait_os::process::drop_capabilities(false).unwrap();
                session.set_filter(&mut lanes, &udp)
            };
            scope.spawn(unprivileged).join().unwrap()
        });
        if path == Path::Xdp {
            assert_eq!(set.unwrap_err().kind(), ErrorKind::Refused);
            assert_eq!(protocols(&wire, session, lanes).len() as u64, FRAMES);
            continue;
        }
        set.unwrap();
        send(&wire);
        assert!(counters.read().unwrap().received >= FRAMES / 2);
        let protocols = protocols(&wire, session, lanes);
        assert_eq!(protocols, [17].repeat(FRAMES as usize / 2), "{path:?}");
        assert!(counters.read().unwrap().received <= FRAMES, "those of the first filter do not count");
    }
}

/// Frames in the ring that were reported still count after a new filter removes them, and later
/// frames add to them.
#[test]
fn reported_count_does_not_decrease_with_a_new_filter() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let tcp = compiled(&wire, "tcp and inbound");
    for path in PATHS {
        let (mut session, mut lanes) = open(&wire, path);
        let counters = lanes[0].live_counters();
        let received = || counters.read().unwrap().received;
        send(&wire);
        assert!(lab::wait_until(LIMIT, || received() == FRAMES), "{path:?}: {}", received());
        wire.right().run(|| session.set_filter(&mut lanes, &tcp)).unwrap();
        assert_eq!(received(), FRAMES, "{path:?}: the filter took frames off the count");
        send(&wire);
        let total = FRAMES + FRAMES / 2;
        assert!(lab::wait_until(LIMIT, || received() == total), "{path:?}: {}", received());
        assert_eq!(protocols(&wire, session, lanes), [6].repeat(FRAMES as usize / 2), "{path:?}");
        assert_eq!(received(), total, "{path:?}");
    }
}

/// Runs `test` with a filter that exceeds a socket's memory (net.core.optmem_max), so that it runs
/// in this process.
fn with_long_filter(wire: &Wire, test: impl FnOnce(&Program)) {
    let ports: Vec<String> = (1..300).map(|port| format!("udp port {}", 2 * port)).collect();
    let long = compiled(wire, &format!("{} or udp port 20000", ports.join(" or ")));
    assert!(long.instructions().len() > 1000);
    let optmem = "/proc/sys/net/core/optmem_max";
    let Ok(before) = wire.right().run(|| std::fs::read_to_string(optmem)) else {
        return lab::skip("net.core.optmem_max is not visible in a namespace");
    };
    wire.right().run(|| std::fs::write(optmem, "4096")).unwrap();
    test(&long);
    wire.right().run(|| std::fs::write(optmem, before)).unwrap();
}

#[test]
fn filter_that_the_kernel_refuses_runs_in_this_process() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    with_long_filter(&wire, |long| {
        for path in [Path::Recv, Path::V2, Path::V3] {
            let (mut session, mut lanes) = open(&wire, path);
            let set = wire.right().run(|| session.set_filter(&mut lanes, long));
            send(&wire);
            let noted = session.notes().iter().any(|note| note.contains("runs in this process"));
            let protocols = protocols(&wire, session, lanes);
            set.unwrap();
            assert_eq!((noted, protocols), (true, [17].repeat(FRAMES as usize / 2)), "{path:?}");
        }
    });
}

/// Such a filter may reject frames that were already reported.
#[test]
fn reported_count_does_not_decrease_with_a_userspace_filter() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    with_long_filter(&wire, |long| {
        for path in [Path::Recv, Path::V2, Path::V3] {
            let (mut session, mut lanes) = open(&wire, path);
            let counters = lanes[0].live_counters();
            wire.right().run(|| session.set_filter(&mut lanes, long)).unwrap();
            send(&wire);
            let received = || counters.read().unwrap().received;
            assert!(lab::wait_until(LIMIT, || received() == FRAMES), "{path:?}: {}", received());
            assert_eq!(protocols(&wire, session, lanes), [17].repeat(FRAMES as usize / 2), "{path:?}");
            assert_eq!(received(), FRAMES, "{path:?}: the filter took frames off the count");
        }
    });
}

#[test]
fn new_direction_applies_to_every_frame_lent_later() {
    const UDP: u8 = 17;
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    for path in [Path::Recv, Path::V2, Path::V3, Path::Tap] {
        let (mut session, mut lanes) = open(&wire, path);
        send(&wire);
        session.set_directions(&mut lanes, Directions::Out).unwrap();
        send(&wire);
        let before = wire.left().stats().rx_packets;
        let socket = wire.right().run(|| std::net::UdpSocket::bind((wire.right().ipv4(), 0)).unwrap());
        socket.send_to(b"outward", (wire.left().ipv4(), 9)).unwrap();
        assert!(lab::wait_until(LIMIT, || wire.left().stats().rx_packets > before));
        assert_eq!(protocols(&wire, session, lanes), [UDP], "{path:?}");
    }
    let (mut session, mut lanes) = open(&wire, Path::Xdp);
    assert!(session.set_directions(&mut lanes, Directions::Out).is_err());
    session.set_directions(&mut lanes, Directions::Both).unwrap();
}

#[test]
fn interrupt_ends_a_wait() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in PATHS {
        let (_session, mut lanes) = open(&wire, path);
        let interrupter = Interrupter::new().unwrap();
        lanes[0].set_interrupter(interrupter.clone());
        let far = Instant::now() + Duration::from_mins(10);
        // An interruption before the wait and one during it.
        interrupter.interrupt();
        assert!(lanes[0].next_batch(far).unwrap().is_some_and(|batch| batch.is_empty()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                interrupter.interrupt();
            });
            assert!(lanes[0].next_batch(far).unwrap().is_some_and(|batch| batch.is_empty()));
        });
        assert!(Instant::now() < far, "{path:?}: the waits ended by their deadline");
        let soon = Instant::now() + Duration::from_millis(20);
        assert!(lanes[0].next_batch(soon).unwrap().is_some_and(|batch| batch.is_empty()));
        assert!(Instant::now() >= soon, "an interruption ends one wait");
    }
}
