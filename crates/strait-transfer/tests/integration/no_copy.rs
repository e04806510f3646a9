//! A route on which nothing copies: the far end of a veth pair acknowledges in the kernel and reads no byte.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use lab::{Offload, Wire, root_or_skip};
use strait_filter::acknowledger;
use strait_packet::checksum::checksum;
use strait_sys::bpf::{Classifier, Link, Map};
use strait_sys::interface::Interface;
use strait_sys::packet::Socket;
use strait_transfer::{Engine, Options, Plan, Segment, Sender};

use crate::rig::PATIENCE;

/// The rig; the connection is made by a real listener, whose socket never sees a byte.
struct NoCopy {
    wire: Wire,
    _program: Link,
    _listener: TcpListener,
    ended: Arc<AtomicBool>,
    acknowledging: Option<JoinHandle<()>>,
}

impl NoCopy {
    fn build() -> Self {
        let offloads = &[Offload::Tso, Offload::Gso, Offload::TxChecksum];
        let wire = Wire::builder().ipv4().offloads(offloads).build().unwrap();
        // Acknowledgements without timestamps would be of another connection.
        wire.left().run(|| std::fs::write("/proc/sys/net/ipv4/tcp_timestamps", "0")).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let macs = [wire.left().mac(), wire.right().mac()].concat();
        let (program, listener, map, socket) = wire.right().run(|| {
            let map = Map::mappable_array("segments", acknowledger::ENTRY_BYTES, acknowledger::CONNECTIONS)
                .unwrap();
            let program = acknowledger::program(map.as_fd().as_raw_fd()).unwrap();
            let index = Interface::find("right").unwrap().index;
            let program = Classifier::load("acknowledge", &program).unwrap();
            let link = Link::attach_ingress(&program, index).unwrap();
            let socket = Socket::open("right").unwrap();
            socket.bind_for_sending(index).unwrap();
            (link, TcpListener::bind("192.0.2.2:7").unwrap(), map, socket)
        });
        let end = ended.clone();
        let acknowledging = std::thread::spawn(move || {
            let segments = map.mapped().unwrap();
            let mut told = vec![0; acknowledger::CONNECTIONS as usize];
            while !end.load(Ordering::Relaxed) {
                for (number, told) in told.iter_mut().enumerate() {
                    let next = segments.load(number, acknowledger::NEXT_BYTE);
                    if next != *told {
                        *told = next;
                        let own = segments.load(number, acknowledger::OWN_BYTE);
                        socket.send(&acknowledgement(&macs, next, own)).unwrap();
                    }
                }
                std::thread::yield_now();
            }
        });
        Self { wire, _program: program, _listener: listener, ended, acknowledging: Some(acknowledging) }
    }

    fn connect(&self) -> TcpStream {
        self.wire.left().run(|| TcpStream::connect("192.0.2.2:7")).unwrap()
    }
}

impl Drop for NoCopy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.acknowledging.take() {
            thread.join().unwrap();
        }
    }
}

/// An Ethernet frame with what the peer would say: all up to `next` has come.
fn acknowledgement(macs: &[u8], next: u64, own: u64) -> Vec<u8> {
    const ADDRESSES: [u8; 8] = [192, 0, 2, 2, 192, 0, 2, 1];
    let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    ip.extend(ADDRESSES);
    let sum = checksum(&ip).to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
    let (to, from) = ((next >> 32) as u16, (own >> 32) as u16);
    let mut tcp = [from.to_be_bytes(), to.to_be_bytes()].concat();
    tcp.extend(
        [(own as u32).to_be_bytes(), (next as u32).to_be_bytes(), [0x50, 0x10, 0xff, 0xff], [0; 4]].concat(),
    );
    let sum = checksum(&[&ADDRESSES[..], &[0, 6, 0, 20], &tcp].concat()).to_be_bytes();
    tcp[16..18].copy_from_slice(&sum);
    [macs, &[8, 0], &ip, &tcp].concat()
}

/// Sends `count` times a buffer of `len` bytes; the engine and the sender's account.
fn send(engine: &mut Engine, stream: TcpStream, len: usize, count: usize) -> strait_ledger::Transfer {
    let mut sender = Sender::new(stream).unwrap();
    for _ in 0..count {
        let buffer = loop {
            match engine.buffer() {
                Some(buffer) => break buffer,
                None => {
                    engine.wait(None, PATIENCE).unwrap();
                }
            }
        };
        let plan = Plan::new().with(Segment::Shared(buffer.freeze(0..len)));
        sender.send(engine, plan, PATIENCE).unwrap();
    }
    assert_eq!(sender.finish(engine, PATIENCE).unwrap(), 0);
    sender.account()
}

#[test]
fn large_buffers_go_without_a_copy_where_nothing_copies() {
    if !root_or_skip() {
        return;
    }
    let rig = NoCopy::build();
    let mut engine =
        Engine::new(Options { buffer_bytes: 1 << 20, buffers: 16, ..Options::default() }).unwrap();
    if let Some(error) = engine.no_zero_copy() {
        return lab::skip(error.to_string());
    }
    let account = send(&mut engine, rig.connect(), 1 << 20, 600);
    assert_eq!(account.bytes(), 600 << 20, "{account}");
    assert!(account.zero_copy > 300 << 20, "{account}");
    // The kernel joins notifications of sends that are in flight together, and may then report a copy that was none.
    assert!(account.zero_copy_copied < 6 << 20, "{account}");
}
