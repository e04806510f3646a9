//! `strait doctor` on machines with a deliberate defect: each defect has its finding, with a fix.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lab::{End, Finished, Launch, Wire, program_or_skip, root_or_skip};
use serde_json::Value;
use strait_os::netlink::Netlink;

use crate::rig::{Capture, LIMIT, STRAIT, run, strait};

/// Returns the findings and the exit code.
fn findings(finished: &Finished) -> (Vec<Value>, i32) {
    let object: Value = serde_json::from_str(&finished.text())
        .unwrap_or_else(|error| panic!("{error}: {}{}", finished.text(), finished.stderr));
    (object["findings"].as_array().unwrap().clone(), finished.status.code().unwrap())
}

/// Returns state, text and fix of the finding on `subject`.
fn finding(findings: &[Value], area: &str, subject: &str) -> (String, String, String) {
    let found = findings.iter().find(|finding| finding["area"] == area && finding["subject"] == subject);
    let found = found.unwrap_or_else(|| panic!("no {subject} in {findings:?}"));
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    (text("state"), text("message"), text("fix"))
}

/// Returns true if the finding is about a tested AF_XDP mode.
fn is_mode(finding: &Value) -> bool {
    ["xdp zero-copy", "xdp native", "xdp generic"].iter().any(|mode| finding["subject"] == *mode)
}

/// Returns the findings for captures at `end`.
fn at(end: &End, more: &[&str]) -> (Vec<Value>, i32) {
    let arguments = [&["doctor", end.name(), "--json", "--for", "capture"], more].concat();
    findings(&strait(end, &arguments).run(LIMIT).unwrap())
}

#[test]
fn text_and_json_have_the_same_findings() {
    let text = run(&["doctor"]);
    let (findings, code) = findings(&run(&["doctor", "--json"]));
    assert_eq!(text.status.code(), Some(code));
    for heading in ["capture\n", "send\n", "proxy\n"] {
        assert!(text.text().contains(heading));
    }
    let lines = text.text().lines().filter(|line| !line.contains("-> ") && line.starts_with("  ")).count();
    assert_eq!(lines, findings.len());
    assert_eq!(finding(&findings, "proxy", "sendfile, splice, tee").0, "ok");
}

#[test]
fn piped_lines_are_not_wrapped_even_with_columns_set() {
    let page =
        Launch::new(STRAIT).args(["doctor", "--for", "proxy"]).env("COLUMNS", "30").run(LIMIT).unwrap();
    // The line of a finding begins with its state, the line of a fix with an arrow.
    let is_unwrapped = |line: &str| {
        let line = line.trim_start();
        ["OK ", "better ", "BROKEN ", "-> ", "proxy", "summary: "].iter().any(|start| line.starts_with(start))
    };
    assert!(page.text().lines().all(is_unwrapped), "{}", page.text());
}

#[test]
fn missing_capabilities_break_captures() {
    if !root_or_skip() || !program_or_skip("setpriv") {
        return;
    }
    let bare = ["--inh-caps=-all", "--bounding-set=-all"];
    let launch = Launch::new("setpriv").args(bare).args([STRAIT, "doctor", "--json", "--for", "capture"]);
    let (findings, code) = findings(&launch.run(LIMIT).unwrap());
    let (state, message, fix) = finding(&findings, "capture", "packet sockets");
    assert_eq!((state.as_str(), code), ("broken", 1));
    assert!(message.contains("CAP_NET_RAW"), "{message}");
    // The least set of each, as in docs/guide/privileges.md.
    assert_eq!(fix, format!("run strait as root, or: setcap cap_net_raw+ep {STRAIT}"));
    let (state, _, fix) = finding(&findings, "capture", "af_xdp privilege");
    assert_eq!(state, "better");
    let least = "cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon";
    assert_eq!(fix, format!("run strait as root, or: setcap {least}+ep {STRAIT}"));
}

#[test]
fn low_limit_of_locked_memory_can_be_improved() {
    if !root_or_skip() || !program_or_skip("setpriv") {
        return;
    }
    let limited = ["--memlock=65536", "setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock"];
    let launch = Launch::new("prlimit").args(limited).args([STRAIT, "doctor", "--json"]);
    let (findings, _) = findings(&launch.run(LIMIT).unwrap());
    for area in ["capture", "send"] {
        let (state, message, fix) = finding(&findings, area, "locked memory");
        assert!(
            state == "better" && message.starts_with("64 KiB") && fix.contains("ulimit -l"),
            "{message} {fix}"
        );
        assert!(fix.ends_with(&format!("cap_perfmon,cap_ipc_lock+ep {STRAIT}")), "{fix}");
    }
}

#[test]
fn user_namespace_privileges_cover_neither_bpf_nor_locked_memory() {
    if !program_or_skip("unshare") || !program_or_skip("prlimit") {
        return;
    }
    let inside = |program: &[&str]| {
        let limited = ["--memlock=65536", "unshare", "--user", "--map-root-user"];
        Launch::new("prlimit").args(limited).args(program).run(LIMIT).unwrap()
    };
    if !inside(&["true"]).status.success() {
        return lab::skip("no user namespaces for this user");
    }
    let (findings, code) = findings(&inside(&[STRAIT, "doctor", "--json", "--for", "capture,send"]));
    for (subject, state) in [("packet sockets", "broken"), ("af_xdp privilege", "better")] {
        let found = finding(&findings, "capture", subject);
        assert!(found.0 == state && found.1.contains("user namespace"), "{found:?}");
        assert!(found.2.contains("outside of the user namespace"), "{found:?}");
    }
    for area in ["capture", "send"] {
        let (state, message, _) = finding(&findings, area, "locked memory");
        assert!(state == "better" && message.starts_with("64 KiB"), "{message}");
    }
    assert_eq!(code, 1);
}

/// Runs a program under a filter that forbids `io_uring_setup` (425), as container runtimes do.
pub(crate) const WITHOUT_IO_URING: &str = "
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def statement(code, jt, jf, k):
    return struct.pack('HBBI', code, jt, jf, k)
program = b''.join([
    statement(0x20, 0, 0, 0),
    statement(0x15, 0, 1, 425),
    statement(0x06, 0, 0, 0x00050001),
    statement(0x06, 0, 0, 0x7fff0000),
])
filter = ctypes.create_string_buffer(program)
header = struct.pack('HxxxxxxP', 4, ctypes.addressof(filter))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

/// Lock for the tests of io_uring: its sysctl applies to the whole machine.
pub(crate) fn io_uring_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn io_uring_forbidden_by_seccomp_is_reported_with_the_cause() {
    let _turn = io_uring_turn();
    let (findings_before, _) = findings(&run(&["doctor", "--json", "--for", "send"]));
    if finding(&findings_before, "send", "io_uring").0 != "ok" {
        return lab::skip("io_uring is not allowed here");
    }
    let launch =
        Launch::new("python3").args(["-c", WITHOUT_IO_URING, STRAIT, "doctor", "--json", "--for", "send"]);
    let (findings, code) = findings(&launch.run(LIMIT).unwrap());
    let (state, message, fix) = finding(&findings, "send", "io_uring");
    assert!(
        state == "better" && message.contains("not permitted") && fix.contains("seccomp"),
        "{message} {fix}"
    );
    assert_eq!(code, 0, "everything works without io_uring");
}

/// Forbids io_uring to all users by its sysctl. Dropping it restores the sysctl, also in a failing
/// test.
struct Disabled {
    before: String,
}

const IO_URING_DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

impl Disabled {
    fn set() -> std::io::Result<Self> {
        let before = fs::read_to_string(IO_URING_DISABLED)?;
        fs::write(IO_URING_DISABLED, "2").map(|()| Self { before })
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        let restored = fs::write(IO_URING_DISABLED, &self.before);
        assert!(restored.is_ok() || std::thread::panicking(), "{restored:?}");
    }
}

#[test]
fn io_uring_disabled_by_sysctl_is_reported_with_the_setting() {
    let _turn = io_uring_turn();
    let disabled = match Disabled::set() {
        Ok(disabled) => disabled,
        Err(error) => return lab::skip(format!("{IO_URING_DISABLED} cannot be written: {error}")),
    };
    let (found, code) = findings(&run(&["doctor", "--json", "--for", "send"]));
    let (state, message, fix) = finding(&found, "send", "io_uring");
    assert!(state == "better" && message.contains("not permitted"), "{message}");
    assert!(fix.contains("sysctl kernel.io_uring_disabled=0"), "{fix}");
    assert_eq!(code, 0, "everything works without io_uring");
    let before = disabled.before.clone();
    drop(disabled);
    assert_eq!(fs::read_to_string(IO_URING_DISABLED).unwrap(), before);
}

#[test]
fn device_without_native_xdp_is_generic_only() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("ip")) else { return };
    let ip =
        |arguments: &str| wire.right().command("ip").args(arguments.split(' ')).run(LIMIT).unwrap().success();
    let _ = ip("link add generic0 type bridge");
    let _ = ip("link set generic0 up");
    let (declared, _) = findings(
        &strait(wire.right(), &["doctor", "generic0", "--json", "--for", "capture"]).run(LIMIT).unwrap(),
    );
    let (state, message, fix) = finding(&declared, "capture", "xdp");
    assert!(state == "better" && message.contains("no native XDP") && fix.contains("v3"), "{message} {fix}");
    let probe = strait(wire.right(), &["doctor", "generic0", "--json", "--for", "capture", "--probe"]);
    let (probed, code) = findings(&probe.run(LIMIT).unwrap());
    let modes: Vec<_> = probed.iter().filter(|finding| is_mode(finding)).collect();
    let states: Vec<_> = modes.iter().map(|mode| mode["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["better", "better", "ok"], "{modes:?}");
    assert_eq!(code, 0);
}

#[test]
fn probe_binds_natively_and_leaves_the_device_unchanged() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (probed, code) = at(wire.right(), &["--probe"]);
    let messages: Vec<_> = probed
        .iter()
        .filter(|finding| is_mode(finding))
        .map(|finding| finding["message"].to_string())
        .collect();
    assert!(
        messages[0].contains("no zero-copy") && messages[1].contains("native copy binds"),
        "{messages:?}"
    );
    assert_eq!(code, 0);
    let shown = wire.right().command("ip").args(["link", "show"]).run(LIMIT).unwrap().success().text();
    assert!(!shown.contains("xdp"), "{shown}");
}

#[test]
fn missing_and_excess_queues_are_reported() {
    let Some(wire) = Wire::builder().queues(4).or_skip().filter(|_| program_or_skip("ethtool")) else {
        return;
    };
    let queues = |asked: &[&str]| {
        let (found, code) = at(wire.right(), asked);
        (finding(&found, "capture", "queues"), code)
    };
    let ((state, message, fix), code) = queues(&["--queues", "0-7"]);
    assert_eq!((state.as_str(), code), ("broken", 1));
    assert!(message.contains("queue 4 was requested") && fix.contains("numrxqueues 8"), "{message} {fix}");
    let cpus = std::thread::available_parallelism().unwrap().get();
    let ((state, _, fix), code) = queues(&[]);
    assert_eq!((state.as_str(), code), (if cpus < 4 { "better" } else { "ok" }, 0));
    assert!(cpus >= 4 || fix.starts_with(&format!("ethtool -L right rx {cpus}: ")), "{fix}");
    let ethtool = |arguments: &str| {
        wire.right().command("ethtool").args(arguments.split(' ')).run(LIMIT).unwrap().success()
    };
    ethtool("-L right rx 2");
    let ((state, _, fix), code) = queues(&["--queues", "0-3"]);
    assert_eq!((state.as_str(), code), ("broken", 1));
    let command = fix.strip_prefix("ethtool ").and_then(|rest| rest.split_once(',')).expect("a command").0;
    ethtool(command);
    assert_eq!(queues(&["--queues", "0-3"]).1, 0, "{command} helps");
}

#[test]
fn probe_names_its_queue_which_is_the_last_or_the_requested_one() {
    let Some(wire) = Wire::builder().queues(3).or_skip() else { return };
    for (asked, queue) in [(&[][..], "queue 2 of right"), (&["--queues", "1"], "queue 1 of right")] {
        let (found, _) = at(wire.right(), &[&["--probe"], asked].concat());
        let modes: Vec<_> = found.iter().filter(|finding| is_mode(finding)).collect();
        assert!(modes.len() == 3, "{modes:?}");
        assert!(modes.iter().all(|mode| mode["message"].as_str().unwrap().contains(queue)), "{modes:?}");
    }
}

#[test]
fn probe_that_fails_for_one_reason_reports_it_once() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("setpriv")) else { return };
    let xdp = |found: &[Value]| {
        assert!(!found.iter().any(is_mode), "{found:?}");
        finding(found, "capture", "xdp")
    };
    let (found, _) = at(wire.right(), &["--probe", "--queues", "5"]);
    let (state, message, _) = xdp(&found);
    assert!(state == "broken" && message.contains("queue 5"), "{message}");
    let bare = ["--inh-caps=-all", "--bounding-set=-all", STRAIT, "doctor", "right", "--json", "--probe"];
    let (found, _) = findings(&wire.right().command("setpriv").args(bare).run(LIMIT).unwrap());
    let (state, _, fix) = xdp(&found);
    assert!(state == "broken" && fix.contains("setcap cap_net_raw,"), "{fix}");
    wire.right().set_up(false);
    let (found, _) = at(wire.right(), &["--probe"]);
    let (state, _, fix) = xdp(&found);
    assert_eq!((state.as_str(), fix.as_str()), ("broken", "ip link set right up"));
}

#[test]
fn process_that_holds_the_xdp_program_is_named() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let capture = Capture::start(wire.right(), &["--path", "xdp-generic", "--json"]);
    let (found, _) = at(wire.right(), &[]);
    let (state, message, fix) = finding(&found, "capture", "xdp program");
    assert!(state == "better" && message.contains("is attached to right"), "{message}");
    assert!(fix.starts_with("end process ") && fix.contains("(strait)") && fix.contains("bpf_link"), "{fix}");
    capture.finish();
    let (found, _) = at(wire.right(), &[]);
    assert!(!found.iter().any(|finding| finding["subject"] == "xdp program"), "{found:?}");
}

#[test]
fn programs_on_the_hooks_of_the_tap_are_named() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let tap = || {
        let (found, _) = at(wire.right(), &[]);
        let (state, message, _) = finding(&found, "capture", "tap");
        assert_eq!(state, "ok", "{message}");
        message
    };
    assert!(tap().contains("no other program is there"));
    let capture = Capture::start(wire.right(), &["--path", "tap", "--json"]);
    assert!(tap().ends_with("of right (strait_tap, strait_tap)"));
    capture.finish();
    let capture = Capture::start(wire.right(), &["--path", "xdp-generic", "--json"]);
    let (found, _) = at(wire.right(), &[]);
    let (_, message, _) = finding(&found, "capture", "tap packets");
    assert!(message.contains("runs before the tap"), "{message}");
    capture.finish();
}

#[test]
fn cost_of_a_capture_to_the_host_is_explained() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (found, _) = at(wire.right(), &[]);
    let (state, message, _) = finding(&found, "capture", "xdp host");
    assert!(state == "ok" && message.contains("veth right") && message.contains("--path tap"), "{message}");
    assert!(!found.iter().any(|finding| finding["subject"] == "bridge"), "{found:?}");
    wire.right().run(|| Netlink::open().unwrap().add_bridge("br0").unwrap());
    let arguments = ["doctor", "br0", "--json", "--for", "capture"];
    let (found, _) = findings(&strait(wire.right(), &arguments).run(LIMIT).unwrap());
    let (state, message, fix) = finding(&found, "capture", "bridge");
    assert!(state == "better" && message.contains("br0") && fix.contains("ports"), "{message}: {fix}");
}

#[test]
fn sysfs_settings_are_read_in_the_namespace_of_the_interface() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("unshare")) else { return };
    let has = |finished: &Finished| {
        let (found, _) = findings(finished);
        found.iter().any(|finding| finding["subject"] == "busy poll")
    };
    // The mounted sysfs shows the test's namespace, which may have an interface of the same name.
    let names = fs::read_dir("/sys/class/net").unwrap().flatten();
    let name = names.filter_map(|entry| entry.file_name().into_string().ok()).find(|name| name != "lo");
    let name = name.unwrap_or_else(|| "other0".into());
    let added = wire.right().command("ip").args(["link", "add", &name, "type", "bridge"]);
    let _ = added.run(LIMIT).unwrap().success();
    let others = ["doctor", &name, "--json", "--for", "capture", "--wait", "busy"];
    assert!(!has(&strait(wire.right(), &others).run(LIMIT).unwrap()));
    let script = r#"mount -t sysfs none /sys && exec "$0" "$@""#;
    for (wait, is_reported) in [("busy", true), ("latency", false)] {
        let own = ["doctor", "right", "--json", "--for", "capture", "--wait", wait];
        let launch = wire.right().command("unshare").args(["--mount", "sh", "-c", script, STRAIT]).args(own);
        assert_eq!(has(&launch.run(LIMIT).unwrap()), is_reported, "--wait {wait}");
    }
}

#[test]
fn down_link_is_broken_and_the_ring_of_libpcap_is_named() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (found, code) = at(wire.right(), &[]);
    assert_eq!(code, 0);
    let (_, message, fix) = finding(&found, "capture", "libpcap");
    assert!(
        message.contains("TPACKET_V3 on right") && message.contains("delayed by up to 1000 ms"),
        "{message}"
    );
    assert!(fix.contains("strait run"));
    wire.right().set_up(false);
    let (found, code) = at(wire.right(), &[]);
    let (state, _, fix) = finding(&found, "capture", "link");
    assert_eq!((state.as_str(), fix.as_str(), code), ("broken", "ip link set right up", 1));
    let (state, message, fix) = finding(&found, "capture", "libpcap");
    assert!(state == "better" && message.contains("unknown: "), "{message}");
    assert_eq!((message.matches("That device is not up").count(), fix.as_str()), (1, "ip link set right up"));
}

#[test]
fn copied_send_names_the_interface_and_the_cause() {
    const TO: &str = "192.0.2.7";
    let Some(wire) =
        Wire::builder().or_skip().filter(|_| program_or_skip("ip") && program_or_skip("ethtool"))
    else {
        return;
    };
    let run = |line: &str| {
        let (program, arguments) = line.split_once(' ').unwrap();
        wire.right().command(program).args(arguments.split(' ')).run(LIMIT).unwrap().success()
    };
    // A bridge without ports discards all packets, and copies nothing.
    for line in [
        "ip link add out0 type bridge",
        "ip address add 192.0.2.1/24 dev out0",
        "ip link set out0 up",
        "ip neighbour add 192.0.2.7 lladdr 02:00:00:00:00:07 dev out0",
    ] {
        run(line);
    }
    let route = |to: &str| {
        let sent =
            strait(wire.right(), &["doctor", "--json", "--for", "send", "--to", to]).run(LIMIT).unwrap();
        finding(&findings(&sent).0, "send", "route")
    };
    assert_eq!(route(TO).0, "ok");
    run("ethtool -K out0 tx off sg off");
    let (state, message, fix) = route(TO);
    assert!(state == "better" && message.contains("leaves by out0"), "{message}");
    run(&fix);
    assert_eq!(route(TO).1, format!("a send to {TO} goes without a copy"), "{fix} helps");
    let capture = Capture::watch(strait(wire.right(), &["capture", "-i", "out0", "--path", "v3", "--json"]));
    let (state, message, fix) = route(TO);
    assert!(
        state == "better" && message.contains("a running capture") && fix.contains("ss -0"),
        "{message} {fix}"
    );
    capture.finish();
    let (state, message, fix) = route("192.0.2.1");
    assert!(state == "ok" && message.contains("stays on this machine") && fix.is_empty(), "{message} {fix}");
}

#[test]
fn link_local_address_is_accepted_only_with_its_interface() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("ip")) else { return };
    // IPv6 is disabled at the ends of a wire. The kernel adds the local route some time after the
    // address.
    let script = "ip link add out0 type bridge && echo 0 >/proc/sys/net/ipv6/conf/out0/disable_ipv6 &&
        ip link set out0 up && ip address add fe80::7/64 dev out0 nodad &&
        until ip route get fe80::7 oif out0 | grep -q ^local; do sleep 0.1; done";
    let _ = wire.right().command("sh").args(["-c", script]).run(LIMIT).unwrap().success();
    let to = |address: &str| {
        strait(wire.right(), &["doctor", "--json", "--for", "send", "--to", address]).run(LIMIT).unwrap()
    };
    for (address, message) in [("fe80::7", "fe80::7%IF"), ("fe80::7%no-such-if0", "no such interface")] {
        let refused = to(address);
        assert!(refused.status.code() == Some(2) && refused.stderr.contains(message), "{}", refused.stderr);
    }
    assert_eq!(finding(&findings(&to("fe80::7%out0")).0, "send", "route").0, "ok");
}

#[test]
fn unwritable_cache_directory_is_reported_with_a_fix() {
    if !root_or_skip() || !program_or_skip("setpriv") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"];
    let doctor = [STRAIT, "doctor", "--json", "--for", "proxy", "--cache", path];
    let (found, _) = findings(&Launch::new("setpriv").args(user).args(doctor).run(LIMIT).unwrap());
    let (state, message, fix) = finding(&found, "proxy", "cache directory");
    assert!(state == "better" && message.contains("user 65534 cannot write"), "{message}");
    assert!(fix.contains(&format!("mkdir {path}/strait && chown 65534")), "{fix}");
}

#[test]
fn unknown_interface_is_a_usage_error_for_every_face() {
    for area in ["capture", "send", "proxy"] {
        let finished = run(&["doctor", "no-such-if0", "--for", area]);
        assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
        assert!(finished.stderr.contains("no-such-if0") && finished.text().is_empty());
    }
}

#[test]
fn findings_without_an_interface_name_no_interface() {
    // Only captures that can be opened have a finding on fanout.
    if !root_or_skip() {
        return;
    }
    let (found, _) = findings(&run(&["doctor", "--json", "--for", "capture"]));
    for subject in ["fanout", "libpcap"] {
        let message = finding(&found, "capture", subject).1;
        assert!(!message.contains(" of lo:") && !message.contains(" on lo:"), "{message}");
    }
}

#[test]
fn options_of_an_interface_are_refused_without_one() {
    for arguments in [&["--wait", "busy"][..], &["--probe"], &["--queues", "0"]] {
        let refused = run(&[&["doctor"], arguments].concat());
        assert!(
            refused.status.code() == Some(2) && refused.stderr.contains("INTERFACE"),
            "{}",
            refused.stderr
        );
    }
    let any = run(&["doctor", "any"]);
    assert_eq!((any.status.code(), any.stderr.lines().count()), (Some(2), 1), "{}", any.stderr);
    assert!(any.stderr.contains("per interface"), "{}", any.stderr);
}

#[test]
fn alternative_interface_name_is_accepted() {
    const NAME: &str = "a-name-longer-than-fifteen";
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("ip")) else { return };
    let ip = ["link", "property", "add", "dev", "right", "altname", NAME];
    let _ = wire.right().command("ip").args(ip).run(LIMIT).unwrap().success();
    let arguments = ["doctor", NAME, "--json", "--for", "capture,send", "--probe"];
    let (found, code) = findings(&strait(wire.right(), &arguments).run(LIMIT).unwrap());
    assert_eq!((finding(&found, "capture", "link").1.as_str(), code), ("right is up", 0));
    assert!(finding(&found, "send", "scatter-gather").1.contains("at right"));
}
