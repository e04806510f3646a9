//! Senders in a current-thread runtime, over the loopback.

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use strait_transfer::{Engine, FilePart, Options, Plan, Segment, StreamPart, ZeroCopy};
use tokio::runtime;
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::timeout;
use tokio_send::{AsyncEngine, AsyncSender};

/// Time limit of a test.
const PATIENCE: Duration = Duration::from_secs(30);
const MIB: usize = 1 << 20;
/// Bytes that a connection takes from the sender while its peer reads nothing.
const FEW: usize = 200_000;

/// Runs a future and its spawned tasks to their end.
fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async { timeout(PATIENCE, future).await.expect("it ends in time") })
}

fn engine(zero_copy: ZeroCopy) -> AsyncEngine {
    AsyncEngine::new(Options { zero_copy, ..Options::default() }).unwrap()
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (stream, listener.accept().unwrap().0)
}

/// Starts a peer that reads to the end, after a message or after the sender of messages is dropped.
fn peer(mut stream: TcpStream, told: mpsc::Receiver<()>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let _ = told.recv();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        got
    })
}

/// Returns a sender and its reading peer.
fn reading(engine: &AsyncEngine) -> (AsyncSender, JoinHandle<Vec<u8>>) {
    let (stream, far) = connection();
    (AsyncSender::new(engine, stream).unwrap(), peer(far, mpsc::channel().1))
}

/// Returns a connection with a near end that takes [`FEW`] bytes at once, and a far end without
/// room for them until it reads.
fn narrow_connection() -> (TcpStream, TcpStream) {
    let (stream, far) = connection();
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, 4 * FEW).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&far, 32 << 10).unwrap();
    (stream, far)
}

/// Returns true if the engine has zero-copy; otherwise skips the test.
fn lends(engine: &AsyncEngine) -> bool {
    let lends = engine.with(|engine| engine.notifications().is_some());
    if !lends {
        lab::skip("no io_uring");
    }
    lends
}

/// Returns bytes that depend on their position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + (at >> 8) * 7) as u8).collect()
}

/// Returns a plan with the bytes in buffers of the engine, or on the heap if it has none.
fn plan_of(engine: &AsyncEngine, bytes: &[u8]) -> Plan {
    bytes.chunks(100_000).fold(Plan::new(), |plan, chunk| plan.with(engine.with(|e| e.gather([chunk]))))
}

fn send_a_mix(zero_copy: ZeroCopy) {
    run(async {
        let engine = engine(zero_copy);
        let (mut sender, peer) = reading(&engine);
        let bytes = pattern(8 * MIB);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes[4 * MIB..6 * MIB]).unwrap();
        let part = FilePart { file: Arc::new(file), offset: 0, len: 2 * MIB as u64 };
        sender.send(plan_of(&engine, &bytes[..4 * MIB]).with(Segment::File(part))).await.unwrap();
        sender.send(plan_of(&engine, &bytes[6 * MIB..])).await.unwrap();
        sender.finish().await.unwrap();
        let account = sender.sender().account();
        assert_eq!((account.bytes(), account.zero_copy_unreported), (8 * MIB as u64, 0));
        drop(sender);
        assert!(peer.join().unwrap() == bytes);
    });
}

#[test]
fn zero_copy_bytes_arrive_and_buffers_return() {
    send_a_mix(ZeroCopy::From(1));
}

#[test]
fn copied_bytes_arrive() {
    send_a_mix(ZeroCopy::Never);
}

/// Runs a sender with a peer that does not read until another sender has sent and has its buffers
/// back.
fn two_senders(bytes_of_the_slow_one: usize) {
    run(async {
        let engine = engine(ZeroCopy::From(1));
        if !lends(&engine) {
            return;
        }
        let (tell, told) = mpsc::channel();
        let (stream, far) = narrow_connection();
        let (mut slow, slow_peer) = (AsyncSender::new(&engine, stream).unwrap(), peer(far, told));
        let (mut quick, quick_peer) = reading(&engine);
        let (long, short) = (pattern(bytes_of_the_slow_one), pattern(2 * MIB));
        let plan = plan_of(&engine, &long);
        let waits = spawn_local(async move {
            slow.send(plan).await.unwrap();
            slow.finish().await.unwrap();
            assert_eq!(slow.sender().borrowed(), 0);
        });
        yield_now().await;
        quick.send(plan_of(&engine, &short)).await.unwrap();
        quick.finish().await.unwrap();
        assert!(!waits.is_finished(), "its peer has read nothing");
        drop(tell);
        waits.await.unwrap();
        drop(quick);
        assert!(slow_peer.join().unwrap() == long && quick_peer.join().unwrap() == short);
    });
}

#[test]
fn sender_that_waits_for_room_does_not_block_another() {
    two_senders(16 * MIB);
}

#[test]
fn sender_that_waits_for_its_buffers_does_not_block_another() {
    two_senders(FEW);
}

/// Returns a sender that has sent [`FEW`] bytes by zero-copy, and its peer, which has read none.
async fn with_lent_bytes(engine: &AsyncEngine) -> (AsyncSender, TcpStream) {
    let (stream, far) = narrow_connection();
    let mut sender = AsyncSender::new(engine, stream).unwrap();
    sender.send(plan_of(engine, &pattern(FEW))).await.unwrap();
    (sender, far)
}

#[test]
fn cancelled_finish_can_be_repeated() {
    run(async {
        let engine = engine(ZeroCopy::From(1));
        if !lends(&engine) {
            return;
        }
        let (mut sender, mut far) = with_lent_bytes(&engine).await;
        assert!(timeout(Duration::ZERO, sender.finish()).await.is_err());
        far.read_exact(&mut vec![0; FEW]).unwrap();
        sender.finish().await.unwrap();
        assert_eq!(sender.sender().borrowed(), 0);
    });
}

#[test]
fn sender_finishes_after_another_took_its_notifications() {
    run(async {
        let engine = engine(ZeroCopy::From(1));
        if !lends(&engine) {
            return;
        }
        let (mut sender, mut far) = with_lent_bytes(&engine).await;
        let waits = spawn_local(async move { sender.finish().await });
        yield_now().await;
        assert!(!waits.is_finished());
        // The reactor does not run until all is read.
        far.read_exact(&mut vec![0; FEW]).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while engine.with(|engine| engine.borrowed_bytes()) > 0 && Instant::now() < deadline {
            engine.with(Engine::collect).unwrap();
        }
        waits.await.unwrap().unwrap();
    });
}

#[test]
fn plan_that_reads_from_a_socket_waits_for_it() {
    run(async {
        let engine = engine(ZeroCopy::Adaptive);
        let (mut sender, peer) = reading(&engine);
        let (mut feeder, source) = connection();
        source.set_nonblocking(true).unwrap();
        let part = StreamPart { socket: Arc::new(source.into()), len: MIB as u64 };
        let sending = spawn_local(async move { sender.send(Plan::new().with(Segment::Socket(part))).await });
        yield_now().await;
        assert!(!sending.is_finished(), "nothing has come yet");
        let feeding = std::thread::spawn(move || feeder.write_all(&pattern(MIB)).unwrap());
        sending.await.unwrap().unwrap();
        feeding.join().unwrap();
        assert!(peer.join().unwrap() == pattern(MIB));
    });
}
