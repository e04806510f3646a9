//! `PF_ZEROCOPY`: the kernel module under `strait`, and under malicious programs.

mod access;
mod device;
mod interrupts;
mod queues;
mod together;

use std::env;
use std::fs;
use std::path::Path;

use lab::vm::{Guest, Kernel, Nic, Run, vm_or_skip};
use lab::{compile, program_or_skip};
use serde_json::{Value, json};

use self::together::together;
use super::{assert_output, guest, run};

/// Returns the kernels under test.
fn kernels() -> Vec<Kernel> {
    checking_kernel().map_or(vec![Kernel::V7_2, Kernel::V6_12], |kernel| vec![kernel])
}

/// Returns the checking kernel that the tests run on, as in `make test-vm-debug`.
fn checking_kernel() -> Option<Kernel> {
    let name = env::var("STRAIT_VM_KERNEL").ok()?;
    let known = [Kernel::Debug, Kernel::Kcsan].into_iter().find(|kernel| kernel.version() == name);
    Some(known.unwrap_or_else(|| panic!("STRAIT_VM_KERNEL={name}: give debug or kcsan")))
}

/// Adds the module for the guest's kernel.
pub(super) fn with_module(guest: Guest, kernel: Kernel) -> Guest {
    let path = repository().join(format!("kmod/build/{}/pf_zerocopy.ko", kernel.version()));
    let module =
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}: run make -C kmod", path.display()));
    guest.file("/pf_zerocopy.ko", &module)
}

pub(super) fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns kernels and NICs for tests of functions that each NIC has in its own way.
fn machines() -> Vec<(Kernel, Nic)> {
    if let Some(kernel) = checking_kernel() {
        return vec![(kernel, Nic::E1000), (kernel, Nic::Igb)];
    }
    vec![(Kernel::V7_2, Nic::E1000), (Kernel::V6_12, Nic::E1000), (Kernel::V7_2, Nic::Igb)]
}

/// Returns a guest with two e1000, of which scripts bind the second to the module.
fn pair(kernel: Kernel) -> Guest {
    pair_with(kernel, Nic::E1000)
}

/// Returns a guest with an e1000 and `nic`, which scripts bind to the module.
fn pair_with(kernel: Kernel, nic: Nic) -> Guest {
    let guest = guest(kernel).wire(Nic::E1000, nic);
    // Errors that only several processors show are what a checking kernel is for.
    let guest = if kernel.is_checking() { guest.processors(4) } else { guest };
    with_module(guest, kernel)
}

/// Returns [`pair`] with the program `misuse`.
pub(super) fn with_misuse(kernel: Kernel) -> Guest {
    with_c_program(pair(kernel), "misuse")
}

/// Adds the program `name`, compiled from the source beside this file.
fn with_c_program(guest: Guest, name: &str) -> Guest {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    let source = repository().join(format!("crates/strait-cli/tests/vm/{name}.c"));
    let header = format!("-I{}", repository().join("kmod/pf_zerocopy").display());
    compile(&source, &["-static", "-pthread", &header], &program);
    guest.program(&program)
}

/// The frames captured by v3 with the stock driver are sent again and captured by the module, with
/// VLAN tags, filters and a snaplen.
const UNCHANGED: &str = "
up eth0 eth1
capture reference --path v3
send 300 64,128,594,1518
strait generate --output eth0 --count 30 --vlan 5 --rate 2000 --json >tagged.json
arrived 330
end_capture
take_for_zerocopy
up eth0 zc0
compare whole zerocopy
compare filtered zerocopy vlan and udp
compare cut zerocopy --snaplen 60
";

#[test]
fn frames_are_captured_unchanged_without_a_copy() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    for (kernel, nic) in machines() {
        let run = together(kernel, nic, "unchanged");
        assert_output(
            &run,
            &[
                r#""path":"zerocopy","mode":"zero-copy""#,
                r#""delivered":330"#,
                r#""copied_bytes":0"#,
                "whole: 330 frames alike",
                "filtered: 30 frames alike",
                "cut: 330 frames alike",
            ],
        );
    }
}

/// Frames with a VLAN tag too: packet sockets have it beside the frame.
#[test]
fn filters_match_as_on_packet_sockets() {
    /// Number of the 120 frames that each filter accepts.
    const FRAMES: [u32; 15] = [80, 0, 80, 80, 60, 60, 40, 0, 80, 40, 0, 40, 120, 40, 80];
    if !vm_or_skip() {
        return;
    }
    let script = "
up eth0 eth1
capture reference --path v3
strait generate --output eth0 --count 60 --kind udp4,tcp4,udp6 --size 64,128,594 --rate 2000 --json >sent.json
strait generate --output eth0 --count 60 --kind udp4,tcp4,udp6 --size 64,128,594 --vlan 5 --rate 2000 --json >sent.json
arrived 120
end_capture
filters='udp/not (tcp or udp)/less 124/ether[14:2] = 0x4500/vlan 5/not vlan/ip[2:2] > 100/ether proto 0x8100'
# These decide by the EtherType alone; the last one only about IPv6.
filters=\"$filters/ip/not ip/arp/ether[12:2] >= 0x86dd/ether[12:2] > 0x7ff/ether[12:2] & 0x8000 != 0/ip6 or udp\"
words=$IFS
# all PATH: captures the frames with each filter by PATH.
all() {
    IFS=/
    number=0
    for filter in $filters; do
        number=$((number + 1))
        IFS=$words
        capture $1.$number --path $1 \"$filter\"
        strait replay reference.pcap --output eth0 --rate 2000 --json >sent.json
        arrived 120
        end_capture
        strait capture -r $1.$number.pcap 2>read.err | cut -d' ' -f2- | sort >$1.$number.text
    done
}
all v3
take_for_zerocopy
up eth0 zc0
all zerocopy
for filter in $(seq $number); do
    cmp v3.$filter.text zerocopy.$filter.text
    echo filter $filter: $(wc -l <v3.$filter.text) frames alike
done
";
    let run = run(pair_with(kernels()[0], Nic::Igb), script);
    for (filter, frames) in FRAMES.into_iter().enumerate() {
        assert_output(&run, &[&format!("filter {}: {frames} frames alike", filter + 1)]);
    }
}

/// More frames than twice the slots of the ring. They fit in the receiver's rings.
const SENT: &str = "
take_for_zerocopy
ethtool -G eth0 rx 4096
up eth0 zc0
receiver=eth0
capture came --path v3
before=$(came)
strait generate --output zc0 --path zerocopy --count 2500 --size 64,594,1518 --rate 5000 --json
until [ $(came) -ge $((before + 2500)) ]; do sleep 0.1; done
end_capture
cat came.json
";

#[test]
fn frames_are_sent_without_a_copy() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    for (kernel, nic) in machines() {
        let run = together(kernel, nic, "sent");
        assert_output(&run, &[r#""frames":2500"#, r#""unfinished":0"#, r#""delivered":2500"#]);
    }
}

const KILLED: &str = "
take_for_zerocopy
up eth0 zc0
before=$(pinned)
for round in 1 2 3; do
    capture killed --path zerocopy
    [ $(pinned) -gt $before ]
    strait generate --output eth0 --duration 1 --rate 5000 --json >sent.json &
    sent=$!
    sleep 0.3
    kill -9 $captured
    wait $captured || true
    [ $(pinned) -eq $before ]
    wait $sent
done
echo 'no page is pinned'
read_kept
capture next --path zerocopy
send 100 64
arrived 100
end_capture
cat next.json
";

#[test]
fn killed_capture_leaves_no_page_pinned() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    for (kernel, nic) in machines() {
        assert_output(&together(kernel, nic, "killed"), &["no page is pinned", r#""delivered":100"#]);
    }
}

const REMOVED: &str = "
take_for_zerocopy
up eth0 zc0
capture second --path zerocopy
strait capture -i zc0 --path zerocopy --json 2>other.err && exit 1
cat other.err
end_capture
capture unplugged --path zerocopy
echo $address >/sys/bus/pci/drivers/pf_zerocopy/unbind
ends unplugged 'the interface was removed'
echo $address >/sys/bus/pci/drivers/pf_zerocopy/bind
up zc0
capture again --path zerocopy
send 10 64
arrived 10
end_capture
cat again.json
rmmod pf_zerocopy
strait capture -i eth0 --path zerocopy --json 2>unloaded.err && exit 1
cat unloaded.err
";

#[test]
fn removed_interface_ends_the_capture_with_an_error() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    for (kernel, nic) in machines() {
        let run = together(kernel, nic, "removed");
        assert_output(&run, &["one socket at a time", r#""delivered":10"#, "load the module"]);
    }
}

/// Returns the rest of the output line that begins with `word`.
fn line<'a>(run: &'a Run, word: &str) -> &'a str {
    let found = run.output.lines().find_map(|line| line.strip_prefix(word));
    found.unwrap_or_else(|| panic!("missing: {word}\n{}", run.output))
}

/// Returns the ledger in the output line that begins with `word`, and asserts that it balances.
fn ledger(run: &Run, word: &str) -> Value {
    let ledger: Value = serde_json::from_str(line(run, word)).unwrap();
    let count = |value: &Value| value.as_u64().unwrap();
    let lost: u64 = ledger["lost"].as_object().unwrap().values().map(count).sum();
    let accounted = count(&ledger["delivered"]) + count(&ledger["filtered"]) + lost;
    assert_eq!(count(&ledger["received"]), accounted, "{ledger}");
    ledger
}

const LINK_DOWN: &str = "
take_for_zerocopy
up eth0 zc0
before=$(pinned)
capture flapped --path zerocopy
send 100 64
until [ $(came) -ge 100 ]; do sleep 0.1; done
ip link set zc0 down
says flapped 'zc0 is down'
[ $(pinned) -gt $before ]
up zc0
says flapped 'zc0 is up again'
sleep 2
send 150 64
until [ $(came) -ge 250 ]; do sleep 0.1; done
end_capture
echo flapped $(cat flapped.json)
echo read $(strait capture -r flapped.pcap 2>read.err | wc -l)
[ $(pinned) -eq $before ]

capture gone --path zerocopy
ip link set zc0 down
says gone 'zc0 is down'
echo $address >/sys/bus/pci/drivers/pf_zerocopy/unbind
ends gone 'the interface was removed'
[ $(pinned) -eq $before ]
unharmed
";

#[test]
fn capture_continues_after_a_link_down() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    for (kernel, nic) in machines() {
        let run = together(kernel, nic, "link down");
        let flapped = ledger(&run, "flapped ");
        let events = &flapped["events"];
        assert_eq!((&flapped["received"], &flapped["delivered"]), (&json!(250), &json!(250)), "{flapped}");
        assert_eq!(line(&run, "read "), "250");
        assert_eq!((&events["link_downs"], &events["carrier_losses"]), (&json!(1), &json!(0)), "{flapped}");
        assert!(flapped["link_down_seconds"].as_f64().unwrap() > 0.0, "{flapped}");
    }
}

/// The ring wraps around more than once between two flaps.
const FLAPS: &str = "
take_for_zerocopy
up eth0 zc0
before=$(pinned)
capture busy --path zerocopy --ring-mib 1
start=$(came)
strait generate --output eth0 --duration 600 --rate 2000 --json >sent.json &
sent=$!
for flap in 1 2 3 4 5; do
    ip link set zc0 down
    up zc0
    now=$(came)
    until [ $(came) -gt $((now + 600)) ]; do sleep 0.1; done
done
kill -INT $sent
wait $sent
sleep 1
end_capture
echo busy $(cat busy.json)
echo came $(($(came) - start))
[ $(pinned) -eq $before ]
unharmed
";

#[test]
fn flaps_under_traffic_lose_no_count_and_no_page() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    for (kernel, nic) in machines() {
        let run = together(kernel, nic, "flaps");
        let busy = ledger(&run, "busy ");
        assert_eq!(busy["events"]["link_downs"], 5, "{busy}");
        let lost = busy["lost"]["ring_full"].as_u64().unwrap() + busy["lost"]["other"].as_u64().unwrap();
        let received = busy["received"].as_u64().unwrap() - lost;
        assert_eq!(
            line(&run, "came "),
            received.to_string(),
            "the counter of the interface equals the socket's: {busy}"
        );
    }
}

/// On several processors, so that frames arrive while the receiver decides whether to sleep.
#[test]
fn receiver_waits_for_as_many_frames_as_it_requests() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    let script = "
take_for_zerocopy
up eth0 zc0
low_water zc0 eth0 1000 >low_water.out 2>&1 &
receiving=$!
until grep -q 'three wake no one' low_water.out; do
    kill -0 $receiving || { cat low_water.out; exit 1; }
    sleep 0.1
done
ip link set zc0 down
wait $receiving || { cat low_water.out; exit 1; }
cat low_water.out
unharmed
";
    for (kernel, nic) in machines() {
        let guest = with_c_program(pair_with(kernel, nic), "low_water").processors(4);
        let wanted = ["low_water: edges are seen", "low_water: three are received at the end"];
        assert_output(&run(guest, script), &wanted);
    }
}

#[test]
fn misuse_is_refused_and_affects_no_other_program() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    let script = "
prepare_pump 4
take_for_zerocopy
up zc0
index=$(cat /sys/class/net/zc0/ifindex)
misuse rules $index
ip link set zc0 promisc on
# Of 16 flows, for both queues of an igb.
pump $pump 1000000 10 5000 $(yes 60 | head -n 8) $(yes 594 | head -n 8) &
sent=$!
misuse after $index
for seed in 1 2 3 4; do misuse fuzz $index $seed 3000; done
kill $sent
wait $sent || true
unharmed
read_kept
# Of a size of their own, as QEMU may still have other frames for the NIC.
capture next --path zerocopy 'len = 300'
# Five frames in each of 20 bursts.
pump $pump 12 5 1000 300
sleep 1
end_capture
cat next.json
echo pinned $(pinned)
";
    for (kernel, nic) in machines() {
        // A queue is not enough to see what two of them do to each other.
        let processors = if kernel.is_checking() { 4 } else { 2 };
        let guest =
            with_c_program(with_module(guest(kernel).pump(nic), kernel), "misuse").processors(processors);
        let run = run(guest, script);
        assert_output(&run, &["misuse rules: done", "misuse after: done", r#""delivered":100"#, "pinned 0"]);
    }
}

#[test]
fn no_system_call_reads_bytes_from_a_socket() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    let script = "
take_for_zerocopy
up eth0 zc0
ip link set zc0 promisc on
strait generate --output eth0 --duration 600 --rate 1000 --json >sent.json &
sent=$!
byte_calls $(cat /sys/class/net/zc0/ifindex)
kill -INT $sent
wait $sent
unharmed
echo pinned $(pinned)
";
    for kernel in kernels() {
        // Pages are not zeroed on allocation, so that a leak would show their old content.
        let guest = with_c_program(pair(kernel), "byte_calls").kernel_argument("init_on_alloc=0");
        assert_output(&run(guest, script), &["byte_calls: all refused or without a byte", "pinned 0"]);
    }
}

#[test]
fn kernel_with_bounce_buffers_is_refused() {
    if !vm_or_skip() {
        return;
    }
    let script = "
take_for_zerocopy
up eth0 zc0
refused strait capture -i zc0 --path zerocopy
refused strait generate --output zc0 --path zerocopy --count 1
refused strait capture -i eth0 --path zerocopy
echo pinned $(pinned)
unharmed
";
    for kernel in kernels() {
        let run = run(pair(kernel).kernel_argument("swiotlb=force"), script);
        let wanted = ["goes through bounce buffers", "the driver e1000 has the interface", "pinned 0"];
        assert_output(&run, &wanted);
    }
}

/// The 512 slots fill while the receiver is stopped, and once more after it continues. The other
/// frames are lost.
const NO_SLOT: &str = "
take_for_zerocopy
up eth0 zc0
capture slow --path zerocopy --ring-mib 1
kill -STOP $captured
send 1500 64
kill -CONT $captured
sleep 1
end_capture
echo missed $(cat /sys/class/net/zc0/statistics/rx_missed_errors)
echo ledger $(cat slow.json)
";

#[test]
fn frames_without_a_slot_are_counted_and_the_ledger_balances() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    for kernel in kernels() {
        let run = together(kernel, Nic::E1000, "no slot");
        let ledger = ledger(&run, "ledger ");
        let count = |name: &str| ledger[name].as_u64().unwrap();
        let lost = ledger["lost"]["ring_full"].as_u64().unwrap();
        assert!(lost > 0, "{ledger}");
        assert_eq!((count("received"), count("delivered") + lost), (1500, 1500), "{ledger}");
        assert_eq!(
            line(&run, "missed "),
            lost.to_string(),
            "the counter of the interface equals the socket's"
        );
    }
}
