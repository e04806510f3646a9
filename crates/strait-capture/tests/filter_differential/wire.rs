//! Reference: classic BPF as the kernel runs it on packet sockets, compared with the interpreter.
//!
//! Frames cross a veth pair. One socket at the far end has the filter; another has none and
//! receives the last frame of a round. This checks assumptions of the other tests: the bytes of a
//! tagged frame that a filter sees, its packet type, protocol and queue, and frames that are too
//! short for their header.

use std::time::Duration;

use lab::{End, Wire, wait_until};
use strait_filter::Metadata;
use strait_filter::cbpf::Program;
use strait_os::interface::Interface;
use strait_os::process::pin_thread;
use strait_sys::packet::Socket;
use strait_sys::packet::receive::Receiver;
use strait_sys::packet::send::Batch;

use super::frames::{frame, is_tagged};
use super::kernel::metadata;
use super::programs::{Flavour, program};
use super::rng::Rng;
use super::texts::Place;
use super::{FRAMES, SNAPLEN, checked, filters, probes, tuples};

/// Maximum time of frames on a wire in this machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of a frame by the wire's MTU.
pub(crate) const LEN_MAX: usize = 1514;
const BUFFER_BYTES: u32 = 1 << 20;

/// Last frame of a round. The filter may match it.
const LAST: [u8; 20] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, b'l', b'a', b's', b't', 0, 0];

/// Socket with its receive buffers.
pub(crate) struct Tap {
    socket: Socket,
    receiver: Receiver,
}

impl Tap {
    pub(crate) fn open(end: &End) -> Self {
        Self::open_on(end, end.name())
    }

    /// On another interface of the same namespace.
    fn open_on(end: &End, interface: &str) -> Self {
        let ifindex = end.run(|| Interface::find(interface)).expect("the interface is there").index;
        let socket = end.run(|| Socket::open(interface)).expect("root opens packet sockets");
        socket.set_receive_buffer(BUFFER_BYTES).unwrap();
        socket.enable_control_messages().unwrap();
        socket.bind(ifindex).unwrap();
        Self { socket, receiver: Receiver::new(FRAMES + 1, 2048) }
    }

    /// Adds the frames in the socket's queue to `frames`.
    pub(crate) fn read(&mut self, frames: &mut Vec<Vec<u8>>) {
        while self.receiver.fill(&self.socket).unwrap() > 0 {
            frames.extend(self.receiver.take(usize::MAX).frames().map(|frame| frame.bytes.to_vec()));
        }
    }
}

/// Socket that only sends.
pub(crate) struct Sender {
    socket: Socket,
    batch: Batch,
}

impl Sender {
    pub(crate) fn open(end: &End) -> Self {
        Self::open_on(end, end.name())
    }

    /// On another interface of the same namespace.
    pub(crate) fn open_on(end: &End, interface: &str) -> Self {
        let socket = Tap::open_on(end, interface).socket;
        socket.reject_all().unwrap();
        Self { socket, batch: Batch::new(FRAMES + 1, 2048) }
    }

    pub(crate) fn send(&mut self, frames: &[Vec<u8>]) {
        for frame in frames {
            let buffer = self.batch.buffer().expect("the batch has room for a round");
            buffer[..frame.len()].copy_from_slice(frame);
            self.batch.push(frame.len());
        }
        assert!(wait_until(LIMIT, || {
            self.batch.send(&self.socket).unwrap();
            self.batch.is_empty()
        }));
    }
}

/// Sender at one end, two receivers at the other.
struct Rig {
    sender: Sender,
    filtered: Tap,
    everything: Tap,
    ifindex: u32,
}

impl Rig {
    fn new(wire: &Wire) -> Self {
        let sender = Sender::open(wire.right());
        // The kernel serves the socket that was bound last first: the filter has run when the other
        // socket has the frame.
        let everything = Tap::open(wire.left());
        let filtered = Tap::open(wire.left());
        let ifindex = wire.left().interface().index;
        Self { sender, filtered, everything, ifindex }
    }

    /// Sends the frames and returns those that the program matched.
    fn round(&mut self, program: &Program, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.filtered.socket.attach_filter(&tuples(program)).unwrap();
        self.sender.send(frames);
        let (mut all, mut matched) = (Vec::new(), Vec::new());
        assert!(wait_until(LIMIT, || {
            self.everything.read(&mut all);
            all.last().is_some_and(|frame| frame[..] == LAST)
        }));
        self.filtered.read(&mut matched);
        let whole = Program::accept_all(0);
        assert_eq!(
            all,
            self.expected(&whole, frames),
            "a socket without a filter sees what the kernel delivers"
        );
        matched
    }

    /// Returns the frames that the program should match, with tags inserted as by the receiver.
    fn expected(&self, program: &Program, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        frames.iter().filter_map(|frame| self.matched_part(program, frame)).collect()
    }

    fn matched_part(&self, program: &Program, frame: &[u8]) -> Option<Vec<u8>> {
        // veth does not record the receive queue.
        let meta = Metadata { ifindex: self.ifindex, queue: 0, ..metadata(frame) };
        let len = program.run_wire(frame, &meta) as usize;
        let tag_len = if is_tagged(frame) { 4 } else { 0 };
        let len = len.min(frame.len() - tag_len);
        match len {
            0 => None,
            1..12 => Some(frame[..len].to_vec()),
            _ => Some(frame[..len + tag_len].to_vec()),
        }
    }
}

#[test]
fn kernels_classic_bpf_agrees_with_the_interpreter() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    // Frames cross in order if they are received on the CPU that sends them.
    pin_thread(0).expect("CPU 0 is always there");
    let mut rig = Rig::new(&wire);
    let mut rng = Rng::new(8);
    let mut matches = 0;
    for (name, program) in programs_to_judge(wire.left()) {
        let mut frames: Vec<_> = (0..FRAMES).map(|_| frame(&mut rng, LEN_MAX)).collect();
        frames.push(LAST.to_vec());
        let expected = rig.expected(&program, &frames);
        matches += expected.len();
        assert_eq!(rig.round(&program, &frames), expected, "{name}: {program:x?}");
    }
    assert!(matches > 1000, "{matches} matches are too few to mean anything");
}

/// Returns programs for every value in A, raw programs, and filter texts if there is a libpcap to
/// compile them.
fn programs_to_judge(end: &End) -> Vec<(String, Program)> {
    let mut rng = Rng::new(9);
    let mut programs: Vec<_> = (0..150)
        .map(|round| (format!("raw program {round}"), program(&mut rng, Flavour::Everything, 60)))
        .collect();
    for (at, source) in probes::sources().iter().enumerate() {
        // All bits of the first sources, which are metadata; some of the others.
        let shifts = if at < probes::FACT_COUNT {
            (0..32).step_by(3).collect()
        } else {
            vec![0, 3 * rng.below(10) as u32 + 3]
        };
        programs.extend(
            shifts.into_iter().map(|shift| (format!("probe {at}"), probes::three_bits(source, shift))),
        );
    }
    match end.run(|| strait_sys::libpcap::Compiler::live(end.name(), SNAPLEN)) {
        Ok(compiler) => programs.extend(
            filters(&mut rng, Place::Live, 100)
                .filter_map(|text| compiler.compile(&text, true).ok().map(|code| (text, checked(&code)))),
        ),
        Err(error) => lab::skip(error.to_string()),
    }
    programs
}
