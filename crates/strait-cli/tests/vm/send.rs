//! Sending without a copy: where a NIC reads the program's pages, and where somebody listens in.

use lab::program_or_skip;
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
# The file whole, in buffers of 256 KiB.
whole() { strait send --mode zc data "$@"; }
# pieces BYTES: so many bytes at a time.
pieces() {
    bytes=$1
    shift
    dd if=data bs="$bytes" 2>/dev/null | strait send --mode zc - "$@"
}
# transfer NAME COMMAND ARGUMENT...: sends 4 MiB by it and prints the sender's account.
transfer() {
    transfer=$1
    shift
    far strait receive -l 10.0.0.2:9000 -o got >/dev/null 2>receive.err &
    receiver=$!
    until far sh -c 'cat /proc/net/tcp' | grep -q ':2328 .* 0A '; do sleep 0.1; done
    echo "$transfer: $("$@" 10.0.0.2:9000 --json 2>send.err)"
    wait $receiver
    cmp data got
    rm got
}
"#;

fn two_hosts(nic: Nic) -> Guest {
    guest(Kernel::V7_2).wire(nic, nic).program("/usr/sbin/ethtool")
}

/// The account of the transfer `name`.
fn account(run: &Run, name: &str) -> Value {
    let line = run.said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let line = line.unwrap_or_else(|| panic!("no {name}: {}", run.said));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}: {}", run.said))
}

/// Bytes that went without a copy in the transfer `name`, and those that were lent and copied.
fn lent(run: &Run, name: &str) -> [u64; 2] {
    let account = account(run, name);
    ["zero_copy", "zero_copy_copied"].map(|field| account[field].as_u64().unwrap())
}

#[test]
fn pages_of_the_program_go_out_without_a_copy_unless_somebody_listens_in() {
    if !vm_or_skip() {
        return;
    }
    // A packet socket for all protocols has the kernel copy what it would lend: a running capture is
    // enough.
    let script = format!(
        "{TWO_HOSTS}
for own in 127.0.0.1 10.0.0.1; do strait doctor --for send --to $own; done
strait doctor --for send --to 10.0.0.2
transfer alone whole
receiver=eth0
capture listening --path v3
strait doctor --for send --to 10.0.0.2
transfer overheard whole
end_capture
"
    );
    // On a hub a virtio-net has no scatter-gather; on a bridge it has.
    let bridged = guest(Kernel::V7_2).bridge(Nic::VirtioNet, Nic::E1000);
    for guest in [two_hosts(Nic::Igb), two_hosts(Nic::E1000), bridged] {
        let run = run(guest, &script);
        assert_said(
            &run,
            &[
                "a send to 127.0.0.1 leaves by lo and is copied: what stays on this machine always is",
                "a send to 10.0.0.1 leaves by lo and is copied: what stays on this machine always is",
                "a send to 10.0.0.2 goes without a copy",
                "is copied: a running capture gets the packet too",
            ],
        );
        assert_lent(&run, "alone");
        assert!(lent(&run, "overheard")[0] < SENT_BYTES / 10, "{}", run.said);
    }
}

/// Transfers by choice and by force, with what the doctor says of the route, under `name`.
fn told_and_counted(name: &str) -> String {
    format!(
        "
strait doctor --for send --to 10.0.0.2 | grep -A 1 route | tr -s ' ' | sed 's/^/{name} doctor:/'
transfer {name}-chosen whole
transfer {name}-forced whole --threshold 1
"
    )
}

/// The transfer `name` went without a copy, but for what the sender copied to compare, or while a
/// probe was on its way, and for reports that are false; the route was never taken for one that
/// copies.
fn assert_lent(run: &Run, name: &str) {
    let [uncopied, copied] = lent(run, name);
    assert!(uncopied > SENT_BYTES / 4 && copied < uncopied / 2, "{name}: {}", run.said);
    assert_eq!(account(run, name)["fallbacks"], serde_json::json!({}), "{name}: {}", run.said);
}

/// Nothing went without a copy under `name`, whether by choice or by force, and the account gives
/// `reason`.
fn assert_copied(run: &Run, name: &str, reason: &str) {
    let [chosen, forced] = ["chosen", "forced"].map(|way| format!("{name}-{way}"));
    assert_eq!(lent(run, &forced), [0, SENT_BYTES], "{}", run.said);
    assert_eq!(lent(run, &chosen)[0], 0, "{}", run.said);
    assert!(account(run, &chosen)["fallbacks"][reason].as_u64() > Some(0), "{}", run.said);
}

#[test]
fn a_nic_that_cannot_gather_is_told_and_counted_as_one_that_copies() {
    if !vm_or_skip() || !program_or_skip("ethtool") {
        return;
    }
    // Without checksum offload the kernel copies and says so, without scatter-gather it may not.
    let script = [
        TWO_HOSTS,
        &told_and_counted("able"),
        "ethtool -K eth0 sg off >/dev/null\n",
        &told_and_counted("sg"),
        "ethtool -K eth0 sg on tx off >/dev/null\n",
        &told_and_counted("tx"),
        "ethtool -K eth0 tx on >/dev/null\n",
        &told_and_counted("again"),
    ];
    for nic in [Nic::Igb, Nic::E1000] {
        let run = run(two_hosts(nic), &script.concat());
        let wanted = ["sg off at eth0", "-> ethtool -K eth0 sg on", "-> ethtool -K eth0 tx on"];
        assert_said(&run, &wanted);
        for name in ["able", "again"] {
            assert_said(&run, &[&format!("{name} doctor: OK route a send to 10.0.0.2 goes without a copy")]);
            assert_lent(&run, &format!("{name}-chosen"));
            assert_lent(&run, &format!("{name}-forced"));
        }
        assert_copied(&run, "sg", "the device of this route has no scatter-gather");
        assert_eq!(lent(&run, "sg-chosen"), [0, 0], "{nic:?}: {}", run.said);
        assert_copied(&run, "tx", "the kernel copies on this route");
    }
}

#[test]
fn a_nic_that_never_gathers_is_told_and_counted_as_one_that_copies() {
    if !vm_or_skip() {
        return;
    }
    // On a hub a virtio-net has neither scatter-gather nor checksum offload.
    let run = run(two_hosts(Nic::VirtioNet), &[TWO_HOSTS, &told_and_counted("hub")].concat());
    assert_said(&run, &["is copied: sg and tx off at eth0; its driver has no sg and no tx\n"]);
    assert!(!run.said.contains("ethtool -K"), "what cannot be switched on is not advised: {}", run.said);
    assert_copied(&run, "hub", "the device of this route has no scatter-gather");
    assert_eq!(lent(&run, "hub-chosen"), [0, 0], "{}", run.said);
}

#[test]
fn reports_of_copies_that_did_not_happen_condemn_no_route() {
    if !vm_or_skip() {
        return;
    }
    // Several small sends are in one packet, whose notifications the kernel joins: of some it says that
    // they were copied.
    let script = format!(
        "{TWO_HOSTS}
transfer chosen-4 pieces 4096
transfer chosen-16 pieces 16384
transfer forced-16 pieces 16384 --threshold 1
"
    );
    let mut falsely_copied = 0;
    for nic in [Nic::Igb, Nic::E1000] {
        let run = run(two_hosts(nic), &script);
        for name in ["chosen-4", "chosen-16", "forced-16"] {
            let [uncopied, copied] = lent(&run, name);
            assert!(uncopied > copied, "{nic:?}: {}", run.said);
            assert_eq!(account(&run, name)["fallbacks"], serde_json::json!({}), "{nic:?}: {}", run.said);
            falsely_copied += copied;
        }
    }
    assert!(falsely_copied > 0, "no report was false: this kernel joins no notifications");
}
