//! The end of a capture by signal, count and duration; directions; the JSON object.

use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt as _;

use lab::Wire;
use rustix::process::Signal;

use crate::rig::{
    Capture, LIMIT, PATHS, SOCKET_PATHS, assert_complete, balances, count, failure, ledger, lost, numbered,
    packets, send, sequence, strait, transmit, without_notes,
};

#[test]
fn signal_ends_a_capture_with_ledger_and_complete_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture.pcapng");
    for path in PATHS {
        for signal in [Signal::INT, Signal::TERM] {
            let Some(wire) = Wire::builder().or_skip() else { return };
            let capture = Capture::start(wire.right(), &["-p", path, "-w", file.to_str().unwrap()]);
            send(&wire, &numbered(20));
            let finished = capture.end(signal).success();
            let stderr = without_notes(&finished.stderr);
            assert!(stderr.starts_with(&format!("listening on right, {path}, ")), "{stderr}");
            assert!(stderr.contains(&format!("\nright: path {path} (")), "{stderr}");
            let (_, last) = stderr
                .split_once("\nthe ledger balances: received = delivered + filtered + lost\n")
                .unwrap_or_else(|| panic!("{stderr}"));
            let size = std::fs::metadata(&file).unwrap().len().to_string();
            assert_eq!(
                last.replace(',', ""),
                format!("wrote 20 packets {size} bytes to {}\n", file.display())
            );
            assert!(finished.stdout.is_empty());
            assert_complete(&file, 20);
        }
    }
}

#[test]
fn signal_that_is_repeated_at_once_ends_a_capture_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture.pcapng");
    let Some(wire) = Wire::builder().or_skip() else { return };
    // As timeout(1) does, which signals its child and then its process group.
    for attempt in 0..20 {
        let capture = Capture::start(wire.right(), &["-w", file.to_str().unwrap()]);
        capture.signal_often(Signal::INT, 50);
        let finished = capture.wait();
        assert!(finished.status.success(), "{attempt}: {}: {}", finished.status, finished.stderr);
    }
}

#[test]
fn signal_before_the_first_packet_ends_a_capture() {
    for path in PATHS {
        for wait in ["latency", "balanced", "busy"] {
            let Some(wire) = Wire::builder().or_skip() else { return };
            let capture = Capture::start(wire.right(), &["-p", path, "--wait", wait, "--json"]);
            assert_eq!(count(&ledger(&capture.finish()), "received"), 0);
        }
    }
}

/// Returns a filter that libpcap needs seconds to compile.
fn long_filter() -> String {
    let ports: Vec<String> = (0..4001).map(|port| format!("port {}", 2 * port + 1)).collect();
    ports.join(" or ")
}

#[test]
fn signal_ends_the_compilation_of_a_long_filter() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let filter = long_filter();
    let top = ["top", "-i", "right", "--json", &filter];
    for arguments in [["capture", "-i", "right", "--json", &filter], top] {
        let process = strait(wire.right(), &arguments).spawn().unwrap();
        // libpcap is loaded only for the compilation.
        let maps = format!("/proc/{}/maps", process.id());
        let compiles = || std::fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("libpcap.so"));
        assert!(lab::wait_until(LIMIT, compiles), "{}", process.stderr());
        process.signal(Signal::INT);
        let ended = process.wait(LIMIT).unwrap();
        assert_eq!(ended.status.signal(), Some(Signal::INT.as_raw()), "{}: {}", ended.status, ended.stderr);
    }
}

#[test]
fn count_is_exact_on_one_lane() {
    count_is_exact(&[], 1);
}

#[test]
fn count_is_exact_on_three_lanes() {
    count_is_exact(&["--queues", "0-2"], 3);
}

fn count_is_exact(options: &[&str], lanes: usize) {
    let Some(wire) = Wire::builder().queues(3).or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture.pcapng");
    for path in PATHS {
        let fixed = ["-p", path, "--count", "100", "--json", "-w", file.to_str().unwrap()];
        let capture = Capture::start(wire.right(), &[&fixed, options].concat());
        // Fewer packets do not end it.
        send(&wire, &numbered(99));
        assert!(file.with_extension("pcapng.part").exists(), "{path}: ended after 99 packets");
        transmit(&wire, &numbered(300)[99..]);
        let ledger = ledger(&capture.wait().success());
        assert_eq!(count(&ledger, "delivered"), 100, "{ledger}");
        assert_eq!(sequence(&file).len(), 100);
        // XDP has one lane per queue, and the kernel selects the queue of a veth by the sender's
        // CPU.
        let seen = ledger["lanes"].as_array().unwrap();
        assert_eq!(seen.len(), if path == "xdp" { 3 } else { lanes }, "{ledger}");
        assert!(seen.iter().all(balances), "{ledger}");
        // Later packets do not belong to the capture.
        assert_eq!((count(&ledger, "received"), lost(&ledger)), (100, 0), "{ledger}");
        if lanes == 1 && path != "xdp" {
            assert_complete(&file, 100);
        }
    }
}

#[test]
fn packets_after_the_count_are_neither_received_nor_lost() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in PATHS {
        for filter in ["", "udp"] {
            let capture = Capture::start(
                wire.right(),
                &["-p", path, "--count", "3", "--json", "--direction", "in", "--ring-mib", "1", filter],
            );
            // The packets fill the ring many times over before any is read.
            capture.freeze();
            let before = wire.right().stats().rx_packets;
            transmit(&wire, &numbered(20_000));
            wire.await_arrival(before, 20_000);
            capture.thaw();
            let ledger = ledger(&capture.wait().success());
            assert_eq!((count(&ledger, "delivered"), lost(&ledger)), (3, 0), "{path} {filter}: {ledger}");
            let filtered = count(&ledger, "filtered");
            assert_eq!(count(&ledger, "received"), 3 + filtered, "{path} {filter}: {ledger}");
            assert!(filter == "udp" || filtered == 0, "{path}: {ledger}");
        }
    }
}

#[test]
fn flow_stays_on_its_lane_and_lanes_share_the_work() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in SOCKET_PATHS {
        let capture = Capture::start(wire.right(), &["-p", path, "--queues", "0-2", "--json"]);
        send(&wire, &numbered(160));
        let ledger = ledger(&capture.finish());
        assert_eq!(count(&ledger, "delivered"), 160);
        let lanes = ledger["lanes"].as_array().unwrap();
        let numbers: Vec<_> = lanes.iter().map(|lane| lane["queue"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [0, 1, 2]);
        // 16 flows of 10 packets each.
        let busy = lanes.iter().filter(|lane| count(lane, "delivered") > 0).count();
        assert!(busy > 1 && lanes.iter().all(|lane| count(lane, "delivered").is_multiple_of(10)), "{ledger}");
    }
}

#[test]
fn duration_ends_a_capture() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in PATHS {
        let arguments = ["capture", "-i", "right", "-p", path, "--duration", "0.3", "--json"];
        let finished = strait(wire.right(), &arguments).run(LIMIT).unwrap().success();
        let seconds = ledger(&finished)["seconds"].as_f64().unwrap();
        assert!(seconds >= 0.3, "{seconds}");
    }
}

#[test]
fn direction_selects_received_or_sent_packets() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    for path in SOCKET_PATHS {
        for (direction, expected) in [("in", &[3_u16][..]), ("out", &[4, 4]), ("both", &[3, 4, 4])] {
            assert_eq!(ports_seen(&wire, path, direction), expected, "{path} {direction}");
        }
    }
}

/// Returns the destination ports that a capture at the right end sees of one received and two sent
/// datagrams.
fn ports_seen(wire: &Wire, path: &str, direction: &str) -> Vec<u16> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture.pcapng");
    let options = ["-p", path, "--direction", direction, "-w", file.to_str().unwrap(), "--json"];
    let (left, right) = (wire.left(), wire.right());
    let capture = Capture::start(right, &[&options[..], &["udp"]].concat());
    let before = (left.stats().rx_packets, right.stats().rx_packets);
    let inward = left.run(|| UdpSocket::bind((left.ipv4(), 0)).unwrap());
    inward.send_to(b"in", (right.ipv4(), 3)).unwrap();
    assert!(lab::wait_until(LIMIT, || right.stats().rx_packets > before.1));
    let outward = right.run(|| UdpSocket::bind((right.ipv4(), 0)).unwrap());
    for _ in 0..2 {
        outward.send_to(b"out", (left.ipv4(), 4)).unwrap();
    }
    assert!(lab::wait_until(LIMIT, || left.stats().rx_packets >= before.0 + 2));
    let ledger = ledger(&capture.finish());
    let packets = packets(&file);
    assert_eq!(count(&ledger, "delivered"), packets.len() as u64);
    packets.iter().map(|packet| u16::from_be_bytes([packet.bytes[36], packet.bytes[37]])).collect()
}

#[test]
fn xdp_refuses_to_capture_sent_packets() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let arguments = ["capture", "-i", "right", "-p", "xdp", "--direction", "out"];
    let (code, line) = failure(&strait(wire.right(), &arguments).run(LIMIT).unwrap());
    assert_eq!(code, 2);
    assert!(line.contains("captures only received frames"), "{line}");
}

#[test]
fn json_object_has_exactly_the_documented_keys() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let session = [
        "path",
        "mode",
        "interface",
        "seconds",
        "link_down_seconds",
        "no_carrier_seconds",
        "received",
        "delivered",
        "filtered",
        "lost",
        "bytes",
        "wire_bytes",
        "copied_bytes",
        "events",
        "lanes",
    ];
    let packets = ["queue", "cpu", "received", "delivered", "filtered", "lost"];
    let lane = [&packets[..], &["bytes", "wire_bytes", "copied_bytes", "events"]].concat();
    let lost = ["nic_missed", "ring_full", "fill_empty", "sink", "unread", "other"];
    let events =
        ["queue_freezes", "snaplen_cuts", "fill_ring_empty", "fallbacks", "link_downs", "carrier_losses"];
    for path in PATHS {
        let finished = Capture::start(wire.right(), &["-p", path, "--json", "--cpus", "0"]).finish();
        assert_eq!(without_notes(&finished.stderr), "");
        let object = ledger(&finished);
        assert_keys(&object, &session);
        assert_keys(&object["lanes"][0], &lane);
        assert_keys(&object["lost"], &lost);
        assert_keys(&object["events"], &events);
        assert_eq!(object["lanes"][0]["cpu"], 0);
        assert_eq!((&object["interface"], &object["path"]), (&"right".into(), &path.into()));
    }
}

fn assert_keys(object: &serde_json::Value, expected: &[&str]) {
    let mut keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = expected.to_vec();
    keys.sort_unstable();
    expected.sort_unstable();
    assert_eq!(keys, expected);
}
