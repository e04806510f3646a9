//! AF_XDP with and without zero-copy by the driver. The scripts of a NIC share a guest.

use std::sync::LazyLock;

use lab::vm::{Kernel, Nic, Run, vm_or_skip};

use super::doctor::EXAMINE;
use super::{assert_output, at_once, guest, of, part, run};

/// Script for the capture with which others are compared.
const REFERENCE: &str = "
up eth0 eth1
capture reference --path v3
send 300 64,128,594,1518
sleep 1
end_capture
";

/// Findings of the doctor, which `doctor.rs` tests.
const FOUND: &str = "
up eth0 eth1
echo part found
examine declared eth1 --for capture
examine probed eth1 --for capture --probe
";
const REFUSED: &str = "
echo part refused
if strait capture -i eth1 --path xdp-zc --json 2>refusal.err; then exit 1; fi
cat refusal.err
";
/// igb sends from a UMEM only while an XDP program is attached. The host must still receive by that
/// queue.
const SENT: &str = "
echo part sent
receiver=eth1
capture came --path v3
strait generate --output eth0 --path xdp --count 2500 --size 64,594,1518 --rate 2000 --json 2>generate.err
sleep 1
end_capture
cat came.json generate.err
receiver=eth0 sender=eth1
strait generate --output eth0 --path xdp --duration 30 --rate 10 --json >slow.json 2>slow.err &
slow=$!
capturing $slow
capture heard --path v3
strait generate --output eth1 --count 200 --size 64,1518 --rate 2000 --json >sent.json
sleep 1
end_capture
kill -INT $slow
wait $slow
cat heard.json
";

/// NICs under test.
const NICS: [Nic; 4] = [Nic::Igb, Nic::VirtioNet, Nic::E1000, Nic::E1000e];

/// Returns the run of all scripts with `nic`. The first call runs those of all [`NICS`].
pub(super) fn scripts(nic: Nic) -> Run {
    static RUNS: LazyLock<Vec<(Nic, Run)>> = LazyLock::new(|| at_once(&NICS, run_scripts));
    of(&RUNS, &nic).clone()
}

fn run_scripts(nic: Nic) -> Run {
    let captured = if copies(nic) { "compare whole xdp\ncat whole.err\n" } else { "compare whole xdp-zc\n" };
    let refused = if copies(nic) { REFUSED } else { "" };
    let script = [EXAMINE, FOUND, refused, "echo part captured\n", REFERENCE, captured, SENT].concat();
    run(guest(Kernel::V7_2).wire(nic, nic), &script)
}

/// Returns true for a NIC without native XDP.
fn copies(nic: Nic) -> bool {
    matches!(nic, Nic::E1000 | Nic::E1000e)
}

#[test]
fn frames_are_captured_without_a_copy_if_the_driver_can() {
    if !vm_or_skip() {
        return;
    }
    for nic in [Nic::Igb, Nic::VirtioNet] {
        let wanted =
            [r#""mode":"zero-copy""#, r#""delivered":300"#, r#""copied_bytes":0"#, "300 frames alike"];
        assert_output(&part(&scripts(nic), "captured"), &wanted);
    }
}

#[test]
fn nic_without_zero_copy_refuses_it_and_falls_back() {
    if !vm_or_skip() {
        return;
    }
    for nic in [Nic::E1000, Nic::E1000e] {
        let run = scripts(nic);
        assert_output(&part(&run, "refused"), &["no zero-copy"]);
        let wanted = [r#""mode":"generic""#, r#""delivered":300"#, "300 frames alike", "no native copy"];
        assert_output(&part(&run, "captured"), &wanted);
    }
}

#[test]
fn frames_are_sent_without_a_copy_if_the_driver_can() {
    if !vm_or_skip() {
        return;
    }
    for nic in NICS {
        let run = part(&scripts(nic), "sent");
        let wanted = [r#""frames":2500"#, r#""unfinished":0"#, r#""delivered":2500"#, r#""delivered":200"#];
        assert_output(&run, &wanted);
        let copied = run.output.contains("strait: no zero-copy");
        assert_eq!(copied, copies(nic), "{nic:?}: {}", run.output);
    }
}
