//! `strait drops` on other kernels than this machine's: their verifiers accept the program, and
//! their packets have the members that it reads.

use lab::vm::{Kernel, Nic, vm_or_skip};
use serde_json::Value;

use super::{guest, run};

/// The generated packets are for another host. The NIC passes them on in promiscuous mode, and the
/// kernel drops them.
const SCRIPT: &str = "
up eth0 eth1
ip link set eth1 promisc on
strait drops -i eth1 --json --interval 600 -w drops.pcapng >drops.json 2>drops.err &
pid=$!
capturing $pid
strait generate --output eth0 --kind udp4 --size 128 --count 300 >sent 2>sent.err
sleep 2
kill -INT $pid
wait $pid
cat drops.json drops.err
strait capture -r drops.pcapng --json udp
";

#[test]
fn kernels_run_the_program_of_drops() {
    if !vm_or_skip() {
        return;
    }
    for kernel in [Kernel::V6_12, Kernel::V7_2] {
        let run = run(guest(kernel).wire(Nic::VirtioNet, Nic::VirtioNet), SCRIPT);
        let objects = run.output.lines().filter_map(|line| serde_json::from_str::<Value>(line.trim()).ok());
        let objects: Vec<Value> = objects.collect();
        let rows = objects.iter().filter_map(|object| object["drops"].as_array()).flatten();
        let is_udp = |row: &&Value| row["protocol"] == "IPv4 udp" && row["interface"] == "eth1";
        let rows: Vec<&Value> = rows.filter(is_udp).collect();
        let packets: u64 = rows.iter().filter_map(|row| row["packets"].as_u64()).sum();
        assert_eq!(packets, 300, "{}", run.output);
        assert!(rows.iter().all(|row| row["function"].is_string()), "{}", run.output);
        let written = objects.iter().find_map(|object| object["delivered"].as_u64());
        assert_eq!(written, Some(300), "{}", run.output);
    }
}
