//! Which modes of AF_XDP an interface has.

use strait_capture::{Path, Queues, Session};
use strait_filter::cbpf::Program;
use strait_sys::bpf;
use strait_sys::ethtool::Ethtool;
use strait_sys::interface::Interface;
use strait_sys::netlink::{Netlink, xdp_abilities};

use super::Args;
use super::finding::Notebook;
use crate::Error;

/// Bytes of the ring of a probe: the smallest.
const RING_BYTES: usize = 256 << 10;

const MODES: [(&str, Path); 3] =
    [("zero-copy", Path::XdpZeroCopy), ("native copy", Path::XdpNative), ("generic", Path::XdpGeneric)];

pub(super) fn examine(interface: &Interface, args: &Args, notebook: &mut Notebook<'_>) -> Result<(), Error> {
    let name = interface.name.as_str();
    let driver = Ethtool::open(name)?.driver().map_or("no driver".into(), |driver| driver.name);
    if let Some(attached) = Netlink::open()?.xdp(interface.index)? {
        let program = bpf::program_info_by_id(attached.program_id).map(|info| info.name).unwrap_or_default();
        let says = format!(
            "program {} \"{program}\" is attached to {name}: AF_XDP cannot be used",
            attached.program_id
        );
        notebook.better("xdp program", says, format!("ip link set {name} xdp off, if nobody needs it"));
    }
    if !interface.is_ethernet() {
        notebook.better("xdp", format!("{name} is no Ethernet: AF_XDP cannot be used"), "use --path v3");
    } else if args.probe {
        probe(name, args, notebook);
    } else {
        declared(interface, &driver, notebook);
    }
    Ok(())
}

/// What the driver declares.
fn declared(interface: &Interface, driver: &str, notebook: &mut Notebook<'_>) {
    let probe = format!("strait doctor {} --probe tries it", interface.name);
    match xdp_abilities(interface.index) {
        Err(error) => notebook.better("xdp", format!("{driver}: {error}"), probe),
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
fn probe(name: &str, args: &Args, notebook: &mut Notebook<'_>) {
    let queue = args.queues.as_ref().and_then(|list| list.0.first().copied()).unwrap_or(0);
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
            Err(error) => notebook.better("xdp", format!("no {mode}: {error}"), fix(path)),
        }
    }
    if best.is_none() {
        notebook.broken("xdp", format!("AF_XDP was asked for and does not bind to {name}"), "use --path v3");
    }
}

fn fix(path: Path) -> &'static str {
    match path {
        Path::XdpZeroCopy => "a NIC and driver with AF_XDP zero-copy (ice, i40e, mlx5, ixgbe, igc)",
        Path::XdpNative => "a NIC and driver with native XDP; jumbo frames may be in the way",
        _ => "Linux with CONFIG_XDP_SOCKETS, and the privileges above",
    }
}
