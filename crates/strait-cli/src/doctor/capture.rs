//! Findings for captures: kernel, privileges, memory, libpcap. The findings of an interface are in
//! `link.rs` and `xdp.rs`.

use std::path::Path;

use strait_sys::interface::Interface;
use strait_sys::netlink::{PacketRing, packet_socket};
use strait_sys::{Result, libpcap, packet};

use super::args::{Args, Face};
use super::finding::{self, Finding, Notebook};
use super::{link, privilege, processor, xdp, zerocopy};
use crate::Error;

/// Memory of one AF_XDP queue by default.
const UMEM_BYTES: u64 = 32 << 20;
/// Read timeout of tcpdump and many other libpcap programs.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);
/// Snaplen of tcpdump.
const SNAPLEN: u32 = 262_144;
/// `ENOPROTOOPT`: the kernel does not know the socket option.
const NO_OPTION: i32 = rustix::io::Errno::NOPROTOOPT.raw_os_error();

pub(super) fn examine(
    interface: Option<&Interface>,
    args: &Args,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let mut notebook = Notebook::new(Face::Capture, findings);
    let name = interface.map_or("lo", |interface| interface.name.as_str());
    kernel(&mut notebook);
    let raw = privilege::packet_sockets(name, &args.faces, &mut notebook)?;
    privilege::af_xdp(&args.faces, &mut notebook)?;
    let what_for = "an AF_XDP queue without --ring-mib needs";
    privilege::locked_memory(UMEM_BYTES, what_for, &args.faces, &mut notebook)?;
    if raw {
        fanout(interface, &mut notebook);
    }
    libpcap(interface, raw, &mut notebook);
    processor::examine(Path::new("/sys/devices/system/cpu"), &mut notebook);
    zerocopy::examine(interface, &mut notebook);
    if let Some(interface) = interface {
        link::examine(interface, args, &mut notebook)?;
        xdp::examine(interface, args, &mut notebook)?;
    }
    Ok(())
}

/// Reports the kernel release without a verdict. Distributions backport features, so that other
/// findings test the features themselves.
fn kernel(notebook: &mut Notebook<'_>) {
    notebook.ok("kernel", format!("Linux {}", finding::kernel()));
}

/// Checks that several packet sockets can share the packets of the interface (`PACKET_FANOUT`).
fn fanout(interface: Option<&Interface>, notebook: &mut Notebook<'_>) {
    let (name, shown) = place(interface);
    match create_fanout(name) {
        Ok(()) => notebook.ok("fanout", format!("packet sockets can share the packets of {shown}: --queues")),
        Err(error) if error.errno() == Some(NO_OPTION) => {
            let fix = "a kernel with PACKET_FANOUT";
            notebook.better("fanout", format!("only one lane: {}", error.failure()), fix);
        }
        Err(error) if is_down(name) => notebook.unknown("fanout", &error.remedy(bring_up(interface))),
        Err(error) => notebook.unknown("fanout", &error),
    }
}

fn create_fanout(name: &str) -> Result<()> {
    let interface = Interface::find(name)?;
    let socket = packet::Socket::open(name)?;
    socket.bind(interface.index)?;
    socket.create_fanout(packet::Fanout::Hash).map(drop)
}

/// Returns the tested interface, and its name for messages.
fn place(interface: Option<&Interface>) -> (&str, &str) {
    interface.map_or(("lo", "lo (tested by default)"), |interface| (&interface.name, &interface.name))
}

fn is_down(name: &str) -> bool {
    Interface::find(name).is_ok_and(|interface| !interface.is_up())
}

/// Returns the fix for an interface that is down.
fn bring_up(interface: Option<&Interface>) -> String {
    interface.map_or_else(
        || "strait doctor IF, which tries it on an interface".into(),
        |interface| set_up(&interface.name),
    )
}

/// Returns the command that sets a link up.
pub(super) fn set_up(name: &str) -> String {
    format!("ip link set {name} up")
}

/// Reports the ring version that libpcap uses and the delay that it causes (paper D2).
fn libpcap(interface: Option<&Interface>, raw: bool, notebook: &mut Notebook<'_>) {
    let (name, shown) = place(interface);
    let version = match libpcap::version() {
        Ok(version) => version,
        Err(error) => {
            let says = format!("{error}: text filters and strait run need it");
            let fix = if cfg!(target_feature = "crt-static") { "" } else { "apt-get install libpcap0.8" };
            return notebook.better("libpcap", says, fix);
        }
    };
    if !raw {
        let says = format!("{version}; unknown: its ring cannot be examined without packet sockets");
        return notebook.better("libpcap", says, "");
    }
    // No promiscuous mode: the examination changes no setting.
    let options =
        libpcap::Options { snaplen: SNAPLEN, timeout: READ_TIMEOUT, immediate: false, promiscuous: false };
    let opened = libpcap::Reader::open(name, options).and_then(|reader| packet_socket(reader.socket()));
    let socket = match opened {
        Ok(socket) => socket,
        Err(error) => {
            let advice = || error.advice().unwrap_or_default().to_owned();
            let fix = if is_down(name) { bring_up(interface) } else { advice() };
            let says = format!("{version}; unknown: its ring cannot be examined: {}", error.failure());
            return notebook.better("libpcap", says, fix);
        }
    };
    match (socket.version, socket.ring) {
        (3, Some(ring)) => {
            let PacketRing { block_bytes, blocks, retire, .. } = ring;
            let says = format!(
                "{version} uses TPACKET_V3 on {shown}: {blocks} blocks of {} KiB; packets can be delayed by up \
                 to {} ms with tcpdump's read timeout",
                block_bytes >> 10,
                retire.as_millis()
            );
            notebook.better("libpcap", says, "strait run -- PROGRAM, or the program's immediate mode");
        }
        (version_used, Some(_)) => {
            let says = format!(
                "{version} uses TPACKET_V{version_used} on {shown}: no delay, but one wake-up per packet"
            );
            notebook.better("libpcap", says, "strait run -- PROGRAM, for fewer wake-ups");
        }
        (_, None) => {
            let says = format!("{version} uses no ring on {shown}: one system call and one copy per packet");
            notebook.better("libpcap", says, "strait run -- PROGRAM");
        }
    }
}
