//! `PF_ZEROCOPY`: the module under the program, and under programs that mean it ill.

use std::fs;
use std::path::Path;

use lab::vm::{Guest, Kernel, Nic, vm_or_skip};
use lab::{compile, program_or_skip};

use super::{assert_said, guest, run};

const KERNELS: [Kernel; 2] = [Kernel::V7_2, Kernel::V6_12];

/// `guest` with the module built for its kernel.
pub(super) fn with_module(guest: Guest, kernel: Kernel) -> Guest {
    let path = repository().join(format!("kmod/build/{}/pf_zerocopy.ko", kernel.version()));
    let module =
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}: run make -C kmod", path.display()));
    guest.file("/pf_zerocopy.ko", &module)
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Two e1000, the second to be given to the module.
fn pair(kernel: Kernel) -> Guest {
    with_module(guest(kernel).wire(Nic::E1000, Nic::E1000), kernel)
}

/// The same with the program `misuse`.
fn with_misuse(kernel: Kernel) -> Guest {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("misuse");
    let source = repository().join("crates/strait-cli/tests/vm/misuse.c");
    let header = format!("-I{}", repository().join("kmod/pf_zerocopy").display());
    compile(&source, &["-static", &header], &program);
    pair(kernel).program(&program)
}

#[test]
fn frames_come_without_a_copy_as_they_were_sent() {
    if !vm_or_skip() {
        return;
    }
    for kernel in KERNELS {
        // The stock driver's frames by v3, sent once more to the module: tags, filters and the snaplen included.
        let script = "
up eth0 eth1
capture reference --path v3
send 300 64,128,594,1518
strait generate --output eth0 --count 30 --vlan 5 --rate 2000 --json >tagged.json
sleep 1
end_capture
take_for_zerocopy
up eth0 zc0
compare whole zerocopy
compare filtered zerocopy vlan and udp
compare cut zerocopy --snaplen 60
";
        let run = run(pair(kernel), script);
        assert_said(
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

#[test]
fn frames_go_out_without_a_copy() {
    if !vm_or_skip() {
        return;
    }
    // More than twice round the ring.
    let script = "
take_for_zerocopy
up eth0 zc0
receiver=eth0
capture came --path v3
strait generate --output zc0 --path zerocopy --count 2500 --size 64,594,1518 --rate 5000 --json
sleep 1
end_capture
cat came.json
";
    for kernel in KERNELS {
        let run = run(pair(kernel), script);
        assert_said(&run, &[r#""frames":2500"#, r#""unfinished":0"#, r#""delivered":2500"#]);
    }
}

#[test]
fn a_capture_that_is_killed_leaves_no_page_pinned() {
    if !vm_or_skip() {
        return;
    }
    let script = "
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
capture next --path zerocopy
send 100 64
sleep 1
end_capture
cat next.json
";
    for kernel in KERNELS {
        assert_said(&run(pair(kernel), script), &["no page is pinned", r#""delivered":100"#]);
    }
}

#[test]
fn an_interface_that_goes_ends_the_capture_and_says_so() {
    if !vm_or_skip() {
        return;
    }
    let script = "
ends() {
    what=$1
    if wait $captured; then echo \"$what: it did not fail\"; return 1; fi
    echo \"$what: $(cat $what.err)\"
}
take_for_zerocopy
up eth0 zc0
capture down --path zerocopy
ip link set zc0 down
ends down
up zc0
capture second --path zerocopy
strait capture -i zc0 --path zerocopy --json 2>other.err && exit 1
cat other.err
end_capture
capture unplugged --path zerocopy
echo $address >/sys/bus/pci/drivers/pf_zerocopy/unbind
ends unplugged
echo $address >/sys/bus/pci/drivers/pf_zerocopy/bind
up zc0
capture again --path zerocopy
send 10 64
sleep 1
end_capture
cat again.json
rmmod pf_zerocopy
strait capture -i eth0 --path zerocopy --json 2>unloaded.err && exit 1
cat unloaded.err
";
    for kernel in KERNELS {
        let run = run(pair(kernel), script);
        assert_said(
            &run,
            &[
                "bring it up: ip link set zc0 up",
                "one socket at a time",
                "unplugged: strait: ",
                r#""delivered":10"#,
                "load the module",
            ],
        );
    }
}

#[test]
fn misuse_is_refused_and_harms_nobody_else() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    // A kernel that oopses ends the guest (panic_on_oops); one that warns says so in its log.
    let script = "
take_for_zerocopy
up eth0 zc0
index=$(cat /sys/class/net/zc0/ifindex)
misuse rules $index
ip link set zc0 promisc on
strait generate --output eth0 --duration 600 --rate 5000 --json >sent.json &
sent=$!
misuse after $index
for seed in 1 2 3 4; do misuse fuzz $index $seed 3000; done
kill -INT $sent
wait $sent
dmesg | grep -E 'WARNING|BUG|Oops|Bad page|stack trace' && exit 1
capture next --path zerocopy
send 100 64
sleep 1
end_capture
cat next.json
echo pinned $(pinned)
";
    for kernel in KERNELS {
        let run = run(with_misuse(kernel), script);
        assert_said(&run, &["misuse rules: done", "misuse after: done", r#""delivered":100"#, "pinned 0"]);
    }
}
