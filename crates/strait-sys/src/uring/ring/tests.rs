//! Tests of the kernel's behaviour, and of memory safety with it. Without io_uring each test prints
//! SKIP.

use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use super::*;
use crate::buffer::BufMut;

const PATIENCE: Duration = Duration::from_secs(10);
const BLOCK: usize = 64 << 10;

fn ring_or_skip(entries: u32, slots: usize) -> Option<Ring> {
    Ring::new(entries, slots).inspect_err(|error| eprintln!("SKIP io_uring: {error}")).ok()
}

/// Like [`ring_or_skip`], for a test that pins many megabytes: all processes of a user share the
/// limit of pinned memory, RLIMIT_MEMLOCK.
//
// `lab` has this check for other crates; unit tests of this crate cannot use it, see Cargo.toml.
fn pinning_ring_or_skip(entries: u32, slots: usize) -> Option<Ring> {
    use rustix::thread::{CapabilitySet, capabilities};
    const NEEDED: u64 = 128 << 20;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let unlimited = capabilities(None).unwrap().effective.contains(CapabilitySet::IPC_LOCK);
    if !unlimited && limit.is_some_and(|bytes| bytes < NEEDED) {
        eprintln!("SKIP io_uring: needs CAP_IPC_LOCK, or RLIMIT_MEMLOCK of {NEEDED} bytes");
        return None;
    }
    ring_or_skip(entries, slots)
}

/// Returns a loopback connection: the sender and its peer.
fn connection() -> (Arc<OwnedFd>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    (Arc::new(sender.into()), peer)
}

/// Returns a connection that the peer has reset: a send fails with EPIPE.
fn broken_connection() -> Arc<OwnedFd> {
    let (sender, mut peer) = connection();
    let mut stream = TcpStream::from(sender.try_clone().unwrap());
    stream.write_all(b"unread").unwrap();
    let mut byte = [0];
    peer.read_exact(&mut byte).unwrap();
    // Closing with unread bytes sends a reset.
    drop(peer);
    stream.read_exact(&mut byte).unwrap_err();
    sender
}

const ZERO_COPY: SendOptions =
    SendOptions { zero_copy: true, more: false, wait_all: false, dont_wait: false, linked: false };

/// Returns the events until no operation is in progress.
fn drain(ring: &mut Ring) -> Vec<Event> {
    let (deadline, mut events) = (Instant::now() + PATIENCE, Vec::new());
    while ring.in_progress() > 0 {
        assert!(Instant::now() < deadline, "{ring:?} after {events:?}");
        ring.enter(1, Duration::from_millis(100)).unwrap();
        events.extend(std::iter::from_fn(|| ring.next_event()));
    }
    events
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed).collect()
}

#[test]
fn zero_copy_send_releases_memory_with_the_notification() {
    let Some(mut ring) = ring_or_skip(4, 4) else { return };
    let (sender, mut peer) = connection();
    let view = Frozen::copied(&pattern(BLOCK, 1)).unwrap();
    ring.push(&sender, std::slice::from_ref(&view), SendOptions { wait_all: true, ..ZERO_COPY }, 7).unwrap();
    ring.enter(1, PATIENCE).unwrap();
    assert_eq!(ring.next_event(), Some(Event::Sent { token: 7, result: Ok(BLOCK), borrowed: true }));
    let view = view.try_mut().unwrap_err();
    let mut got = vec![0; BLOCK];
    peer.read_exact(&mut got).unwrap();
    // The loopback copies, and reports it.
    assert_eq!(drain(&mut ring), [Event::Returned { token: 7, copied: true }]);
    assert!(view.try_mut().is_ok());
    assert_eq!(got, pattern(BLOCK, 1));
}

#[test]
fn many_views_leave_as_one_message_and_registered_memory_as_well() {
    let Some(mut ring) = ring_or_skip(4, 4) else { return };
    let pool = Pool::new(BLOCK, 1).unwrap();
    ring.register(&pool).unwrap();
    let (sender, mut peer) = connection();
    let mut buffer = pool.take().unwrap();
    buffer.copy_from_slice(&pattern(BLOCK, 2));
    let registered = buffer.freeze(0..BLOCK);
    let views =
        vec![Frozen::copied(b"head").unwrap(), registered.slice(0..10), Frozen::copied(b"tail").unwrap()];
    ring.push(&sender, &[registered.slice(5..9)], SendOptions { linked: true, ..ZERO_COPY }, 1).unwrap();
    // All in one chain: unlinked operations could overtake waiting ones.
    ring.push(&sender, &views, SendOptions { linked: true, ..ZERO_COPY }, 2).unwrap();
    drop(views);
    ring.push(&sender, &[registered], SendOptions { zero_copy: false, ..ZERO_COPY }, 3).unwrap();
    let events = drain(&mut ring);
    assert!(events.contains(&Event::Sent { token: 3, result: Ok(BLOCK), borrowed: false }), "{events:?}");
    let mut got = vec![0; 4 + 18 + BLOCK];
    peer.read_exact(&mut got).unwrap();
    let bytes = pattern(BLOCK, 2);
    assert!(got == [&bytes[5..9], b"head", &bytes[..10], b"tail", &bytes].concat());
    assert!(pool.take().is_some());
}

#[test]
fn pages_of_a_mapped_file_stay_borrowed_after_file_and_mapping_are_gone() {
    use rustix::fs::{MemfdFlags, memfd_create};
    let Some(mut ring) = ring_or_skip(4, 4) else { return };
    let (sender, mut peer) = connection();
    let file = memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    let mut file = std::fs::File::from(file);
    file.write_all(&pattern(BLOCK, 3)).unwrap();
    let view = Frozen::of_file(&file).unwrap();
    ring.push(&sender, &[view], SendOptions { wait_all: true, ..ZERO_COPY }, 1).unwrap();
    drop(file);
    ring.enter(1, PATIENCE).unwrap();
    assert_eq!(ring.next_event(), Some(Event::Sent { token: 1, result: Ok(BLOCK), borrowed: true }));
    drop(ring);
    let mut got = vec![0; BLOCK];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(got, pattern(BLOCK, 3));
}

#[test]
fn an_error_is_followed_by_a_notification() {
    let Some(mut ring) = ring_or_skip(4, 4) else { return };
    let view = Frozen::copied(&pattern(BLOCK, 0)).unwrap();
    ring.push(&broken_connection(), std::slice::from_ref(&view), ZERO_COPY, 1).unwrap();
    let events = drain(&mut ring);
    assert_eq!(events[0], Event::Sent { token: 1, result: Err(libc::EPIPE), borrowed: true });
    assert!(matches!(events[1..], [Event::Returned { token: 1, .. }]), "{events:?}");
    assert!(view.try_mut().is_ok());
}

#[test]
fn stale_notification_of_a_cancelled_link_is_counted() {
    let Some(mut ring) = ring_or_skip(4, 4) else { return };
    let (broken, (sender, mut peer)) = (broken_connection(), connection());
    let view = Frozen::copied(b"strait").unwrap();
    ring.push(&broken, std::slice::from_ref(&view), SendOptions { linked: true, ..ZERO_COPY }, 1).unwrap();
    ring.push(&broken, std::slice::from_ref(&view), ZERO_COPY, 2).unwrap();
    let events = drain(&mut ring);
    assert!(
        events.contains(&Event::Sent { token: 2, result: Err(libc::ECANCELED), borrowed: false }),
        "{events:?}"
    );
    // Its slot serves the next operation, which the late notification must not complete.
    ring.push(&sender, &[view], ZERO_COPY, 3).unwrap();
    let events = drain(&mut ring);
    assert_eq!(events[0], Event::Sent { token: 3, result: Ok(6), borrowed: true }, "{events:?}");
    assert_eq!(ring.stale(), 1);
    let mut got = [0; 6];
    peer.read_exact(&mut got).unwrap();
}

#[test]
fn a_full_completion_queue_loses_nothing() {
    // The completion queue has twice the entries of the submission queue, and each operation two
    // completions.
    let Some(mut ring) = ring_or_skip(2, 64) else { return };
    let (sender, mut peer) = connection();
    let view = Frozen::copied(&[9; 512]).unwrap();
    for token in 0..64 {
        while ring.push(&sender, std::slice::from_ref(&view), ZERO_COPY, token) == Err(Full) {
            ring.enter(0, Duration::ZERO).unwrap();
        }
    }
    let reader = std::thread::spawn(move || peer.read_exact(&mut vec![0; 64 * 512]));
    let events = drain(&mut ring);
    let returned = events.iter().filter(|event| matches!(event, Event::Returned { .. })).count();
    assert_eq!((events.len(), returned), (128, 64));
    reader.join().unwrap().unwrap();
}

#[test]
fn full_table_refuses_operations() {
    let Some(mut ring) = ring_or_skip(8, 1) else { return };
    let (sender, _peer) = connection();
    let view = Frozen::copied(b"x").unwrap();
    ring.push(&sender, std::slice::from_ref(&view), ZERO_COPY, 1).unwrap();
    assert_eq!(ring.push(&sender, std::slice::from_ref(&view), ZERO_COPY, 2), Err(Full));
    drop(drain(&mut ring));
    ring.push(&sender, &[view], ZERO_COPY, 2).unwrap();
}

/// Sends blocks to a peer that reads only at the end, and overwrites each returned buffer. Returns
/// true if the peer received the original bytes.
fn arrives_unharmed(ring: &mut Ring) -> bool {
    const BUFFERS: usize = 4;
    const BLOCKS_MAX: u8 = 200;
    let (sender, mut peer) = connection();
    let mut buffers: Vec<BufMut> = (0..BUFFERS).map(|_| BufMut::with_len(BLOCK).unwrap()).collect();
    let (mut borrowed, mut expected): (Vec<Frozen>, Vec<u8>) = (Vec::new(), Vec::new());
    let mut stalled = 0;
    for seed in 0..BLOCKS_MAX {
        let Some(mut buffer) = buffers.pop() else { break };
        let bytes = pattern(BLOCK, seed);
        buffer.copy_from_slice(&bytes);
        borrowed.push(buffer.freeze(0..BLOCK));
        ring.push(&sender, std::slice::from_ref(borrowed.last().unwrap()), ZERO_COPY, seed.into()).unwrap();
        ring.enter(1, Duration::from_millis(20)).unwrap();
        let mut sent = None;
        while let Some(event) = ring.next_event() {
            if let Event::Sent { result, .. } = event {
                sent = result.ok();
            }
        }
        expected.extend_from_slice(&bytes[..sent.unwrap_or(0)]);
        stalled += usize::from(sent.is_none());
        for view in std::mem::take(&mut borrowed) {
            match view.try_mut() {
                Ok(mut buffer) => {
                    buffer.fill(0xee);
                    buffers.push(buffer);
                }
                Err(view) => borrowed.push(view),
            }
        }
        if stalled > 0 {
            break;
        }
    }
    let mut got = vec![0; expected.len()];
    peer.read_exact(&mut got).unwrap();
    drop((peer, sender));
    let _ = drain(ring);
    got == expected
}

#[test]
fn writes_to_returned_buffers_do_not_change_sent_bytes() {
    let Some(mut ring) = ring_or_skip(8, 64) else { return };
    assert!(arrives_unharmed(&mut ring));
}

#[test]
fn early_return_of_buffers_is_detected() {
    let Some(mut ring) = ring_or_skip(8, 64) else { return };
    ring.returns_early = true;
    assert!(!arrives_unharmed(&mut ring));
}

#[test]
fn dropped_ring_keeps_pages_that_the_kernel_reads() {
    let Some(mut ring) = ring_or_skip(4, 8) else { return };
    let (sender, mut peer) = connection();
    let pool = Pool::new(1 << 20, 4).unwrap();
    let (mut expected, mut views) = (Vec::new(), Vec::new());
    for seed in 0..4 {
        let mut buffer = pool.take().unwrap();
        buffer.copy_from_slice(&pattern(1 << 20, seed));
        let view = buffer.freeze(0..1 << 20);
        ring.push(&sender, std::slice::from_ref(&view), ZERO_COPY, seed.into()).unwrap();
        ring.enter(1, Duration::from_millis(50)).unwrap();
        let Some(Event::Sent { result: Ok(sent), .. }) = ring.next_event() else { break };
        expected.extend_from_slice(&view[..sent]);
        views.push(view);
        if sent < 1 << 20 {
            break;
        }
    }
    assert!(ring.borrowed() > 0, "{ring:?}");
    drop(ring);
    for view in views {
        assert!(view.try_mut().is_err());
    }
    // The pool must not return any of these pages.
    while let Some(mut buffer) = pool.take() {
        buffer.fill(0xee);
    }
    drop(pool);
    let mut got = vec![0; expected.len()];
    peer.read_exact(&mut got).unwrap();
    assert!(got == expected);
}

#[test]
fn send_that_does_not_wait_is_partial() {
    let Some(mut ring) = pinning_ring_or_skip(4, 64) else { return };
    let (sender, _peer) = connection();
    let view = Frozen::copied(&pattern(1 << 20, 1)).unwrap();
    let dont_wait = SendOptions { dont_wait: true, ..ZERO_COPY };
    for _ in 0..60 {
        ring.push(&sender, std::slice::from_ref(&view), dont_wait, 1).unwrap();
        ring.enter(0, Duration::ZERO).unwrap();
        let sent = std::iter::from_fn(|| ring.next_event()).find(|event| matches!(event, Event::Sent { .. }));
        match sent {
            Some(Event::Sent { result: Ok(_), .. }) => {}
            Some(Event::Sent { result: Err(errno), .. }) => return assert_eq!(errno, libc::EAGAIN),
            other => panic!("{other:?}"),
        }
    }
    panic!("a peer that reads nothing took 60 MiB");
}

/// Sends 4 MiB in a chain of three to a slow peer: after a partial send the next operation must not
/// run.
#[test]
fn a_chain_to_a_slow_peer_arrives_whole_and_in_order() {
    let Some(mut ring) = pinning_ring_or_skip(4, 4) else { return };
    let (sender, mut peer) = connection();
    let views = [1, 2, 3].map(|seed| Frozen::copied(&pattern(4 << 20, seed)).unwrap());
    for (token, view) in views.iter().enumerate() {
        let options = SendOptions { linked: token < 2, wait_all: true, ..ZERO_COPY };
        ring.push(&sender, std::slice::from_ref(view), options, token as u64).unwrap();
    }
    drop(sender);
    let reading = std::thread::spawn(move || {
        let (mut got, mut chunk) = (Vec::new(), vec![0; 100_000]);
        while let Ok(read @ 1..) = peer.read(&mut chunk) {
            got.extend_from_slice(&chunk[..read]);
            std::thread::sleep(Duration::from_micros(300));
        }
        got
    });
    let events = drain(&mut ring);
    let results =
        events.iter().filter(|event| matches!(event, Event::Sent { result, .. } if *result == Ok(4 << 20)));
    assert_eq!(results.count(), 3, "{events:?}");
    drop(ring);
    assert!(reading.join().unwrap() == views.map(|view| view.to_vec()).concat());
}

/// Runs in a child process, because the limit applies to the whole process.
#[test]
fn failed_send_beyond_the_memlock_limit_releases_its_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    const ALONE: &str = "STRAIT_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "uring::ring::tests::failed_send_beyond_the_memlock_limit_releases_its_memory";
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        let output = test.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        return assert!(output.status.success());
    }
    let limit = Rlimit { current: Some(64 << 10), maximum: getrlimit(Resource::Memlock).maximum };
    setrlimit(Resource::Memlock, limit).unwrap();
    // CAP_IPC_LOCK would disable the limit.
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).unwrap();
    let Some(mut ring) = ring_or_skip(4, 4) else { return };
    let (sender, _peer) = connection();
    let view = Frozen::copied(&pattern(1 << 20, 5)).unwrap();
    ring.push(&sender, std::slice::from_ref(&view), ZERO_COPY, 1).unwrap();
    let events = drain(&mut ring);
    assert_eq!(events[0], Event::Sent { token: 1, result: Err(libc::ENOMEM), borrowed: true }, "{events:?}");
    assert!(view.try_mut().is_ok());
}
