//! `--netns`: interfaces of another network namespace, by name, process and path.

use std::fs;
use std::os::unix::fs::symlink;

use lab::{Launch, Wire, program_or_skip, root_or_skip, wait_until};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::rig::{
    Capture, LIMIT, PATHS, STRAIT, assert_complete, count, failure, ledger, numbered, run, send,
};

const FRAMES: u64 = 50;

/// A process in the namespace of the right end.
fn resident(wire: &Wire) -> lab::Process {
    let process = wire.right().command("sleep").arg("1000").spawn().unwrap();
    let id = process.id();
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let elsewhere = || fs::read_link(format!("/proc/{id}/ns/net")).is_ok_and(|link| link != own);
    assert!(wait_until(LIMIT, elsewhere));
    process
}

#[test]
fn interface_of_a_process_is_captured_on_every_path() {
    for path in PATHS {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let resident = resident(&wire);
        let process = resident.id().to_string();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("capture.pcapng");
        let options = ["-p", path, "-Q", "in", "--json", "-w", file.to_str().unwrap(), "udp or tcp"];
        let launch = Launch::new(STRAIT).args(["capture", "--netns", &process, "-i", "right"]).args(options);
        let capture = Capture::watch(launch);
        let before = wire.right().stats().rx_packets;
        send(&wire, &numbered(FRAMES));
        let received = wire.right().stats().rx_packets - before;
        let ledger = ledger(&capture.finish());
        assert_eq!(
            (count(&ledger, "received"), count(&ledger, "delivered")),
            (received, FRAMES),
            "{path}: {ledger}"
        );
        assert_complete(&file, FRAMES);
    }
}

#[test]
fn frames_that_the_filter_rejects_are_counted_by_the_device_of_that_namespace() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let resident = resident(&wire);
    let process = resident.id().to_string();
    let arguments = ["capture", "--netns", &process, "-i", "right", "-Q", "in", "--json", "udp"];
    let capture = Capture::watch(Launch::new(STRAIT).args(arguments));
    send(&wire, &numbered(FRAMES));
    let ledger = ledger(&capture.finish());
    let counts = ["received", "delivered", "filtered"].map(|name| count(&ledger, name));
    assert_eq!(counts, [FRAMES, FRAMES / 2, FRAMES / 2], "{ledger}");
}

#[test]
fn names_and_lists_are_those_of_the_namespace() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let resident = resident(&wire);
    let process = resident.id().to_string();
    let list = run(&["capture", "--netns", &process, "-D"]).success().text();
    let names: Vec<&str> = list.lines().filter_map(|line| line.split(['.', ' ']).nth(1)).collect();
    assert_eq!(names, ["lo", "right", "any"], "{list}");
    let launch =
        Launch::new(STRAIT).args(["capture", "--netns", &process, "-i", "any", "-Q", "in", "-c", "10"]);
    let capture = Capture::watch(launch);
    send(&wire, &numbered(FRAMES));
    let text = capture.wait().success().text();
    assert!(text.lines().all(|line| line.contains(" right In  IP") || line.contains(" right B ")), "{text}");
}

/// Name of `ip netns` that is removed with this value.
struct Named<'a>(&'a str);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        let _ = Launch::new("ip").args(["netns", "delete", self.0]).run(LIMIT);
    }
}

#[test]
fn namespace_is_found_by_name_and_by_path() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("ip")) else { return };
    let process = resident(&wire);
    let name = format!("strait-test-{}", process.id());
    let id = process.id().to_string();
    let attached = Launch::new("ip").args(["netns", "attach", &name, &id]).run(LIMIT).unwrap();
    if !attached.status.success() {
        lab::skip(format!("ip netns attach: {}", attached.stderr));
        return;
    }
    let _named = Named(&name);
    let path = format!("/run/netns/{name}");
    for netns in [&name, &path] {
        let arguments = ["capture", "--netns", netns, "-i", "right", "-Q", "in", "--json"];
        let capture = Capture::watch(Launch::new(STRAIT).args(arguments));
        send(&wire, &numbered(FRAMES));
        assert_eq!(count(&ledger(&capture.finish()), "delivered"), FRAMES, "{netns}");
    }
}

#[test]
fn generate_and_top_use_the_namespace() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let resident = resident(&wire);
    let process = resident.id().to_string();
    let before = wire.left().stats().rx_packets;
    let arguments = ["generate", "--netns", &process, "-o", "right", "--count", "30", "--json"];
    let sent = run(&arguments).success();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&sent.text()).unwrap()["frames"], 30);
    assert!(wait_until(LIMIT, || wire.left().stats().rx_packets - before == 30));
    let arguments = ["top", "--netns", &process, "-i", "right", "--json", "--interval", "0.1"];
    let top = Capture::watch(Launch::new(STRAIT).args(arguments));
    send(&wire, &numbered(FRAMES));
    let finished = top.finish();
    assert!(finished.stderr.contains("right: path v3"), "{}", finished.stderr);
    assert!(finished.text().lines().count() > 0);
}

#[test]
fn namespaces_that_cannot_be_entered_are_refused_in_one_line() {
    if !root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    fs::write(place("file"), "").unwrap();
    symlink("/proc/self/ns/uts", place("uts")).unwrap();
    mknodat(CWD, place("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    for (netns, words) in [
        ("no-such-name", "/run/netns/no-such-name: there is no such namespace; `ip netns` lists them"),
        ("4194304", "/proc/4194304/ns/net: there is no such process"),
        (&place("none"), "give the path of a namespace"),
        (&place("file"), "is no network namespace"),
        (&place("fifo"), "is no network namespace"),
        (&place("uts"), "is no network namespace"),
        ("..", "give the name of a namespace"),
        (&"x".repeat(256), "a name has at most 255 bytes"),
    ] {
        for arguments in
            [&["capture", "-i", "lo"][..], &["top", "--json", "-i", "lo"], &["generate", "-o", "lo"]]
        {
            let finished = run(&[arguments, &["--netns", netns]].concat());
            assert_eq!(finished.status.code(), Some(2), "{netns}: {}", finished.stderr);
            assert!(finished.stderr.contains(words), "{netns}: {}", finished.stderr);
        }
    }
    let (code, line) = failure(&run(&["capture", "--netns", "1", "-r", "x.pcap"]));
    assert!(code == 2 && line.contains("--netns is for interfaces"), "{line}");
}

#[test]
fn namespace_is_refused_without_privilege() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("setpriv")) else { return };
    let resident = resident(&wire);
    let process = resident.id().to_string();
    let bare = ["--inh-caps=-sys_admin", "--bounding-set=-sys_admin", STRAIT];
    let arguments = ["capture", "--netns", &process, "-i", "right"];
    let (code, line) = failure(&Launch::new("setpriv").args(bare).args(arguments).run(LIMIT).unwrap());
    assert_eq!(code, 3, "{line}");
    assert!(line.contains("needs CAP_SYS_ADMIN: run as root"), "{line}");
}
