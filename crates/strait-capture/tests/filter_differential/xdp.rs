//! Assembled XDP programs in the kernel: redirected and passed frames, counters and metadata.

use std::os::fd::{AsFd, AsRawFd};

use lab::{End, Wire, wait_until};
use strait_filter::Metadata as Facts;
use strait_filter::cbpf::Program;
use strait_filter::translate::Options;
use strait_filter::xdp::{
    Assembled, COUNTERS_BYTES, CaptureOptions, Counter, Counters, GeneratorFields, GeneratorOptions,
    Metadata, PACE_SHIFT, Pace, STATE_BYTES, capture_program, drop_program, generator_program, pass_program,
};
use strait_packet::traffic::{FLOW_LOW_BITS, FrameTemplate, Kind, Traffic};
use strait_sys::bpf::{AttachMode, Link, LoadOptions, Map, MappedArray, TestRun, XdpContext, XdpProgram};
use strait_sys::xdp::{Binding, Geometry, Mode, Receiver, Socket, Umem};

use super::frames::{DEVICE_MAC, frame, is_tagged};
use super::kernel::{metadata, privileged_or_skip};
use super::programs::{Flavour, program};
use super::rng::Rng;
use super::wire::{LEN_MAX, LIMIT, Sender, Tap};
use super::{FRAMES, checked};

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;
/// Number of chunks and ring slots of a socket: more than the frames of a round.
const CHUNKS: u32 = 64;

fn load(assembled: &Assembled) -> XdpProgram {
    let options = LoadOptions { fragments: assembled.fragments, device: None };
    XdpProgram::load("strait", &assembled.words(), options).unwrap_or_else(|error| panic!("{error}"))
}

/// Capture program with its maps.
struct Capture {
    program: XdpProgram,
    sockets: Map,
    counters: MappedArray,
}

impl Capture {
    fn load(filter: &Program, fragments: bool) -> Self {
        let sockets = Map::xskmap("sockets", 1).unwrap();
        let counters = Map::mappable_array("counters", COUNTERS_BYTES, 1).unwrap();
        let options = CaptureOptions {
            interface: Options { fragments, device_mac: DEVICE_MAC, ..Options::default() },
            xskmap_fd: sockets.as_fd().as_raw_fd(),
            counters: Counters { fd: counters.as_fd().as_raw_fd(), queues: 1 },
            metadata: true,
            timestamps: true,
        };
        let program = load(&capture_program(filter, &options).unwrap());
        Self { program, sockets, counters: counters.mapped().unwrap() }
    }

    /// Returns the counters passed and without metadata.
    fn counted(&self) -> [u64; 2] {
        [Counter::Passed, Counter::WithoutMetadata].map(|counter| self.counters.load(0, counter.slot(0)))
    }

    /// Runs the program on `frame` with `linear` bytes in the first buffer. Returns its verdict and
    /// the frame after it.
    fn run(&self, frame: &[u8], linear: Option<u32>) -> (u32, Vec<u8>) {
        let mut left = vec![0; frame.len() + 256];
        let context = XdpContext { linear_bytes: linear, ..XdpContext::default() };
        let data_out = Some(&mut left[..]);
        let run = TestRun { data: frame, data_out, context: Some(context), ..TestRun::default() };
        let outcome = self.program.test_run(run).unwrap();
        left.truncate(outcome.data_bytes as usize);
        (outcome.returned, left)
    }
}

/// Bound AF_XDP socket on queue 0 of an end.
pub(crate) struct Port {
    pub(crate) socket: Socket,
    receiver: Receiver,
}

impl Port {
    pub(crate) fn open(end: &End) -> Self {
        let ifindex = end.interface().index;
        end.run(|| {
            let geometry = Geometry { chunk_bytes: 2048, chunks: CHUNKS, headroom_bytes: 0 };
            let mut umem = Umem::new(geometry, false, None).unwrap();
            let mut socket = Socket::open(end.name()).unwrap();
            socket.register(&umem).unwrap();
            let mut receiver = socket.receiver(CHUNKS, umem.share(CHUNKS).unwrap()).unwrap();
            receiver.set_metadata_bytes(Metadata::BYTES as u32);
            socket.bind(&Binding { ifindex, queue: 0, mode: Mode::Copy, multi_buffer: false }).unwrap();
            Self { socket, receiver }
        })
    }

    /// Returns the received frames with their metadata.
    pub(crate) fn read(&mut self) -> Vec<(Metadata, Vec<u8>)> {
        let batch = self.receiver.take(CHUNKS as usize);
        batch
            .frames()
            .map(|frame| {
                let front = frame.metadata.last_chunk().expect("the chunk has headroom");
                (Metadata::parse(front).expect("the program writes metadata"), frame.bytes.to_vec())
            })
            .collect()
    }
}

/// `ldh [12]; jeq #0x800, ret #96, ret #0`, as libpcap writes it.
fn ipv4_only() -> Program {
    checked(&[(0x28, 0, 0, 12), (0x15, 0, 1, 0x800), (0x06, 0, 0, 96), (0x06, 0, 0, 0)])
}

fn ipv4_frame(len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|at| at as u8).collect();
    frame[12..14].copy_from_slice(&[8, 0]);
    frame
}

#[test]
fn frame_without_match_or_socket_passes_unchanged() {
    if !privileged_or_skip() {
        return;
    }
    let capture = Capture::load(&ipv4_only(), false);
    let (matching, mut other) = (ipv4_frame(60), ipv4_frame(60));
    other[12] = 9;
    assert_eq!(capture.run(&other, None), (XDP_PASS, other));
    assert_eq!(capture.counted(), [1, 0]);
    assert_eq!(capture.run(&matching, None), (XDP_PASS, matching));
    assert_eq!(capture.counted(), [1, 0]);
}

#[test]
fn metadata_precedes_a_redirected_frame() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let port = Port::open(wire.left());
    for (fragments, len) in [(false, 60), (true, 60), (true, 9000)] {
        let capture = Capture::load(&ipv4_only(), fragments);
        capture.sockets.set_socket(0, port.socket.as_fd()).unwrap();
        let frame = ipv4_frame(len);
        let (returned, left) = capture.run(&frame, None);
        assert_eq!((returned, capture.counted()), (XDP_REDIRECT, [0, 0]));
        let (front, bytes) = left.split_first_chunk().unwrap();
        let found = Metadata::parse(front).expect("the program writes metadata");
        assert_eq!((found.snaplen, found.flags), (96, Metadata::TIME));
        assert!(found.timestamp_ns > 0 && bytes == frame);
    }
}

/// On a veth pair the socket receives exactly the frames that the interpreter matches, and the host
/// all others.
#[test]
fn filter_divides_the_traffic_between_socket_and_host() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let mut port = Port::open(wire.left());
    let (mut sender, mut host) = (Sender::open(wire.right()), Tap::open(wire.left()));
    let ifindex = wire.left().interface().index;
    let (mut programs, mut rng) = (Rng::new(10), Rng::new(11));
    for _ in 0..30 {
        let filter = program(&mut programs, Flavour::Everything, 40);
        let capture = Capture::load(&filter, false);
        capture.sockets.set_socket(0, port.socket.as_fd()).unwrap();
        let attach = || Link::attach_xdp(&capture.program, ifindex, AttachMode::Native).unwrap();
        let link = wire.left().run(attach);
        let frames: Vec<_> = (0..FRAMES).map(|_| frame(&mut rng, LEN_MAX)).collect();
        sender.send(&frames);
        let (mut got, mut passed) = (Vec::new(), Vec::new());
        assert!(wait_until(LIMIT, || {
            got.extend(port.read());
            got.len() as u64 + capture.counted().iter().sum::<u64>() == FRAMES as u64
        }));
        drop(link);
        let matched_bytes = |frame: &[u8]| filter.run_wire(frame, &Facts { ifindex, ..metadata(frame) });
        let (matching, others): (Vec<_>, Vec<_>) =
            frames.into_iter().partition(|frame| matched_bytes(frame) != 0);
        let others: Vec<_> =
            others.into_iter().filter(|frame| frame.len() >= 20 || !is_tagged(frame)).collect();
        assert!(wait_until(LIMIT, || {
            host.read(&mut passed);
            passed.len() >= others.len()
        }));
        assert_eq!(
            got.iter().map(|(_, bytes)| bytes).collect::<Vec<_>>(),
            matching.iter().collect::<Vec<_>>()
        );
        assert_eq!(passed, others);
        for (found, bytes) in &got {
            assert_eq!(found.snaplen, matched_bytes(bytes));
        }
        assert!(got.is_sorted_by_key(|(found, _)| found.timestamp_ns));
    }
}

#[test]
fn verdicts_are_given_and_counted() {
    if !privileged_or_skip() {
        return;
    }
    let counters = Map::mappable_array("counters", COUNTERS_BYTES, 1).unwrap();
    let there = Some(Counters { fd: counters.as_fd().as_raw_fd(), queues: 1 });
    for (assembled, verdict) in [
        (pass_program(there), XDP_PASS),
        (drop_program(there), XDP_DROP),
        (pass_program(None), XDP_PASS),
        (drop_program(None), XDP_DROP),
    ] {
        let run = TestRun { data: &[0; 60], repeat: 5, ..TestRun::default() };
        assert_eq!(load(&assembled.unwrap()).test_run(run).unwrap().returned, verdict);
    }
    assert_eq!(counters.mapped().unwrap().load(0, Counter::Passed.slot(0)), 10);
}

fn generator_options(template: &FrameTemplate, flows: u32, state: &Map) -> GeneratorOptions {
    let (offsets, bases) = (template.offsets(), template.bases());
    GeneratorOptions {
        state_fd: state.as_fd().as_raw_fd(),
        ifindex: 1,
        frame_bytes: template.bytes().len(),
        flows,
        flow_low_bits: FLOW_LOW_BITS,
        fields: GeneratorFields {
            source_address: offsets.source_address,
            destination_address: offsets.destination_address,
            header_checksum: offsets.header_checksum,
            source_port: offsets.source_port,
            destination_port: offsets.destination_port,
            transport_checksum: offsets.transport_checksum,
            sequence: offsets.sequence,
            sent_ns: offsets.sent_ns,
        },
        addresses: [bases.source_address, bases.destination_address],
        ports: [bases.source_port, bases.destination_port],
        header_sum: template.header_sum(),
        transport_sum: template.transport_sum(),
        udp: !template.kind().is_tcp(),
        frames_max: u64::MAX,
        pace: None,
        clock_offset_ns: 1 << 60,
    }
}

/// The kernel's generator and the one in user space write equal frames.
#[test]
fn generator_writes_the_frames_of_user_space() {
    if !privileged_or_skip() {
        return;
    }
    let mut rng = Rng::new(12);
    for (kind, flows) in [(Kind::Udp4, 1), (Kind::Tcp4, 1000), (Kind::Udp6, 1 << 20), (Kind::Tcp6, 3)] {
        let traffic = Traffic::builder().kinds(&[kind]).flows(flows).build().unwrap();
        let template = &traffic.templates()[0];
        let state = Map::mappable_array("state", STATE_BYTES, 1).unwrap();
        let next = state.mapped().unwrap();
        let program = load(&generator_program(&generator_options(template, flows, &state)).unwrap());
        let mut frame = template.bytes().to_vec();
        for _ in 0..200 {
            let number = if rng.chance(50) { rng.next() } else { u64::from(u32::MAX) - 5 + rng.next() % 10 };
            next.store(0, 0, number);
            let before = frame.clone();
            let run = TestRun { data: &before, data_out: Some(&mut frame), ..TestRun::default() };
            assert_eq!(program.test_run(run).unwrap().returned, XDP_REDIRECT);
            assert_eq!(next.load(0, 0), number.wrapping_add(1));
            let at = template.offsets().sent_ns;
            let sent_ns = u64::from_be_bytes(frame[at..at + 8].try_into().unwrap());
            assert!(sent_ns > 1 << 60, "the clock's offset is added");
            let mut expected = vec![0; frame.len()];
            traffic.write_frame(number, sent_ns, &mut expected);
            assert_eq!(frame, expected, "frame {number} of {kind:?}");
        }
    }
}

/// A frame that is not due, too close to its predecessor, or beyond the last is not sent, and its
/// number is not used.
#[test]
fn generator_waits_for_its_time_and_ends_at_its_last_frame() {
    if !privileged_or_skip() {
        return;
    }
    let traffic = Traffic::builder().build().unwrap();
    let state = Map::mappable_array("state", STATE_BYTES, 1).unwrap();
    let next = state.mapped().unwrap();
    let options = generator_options(&traffic.templates()[0], 1, &state);
    let second = 1_000_000_000 << PACE_SHIFT;
    let from = |start_ns, interval| Some(Pace { start_ns, interval });
    let just_now = strait_os::clock::monotonic_ns();
    for (number, last_ns, frames_max, pace, verdict) in [
        (9, 0, 10, None, XDP_REDIRECT),
        (10, 0, 10, None, XDP_DROP),
        (1, 0, 10, from(0, 1), XDP_REDIRECT),
        (1, 0, 10, from(u64::MAX >> 1, 1), XDP_DROP),
        (1, 0, 10, from(0, second / 1000), XDP_REDIRECT),
        (10_000_000, 0, u64::MAX, from(0, second), XDP_DROP),
        // Overdue, but the last frame left less than 15/16 of an interval ago.
        (0, just_now, 10, from(0, 3600 * second), XDP_DROP),
        (0, just_now, 10, from(0, 1), XDP_REDIRECT),
    ] {
        let options = GeneratorOptions { frames_max, pace, ..options };
        let program = load(&generator_program(&options).unwrap());
        next.store(0, 0, number);
        next.store(0, 1, last_ns);
        let run = TestRun { data: traffic.templates()[0].bytes(), ..TestRun::default() };
        assert_eq!(program.test_run(run).unwrap().returned, verdict, "frame {number}, {pace:?}");
        assert_eq!(next.load(0, 0), number + u64::from(verdict == XDP_REDIRECT));
    }
}

#[test]
fn generator_drops_a_frame_that_is_too_short() {
    if !privileged_or_skip() {
        return;
    }
    let traffic = Traffic::builder().build().unwrap();
    let state = Map::array("state", STATE_BYTES, 1).unwrap();
    let options = generator_options(&traffic.templates()[0], 1, &state);
    let program = load(&generator_program(&options).unwrap());
    let run = TestRun { data: &[0; 59], ..TestRun::default() };
    assert_eq!(program.test_run(run).unwrap().returned, XDP_DROP);
}
