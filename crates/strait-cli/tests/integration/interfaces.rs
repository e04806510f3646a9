//! `strait capture -i ONE -i TWO`: one output and one ledger for several interfaces.

use std::fs;
use std::path::Path;

use lab::{Wire, program_or_skip, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use strait_capture::{InjectPath, Injector};
use strait_os::interface::Interface;
use strait_os::netlink::{Netlink, VethEnd};

use crate::disk::SmallDisk;
use crate::metrics::{address, scrape, sum};
use crate::rig::{
    Capture, LIMIT, SOCKET_PATHS, balances, count, failure, ledger, lost, numbered, send, strait,
};
use crate::tables::Lake;
use crate::tools::{self, tshark};

/// Beginning of the note of a removed interface.
const NOTE: &str = "strait: note: capture on third: the interface was removed";
const RIGHT: u64 = 40;
const THIRD: u64 = 80;

/// Creates a wire with the link `third` to `fourth` in the namespace of the right end.
fn two_links() -> Option<Wire> {
    let wire = Wire::builder().or_skip()?;
    wire.right().run(|| {
        let mut netlink = Netlink::open().unwrap();
        netlink.add_veth(&VethEnd::new("third"), &VethEnd::new("fourth")).unwrap();
        for name in ["third", "fourth"] {
            let index = netlink.interface(name).unwrap().index;
            netlink.set_up(index, true).unwrap();
        }
    });
    let is_running =
        |name: &str| wire.right().run(|| Interface::find(name)).is_ok_and(|link| link.is_running());
    assert!(wait_until(LIMIT, || is_running("third") && is_running("fourth")));
    Some(wire)
}

/// Returns the number of packets that an interface of the right namespace has received.
fn received(wire: &Wire, name: &str) -> u64 {
    wire.right().run(|| {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.interface(name).unwrap().index;
        netlink.stats(index).unwrap().rx_packets
    })
}

/// Sends frames to `third`, then frames to `right`, and waits until all have arrived.
fn send_to_both(wire: &Wire, third: u64, right: u64) {
    let before = received(wire, "third");
    wire.right().run_in_order(|| {
        let mut injector = Injector::open("fourth", InjectPath::Sendmmsg).unwrap();
        for frame in numbered(third) {
            injector.buffer().unwrap()[..frame.len()].copy_from_slice(&frame);
            injector.push(frame.len());
        }
        assert_eq!(injector.finish().unwrap().frames, third);
    });
    // Waits also until the backlogs of all CPUs are empty.
    send(wire, &numbered(right));
    assert!(wait_until(LIMIT, || received(wire, "third") - before == third));
}

/// Starts a capture of received frames on `right` and `third`.
fn start(wire: &Wire, arguments: &[&str]) -> Capture {
    let interfaces = ["capture", "-i", "right", "-i", "third", "-Q", "in"];
    Capture::watch(strait(wire.right(), &interfaces).args(arguments))
}

/// Returns the ledger of the interface, which must balance, as must its lanes.
fn interface<'a>(ledger: &'a Value, name: &str) -> &'a Value {
    let all = ledger["interfaces"].as_array().expect("an object for each interface");
    let found = all.iter().find(|interface| interface["interface"] == name).expect("the interface");
    let lanes = found["lanes"].as_array().unwrap();
    assert!(balances(found) && lanes.iter().all(balances), "{found}");
    found
}

/// Returns how many packets of the file are of each interface, as tshark reads it.
fn packets_by_interface(file: &Path) -> Vec<(String, u64)> {
    let mut counts: Vec<(String, u64)> = Vec::new();
    for row in tshark(file, &[], &["frame.interface_name"]) {
        match counts.iter_mut().find(|(name, _)| *name == row[0]) {
            Some((_, count)) => *count += 1,
            None => counts.push((row[0].clone(), 1)),
        }
    }
    counts.sort();
    counts
}

#[test]
fn packets_and_counts_of_each_interface_agree_with_its_device() {
    for (path, options) in
        [("v3", &["--queues", "0-1"][..]), ("v2", &[]), ("recv", &[]), ("tap", &[]), ("xdp", &[])]
    {
        let Some(wire) = two_links().filter(|_| tools::present()) else { return };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("all.pcapng");
        let fixed = ["-p", path, "--json", "-w", file.to_str().unwrap()];
        let before = [received(&wire, "right"), received(&wire, "third")];
        let capture = start(&wire, &[&fixed, options, &["udp"]].concat());
        send_to_both(&wire, THIRD, RIGHT);
        let finished = capture.finish();
        let ledger = ledger(&finished);
        assert_eq!(ledger["interface"], "right,third");
        for (name, before, sent) in [("right", before[0], RIGHT), ("third", before[1], THIRD)] {
            let own = interface(&ledger, name);
            let seen = if path == "xdp" { sent } else { received(&wire, name) - before };
            assert_eq!(
                (count(own, "received"), count(own, "delivered"), lost(own)),
                (seen, sent / 2, 0),
                "{path} {own}"
            );
        }
        for key in ["received", "delivered", "filtered", "bytes"] {
            let sum = ["right", "third"].iter().map(|name| count(interface(&ledger, name), key)).sum::<u64>();
            assert_eq!(count(&ledger, key), sum, "{path} {key}");
        }
        let numbers: Vec<_> =
            ledger["lanes"].as_array().unwrap().iter().map(|lane| lane["queue"].clone()).collect();
        let mut distinct = numbers.clone();
        distinct.dedup();
        assert_eq!(numbers, distinct, "{path}");
        let expected = [("right".to_owned(), RIGHT / 2), ("third".to_owned(), THIRD / 2)];
        assert_eq!(packets_by_interface(&file), expected, "{path}");
    }
}

#[test]
fn file_describes_each_interface_and_has_its_statistics() {
    let Some(wire) = two_links().filter(|_| program_or_skip("capinfos")) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("all.pcapng");
    let capture = start(&wire, &["-s", "2000", "-w", file.to_str().unwrap(), "ip"]);
    send_to_both(&wire, THIRD, RIGHT);
    let finished = capture.finish();
    let text = lab::Launch::new("capinfos").arg("-M").arg(&file).run(LIMIT).unwrap().success().text();
    let interfaces: Vec<&str> = text.split("Interface #").skip(1).collect();
    assert_eq!(interfaces.len(), 2, "{text}");
    for (described, name, sent) in [(interfaces[0], "right", RIGHT), (interfaces[1], "third", THIRD)] {
        let lines: Vec<&str> = described.lines().map(str::trim).collect();
        let packets = format!("Number of packets = {}", sent / 2);
        // Veth drivers report this speed.
        let fields = [
            "Speed = 10000000000",
            "Capture length = 2000",
            "Filter string = ip",
            "Time precision = nanoseconds (9)",
        ];
        for field in
            [&format!("Name = {name}"), &packets, "Number of stat entries = 1"].into_iter().chain(fields)
        {
            assert!(lines.contains(&field), "{field}: {text}");
        }
    }
    for (name, received, delivered) in [("right", RIGHT, RIGHT / 2), ("third", THIRD, THIRD / 2)] {
        let row = format!("  {name:<22}{received:>20}  delivered {delivered}, lost 0\n");
        assert!(finished.stderr.contains(&row), "{}", finished.stderr);
    }
}

#[test]
fn lines_name_the_interface() {
    let Some(wire) = two_links() else { return };
    let capture = start(&wire, &["-c", "120"]);
    send_to_both(&wire, THIRD, RIGHT);
    let text = capture.wait().success().text();
    for (name, sent) in [("right", RIGHT), ("third", THIRD)] {
        let lines = text.lines().filter(|line| line.contains(&format!(" {name} In  IP")));
        assert_eq!(lines.count() as u64, sent, "{text}");
    }
}

#[test]
fn metrics_have_the_counts_of_each_interface() {
    let Some(wire) = two_links() else { return };
    let capture = start(&wire, &["--metrics", "0", "--quiet"]);
    assert!(wait_until(LIMIT, || address(&capture.stderr()).is_some()));
    let address = address(&capture.stderr()).unwrap();
    send_to_both(&wire, THIRD, RIGHT);
    let has_all = || {
        let text = wire.right().run(|| scrape(address));
        let delivered = |name| sum(&text, "strait_capture_delivered_total", &format!("interface=\"{name}\""));
        (delivered("right"), delivered("third")) == (RIGHT, THIRD)
    };
    assert!(wait_until(LIMIT, has_all));
    let _ = capture.finish();
}

#[test]
fn tables_have_the_interface_of_each_packet_and_of_the_ledger() {
    let Some(lake) = Lake::or_skip() else { return };
    let Some(wire) = two_links() else { return };
    let capture = start(&wire, &["--to", &lake.url(), "--queues", "0-1"]);
    send_to_both(&wire, THIRD, RIGHT);
    let _ = capture.finish();
    for (name, sent) in [("right", RIGHT), ("third", THIRD)] {
        let expected = sent as i64;
        let packets = format!("select count(*) from packets where interface = '{name}'");
        assert_eq!(lake.numbers(&packets), [expected], "{name}");
        let counts = format!("select sum(received), sum(delivered) from ledger where interface = '{name}'");
        assert_eq!(lake.numbers(&counts), [expected, expected], "{name}");
    }
    assert_eq!(lake.numbers("select count(distinct lane) from ledger where lane is not null"), [4]);
}

/// Writes IP packets to the tun device `plain`: each line of standard input is one, in hexadecimal.
const WRITER: &str = "
import fcntl, os, struct, sys
tun = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH', b'plain', 0x1001))
print('attached', flush=True)
for line in sys.stdin:
    os.write(tun, bytes.fromhex(line.strip()))
print('written', flush=True)
sys.stdin.close()
";

fn hexadecimal(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from_digit(digit.into(), 16).unwrap()).collect()
}

#[test]
fn interfaces_of_two_link_types_are_in_one_pcapng_file_and_refused_for_pcap() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !program_or_skip("ip") || !program_or_skip("python3") || !tools::present() {
        return;
    }
    let ip = |line: &str| wire.right().command("ip").args(line.split(' ')).run(LIMIT).unwrap().success();
    let _ = ip("tuntap add mode tun name plain");
    let _ = ip("link set plain up");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mixed.pcapng");
    let interfaces = ["capture", "-i", "right", "-i", "plain", "-Q", "in", "-w"];
    let pcap = directory.path().join("mixed.pcap");
    let refused = strait(wire.right(), &interfaces).arg(&pcap).run(LIMIT).unwrap();
    let (code, line) = failure(&refused);
    assert!(code == 2 && line.contains("a pcap file holds one link type: use pcapng"), "{line}");
    assert!(!pcap.exists());

    let capture = Capture::watch(strait(wire.right(), &interfaces).arg(&file).args(["--json", "udp"]));
    let packets: Vec<String> = numbered(THIRD)
        .iter()
        .filter(|frame| frame[12..14] == [8, 0])
        .map(|frame| hexadecimal(&frame[14..]))
        .collect();
    let mut input = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut input, (packets.join("\n") + "\n").as_bytes()).unwrap();
    std::io::Seek::rewind(&mut input).unwrap();
    let written =
        wire.right().command("python3").args(["-c", WRITER]).stdin(input).run(LIMIT).unwrap().success();
    assert!(written.text().contains("written"));
    send(&wire, &numbered(RIGHT));
    let ledger = ledger(&capture.finish());
    // Every second one is TCP.
    let plain = packets.len() as u64 / 2;
    assert_eq!(count(interface(&ledger, "right"), "delivered"), RIGHT / 2);
    assert!(count(interface(&ledger, "plain"), "delivered").abs_diff(plain) <= 1);
    let delivered = count(interface(&ledger, "plain"), "delivered");
    let expected = [("plain".to_owned(), delivered), ("right".to_owned(), RIGHT / 2)];
    assert_eq!(packets_by_interface(&file), expected);
    let protocols = tshark(&file, &[], &["frame.interface_name", "frame.protocols"]);
    for row in protocols {
        let start = if row[0] == "plain" { "raw:ip" } else { "eth:" };
        assert!(row[1].starts_with(start), "{row:?}");
    }
}

#[test]
fn others_go_on_when_an_interface_disappears() {
    for path in SOCKET_PATHS {
        let Some(wire) = two_links() else { return };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("all.pcapng");
        let capture = start(&wire, &["-p", path, "--queues", "0-1", "--json", "-w", file.to_str().unwrap()]);
        send_to_both(&wire, THIRD, RIGHT);
        wire.right().run(|| {
            let mut netlink = Netlink::open().unwrap();
            let index = netlink.interface("third").unwrap().index;
            netlink.delete(index).unwrap();
        });
        assert!(wait_until(LIMIT, || capture.stderr().contains(NOTE)), "{path}: {}", capture.stderr());
        send(&wire, &numbered(RIGHT));
        let finished = capture.end(Signal::INT);
        assert_eq!(finished.status.code(), Some(1), "{path}: {}", finished.stderr);
        let notes = finished.stderr.lines().filter(|line| line.starts_with("strait: note: capture on"));
        let notes: Vec<&str> = notes.collect();
        assert_eq!(notes.len(), 1, "{path}: {}", finished.stderr);
        assert!(notes[0].ends_with("; the other interfaces go on"), "{path}: {}", notes[0]);
        let last = finished.stderr.lines().rfind(|line| line.starts_with("strait: capture on third: "));
        assert!(last.is_some(), "{path}: {}", finished.stderr);
        let ledger = ledger(&finished);
        let delivered = |name| count(interface(&ledger, name), "delivered");
        assert_eq!((delivered("right"), delivered("third")), (2 * RIGHT, THIRD), "{path}");
        assert_eq!(crate::rig::packets(&file).len() as u64, 2 * RIGHT + THIRD, "{path}");
    }
}

#[test]
fn metrics_keep_the_last_counts_and_times_of_a_removed_interface() {
    let Some(wire) = two_links() else { return };
    let capture = start(&wire, &["--metrics", "0", "--quiet"]);
    assert!(wait_until(LIMIT, || address(&capture.stderr()).is_some()));
    let address = address(&capture.stderr()).unwrap();
    send_to_both(&wire, THIRD, RIGHT);
    wire.right().run(|| {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.interface("third").unwrap().index;
        netlink.delete(index).unwrap();
    });
    assert!(wait_until(LIMIT, || capture.stderr().contains(NOTE)), "{}", capture.stderr());
    let of_third = |name| sum(&wire.right().run(|| scrape(address)), name, "interface=\"third\"");
    assert!(wait_until(LIMIT, || of_third("strait_capture_delivered_total") == THIRD));
    let down = || {
        let text = wire.right().run(|| scrape(address));
        let is_time = |line: &&str| {
            line.starts_with("strait_capture_link_down_seconds_total{") && line.contains("third")
        };
        text.lines().find(is_time).map(str::to_owned)
    };
    let before = down();
    assert!(before.is_some());
    assert_eq!(down(), before);
    let _ = capture.end(Signal::INT);
}

#[test]
fn full_disk_is_charged_to_the_interface_of_the_lost_packets() {
    let Some(wire) = two_links() else { return };
    let disk = SmallDisk::mount("128k");
    let capture = disk.capture(&wire, &["-i", "third", "-w", "/mnt/capture"]);
    send(&wire, &numbered(RIGHT));
    let part = disk.directory().join("capture.part");
    let is_written = || fs::metadata(&part).is_ok_and(|part| part.len() > RIGHT * 64);
    assert!(wait_until(LIMIT, is_written), "the first packets are in the file");
    send_to_both(&wire, 600, 0);
    let finished = capture.wait();
    let (code, line) = failure(&finished);
    assert!(code == 1 && line.contains("No space left on device"), "{line}");
    let ledger = ledger(&finished);
    let (right, third) = (interface(&ledger, "right"), interface(&ledger, "third"));
    assert_eq!((count(right, "delivered"), lost(right)), (RIGHT, 0), "{ledger}");
    assert!(third["lost"]["sink"].as_u64().unwrap() > 0, "{ledger}");
    let written = count(right, "delivered") + count(third, "delivered");
    assert_eq!(crate::rig::packets(&disk.directory().join("capture")).len() as u64, written);
}

/// Name of an interface that would change the colours of a terminal.
const COLOURED: &str = "\x1b[7mx";

#[test]
fn names_of_interfaces_have_no_escapes_in_lines() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    wire.right().run(|| {
        let mut netlink = Netlink::open().unwrap();
        netlink.add_veth(&VethEnd::new(COLOURED), &VethEnd::new("fourth")).unwrap();
        for name in [COLOURED, "fourth"] {
            let index = netlink.interface(name).unwrap().index;
            netlink.set_up(index, true).unwrap();
        }
    });
    let is_running =
        |name: &str| wire.right().run(|| Interface::find(name)).is_ok_and(|link| link.is_running());
    assert!(wait_until(LIMIT, || is_running(COLOURED) && is_running("fourth")));
    for interfaces in [&["-i", "right", "-i", COLOURED][..], &["-i", "any"]] {
        let capture = strait(wire.right(), &["capture"]).args(interfaces).args(["-Q", "in", "-c", "20"]);
        let capture = Capture::watch(capture);
        wire.right().run_in_order(|| {
            let mut injector = Injector::open("fourth", InjectPath::Sendmmsg).unwrap();
            for frame in numbered(20) {
                injector.buffer().unwrap()[..frame.len()].copy_from_slice(&frame);
                injector.push(frame.len());
            }
            let _ = injector.finish().unwrap();
        });
        let text = capture.wait().success().text();
        assert!(text.contains("[7mx") && !text.contains('\x1b'), "{text:?}");
    }
}

#[test]
fn capture_ends_when_the_last_interface_disappears() {
    let Some(wire) = two_links() else { return };
    let capture = start(&wire, &["--json"]);
    wire.right().run(|| {
        let mut netlink = Netlink::open().unwrap();
        for name in ["third", "right"] {
            let index = netlink.interface(name).unwrap().index;
            netlink.delete(index).unwrap();
        }
    });
    let finished = capture.wait();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("the interface was removed"), "{}", finished.stderr);
    let _ = ledger(&finished);
}

#[test]
fn interfaces_that_cannot_be_combined_are_refused() {
    let Some(wire) = two_links().filter(|_| program_or_skip("ip")) else { return };
    let altname = ["link", "property", "add", "dev", "third", "altname", "another-name-of-third"];
    let _ = wire.right().command("ip").args(altname).run(LIMIT).unwrap().success();
    let many: Vec<&str> = (0..33).flat_map(|_| ["-i", "right"]).collect();
    for (arguments, words) in [
        (&["-i", "right", "-i", "right"][..], "-i right is given twice"),
        (&["-i", "third", "-i", "another-name-of-third"], "are the same interface"),
        (&["-i", "right", "-i", "any"], "any stands for all interfaces: give it alone"),
        (&["-i", "right", "-i", "third", "--owner"], "--owner works on one interface: give -i once"),
        (&["-i", "right", "-i", "third", "--process", "1"], "--process works on one interface"),
        (&many, "-i is given 33 times: give at most 32 interfaces"),
        (&["-i", "right", "-i", "none0"], "no such interface"),
    ] {
        let launch = strait(wire.right(), &["capture"]).args(arguments);
        let (code, line) = failure(&launch.run(LIMIT).unwrap());
        assert!(code == 2 && line.contains(words), "{words}: {line}");
    }
}
