//! AF_XDP where the driver has zero-copy, and where it has none.

use lab::vm::{Kernel, Nic, vm_or_skip};

use super::{assert_said, guest, run};

/// What captures are compared with.
const REFERENCE: &str = "
up eth0 eth1
capture reference --path v3
send 300 64,128,594,1518
sleep 1
end_capture
";

/// Frames of every length come without a copy, as v3 sees them.
fn captures_without_a_copy(nic: Nic) {
    if !vm_or_skip() {
        return;
    }
    let run = run(guest(Kernel::V7_2).wire(nic, nic), &format!("{REFERENCE}\ncompare whole xdp-zc"));
    let wanted = [r#""mode":"zero-copy""#, r#""delivered":300"#, r#""copied_bytes":0"#, "300 frames alike"];
    assert_said(&run, &wanted);
}

#[test]
fn igb_captures_without_a_copy() {
    captures_without_a_copy(Nic::Igb);
}

#[test]
fn virtio_net_captures_without_a_copy() {
    captures_without_a_copy(Nic::VirtioNet);
}

#[test]
fn a_nic_without_zero_copy_refuses_it_and_falls_back() {
    if !vm_or_skip() {
        return;
    }
    for nic in [Nic::E1000, Nic::E1000e] {
        let insists = "
up eth0 eth1
if strait capture -i eth1 --path xdp-zc --json 2>refusal.err; then exit 1; fi
cat refusal.err
";
        let script = format!("{insists}\n{REFERENCE}\ncompare whole xdp\ncat whole.err\n");
        let run = run(guest(Kernel::V7_2).wire(nic, nic), &script);
        let wanted = [
            r#""mode":"generic""#,
            r#""delivered":300"#,
            "300 frames alike",
            "no zero-copy",
            "no native copy",
        ];
        assert_said(&run, &wanted);
    }
}
