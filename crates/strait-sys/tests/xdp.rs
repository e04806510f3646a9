//! `AF_XDP` on a veth pair in two network namespaces of the test's own: receive, send, fragments,
//! queues, losses.
//!
//! Each test is alone on its link, so every frame is accounted for. Without root the tests print
//! SKIP.

#[path = "xdp/rig.rs"]
mod rig;

use std::os::fd::AsFd;

use rig::{Rig, until};
use rustix::io::Errno;
use strait_os::netlink::Netlink;
use strait_sys::Kind;
use strait_sys::bpf::AttachMode;
use strait_sys::xdp::{Binding, Geometry, Mode, Receiver, Socket, Umem};

/// Returns a frame that contains its number; lengths and contents vary.
fn frame(serial: usize, longest: usize) -> Vec<u8> {
    let len = 60 + serial * 131 % (longest - 59);
    rig::udp(serial as u16, len)
}

/// Received frames, with fragments joined.
#[derive(Debug, Default)]
struct Inbox {
    frames: Vec<Vec<u8>>,
    fragments: usize,
    /// Number of frames with the program's metadata.
    marked: usize,
    open: Vec<u8>,
}

impl Inbox {
    fn take(&mut self, receiver: &mut Receiver) {
        for part in receiver.take(48).frames() {
            if self.open.is_empty() {
                self.marked += usize::from(part.metadata.ends_with(&rig::MARK));
            }
            self.open.extend(part.bytes);
            self.fragments += 1;
            if !part.continues {
                self.frames.push(std::mem::take(&mut self.open));
            }
        }
    }
}

/// Sends `frames` from the far end, a few at a time, and receives them all.
fn receive(rig: &Rig, port: &mut rig::Port, frames: &[Vec<u8>]) -> Inbox {
    let mut inbox = Inbox::default();
    let mut sent = 0;
    for window in frames.chunks(32) {
        rig.send_from_far(window);
        sent += window.len();
        until(&port.socket, || {
            inbox.take(&mut port.receiver);
            inbox.frames.len() >= sent
        });
    }
    inbox
}

fn frames_come_whole_with_metadata(attach: AttachMode) {
    let Some(rig) = Rig::new(1, 1500) else { return };
    let mut port = rig.port(attach, false, 2048);
    let frames: Vec<_> = (0..1000).map(|serial| frame(serial, 1514)).collect();
    let inbox = receive(&rig, &mut port, &frames);
    assert_eq!(inbox.frames, frames);
    assert_eq!(inbox.fragments, 1000, "one chunk each");
    assert_eq!(inbox.marked, 1000);
    let statistics = port.socket.statistics().unwrap();
    assert_eq!((statistics.rx_dropped, statistics.rx_ring_full), (0, 0));
    assert_eq!(port.receiver.invalid_descriptors(), 0);
    assert!(!port.socket.is_zero_copy().unwrap(), "veth copies");
}

#[test]
fn frames_arrive_with_metadata_in_native_mode() {
    frames_come_whole_with_metadata(AttachMode::Native);
}

#[test]
fn frames_arrive_with_metadata_in_generic_mode() {
    frames_come_whole_with_metadata(AttachMode::Generic);
}

fn jumbo_frames_come_in_fragments(attach: AttachMode, chunk_bytes: u32) {
    let Some(rig) = Rig::new(1, 9000) else { return };
    let mut port = rig.port(attach, true, chunk_bytes);
    let frames: Vec<_> = (0..300).map(|serial| frame(serial, 9014)).collect();
    let inbox = receive(&rig, &mut port, &frames);
    assert_eq!(inbox.frames, frames);
    assert_eq!(inbox.marked, 300, "metadata stands before the first fragment");
    let frame_bytes = Geometry { chunk_bytes, chunks: 1, headroom_bytes: 0 }.frame_bytes() as usize;
    let expected: usize = frames.iter().map(|frame| frame.len().div_ceil(frame_bytes)).sum();
    assert_eq!(inbox.fragments, expected, "each chunk but the last is full");
}

#[test]
fn jumbo_frames_arrive_in_fragments_of_large_chunks() {
    jumbo_frames_come_in_fragments(AttachMode::Native, 4096);
}

#[test]
fn jumbo_frames_arrive_in_fragments_of_small_chunks() {
    jumbo_frames_come_in_fragments(AttachMode::Native, 2048);
}

#[test]
fn jumbo_frames_arrive_in_fragments_in_generic_mode() {
    jumbo_frames_come_in_fragments(AttachMode::Generic, 4096);
}

fn frames_go_out_whole(mtu: u32, multi_buffer: bool) {
    let Some(rig) = Rig::new(1, mtu) else { return };
    let far = rig.far_socket();
    let (socket, mut transmitter) = rig.transmitter(multi_buffer);
    let frames: Vec<_> = (0..500).map(|serial| frame(serial, mtu as usize + 14)).collect();
    let mut seen = Vec::new();
    for window in frames.chunks(8) {
        for frame in window {
            assert!(transmitter.push_frame(frame), "room for a window");
        }
        transmitter.submit();
        until(&far, || {
            if transmitter.needs_wakeup() && transmitter.queued() > 0 {
                socket.wake_tx().unwrap();
            }
            transmitter.collect();
            seen.extend(rig.read_at_far(&far));
            transmitter.pending() == 0
        });
    }
    until(&far, || {
        seen.extend(rig.read_at_far(&far));
        seen.len() >= frames.len()
    });
    assert_eq!(seen, frames);
    assert_eq!(socket.statistics().unwrap().tx_invalid_descriptors, 0);
    assert_eq!(transmitter.invalid_completions(), 0);
}

#[test]
fn frames_are_sent_complete_from_one_chunk() {
    frames_go_out_whole(1500, false);
}

#[test]
fn jumbo_frames_are_sent_complete_from_several_chunks() {
    frames_go_out_whole(9000, true);
}

#[test]
fn two_queues_share_one_umem() {
    let Some(rig) = Rig::new(2, 1500) else { return };
    let mut ports = rig.ports(2, AttachMode::Native, 2048);
    let frames: Vec<_> = (0..600).map(|serial| frame(serial, 1514)).collect();
    let mut inboxes = [Inbox::default(), Inbox::default()];
    let mut sent = 0;
    for window in frames.chunks(32) {
        rig.send_from_far(window);
        sent += window.len();
        let rig::Ports { sockets, receivers, .. } = &mut ports;
        rig::until_any([sockets[0].as_fd(), sockets[1].as_fd()], || {
            for (inbox, receiver) in inboxes.iter_mut().zip(&mut *receivers) {
                inbox.take(receiver);
            }
            inboxes.iter().map(|inbox| inbox.frames.len()).sum::<usize>() >= sent
        });
    }
    for inbox in &inboxes {
        assert!(inbox.frames.len() > 60, "flows spread over both queues: {}", inbox.frames.len());
    }
    let mut seen: Vec<_> = inboxes.into_iter().flat_map(|inbox| inbox.frames).collect();
    let mut frames = frames;
    seen.sort();
    frames.sort();
    assert_eq!(seen, frames);
}

/// Sends 200 frames to a port without a reader, and returns the received frames and the statistics.
fn overload(rig: &Rig, port: &mut rig::Port) -> (Inbox, strait_sys::xdp::Statistics) {
    const SENT: u64 = 200;
    let frames: Vec<_> = (0..SENT as usize).map(|serial| frame(serial, 1514)).collect();
    for window in frames.chunks(20) {
        let seen = port.seen() + window.len() as u64;
        rig.send_from_far(window);
        until(&port.socket, || port.seen() >= seen);
    }
    let mut inbox = Inbox::default();
    until(&port.socket, || {
        inbox.take(&mut port.receiver);
        let statistics = port.socket.statistics().unwrap();
        inbox.frames.len() as u64 + statistics.rx_ring_full + statistics.rx_dropped >= SENT
    });
    let statistics = port.socket.statistics().unwrap();
    assert_eq!(inbox.frames.len() as u64 + statistics.rx_ring_full + statistics.rx_dropped, SENT);
    assert_eq!(inbox.frames, frames[..inbox.frames.len()], "the first ones came");
    (inbox, statistics)
}

#[test]
fn a_full_rx_ring_is_counted_by_the_kernel() {
    let Some(rig) = Rig::new(1, 1500) else { return };
    let mut port = rig.port_of(AttachMode::Native, 64, 256);
    let (inbox, statistics) = overload(&rig, &mut port);
    assert_eq!((inbox.frames.len(), statistics.rx_ring_full, statistics.rx_dropped), (64, 136, 0));
}

#[test]
fn an_empty_fill_ring_is_counted_by_the_kernel() {
    let Some(rig) = Rig::new(1, 1500) else { return };
    let mut port = rig.port_of(AttachMode::Native, 256, 64);
    let (inbox, statistics) = overload(&rig, &mut port);
    assert_eq!((inbox.frames.len(), statistics.rx_ring_full, statistics.rx_dropped), (64, 0, 136));
    assert!(statistics.fill_ring_empty >= 136);
}

#[test]
fn receiver_recovers_after_losses() {
    let Some(rig) = Rig::new(1, 1500) else { return };
    let mut port = rig.port_of(AttachMode::Native, 64, 64);
    overload(&rig, &mut port);
    let frames: Vec<_> = (0..500).map(|serial| frame(serial, 1514)).collect();
    assert_eq!(receive(&rig, &mut port, &frames).frames, frames, "the loss leaves nothing behind");
}

fn binding(rig: &Rig, queue: u32, mode: Mode) -> Binding {
    Binding { ifindex: rig.near_index, queue, mode, multi_buffer: false }
}

/// Returns a socket of the near namespace with a UMEM and a small receiver.
fn unbound() -> (Socket, Receiver) {
    let geometry = Geometry { chunk_bytes: 2048, chunks: 16, headroom_bytes: 0 };
    let mut umem = Umem::new(geometry, false, None).unwrap();
    let mut socket = Socket::open("near").unwrap();
    socket.register(&umem).unwrap();
    let receiver = socket.receiver(16, umem.share(16).unwrap()).unwrap();
    (socket, receiver)
}

#[test]
fn impossible_bindings_are_refused_with_a_reason() {
    let Some(rig) = Rig::new(1, 1500) else { return };
    rig.near
        .run(|| {
            let (mut socket, _receiver) = unbound();
            let error = socket.bind(&binding(&rig, 0, Mode::ZeroCopy)).unwrap_err();
            assert_eq!(error.kind(), Kind::Refused);
            assert!(error.to_string().contains("zero-copy"), "{error}");
            let error = socket.bind(&binding(&rig, 7, Mode::Copy)).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage);
            assert!(error.to_string().contains("queue 7 of near"), "{error}");

            socket.bind(&binding(&rig, 0, Mode::Either)).expect("the same socket can try again");
            assert!(!socket.is_zero_copy().unwrap());
            let (mut second, _second_receiver) = unbound();
            let error = second.bind(&binding(&rig, 0, Mode::Copy)).unwrap_err();
            assert!(error.is_one_of(&[Errno::BUSY]) && error.kind() == Kind::Refused, "{error}");
        })
        .unwrap();
}

#[test]
fn ring_size_must_be_a_power_of_two() {
    let Some(rig) = Rig::new(1, 1500) else { return };
    rig.near
        .run(|| {
            let geometry = Geometry { chunk_bytes: 2048, chunks: 16, headroom_bytes: 0 };
            let mut umem = Umem::new(geometry, false, None).unwrap();
            let mut socket = Socket::open("near").unwrap();
            let error = socket.receiver(100, umem.share(16).unwrap()).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{error}");
        })
        .unwrap();
}

#[test]
fn lost_link_is_an_error_without_a_hang() {
    let Some(rig) = Rig::new(1, 1500) else { return };
    let port = rig.port(AttachMode::Native, false, 2048);
    port.socket.wake_rx().unwrap();
    rig.near.run(|| Netlink::open().unwrap().set_up(rig.near_index, false).unwrap()).unwrap();
    let error = port.socket.wake_rx().unwrap_err();
    assert!(error.is_one_of(&[Errno::NETDOWN]), "{error}");
    assert!(error.to_string().contains("ip link set near up"), "{error}");
    rig.near.run(|| Netlink::open().unwrap().delete(rig.near_index).unwrap()).unwrap();
    let error = port.socket.wake_rx().unwrap_err();
    assert!(error.is_one_of(&[Errno::NXIO]), "{error}");
}

#[test]
fn busy_polling_can_be_set() {
    let Some(rig) = Rig::new(1, 1500) else { return };
    let mut port = rig.port(AttachMode::Native, false, 2048);
    port.socket.set_busy_poll(20, 64).unwrap();
    let frames: Vec<_> = (0..100).map(|serial| frame(serial, 1514)).collect();
    assert_eq!(receive(&rig, &mut port, &frames).frames, frames);
    assert!(port.socket.as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn a_share_of_another_umem_is_refused() {
    let Some(rig) = Rig::new(1, 1500) else { return };
    let geometry = Geometry { chunk_bytes: 2048, chunks: 8, headroom_bytes: 0 };
    let umem = || Umem::new(geometry, false, None).unwrap();
    rig.near
        .run(|| {
            let (mut own, mut foreign) = (umem(), umem());
            let mut first = Socket::open("near").unwrap();
            first.register(&own).unwrap();
            let error = first.receiver(8, foreign.share(4).unwrap()).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{error}");
            let error = first.transmitter(8, foreign.share(4).unwrap()).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{error}");
            let _receiver = first.receiver(8, own.share(4).unwrap()).unwrap();
            first.bind(&binding(&rig, 0, Mode::Copy)).unwrap();

            let mut foreign = umem();
            let mut second = Socket::open("near").unwrap();
            let _receiver = second.receiver(8, foreign.share(4).unwrap()).unwrap();
            let error = second.bind_shared(&binding(&rig, 0, Mode::Copy), &first).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{error}");
            let error = Socket::open("near").unwrap().bind_shared(&binding(&rig, 0, Mode::Copy), &second);
            assert_eq!(error.unwrap_err().kind(), Kind::Usage);
        })
        .unwrap();
}
