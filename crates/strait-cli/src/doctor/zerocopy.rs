//! Finding on PF_ZEROCOPY: its module, its protocol family, and a NIC that the module drives.
//!
//! The findings for captures call it. It opens and closes a socket of the family, and touches no
//! NIC.

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use strait_capture::probe;
use strait_os::ethtool::{Driver, Ethtool};
use strait_os::interface::Interface;
use strait_os::{Error, Result};

use super::finding::Recorder;
use crate::capture::interfaces::default_route;

const SUBJECT: &str = "pf_zerocopy";
/// Name of the module, and of its PCI driver (`kmod/pf_zerocopy/device.c`).
const MODULE: &str = "pf_zerocopy";
/// Directory of the loaded modules.
const MODULES: &str = "/sys/module";
/// PCI vendor and device of the NICs that the module drives.
const NICS: [[&str; 2]; 2] = [["0x8086", "0x100e"], ["0x8086", "0x10c9"]];
const NIC_NAMES: &str = "Intel 82540EM and 82576";
const LOAD: &str = "modprobe pf_zerocopy (the package strait-pf-zerocopy-dkms has it)";

/// Relation of a NIC to the module.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Nic {
    /// No interface was named, or the module cannot drive it.
    Other,
    /// The module could drive it, but this driver does.
    Able(Driver),
    /// The module could drive it, but the host's default route leads by it.
    Needed,
    /// The module drives it.
    Taken,
}

impl Nic {
    fn of(interface: &Interface) -> Self {
        let driver = Ethtool::open(&interface.name).and_then(|ethtool| ethtool.driver());
        let Ok(driver) = driver else { return Self::Other };
        match interface.sysfs().map(|directory| ids(&directory.join("device"))) {
            _ if driver.name == MODULE => Self::Taken,
            Some(ids) if !NICS.iter().any(|nic| ids == *nic) => Self::Other,
            Some(_) if default_route() == Some(interface.index) => Self::Needed,
            Some(_) => Self::Able(driver),
            _ => Self::Other,
        }
    }
}

/// Returns the PCI vendor and device.
fn ids(directory: &Path) -> [String; 2] {
    ["vendor", "device"].map(|file| {
        let text = fs::read_to_string(directory.join(file)).unwrap_or_default();
        text.trim().to_owned()
    })
}

pub(super) fn examine(interface: Option<&Interface>, recorder: &mut Recorder<'_>) {
    let name = interface.map_or("this machine", |interface| &interface.name);
    let nic = interface.map_or(Nic::Other, Nic::of);
    let family = probe::zerocopy_socket(name);
    judge(name, &nic, family, Path::new(MODULES).join(MODULE).is_dir(), recorder);
}

fn judge(name: &str, nic: &Nic, family: Result<()>, is_loaded: bool, recorder: &mut Recorder<'_>) {
    let none = |error: &Error| error.errno() == Some(Errno::AFNOSUPPORT.raw_os_error());
    match (family, nic) {
        (Err(error), _) if !none(&error) => recorder.unknown(SUBJECT, &error),
        (_, Nic::Needed) => {
            let message = format!(
                "its module could drive {name}, but the host would lose it, and the default route with it"
            );
            recorder.ok(SUBJECT, message);
        }
        (Err(_), _) if is_loaded => {
            recorder.better(
                SUBJECT,
                "its module is loaded, but the family is missing",
                "dmesg shows the reason",
            );
        }
        (Err(_), Nic::Able(driver)) => {
            let message = format!(
                "its module is not loaded: {name} cannot be captured by --path zerocopy. The host loses \
                 {name} while it is bound to the module"
            );
            recorder.better(SUBJECT, message, format!("{LOAD}; then {}", bind_command(driver)));
        }
        (Err(_), _) => {
            recorder.ok(SUBJECT, format!("its module is not loaded; it drives only the NICs {NIC_NAMES}"));
        }
        (Ok(()), Nic::Taken) => {
            let message =
                format!("its module drives {name}: --path zerocopy captures and sends without a copy");
            recorder.ok(SUBJECT, message);
        }
        (Ok(()), Nic::Able(driver)) => {
            let message = format!(
                "its module is loaded, and {name} is driven by {}. The host loses {name} while it is bound to \
                 the module",
                driver.name
            );
            recorder.better(SUBJECT, message, bind_command(driver));
        }
        (Ok(()), Nic::Other) => {
            recorder.ok(SUBJECT, format!("its module is loaded; it drives only the NICs {NIC_NAMES}"));
        }
    }
}

/// Returns the command that moves a NIC from `driver` to the module.
fn bind_command(driver: &Driver) -> String {
    let Driver { name, bus, .. } = driver;
    format!(
        "echo {bus} >/sys/bus/pci/drivers/{name}/unbind; echo {MODULE} >/sys/bus/pci/devices/{bus}/driver_override; \
         echo {bus} >/sys/bus/pci/drivers_probe"
    )
}

#[cfg(test)]
mod tests {
    use super::super::args::Area;
    use super::super::finding::{Finding, State};
    use super::*;

    fn judged(nic: &Nic, errno: Option<Errno>, is_loaded: bool) -> Finding {
        let family = errno.map_or(Ok(()), |errno| Err(Error::os("open", "a", errno.raw_os_error())));
        let mut findings = Vec::new();
        judge("a", nic, family, is_loaded, &mut Recorder::new(Area::Capture, &mut findings));
        findings.remove(0)
    }

    #[test]
    fn command_is_given_for_a_nic_that_the_module_could_drive() {
        let driver = Driver { name: "e1000".into(), bus: "0000:00:11.0".into(), ..Driver::default() };
        let able = Nic::Able(driver);
        let absent = judged(&able, Some(Errno::AFNOSUPPORT), false);
        assert!(absent.state == State::Better && absent.fix.unwrap().starts_with("modprobe pf_zerocopy"));
        let other = judged(&able, None, true);
        assert!(
            other.message.contains("driven by e1000") && other.fix.unwrap().starts_with("echo 0000:00:11.0")
        );
        for (nic, errno, is_loaded) in [
            (Nic::Taken, None, true),
            (Nic::Needed, None, true),
            (Nic::Needed, Some(Errno::AFNOSUPPORT), false),
            (Nic::Other, None, true),
            (Nic::Other, Some(Errno::AFNOSUPPORT), false),
        ] {
            let finding = judged(&nic, errno, is_loaded);
            assert!(finding.state == State::Ok && finding.fix.is_none(), "{finding:?}");
        }
    }

    #[test]
    fn missing_family_and_refused_socket_are_distinguished() {
        assert!(judged(&Nic::Other, Some(Errno::PERM), true).message.starts_with("unknown: open a"));
        assert!(
            judged(&Nic::Other, Some(Errno::AFNOSUPPORT), true).message.contains("the family is missing")
        );
    }
}
