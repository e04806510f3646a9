//! Test rig: a veth pair, `near` with the AF_XDP sockets and `far` with a packet socket, each in
//! its own namespace.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use strait_os::interface::Interface;
use strait_os::netlink::{Netlink, VethEnd};
use strait_os::netns::{Namespace, disable_ipv6};
use strait_sys::bpf::{AttachMode, Link, LoadOptions, Map, MappedArray, XdpProgram};
use strait_sys::packet::{receive, send};
use strait_sys::xdp::{Binding, Geometry, Mode, Receiver, Socket, Transmitter, Umem};
use strait_sys::{packet, wait};

/// Metadata that the program writes before each frame.
pub(crate) const MARK: [u8; 8] = *b"strait\x0a\x00";

/// Maximum time for a frame across the veth pair.
const DEADLINE: Duration = Duration::from_secs(10);

pub(crate) struct Rig {
    pub(crate) near: Namespace,
    far: Namespace,
    pub(crate) near_index: u32,
    far_index: u32,
}

/// Bound socket with its program.
pub(crate) struct Port {
    pub(crate) socket: Socket,
    pub(crate) receiver: Receiver,
    counter: MappedArray,
    _link: Link,
}

/// Two bound sockets on one UMEM.
pub(crate) struct Ports {
    pub(crate) sockets: Vec<Socket>,
    pub(crate) receivers: Vec<Receiver>,
    _link: Link,
}

impl Port {
    /// Returns the number of frames that the program saw.
    pub(crate) fn seen(&self) -> u64 {
        self.counter.load(0, 0)
    }
}

impl Rig {
    /// Makes the pair, up and without traffic; without the privilege prints SKIP and returns
    /// `None`.
    pub(crate) fn new(queues: u32, mtu: u32) -> Option<Self> {
        let skip = |error: &strait_sys::Error| eprintln!("SKIP xdp: {error}");
        let near = Namespace::new().inspect_err(skip).ok()?;
        let far = Namespace::new().inspect_err(skip).ok()?;
        near.run(|| {
            disable_ipv6().unwrap();
            let end = |name| VethEnd { queues, mtu: Some(mtu), ..VethEnd::new(name) };
            let peer = VethEnd { namespace: Some(far.as_fd()), ..end("far") };
            Netlink::open().unwrap().add_veth(&end("near"), &peer).unwrap();
        })
        .unwrap();
        let up = |name: &str| {
            disable_ipv6().unwrap();
            let index = Interface::find(name).unwrap().index;
            Netlink::open().unwrap().set_up(index, true).unwrap();
            index
        };
        let far_index = far.run(|| up("far")).unwrap();
        let near_index = near.run(|| up("near")).unwrap();
        far.run(|| wait_for_carrier("far")).unwrap();
        near.run(|| wait_for_carrier("near")).unwrap();
        Some(Self { near, far, near_index, far_index })
    }

    /// Opens a socket on queue 0 with plenty of room.
    pub(crate) fn port(&self, attach: AttachMode, multi_buffer: bool, chunk_bytes: u32) -> Port {
        self.open(attach, multi_buffer, Geometry { chunk_bytes, chunks: 1024, headroom_bytes: 0 }, 512)
    }

    /// Opens a socket on queue 0 with a given number of RX slots and of chunks.
    pub(crate) fn port_of(&self, attach: AttachMode, rx_slots: u32, chunks: u32) -> Port {
        self.open(attach, false, Geometry { chunk_bytes: 2048, chunks, headroom_bytes: 0 }, rx_slots)
    }

    fn open(&self, attach: AttachMode, multi_buffer: bool, geometry: Geometry, rx_slots: u32) -> Port {
        let work = || {
            let mut umem = Umem::new(geometry, false, None).unwrap();
            let mut socket = Socket::open("near").unwrap();
            socket.register(&umem).unwrap();
            let receiver = socket.receiver(rx_slots, umem.share(geometry.chunks).unwrap()).unwrap();
            socket.bind(&self.binding(0, multi_buffer)).unwrap();
            let (link, counter) = self.attach(&[&socket], attach, multi_buffer);
            Port { socket, receiver, counter, _link: link }
        };
        self.near.run(work).unwrap()
    }

    /// Opens one socket for each of `queues` queues, on one UMEM.
    pub(crate) fn ports(&self, queues: u32, attach: AttachMode, chunk_bytes: u32) -> Ports {
        const CHUNKS: u32 = 256;
        let work = || {
            let geometry = Geometry { chunk_bytes, chunks: CHUNKS * queues, headroom_bytes: 0 };
            let mut umem = Umem::new(geometry, false, None).unwrap();
            let (mut sockets, mut receivers) = (Vec::<Socket>::new(), Vec::new());
            for queue in 0..queues {
                let mut socket = Socket::open("near").unwrap();
                if queue == 0 {
                    socket.register(&umem).unwrap();
                }
                receivers.push(socket.receiver(CHUNKS, umem.share(CHUNKS).unwrap()).unwrap());
                match sockets.first() {
                    None => socket.bind(&self.binding(queue, false)).unwrap(),
                    Some(first) => socket.bind_shared(&self.binding(queue, false), first).unwrap(),
                }
                sockets.push(socket);
            }
            let (link, _) = self.attach(&sockets.iter().collect::<Vec<_>>(), attach, false);
            Ports { sockets, receivers, _link: link }
        };
        self.near.run(work).unwrap()
    }

    /// Opens a sending socket on queue 0.
    pub(crate) fn transmitter(&self, multi_buffer: bool) -> (Socket, Transmitter) {
        let work = || {
            let geometry = Geometry { chunk_bytes: 2048, chunks: 64, headroom_bytes: 0 };
            let mut umem = Umem::new(geometry, false, None).unwrap();
            let mut socket = Socket::open("near").unwrap();
            socket.register(&umem).unwrap();
            let transmitter = socket.transmitter(64, umem.share(64).unwrap()).unwrap();
            socket.bind(&self.binding(0, multi_buffer)).unwrap();
            (socket, transmitter)
        };
        self.near.run(work).unwrap()
    }

    /// Sends from the far end; the device takes every frame.
    pub(crate) fn send_from_far(&self, frames: &[Vec<u8>]) {
        let work = || {
            let socket = packet::Socket::open("far").unwrap();
            socket.reject_all().unwrap();
            socket.bind(self.far_index).unwrap();
            let mut batch = send::Batch::new(frames.len(), 9100);
            for frame in frames {
                batch.buffer().unwrap()[..frame.len()].copy_from_slice(frame);
                batch.push(frame.len());
            }
            while !batch.is_empty() {
                batch.send(&socket).unwrap();
            }
        };
        self.far.run(work).unwrap();
    }

    /// Opens a packet socket that receives the frames at the far end.
    pub(crate) fn far_socket(&self) -> packet::Socket {
        let work = || {
            let socket = packet::Socket::open("far").unwrap();
            socket.set_receive_buffer(8 << 20).unwrap();
            socket.bind(self.far_index).unwrap();
            socket
        };
        self.far.run(work).unwrap()
    }

    /// Returns the frames received at the far end.
    #[allow(clippy::unused_self, reason = "it reads as the rig's doing")]
    pub(crate) fn read_at_far(&self, socket: &packet::Socket) -> Vec<Vec<u8>> {
        let mut receiver = receive::Receiver::new(64, 9100);
        receiver.fill(socket).unwrap();
        receiver.take(usize::MAX).frames().map(|frame| frame.bytes.to_vec()).collect()
    }

    fn binding(&self, queue: u32, multi_buffer: bool) -> Binding {
        Binding { ifindex: self.near_index, queue, mode: Mode::Copy, multi_buffer }
    }

    fn attach(&self, sockets: &[&Socket], mode: AttachMode, fragments: bool) -> (Link, MappedArray) {
        let sockets_map = Map::xskmap("rig", sockets.len() as u32).unwrap();
        for (queue, socket) in sockets.iter().enumerate() {
            sockets_map.set_socket(queue as u32, socket.as_fd()).unwrap();
        }
        let counter = Map::mappable_array("rig", 8, 1).unwrap();
        let code = redirect(sockets_map.as_fd(), counter.as_fd());
        let options = LoadOptions { fragments, device: None };
        let program = XdpProgram::load("rig", &code, options).unwrap();
        (Link::attach_xdp(&program, self.near_index, mode).unwrap(), counter.mapped().unwrap())
    }
}

/// Waits until the queueing discipline is active: before that, frames are lost uncounted.
fn wait_for_carrier(name: &str) {
    let deadline = Instant::now() + DEADLINE;
    while !Interface::find(name).unwrap().is_running() {
        assert!(Instant::now() < deadline, "{name} has no carrier after {DEADLINE:?}");
        std::thread::yield_now();
    }
}

/// Calls `done` until it is true, sleeping on `socket` between calls; fails the test at the
/// deadline.
pub(crate) fn until(socket: &impl AsFd, done: impl FnMut() -> bool) {
    until_any([socket.as_fd()], done);
}

/// Like [`until`], for several sockets.
pub(crate) fn until_any<const N: usize>(sockets: [BorrowedFd<'_>; N], mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < deadline, "it did not happen in {DEADLINE:?}");
        wait::readable(sockets.map(Some), Duration::from_millis(5)).unwrap();
    }
}

/// Returns an Ethernet frame of `len` bytes with an IPv4 UDP packet to port `serial`; its contents
/// depend on both.
pub(crate) fn udp(serial: u16, len: usize) -> Vec<u8> {
    let mut frame = vec![0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x08, 0x00];
    let ip_len = (len - 14) as u16;
    let [ip_high, ip_low] = ip_len.to_be_bytes();
    frame.extend([0x45, 0, ip_high, ip_low, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(1000_u16.to_be_bytes());
    frame.extend(serial.to_be_bytes());
    frame.extend((ip_len - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend((frame.len()..len).map(|i| (i * 7 + usize::from(serial)) as u8));
    frame
}

const fn op(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> u64 {
    code as u64
        | (dst as u64) << 8
        | (src as u64) << 12
        | (offset as u16 as u64) << 16
        | (immediate as u32 as u64) << 32
}

/// Returns an XDP program that counts the frame, writes [`MARK`] before it, and redirects it to its
/// queue's socket.
fn redirect(sockets: BorrowedFd<'_>, counter: BorrowedFd<'_>) -> Vec<u64> {
    use std::os::fd::AsRawFd;
    const MAP_LOOKUP: i32 = 1;
    const REDIRECT_MAP: i32 = 51;
    const ADJUST_META: i32 = 54;
    const XDP_PASS: i32 = 2;
    let [low, high] =
        [MARK.first_chunk::<4>(), MARK.last_chunk::<4>()].map(|part| i32::from_ne_bytes(*part.unwrap()));
    let mov_immediate = |register, value| op(0xb7, register, 0, 0, value);
    let mov = |to, from| op(0xbf, to, from, 0, 0);
    let load_word = |to, from, offset| op(0x61, to, from, offset, 0);
    let call = |function| op(0x85, 0, 0, 0, function);
    let load_map = |register, fd: BorrowedFd<'_>| [op(0x18, register, 1, 0, fd.as_raw_fd()), 0];
    let mut code = vec![mov(6, 1), op(0x62, 10, 0, -4, 0), mov(2, 10), op(0x07, 2, 0, 0, -4)];
    code.extend(load_map(1, counter));
    code.extend([call(MAP_LOOKUP), op(0x15, 0, 0, 2, 0), mov_immediate(1, 1), op(0xdb, 0, 1, 0, 0)]);
    code.extend([mov(1, 6), mov_immediate(2, -8), call(ADJUST_META), op(0x55, 0, 0, 7, 0)]);
    code.extend([load_word(2, 6, 8), load_word(3, 6, 0), mov(4, 2), op(0x07, 4, 0, 0, 8)]);
    code.extend([op(0x2d, 4, 3, 2, 0), op(0x62, 2, 0, 0, low), op(0x62, 2, 0, 4, high)]);
    code.push(load_word(2, 6, 16));
    code.extend(load_map(1, sockets));
    code.extend([mov_immediate(3, XDP_PASS), call(REDIRECT_MAP), op(0x95, 0, 0, 0, 0)]);
    code
}
