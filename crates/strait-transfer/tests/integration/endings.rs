//! Failures: a file that is shorter than planned, a stalled peer, a kernel that copies, limits, a
//! dropped sender.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use lab::{Offload, Wire};
use strait_ledger::Transfer;
use strait_os::ethtool::Ethtool;
use strait_os::tcp;
use strait_sys::buffer::Frozen;
use strait_transfer::{
    Engine, Error, FilePart, Options, Plan, Progress, Segment, Sender, StreamPart, ZeroCopy,
};

use crate::rig::{PATIENCE, Reads, connection, file_of, pattern, peer};

const READS: Reads = Reads { chunk: 65_536, pause: Duration::ZERO, pause_each: 1, resets_after: None };

fn engine(zero_copy: ZeroCopy) -> Engine {
    Engine::new(Options { zero_copy, ..Options::default() }).unwrap()
}

#[test]
fn short_file_is_reported() {
    let (stream, far) = connection();
    let peer = peer(far, READS);
    let (mut engine, mut sender) = (engine(ZeroCopy::Adaptive), Sender::new(stream).unwrap());
    let plan = Plan::new().with(Segment::File(FilePart { file: file_of(b"short"), offset: 0, len: 100 }));
    let error = sender.send(&mut engine, plan, PATIENCE).unwrap_err();
    assert_eq!(error.to_string(), "the file ended 95 bytes early");
    drop(sender);
    assert_eq!(peer.join().unwrap(), b"short");
}

#[test]
fn early_end_of_a_source_is_reported() {
    let (stream, far) = connection();
    let peer = peer(far, READS);
    let (feeder, source) = connection();
    drop(feeder);
    source.set_nonblocking(true).unwrap();
    let (mut engine, mut sender) = (engine(ZeroCopy::Adaptive), Sender::new(stream).unwrap());
    let plan =
        Plan::new().with(Segment::Socket(StreamPart { socket: std::sync::Arc::new(source.into()), len: 7 }));
    let error = sender.send(&mut engine, plan, PATIENCE).unwrap_err();
    assert_eq!(error.to_string(), "the connection ended 7 bytes early");
    drop(sender);
    assert!(peer.join().unwrap().is_empty());
}

#[test]
fn stalled_peer_is_reported_and_its_buffers_stay_borrowed() {
    if !lab::locked_memory_or_skip(128 << 20) {
        return;
    }
    let (stream, _far) = connection();
    let (mut engine, mut sender) = (engine(ZeroCopy::From(1)), Sender::new(stream).unwrap());
    let mut plan = Plan::new();
    for _ in 0..64 {
        plan.push(Segment::Shared(Frozen::copied(&pattern(1 << 20, 1)).unwrap()));
    }
    let error = sender.send(&mut engine, plan, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(sender.finish(&mut engine, Duration::ZERO).unwrap() > 0);
    let borrowed = engine.borrowed_bytes();
    drop(sender);
    assert_eq!(engine.borrowed_bytes(), borrowed);
}

#[test]
fn dropped_sender_leaves_its_bytes_to_the_kernel() {
    let (stream, mut far) = connection();
    let (mut engine, mut sender) = (engine(ZeroCopy::From(1)), Sender::new(stream).unwrap());
    let mut buffer = engine.buffer().unwrap();
    let bytes = pattern(buffer.len(), 3);
    buffer.copy_from_slice(&bytes);
    sender.push(&mut engine, Plan::new().with(Segment::Shared(buffer.freeze(0..bytes.len()))));
    assert_eq!(sender.advance(&mut engine).unwrap(), Progress::Idle);
    drop(sender);
    // Overwrite all buffers that can be written.
    let mut others: Vec<_> = std::iter::from_fn(|| engine.buffer()).collect();
    for buffer in &mut others {
        buffer.fill(0xee);
    }
    let mut got = Vec::new();
    far.read_to_end(&mut got).unwrap();
    assert!(got == bytes);
}

#[test]
fn copies_on_the_loopback_are_detected() {
    let (stream, far) = connection();
    let peer = peer(far, READS);
    let (mut engine, mut sender) = (engine(ZeroCopy::Adaptive), Sender::new(stream).unwrap());
    let bytes = Frozen::copied(&pattern(1 << 20, 5)).unwrap();
    for _ in 0..100 {
        sender.send(&mut engine, Plan::new().with(Segment::Shared(bytes.clone())), PATIENCE).unwrap();
    }
    assert_eq!(sender.finish(&mut engine, PATIENCE).unwrap(), 0);
    let account = sender.account();
    drop(sender);
    assert_eq!(peer.join().unwrap().len(), 100 << 20);
    assert_eq!((account.zero_copy, account.bytes()), (0, 100 << 20), "{account}");
    if engine.notifications().is_none() {
        lab::skip("no io_uring");
    } else {
        assert!(account.zero_copy_copied > 0 && account.zero_copy_copied < 10 << 20, "{account}");
        assert!(account.fallbacks.contains_key("the kernel copies on this route"), "{account}");
    }
}

/// Returns the account of a sender in a namespace with a device that has no scatter-gather.
fn sent_without_scatter_gather(wire: &Wire, zero_copy: ZeroCopy) -> Transfer {
    let (left, right) = (wire.left(), wire.right());
    let name = left.name();
    left.run(|| Ethtool::open(name).unwrap().set_offload(Offload::ScatterGather, false)).unwrap();
    let listener = right.run(|| TcpListener::bind((right.ipv4(), 0)).unwrap());
    let address = listener.local_addr().unwrap();
    left.run(|| {
        let peer = peer_of(&listener, address);
        let (mut engine, mut sender) = (engine(zero_copy), Sender::new(peer.0).unwrap());
        let bytes = Frozen::copied(&pattern(1 << 20, 5)).unwrap();
        for _ in 0..10 {
            sender.send(&mut engine, Plan::new().with(Segment::Shared(bytes.clone())), PATIENCE).unwrap();
        }
        assert_eq!(sender.finish(&mut engine, PATIENCE).unwrap(), 0);
        let account = sender.account();
        drop(sender);
        assert_eq!(peer.1.join().unwrap().len(), 10 << 20);
        account
    })
}

/// Returns a connection to `listener`, and the thread that reads at its other end.
fn peer_of(listener: &TcpListener, address: SocketAddr) -> (TcpStream, JoinHandle<Vec<u8>>) {
    let stream = TcpStream::connect(address).unwrap();
    (stream, peer(listener.accept().unwrap().0, READS))
}

#[test]
fn device_without_scatter_gather_is_detected_before_the_first_send() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    if engine(ZeroCopy::Adaptive).notifications().is_none() {
        lab::skip("no io_uring");
        return;
    }
    let adaptive = sent_without_scatter_gather(&wire, ZeroCopy::Adaptive);
    assert_eq!((adaptive.sent, adaptive.bytes()), (10 << 20, 10 << 20), "{adaptive}");
    let reason = "the device of this route has no scatter-gather";
    assert!(adaptive.fallbacks.contains_key(reason), "{adaptive}");
    let forced = sent_without_scatter_gather(&wire, ZeroCopy::From(1));
    assert_eq!((forced.zero_copy_copied, forced.bytes()), (10 << 20, 10 << 20), "{forced}");
}

#[test]
fn bytes_beyond_the_limit_are_copied() {
    let (stream, far) = connection();
    let options = Options { zero_copy: ZeroCopy::From(1), borrowed_bytes_max: 100_000, ..Options::default() };
    let (mut engine, mut sender) = (Engine::new(options).unwrap(), Sender::new(stream).unwrap());
    if engine.notifications().is_none() {
        lab::skip("no io_uring");
        return;
    }
    let mut plan = Plan::new();
    for seed in 0..40 {
        plan.push(Segment::Shared(Frozen::copied(&pattern(50_000, seed)).unwrap()));
    }
    sender.push(&mut engine, plan);
    let _ = sender.advance(&mut engine).unwrap();
    assert!(engine.borrowed_bytes() <= 100_000);
    let peer = peer(far, READS);
    sender.send(&mut engine, Plan::new(), PATIENCE).unwrap();
    let account = sender.account();
    drop(sender);
    assert_eq!(peer.join().unwrap().len(), 40 * 50_000);
    assert!(account.fallbacks["the limit of borrowed bytes is reached"] > 0 && account.sent > 0, "{account}");
}

/// A zero-copy run announces the next run to the kernel (`MSG_MORE`), which then delays a short
/// packet until the next bytes come, and no longer. A delayed packet would leave by a timer 200 ms
/// later; until then everything sent is acknowledged and the rest is unsent.
#[test]
fn bytes_after_a_zero_copy_run_are_not_held_back() {
    const ROUNDS: usize = 30;
    let (stream, mut far) = connection();
    let (mut engine, mut sender) = (engine(ZeroCopy::From(4096)), Sender::new(stream).unwrap());
    let piece = |len: usize| Segment::Shared(Frozen::copied(&pattern(len, len)).unwrap());
    let echo = std::thread::spawn(move || {
        let mut message = vec![0; 3 * 64 + 40_000 + 2000];
        for _ in 0..ROUNDS {
            far.read_exact(&mut message).unwrap();
            far.write_all(b"!").unwrap();
        }
    });
    let mut held_back = 0;
    for _ in 0..ROUNDS {
        let plan =
            (0..3).map(|_| piece(64)).chain([piece(40_000), piece(2000)]).fold(Plan::new(), Plan::with);
        sender.send(&mut engine, plan, PATIENCE).unwrap();
        let mut was_held = false;
        while !has_reply(&sender) {
            // Read in this order: nothing is written in between, so the two are equal only if no
            // byte was in flight.
            let outstanding = tcp::unacknowledged(sender.socket()).unwrap();
            was_held |= outstanding > 0 && tcp::unsent(sender.socket()).unwrap() == outstanding;
            std::thread::yield_now();
        }
        held_back += usize::from(was_held);
        let _ = rustix::io::read(sender.socket(), &mut [0; 1]).unwrap();
    }
    echo.join().unwrap();
    // The moment between an acknowledgement and the packets that it releases looks the same.
    assert!(held_back < ROUNDS / 2, "{held_back} of {ROUNDS}");
}

/// Returns true if the peer has replied.
fn has_reply(sender: &Sender) -> bool {
    let socket = sender.socket();
    let mut polled = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&rustix::time::Timespec::default())).unwrap() > 0
}
