//! AF_XDP with and without zero-copy by the driver.

use lab::vm::{Kernel, Nic, vm_or_skip};

use super::{assert_output, guest, run};

/// Script for the capture with which others are compared.
const REFERENCE: &str = "
up eth0 eth1
capture reference --path v3
send 300 64,128,594,1518
sleep 1
end_capture
";

/// Asserts that frames of every length are captured without a copy and equal those of v3.
fn captures_without_a_copy(nic: Nic) {
    if !vm_or_skip() {
        return;
    }
    let run = run(guest(Kernel::V7_2).wire(nic, nic), &format!("{REFERENCE}\ncompare whole xdp-zc"));
    let wanted = [r#""mode":"zero-copy""#, r#""delivered":300"#, r#""copied_bytes":0"#, "300 frames alike"];
    assert_output(&run, &wanted);
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
fn nic_without_zero_copy_refuses_it_and_falls_back() {
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
        assert_output(&run, &wanted);
    }
}

#[test]
fn frames_are_sent_without_a_copy_if_the_driver_can() {
    if !vm_or_skip() {
        return;
    }
    // igb sends from a UMEM only while an XDP program is attached. The host must still receive by
    // that queue.
    let script = "
up eth0 eth1
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
    for (nic, copies) in [(Nic::Igb, false), (Nic::VirtioNet, false), (Nic::E1000, true)] {
        let run = run(guest(Kernel::V7_2).wire(nic, nic), script);
        let wanted = [r#""frames":2500"#, r#""unfinished":0"#, r#""delivered":2500"#, r#""delivered":200"#];
        assert_output(&run, &wanted);
        assert_eq!(run.output.contains("strait: no zero-copy"), copies, "{nic:?}: {}", run.output);
    }
}
