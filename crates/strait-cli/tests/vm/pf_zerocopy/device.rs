//! The device: suspend, resets, a transmitter that hangs, and everything at once.

use std::time::Duration;

use lab::program_or_skip;
use lab::vm::{Kernel, Nic, Run, vm_or_skip};

use super::together::together;
use super::{kernels, ledger, line, machines, pair_with, with_c_program, with_module};
use crate::{assert_output, guest, run};

/// Time limit of a guest in the stress test.
const STRESS_LIMIT: Duration = Duration::from_mins(30);

/// Asserts that the capture `held` delivered `frames`, though the NIC was stopped and started again
/// at least `stops` times.
fn assert_continued(run: &Run, frames: u64, stops: u64) {
    let held = ledger(run, "held ");
    assert_eq!(held["delivered"], frames, "{held}");
    assert!(held["events"]["carrier_losses"].as_u64().unwrap() >= stops, "{held}");
}

/// The 82540EM has no reset of its own that the kernel can use.
pub(super) const SUSPEND: &str = "
take_for_zerocopy
up eth0 zc0
reset=/sys/bus/pci/devices/$address/reset
capture held --path zerocopy
send 100 64
until [ $(came) -ge 100 ]; do sleep 0.1; done
if [ -e $reset ]; then echo 1 >$reset; fi
up zc0
send 100 64
until [ $(came) -ge 200 ]; do sleep 0.1; done
echo devices >/sys/power/pm_test
echo freeze >/sys/power/state
up zc0 eth0
send 100 64
until [ $(came) -ge 300 ]; do sleep 0.1; done
end_capture
echo held $(cat held.json)
[ $(pinned) -eq 0 ]
unharmed
";

#[test]
fn capture_continues_after_suspend_and_reset() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    for (kernel, nic) in machines() {
        let stops = if nic == Nic::Igb { 2 } else { 1 };
        assert_continued(&together(kernel, nic, "suspend"), 300, stops);
    }
}

/// The kernel handles a fatal error of the bus by a reset of it, and the drivers start their
/// devices again.
#[test]
fn capture_continues_after_an_error_of_the_bus() {
    if !vm_or_skip() {
        return;
    }
    let script = "
take_for_zerocopy
up eth0 zc0
capture held --path zerocopy
send 100 64
until [ $(came) -ge 100 ]; do sleep 0.1; done
# Data Link Protocol Error, which is fatal.
monitor 'pcie_aer_inject_error port1 DLP'
until dmesg | grep 'device recovery'; do sleep 0.1; done
up zc0
send 100 64
until [ $(came) -ge 200 ]; do sleep 0.1; done
end_capture
echo held $(cat held.json)
[ $(pinned) -eq 0 ]
unharmed
";
    for kernel in kernels() {
        let run = run(pair_with(kernel, Nic::Igb).monitor(), script);
        assert_continued(&run, 200, 1);
        assert_output(&run, &["device recovery successful"]);
    }
}

/// The kernel does not recover a device that shares its port with one without a driver. Linux 6.12
/// does not report this to the other drivers.
#[test]
fn permanent_error_of_the_bus_ends_the_capture() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    let script = "
take_for_zerocopy
up eth0 zc0
capture failed --path zerocopy
[ $(pinned) -gt 0 ]
monitor 'pcie_aer_inject_error port1 DLP'
ends failed 'the interface was removed'
[ $(pinned) -eq 0 ]
dmesg | grep 'the bus failed for good'
# bind() fails with ENODEV, as for an interface that it cannot reach.
misuse elsewhere $(cat /sys/class/net/zc0/ifindex)
ip link set zc0 down
misuse elsewhere $(cat /sys/class/net/zc0/ifindex)
rmmod pf_zerocopy
echo 1 >/sys/bus/pci/devices/$address/remove
echo 1 >/sys/bus/pci/rescan
up eth1
take_for_zerocopy
up zc0
capture again --path zerocopy
send 100 64
until [ $(came) -ge 100 ]; do sleep 0.1; done
end_capture
cat again.json
unharmed
";
    let guest = with_c_program(pair_with(kernels()[0], Nic::Igb), "misuse");
    let run = run(guest.driverless_beside(1).monitor(), script);
    assert_output(&run, &["misuse elsewhere: done", r#""delivered":100"#]);
}

#[test]
fn unplugged_device_ends_the_capture() {
    if !vm_or_skip() {
        return;
    }
    let script = "
take_for_zerocopy
up eth0 zc0
capture unplugged --path zerocopy
monitor 'device_del nic1'
ends unplugged 'the interface was removed'
until [ ! -e /sys/bus/pci/devices/$address ]; do sleep 0.1; done
[ ! -e /sys/class/net/zc0 ]
[ $(pinned) -eq 0 ]
unharmed
";
    for kernel in kernels() {
        let _ = run(pair_with(kernel, Nic::Igb).native_hotplug().monitor(), script);
    }
}

/// With an IOMMU the NIC reaches only memory that the module has mapped for it, and its addresses
/// are not those of the memory.
#[test]
fn iommu_refuses_no_transfer() {
    if !vm_or_skip() {
        return;
    }
    let script = "
dmesg | grep 'DMAR: Intel(R) Virtualization Technology for Directed I/O'
up eth0 eth1
capture reference --path v3
send 300 64,128,594,1518
arrived 300
end_capture
take_for_zerocopy
up eth0 zc0
compare whole zerocopy
for round in 1 2 3; do
    strait generate --output eth0 --duration 600 --rate 1000 --json >sent.json 2>sent.err &
    sent=$!
    capture killed --path zerocopy
    kill -9 $captured
    wait $captured || true
    kill $sent
    wait $sent || true
done
receiver=eth0
capture came --path v3
strait generate --output zc0 --path zerocopy --count 500 --size 64,1518 --rate 2000 --json >sent.json
arrived 500
end_capture
cat came.json
if dmesg | grep -E 'DMAR:.*(fault|error)'; then exit 1; fi
unharmed
";
    for nic in [Nic::E1000, Nic::Igb] {
        let guest = with_module(guest(kernels()[0]).iommu().wire(Nic::E1000, nic), kernels()[0]);
        assert_output(&run(guest, script), &["whole: 300 frames alike", r#""delivered":500"#]);
    }
}

/// TCTL, the register that switches the transmitter, is at the same offset in both NICs.
pub(super) const HANGING: &str = "
take_for_zerocopy
up eth0 zc0
strait generate --output zc0 --path zerocopy --duration 600 --rate 100 --json >sent.json 2>sent.err &
sender=$!
until [ \"$(cat /sys/class/net/zc0/statistics/tx_packets)\" -gt 10 ]; do sleep 0.1; done
registers=$(head -1 /sys/bus/pci/devices/$address/resource | cut -d' ' -f1)
devmem $(printf 0x%x $((registers + 0x400))) 32 0
wait $sender && exit 1
cat sent.json sent.err
until dmesg | grep 'sends nothing: resetting the device'; do sleep 0.1; done
up zc0
receiver=eth0
capture after --path v3
strait generate --output zc0 --path zerocopy --count 100 --size 64 --rate 1000 --json >sent.json 2>sent.err
until [ $(came) -ge 100 ]; do sleep 0.1; done
end_capture
cat after.json
unharmed
";

#[test]
fn hanging_transmitter_is_reset() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    for (kernel, nic) in machines() {
        let run = together(kernel, nic, "hanging");
        assert_output(&run, &["Network is down", r#""delivered":100"#]);
    }
}

/// Reports what the kernel has allocated and nothing refers to, after the module was unloaded. The
/// second scan reports what was still referenced by chance in the first.
const NOTHING_LEAKED: &str = "
rmmod pf_zerocopy
mount -t debugfs debug /sys/kernel/debug
for scan in 1 2; do echo scan >/sys/kernel/debug/kmemleak; sleep 6; done
cat /sys/kernel/debug/kmemleak
[ -z \"$(cat /sys/kernel/debug/kmemleak)\" ]
unharmed
";

/// Reports how many accesses the detector of data races has watched, which is none if it is off.
const RACES_WATCHED: &str = "
mount -t debugfs debug /sys/kernel/debug
grep setup_watchpoints /sys/kernel/debug/kcsan
[ \"$(sed -n 's/setup_watchpoints: *//p' /sys/kernel/debug/kcsan)\" -gt 1000 ]
";

#[test]
fn everything_happens_at_once() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    // Seconds at least, frames and binds.
    let kernel = kernels()[0];
    let amounts = if kernel.is_checking() { "600 1000000 1000" } else { "15 1000 10" };
    let checks = match kernel {
        Kernel::Debug => NOTHING_LEAKED,
        Kernel::Kcsan => RACES_WATCHED,
        _ => "",
    };
    let sizes = "60 594 ".repeat(16);
    let script = format!(
        "
prepare_pump 4
take_for_zerocopy
up zc0
ip link set zc0 promisc on
pump $pump 1000000 256 10000 {sizes} &
sent=$!
stress zc0 4 {amounts}
kill $sent
wait $sent || true
[ $(pinned) -eq 0 ]
unharmed
{checks}"
    );
    let guest = with_c_program(with_module(guest(kernel).pump(Nic::Igb), kernel), "stress").processors(4);
    let run = run(guest.limit(STRESS_LIMIT), &script);
    println!("{}", line(&run, "stress: "));
}
