//! Which modes of AF_XDP an interface has.

use std::path::Path;

use rustix::io::Errno;
use strait_capture::{Path as Mode, Queues, Session};
use strait_filter::cbpf::Program;
use strait_sys::bpf;
use strait_sys::ethtool::Ethtool;
use strait_sys::interface::Interface;
use strait_sys::netlink::{Netlink, XdpAttachment, xdp_abilities};

use super::finding::Notebook;
use super::{Args, holder, queues};
use crate::Error;

/// Bytes of the ring of a probe: the smallest.
const RING_BYTES: usize = 256 << 10;

/// What drivers answer in place of EOPNOTSUPP (linux/errno.h, kernel-internal and yet seen).
const ENOTSUPP: Errno = Errno::from_raw_os_error(524);

const MODES: [(&str, Mode); 3] =
    [("zero-copy", Mode::XdpZeroCopy), ("native copy", Mode::XdpNative), ("generic", Mode::XdpGeneric)];

pub(super) fn examine(interface: &Interface, args: &Args, notebook: &mut Notebook<'_>) -> Result<(), Error> {
    let name = interface.name.as_str();
    let ethtool = Ethtool::open(name)?;
    match Netlink::open()?.xdp(interface.index) {
        Ok(None) => {}
        Ok(Some(attached)) => occupied(name, attached, notebook),
        Err(error) => notebook.unknown("xdp program", &error),
    }
    if !interface.is_ethernet() {
        notebook.better("xdp", format!("{name} is no Ethernet: AF_XDP cannot be used"), "use --path v3");
    } else if args.probe {
        probe(interface, args, &ethtool, notebook);
    } else {
        let driver = ethtool.driver().map_or("its driver".into(), |driver| driver.name);
        declared(interface, &driver, notebook);
    }
    Ok(())
}

/// Somebody else's program is there.
fn occupied(name: &str, attached: XdpAttachment, notebook: &mut Notebook<'_>) {
    let XdpAttachment { mode, program_id } = attached;
    let program = bpf::program_info_by_id(program_id).map(|info| info.name).unwrap_or_default();
    let says = format!("program {program_id} \"{program}\" is attached to {name}: AF_XDP cannot be used");
    let fix = match holder::of_xdp_link(Path::new("/proc"), program_id) {
        Some(process) => format!("end process {process}, if nobody needs it: its bpf_link holds the program"),
        None => format!(
            "{}, if nobody needs it; where that is refused a bpf_link holds the program, and bpftool link tells whose",
            mode.detach_command(name)
        ),
    };
    notebook.better("xdp program", says, fix);
}

/// What the driver declares.
fn declared(interface: &Interface, driver: &str, notebook: &mut Notebook<'_>) {
    let probe = format!("strait doctor {} --probe tries it", interface.name);
    match xdp_abilities(interface.index) {
        Err(error) => notebook.better("xdp", format!("unknown of {driver}: {}", error.failure()), probe),
        Ok(can) if can.zero_copy => notebook.ok("xdp", format!("{driver} declares zero-copy; {probe}")),
        Ok(can) if can.native && can.redirect => {
            let says = format!("{driver} declares native XDP without zero-copy: frames are copied once");
            notebook.better(
                "xdp",
                says,
                format!("a NIC with AF_XDP zero-copy (ice, i40e, mlx5, ixgbe, igc); {probe}"),
            );
        }
        Ok(_) => {
            let says =
                format!("{driver} has no native XDP: the kernel's generic program only, no faster than v3");
            notebook.better("xdp", says, "use --path v3 here, or a NIC with native XDP");
        }
    }
}

/// Binds a socket in each mode, with a program that takes no packet.
fn probe(interface: &Interface, args: &Args, ethtool: &Ethtool, notebook: &mut Notebook<'_>) {
    let name = interface.name.as_str();
    let asked = args.queues.as_ref().and_then(|list| list.0.first().copied());
    let queue = match asked.map_or_else(|| queues::idle(interface, ethtool), Ok) {
        Ok(queue) => queue,
        Err(error) => return notebook.unknown("xdp", &error),
    };
    let nothing = Program::reject_all();
    let mut best = None;
    for (mode, path) in MODES {
        let opened = Session::builder(name)
            .path(path)
            .program(nothing.clone())
            .queues(Queues::These(vec![queue]))
            .ring(RING_BYTES)
            .promiscuous(false)
            .open();
        match opened {
            Ok(_) => {
                best = best.or(Some(path));
                notebook.ok("xdp", format!("{mode} binds to queue {queue} of {name}"));
            }
            Err(error) => {
                let fix = error.errno().map_or("", |errno| fix(path, Errno::from_raw_os_error(errno)));
                notebook.better("xdp", format!("no {mode} on queue {queue} of {name}: {error}"), fix);
            }
        }
    }
    if best.is_none() {
        notebook.broken("xdp", format!("AF_XDP was asked for and does not bind to {name}"), "use --path v3");
    }
}

/// What helps where an ability or a privilege is missing; other errors say it themselves.
fn fix(path: Mode, errno: Errno) -> &'static str {
    match (errno, path) {
        (Errno::PERM | Errno::ACCESS, _) => "the privileges above",
        (Errno::AFNOSUPPORT, _) => "Linux with CONFIG_XDP_SOCKETS",
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
    fn a_better_nic_is_advised_only_where_this_one_lacks_the_ability() {
        assert!(fix(Mode::XdpZeroCopy, Errno::OPNOTSUPP).contains("zero-copy"));
        assert!(fix(Mode::XdpNative, ENOTSUPP).contains("native XDP"));
        assert_eq!(fix(Mode::XdpNative, Errno::PERM), "the privileges above");
        assert_eq!(fix(Mode::XdpZeroCopy, Errno::BUSY), "");
    }
}
