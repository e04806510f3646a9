//! Sending without a copy: where a NIC reads the program's pages, and where somebody listens in.

use lab::vm::{Guest, Kernel, Nic, Run, vm_or_skip};
use serde_json::Value;

use super::{assert_said, guest, run};

/// What a transfer sends.
const SENT_BYTES: u64 = 4 << 20;
/// Two hosts on a wire: `far COMMAND` runs on the other one, which has eth1.
const TWO_HOSTS: &str = r#"
unshare -n sleep 1000 &
far=$!
until [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
ip link set eth1 netns $far
far() { nsenter -t $far -n "$@"; }
far ip link set lo up
far ip addr add 10.0.0.2/24 dev eth1
far ip link set eth1 up
ip addr add 10.0.0.1/24 dev eth0
up eth0
until ping -c 1 -W 1 10.0.0.2 >/dev/null; do :; done
dd if=/dev/urandom of=data bs=65536 count=64 2>/dev/null
# transfer NAME: sends 4 MiB and prints the sender's account.
transfer() {
    far strait receive -l 10.0.0.2:9000 -o "$1.got" >/dev/null 2>receive.err &
    receiver=$!
    until far sh -c 'cat /proc/net/tcp' | grep -q ':2328 .* 0A '; do sleep 0.1; done
    echo "$1: $(strait send --mode zc data 10.0.0.2:9000 --json 2>send.err)"
    wait $receiver
    cmp data "$1.got"
}
"#;

fn two_hosts(nic: Nic) -> Guest {
    guest(Kernel::V7_2).wire(nic, nic)
}

/// A field of the account of the transfer `name`, in bytes.
fn account(run: &Run, name: &str, field: &str) -> u64 {
    let line = run.said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let account: Value =
        serde_json::from_str(line.unwrap_or_else(|| panic!("no {name}: {}", run.said))).unwrap();
    account[field].as_u64().unwrap()
}

#[test]
fn pages_of_the_program_go_out_without_a_copy_unless_somebody_listens_in() {
    if !vm_or_skip() {
        return;
    }
    // A packet socket for all protocols has the kernel copy what it would lend: a running capture is enough.
    let script = format!(
        "{TWO_HOSTS}
strait doctor --for send --to 10.0.0.2
transfer alone
receiver=eth0
capture listening --path v3
strait doctor --for send --to 10.0.0.2
transfer overheard
end_capture
"
    );
    for nic in [Nic::Igb, Nic::E1000] {
        let run = run(two_hosts(nic), &script);
        assert_said(
            &run,
            &["a send to 10.0.0.2 goes without a copy", "is copied: a running capture gets the packet too"],
        );
        let [lent, copied] = ["zero_copy", "zero_copy_copied"].map(|field| account(&run, "alone", field));
        assert!(lent > SENT_BYTES / 10 * 9 && copied < SENT_BYTES / 10, "{nic:?}: {}", run.said);
        assert!(account(&run, "overheard", "zero_copy") < SENT_BYTES / 10, "{nic:?}: {}", run.said);
    }
}
