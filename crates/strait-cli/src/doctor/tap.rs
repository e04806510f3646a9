//! Findings on the tap of an interface: the kernel's hooks, and the programs that are there.

use rustix::io::Errno;
use strait_capture::probe;
use strait_os::ethtool::{Ethtool, Offload};
use strait_os::interface::Interface;
use strait_os::netlink::Netlink;

use super::finding::Recorder;
use super::privilege;

const SUBJECT: &str = "tap";

pub(super) fn examine(interface: &Interface, recorder: &mut Recorder<'_>) {
    let name = &interface.name;
    match probe::tcx_programs(interface.index) {
        Ok(programs) => recorder.ok(SUBJECT, describe(name, &programs)),
        Err(error) if error.is_one_of(&[Errno::INVAL]) => {
            let message = "the kernel has no tcx: --path tap cannot be used";
            recorder.better(SUBJECT, message, "Linux 6.6 or newer, or --path v3");
        }
        Err(error) if error.is_one_of(&[Errno::PERM, Errno::ACCESS]) => {
            let message = "no privilege for BPF: --path tap cannot be used";
            recorder.better(SUBJECT, message, privilege::for_af_xdp());
        }
        Err(error) => recorder.unknown(SUBJECT, &error),
    }
    if is_bridge(name) {
        let message = format!(
            "a capture on the bridge {name} makes it promiscuous: each packet that it forwards is then also passed to the \
             host's own network stack. This costs more than a capture on its ports, even if the filter matches nothing"
        );
        let fix = "capture on the ports (bridge link), with --path tap";
        recorder.better("bridge", message, fix);
    }
    let cuts = Ethtool::open(name).and_then(|ethtool| ethtool.offload(Offload::Tso));
    if matches!(cuts, Ok(false)) {
        let message = format!(
            "{name} does not segment: the tap captures sent packets before the kernel cuts them and fills in their checksums"
        );
        recorder.ok("tap segments", message);
    }
    // The finding "xdp program" names the program.
    if Netlink::open().is_ok_and(|mut netlink| matches!(netlink.xdp(interface.index), Ok(Some(_)))) {
        let message = format!(
            "an XDP program on {name} runs before the tap: packets that it drops or redirects are captured neither by \
             the tap nor by packet sockets"
        );
        recorder.better("tap packets", message, "");
    }
}

fn is_bridge(name: &str) -> bool {
    Ethtool::open(name).and_then(|ethtool| ethtool.driver()).is_ok_and(|driver| driver.name == "bridge")
}

/// Describes the hooks. `programs` are the names of the programs there.
fn describe(name: &str, programs: &[String]) -> String {
    match programs {
        [] => format!("--path tap can be used: {name} has tcx hooks, and no other program is there"),
        programs => {
            let list = programs.join(", ");
            format!(
                "--path tap can be used: its programs run before those on the tcx hooks of {name} ({list})"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_programs_on_the_hooks_are_named() {
        assert!(describe("eth0", &[]).contains("no other program"));
        let programs = ["cil_from_netdev".to_owned(), "retina".to_owned()];
        assert!(describe("eth0", &programs).ends_with("of eth0 (cil_from_netdev, retina)"));
    }
}
