//! Waits for notifications, by the engine and by a separate reactor.

use std::io::Read as _;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait_sys::buffer::Frozen;
use strait_transfer::{Engine, Options, Plan, Segment, Sender, ZeroCopy};

use crate::rig::{PATIENCE, connection, pattern};

/// More bytes than the peer's receive buffer holds, and fewer than both socket buffers hold.
const BYTES: usize = 200_000;

/// Returns an engine, a sender with unread bytes that the kernel has borrowed, and the peer; `None`
/// without zero-copy.
fn with_borrowed_buffers() -> Option<(Engine, Sender, std::net::TcpStream)> {
    let mut engine = Engine::new(Options { zero_copy: ZeroCopy::From(1), ..Options::default() }).unwrap();
    if engine.notifications().is_none() {
        lab::skip("no io_uring");
        return None;
    }
    let (stream, far) = connection();
    rustix::net::sockopt::set_socket_recv_buffer_size(&far, 32 << 10).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, 4 * BYTES).unwrap();
    let mut sender = Sender::new(stream).unwrap();
    sender.send(&mut engine, plan(), PATIENCE).unwrap();
    engine.collect().unwrap();
    assert!(sender.borrowed() > 0, "the peer has not read");
    Some((engine, sender, far))
}

fn plan() -> Plan {
    Plan::new().with(Segment::Shared(Frozen::copied(&pattern(BYTES, 1)).unwrap()))
}

fn read(mut peer: &std::net::TcpStream) {
    peer.read_exact(&mut vec![0; BYTES]).unwrap();
}

fn timeout() -> Timespec {
    Timespec::try_from(PATIENCE).unwrap()
}

/// Returns true if the descriptor is readable, waiting at most `timeout`.
fn is_readable(engine: &Engine, timeout: Timespec) -> bool {
    let notifications = engine.notifications().unwrap();
    poll(&mut [PollFd::from_borrowed_fd(notifications, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

#[test]
fn notification_before_the_wait_ends_it() {
    let Some((mut engine, sender, peer)) = with_borrowed_buffers() else { return };
    assert!(engine.listen().unwrap());
    read(&peer);
    assert!(is_readable(&engine, timeout()));
    engine.quiet();
    assert!(engine.wait(None, PATIENCE).unwrap());
    assert_eq!(sender.borrowed(), 0);
}

#[test]
fn descriptor_is_readable_from_a_notification_until_quiet() {
    let Some((mut engine, sender, peer)) = with_borrowed_buffers() else { return };
    assert!(engine.listen().unwrap());
    assert!(!is_readable(&engine, Timespec::default()), "nothing has come");
    read(&peer);
    assert!(is_readable(&engine, timeout()));
    engine.quiet();
    assert!(!is_readable(&engine, Timespec::default()));
    engine.collect().unwrap();
    assert_eq!(sender.borrowed(), 0);
    assert!(!engine.listen().unwrap(), "nothing is to come");
}

#[test]
fn each_notification_after_listen_causes_an_edge() {
    let Some((mut engine, mut sender, peer)) = with_borrowed_buffers() else { return };
    let reactor = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let interest = EventFlags::IN | EventFlags::ET;
    epoll::add(&reactor, engine.notifications().unwrap(), EventData::new_u64(0), interest).unwrap();
    for turn in 1..=3 {
        assert!(engine.listen().unwrap());
        read(&peer);
        while engine.listen().unwrap() {
            let mut events = Vec::with_capacity(1);
            epoll::wait(&reactor, rustix::buffer::spare_capacity(&mut events), Some(&timeout())).unwrap();
            assert_eq!(events.len(), 1, "no edge for notification {turn}");
        }
        assert_eq!(sender.borrowed(), 0);
        sender.send(&mut engine, plan(), PATIENCE).unwrap();
    }
}
