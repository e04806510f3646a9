//! Tests of what this machine allows a capture, one kernel interface at a time.
//!
//! `strait doctor` calls them to find which of the steps of a session is refused. Each test opens
//! what a session would open, and closes it again. None of them receives packets or changes a
//! setting.

use std::time::Duration;

use strait_os::Result;
use strait_os::interface::Interface;
use strait_sys::bpf::{self, Map, TcxHook};
use strait_sys::packet::{Fanout, Socket, v2, v3};
use strait_sys::pf_zerocopy;
pub use strait_sys::xdp::ENOTSUPP;

/// Bytes of a ring.
const RING_BYTES: usize = 256 << 10;
/// Bytes of a slot of TPACKET_V2.
const SLOT_BYTES: usize = 2048;
/// Time after which TPACKET_V3 returns a block that is not full.
const RETIRE: Duration = Duration::from_millis(1);

/// Opens a packet socket. `interface` is used in errors only.
pub fn packet_socket(interface: &str) -> Result<()> {
    Socket::open(interface).map(drop)
}

/// Creates a small ring of each kind on unbound packet sockets. `interface` is used in errors only.
pub fn packet_rings(interface: &str) -> Result<()> {
    v2::Ring::new(&Socket::open(interface)?, v2::Geometry::new(RING_BYTES, SLOT_BYTES))?;
    let geometry = v3::Geometry::new(RING_BYTES, RING_BYTES / 2, RETIRE);
    v3::Ring::new(&Socket::open(interface)?, geometry, false).map(drop)
}

/// Binds a packet socket to `interface` and makes a fanout group of it.
///
/// # Errors
/// ENOPROTOOPT if the kernel has no `PACKET_FANOUT`; ENETDOWN if the interface is down.
pub fn fanout(interface: &str) -> Result<()> {
    let interface = Interface::find(interface)?;
    let socket = Socket::open(&interface.name)?;
    socket.bind(interface.index)?;
    socket.create_fanout(Fanout::Hash).map(drop)
}

/// Creates the map of AF_XDP sockets (XSKMAP), which is the first step of a capture with AF_XDP
/// that the kernel refuses without privileges.
pub fn xdp_map() -> Result<()> {
    Map::xskmap("strait_doctor", 1).map(drop)
}

/// Returns the names of the programs on the tcx hooks of the interface `ifindex`, ingress first, in
/// the order in which they run.
///
/// # Errors
/// EINVAL if the kernel has no tcx; EPERM without `CAP_NET_ADMIN`.
pub fn tcx_programs(ifindex: u32) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for hook in [TcxHook::Ingress, TcxHook::Egress] {
        for id in bpf::tcx_programs(ifindex, hook)? {
            // A program may have ended meanwhile, or may not be visible.
            names.push(bpf_program_name(id).unwrap_or_else(|_| format!("program {id}")));
        }
    }
    Ok(names)
}

/// Returns the name of the loaded BPF program `id`.
pub fn bpf_program_name(id: u32) -> Result<String> {
    bpf::program_info_by_id(id).map(|info| info.name)
}

/// Opens a `PF_ZEROCOPY` socket. `interface` is used in errors only.
///
/// # Errors
/// EAFNOSUPPORT if the module is not loaded, EPERM without `CAP_NET_RAW`.
pub fn zerocopy_socket(interface: &str) -> Result<()> {
    pf_zerocopy::Socket::open(interface).map(drop)
}
