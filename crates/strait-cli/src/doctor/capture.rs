//! Findings for captures: kernel, privileges, memory, libpcap. The findings of an interface are in
//! `link.rs` and `xdp.rs`.

use std::path::Path;

use strait_capture::{libpcap, probe};
use strait_os::interface::Interface;
use strait_os::netlink::PacketRing;

use super::args::{Area, Args};
use super::finding::{self, Finding, Recorder};
use super::{link, privilege, processor, tap, xdp, zerocopy};
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
    let mut recorder = Recorder::new(Area::Capture, findings);
    let name = interface.map_or("lo", |interface| interface.name.as_str());
    kernel(&mut recorder);
    let raw = privilege::packet_sockets(name, &mut recorder)?;
    privilege::af_xdp(&mut recorder)?;
    let what_for = "an AF_XDP queue without --ring-mib needs";
    privilege::locked_memory(UMEM_BYTES, what_for, &args.areas, &mut recorder)?;
    if raw {
        fanout(interface, &mut recorder);
    }
    libpcap(interface, raw, &mut recorder);
    processor::examine(Path::new("/sys/devices/system/cpu"), &mut recorder);
    zerocopy::examine(interface, &mut recorder);
    if let Some(interface) = interface {
        link::examine(interface, args, &mut recorder)?;
        xdp::examine(interface, args, &mut recorder)?;
        tap::examine(interface, &mut recorder);
    }
    Ok(())
}

/// Reports the kernel release without a verdict. Distributions backport features, so other findings
/// test the features themselves.
fn kernel(recorder: &mut Recorder<'_>) {
    recorder.ok("kernel", format!("Linux {}", finding::kernel()));
}

/// Checks that several packet sockets can share the packets of the interface (`PACKET_FANOUT`).
fn fanout(interface: Option<&Interface>, recorder: &mut Recorder<'_>) {
    let (name, shown) = tested_interface(interface);
    match probe::fanout(name) {
        Ok(()) => recorder.ok(
            "fanout",
            format!("packet sockets can share the packets of {shown}: --queues sets the number of lanes"),
        ),
        Err(error) if error.errno() == Some(NO_OPTION) => {
            let fix = "a kernel with PACKET_FANOUT";
            recorder.better("fanout", format!("only one lane: {}", error.failure()), fix);
        }
        Err(error) if is_down(name) => recorder.unknown("fanout", &error.remedy(bring_up(interface))),
        Err(error) => recorder.unknown("fanout", &error),
    }
}

/// Returns the name of the interface to test, and its name for messages: without an interface the
/// loopback.
fn tested_interface(interface: Option<&Interface>) -> (&str, &str) {
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
fn libpcap(interface: Option<&Interface>, raw: bool, recorder: &mut Recorder<'_>) {
    let (name, shown) = tested_interface(interface);
    let version = match libpcap::version() {
        Ok(version) => version,
        Err(error) => {
            let is_static = cfg!(target_feature = "crt-static");
            let fix = if is_static { "" } else { "apt-get install libpcap0.8" };
            let use_of_it = if is_static { "" } else { ": text filters and strait run need it" };
            return recorder.better("libpcap", format!("{error}{use_of_it}"), fix);
        }
    };
    if !raw {
        let message = format!("{version}; unknown: its ring cannot be examined without packet sockets");
        return recorder.better("libpcap", message, "");
    }
    // No promiscuous mode: the examination changes no setting.
    let options =
        libpcap::Options { snaplen: SNAPLEN, timeout: READ_TIMEOUT, immediate: false, promiscuous: false };
    let socket = match libpcap::socket(name, options) {
        Ok(socket) => socket,
        Err(error) => {
            let advice = || error.advice().unwrap_or_default().to_owned();
            let fix = if is_down(name) { bring_up(interface) } else { advice() };
            let message = format!("{version}; unknown: its ring cannot be examined: {}", error.failure());
            return recorder.better("libpcap", message, fix);
        }
    };
    match (socket.version, socket.ring) {
        (3, Some(ring)) => {
            let PacketRing { block_bytes, blocks, retire, .. } = ring;
            let message = format!(
                "{version} uses TPACKET_V3 on {shown}: {blocks} blocks of {} KiB; packets can be delayed by up \
                 to {} ms with tcpdump's read timeout",
                block_bytes >> 10,
                retire.as_millis()
            );
            recorder.better("libpcap", message, "strait run -- PROGRAM, or the program's immediate mode");
        }
        (version_used, Some(_)) => {
            let message = format!(
                "{version} uses TPACKET_V{version_used} on {shown}: no delay, but one wake-up per packet"
            );
            recorder.better("libpcap", message, "strait run -- PROGRAM, for fewer wake-ups");
        }
        (_, None) => {
            let message =
                format!("{version} uses no ring on {shown}: one system call and one copy per packet");
            recorder.better("libpcap", message, "strait run -- PROGRAM");
        }
    }
}
