//! Findings on an interface's driver and settings that affect captures.

use std::fs;
use std::path::Path;

use strait_capture::Wait;
use strait_os::Result;
use strait_os::ethtool::{Ethtool, Offload};
use strait_os::interface::Interface;
use strait_os::netlink::{LinkStats, Netlink};

use super::args::Args;
use super::device::Device;
use super::finding::Recorder;
use super::{capture, queues};
use crate::Error;

/// Maximum number of examined interrupts of an interface.
const INTERRUPTS_MAX: usize = 512;

pub(super) fn examine(interface: &Interface, args: &Args, recorder: &mut Recorder<'_>) -> Result<(), Error> {
    let name = interface.name.as_str();
    let ethtool = Ethtool::open(name)?;
    let driver = ethtool.driver().map_or_else(|_| String::new(), |driver| driver.name);
    state(interface, &driver, recorder);
    queues::examine(interface, args, &ethtool, recorder);
    rings(name, &ethtool, recorder);
    match Netlink::open()?.stats(interface.index) {
        Ok(stats) => drops(name, &stats, recorder),
        Err(error) => recorder.unknown("drops", &error),
    }
    offloads(interface, &ethtool, recorder);
    numa(interface, recorder);
    if let Some(directory) = interface.sysfs() {
        interrupts(&directory, recorder);
        busy_poll(&directory, args.wait, recorder);
    }
    Ok(())
}

/// `IF_OPER_UNKNOWN` (linux/if.h): the driver does not report a carrier, such as a tunnel's.
const OPER_UNKNOWN: u8 = 0;

/// Checks that the interface is up and has a carrier.
fn state(interface: &Interface, driver: &str, recorder: &mut Recorder<'_>) {
    const SUBJECT: &str = "link";
    let name = &interface.name;
    if !interface.is_up() {
        return recorder.broken(SUBJECT, format!("{name} is down"), capture::set_up(name));
    }
    if interface.is_running() || interface.operational_state == OPER_UNKNOWN {
        return recorder.ok(SUBJECT, format!("{name} is up"));
    }
    let fix = match driver {
        "bridge" => {
            format!("ip link set PORT master {name}, and ip link set PORT up, with a PORT that has a carrier")
        }
        "veth" => "ip link set PEER up, at the other end of the pair".into(),
        _ => format!("plug a cable in, or switch the other end on; ip link show {name} prints the state"),
    };
    recorder.better(SUBJECT, format!("{name} is up but has no carrier: no packet can arrive"), fix);
}

fn rings(name: &str, ethtool: &Ethtool, recorder: &mut Recorder<'_>) {
    let rings = match ethtool.rings() {
        Ok(rings) => rings,
        Err(error) if error.errno() == Some(queues::NOT_SUPPORTED) => {
            return recorder.ok("nic ring", format!("{name}'s driver has no configurable ring"));
        }
        Err(error) => return recorder.unknown("nic ring", &error),
    };
    if rings.rx_max == 0 {
        return;
    }
    let message = format!(
        "{} of {} receive descriptors, which hold packets while the CPU is busy",
        rings.rx, rings.rx_max
    );
    recorder.judge(
        rings.rx >= rings.rx_max,
        "nic ring",
        message,
        &format!("ethtool -G {name} rx {}", rings.rx_max),
    );
}

/// Checks for packets that the NIC dropped before a capture could receive them. Drops by the kernel
/// are reported without a verdict, because they include packets of unknown protocols, which
/// captures receive.
fn drops(name: &str, stats: &LinkStats, recorder: &mut Recorder<'_>) {
    let missed = stats.rx_missed_errors + stats.rx_fifo_errors;
    let message = format!(
        "since the link was created, the NIC received {} packets and missed {missed}; the kernel dropped {}, \
         including packets of unknown protocols",
        stats.rx_packets, stats.rx_dropped
    );
    let fix = format!(
        "larger rings (ethtool -G {name} rx N) or more queues; ethtool -S {name} counts drops per queue"
    );
    recorder.judge(missed == 0, "drops", message, &fix);
}

fn offloads(interface: &Interface, ethtool: &Ethtool, recorder: &mut Recorder<'_>) {
    match (merging(ethtool), ethtool.offload(Offload::Gso)) {
        (Ok(merging), Ok(gso)) => {
            merged(&interface.name, Device::of(interface, ethtool), &merging, gso, recorder);
        }
        (Err(error), _) | (_, Err(error)) => recorder.unknown("merged packets", &error),
    }
    match ethtool.flags() {
        Ok(flags) if flags.rx_vlan => {
            recorder.ok("vlan tags", "removed by the NIC; Strait restores them");
        }
        Ok(_) => {}
        Err(error) => recorder.unknown("vlan tags", &error),
    }
}

/// Reports packets that are longer here than on the wire: received packets that the offloads in
/// `merging` merge, and sent packets that the stack leaves to the device to segment (`gso`). A
/// device without a wire never segments them.
fn merged(name: &str, device: Device, merging: &[&str], gso: bool, recorder: &mut Recorder<'_>) {
    const SUBJECT: &str = "merged packets";
    let off = (!merging.is_empty()).then(|| format!("ethtool -K {name} {} off", merging.join(" off ")));
    match (device, off) {
        (Device::Loopback, _) => {
            let message = "packets can be up to 64 KiB long: senders pass them to the loopback unsegmented";
            recorder.ok(SUBJECT, message);
        }
        (Device::Veth, off) => {
            let message = format!(
                "packets can be up to 64 KiB long: senders behind {name}'s peer leave them unsegmented"
            );
            let peer = "ethtool -K PEER tso off gso off, at the peer's end, while capturing";
            recorder.better(
                SUBJECT,
                message,
                off.map_or_else(|| peer.into(), |off| format!("{off}; {peer}")),
            );
        }
        (Device::Tun | Device::Virtual, _) => {
            let message = "packets can be up to 64 KiB long: this machine, its guests or the lower device \
                           pass them on unsegmented";
            recorder.ok(SUBJECT, message);
        }
        (Device::Nic, Some(off)) => {
            let merging = merging.join(" and ");
            let message = format!("{merging} on: packet sockets receive TCP segments merged to up to 64 KiB");
            recorder.better(SUBJECT, message, format!("{off}, while capturing"));
        }
        (Device::Nic, None) => {
            let sent = if gso { "; packets sent by this machine can be up to 64 KiB long" } else { "" };
            recorder.ok(SUBJECT, format!("off: received packets are as on the wire{sent}"));
        }
    }
}

/// Returns the enabled offloads that merge packets.
fn merging(ethtool: &Ethtool) -> Result<Vec<&'static str>> {
    let offloads = [("gro", ethtool.offload(Offload::Gro)?), ("lro", ethtool.flags()?.lro)];
    Ok(offloads.into_iter().filter_map(|(offload, on)| on.then_some(offload)).collect())
}

fn numa(interface: &Interface, recorder: &mut Recorder<'_>) {
    if let Some(node) = interface.numa_node() {
        let path = format!("/sys/devices/system/node/node{node}/cpulist");
        let cpus = fs::read_to_string(path).unwrap_or_default();
        recorder.ok("numa", format!("node {node}: pin lanes to its CPUs with --cpus {}", cpus.trim()));
    }
}

/// Checks that the NIC's interrupts are spread over CPUs.
fn interrupts(directory: &Path, recorder: &mut Recorder<'_>) {
    let Ok(entries) = fs::read_dir(directory.join("device/msi_irqs")) else { return };
    let mut cpus = Vec::new();
    let mut count = 0;
    for entry in entries.flatten().take(INTERRUPTS_MAX) {
        let path = format!("/proc/irq/{}/effective_affinity_list", entry.file_name().to_string_lossy());
        if let Ok(list) = fs::read_to_string(path) {
            count += 1;
            cpus.push(list.trim().to_owned());
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    if count > 0 {
        let message = format!("{count} interrupts on CPUs {}", cpus.join(","));
        let fix = "start irqbalance, or write CPUs to /proc/irq/N/smp_affinity_list";
        recorder.judge(count == 1 || cpus.len() > 1, "interrupts", message, fix);
    }
}

/// Checks the settings for busy polling (Documentation/networking/napi.rst) against the capture's
/// wait mode. They defer interrupts, which delays a capture that sleeps until an interrupt.
fn busy_poll(directory: &Path, wait: Wait, recorder: &mut Recorder<'_>) {
    const SUBJECT: &str = "busy poll";
    let setting = |file: &str| fs::read_to_string(directory.join(file)).ok()?.trim().parse::<u64>().ok();
    let (Some(deferred), Some(flush_ns)) = (setting("napi_defer_hard_irqs"), setting("gro_flush_timeout"))
    else {
        return;
    };
    let settings = format!("napi_defer_hard_irqs {deferred}, gro_flush_timeout {flush_ns} ns");
    let set = |deferred: u64, flush_ns: u64| {
        let shown = directory.display();
        format!("echo {deferred} >{shown}/napi_defer_hard_irqs; echo {flush_ns} >{shown}/gro_flush_timeout")
    };
    if wait == Wait::Busy {
        let message = format!(
            "{settings}: --wait busy on AF_XDP needs both, so that interrupts do not disturb its polling"
        );
        recorder.judge(deferred > 0 && flush_ns > 0, SUBJECT, message, &set(2, 200_000));
    } else if flush_ns > 0 {
        let message = format!("{settings}: packets can be delayed by {flush_ns} ns, except with --wait busy");
        recorder.better(SUBJECT, message, set(0, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::Area;
    use super::super::finding::{Finding, State};
    use super::*;

    fn found(examine: impl FnOnce(&mut Recorder<'_>)) -> Vec<Finding> {
        let mut findings = Vec::new();
        examine(&mut Recorder::new(Area::Capture, &mut findings));
        findings
    }

    #[test]
    fn busy_polling_settings_are_advised_for_busy_waits_only() {
        let directory = tempfile::tempdir().unwrap();
        let polled = |deferred: &str, flush_ns: &str, wait| {
            fs::write(directory.path().join("napi_defer_hard_irqs"), deferred).unwrap();
            fs::write(directory.path().join("gro_flush_timeout"), flush_ns).unwrap();
            found(|recorder| busy_poll(directory.path(), wait, recorder))
        };
        assert!(polled("0\n", "0\n", Wait::Balanced).is_empty());
        let bare = polled("0\n", "0\n", Wait::Busy);
        assert!(bare[0].state == State::Better && bare[0].fix.as_ref().unwrap().contains("echo 200000"));
        assert_eq!(polled("2\n", "200000\n", Wait::Busy)[0].state, State::Ok);
        let late = polled("2\n", "200000\n", Wait::Latency);
        assert!(late[0].state == State::Better && late[0].fix.as_ref().unwrap().contains("echo 0 >"));
    }

    #[test]
    fn merged_packets_and_their_fixes_depend_on_the_device() {
        let merged = |device, merging: &[&str], gso| {
            found(|recorder| merged("a", device, merging, gso, recorder)).remove(0)
        };
        let lo = merged(Device::Loopback, &["gro"], true);
        assert!(lo.state == State::Ok && lo.message.contains("64 KiB") && lo.fix.is_none(), "{lo:?}");
        let veth = merged(Device::Veth, &[], true);
        assert!(
            veth.state == State::Better && veth.fix.unwrap().starts_with("ethtool -K PEER tso off gso off")
        );
        let both = merged(Device::Veth, &["gro"], true).fix.unwrap();
        assert!(both.starts_with("ethtool -K a gro off; ethtool -K PEER tso off gso off"), "{both}");
        assert!(merged(Device::Virtual, &["gro"], true).fix.is_none());
        let nic = merged(Device::Nic, &["gro", "lro"], true);
        assert_eq!(nic.fix.as_deref(), Some("ethtool -K a gro off lro off, while capturing"));
        assert!(merged(Device::Nic, &[], true).message.contains("sent by this machine"));
        assert!(merged(Device::Nic, &[], false).message.ends_with("on the wire"));
    }

    #[test]
    fn link_without_a_carrier_can_be_improved() {
        let link = |operational_state, driver: &str| {
            let interface =
                Interface { name: "a".into(), flags: 1, operational_state, ..Interface::default() };
            found(|recorder| state(&interface, driver, recorder)).remove(0)
        };
        for (driver, advice) in [("bridge", "PORT master a"), ("veth", "PEER up"), ("ice", "cable")] {
            let finding = link(2, driver);
            assert!(finding.state == State::Better && finding.fix.unwrap().contains(advice), "{driver}");
        }
        assert!(link(6, "bridge").state == State::Ok && link(OPER_UNKNOWN, "tun").state == State::Ok);
    }

    #[test]
    fn only_packets_missed_by_the_nic_call_for_larger_rings() {
        let kernels = LinkStats { rx_packets: 9, rx_dropped: 5, ..LinkStats::default() };
        let of_kernel = found(|recorder| drops("a", &kernels, recorder));
        assert!(of_kernel[0].state == State::Ok && of_kernel[0].message.contains("the kernel dropped 5"));
        let nics = LinkStats { rx_missed_errors: 1, rx_fifo_errors: 1, ..kernels };
        let of_nic = found(|recorder| drops("a", &nics, recorder));
        assert!(
            of_nic[0].state == State::Better
                && of_nic[0].message.contains("received 9 packets and missed 2;")
        );
    }
}
