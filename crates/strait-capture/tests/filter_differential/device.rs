//! Metadata functions of a driver, on a veth pair, which has all three.
//!
//! veth keeps the tag of a VLAN interface apart from the frame, as a NIC that removes tags does.
//! The tag is then not in the bytes that an XDP program sees, and only the driver's function
//! returns it.

use std::os::fd::{AsFd, AsRawFd};

use lab::{Wire, program_or_skip, wait_until};
use strait_filter::cbpf::{Program, opcode as op};
use strait_filter::translate::{MetadataFunctions, Options};
use strait_filter::xdp::{COUNTERS_BYTES, CaptureOptions, Counters, Metadata, capture_program};
use strait_sys::bpf::{AttachMode, Link, LoadOptions, Map, XdpProgram, btf};

use super::checked;
use super::frames::{DEVICE_MAC, OTHER_MAC};
use super::wire::{LIMIT, Sender};
use super::xdp::Port;

/// Returns the metadata functions of this kernel. If one is missing it prints the reason and
/// returns `None`.
fn functions() -> Option<MetadataFunctions> {
    let names = ["bpf_xdp_metadata_rx_timestamp", "bpf_xdp_metadata_rx_hash", "bpf_xdp_metadata_rx_vlan_tag"];
    let [rx_timestamp, rx_hash, rx_vlan_tag] = btf::Types::of_kernel()
        .and_then(|types| types.functions(names))
        .map_err(|error| lab::skip(error.to_string()))
        .ok()?;
    if [rx_timestamp, rx_hash, rx_vlan_tag].contains(&None) {
        lab::skip("this kernel has no XDP metadata functions");
        return None;
    }
    Some(MetadataFunctions { rx_timestamp, rx_hash, rx_vlan_tag })
}

/// Attaches a capture program that may call the driver's functions. It is detached when the result
/// is dropped.
fn attach(wire: &Wire, port: &Port, filter: &Program, functions: MetadataFunctions) -> (Link, Map) {
    let sockets = Map::xskmap("sockets", 1).unwrap();
    let counters = Map::array("counters", COUNTERS_BYTES, 1).unwrap();
    sockets.set_socket(0, port.socket.as_fd()).unwrap();
    let options = CaptureOptions {
        interface: Options { device_mac: DEVICE_MAC, functions, ..Options::default() },
        xskmap_fd: sockets.as_fd().as_raw_fd(),
        counters: Counters { fd: counters.as_fd().as_raw_fd(), queues: 1 },
        metadata: true,
        timestamps: true,
    };
    let assembled = capture_program(filter, &options).unwrap();
    assert!(assembled.device_bound);
    let device = wire.left().interface().index;
    let link = wire.left().run(|| {
        let load = LoadOptions { fragments: assembled.fragments, device: Some(device) };
        let program = XdpProgram::load("strait", &assembled.words(), load).unwrap_or_else(|e| panic!("{e}"));
        Link::attach_xdp(&program, device, AttachMode::Native).unwrap()
    });
    (link, sockets)
}

fn receive(port: &mut Port) -> (Metadata, Vec<u8>) {
    let mut got = Vec::new();
    assert!(wait_until(LIMIT, || {
        got.extend(port.read());
        !got.is_empty()
    }));
    got.remove(0)
}

fn plain_frame() -> Vec<u8> {
    [&DEVICE_MAC[..], &OTHER_MAC, &[0x08, 0x00], &[0x45; 46]].concat()
}

#[test]
fn drivers_hash_is_in_the_metadata_and_in_the_filter() {
    let Some(functions) = functions() else { return };
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (mut port, mut sender) = (Port::open(wire.left()), Sender::open(wire.right()));
    // ld rxhash; ret a
    let filter = checked(&[(op::ABS, 0, 0, (op::SKF_AD_OFF as u32) + op::SKF_AD_RXHASH), (0x16, 0, 0, 0)]);
    let _attached = attach(&wire, &port, &filter, functions);
    sender.send(&[plain_frame()]);
    let (found, bytes) = receive(&mut port);
    assert_eq!(bytes, plain_frame());
    assert!(found.has(Metadata::RX_HASH | Metadata::TIME) && found.timestamp_ns != 0);
    assert_eq!(found.snaplen, found.rx_hash);
    assert_eq!(found.vlan_tpid, 0);
}

#[test]
fn tag_that_the_device_removed_is_filtered_and_reported() {
    let Some(functions) = functions() else { return };
    if !program_or_skip("ip") {
        return;
    }
    let Some(wire) = Wire::builder().or_skip() else { return };
    let ip = |line: &str| wire.right().command("ip").args(line.split(' ')).run(LIMIT).unwrap();
    let added = ip("link add link right name tagged type vlan id 5");
    if !added.status.success() {
        return lab::skip("this kernel has no VLAN interfaces");
    }
    let _ = ip("link set tagged up").success();
    let mut port = Port::open(wire.left());
    // ld vlan_tag; jeq #5, ret #60, ret #0
    let filter = checked(&[
        (op::ABS, 0, 0, (op::SKF_AD_OFF as u32) + op::SKF_AD_VLAN_TAG),
        (0x15, 0, 1, 5),
        (0x06, 0, 0, 60),
        (0x06, 0, 0, 0),
    ]);
    let _attached = attach(&wire, &port, &filter, functions);
    let mut sender = Sender::open_on(wire.right(), "tagged");
    sender.send(&[plain_frame()]);
    let (found, bytes) = receive(&mut port);
    assert_eq!(bytes, plain_frame(), "the tag is not among the bytes");
    assert_eq!((found.vlan_tci, found.vlan_tpid), (5, 0x8100));
}
