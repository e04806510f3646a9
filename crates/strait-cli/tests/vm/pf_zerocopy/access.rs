//! Access to an interface: from other network namespaces, and without privileges.

use lab::program_or_skip;
use lab::vm::{Nic, vm_or_skip};

use super::kernels;
use super::together::together;
use crate::assert_output;

pub(super) const NAMESPACES: &str = "
# inside COMMAND...: runs it in another namespace, which a sleeping process holds.
inside() { nsenter -t $other -n \"$@\"; }
capture_inside() {
    inside ip link set zc0 up
    nsenter -t $other -n strait capture -i zc0 --path zerocopy --json >$1.json 2>$1.err &
    captured=$!
    until inside ip link show zc0 | grep -q LOWER_UP && [ $(pinned) -gt 0 ]; do sleep 0.1; done
    sleep 2
}
take_for_zerocopy
up eth0 zc0
unshare -n sleep 1000 &
other=$!
until [ \"$(readlink /proc/$other/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do sleep 0.1; done
capture taken --path zerocopy
ip link set zc0 netns $other
ends taken 'the interface was removed'
[ $(pinned) -eq 0 ]

capture_inside there
misuse elsewhere $(inside ip link show zc0 | sed 's/:.*//;q')
strait capture -i zc0 --path zerocopy --json 2>outside.err && exit 1
cat outside.err
send 100 64
sleep 1
end_capture
cat there.json
capture_inside back
inside ip link set zc0 netns 1
ends back 'the interface was removed'
[ $(pinned) -eq 0 ]

# A capture holds its namespace. When it is killed the namespace is removed, and the interface returns.
ip link set zc0 netns $other
capture_inside last
kill $other
wait $other || true
send 100 64
kill -0 $captured
[ ! -e /sys/class/net/zc0 ]
kill -9 $captured
wait $captured || true
until [ -e /sys/class/net/zc0 ]; do sleep 0.1; done
[ $(pinned) -eq 0 ]
up zc0
capture home --path zerocopy
send 10 64
arrived 10
end_capture
cat home.json
unharmed
";

#[test]
fn interface_is_accessible_only_in_its_network_namespace() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    for kernel in kernels() {
        let run = together(kernel, Nic::E1000, "namespaces");
        assert_output(&run, &["misuse elsewhere: done", r#""delivered":100"#, r#""delivered":10,"#]);
    }
}

pub(super) const PRIVILEGE: &str = "
take_for_zerocopy
up eth0 zc0
refused misuse as none strait capture -i zc0 --path zerocopy
refused misuse as none strait generate --output zc0 --path zerocopy --count 1
misuse nobody $(cat /sys/class/net/zc0/ifindex)
# CAP_NET_RAW is enough, within the limit of locked memory.
(ulimit -l 4096; misuse as raw strait capture -i zc0 --path zerocopy) 2>limit.err && exit 1
cat limit.err
[ $(pinned) -eq 0 ]
misuse as raw strait capture -i zc0 --path zerocopy --json >raw.json 2>raw.err &
captured=$!
until [ $(pinned) -gt 0 ]; do sleep 0.1; done
up zc0
sleep 2
send 100 64
sleep 1
end_capture
cat raw.json
";

#[test]
fn missing_privilege_is_refused_with_a_remedy() {
    if !vm_or_skip() || !program_or_skip("cc") {
        return;
    }
    for kernel in kernels() {
        let run = together(kernel, Nic::E1000, "privilege");
        let wanted = [
            "run as root, or give the program cap_net_raw+ep with setcap",
            "misuse nobody: done",
            "raise the limit of locked memory",
            r#""delivered":100"#,
        ];
        assert_output(&run, &wanted);
    }
}
