//! Tests of unusual situations: forks, several handles, breaks and filters under load, and devices
//! that are missing or disappear. Each case runs on stock libpcap first, and every path must print
//! the same output.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::{Process, Wire, program_or_skip};
use strait_packet::traffic::{Kind, Traffic, TrafficBuilder};
use tempfile::TempDir;

use crate::rig::{LIMIT, PASSING, SOCKETS, STOCK_AND_PATHS, built, on, reporting_on, send, send_traffic};

struct Rig {
    wire: Wire,
    program: PathBuf,
    _directory: TempDir,
}

impl Rig {
    fn or_skip() -> Option<Self> {
        let wire = Wire::builder().or_skip().filter(|_| program_or_skip("cc"))?;
        let directory = tempfile::tempdir().unwrap();
        let program = built(&["behaviour.c"], directory.path());
        Some(Self { wire, program, _directory: directory })
    }

    fn start(&self, path: Option<&str>, case: &str, device: &str) -> Process {
        on(path, self.wire.right().command(&self.program).args([case, device])).spawn().unwrap()
    }
}

/// Runs a case on each path while frames come in. Returns the output, which is the same on each.
fn under_load(case: &str, paths: &[Option<&str>]) -> Option<String> {
    with_frames(case, paths, &Traffic::builder(), Duration::from_micros(100))
}

/// Runs a case on each path while frames come in, with a report. Returns path, output and report of
/// each.
fn reports_under_load(case: &str) -> Vec<(&'static str, String, String)> {
    let Some(rig) = Rig::or_skip() else { return Vec::new() };
    let over = AtomicBool::new(false);
    let traffic = Traffic::builder().flows(1).kinds(&[Kind::Udp4]).build().unwrap();
    let outcomes = std::thread::scope(|scope| {
        scope.spawn(|| {
            let is_over = || over.load(Ordering::Relaxed);
            send_traffic(&rig.wire, &traffic, 1_000_000, Duration::from_micros(100), is_over);
        });
        let run = |path: Option<&'static str>| {
            let launch = rig.wire.right().command(&rig.program).args([case, "right"]);
            (path, reporting_on(path, launch).spawn().unwrap().wait(LIMIT))
        };
        let outcomes: Vec<_> = STOCK_AND_PATHS[1..].iter().copied().map(run).collect();
        over.store(true, Ordering::Relaxed);
        outcomes
    });
    let outputs = |(path, outcome): (Option<&'static str>, lab::Result<lab::Finished>)| {
        let finished = outcome.unwrap().success();
        (path.unwrap(), finished.text(), finished.stderr)
    };
    outcomes.into_iter().map(outputs).collect()
}

/// Runs a case on each path under this traffic, with a pause between frames. Returns the output.
fn with_frames(
    case: &str,
    paths: &[Option<&str>],
    traffic: &TrafficBuilder,
    pause: Duration,
) -> Option<String> {
    let rig = Rig::or_skip()?;
    let over = AtomicBool::new(false);
    let traffic = traffic.clone().flows(1).kinds(&[Kind::Udp4]).build().unwrap();
    let outcomes = std::thread::scope(|scope| {
        scope.spawn(|| {
            let is_over = || over.load(Ordering::Relaxed);
            send_traffic(&rig.wire, &traffic, 1_000_000, pause, is_over);
        });
        let run = |path| (path, rig.start(path, case, "right").wait(LIMIT));
        let outcomes: Vec<_> = paths.iter().copied().map(run).collect();
        over.store(true, Ordering::Relaxed);
        outcomes
    });
    let mut first = None;
    for (path, outcome) in outcomes {
        let finished = outcome.unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let printed = finished.text();
        assert!(finished.status.success(), "{path:?}: {printed}{}", finished.stderr);
        assert_eq!(first.get_or_insert(printed.clone()), &printed, "{path:?}");
    }
    first
}

/// Returns stock libpcap and the paths that do not take packets from others.
fn stock_and_passing() -> Vec<Option<&'static str>> {
    [None].into_iter().chain(PASSING.map(Some)).collect()
}

/// Returns stock libpcap and the paths that capture on all interfaces.
fn stock_and_sockets() -> Vec<Option<&'static str>> {
    [None].into_iter().chain(SOCKETS.map(Some)).collect()
}

#[test]
fn a_child_continues_after_its_parent_closes_or_exits() {
    if let Some(printed) = under_load("forked", &STOCK_AND_PATHS) {
        assert_eq!(printed, "child 0\ngrandchild done\n");
    }
}

#[test]
fn two_handles_take_turns() {
    if let Some(printed) = under_load("two-handles", &stock_and_passing()) {
        assert_eq!(printed, "30 33\n");
    }
}

#[test]
fn two_threads_loop_on_two_handles() {
    if let Some(printed) = under_load("two-threads", &stock_and_passing()) {
        assert_eq!(printed, "0 200\n0 200\n");
    }
}

#[test]
fn every_break_ends_a_loop() {
    if let Some(printed) = under_load("break-races", &STOCK_AND_PATHS) {
        assert_eq!(printed, "200 breaks, 200 loops\n");
    }
}

#[test]
fn no_packet_is_delivered_that_the_new_filter_rejects() {
    if let Some(printed) = under_load("filter-changes", &STOCK_AND_PATHS) {
        assert_eq!(printed, "no packet that the filter rejects\n");
    }
}

#[test]
fn a_callback_may_use_its_own_handle() {
    if let Some(printed) = under_load("in-callback", &STOCK_AND_PATHS) {
        assert_eq!(printed, "1 before the filter\n3 before each break\n");
    }
}

/// Stock libpcap loses 128 packets here, because its 16 blocks are used up after 100 ms each.
#[test]
fn a_callback_may_pause_on_a_quiet_link() {
    let (quiet, paths) = (Duration::from_millis(10), &STOCK_AND_PATHS[1..]);
    if let Some(printed) = with_frames("slow-callback", paths, &Traffic::builder(), quiet) {
        assert_eq!(printed, "0 dropped\n");
    }
}

#[test]
fn a_refused_frame_does_not_affect_later_ones() {
    if let Some(printed) = under_load("refused-frames", &STOCK_AND_PATHS) {
        assert_eq!(printed, "each by itself\n");
    }
}

#[test]
fn handles_leave_no_descriptors() {
    if let Some(printed) = under_load("many-handles", &stock_and_passing()) {
        assert_eq!(printed, "0 more descriptors\n");
    }
}

#[test]
fn all_interfaces_have_the_link_types_of_libpcap() {
    if let Some(printed) = under_load("on-any", &stock_and_sockets()) {
        assert_eq!(printed, "113 of 2: 113 276, then 0 276 and -1\n");
    }
}

#[test]
fn tags_are_found_by_a_program_without_privilege() {
    let (tagged, pause) = (Traffic::builder().vlan(Some(5)), Duration::from_micros(100));
    if let Some(printed) = with_frames("tags-without-privilege", &stock_and_passing(), &tagged, pause) {
        assert_eq!(printed, "tagged\n");
    }
}

#[test]
fn threads_may_end_in_a_loop() {
    if let Some(printed) = under_load("ended-threads", &STOCK_AND_PATHS) {
        assert_eq!(printed, "ended\n");
    }
}

#[test]
fn failed_activation_returns_libpcaps_code_and_message() {
    for path in STOCK_AND_PATHS {
        let Some(rig) = Rig::or_skip() else { return };
        let activate = |case, device| rig.start(path, case, device).wait(LIMIT).unwrap().success().text();
        let assert_error = |printed: &str, code: &str, meaning: &str, device: &str| {
            let (activated, opened) = printed.split_once('\n').unwrap();
            assert_eq!(activated, format!("{code} {meaning}"), "{path:?}");
            assert!(opened.starts_with(&format!("{device}: {meaning}")), "{path:?}: {opened}");
        };
        assert_error(&activate("activation", "nosuch0"), "-5", "No such device exists", "nosuch0");
        let denied = "You don't have permission to perform this capture on that device";
        assert_error(&activate("without-privilege", "right"), "-8", denied, "right");
        rig.wire.right().set_up(false);
        assert_error(&activate("activation", "right"), "-9", "That device is not up", "right");
    }
}

/// One handle receives the packets of all receive queues, or of the named ones.
#[test]
fn a_handle_reads_several_queues() {
    const FLOWS: u32 = 64;
    const FRAMES: u64 = 640;
    let Some(wire) = Wire::builder().queues(2).or_skip().filter(|_| program_or_skip("tcpdump")) else {
        return;
    };
    let traffic = Traffic::builder().flows(FLOWS).kinds(&[Kind::Udp4]).build().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    for queues in ["", "all", "0-1"] {
        let launch =
            wire.right().command("tcpdump").args(["-Z", "root", "-ni", "right", "-w"]).arg(file.path());
        let launch = launch.args(["-c", &FRAMES.to_string(), "udp"]);
        let process = reporting_on(Some("xdp"), launch).env("STRAIT_QUEUES", queues).spawn().unwrap();
        process.wait_for_stderr("listening on", LIMIT).unwrap();
        send_traffic(&wire, &traffic, FRAMES, Duration::from_micros(50), || false);
        let finished = process.wait(LIMIT).unwrap().success();
        assert!(finished.stderr.contains(&format!("{FRAMES} packets captured")), "{}", finished.stderr);
        assert!(finished.stderr.contains("the ledger balances"), "{}", finished.stderr);
    }
}

#[test]
fn a_deleted_device_is_reported_as_disappeared() {
    let with_lanes = [Some("recv"), Some("v2"), Some("v3")].map(|path| (path, "0-1"));
    for (path, queues) in STOCK_AND_PATHS.map(|path| (path, "")).into_iter().chain(with_lanes) {
        let Some(rig) = Rig::or_skip() else { return };
        let launch = rig.wire.right().command(&rig.program).args(["until-error", "right"]);
        let process = on(path, launch).env("STRAIT_QUEUES", queues).spawn().unwrap();
        process.wait_for_stdout("ready", LIMIT).unwrap();
        rig.wire.right().delete();
        let finished = process.wait(LIMIT).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert_eq!(finished.text(), "ready\n-1 The interface disappeared\n", "{path:?}");
    }
}

#[test]
fn a_device_that_went_down_brings_packets_when_it_is_up_again() {
    for path in stock_and_passing() {
        let Some(rig) = Rig::or_skip() else { return };
        let process = rig.start(path, "until-error", "right");
        process.wait_for_stdout("ready", LIMIT).unwrap();
        for up in [false, true] {
            rig.wire.right().set_up(up);
            assert!(lab::wait_until(LIMIT, || rig.wire.right().interface().is_running() == up));
        }
        send(&rig.wire, &[Kind::Udp4], 10, Duration::from_millis(1), || false);
        let packets = process.wait_for_stdout("packets", LIMIT);
        packets.unwrap_or_else(|error| panic!("{path:?}: {error}"));
    }
}

/// Packets that were not read are counted as unread, and the report does not wait for them.
#[test]
fn a_report_does_not_wait_for_packets_that_have_arrived() {
    for (path, printed, reported) in reports_under_load("close-with-unread") {
        assert_eq!(printed, "few waits\n", "{path}: {reported}");
        assert!(
            reported.contains("unread") && reported.contains("the ledger balances"),
            "{path}: {reported}"
        );
    }
}

#[test]
fn a_child_that_does_not_read_leaves_the_counters_to_its_parent() {
    for (path, printed, reported) in reports_under_load("children-that-do-not-read") {
        assert_eq!(printed, "all counted\n", "{path}: {reported}");
        let reports = reported.matches("wait balanced; ring ").count();
        assert_eq!(reports, 1, "{path}: {reported}");
    }
}

#[test]
fn unsupported_monitor_mode_has_libpcaps_error() {
    let printed = under_load("monitor-mode", &STOCK_AND_PATHS);
    assert!(printed.is_none_or(|printed| printed.starts_with("-6 ") && printed.trim().len() > 10));
}

/// AF_XDP takes packets from every other handle, so the second activation fails if either handle is
/// on AF_XDP.
#[test]
fn a_second_handle_is_refused_if_one_would_receive_nothing() {
    let Some(rig) = Rig::or_skip() else { return };
    let second = |path: &str, device: &str| {
        let finished = rig.start(Some(path), "opened-twice", device).wait(LIMIT).unwrap().success();
        finished.text()
    };
    for (path, device) in [("xdp", "right"), ("v3", "xdp:right"), ("xdp", "v3:right")] {
        let output = second(path, device);
        assert!(
            output.starts_with("right: this program has right open already"),
            "{path} {device}: {output}"
        );
        assert!(output.contains("strait run --path v3"), "{path} {device}: {output}");
    }
    for path in PASSING {
        assert_eq!(second(path, "right"), "open\n");
    }
}

/// A handle on all interfaces would miss the packets that AF_XDP takes, regardless of the order.
#[test]
fn all_interfaces_are_refused_with_an_open_handle_that_takes_packets() {
    let Some(rig) = Rig::or_skip() else { return };
    let second = |devices: &str| {
        let finished = rig.start(Some("v3"), "opened-beside", devices).wait(LIMIT).unwrap().success();
        finished.text()
    };
    for devices in ["xdp:right+any", "any+xdp:right"] {
        let output = second(devices);
        let other = if devices.starts_with("any") { "any" } else { "right" };
        assert!(output.contains(&format!("this program has {other} open already")), "{devices}: {output}");
        assert!(output.contains("strait run --path v3"), "{devices}: {output}");
    }
    for devices in ["right+any", "any+right", "xdp:right+lo"] {
        assert_eq!(second(devices), "open\n", "{devices}");
    }
}

/// An interface can have several names (ip-link(8), altname) for one device.
#[test]
fn an_open_device_is_refused_by_its_other_name() {
    let Some(rig) = Rig::or_skip().filter(|_| program_or_skip("ip")) else { return };
    let named = rig.wire.right().command("ip").args("link property add dev right altname other".split(' '));
    if !named.run(LIMIT).unwrap().status.success() {
        return lab::skip("ip cannot give an interface a second name");
    }
    let started = rig.start(Some("v3"), "opened-beside", "xdp:right+other");
    let output = started.wait(LIMIT).unwrap().success().text();
    assert!(output.contains("this program has right open already"), "{output}");
}

#[test]
fn one_of_two_concurrent_activations_on_af_xdp_succeeds() {
    let Some(rig) = Rig::or_skip() else { return };
    let finished = rig.start(Some("xdp"), "activated-together", "right").wait(LIMIT).unwrap().success();
    assert_eq!(finished.text(), "1 active\n".repeat(20));
}

/// AF_XDP refuses an unsupported request of a callback at once, and the loop continues.
#[test]
fn unsupported_filters_and_directions_are_refused_in_a_callback() {
    let Some(printed) = under_load("loop-filter-in-callback", &stock_and_passing()) else { return };
    assert_eq!(printed, "0 \n0 \n0 50 seen\n");
    let Some(printed) = under_load("loop-filter-in-callback", &[Some("xdp")]) else { return };
    let lines: Vec<_> = printed.lines().collect();
    assert!(lines[0].starts_with("-1 ") && lines[0].contains("do not reach the host"), "{printed}");
    assert!(lines[1].starts_with("-1 ") && lines[1].contains("captures only received frames"), "{printed}");
    assert_eq!(lines[2], "0 50 seen", "{printed}");
}
