//! What a capture gets here: privileges, memory, libpcap; and of an interface, see `link.rs` and
//! `xdp.rs`.

use std::path::Path;

use strait_sys::interface::Interface;
use strait_sys::netlink::{PacketRing, packet_socket};
use strait_sys::{Result, libpcap, packet};

use super::finding::{self, Finding, Notebook};
use super::{Args, Face, link, privilege, processor, xdp, zerocopy};
use crate::Error;

/// Memory that one queue of AF_XDP takes unless told otherwise.
const UMEM_BYTES: u64 = 32 << 20;
/// What tcpdump asks of libpcap, and many programs with it.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);
/// And its snaplen.
const SNAPLEN: u32 = 262_144;
/// `ENOPROTOOPT`: a kernel without the option.
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
    let what_for = "unless --ring-mib says less, a queue of AF_XDP takes";
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

/// Names the kernel and does not judge it: distributions carry abilities back, and the findings
/// below tried them.
fn kernel(notebook: &mut Notebook<'_>) {
    notebook.ok("kernel", format!("Linux {}", finding::kernel()));
}

/// Whether several sockets can share the packets of the interface.
fn fanout(interface: Option<&Interface>, notebook: &mut Notebook<'_>) {
    let (name, shown) = place(interface);
    match found_fanout(name) {
        Ok(()) => notebook.ok("fanout", format!("packet sockets can share the packets of {shown}: --queues")),
        Err(error) if error.errno() == Some(NO_OPTION) => {
            let fix = "a kernel with PACKET_FANOUT";
            notebook.better("fanout", format!("one lane only: {}", error.failure()), fix);
        }
        Err(error) if is_down(name) => notebook.unknown("fanout", &error.remedy(bring_up(interface))),
        Err(error) => notebook.unknown("fanout", &error),
    }
}

fn found_fanout(name: &str) -> Result<()> {
    let interface = Interface::find(name)?;
    let socket = packet::Socket::open(name)?;
    socket.bind(interface.index)?;
    socket.found_fanout(packet::Fanout::Hash).map(drop)
}

/// The interface that is tried, and how to speak of it.
fn place(interface: Option<&Interface>) -> (&str, &str) {
    interface.map_or(("lo", "lo (tried, as no interface was given)"), |interface| {
        (&interface.name, &interface.name)
    })
}

fn is_down(name: &str) -> bool {
    Interface::find(name).is_ok_and(|interface| !interface.is_up())
}

/// What helps where the interface that is tried is down.
fn bring_up(interface: Option<&Interface>) -> String {
    interface.map_or_else(
        || "strait doctor IF, which tries it on an interface".into(),
        |interface| set_up(&interface.name),
    )
}

/// How a link that is down comes up.
pub(super) fn set_up(name: &str) -> String {
    format!("ip link set {name} up")
}

/// Which ring libpcap gives a program, and what that means for its delay: D2's question.
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
        let says = format!("{version}; unknown: its ring cannot be looked at without packet sockets");
        return notebook.better("libpcap", says, "");
    }
    // Nothing is changed for a look.
    let options =
        libpcap::Options { snaplen: SNAPLEN, timeout: READ_TIMEOUT, immediate: false, promiscuous: false };
    let looked = libpcap::Reader::open(name, options).and_then(|reader| packet_socket(reader.socket()));
    let socket = match looked {
        Ok(socket) => socket,
        Err(error) => {
            let advice = || error.advice().unwrap_or_default().to_owned();
            let fix = if is_down(name) { bring_up(interface) } else { advice() };
            let says = format!("{version}; unknown: its ring cannot be looked at: {}", error.failure());
            return notebook.better("libpcap", says, fix);
        }
    };
    match (socket.version, socket.ring) {
        (3, Some(ring)) => {
            let PacketRing { block_bytes, blocks, retire, .. } = ring;
            let says = format!(
                "{version} uses TPACKET_V3 on {shown}: {blocks} blocks of {} KiB, kept back for {} ms with tcpdump's read \
                 timeout: so late can a packet be",
                block_bytes >> 10,
                retire.as_millis()
            );
            notebook.better(
                "libpcap",
                says,
                "strait run -- PROGRAM (prompt and cheap), or the program's immediate mode",
            );
        }
        (version_used, Some(_)) => {
            let says = format!(
                "{version} uses TPACKET_V{version_used} on {shown}: prompt, a wake-up for each packet"
            );
            notebook.better("libpcap", says, "strait run -- PROGRAM wakes less often");
        }
        (_, None) => {
            let says = format!("{version} uses no ring on {shown}: a system call and a copy for each packet");
            notebook.better("libpcap", says, "strait run -- PROGRAM");
        }
    }
}
