//! What a capture gets here: privileges, memory, libpcap; and of an interface, see `link.rs` and `xdp.rs`.

use std::path::Path;

use strait_sys::interface::Interface;
use strait_sys::netlink::{PacketRing, packet_socket};
use strait_sys::{Kind, libpcap, packet};

use super::finding::{Finding, Notebook};
use super::{Args, Face, link, privilege, processor, xdp};
use crate::Error;

/// The kernel that all paths are written for.
const KERNEL_MIN: (u32, u32) = (5, 15);
/// Memory that one queue of AF_XDP takes unless told otherwise.
const UMEM_BYTES: u64 = 32 << 20;
/// What tcpdump asks of libpcap, and many programs with it.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);
/// And its snaplen.
const SNAPLEN: u32 = 262_144;

pub(super) fn examine(
    interface: Option<&Interface>,
    args: &Args,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let mut notebook = Notebook::new(Face::Capture, findings);
    kernel(&mut notebook);
    let name = interface.map_or("lo", |interface| interface.name.as_str());
    let raw = privilege::packet_sockets(name, &mut notebook)?;
    privilege::af_xdp(&mut notebook)?;
    let what_for = "unless --ring says less, a queue of AF_XDP takes";
    privilege::locked_memory(UMEM_BYTES, what_for, &mut notebook)?;
    fanout(&mut notebook);
    libpcap(&mut notebook, interface, raw);
    processor::examine(Path::new("/sys/devices/system/cpu"), &mut notebook);
    if let Some(interface) = interface {
        link::examine(interface, args, &mut notebook)?;
        xdp::examine(interface, args, &mut notebook)?;
    }
    Ok(())
}

fn kernel(notebook: &mut Notebook<'_>) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (major, minor) = KERNEL_MIN;
    let fix = format!("boot Linux {major}.{minor} or newer");
    notebook.judge(version >= KERNEL_MIN, "kernel", format!("Linux {release}"), &fix);
}

/// Several sockets that share the packets of an interface.
fn fanout(notebook: &mut Notebook<'_>) {
    let probed = packet::Socket::open("lo").and_then(|socket| {
        let lo = Interface::find("lo")?;
        socket.bind(lo.index)?;
        socket.found_fanout(packet::Fanout::Hash)
    });
    match probed {
        Ok(_) => notebook.ok("fanout", "packet sockets can share an interface's packets (--queues)"),
        // Said already, or there is no loopback to ask.
        Err(error) if error.kind() == Kind::Refused || error.kind() == Kind::Usage => {}
        Err(error) => {
            notebook.better("fanout", format!("one lane only: {error}"), "ip link set lo up; strait doctor");
        }
    }
}

/// Which ring libpcap gives a program, and what that means for its delay: D2's question.
fn libpcap(notebook: &mut Notebook<'_>, interface: Option<&Interface>, raw: bool) {
    let version = match libpcap::version() {
        Ok(version) => version,
        Err(error) => {
            let says = format!("{error}: text filters and strait run need it");
            return notebook.better("libpcap", says, "apt-get install libpcap0.8");
        }
    };
    if !raw {
        return notebook
            .ok("libpcap", format!("{version}; its ring cannot be looked at without packet sockets"));
    }
    let name = interface.map_or("lo", |interface| interface.name.as_str());
    // Nothing is changed for a look.
    let options =
        libpcap::Options { snaplen: SNAPLEN, timeout: READ_TIMEOUT, immediate: false, promiscuous: false };
    let looked = libpcap::Reader::open(name, options).and_then(|reader| packet_socket(reader.socket()));
    let socket = match looked {
        Ok(socket) => socket,
        Err(error) => {
            return notebook.ok("libpcap", format!("{version}; its ring cannot be looked at: {error}"));
        }
    };
    match (socket.version, socket.ring) {
        (3, Some(ring)) => {
            let PacketRing { block_bytes, blocks, retire, .. } = ring;
            let says = format!(
                "{version} uses TPACKET_V3 on {name}: {blocks} blocks of {} KiB, kept back for {} ms with tcpdump's read \
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
                "{version} uses TPACKET_V{version_used} on {name}: prompt, a wake-up for each packet"
            );
            notebook.better("libpcap", says, "strait run -- PROGRAM wakes less often");
        }
        (_, None) => {
            let says = format!("{version} uses no ring on {name}: a system call and a copy for each packet");
            notebook.better("libpcap", says, "strait run -- PROGRAM");
        }
    }
}
