//! Several lanes of packet sockets and of the tap: each frame is counted and borrowed once, from
//! the first to the last.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lab::{End, Wire};
use strait_capture::{Directions, Fanout, InjectPath, Injector, Path, Queues};
use strait_packet::probe;
use strait_packet::traffic::{Kind, Traffic};

use crate::rig::{Capture, incoming};

const LIMIT: Duration = Duration::from_secs(20);
/// Frames of a burst, and the pause after it: some ten thousand frames a second.
const BURST: u64 = 8;
const PAUSE: Duration = Duration::from_micros(500);
/// Minimum number of frames before a capture opens, while it is open, and after it has stopped.
const STRETCH: u64 = 100;

/// Sender of frames with sequence numbers, until it is stopped.
#[derive(Default)]
struct Stream {
    sent: AtomicU64,
    stopping: AtomicBool,
}

impl Stream {
    /// Sends from `end` until it is stopped.
    fn run(&self, end: &End) {
        end.run(|| {
            let traffic = Traffic::builder().flows(200).kinds(&[Kind::Udp4]).build().unwrap();
            let mut injector = Injector::open(end.name(), InjectPath::Sendmmsg).unwrap();
            while !self.stopping.load(Ordering::Acquire) {
                let first = self.sent.load(Ordering::Relaxed);
                for sequence in first..first + BURST {
                    let len = traffic.write_frame(sequence, 1, injector.buffer().unwrap());
                    injector.push(len);
                }
                injector.flush().unwrap();
                self.sent.store(first + BURST, Ordering::Release);
                std::thread::sleep(PAUSE);
            }
            injector.finish().unwrap();
        });
    }

    /// Waits until `count` more frames have left, and returns the total.
    fn advance(&self, count: u64) -> u64 {
        let target = self.sent.load(Ordering::Acquire) + count;
        assert!(lab::wait_until(LIMIT, || self.sent.load(Ordering::Acquire) >= target));
        self.sent.load(Ordering::Acquire)
    }
}

/// Opens and stops a capture of `lanes` lanes during traffic.
fn capture_amid_traffic(path: Path, lanes: u32) {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let stream = Stream::default();
    std::thread::scope(|scope| {
        scope.spawn(|| stream.run(wire.left()));
        stream.advance(STRETCH);
        let ring_bytes = if lanes > 16 { 1 << 20 } else { 4 << 20 };
        let builder = incoming().path(path).queues(Queues::These((0..lanes).collect())).ring(ring_bytes);
        let capture = Capture::open(wire.right(), builder);
        let opened = stream.sent.load(Ordering::Acquire) + BURST;
        // Frames sent before this have arrived when the capture stops.
        let closing = stream.advance(STRETCH);
        wire.await_arrival(0, closing);
        let (captured, report) = capture.unwrap().finish(wire.right());
        let sent = stream.advance(STRETCH);
        stream.stopping.store(true, Ordering::Release);

        let numbers: Vec<u64> =
            captured.iter().map(|frame| probe::read(&frame.seen.bytes).unwrap().sequence).collect();
        let distinct: HashSet<u64> = numbers.iter().copied().collect();
        let account = &report.capture;
        assert_eq!(distinct.len(), numbers.len(), "{path:?}, {lanes} lanes: a frame came twice\n{report}");
        assert_eq!(account.check_balance(), Ok(()), "{report}");
        assert_eq!(account.delivered, numbers.len() as u64, "{report}");
        assert!(account.received <= sent, "{path:?}, {lanes} lanes: {sent} were sent\n{report}");
        let missing = (opened..closing).filter(|number| !distinct.contains(number)).count() as u64;
        assert!(missing <= account.lost.total(), "{path:?}, {lanes} lanes: {missing} are missing\n{report}");
    });
}

#[test]
fn lanes_opened_and_stopped_amid_traffic_count_each_frame_once() {
    for path in [Path::Recv, Path::V2, Path::V3, Path::Tap] {
        let most = if path == Path::Tap { 63 } else { 64 };
        for lanes in [1, 4, 16, most] {
            capture_amid_traffic(path, lanes);
        }
    }
}

#[test]
fn group_of_lanes_captures_only_the_requested_direction() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    for path in [Path::Recv, Path::V2, Path::V3, Path::Tap] {
        let builder = incoming().path(path).queues(Queues::These(vec![0, 1])).filter("udp");
        let mut capture = Capture::open(wire.right(), builder).unwrap();
        send_both_ways(&wire);
        capture.set_directions(Directions::Both);
        send_both_ways(&wire);
        capture.set_directions(Directions::In);
        send_both_ways(&wire);
        let (captured, report) = capture.finish(wire.right());
        let received: Vec<bool> = captured.iter().map(|frame| frame.seen.received).collect();
        assert_eq!(received, [true], "{path:?}: {report}");
    }
}

/// Sends a datagram to the right end and one from it.
fn send_both_ways(wire: &Wire) {
    let (left, right) = (wire.left(), wire.right());
    let before = (left.stats().rx_packets, right.stats().rx_packets);
    for (from, to) in [(left, right), (right, left)] {
        let socket = from.run(|| std::net::UdpSocket::bind((from.ipv4(), 0)).unwrap());
        socket.send_to(b"to the other end", (to.ipv4(), 9)).unwrap();
    }
    assert!(lab::wait_until(LIMIT, || left.stats().rx_packets > before.0));
    wire.await_arrival(before.1, 1);
}

#[test]
fn every_fanout_counts_each_frame_once() {
    for fanout in [Fanout::Cpu, Fanout::Queue, Fanout::Rollover] {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let builder = incoming().path(Path::V3).queues(Queues::These(vec![0, 1, 2])).fanout(fanout);
        let capture = Capture::open(wire.right(), builder).unwrap();
        let stream = Stream::default();
        std::thread::scope(|scope| {
            scope.spawn(|| stream.run(wire.left()));
            stream.advance(STRETCH);
            stream.stopping.store(true, Ordering::Release);
        });
        let sent = stream.sent.load(Ordering::Acquire);
        wire.await_arrival(0, sent);
        let (captured, report) = capture.finish(wire.right());
        assert_eq!((report.capture.received, captured.len() as u64), (sent, sent), "{fanout:?}: {report}");
    }
}
