//! Zero-copy sends: with a NIC that reads the program's pages, and with a packet capture on the
//! same interface.

use std::sync::LazyLock;

use lab::program_or_skip;
use lab::vm::{Guest, Kernel, Nic, Run, vm_or_skip};
use serde_json::Value;

use super::{assert_output, at_once, guest, of, part, run};

/// Bytes of a transfer.
const SENT_BYTES: u64 = 4 << 20;
/// Two hosts on a wire, and transfers from one to the other.
const TWO_HOSTS: &str = r#"
two_hosts
dd if=/dev/urandom of=data bs=65536 count=64 2>/dev/null
# whole: sends the file in buffers of 256 KiB.
whole() { strait send --mode zc data "$@"; }
# pieces BYTES: sends it in pieces of BYTES.
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

/// Returns the account of the transfer `name`.
fn account(run: &Run, name: &str) -> Value {
    let line = run.output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let line = line.unwrap_or_else(|| panic!("no {name}: {}", run.output));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}: {}", run.output))
}

/// Returns the bytes that the transfer `name` sent without a copy, and its zero-copy sends that the
/// kernel copied.
fn zero_copy(run: &Run, name: &str) -> [u64; 2] {
    let account = account(run, name);
    ["zero_copy", "zero_copy_copied"].map(|field| account[field].as_u64().unwrap())
}

/// A packet socket for all protocols, such as a running capture, makes the kernel copy the pages.
const OVERHEARD: &str = "
echo part overheard
for own in 127.0.0.1 10.0.0.1; do strait doctor --for send --to $own; done
strait doctor --for send --to 10.0.0.2
transfer alone whole
receiver=eth0
capture listening --path v3
strait doctor --for send --to 10.0.0.2
transfer overheard whole
end_capture
";

/// For several small sends in one packet the kernel merges the notifications, and reports some
/// sends falsely as copied.
const PIECES: &str = "
echo part pieces
transfer chosen-4 pieces 4096
transfer chosen-16 pieces 16384
transfer forced-16 pieces 16384 --threshold 1
";

/// Without checksum offload the kernel copies and reports it. Without scatter-gather it may not
/// report it.
fn without_offloads() -> String {
    [
        "echo part offloads\n",
        &examined_transfers("able"),
        "ethtool -K eth0 sg off >/dev/null\n",
        &examined_transfers("sg"),
        "ethtool -K eth0 sg on tx off >/dev/null\n",
        &examined_transfers("tx"),
        "ethtool -K eth0 tx on >/dev/null\n",
        &examined_transfers("again"),
    ]
    .concat()
}

/// Returns the run of all these scripts with `nic`.
fn transfers(nic: Nic) -> Run {
    static RUNS: LazyLock<Vec<(Nic, Run)>> = LazyLock::new(|| {
        let script = [TWO_HOSTS, OVERHEARD, &without_offloads(), PIECES].concat();
        at_once(&[Nic::Igb, Nic::E1000], |nic| run(two_hosts(nic), &script))
    });
    of(&RUNS, &nic).clone()
}

#[test]
fn pages_are_sent_without_a_copy_unless_a_capture_is_running() {
    if !vm_or_skip() || !program_or_skip("ethtool") {
        return;
    }
    // On a hub a virtio-net has no scatter-gather; on a bridge it has.
    let bridged = guest(Kernel::V7_2).bridge(Nic::VirtioNet, Nic::E1000);
    let bridged = run(bridged, &format!("{TWO_HOSTS}{OVERHEARD}"));
    for run in [transfers(Nic::Igb), transfers(Nic::E1000), bridged] {
        let run = part(&run, "overheard");
        assert_output(
            &run,
            &[
                "a send to 127.0.0.1 leaves by lo and is copied, as is all traffic that stays on this machine",
                "a send to 10.0.0.1 leaves by lo and is copied, as is all traffic that stays on this machine",
                "a send to 10.0.0.2 goes without a copy",
                "is copied: a running capture also gets the packet",
            ],
        );
        assert_zero_copy(&run, "alone");
        assert!(zero_copy(&run, "overheard")[0] < SENT_BYTES / 10, "{}", run.output);
    }
}

/// Returns a script of two transfers, with an automatic and a forced choice of zero-copy, and the
/// doctor's finding on the route. Their names begin with `name`.
fn examined_transfers(name: &str) -> String {
    format!(
        "
strait doctor --for send --to 10.0.0.2 | grep -A 1 route | tr -s ' ' | sed 's/^/{name} doctor:/'
transfer {name}-chosen whole
transfer {name}-forced whole --threshold 1
"
    )
}

/// Asserts that the transfer `name` was sent without copies, apart from the sender's own
/// comparisons with copies and false reports of the kernel, and that its route was never classified
/// as copying.
fn assert_zero_copy(run: &Run, name: &str) {
    let [uncopied, copied] = zero_copy(run, name);
    assert!(uncopied > SENT_BYTES / 4 && copied < uncopied / 2, "{name}: {}", run.output);
    assert_eq!(account(run, name)["fallbacks"], serde_json::json!({}), "{name}: {}", run.output);
}

/// Asserts that both transfers of `name` were copied, and that the account has the `reason`.
fn assert_copied(run: &Run, name: &str, reason: &str) {
    let [chosen, forced] = ["chosen", "forced"].map(|kind| format!("{name}-{kind}"));
    assert_eq!(zero_copy(run, &forced), [0, SENT_BYTES], "{}", run.output);
    assert_eq!(zero_copy(run, &chosen)[0], 0, "{}", run.output);
    assert!(account(run, &chosen)["fallbacks"][reason].as_u64() > Some(0), "{}", run.output);
}

#[test]
fn disabled_scatter_gather_is_reported_and_counted_as_copies() {
    if !vm_or_skip() || !program_or_skip("ethtool") {
        return;
    }
    for nic in [Nic::Igb, Nic::E1000] {
        let run = part(&transfers(nic), "offloads");
        let wanted = ["sg off at eth0", "-> ethtool -K eth0 sg on", "-> ethtool -K eth0 tx on"];
        assert_output(&run, &wanted);
        for name in ["able", "again"] {
            assert_output(
                &run,
                &[&format!("{name} doctor: OK route a send to 10.0.0.2 goes without a copy")],
            );
            assert_zero_copy(&run, &format!("{name}-chosen"));
            assert_zero_copy(&run, &format!("{name}-forced"));
        }
        assert_copied(&run, "sg", "the device of this route has no scatter-gather");
        assert_eq!(zero_copy(&run, "sg-chosen"), [0, 0], "{nic:?}: {}", run.output);
        assert_copied(&run, "tx", "the kernel copies on this route");
    }
}

#[test]
fn missing_scatter_gather_is_reported_and_counted_as_copies() {
    if !vm_or_skip() {
        return;
    }
    // On a hub a virtio-net has neither scatter-gather nor checksum offload.
    let run = run(two_hosts(Nic::VirtioNet), &[TWO_HOSTS, &examined_transfers("hub")].concat());
    assert_output(&run, &["is copied: sg and tx off at eth0; its driver has no sg and no tx\n"]);
    assert!(!run.output.contains("ethtool -K"), "fixed offloads must not be advised: {}", run.output);
    assert_copied(&run, "hub", "the device of this route has no scatter-gather");
    assert_eq!(zero_copy(&run, "hub-chosen"), [0, 0], "{}", run.output);
}

#[test]
fn false_reports_of_copies_do_not_classify_a_route_as_copying() {
    if !vm_or_skip() || !program_or_skip("ethtool") {
        return;
    }
    let mut falsely_copied = 0;
    for nic in [Nic::Igb, Nic::E1000] {
        let run = part(&transfers(nic), "pieces");
        for name in ["chosen-4", "chosen-16", "forced-16"] {
            let [uncopied, copied] = zero_copy(&run, name);
            assert!(uncopied > copied, "{nic:?}: {}", run.output);
            assert_eq!(account(&run, name)["fallbacks"], serde_json::json!({}), "{nic:?}: {}", run.output);
            falsely_copied += copied;
        }
    }
    assert!(falsely_copied > 0, "no report was false: this kernel merges no notifications");
}
