//! AF_XDP on real links: fragments, the fallback to generic mode, refusals, losses, waiting.
//!
//! Common properties of all paths (filters, snaplen, metadata) are tested in `tests/`.

mod tags;

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use lab::Wire;
use strait_filter::xdp::pass_program;
use strait_ledger::Report;
use strait_os::netlink::Netlink;
use strait_sys::Kind;
use strait_sys::bpf::{AttachMode, Link, LoadOptions, XdpProgram, program_info};

use crate::paths::engine::Engine as _;
use crate::wait::{LINK_CHECK_SPINS, Step};
use crate::{Builder, Error, InjectPath, Injector, Lane, Path, Queues, Session, Vlan, Wait};

const LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of a frame in one chunk.
const CHUNK_ROOM: usize = 4096 - 256;

fn builder() -> Builder {
    Session::builder("right").path(Path::Xdp)
}

fn open(wire: &Wire, builder: Builder) -> (Session, Vec<Lane>) {
    let mut session = wire.right().run(|| builder.open()).unwrap();
    let lanes = session.take_lanes();
    (session, lanes)
}

fn refused(wire: &Wire, builder: Builder) -> Error {
    match wire.right().run(|| builder.open()) {
        Ok(_) => panic!("this cannot be opened"),
        Err(error) => error,
    }
}

/// Returns an IPv4 frame of `len` bytes with its number.
fn frame(number: usize, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let [high, low] = ((len - 14) as u16).to_be_bytes();
    frame.extend([0x45, 0, high, low, 0, 0, 0, 0, 64, 253, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    frame.extend((number as u32).to_be_bytes());
    frame.extend((frame.len()..len).map(|i| (i + number) as u8));
    frame
}

fn send(wire: &Wire, frames: &[Vec<u8>]) {
    wire.left().run(|| {
        let mut injector = Injector::open("left", InjectPath::Sendmmsg).unwrap();
        for frame in frames {
            injector.buffer().unwrap()[..frame.len()].copy_from_slice(frame);
            injector.push(frame.len());
        }
        assert_eq!(injector.finish().unwrap().frames, frames.len() as u64);
    });
}

/// Reads until `count` frames have arrived.
fn read(lane: &mut Lane, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let deadline = Instant::now() + LIMIT;
    while frames.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} frames came", frames.len());
        let mut batch = lane.next_batch(deadline).unwrap().expect("it was not stopped");
        frames.extend(batch.frames().map(|frame| frame.bytes.to_vec()));
    }
    frames
}

/// Stops the session and reads the rest.
fn finish(mut session: Session, lanes: Vec<Lane>) -> (usize, Report) {
    session.stop().unwrap();
    let mut count = 0;
    let mut accounts = Vec::new();
    for mut lane in lanes {
        while let Some(mut batch) = lane.next_batch(Instant::now() + LIMIT).unwrap() {
            count += batch.frames().count();
        }
        accounts.push(lane.finish().unwrap());
    }
    (count, session.report(accounts))
}

#[test]
fn jumbo_frames_are_delivered_whole() {
    let Some(wire) = Wire::builder().mtu(9000).or_skip() else { return };
    let (session, mut lanes) = open(&wire, builder());
    assert_eq!(session.mode(), "native copy");
    let frames: Vec<_> = (0..600).map(|i| frame(i, 60 + i * 997 % 8955)).collect();
    let mut seen = Vec::new();
    for window in frames.chunks(50) {
        send(&wire, window);
        seen.extend(read(&mut lanes[0], window.len()));
    }
    assert_eq!(seen, frames);
    let (rest, report) = finish(session, lanes);
    assert_eq!((rest, report.capture.delivered, report.capture.lost.total()), (0, 600, 0), "{report}");
    let bytes =
        |frames: &mut dyn Iterator<Item = &Vec<u8>>| frames.map(|frame| frame.len() as u64).sum::<u64>();
    assert_eq!(report.capture.wire_bytes, bytes(&mut frames.iter()));

    let joined = bytes(&mut frames.iter().filter(|frame| frame.len() > CHUNK_ROOM));
    assert!(joined > 0);
    assert_eq!(report.capture.copied_bytes, report.capture.wire_bytes + joined, "{report}");
    assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
}

#[test]
fn filter_sees_every_fragment_and_the_snaplen_cuts_the_joined_frame() {
    let Some(wire) = Wire::builder().mtu(9000).or_skip() else { return };
    let filtered = builder().filter("ether[8000] = 0x42").snaplen(5000);
    let (session, mut lanes) = open(&wire, filtered);
    let mut frames: Vec<_> = (0..100).map(|i| frame(i, 9014)).collect();
    for (i, frame) in frames.iter_mut().enumerate() {
        frame[8000] = if i % 4 == 0 { 0x42 } else { 0x43 };
    }
    send(&wire, &frames);
    let seen = read(&mut lanes[0], 25);
    assert!(seen.iter().zip(frames.iter().step_by(4)).all(|(seen, sent)| seen[..] == sent[..5000]));
    let (rest, report) = finish(session, lanes);
    assert_eq!((rest, report.capture.filtered, report.capture.events.snaplen_cuts), (0, 75, 25), "{report}");
    assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
}

#[test]
fn interface_without_native_xdp_gets_generic_mode_and_a_note() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let mut session =
        wire.right().run(|| Session::builder("lo").path(Path::Xdp).filter("udp").open()).unwrap();
    assert_eq!((session.path(), session.mode()), ("xdp", "generic"));
    let notes = session.notes().to_vec();
    assert!(notes.iter().any(|note| note.starts_with("no native copy")), "{notes:?}");
    let mut lane = session.take_lanes().remove(0);
    let socket = wire.right().run(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    for number in 0..10_u8 {
        socket.send_to(&[number; 100], socket.local_addr().unwrap()).unwrap();
    }
    let seen = read(&mut lane, 10);
    assert!(seen.iter().enumerate().all(|(i, frame)| frame.ends_with(&[i as u8; 100])));
    let (_, report) = finish(session, vec![lane]);
    assert_eq!((report.capture.delivered, report.capture.lost.total()), (10, 0), "{report}");
    assert_eq!(report.capture.events.fallbacks, 2, "{notes:?}");
    assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
}

#[test]
fn frames_joined_before_generic_xdp_are_delivered_whole() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let builder = Session::builder("lo").path(Path::Xdp).filter("udp");
    let mut session = wire.right().run(|| builder.open()).unwrap();
    let mut lane = session.take_lanes().remove(0);
    let socket = wire.right().run(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    let payload: Vec<u8> = (0..60_000_u32).map(|i| ((i * i) >> 8) as u8).collect();
    socket.send_to(&payload, socket.local_addr().unwrap()).unwrap();
    let seen = read(&mut lane, 1);
    assert_eq!(seen[0].len(), 14 + 20 + 8 + payload.len());
    assert!(seen[0].ends_with(&payload));
    let (_, report) = finish(session, vec![lane]);
    assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
}

#[test]
fn another_program_on_the_interface_stays_and_is_named() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let index = wire.right().interface().index;
    for (mode, name) in [(AttachMode::Native, "native"), (AttachMode::Generic, "generic")] {
        let assembled = pass_program(None).unwrap();
        let load = LoadOptions { fragments: true, device: None };
        let program = XdpProgram::load("first_program", &assembled.words(), load).unwrap();
        let link = wire.right().run(|| Link::attach_xdp(&program, index, mode)).unwrap();
        let error = refused(&wire, builder());
        assert_eq!(error.kind(), Kind::Refused);
        let id = program_info(program.as_fd()).unwrap().id;
        let message = error.to_string();
        assert!(message.contains(&format!("XDP program {id} \"first_program\" ({name})")), "{message}");
        let attached = wire.right().run(|| Netlink::open()?.xdp(index)).unwrap();
        assert_eq!(attached.unwrap().program_id, id);
        drop(link);
    }
    open(&wire, builder());
}

#[test]
fn missing_and_repeated_queues_are_usage_errors() {
    let Some(wire) = Wire::builder().queues(2).or_skip() else { return };
    for (queues, message) in
        [(vec![2], "receive queues 0 to 1"), (vec![1, 1], "twice"), (vec![], "at least one")]
    {
        let error = refused(&wire, builder().queues(Queues::These(queues)));
        assert_eq!(error.kind(), Kind::Usage);
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[test]
fn second_capture_is_refused_only_while_the_first_runs() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (session, lanes) = open(&wire, builder());
    assert_eq!(refused(&wire, builder()).kind(), Kind::Refused);
    drop((session, lanes));
    let (session, lanes) = open(&wire, builder());
    send(&wire, &[frame(0, 60)]);
    let arrived = || wire.right().stats().rx_packets == 1;
    assert!(lab::wait_until(LIMIT, arrived));
    assert_eq!(finish(session, lanes).0, 1);
}

#[test]
fn frames_of_a_queue_that_is_not_captured_reach_the_host() {
    let Some(wire) = Wire::builder().queues(2).ipv4().or_skip() else { return };
    let (session, lanes) = open(&wire, builder().queues(Queues::These(vec![1])));
    assert_eq!(lanes[0].queue(), 1);
    let receiver = wire.right().run(|| UdpSocket::bind((wire.right().ipv4(), 0)).unwrap());
    receiver.set_nonblocking(true).unwrap();
    let target = receiver.local_addr().unwrap();
    let mut through = 0;
    for _ in 0..200 {
        let sender = wire.left().run(|| UdpSocket::bind((wire.left().ipv4(), 0)).unwrap());
        sender.send_to(b"flow", target).unwrap();
    }
    assert!(lab::wait_until(LIMIT, || wire.right().stats().rx_packets == 200));
    while receiver.recv(&mut [0; 16]).is_ok() {
        through += 1;
    }
    let (captured, report) = finish(session, lanes);
    assert_eq!(captured + through, 200, "{report}");
    assert!(captured > 20 && through > 20, "the kernel spreads flows over queues: {captured}, {through}");
    assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
}

#[test]
fn lent_frames_that_are_not_read_count_as_unread() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (session, mut lanes) = open(&wire, builder());
    let frames: Vec<_> = (0..50).map(|i| frame(i, 60)).collect();
    send(&wire, &frames);
    assert!(lab::wait_until(LIMIT, || wire.right().stats().rx_packets == 50));
    let mut batch = lanes[0].next_batch(Instant::now() + LIMIT).unwrap().unwrap();
    assert_eq!((batch.len(), batch.frames().take(3).count()), (50, 3));
    drop(batch);
    let (rest, report) = finish(session, lanes);
    let account = &report.capture;
    assert_eq!((rest, account.delivered, account.lost.unread, account.lost.other), (0, 3, 47, 0), "{report}");
    assert_eq!(account.check_balance(), Ok(()), "{report}");
}

#[test]
fn frames_are_counted_without_being_read() {
    const SNAPLEN: usize = 100;
    let Some(wire) = Wire::builder().mtu(9000).or_skip() else { return };
    let (session, mut lanes) = open(&wire, builder().snaplen(SNAPLEN as u32));
    // Whole frames, frames with fragments, and whole frames of which the last is not counted.
    let groups = [[60, 200, 61], [5000, 60, 9014], [60, 200, 61]];
    for group in &groups[..2] {
        send(&wire, &group.map(|len| frame(0, len)));
        let (mut left, deadline) = (3, Instant::now() + LIMIT);
        while left > 0 {
            assert!(Instant::now() < deadline, "{left} frames did not come");
            left -= lanes[0].next_batch(deadline).unwrap().unwrap().count(left);
        }
    }
    send(&wire, &groups[2].map(|len| frame(0, len)));
    let counters = lanes[0].live_counters();
    assert!(lab::wait_until(LIMIT, || counters.read().unwrap().received == 9));
    assert_eq!(lanes[0].next_batch(Instant::now() + LIMIT).unwrap().unwrap().count(2), 2);
    let lens = groups.concat();
    let (_, report) = finish(session, lanes);
    let account = &report.capture;
    assert_eq!((account.delivered, account.lost.unread), (8, 1), "{report}");
    assert_eq!(account.wire_bytes as usize, lens[..8].iter().sum::<usize>(), "{report}");
    let cut: Vec<_> = lens[..8].iter().map(|len| *len.min(&SNAPLEN)).collect();
    assert_eq!(account.bytes as usize, cut.iter().sum::<usize>(), "{report}");
    assert_eq!(account.events.snaplen_cuts, 4, "{report}");
    assert_eq!(account.check_balance(), Ok(()), "{report}");
}

#[test]
fn frames_of_a_lane_that_ends_early_count_as_unread() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (mut session, lanes) = open(&wire, builder());
    send(&wire, &(0..50).map(|i| frame(i, 60)).collect::<Vec<_>>());
    assert!(lab::wait_until(LIMIT, || wire.right().stats().rx_packets == 50));
    session.stop().unwrap();
    let accounts = lanes.into_iter().map(|lane| lane.finish().unwrap()).collect();
    let report = session.report(accounts);
    assert_eq!((report.capture.received, report.capture.lost.unread), (50, 50), "{report}");
    assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
}

#[test]
fn losses_of_a_full_ring_are_named_and_the_ledger_balances() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (session, lanes) = open(&wire, builder().ring(256 << 10));
    send(&wire, &(0..1000).map(|i| frame(i, 60)).collect::<Vec<_>>());
    assert!(lab::wait_until(LIMIT, || wire.right().stats().rx_packets == 1000));
    let (captured, report) = finish(session, lanes);
    let lost = &report.capture.lost;
    assert_eq!((captured, lost.fill_empty, lost.total()), (128, 872, 872), "{report}");
    assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
}

#[test]
fn every_wait_policy_delivers_every_frame() {
    for wait in [Wait::Latency, Wait::Balanced, Wait::Busy] {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let (session, mut lanes) = open(&wire, builder().wait(wait));
        for round in 0..20 {
            let frames: Vec<_> = (0..100).map(|i| frame(round * 100 + i, 60 + i)).collect();
            send(&wire, &frames);
            assert_eq!(read(&mut lanes[0], 100), frames, "{wait:?}");
        }
        let (_, report) = finish(session, lanes);
        assert_eq!(report.capture.lost.total(), 0, "{wait:?}: {report}");
        assert_eq!(report.capture.check_balance(), Ok(()), "{wait:?}: {report}");
    }
}

#[test]
fn empty_wire_gives_an_empty_batch_at_the_deadline() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (_session, mut lanes) = open(&wire, builder());
    let deadline = Instant::now() + Duration::from_millis(450);
    assert!(lanes[0].next_batch(deadline).unwrap().unwrap().is_empty());
    assert!(Instant::now() >= deadline, "the check of the link does not end the wait");
}

#[test]
fn link_down_is_reported_after_the_last_frame() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (session, mut lanes) = open(&wire, builder());
    send(&wire, &(0..30).map(|i| frame(i, 60)).collect::<Vec<_>>());
    assert!(lab::wait_until(LIMIT, || wire.right().stats().rx_packets == 30));
    wire.right().set_up(false);
    assert_eq!(read(&mut lanes[0], 30).len(), 30);
    let is_down = || {
        let soon = Instant::now() + Duration::from_millis(10);
        assert!(lanes[0].next_batch(soon).unwrap().unwrap().is_empty());
        session.link().is_down
    };
    assert!(lab::wait_until(LIMIT, is_down));
    assert_eq!(session.link().downs, 1);
}

#[test]
fn spinning_lane_without_busy_poll_reports_link_down() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (mut engine, _link) = tags::engine(&wire);
    let mut spin = || (0..2 * LINK_CHECK_SPINS).try_for_each(|_| engine.wait(Step::Spin, LIMIT, [None; 2]));
    spin().unwrap();
    wire.right().set_up(false);
    assert!(spin().unwrap_err().to_string().contains("down"));
}

#[test]
fn link_that_is_down_is_an_error_at_once() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    wire.right().set_up(false);
    let error = refused(&wire, builder());
    assert!(error.to_string().contains("ip link set right up"), "{error}");
}

#[test]
fn drivers_hash_is_in_the_frame_on_request() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for requested in [false, true] {
        let (session, mut lanes) = open(&wire, builder().rx_hash(requested));
        send(&wire, &[frame(0, 60), frame(1, 60)]);
        let mut hashes = Vec::new();
        while hashes.len() < 2 {
            let mut batch = lanes[0].next_batch(Instant::now() + LIMIT).unwrap().unwrap();
            hashes.extend(batch.frames().map(|frame| frame.rx_hash));
        }
        assert_eq!(hashes[0], hashes[1], "they are of one flow");
        assert_eq!(hashes[0] != 0, requested);
        finish(session, lanes);
    }
}

#[test]
fn tag_in_the_bytes_is_also_in_the_metadata() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (_session, mut lanes) = open(&wire, builder());
    let mut tagged = frame(0, 60);
    tagged.splice(12..12, [0x81, 0x00, 0x20, 0x64]);
    send(&wire, &[tagged.clone()]);
    let mut batch = lanes[0].next_batch(Instant::now() + LIMIT).unwrap().unwrap();
    let seen = batch.frames().next().unwrap();
    assert_eq!((seen.bytes, seen.vlan), (&tagged[..], Some(Vlan { tci: 0x2064, tpid: 0x8100 })));
    assert_eq!(seen.wire_len, 64);
}
