//! VLAN tags that a device removed: reported by the program, inserted again by the engine.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Instant;

use lab::Wire;
use strait_filter::ebpf::Register::{R0, R1, R2, R3, R6};
use strait_filter::ebpf::{Assembler, Condition, Operation, Size, encode, opcode as op};
use strait_filter::xdp::{COUNTERS_BYTES, Metadata};
use strait_sys::bpf::{AttachMode, Link, LoadOptions, Map, XdpProgram};
use strait_sys::xdp::{Binding, Geometry, Mode, Socket, Umem};

use super::{LIMIT, builder, frame, open, send};
use crate::paths::engine::{Lend, Lent};
use crate::paths::stamp::Clock;
use crate::paths::xdp::engine::{BATCH_MAX, Counts, Engine, Features};
use crate::paths::xdp::join::Joiner;
use crate::{InjectPath, Injector, Vlan};

/// Returns a program that redirects every frame and reports that the device removed tag 5 from it.
fn claim(sockets: &Map) -> XdpProgram {
    const TAG: u32 = 0x8100_0005;
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.mov(R6, R1);
    asm.mov(R2, -(Metadata::BYTES as i32));
    asm.call(op::XDP_ADJUST_META);
    asm.jump_if(Condition::NotEqual, R0, 0, out);
    asm.load(Size::W, R1, R6, op::XDP_MD_DATA_META);
    asm.load(Size::W, R2, R6, op::XDP_MD_DATA);
    asm.mov(R3, R1);
    asm.alu(Operation::Add, R3, Metadata::BYTES as i32);
    asm.jump_if(Condition::Greater, R3, R2, out);
    for at in (0..Metadata::BYTES as i16).step_by(4) {
        let value = match at {
            0 => Metadata::MAGIC,
            28 => TAG,
            _ => 0,
        };
        asm.store(Size::W, R1, at, value as i32);
    }
    asm.bind(out);
    asm.load_map(R1, sockets.as_fd().as_raw_fd());
    asm.mov(R2, 0);
    asm.mov(R3, op::XDP_PASS);
    asm.call(op::REDIRECT_MAP);
    asm.exit();
    let load = LoadOptions { fragments: true, device: None };
    XdpProgram::load("claims_tags", &encode(&asm.finish().unwrap()), load).unwrap()
}

/// Returns an engine with that program.
pub(super) fn engine(wire: &Wire) -> (Engine, Link) {
    const CHUNKS: u32 = 128;
    let interface = wire.right().interface().index;
    wire.right().run(|| {
        let geometry = Geometry { chunk_bytes: 2048, chunks: CHUNKS, headroom_bytes: 0 };
        let mut umem = Umem::new(geometry, false, None).unwrap();
        let mut socket = Socket::open("right").unwrap();
        socket.register(&umem).unwrap();
        let mut receiver = socket.receiver(CHUNKS, umem.share(CHUNKS).unwrap()).unwrap();
        receiver.set_metadata_bytes(Metadata::BYTES as u32);
        socket.bind(&Binding { ifindex: interface, queue: 0, mode: Mode::Copy, multi_buffer: true }).unwrap();
        let sockets = Map::xskmap("sockets", 1).unwrap();
        sockets.set_socket(0, socket.as_fd()).unwrap();
        let link = Link::attach_xdp(&claim(&sockets), interface, AttachMode::Native).unwrap();
        let counters = Map::mappable_array("counters", COUNTERS_BYTES, 1).unwrap();
        let (socket, counters) = (Arc::new(socket), Arc::new(counters.mapped().unwrap()));
        let received = receiver.count();
        let engine = Engine {
            receiver,
            socket: Arc::clone(&socket),
            joiner: Joiner::new(BATCH_MAX, 2048),
            clock: Clock::new(),
            counts: Arc::new(Counts { socket, received, counters, queue: 0 }),
            interface,
            rx_slots: CHUNKS,
            features: Features {
                multi_buffer: true,
                metadata: true,
                reads_tags: true,
                busy_poll: false,
                zero_copy: false,
            },
            fallbacks: 0,
            spins: 0,
            taken: 0,
        };
        (engine, link)
    })
}

#[test]
fn reported_tag_is_inserted_once_a_frame() {
    let Some(wire) = Wire::builder().mtu(9000).or_skip() else { return };
    let (mut engine, _link) = engine(&wire);
    let lens = [60, 1500, 4000, 61, 9014, 100];
    // More rounds than chunks: no tag may stay in a chunk.
    for round in 0..60 {
        let frames: Vec<_> = lens.iter().map(|&len| frame(round, len)).collect();
        send(&wire, &frames);
        let mut seen = Vec::new();
        assert!(lab::wait_until(LIMIT, || {
            let mut batch = engine.take(usize::MAX);
            assert_eq!(batch.frames().count(), batch.len(), "a second pass changes nothing");
            seen.extend(batch.frames().map(|frame| (frame.bytes.to_vec(), frame.wire_len, frame.vlan)));
            seen.len() >= frames.len()
        }));
        for ((bytes, wire_len, vlan), sent) in seen.iter().zip(&frames) {
            assert_eq!((*wire_len as usize, bytes.len()), (sent.len() + 4, sent.len() + 4));
            assert_eq!(*vlan, Some(Vlan { tci: 5, tpid: 0x8100 }));
            assert!(bytes[..12] == sent[..12] && bytes[16..] == sent[12..]);
        }
    }
}

#[test]
fn tag_that_veth_keeps_apart_is_inserted() {
    if !lab::program_or_skip("ip") {
        return;
    }
    let Some(wire) = Wire::builder().mtu(9000).or_skip() else { return };
    let ip = |line: &str| wire.left().command("ip").args(line.split(' ')).run(LIMIT).unwrap();
    if !ip("link add link left name tagged type vlan id 5").status.success() {
        return lab::skip("this kernel has no VLAN interfaces");
    }
    let _ = ip("link set tagged up").success();
    let (session, mut lanes) = open(&wire, builder().filter("vlan 5"));
    if !session.notes().iter().all(|note| !note.contains("VLAN tags")) {
        return lab::skip("this kernel's drivers report no VLAN tags");
    }
    for len in [60, 1500, 8900] {
        let plain = frame(1, len);
        wire.left().run(|| {
            let mut injector = Injector::open("tagged", InjectPath::Sendmmsg).unwrap();
            injector.buffer().unwrap()[..len].copy_from_slice(&plain);
            injector.push(len);
            injector.finish().unwrap();
        });
        let mut batch = lanes[0].next_batch(Instant::now() + LIMIT).unwrap().unwrap();
        let seen = batch.frames().next().unwrap();
        assert_eq!(seen.vlan, Some(Vlan { tci: 5, tpid: 0x8100 }));
        assert_eq!((seen.wire_len as usize, seen.bytes.len()), (len + 4, len + 4));
        assert_eq!((&seen.bytes[..12], &seen.bytes[16..]), (&plain[..12], &plain[12..]));
        let now_ns = strait_os::clock::realtime_ns();
        assert!(now_ns.abs_diff(seen.timestamp_ns) < 10_000_000_000, "the metadata moved with the frame");
    }
    drop(session);
}
