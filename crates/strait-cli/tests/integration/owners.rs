//! `--owner`, `--process`, `--container`: lines, comments and JSON name the process that sent.

use std::net::UdpSocket;

use lab::{Launch, Wire};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::rig::{Capture, LIMIT, STRAIT, ledger, run, strait};
use crate::tables::Lake;
use crate::tools::{self, tshark};

const DATAGRAMS: usize = 3;
const COUNT: [&str; 2] = ["-c", "3"];
const FILTER: &str = "udp port 9";

/// Sends datagrams from this process, by one socket.
fn send_datagrams(wire: &Wire) {
    let sender = wire.left().run(|| UdpSocket::bind((wire.left().ipv4(), 0)).unwrap());
    for _ in 0..DATAGRAMS {
        sender.send_to(b"owned", (wire.right().ipv4(), 9)).unwrap();
    }
}

/// Starts a capture of the datagrams where they are sent; `None` if the kernel refuses it.
fn capture(wire: &Wire, options: &[&str]) -> Option<Capture> {
    let refused =
        strait(wire.left(), &["capture", "-i", "left", "--owner", "-d", "0.01"]).run(LIMIT).unwrap();
    if refused.status.code() == Some(3) {
        lab::skip(refused.stderr);
        return None;
    }
    Some(Capture::start(wire.left(), &[&["--owner"], options, &[FILTER]].concat()))
}

/// Returns the first 15 bytes of this program's name, as the kernel has them.
fn command() -> String {
    std::fs::read_to_string("/proc/self/comm").unwrap().trim_end().to_owned()
}

#[test]
fn owner_is_at_the_end_of_each_line() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let Some(capture) = capture(&wire, &COUNT) else { return };
    send_datagrams(&wire);
    let text = capture.wait().success().text();
    let owner = format!(", owner {}[{}] user ", command(), std::process::id());
    assert_eq!(text.lines().filter(|line| line.contains(&owner)).count(), DATAGRAMS, "{text}");
}

/// `ip netns exec` mounts another /sys, so that the cgroups are not mounted for its program. Under
/// another mount on their mount point they still are, but cannot be reached.
#[test]
fn cgroup_is_found_if_another_mount_hides_the_hierarchy() {
    const ANOTHER_SYS: &str = "umount -l /sys && mount -t sysfs none /sys";
    const HIDDEN: &str =
        "mount -t tmpfs none $(awk '$3 == \"cgroup2\" { print $2; exit }' /proc/self/mounts)";
    let Some(wire) = Wire::builder().ipv4().or_skip().filter(|_| lab::program_or_skip("unshare")) else {
        return;
    };
    let Some(_probe) = capture(&wire, &[]) else { return };
    for mount in [ANOTHER_SYS, HIDDEN] {
        let script = format!("{mount} && exec \"$0\" \"$@\"");
        let launch = wire.left().command("unshare").args(["--mount", "sh", "-c", &script, STRAIT]);
        let launch = launch.args(["capture", "-i", "left", "--owner"]).args(COUNT).arg(FILTER);
        let capture = Capture::watch(launch);
        send_datagrams(&wire);
        let text = capture.wait().success().text();
        let owner = format!(", owner {}[{}] user ", command(), std::process::id());
        let has_cgroup = |line: &&str| line.contains(&owner) && line.contains(" cgroup /");
        assert_eq!(text.lines().filter(has_cgroup).count(), DATAGRAMS, "{mount}: {text}");
    }
}

#[test]
fn first_packet_of_a_flow_has_a_comment() {
    let Some(wire) = Wire::builder().ipv4().or_skip().filter(|_| tools::present()) else { return };
    let file = tempfile::NamedTempFile::with_suffix(".pcapng").unwrap();
    let path = file.path().to_str().unwrap();
    let Some(capture) = capture(&wire, &[&COUNT[..], &["-w", path]].concat()) else { return };
    send_datagrams(&wire);
    let _ = capture.wait().success();
    let comments = tshark(file.path(), &[], &["frame.comment"]).concat();
    let owner = format!("owner {}[{}] user ", command(), std::process::id());
    assert!(comments[0].starts_with(&owner), "{comments:?}");
    assert!(comments[1..].iter().all(String::is_empty), "{comments:?}");
}

#[test]
fn json_counts_the_packets_of_each_owner() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let Some(capture) = capture(&wire, &[&COUNT[..], &["--json"]].concat()) else { return };
    send_datagrams(&wire);
    let owners = &ledger(&capture.wait().success())["owners"];
    let known = owners["known"].as_array().unwrap();
    let expected = [json!(command()), json!(std::process::id()), json!(DATAGRAMS)];
    assert_eq!(["command", "pid", "packets"].map(|key| known[0][key].clone()), expected, "{owners}");
    assert_eq!((known.len(), &owners["unknown"]["packets"]), (1, &json!(0)), "{owners}");
}

#[test]
fn tables_have_the_owner_of_each_packet() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let url = lake.url();
    let Some(capture) = capture(&wire, &[&COUNT[..], &["--to", &url]].concat()) else { return };
    send_datagrams(&wire);
    let _ = capture.wait().success();
    let query = "select process_id, process, count(*), count(user) from packets group by all";
    let rows = lake.ask(lake.path(), &["sql", query]);
    let count = DATAGRAMS.to_string();
    assert_eq!(rows, [[std::process::id().to_string(), command(), count.clone(), count]]);
}

#[test]
fn only_the_selected_process_is_captured() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let id = std::process::id().to_string();
    let Some(ours) = capture(&wire, &[&COUNT[..], &["--process", &id]].concat()) else { return };
    let others = capture(&wire, &["--process", "1", "--json"]).unwrap();
    send_datagrams(&wire);
    assert_eq!(ours.wait().success().text().lines().count(), DATAGRAMS);
    let owners: &Value = &ledger(&others.end(Signal::INT).success())["owners"];
    assert_eq!(owners["known"], json!([]), "{owners}");
}

#[test]
fn missing_process_is_noted_and_awaited() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let Some(capture) = capture(&wire, &["--process", "no-such-name"]) else { return };
    let finished = capture.end(Signal::INT).success();
    let notes = finished.stderr.lines().filter(|line| line.contains("no process with this name")).count();
    assert_eq!(notes, 1, "{}", finished.stderr);
}

#[test]
fn top_names_the_owner_of_a_flow() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let Some(probe) = capture(&wire, &[]) else { return };
    let top = strait(wire.left(), &["top", "-i", "left", "--owner", "--json", "--interval", "0.1", FILTER]);
    let top = top.spawn().unwrap();
    top.wait_for_stdout("\n", LIMIT).unwrap();
    send_datagrams(&wire);
    let name = format!("\"pid\":{}", std::process::id());
    top.wait_for_stdout(&name, LIMIT).unwrap();
    drop(probe);
}

#[test]
fn contradictions_and_missing_privilege_are_refused_with_a_remedy() {
    for (arguments, words) in [
        (&["--owner", "--path", "v3"][..], "use --path tap"),
        (&["--process", "0"], "give the name or the number"),
        (&["--container", "no-such-container"], "is it running?"),
        (&["--process", "1", "--container", "x"], "cannot be used with"),
    ] {
        let refused = run(&[&["capture", "-i", "lo", "-c", "1"], arguments].concat());
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(words), "{arguments:?}: {}", refused.stderr);
    }
    for arguments in [&["--owner"][..], &["--owner", "--path", "v3"], &["--process", "1", "--path", "tap"]] {
        let refused = run(&[&["capture", "-i", "any", "-c", "1"], arguments].concat());
        let words = "not for any: give one interface, as in -i eth0";
        assert!(refused.stderr.contains(words) && !refused.stderr.contains("--path"), "{}", refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {}", refused.stderr);
    }
    if !lab::root_or_skip() || !lab::program_or_skip("setpriv") {
        return;
    }
    let launch = Launch::new("setpriv").args(["--bounding-set", "-bpf,-sys_admin", STRAIT, "capture"]);
    let refused = launch.args(["-i", "lo", "--owner", "-c", "1"]).run(LIMIT).unwrap();
    assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("CAP_BPF") && refused.stderr.lines().count() == 1, "{}", refused.stderr);
}
