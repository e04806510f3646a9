//! One filter has one meaning: equal traffic gives equal captures on every path.

use lab::Wire;
use strait_capture::{Path, Queues};
use strait_os::clock;

use crate::corpus::{FILTERS, frames};
use crate::rig::{Capture, Captured, Seen, incoming, send};

const MILLISECOND_NS: u64 = 1_000_000;

/// Captures the corpus on all of `paths` at the same time.
fn capture(wire: &Wire, paths: &[Path], filter: &str, snaplen: u32) -> Vec<(Vec<Captured>, (u64, u64))> {
    let frames = frames();
    let open = |&path| {
        let builder = incoming().path(path).filter(filter).snaplen(snaplen);
        Capture::open(wire.right(), builder).unwrap_or_else(|error| panic!("{path:?} {filter}: {error}"))
    };
    let captures: Vec<_> = paths.iter().map(open).collect();
    let before = wire.right().stats().rx_packets;
    let (began_ns, ..) = send(wire, &frames);
    wire.await_arrival(before, frames.len() as u64);
    // On a busy machine frames arrive some time after they were sent.
    let arrived_ns = clock::realtime_ns();
    let finish = |capture: Capture| {
        let (captured, report) = capture.finish(wire.right());
        assert_eq!(report.capture.check_balance(), Ok(()), "{filter}: {report}");
        assert_eq!(report.capture.lost.total(), 0, "{filter}: {report}");
        assert_eq!(report.capture.received, frames.len() as u64, "{filter}: {report}");
        (captured, (began_ns, arrived_ns))
    };
    captures.into_iter().map(finish).collect()
}

/// Several lanes together have the frames of one lane: none missing, none twice, fragments
/// unchanged.
#[test]
fn lanes_divide_the_frames() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let frames = frames();
    for path in [Path::Recv, Path::V2, Path::V3, Path::Tap] {
        let builder = incoming().path(path).queues(Queues::These(vec![0, 1, 2]));
        let capture = Capture::open(wire.right(), builder).unwrap();
        let before = wire.right().stats().rx_packets;
        send(&wire, &frames);
        wire.await_arrival(before, frames.len() as u64);
        let (captured, report) = capture.finish(wire.right());
        let mut seen: Vec<_> = captured.into_iter().map(|captured| captured.seen.bytes).collect();
        let mut sent = frames.clone();
        seen.sort_unstable();
        sent.sort_unstable();
        assert_eq!(seen, sent, "{path:?}: {report}");
        assert_eq!((report.capture.filtered, report.capture.check_balance()), (0, Ok(())), "{report}");
    }
}

fn seen(captured: &[Captured]) -> Vec<&Seen> {
    captured.iter().map(|captured| &captured.seen).collect()
}

/// Compares every path with `recv`. Packet sockets and tap capture at the same time, AF_XDP alone,
/// because its frames do not reach other sockets.
fn compare(wire: &Wire, filter: &str, snaplen: u32) -> usize {
    let sockets = capture(wire, &[Path::Recv, Path::V2, Path::V3, Path::Tap, Path::Auto], filter, snaplen);
    let xdp = capture(wire, &[Path::Xdp], filter, snaplen);
    let (reference, _) = &sockets[0];
    for (captured, (began_ns, arrived_ns)) in sockets.iter().chain(&xdp) {
        assert_eq!(seen(captured), seen(reference), "{filter}");
        let soonest = began_ns - MILLISECOND_NS;
        let latest = arrived_ns + MILLISECOND_NS;
        let stamped = captured.iter().all(|captured| (soonest..=latest).contains(&captured.timestamp_ns));
        assert!(stamped, "{filter}: a timestamp is more than 1 ms from the time of sending and arrival");
    }
    reference.len()
}

#[test]
fn every_filter_gives_the_same_capture_on_every_path() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let all = frames().len();
    for filter in FILTERS {
        let matched = compare(&wire, filter, 262_144);
        assert!(matched > 0, "{filter} matches nothing of the corpus, so it tests nothing");
        assert!(
            filter.is_empty() || matched < all,
            "{filter} rejects nothing of the corpus, so it tests nothing"
        );
    }
}

#[test]
fn snaplen_cuts_equally_on_every_path() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for snaplen in [1, 13, 14, 16, 18, 60, 100, 1000] {
        assert_eq!(compare(&wire, "", snaplen), frames().len());
    }
}
