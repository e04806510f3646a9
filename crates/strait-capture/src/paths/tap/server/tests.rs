//! Callers of a broker on a thread of its own, good and hostile ones.

use std::io::{IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::thread;

use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
    SocketType, accept, bind, connect, listen, sendmsg, shutdown, socket,
};

use lab::{End, Wire};
use strait_filter::tap::layout;
use strait_sys::bpf::Rings;
use strait_sys::packet::Socket;

use super::super::broker::message::Message;
use super::super::memory::layouts;
use super::*;

/// Time limit of any step on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);

/// Has a caller of a broker.
fn with_broker(call: impl FnOnce(OwnedFd)) {
    with_limited_broker(MAPS_BYTES_MAX, call);
}

fn with_limited_broker(maps_bytes_max: usize, call: impl FnOnce(OwnedFd)) {
    let (callers, brokers) = pair().unwrap();
    thread::scope(|scope| {
        let serving = scope.spawn(|| serve(brokers, maps_bytes_max));
        call(callers);
        assert!(serving.join().unwrap().is_ok(), "it ends with its callers");
    });
}

fn receive(socket: &OwnedFd) -> Message {
    message::wait(&[socket]).unwrap();
    message::receive(socket).unwrap()
}

/// Request for a tap on lo with the smallest rings.
fn request() -> Vec<u8> {
    let options = Options { interface: "lo", ring_bytes: 1, lanes: 1, rx_hash: false };
    Call::Open { options }.encode().unwrap()
}

/// Sends a request with `proof`, and returns the reply.
fn send_request(callers: &OwnedFd, request: &[u8], proof: &OwnedFd) -> Message {
    let (own, brokers) = pair().unwrap();
    message::send(callers, request, &[brokers.as_fd(), proof.as_fd()]).unwrap();
    drop(brokers);
    receive(&own)
}

/// Opens a tap and returns its socket. Needs the privileges of a broker.
fn open_tap(callers: &OwnedFd) -> Result<OwnedFd, Outcome> {
    Ok(open_with_maps(callers)?.swap_remove(0))
}

/// Opens a tap and returns its socket and the descriptors of its maps.
fn open_with_maps(callers: &OwnedFd) -> Result<Vec<OwnedFd>, Outcome> {
    let proof = socket(AddressFamily::PACKET, SocketType::DGRAM, None).unwrap();
    let reply = send_request(callers, &request(), &proof);
    match Outcome::decode(&reply.bytes).unwrap() {
        Outcome::Done => Ok(reply.descriptors),
        outcome => Err(outcome),
    }
}

/// Returns false, and says so, if this process cannot be a broker.
fn is_privileged_or_skip() -> bool {
    let is_privileged = strait_os::process::is_in_initial_user_namespace().unwrap_or(false)
        && strait_os::process::AF_XDP_CAPABILITIES
            .into_iter()
            .all(|(capability, _)| strait_os::process::has_capability(capability).unwrap_or(false));
    if !is_privileged {
        lab::skip("a broker needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, its caller CAP_NET_RAW");
    }
    is_privileged
}

/// Returns the outcome of a call for a tap.
fn call(tap: &OwnedFd, bytes: &[u8]) -> Option<Outcome> {
    message::send(tap, bytes, &[]).unwrap();
    Outcome::decode(&receive(tap).bytes)
}

/// Returns a peer that reads nothing, and holds less than a connection sends.
fn deaf_peer() -> TcpListener {
    let peer = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    set_socket_recv_buffer_size(&peer, 1).unwrap();
    peer
}

/// Returns a connection whose last close waits until the peer reads.
fn lingering(peer: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(peer).unwrap();
    set_socket_send_buffer_size(&stream, 1 << 16).unwrap();
    set_socket_linger(&stream, Some(Duration::from_secs(1 << 20))).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 12]).is_ok() {}
    stream
}

/// Sends a message with a UNIX socket, `copies` of `socket` and a connection that lingers. Queues
/// have the only copies of this connection, and of one in the queue of the UNIX socket.
fn send_unclosable(to: &OwnedFd, (socket, copies): (&OwnedFd, usize), peer: &TcpListener) {
    let address = peer.local_addr().unwrap();
    // Its exit does not wait.
    let child = fork([to, socket].map(|kept| kept.try_clone().unwrap()), |[to, socket]| {
        let [first, second] = [lingering(address), lingering(address)];
        let (full, other) = pair().unwrap();
        send_many(&other, &[first.as_fd()]);
        let mut descriptors = vec![socket.as_fd(); copies];
        descriptors.insert(0, full.as_fd());
        descriptors.push(second.as_fd());
        send_many(&to, &descriptors);
        (to, socket, first, second, full, other)
    });
    let child = child.unwrap();
    assert!(lab::wait_until(LIMIT, || !matches!(wait4_no_hang(child), Ok(None))));
}

/// Sends a message with more descriptors than those of the protocol have.
fn send_many(to: &OwnedFd, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    sendmsg(to, &[IoSlice::new(&request())], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
}

/// More descriptors than a message of the broker has.
const MANY: usize = 100;

#[test]
fn reply_is_in_no_queue_that_other_callers_share() {
    with_broker(|callers| {
        let proof = socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        let reply = send_request(&callers, &request(), &proof);
        assert!(matches!(Outcome::decode(&reply.bytes), Some(Outcome::System { .. })), "no packet socket");
        assert!(matches!(message::receive(&callers), Err(Errno::AGAIN)));
    });
}

#[test]
fn reply_goes_to_no_server_with_a_name() {
    let directory = tempfile::tempdir().unwrap();
    let address = SocketAddrUnix::new(directory.path().join("server")).unwrap();
    let of_type = || socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    with_broker(|callers| {
        let server = of_type();
        bind(&server, &address).unwrap();
        listen(&server, 9).unwrap();
        let proof = socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        for is_servers in [false, true] {
            let client = of_type();
            connect(&client, &address).unwrap();
            let mut ends = [client, accept(&server).unwrap()];
            ends.rotate_left(usize::from(is_servers));
            let [sent, other] = ends;
            message::send(&callers, &request(), &[sent.as_fd(), proof.as_fd()]).unwrap();
            drop(sent);
            assert!(receive(&other).bytes.is_empty(), "it is closed without a message");
        }
    });
}

#[test]
fn broker_ends_even_if_it_was_sent_the_callers_ends_of_its_sockets() {
    with_broker(|callers| {
        for _ in 0..20 {
            let (own, brokers) = pair().unwrap();
            for descriptors in [&[callers.as_fd(), own.as_fd()][..], &[brokers.as_fd(), own.as_fd()]] {
                message::send(&callers, &request(), descriptors).unwrap();
                message::send(&own, &request(), descriptors).unwrap();
            }
        }
    });
}

#[test]
fn descriptors_that_cannot_be_closed_stop_neither_the_service_nor_its_end() {
    let peer = deaf_peer();
    with_broker(|callers| {
        for copies in [0, 1, MANY - 2] {
            send_unclosable(&callers, (&callers, copies), &peer);
        }
        let proof = socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        assert!(!send_request(&callers, &request(), &proof).bytes.is_empty(), "a sibling has its reply");
        send_unclosable(&callers, (&callers, 1), &peer);
    });
}

#[test]
fn tap_ends_with_its_caller_even_if_it_was_sent_descriptors() {
    if !is_privileged_or_skip() {
        return;
    }
    let peer = deaf_peer();
    with_broker(|callers| {
        for copies in [0, 1, MANY - 2] {
            let tap = open_tap(&callers).unwrap();
            send_unclosable(&callers, (&tap, copies), &peer);
            send_unclosable(&tap, (&tap, copies), &peer);
            // Fails if the tap has ended already.
            let _ = message::send(&tap, &request(), &[tap.as_fd(), callers.as_fd()]);
            message::send(&callers, &[], &[tap.as_fd()]).unwrap();
        }
    });
}

#[test]
fn socket_of_a_reply_takes_no_message_while_the_tap_lives() {
    if !is_privileged_or_skip() {
        return;
    }
    with_broker(|callers| {
        let (own, brokers) = pair().unwrap();
        let proof = socket(AddressFamily::PACKET, SocketType::DGRAM, None).unwrap();
        message::send(&callers, &request(), &[brokers.as_fd(), proof.as_fd()]).unwrap();
        let tap = receive(&own).descriptors.swap_remove(0);
        assert_eq!(message::send(&own, &[], &[tap.as_fd()]), Err(Errno::PIPE));
    });
}

#[test]
fn caller_that_reads_no_answers_does_not_keep_its_own_socket_open() {
    if !is_privileged_or_skip() {
        return;
    }
    with_broker(|callers| {
        let tap = open_tap(&callers).unwrap();
        // A failing message shows the end of the tap, or that the kernel holds no more of them.
        while message::send(&tap, &[7], &[]).is_ok() {}
    });
}

#[test]
fn malformed_messages_end_neither_the_service_nor_a_tap() {
    with_broker(|callers| {
        let long = vec![message::VERSION; 50_000];
        for bytes in [&[][..], &long, &[message::VERSION; 2]] {
            message::send(&callers, bytes, &[]).unwrap();
        }
        if !is_privileged_or_skip() {
            return;
        }
        let tap = open_tap(&callers).unwrap();
        for bytes in [&[][..], &long, &[message::VERSION; 2], &request()] {
            assert!(!matches!(call(&tap, bytes), None | Some(Outcome::Done)));
        }
        let mut other = request();
        other[1] = message::VERSION + 1;
        let proof = socket(AddressFamily::PACKET, SocketType::DGRAM, None).unwrap();
        let reply = send_request(&callers, &other, &proof);
        assert!(matches!(Outcome::decode(&reply.bytes), Some(Outcome::Usage(_))), "another version");
        let attach = Call::Attach { hooks: Vec::new(), filter: Program::accept_all(96) };
        assert_eq!(call(&tap, &attach.encode().unwrap()), Some(Outcome::Done));
    });
}

#[test]
fn taps_are_limited_until_one_is_closed() {
    if !is_privileged_or_skip() {
        return;
    }
    with_broker(|callers| {
        let mut taps: Vec<OwnedFd> = (0..TAPS_MAX).map(|_| open_tap(&callers).unwrap()).collect();
        assert!(matches!(open_tap(&callers), Err(Outcome::Usage(_))));
        taps.pop();
        // The broker sees the end a little later.
        assert!(lab::wait_until(LIMIT, || open_tap(&callers).is_ok()));
    });
}

#[test]
fn taps_outlive_the_socket_of_requests() {
    if !is_privileged_or_skip() {
        return;
    }
    with_broker(|callers| {
        let tap = open_tap(&callers).unwrap();
        shutdown(&callers, Shutdown::Both).unwrap();
        drop(callers);
        let attach = Call::Attach { hooks: Vec::new(), filter: Program::accept_all(96) };
        assert_eq!(call(&tap, &attach.encode().unwrap()), Some(Outcome::Done));
    });
}

#[test]
fn memory_counts_while_a_caller_holds_it_even_if_its_tap_is_closed() {
    const MOST: usize = 8 << 20;
    if !is_privileged_or_skip() {
        return;
    }
    with_limited_broker(MOST, |callers| {
        let mut held = Vec::new();
        while let Ok(mut descriptors) = open_with_maps(&callers) {
            drop(descriptors.swap_remove(0));
            held.push(descriptors);
        }
        assert!((1..=MOST / DOORBELL_BYTES).contains(&held.len()), "{}", held.len());
        held.pop();
        // The broker closes its own copies a little later.
        assert!(lab::wait_until(LIMIT, || open_tap(&callers).is_ok()));
    });
}

#[test]
fn tap_with_different_filters_at_its_hooks_is_torn() {
    if !is_privileged_or_skip() {
        return;
    }
    // In a network of its own, because the programs run for every frame.
    let attaching = thread::spawn(|| {
        strait_sys::syscall::unshare_network().unwrap();
        let held = Held::new().unwrap();
        let namespace = Namespace::own()?;
        let budget = Budget { taps: 1, bytes: MAPS_BYTES_MAX, held: &held, namespace: &namespace };
        let mut tap = open(&Options { interface: "lo", ring_bytes: 1, lanes: 1, rx_hash: false }, &budget)?;
        tap.attach(&[TcxHook::Ingress], &Program::accept_all(96))?;
        // The kernel refuses to replace its program.
        let broken = Link::from_descriptor(pair().unwrap().0);
        tap.links.push((TcxHook::Egress, broken));
        assert!(!tap.is_torn);
        assert!(tap.attach(&[TcxHook::Egress], &Program::accept_all(64)).is_err());
        assert!(!tap.is_torn, "no filter was replaced");
        assert!(tap.attach(&[TcxHook::Ingress, TcxHook::Egress], &Program::accept_all(64)).is_err());
        assert!(tap.is_torn);
        Ok::<(), Error>(())
    });
    attaching.join().unwrap().unwrap();
}

/// Opens a tap for received frames of the interface `right`, in the namespace of `end`.
fn tap_of_right(end: &End) -> Served {
    let tap = end.run(|| {
        let (held, namespace) = (Held::new()?, Namespace::own()?);
        let budget = Budget { taps: 1, bytes: MAPS_BYTES_MAX, held: &held, namespace: &namespace };
        let options = Options { interface: "right", ring_bytes: 1 << 20, lanes: 1, rx_hash: false };
        let mut tap = open(&options, &budget)?;
        tap.attach(&[TcxHook::Ingress], &Program::accept_all(96))?;
        Ok::<_, Error>(tap)
    });
    tap.unwrap()
}

#[test]
fn tap_copies_no_frame_after_its_interface_has_moved_to_another_namespace() {
    if !is_privileged_or_skip() || !lab::program_or_skip("ip") {
        return;
    }
    let Some(wire) = Wire::builder().or_skip() else { return };
    let sender = wire.left().interface().index;
    let sender = wire.left().run(|| {
        let socket = Socket::open("left").unwrap();
        socket.bind_for_sending(sender).unwrap();
        socket
    });
    let frames = |tap: &Served| -> u64 {
        let Template { memory, sizes, .. } = &tap.template;
        let (rings, _readers) = Rings::map(&memory.rings, &layouts(sizes)).unwrap();
        (0..rings.count()).map(|ring| rings.counter(ring, layout::FRAMES)).sum()
    };
    let send_until_copied = |tap: &Served, least: u64| {
        let is_copied = || sender.send(&[0xff; 60]).is_ok() && frames(tap) >= least;
        assert!(lab::wait_until(LIMIT, is_copied));
    };
    let moved = tap_of_right(wire.right());
    send_until_copied(&moved, 1);
    let namespace = wire.left().namespace().as_fd().as_raw_fd();
    let ip = |end: &End, line: &str| end.command("ip").args(line.split(' ')).run(LIMIT).unwrap().success();
    ip(wire.right(), &format!("link set right netns /proc/{}/fd/{namespace}", std::process::id()));
    let before = frames(&moved);
    ip(wire.left(), "link set right up");
    // The program of this tap runs before the other one, so its second frame shows that the first
    // has passed both.
    send_until_copied(&tap_of_right(wire.left()), 2);
    assert_eq!(frames(&moved), before);
}
