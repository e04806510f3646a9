//! The tap leaves the host's traffic and the other programs on its hooks alone.

use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lab::{End, Offload, Wire};
use strait_capture::{Directions, ErrorKind, Path, Session, Wait};
use strait_sys::bpf::{Classifier, Link, TcxHook, program_info, tcx_programs};

use crate::corpus::frames;
use crate::rig::{Capture, incoming, send};

/// `r0 = TC_ACT_SHOT; exit`.
const DROP: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];
const LIMIT: Duration = Duration::from_secs(20);
/// `r0 = TCX_PASS; exit`: later programs do not run.
const PASS: [u64; 2] = [0x0000_0000_0000_00b7, 0x95];

fn programs(end: &End, hook: TcxHook) -> Vec<u32> {
    let index = end.interface().index;
    end.run(|| tcx_programs(index, hook)).unwrap()
}

fn tap() -> strait_capture::Builder {
    incoming().path(Path::Tap)
}

#[test]
fn each_direction_has_a_program_until_the_capture_ends() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let attached = || [TcxHook::Ingress, TcxHook::Egress].map(|hook| programs(wire.right(), hook).len());
    for (directions, expected) in
        [(Directions::In, [1, 0]), (Directions::Out, [0, 1]), (Directions::Both, [1, 1])]
    {
        let mut capture = Capture::open(wire.right(), tap().directions(directions)).unwrap();
        assert_eq!(attached(), expected, "{directions:?}");
        wire.right().run(|| capture.set_directions(Directions::Out));
        assert_eq!(attached(), [0, 1], "{directions:?}, then Out");
        capture.finish(wire.right());
        assert_eq!(attached(), [0, 0], "{directions:?}");
    }
    let session = wire.right().run(|| tap().open()).unwrap();
    assert_eq!(attached(), [1, 0]);
    drop(session);
    assert_eq!(attached(), [0, 0], "a session that was not stopped");
}

#[test]
fn taps_and_other_programs_run_beside_each_other() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let index = wire.right().interface().index;
    let other = Classifier::load("other", &PASS).unwrap();
    let link = wire.right().run(|| Link::attach_tcx(&other, index, TcxHook::Ingress)).unwrap();
    let id = program_info(other.as_fd()).unwrap().id;
    let taps = [tap(), tap().filter("udp")].map(|builder| Capture::open(wire.right(), builder).unwrap());
    let order = programs(wire.right(), TcxHook::Ingress);
    assert_eq!((order.len(), order.last()), (3, Some(&id)), "taps come before the other program");
    let before = wire.right().stats().rx_packets;
    send(&wire, &frames());
    wire.await_arrival(before, frames().len() as u64);
    let [all, udp] = taps.map(|tap| tap.finish(wire.right()).1);
    assert_eq!(all.capture.delivered, frames().len() as u64, "{all}");
    assert!((1..all.capture.delivered).contains(&udp.capture.delivered), "{udp}");
    assert_eq!(udp.capture.check_balance(), Ok(()), "{udp}");
    assert_eq!(programs(wire.right(), TcxHook::Ingress), [id], "the other program stays");
    drop(link);
}

/// A program that drops every packet runs after the tap, so that the tap captures them.
#[test]
fn packets_that_a_later_program_drops_are_captured() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let index = wire.right().interface().index;
    let dropping = Classifier::load("dropping", &DROP).unwrap();
    let link = wire.right().run(|| Link::attach_tcx(&dropping, index, TcxHook::Ingress)).unwrap();
    let capture = Capture::open(wire.right(), tap()).unwrap();
    let receiver = wire.right().run(|| UdpSocket::bind((wire.right().ipv4(), 0)).unwrap());
    receiver.set_nonblocking(true).unwrap();
    let sender = wire.left().run(|| UdpSocket::bind((wire.left().ipv4(), 0)).unwrap());
    let before = wire.right().stats().rx_packets;
    for _ in 0..3 {
        sender.send_to(b"not for the host", receiver.local_addr().unwrap()).unwrap();
    }
    wire.await_arrival(before, 3);
    let (captured, report) = capture.finish(wire.right());
    assert_eq!(captured.len(), 3, "{report}");
    assert!(receiver.recv(&mut [0; 64]).is_err(), "the other program dropped them");
    drop(link);
}

/// Frames reach the host's own sockets and other captures, byte for byte and in order.
#[test]
fn host_receives_every_frame_unchanged() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let tapped = Capture::open(wire.right(), tap()).unwrap();
    let witness = Capture::open(wire.right(), incoming().path(Path::Recv)).unwrap();
    let receiver = wire.right().run(|| UdpSocket::bind((wire.right().ipv4(), 0)).unwrap());
    receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let sender = wire.left().run(|| UdpSocket::bind((wire.left().ipv4(), 0)).unwrap());
    for number in 0..200_u32 {
        let payload = [number.to_be_bytes().as_slice(), &vec![number as u8; 1000]].concat();
        sender.send_to(&payload, receiver.local_addr().unwrap()).unwrap();
        let mut received = vec![0; 2000];
        let len = receiver.recv(&mut received).unwrap();
        assert_eq!(received[..len], payload, "datagram {number}");
    }
    let before = wire.right().stats().rx_packets;
    send(&wire, &frames());
    wire.await_arrival(before, frames().len() as u64);
    let (captured, report) = tapped.finish(wire.right());
    let (witnessed, _) = witness.finish(wire.right());
    let bytes = |captured: &[crate::rig::Captured]| -> Vec<_> {
        captured.iter().map(|captured| captured.seen.clone()).collect()
    };
    assert!(captured.len() > 200, "{report}");
    assert_eq!(bytes(&captured), bytes(&witnessed));
}

/// A full ring costs the capture frames, and the host none.
#[test]
fn stopped_reader_loses_frames_of_the_capture_only() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let capture = Capture::open(wire.right(), tap().ring(256 << 10)).unwrap();
    let receiver = wire.right().run(|| UdpSocket::bind((wire.right().ipv4(), 0)).unwrap());
    receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let sender = wire.left().run(|| UdpSocket::bind((wire.left().ipv4(), 0)).unwrap());
    let mut received = [0; 2000];
    for number in 0..1000 {
        sender.send_to(&[0; 1000], receiver.local_addr().unwrap()).unwrap();
        assert_eq!(receiver.recv(&mut received).unwrap(), 1000, "datagram {number}");
    }
    let (captured, report) = capture.finish(wire.right());
    let account = &report.capture;
    assert!(account.lost.ring_full > 500, "{report}");
    assert_eq!(account.received, captured.len() as u64 + account.lost.ring_full, "{report}");
    assert!(account.received >= 1000, "{report}");
    assert_eq!(account.check_balance(), Ok(()), "{report}");
}

/// Frames that do not fit the first ring go to the spill ring, and are in order.
#[test]
fn frames_that_spill_are_neither_lost_nor_reordered() {
    const BURSTS: u32 = 6;
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    // The first ring has 128 KiB; a burst has up to 500 KiB.
    let mut session = wire.right().run(|| tap().filter("udp").ring(1 << 20).open()).unwrap();
    let mut lane = session.take_lanes().remove(0);
    let counters = lane.live_counters();
    let receiver = wire.right().run(|| UdpSocket::bind((wire.right().ipv4(), 0)).unwrap());
    receiver.set_read_timeout(Some(LIMIT)).unwrap();
    let sender = wire.left().run(|| UdpSocket::bind((wire.left().ipv4(), 0)).unwrap());
    let (mut sent, mut seen) = (0_u32, Vec::new());
    for burst in 1..=BURSTS {
        for _ in 0..burst * 80 {
            let payload = [sent.to_be_bytes().as_slice(), &[0; 1000]].concat();
            sender.send_to(&payload, receiver.local_addr().unwrap()).unwrap();
            receiver.recv(&mut [0; 2000]).unwrap();
            sent += 1;
        }
        assert!(lab::wait_until(LIMIT, || counters.read().unwrap().received == u64::from(sent)));
        // Odd bursts leave frames in the spill ring, behind which the next burst follows.
        let leave = if burst % 2 == 1 { 20 } else { 0 };
        while seen.len() as u32 + leave < sent {
            let limit = (sent - leave) as usize - seen.len();
            let mut batch = lane.next_batch_of(limit, Instant::now() + LIMIT).unwrap().unwrap();
            // The number is behind the headers of Ethernet, IPv4 and UDP.
            seen.extend(
                batch.frames().map(|frame| u32::from_be_bytes(*frame.bytes[42..].first_chunk().unwrap())),
            );
        }
    }
    assert_eq!(seen, (0..sent).collect::<Vec<_>>());
    session.stop().unwrap();
    let account = lane.account().unwrap().capture;
    assert_eq!((account.received, account.lost.total()), (u64::from(sent), 0), "{account:?}");
}

/// The program has several ways to copy a frame, by its length and its tag.
#[test]
fn frames_of_every_length_are_captured_as_on_packet_sockets() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let untagged = |len: usize| -> Vec<u8> {
        let mut frame: Vec<u8> = (0..len).map(|at| (at * 7 + at / 256) as u8).collect();
        frame[..6].fill(2);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame
    };
    let tagged = |len: usize| [&untagged(len)[..12], &[0x81, 0, 0, 5], &untagged(len)[12..]].concat();
    let frames: Vec<_> =
        (60..=600).chain([1024, 1510]).flat_map(|len| [untagged(len), tagged(len)]).collect();
    for snaplen in [262_144, 512, 96, 20, 15, 12, 11, 8] {
        let open = |path| Capture::open(wire.right(), incoming().path(path).snaplen(snaplen)).unwrap();
        let captures = [Path::Recv, Path::Tap].map(open);
        let before = wire.right().stats().rx_packets;
        send(&wire, &frames);
        wire.await_arrival(before, frames.len() as u64);
        let [sockets, tap] = captures.map(|capture| {
            let (captured, report) = capture.finish(wire.right());
            assert_eq!(captured.len(), frames.len(), "{report}");
            captured
        });
        for ((socket, tap), sent) in sockets.iter().zip(&tap).zip(&frames) {
            assert_eq!(tap.seen, socket.seen, "{} bytes cut to {snaplen}", sent.len());
        }
    }
}

/// A TCP connection with frames that segmentation offload cuts later, in both directions. The
/// kernel keeps the bytes of a sent segment, also of a short one, apart from its headers.
///
/// Two CPUs may receive at the same time, and then each capture has an order of its own.
#[test]
fn connections_of_the_host_are_captured_as_on_packet_sockets() {
    const BYTES: usize = 1 << 20;
    const SHORT: std::ops::Range<usize> = 1..400;
    let offloads = &[Offload::Gro, Offload::Gso, Offload::Tso, Offload::TxChecksum];
    let Some(wire) = Wire::builder().ipv4().offloads(offloads).or_skip() else { return };
    for snaplen in [262_144, 60] {
        let open = |path| {
            let builder = Session::builder("left").path(path).filter("tcp").snaplen(snaplen);
            Capture::open(wire.left(), builder).unwrap()
        };
        let captures = [Path::V3, Path::Tap].map(open);
        let listener = wire.right().run(|| TcpListener::bind((wire.right().ipv4(), 0)).unwrap());
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let all = BYTES + SHORT.sum::<usize>();
                assert_eq!(std::io::copy(&mut stream, &mut std::io::sink()).unwrap(), all as u64);
            });
            let mut stream = wire.left().run(|| TcpStream::connect(address).unwrap());
            stream.set_nodelay(true).unwrap();
            SHORT.for_each(|len| stream.write_all(&vec![len as u8; len]).unwrap());
            stream.write_all(&vec![7; BYTES]).unwrap();
        });
        let [sockets, tap] = captures.map(|capture| {
            let (captured, report) = capture.finish(wire.left());
            assert_eq!(report.capture.lost.total(), 0, "{report}");
            let (mut received, mut sent): (Vec<_>, Vec<_>) =
                captured.into_iter().map(|captured| captured.seen).partition(|seen| seen.received);
            received.sort();
            sent.sort();
            (received, sent)
        });
        assert!(sockets.1.iter().any(|seen| seen.wire_len > 10_000), "no frame is longer than the MTU");
        assert!(!sockets.0.is_empty());
        assert_eq!(tap.0.len(), sockets.0.len());
        assert_eq!(tap.1.len(), sockets.1.len());
        assert!(tap == sockets, "{snaplen}: the captures differ");
    }
}

/// Each frame arrives at a reader that sleeps until the doorbell rings: one that is not woken waits
/// to its deadline.
#[test]
fn frame_wakes_a_reader_that_sleeps() {
    const ROUNDS: usize = 300;
    let Some(wire) = Wire::builder().or_skip() else { return };
    let frame = &frames()[..1];
    for wait in [Wait::Latency, Wait::Balanced] {
        let mut session = wire.right().run(|| tap().wait(wait).open()).unwrap();
        let mut lane = session.take_lanes().remove(0);
        let taken = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for round in 0..ROUNDS {
                    let batch = lane.next_batch(Instant::now() + LIMIT).unwrap().unwrap();
                    assert_eq!(batch.len(), 1, "{wait:?}, round {round}: the reader was not woken");
                    drop(batch);
                    taken.fetch_add(1, Ordering::Release);
                }
            });
            for round in 0..ROUNDS {
                // In half of the rounds the reader is probably asleep, in the others on its way.
                if round % 2 == 0 {
                    std::thread::sleep(Duration::from_micros(500));
                }
                send(&wire, frame);
                // A later frame must not wake the reader in place of this one.
                let was_taken = || taken.load(Ordering::Acquire) > round || reader.is_finished();
                assert!(lab::wait_until(LIMIT * 2, was_taken));
            }
            reader.join().unwrap();
        });
    }
}

#[test]
fn descriptor_reports_a_frame_after_the_lane_prepared_to_wait() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let mut session = wire.right().run(|| tap().open()).unwrap();
    let mut lane = session.take_lanes().remove(0);
    for round in 0..20 {
        assert!(!lane.prepare_to_wait().unwrap(), "round {round}");
        let readable = |lane: &strait_capture::Lane, timeout| {
            let [doorbell] = strait_os::wait::readable([Some(lane.descriptors()[0])], timeout).unwrap();
            doorbell.readable
        };
        assert!(!readable(&lane, Duration::ZERO), "round {round}");
        send(&wire, &frames()[..1]);
        assert!(readable(&lane, LIMIT), "round {round}");
        assert!(lane.prepare_to_wait().unwrap(), "round {round}: the frame is ready");
        assert_eq!(lane.next_batch(Instant::now()).unwrap().unwrap().frames().count(), 1);
    }
}

#[test]
fn full_hook_is_refused_with_a_remedy() {
    // `BPF_MPROG_MAX`.
    const PROGRAMS_MAX: usize = 64;
    let Some(wire) = Wire::builder().or_skip() else { return };
    let index = wire.right().interface().index;
    // A program can be on a hook once.
    let other = || Classifier::load("other", &PASS).unwrap();
    let attach = || wire.right().run(|| Link::attach_tcx(&other(), index, TcxHook::Ingress));
    let mut links: Vec<Link> = std::iter::from_fn(|| attach().ok()).take(PROGRAMS_MAX + 1).collect();
    assert!((1..=PROGRAMS_MAX).contains(&links.len()), "{} programs", links.len());
    let Err(error) = wire.right().run(|| tap().open()) else { panic!("it opened") };
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    let text = error.to_string();
    assert!(text.contains("the hook is full") && text.contains("or use --path v3"), "{text}");
    assert!(!text.contains('\n'), "{text}");
    links.pop();
    assert!(wire.right().run(|| tap().open()).is_ok(), "with room for a program");
}

#[test]
fn all_interfaces_are_refused_with_a_remedy() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Err(error) = wire.right().run(|| Session::builder("any").path(Path::Tap).open()) else {
        panic!("it opened");
    };
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(error.to_string().contains("use --path v3"), "{error}");
}
