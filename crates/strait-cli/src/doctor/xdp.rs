//! Findings on the AF_XDP modes of an interface.

use std::path::Path;

use rustix::io::Errno;
use strait_capture::probe::{ENOTSUPP, bpf_program_name};
use strait_capture::{Path as Mode, Queues, Session};
use strait_filter::cbpf::Program;
use strait_os::ethtool::Ethtool;
use strait_os::interface::Interface;
use strait_os::netlink::{Netlink, XdpAttachment, xdp_abilities};

use super::args::Args;
use super::device::Device;
use super::finding::Recorder;
use super::{capture, holder, privilege, queues};
use crate::Error;

/// Ring size of a probe, the minimum.
const RING_BYTES: usize = 256 << 10;

const MODES: [(&str, Mode); 3] =
    [("zero-copy", Mode::XdpZeroCopy), ("native copy", Mode::XdpNative), ("generic", Mode::XdpGeneric)];

pub(super) fn examine(interface: &Interface, args: &Args, recorder: &mut Recorder<'_>) -> Result<(), Error> {
    let name = interface.name.as_str();
    let ethtool = Ethtool::open(name)?;
    match Netlink::open()?.xdp(interface.index) {
        Ok(None) => {}
        Ok(Some(attached)) => occupied(name, attached, recorder),
        Err(error) => recorder.unknown("xdp program", &error),
    }
    if !interface.is_ethernet() {
        recorder.better(
            "xdp",
            format!("{name} is not an Ethernet interface: AF_XDP cannot be used"),
            "use --path v3",
        );
    } else if args.probe && !interface.is_up() {
        let message = format!(
            "AF_XDP was requested, but {name} is down, and AF_XDP binds only to interfaces that are up"
        );
        recorder.broken("xdp", message, capture::set_up(name));
    } else if args.probe {
        probe(interface, args, &ethtool, recorder);
    } else {
        let driver = ethtool.driver().map_or("its driver".into(), |driver| driver.name);
        declared(interface, &driver, Device::of(interface, &ethtool), recorder);
    }
    Ok(())
}

/// Reports the XDP program of another process.
fn occupied(name: &str, attached: XdpAttachment, recorder: &mut Recorder<'_>) {
    let XdpAttachment { mode, program_id } = attached;
    let program = bpf_program_name(program_id).unwrap_or_default();
    let message = format!("program {program_id} \"{program}\" is attached to {name}: AF_XDP cannot be used");
    let fix = match holder::of_xdp_link(Path::new("/proc"), program_id) {
        Some(process) => format!("end process {process} if it is not needed: its bpf_link holds the program"),
        None => format!(
            "{} if it is not needed; if that is refused, a bpf_link holds the program, and bpftool link lists its process",
            mode.detach_command(name)
        ),
    };
    recorder.better("xdp program", message, fix);
}

/// Reports the XDP features that the driver declares.
fn declared(interface: &Interface, driver: &str, device: Device, recorder: &mut Recorder<'_>) {
    let probe = format!("strait doctor {} --probe tests it", interface.name);
    match xdp_abilities(interface.index) {
        Err(error) => recorder.better("xdp", format!("unknown of {driver}: {}", error.failure()), probe),
        Ok(can) if can.zero_copy => recorder.ok("xdp", format!("{driver} declares zero-copy; {probe}")),
        Ok(can) if can.native && can.redirect => {
            let message = format!("{driver} declares native XDP without zero-copy: frames are copied once");
            if device == Device::Veth {
                slows_the_host(&interface.name, recorder);
            }
            // A virtual device has no NIC that could be replaced.
            if device.is_virtual() {
                return recorder.ok("xdp", format!("{message}, as on every link of this kind; {probe}"));
            }
            recorder.better(
                "xdp",
                message,
                format!("a NIC with AF_XDP zero-copy (ice, i40e, mlx5, ixgbe, igc); {probe}"),
            );
        }
        Ok(_) => {
            let message =
                format!("{driver} has no native XDP: the kernel's generic program only, no faster than v3");
            let nic = if device.is_virtual() { "" } else { ", or a NIC with native XDP" };
            recorder.better("xdp", message, format!("use --path v3 here{nic}"));
        }
    }
}

/// Reports that a veth with a native program makes a new socket buffer of each packet, without the
/// segments that the sender had left together.
fn slows_the_host(name: &str, recorder: &mut Recorder<'_>) {
    let message = format!(
        "while a native XDP program is on the veth {name}, as of --path xdp, the host's own TCP has about a quarter of its \
         throughput, whatever the filter is: --path tap leaves it alone"
    );
    recorder.ok("xdp host", message);
}

/// Binds a socket in each mode, with a program that rejects all packets.
fn probe(interface: &Interface, args: &Args, ethtool: &Ethtool, recorder: &mut Recorder<'_>) {
    let name = interface.name.as_str();
    let asked = args.queues.as_ref().and_then(|list| list.0.first().copied());
    let queue = match asked.map_or_else(|| queues::idle(interface, ethtool), Ok) {
        Ok(queue) => queue,
        Err(error) => return recorder.unknown("xdp", &error),
    };
    let device = Device::of(interface, ethtool);
    let tried = MODES.map(|(mode, path)| (mode, path, bind(name, path, queue)));
    if let [(_, _, Err(first)), rest @ ..] = &tried
        && rest
            .iter()
            .all(|(_, _, other)| matches!(other, Err(other) if other.to_string() == first.to_string()))
    {
        return one_cause(name, queue, first, args, recorder);
    }
    let binds = tried.iter().any(|(_, _, tried)| tried.is_ok());
    for (mode, path, tried) in tried {
        let subject = subject(path);
        match tried {
            Ok(()) => recorder.ok(subject, format!("{mode} binds to queue {queue} of {name}")),
            Err(error) => {
                let fix = error.errno().map_or("", |errno| fix(path, Errno::from_raw_os_error(errno)));
                let fix = if fix.starts_with("a NIC") && device.is_virtual() { "" } else { fix };
                recorder.better(subject, format!("no {mode} on queue {queue} of {name}: {error}"), fix);
            }
        }
    }
    if !binds {
        recorder.broken("xdp", format!("AF_XDP was requested and does not bind to {name}"), "use --path v3");
    }
}

fn bind(name: &str, path: Mode, queue: u32) -> Result<(), strait_capture::Error> {
    let builder = Session::builder(name).path(path).program(Program::reject_all());
    let builder = builder.queues(Queues::These(vec![queue])).ring(RING_BYTES).promiscuous(false);
    builder.open().map(drop)
}

/// Reports that no mode binds, and that all modes fail for one reason.
fn one_cause(
    name: &str,
    queue: u32,
    error: &strait_capture::Error,
    args: &Args,
    recorder: &mut Recorder<'_>,
) {
    let reason = match error {
        strait_capture::Error::System(error) => error.failure(),
        error => error.to_string(),
    };
    let fix = match error.errno().map(Errno::from_raw_os_error) {
        Some(Errno::PERM | Errno::ACCESS) => privilege::for_af_xdp(),
        Some(errno @ Errno::AFNOSUPPORT) => fix(Mode::XdpGeneric, errno).into(),
        // The finding "queues" has the fix for a missing queue.
        None if args.queues.is_some() => String::new(),
        _ => "use --path v3".into(),
    };
    recorder.broken("xdp", format!("AF_XDP does not bind to queue {queue} of {name}: {reason}"), fix);
}

fn subject(path: Mode) -> &'static str {
    match path {
        Mode::XdpZeroCopy => "xdp zero-copy",
        Mode::XdpNative => "xdp native",
        _ => "xdp generic",
    }
}

/// Returns the fix for a missing feature. Other errors name their own.
fn fix(path: Mode, errno: Errno) -> &'static str {
    match (errno, path) {
        (Errno::AFNOSUPPORT, _) => "boot Linux with CONFIG_XDP_SOCKETS",
        (Errno::INVAL | Errno::RANGE | Errno::OPNOTSUPP | ENOTSUPP, Mode::XdpZeroCopy) => {
            "a NIC and driver with AF_XDP zero-copy (ice, i40e, mlx5, ixgbe, igc)"
        }
        (Errno::INVAL | Errno::RANGE | Errno::OPNOTSUPP | ENOTSUPP, Mode::XdpNative) => {
            "a NIC and driver with native XDP; jumbo frames may be in the way"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_nic_is_advised_only_if_this_one_lacks_the_feature() {
        assert!(fix(Mode::XdpZeroCopy, Errno::OPNOTSUPP).contains("zero-copy"));
        assert!(fix(Mode::XdpNative, ENOTSUPP).contains("native XDP"));
        assert_eq!(fix(Mode::XdpZeroCopy, Errno::BUSY), "");
    }
}
