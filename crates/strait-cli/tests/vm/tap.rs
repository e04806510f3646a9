//! The tap on other kernels than this machine's, and on eight processors.

use lab::vm::{Kernel, Nic, vm_or_skip};

use super::{assert_output, guest, run};

/// Frames of a capture that is compared.
const SCRIPT: &str = "
up eth0 eth1
capture reference --path v3
send 300 64,128,594,1518
sleep 1
end_capture
compare whole tap
compare flows tap 'udp and (portrange 1024-40000 or net 198.18.0.0/16) and not tcp'
compare cut tap -s 96 'ip[6:2] & 0x1fff = 0 and len > 100'
compare tags tap 'not vlan or ip6 proto 17'
capture lanes --path tap --queues 0-1 -s 200 'greater 500'
send 300 64,128,594,1518
sleep 1
end_capture
cat lanes.json *.err
strait doctor eth1 | grep tcx
";

#[test]
fn kernels_run_every_program_of_the_tap() {
    if !vm_or_skip() {
        return;
    }
    for kernel in [Kernel::V6_12, Kernel::V7_2] {
        let script = format!("{SCRIPT}\nunharmed\n");
        let run = run(guest(kernel).wire(Nic::VirtioNet, Nic::VirtioNet), &script);
        let wanted = [
            r#""path":"tap""#,
            "whole: 300 frames alike",
            "cut: 225 frames alike",
            "tags: 300 frames alike",
            r#""delivered":150"#,
            "--path tap can be used",
        ];
        assert_output(&run, &wanted);
        // A filter that the verifier refused would run in the process, with a note.
        assert!(!run.output.contains("in this process"), "{}", run.output);
    }
}

/// Frames of one NIC are received on all processors (RPS), by flow. The capture has all of them,
/// and those of a flow in their order.
#[test]
fn frames_of_eight_processors_are_captured_in_the_order_of_each_flow() {
    if !vm_or_skip() {
        return;
    }
    let script = r#"
up eth0 eth1
echo ff >/sys/class/net/eth1/queues/rx-0/rps_cpus
capture all --path tap
strait generate --output eth0 --count 4000 --flows 256 --size 64,1518 --rate 2000 --json >sent.json 2>sent.err
sleep 2
end_capture
cat all.json
echo "processors: $(awk '$1 != "00000000"' /proc/net/softnet_stat | wc -l)"
strait capture -r all.pcap -x 2>read.err >text
awk '
/ > / { flow = $3 $4 $5; frames++ }
/0x0020:/ { now = "x" $3 $4; if (now <= last[flow]) bad++; last[flow] = now }
END { for (flow in last) flows++; print frames " frames, " flows " flows, " bad + 0 " out of order" }' text
unharmed
"#;
    let guest = guest(Kernel::V7_2).processors(8).wire(Nic::VirtioNet, Nic::VirtioNet);
    let run = run(guest, script);
    let wanted = [r#""delivered":4000"#, "4000 frames, 256 flows, 0 out of order", "processors: 8"];
    assert_output(&run, &wanted);
}
